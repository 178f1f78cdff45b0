"""`calibrate`: how much local privacy or cover a target needs, and what accuracy that leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from shuffle_ledger.accounting import CALIBRATION_POLICIES, Calibration, FrequencyError, exact_text
from shuffle_ledger.cli.commands.amplify import certificate_facts, per_user_facts
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
    facts,
    lower,
    present,
    upper,
)
from shuffle_ledger.ledger.answers import calibrated_error, calibrated_rounds
from shuffle_ledger.ledger.reports import calibrate
from shuffle_ledger.ledger.values import document_of

_DATABASE = "--cohort works on a database only, for its filters and slots; without it no ledger is asked"


@click.command("calibrate")
@open_round_options
@click.option("--epsilon", type=REAL, metavar="E", help="The target's epsilon; without --cohort.")
@click.option("--delta", type=REAL, metavar="D", help="The target's delta; without --cohort.")
@click.option(
    "--rounds", type=WHOLE, metavar="T", default=1, help="Rounds that meet it together (default: 1)."
)
@click.option(
    "--dummies",
    is_flag=True,
    help="Find how many dummies each round needs (see amplify --dummies); the randomizer has its epsilon0.",
)
@click.option(
    "--policy",
    type=click.Choice(CALIBRATION_POLICIES),
    help="What decides: a cohort's policy, or the composition of rounds fixed in advance; without --cohort"
    " (default: composition).",
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
    dummies: bool,
    policy: str | None,
    cohort: str | None,
    precision: float,
    as_json: bool,
    **where: Any,
) -> None:
    """Find the largest epsilon0, the least common noise, or the fewest dummies, with which T rounds fit.

    Leave it out of the randomizer: krr(k=10); of a protocol with common noise one parameter of it:
    binomial_sum(bits=1) or binomial_sum(p=0.5), uniformity_tester(), distinct_elements(); of a mixed fleet
    its dummies: mixed((500, krr(k=10, epsilon0=2))). --dummies makes this fleet of one randomizer. The number
    of dummies is at most one percent, or one, above one that is too small; where certificates are slow
    the search ends after some seconds, and the answer says which smaller number was not certified.

    Rounds are charged as the ledger charges them: as their slots, and by the rule of the cohort's policy.
    With --cohort the answer holds if nothing else is registered, settled, voided or changed before, and no
    other cohort or quota refuses.

    For frequency oracles the answer includes the error of frequencies estimated from one round's honest
    reports.
    """
    has_windows = False
    if dummies:
        group = [described["reports"], described["randomizer"]]
        described = described | {"randomizer": {"kind": "mixed", "groups": [group]}}
    if cohort is None:
        if epsilon is None or delta is None:
            raise click.UsageError("--epsilon and --delta are needed, or --cohort, which has both")
        found = calibrate(
            described,
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            policy=policy or CALIBRATION_POLICIES[0],
            precision=precision,
        )
    else:
        if (epsilon, delta, policy) != (None, None, None):
            raise click.UsageError("--cohort has an epsilon, a delta and a policy of its own: leave them out")
        found, has_windows = _within(cohort, described, rounds, precision, where)
    error = calibrated_error(found)
    document = document_of(calibrated_rounds(found, error, cohort=cohort))
    rounds_of = "One round" if rounds == 1 else f"{rounds:,} rounds"
    title = f"{rounds_of} of {found.round.randomizer.kind}, {found.round.reports:,} reports"
    if cohort is not None:
        title += f", within what cohort {cohort} has left"
    if has_windows:
        title += ", all collected today; `forecast --fit` spreads them over days"
    present(document, lambda: facts(title, _rows(found, error, cohort)), as_json=as_json)


def _within(
    cohort: str,
    described: dict[str, object],
    rounds: int,
    precision: float,
    where: Mapping[str, Any],
) -> tuple[Calibration, bool]:
    """Returns the calibration of rounds within what a cohort of the ledger has left, and whether the cohort
    has windows."""
    # Calculators need no database's library.
    from shuffle_ledger.cli.backends.session import open_session  # noqa: PLC0415 - only with --cohort
    from shuffle_ledger.cli.backends.settings import settings_from  # noqa: PLC0415 - only with --cohort
    from shuffle_ledger.ledger.reports import calibrate_for  # noqa: PLC0415 - only with --cohort

    settings = settings_from(**where)
    if settings.server is not None and "database_url" not in settings.model_fields_set:
        raise click.UsageError(f"SHUFFLE_LEDGER_SERVER is set, and {_DATABASE}: name it by --database-url")
    with open_session(settings) as session:
        found = calibrate_for(
            session.store, session.accountant, cohort, described, rounds=rounds, width=precision
        )
        return found, bool(session.store.cohort(cohort).windows)


def _rows(found: Calibration, error: FrequencyError | None, cohort: str | None) -> dict[str, object]:
    planned = " and plans these rounds" if found.policy == "plan" else ""
    admitter = f"a new cohort that has this budget{planned}" if cohort is None else f"cohort {cohort}"
    others = "" if cohort is None else " and no other cohort or quota refuses"
    admitted = f"all of them, by {admitter}, if nothing else is registered or changed{others}"
    if found.policy == "composition":
        admitted = (
            "by no ledger: this is for rounds fixed in advance; --policy adaptive or plan asks for a cohort's"
        )
    if found.round.randomizer.kind == "mixed":
        admitted = "by no ledger: it takes one randomizer for the whole round, and no dummies"
    rows: dict[str, object] = {
        **_parameter_rows(found),
        "randomizer": found.round.randomizer.describe(),
        "admitted": admitted,
        "policy": found.policy,
        "decided at": f"at most epsilon {upper(found.epsilon_decided_upper)} with the last round",
        "analysis": found.round.stated_analysis,
        **per_user_facts(found.round),
    }
    if error is not None:
        deviation = upper(math.sqrt(error.per_category))
        rows["standard deviation of an estimated frequency, rare category"] = deviation
        rows["expected l2 error"] = upper(error.l2)
    return rows | certificate_facts(found.certificate, of="epsilon")


def _parameter_rows(found: Calibration) -> dict[str, object]:
    beyond = found.value_beyond
    if found.parameter == "epsilon0":
        return {
            "epsilon0": lower(found.value),
            "first value tried that was not certified": None if beyond is None else upper(beyond),
        }
    # Noise: exactly these values were tried, and fewer digits of the first could be less noise.
    return {
        f"{found.parameter}, at least": exact_text(found.value),
        "first value tried that was not certified": None if beyond is None else exact_text(beyond),
    }
