"""Answers of the calculators: amplify, compose, calibrate. They read no cohort and leave no trace."""

from __future__ import annotations

from typing import Any

from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, answers
from shuffle_ledger.ledger.questions import calculators as asking
from shuffle_ledger.ledger.reports.calibrations import calibrate as calibrated
from shuffle_ledger.ledger.values.calculations import (
    amplification_document,
    attack_on,
    calibrated_error,
    calibration_document,
    certified,
    composition_document,
    few_honest,
)


@answers(operations.AMPLIFY, at="calculating")
def amplify(call: Call, asked: asking.AmplifyRound) -> dict[str, Any]:
    described = asked.described()
    certificate, of = certified(call.accountant, {described: 1}, delta=asked.delta, epsilon=asked.epsilon)
    attacked = attack_on(described, certificate, of=of)
    third = few_honest(call.accountant, described, certificate, of=of)
    return amplification_document(described, certificate, attacked, third, of=of)


@answers(operations.COMPOSE, at="calculating")
def compose(call: Call, asked: asking.ComposeRounds) -> dict[str, Any]:
    rounds = asked.counted()
    certificate, of = certified(call.accountant, rounds, delta=asked.delta, epsilon=asked.epsilon)
    return composition_document(rounds, certificate, of=of)


@answers(operations.CALIBRATE, at="calculating")
def calibrate(_call: Call, asked: asking.CalibrateRounds) -> dict[str, Any]:
    found = calibrated(
        asked.incomplete(),
        epsilon=asked.epsilon,
        delta=asked.delta,
        rounds=asked.rounds,
        policy=asked.policy,
    )
    return calibration_document(found, calibrated_error(found))
