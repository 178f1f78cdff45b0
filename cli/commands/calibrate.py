"""`calibrate`: how much local privacy a target needs, and what accuracy that leaves."""

from __future__ import annotations

import math

import click

from shuffle_ledger.accounting import Calibration, FrequencyError, calibrate, frequency_error
from shuffle_ledger.cli.commands.amplify import certificate_facts
from shuffle_ledger.cli.options import (
    REAL,
    WHOLE,
    ledger_options,
    open_round_options,
    output_options,
    precision_option,
    server_refused,
)
from shuffle_ledger.cli.rendering.present import (
    certificate_document,
    document_of,
    facts,
    lower,
    present,
    upper,
)

_DATABASE = "--cohort works on a database only, for its filters and slots; without it no ledger is asked"


@click.command("calibrate")
@open_round_options
@click.option("--epsilon", type=REAL, metavar="E", help="The target's epsilon; without --cohort.")
@click.option("--delta", type=REAL, metavar="D", help="The target's delta; without --cohort.")
@click.option(
    "--rounds", type=WHOLE, metavar="T", default=1, help="Rounds that meet it together (default: 1)."
)
@click.option(
    "--policy",
    type=click.Choice(["fixed", "plan", "adaptive"]),
    help="The policy of the cohort that admits the rounds; without --cohort (default: fixed).",
)
@click.option(
    "--cohort",
    metavar="NAME",
    help="The target is what this cohort of the ledger has left, by its own policy.",
)
@precision_option
@server_refused(_DATABASE)
@ledger_options
@output_options
def calibrate_(
    described: dict[str, object],
    epsilon: float | None,
    delta: float | None,
    rounds: int,
    policy: str | None,
    cohort: str | None,
    precision: float,
    database_url: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Find the largest epsilon0 with which a cohort admits T rounds.

    Leave it out of the randomizer: krr(k=10).
    Rounds are charged as the ledger charges them: as their slots, and by the rule of the cohort's policy.
    With --cohort the answer holds if nothing else is registered, settled, voided or changed before.

    For frequency oracles the answer includes the error of frequencies estimated from one round's honest
    reports.
    """
    if cohort is None:
        if epsilon is None or delta is None:
            raise click.UsageError("--epsilon and --delta are needed, or --cohort, which has both")
        found = calibrate(
            described,
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            policy=policy or "fixed",
            precision=precision,
        )
    else:
        if (epsilon, delta, policy) != (None, None, None):
            raise click.UsageError("--cohort has an epsilon, a delta and a policy of its own: leave them out")
        found = _within(cohort, described, rounds, precision, database_url, actor)
    error = frequency_error(found.round.randomizer, _expected_reports(found))
    document = {
        "epsilon0": found.epsilon0,
        "epsilon0_beyond": found.epsilon0_beyond,
        "policy": found.policy,
        "cohort": cohort,
        "epsilon_decided_upper": found.epsilon_decided_upper,
        **certificate_document(found.certificate, of="epsilon"),
        "expected_l2_error": None if error is None else error.l2,
        "frequency_error": document_of(error),
        "interaction": found.round.interaction,
        "round": document_of(found.round),
        "accounted": document_of(found.accounted),
    }
    rounds_of = "One round" if rounds == 1 else f"{rounds:,} rounds"
    title = f"{rounds_of} of {found.round.randomizer.kind}, {found.round.reports:,} reports"
    if cohort is not None:
        title += f", within what cohort {cohort} has left"
    present(document, lambda: facts(title, _rows(found, error, cohort)), as_json=as_json)


def _within(
    cohort: str,
    described: dict[str, object],
    rounds: int,
    precision: float,
    database_url: str | None,
    actor: str | None,
) -> Calibration:
    """Returns the calibration of rounds within what a cohort of the ledger has left."""
    # Calculators need no database's library.
    from shuffle_ledger.cli.backends.session import open_session, settings_from  # noqa: PLC0415 - only with --cohort
    from shuffle_ledger.ledger.reports import calibrate_for  # noqa: PLC0415 - only with --cohort

    settings = settings_from(database_url=database_url, actor=actor)
    if (
        settings.server is not None
        and database_url is None
        and "database_url" not in settings.model_fields_set
    ):
        raise click.UsageError(f"SHUFFLE_LEDGER_SERVER is set, and {_DATABASE}: name it by --database-url")
    with open_session(settings) as session:
        return calibrate_for(
            session.store, session.accountant, cohort, described, rounds=rounds, width=precision
        )


def _expected_reports(found: Calibration) -> int:
    """Reports that are expected to come in and to be honest."""
    share = 1.0 if found.round.participation is None else found.round.participation
    return max(math.floor(found.round.honest_reports * share), 1)


def _rows(found: Calibration, error: FrequencyError | None, cohort: str | None) -> dict[str, object]:
    planned = " and plans these rounds" if found.policy == "plan" else ""
    admitted = f"a new cohort that has this budget{planned}" if cohort is None else f"cohort {cohort}"
    rows: dict[str, object] = {
        "epsilon0": lower(found.epsilon0),
        "not certified from": None if found.epsilon0_beyond is None else upper(found.epsilon0_beyond),
        "randomizer": found.round.randomizer.describe(),
        "admitted": f"all of them, by {admitted}, if nothing else is registered or changed",
        "policy": found.policy,
        "decided at": f"at most epsilon {upper(found.epsilon_decided_upper)} with the last round",
        "interaction": found.round.interaction_text,
    }
    if error is not None:
        deviation = upper(math.sqrt(error.per_category))
        rows["standard deviation of an estimated frequency, rare category"] = deviation
        rows["expected l2 error"] = upper(error.l2)
    return rows | certificate_facts(found.certificate, of="epsilon")
