"""`calibrate`: how much local privacy a target needs, and what accuracy that leaves."""

from __future__ import annotations

import math

import click

from shuffle_ledger.accounting import Calibration, FrequencyError, calibrate, frequency_error
from shuffle_ledger.cli.commands.amplify import certificate_facts
from shuffle_ledger.cli.options import (
    NO_LEDGER,
    REAL,
    WHOLE,
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


@click.command("calibrate")
@open_round_options
@click.option("--epsilon", type=REAL, metavar="E", required=True, help="The target's epsilon.")
@click.option("--delta", type=REAL, metavar="D", required=True, help="The target's delta.")
@click.option(
    "--rounds", type=WHOLE, metavar="T", default=1, help="Rounds that meet it together (default: 1)."
)
@precision_option
@server_refused(NO_LEDGER)
@output_options
def calibrate_(
    described: dict[str, object],
    epsilon: float,
    delta: float,
    rounds: int,
    precision: float,
    as_json: bool,
) -> None:
    """Find the largest epsilon0 that certainly meets a target; leave it out of the randomizer: krr(k=10).

    For frequency oracles the answer includes the error of frequencies estimated from one round's honest
    reports.
    """
    found = calibrate(described, epsilon=epsilon, delta=delta, rounds=rounds, precision=precision)
    error = frequency_error(found.round.randomizer, _expected_reports(found))
    document = {
        "epsilon0": found.epsilon0,
        "epsilon0_beyond": found.epsilon0_beyond,
        **certificate_document(found.certificate, of="epsilon"),
        "expected_l2_error": None if error is None else error.l2,
        "frequency_error": document_of(error),
        "interaction": found.round.interaction,
        "round": document_of(found.round),
    }
    rounds_of = "One round" if rounds == 1 else f"{rounds:,} rounds"
    title = f"{rounds_of} of {found.round.randomizer.kind}, {found.round.reports:,} reports"
    present(document, lambda: facts(title, _rows(found, error)), as_json=as_json)


def _expected_reports(found: Calibration) -> int:
    """Reports that are expected to come in and to be honest."""
    share = 1.0 if found.round.participation is None else found.round.participation
    return max(math.floor(found.round.honest_reports * share), 1)


def _rows(found: Calibration, error: FrequencyError | None) -> dict[str, object]:
    rows: dict[str, object] = {
        "epsilon0": lower(found.epsilon0),
        "not certified from": None if found.epsilon0_beyond is None else upper(found.epsilon0_beyond),
        "randomizer": found.round.randomizer.describe(),
        "interaction": found.round.interaction_text,
    }
    if error is not None:
        deviation = upper(math.sqrt(error.per_category))
        rows["standard deviation of an estimated frequency, rare category"] = deviation
        rows["expected l2 error"] = upper(error.l2)
    return rows | certificate_facts(found.certificate, of="epsilon")
