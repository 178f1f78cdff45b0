"""`incident`: releases that nothing admitted."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import click

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.commands.round import code_of_charge
from shuffle_ledger.cli.commands.round_views import decision_facts
from shuffle_ledger.cli.files.fields import round_from_fields
from shuffle_ledger.cli.options import (
    MOMENT,
    asking_options,
    changed_round_options,
    days_options,
    dry_run_option,
    output_options,
)
from shuffle_ledger.cli.rendering.present import present_decision
from shuffle_ledger.ledger.values import ReleaseTimes, decision_document


@click.command("record")
@click.argument("cohort")
@click.option(
    "--id",
    "round_id",
    metavar="ID",
    required=True,
    help="A new name, or that of a round that is undecided, refused or voided.",
)
@changed_round_options
@days_options
@click.option(
    "--unknown", is_flag=True, help="It is unknown what was released: it counts as the unprotected data."
)
@click.option("--released-after", type=MOMENT, metavar="T", help="You attest that it was released later.")
@click.option("--released-before", type=MOMENT, metavar="T", help="You attest that it was released earlier.")
@click.option("--reason", metavar="TEXT", required=True, help="How it came about.")
@dry_run_option
@asking_options
@output_options
def record_(
    cohort: str,
    round_id: str,
    given: dict[str, object],
    days: dict[str, date],
    unknown: bool,
    released_after: datetime | None,
    released_before: datetime | None,
    reason: str,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Record that something of COHORT was released although the ledger had not admitted it, and charge it.

    Give --released-after if a log proves that the release was later than the opening of the cohort. Without
    it the release may have guided how the cohort was opened, and it is charged as the unprotected data. The
    rounds that a user joins (--rounds-per-user) do not include it. Exits with 3 if the cohort is overspent.
    The same again changes nothing.
    """
    described = _described(given, unknown=unknown)
    released = ReleaseTimes(after=released_after, before=released_before)
    fields: dict[str, Any] = {"round_id": round_id, "described": described, "reason": reason, **days}
    fields |= {"released": released, "dry_run": dry_run}
    with open_ledger(**where) as ledger:
        answer = ledger.record_incident(cohort, **fields)
    present_decision(decision_document(answer), lambda: decision_facts(answer), as_json=as_json)
    return code_of_charge(answer)


def _described(given: dict[str, object], *, unknown: bool) -> ShuffledRound | None:
    if unknown:
        if given:
            raise click.UsageError("--unknown: nothing of the release may be described then")
        return None
    missing = [name for name in ("randomizer", "reports") if name not in given]
    if missing:
        raise click.UsageError(f"missing --{missing[0]}: describe what was released, or say --unknown")
    return round_from_fields(given)
