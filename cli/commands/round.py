"""`round`: quote, register, settle, void and correct rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.commands.round_views import decision_facts, quote_facts, record_facts
from shuffle_ledger.cli.failures import BadValue, ExitCode, NeedsSlots
from shuffle_ledger.cli.files.output_files import checked_place, write_whole
from shuffle_ledger.cli.options import (
    FILE,
    NEW_FILE,
    WHOLE,
    asking_options,
    audience_option,
    changed_round_options,
    deciding_options,
    dry_run_option,
    flag,
    names_given,
    output_options,
    registration_options,
    releaser_option,
    round_options,
    team_option,
)
from shuffle_ledger.cli.rendering.messages import at_terminal, say
from shuffle_ledger.cli.rendering.present import (
    document_of,
    present,
    present_decision,
    tell_overspent,
)
from shuffle_ledger.ledger.errors import UnacceptedWarnings
from shuffle_ledger.ledger.values import (
    COLLECTION_FIELDS,
    Admitted,
    Corrected,
    Incident,
    Pending,
    Refused,
    Settled,
    Voided,
    checked_new_name,
    decision_document,
    record_document,
    request_of,
)

if TYPE_CHECKING:
    from shuffle_ledger.cli.backends.database import Ledger


@click.command("quote")
@click.argument("cohort", required=False)
@audience_option
@click.option("--id", "round_id", metavar="ID", help="Say what registering it under this name would answer.")
@round_options
@registration_options
@click.option("--check", is_flag=True, help="Exit as `round register` would: with 3 if it would be refused.")
@team_option
@asking_options
@output_options
def quote_(
    cohort: str | None,
    audience: str | None,
    round_id: str | None,
    described: ShuffledRound,
    declared: dict[str, Any],
    check: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Say what would be decided about a round of COHORT, or of --audience. Leaves no trace.

    Exits with 0 whatever would be decided, unless --check is given. With --id, a name that is registered is
    answered like a repeated registration: with 5 if it has other content, or must not be collected any more.
    """
    if round_id is None and (compared := declared.keys() - COLLECTION_FIELDS):
        raise click.UsageError(f"{flag(min(compared))} is compared with that of --id, which is not given")
    named = names_given(cohort, audience)
    with open_ledger(**where) as ledger:
        names = [named] if audience is None else ledger.audience(named, round_id=round_id)
        request = request_of(names, described, round_id=round_id or "quote", **declared)
        answer = ledger.quote_for_all(request) if round_id is None else ledger.price_named(request)
        fits = ledger.fits_instead(request) if answer.would_be == "refused" else None
    document: Any = document_of(answer)
    present({**document, "fits": document_of(fits)}, lambda: quote_facts(answer, fits), as_json=as_json)
    return ExitCode.REFUSED if check and answer.would_be == "refused" else ExitCode.DONE


@click.command("register")
@click.argument("cohort", required=False)
@audience_option
@click.option(
    "--id", "round_id", metavar="ID", required=True, help="The round's name, chosen by you, never reused."
)
@round_options
@registration_options
@click.option(
    "--permit", type=NEW_FILE, metavar="FILE", help="Write the permit there, if the round is admitted."
)
@releaser_option
@click.option(
    "--yes", is_flag=True, help="The first round may be one for which --plan should have declared slots."
)
@team_option
@deciding_options
@output_options
def register_(
    cohort: str | None,
    audience: str | None,
    round_id: str,
    described: ShuffledRound,
    declared: dict[str, Any],
    permit: Path | None,
    releaser: str | None,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Register a round of COHORT, or of --audience, and decide it.

    Exits with 0 when admitted, 3 when refused, 7 if undecided. A round of several cohorts is admitted if and
    only if each of them admits it, with one number of reports over all. Admitted permits one release of this
    round. Registering it again answers with its present state: exits with 5 once it is voided or settled, or
    a cohort of it is frozen or overspent. The first round of a cohort, if it is a sample for which declared
    slots would admit more than 1.25 times as many, needs --yes.
    """
    if releaser is not None and permit is None:
        raise click.UsageError("--releaser names the gate of the --permit, which is not given")
    if permit is not None:
        checked_place(permit)  # before the round is admitted, as what follows
    if releaser is not None:
        checked_new_name("releaser", releaser)
    named, issued = names_given(cohort, audience), None
    with open_ledger(**where) as ledger:
        names = [named] if audience is None else ledger.audience(named, round_id=round_id)
        request = request_of(names, described, round_id=round_id, **declared)
        if permit is not None and ledger.permit_keys()["signing"] is None:
            raise BadValue("--permit", str(permit), "it left out: this ledger has no key that signs permits")
        try:
            ((answer, _),) = ledger.register_some([request], accept_warnings=yes)
        except UnacceptedWarnings as refused:
            raise NeedsSlots(refused) from None
        if permit is not None and isinstance(answer, Admitted):
            issued = ledger.permit(round_id, releaser=releaser)
            write_whole(permit, issued.permit + "\n")
    document = decision_document(answer)
    document |= {"permit": issued.permit} if issued else {}
    present_decision(document, lambda: decision_facts(answer), as_json=as_json)
    return _code_of(answer)


@click.command("settle")
@click.argument("round_id", metavar="ID", required=False)
@click.option(
    "--reports",
    type=WHOLE,
    metavar="N",
    help="Reports that were really shuffled, counted as at registration: before the honest fraction is taken;"
    " with --participation the users.",
)
@click.option("--receipt", type=FILE, help="The gate's receipt, which says the round and the number.")
@click.option("--yes", is_flag=True, help="Ask nothing: far fewer reports than declared are meant.")
@dry_run_option
@asking_options
@output_options
def settle_(
    round_id: str | None,
    reports: int | None,
    receipt: Path | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Record what the round ID really collected; fewer reports than planned cost more.

    Exits with 3 if the cohort is overspent with it. At a terminal, it asks before it settles far fewer ones.
    A --receipt says the round and the number. If it is of a release that nothing in this ledger admits, that
    is recorded as an incident.
    """
    if receipt is not None:
        if round_id is not None or reports is not None:
            raise click.UsageError("--receipt says the round and the number of reports: leave both out")
        if dry_run:
            raise click.UsageError("--dry-run takes ID and --reports: a --receipt is kept at once")
        token = receipt.read_text("utf-8", "replace")
        answer = _close(lambda ledger: ledger.settle_by_receipt(token), where, as_json=as_json)
        return code_of_charge(answer)
    if round_id is None or reports is None:
        raise click.UsageError("give ID and --reports, or --receipt")
    if not yes and not dry_run and not as_json and at_terminal():
        _ask_if_far_fewer(round_id, reports, where)
    answer = _close(
        lambda ledger: ledger.settle(round_id, reports=reports, dry_run=dry_run), where, as_json=as_json
    )
    return code_of_charge(answer)


@click.command("void")
@click.argument("round_id", metavar="ID")
@click.option(
    "--reason", metavar="TEXT", required=True, help="Your attestation that nothing was released, and why."
)
@dry_run_option
@asking_options
@output_options
def void_(round_id: str, reason: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Close the round ID as one of which nothing was or will be released, and give back what it reserved."""
    _close(lambda ledger: ledger.void(round_id, reason=reason, dry_run=dry_run), where, as_json=as_json)


@click.command("correct")
@click.argument("round_id", metavar="ID")
@changed_round_options
@click.option("--not-sampled", is_flag=True, help="The reports came from no sample, and no coin decided.")
@click.option("--reason", metavar="TEXT", required=True, help="Why it is told now.")
@dry_run_option
@asking_options
@output_options
def correct_(
    round_id: str,
    given: dict[str, object],
    not_sampled: bool,
    reason: str,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Record the true parameters of the released round ID, where they differ from those declared.

    Give the parameters that differ; the others stay. The round is charged at its true cost; a charge does not
    shrink. Where it was collected from further
    cohorts, or on further days, record an incident of each cohort or period that lacks it. Exits with 3 if a
    cohort is overspent with it. The same again changes nothing, unless another correction or a settlement
    came between.
    """
    if not_sampled:
        given = {"sampled_from": None, "participation": None, **given}
    said: dict[str, Any] = {"reason": reason, "dry_run": dry_run}
    answer = _close(lambda ledger: ledger.correct(round_id, given, **said), where, as_json=as_json)
    return code_of_charge(answer)


@click.command("show")
@click.argument("round_id", metavar="ID")
@asking_options
@output_options
def show_(round_id: str, as_json: bool, **where: Any) -> None:
    """Show the round ID and all that has happened to it."""
    with open_ledger(**where) as ledger:
        record = ledger.round(round_id)
    present(record_document(record), lambda: record_facts(record), as_json=as_json)


@click.command("retry")
@click.argument("round_id", metavar="ID")
@deciding_options
@output_options
def retry_(round_id: str, as_json: bool, **where: Any) -> int:
    """Decide the round ID, which was left alone after too many failures; exits like `round register`."""
    with open_ledger(**where) as ledger:
        answer = ledger.retry(round_id)
    present_decision(decision_document(answer), lambda: decision_facts(answer), as_json=as_json)
    return _code_of(answer)


def _ask_if_far_fewer(round_id: str, reports: int, where: Mapping[str, Any]) -> None:
    """Ask whether far fewer reports than declared are meant; ends the command unless they are."""
    with open_ledger(**where) as ledger:
        declared = ledger.round(round_id).request.round.reports
    if 2 * reports < declared:
        say(
            f"{round_id} was registered for {declared:,} reports. If only {reports:,} were shuffled, it may"
            " have cost more: that is charged for ever, and nothing that is told later takes it back"
        )
        click.confirm("Is the number right? Settle it", err=True, abort=True)


Closed = TypeVar("Closed", Settled, Voided, Corrected, Settled | Incident)


def _close(close: Callable[[Ledger], Closed], where: Mapping[str, Any], *, as_json: bool) -> Closed:
    with open_ledger(**where) as ledger:
        answer = close(ledger)
    present_decision(decision_document(answer), lambda: decision_facts(answer), as_json=as_json)
    return answer


def code_of_charge(answer: Settled | Corrected | Incident) -> ExitCode:
    """Returns how a command exits that charged what was released, or would, after saying which cohorts are
    overspent."""
    if not answer.overspent:
        return ExitCode.DONE
    names = [member.cohort for member in answer.audience if member.overspent] or [answer.cohort]
    tell_overspent(names, dry_run=answer.dry_run)
    return ExitCode.REFUSED


def _code_of(answer: Admitted | Refused | Pending) -> ExitCode:
    if isinstance(answer, Admitted):
        return ExitCode.DONE
    return ExitCode.REFUSED if isinstance(answer, Refused) else ExitCode.UNDECIDED
