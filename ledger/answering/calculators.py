"""Answers of the calculators: amplify, compose, calibrate. They read no cohort and leave no trace."""

from __future__ import annotations

from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, answers
from shuffle_ledger.ledger.answers.calculations import (
    Amplification,
    CalibratedRounds,
    Composition,
    amplification,
    attack_on,
    calibrated_error,
    calibrated_rounds,
    certified,
    composition,
    few_honest,
)
from shuffle_ledger.ledger.questions import calculators as asking
from shuffle_ledger.ledger.reports.calibrations import calibrate as calibrated


@answers(operations.AMPLIFY, at="calculating")
def amplify(call: Call, asked: asking.AmplifyRound) -> Amplification:
    described = asked.described()
    certificate, of = certified(call.accountant, {described: 1}, delta=asked.delta, epsilon=asked.epsilon)
    attacked = attack_on(described, certificate, of=of)
    third = few_honest(call.accountant, described, certificate, of=of)
    return amplification(described, certificate, attacked, third, of=of)


@answers(operations.COMPOSE, at="calculating")
def compose(call: Call, asked: asking.ComposeRounds) -> Composition:
    rounds = asked.counted()
    certificate, of = certified(call.accountant, rounds, delta=asked.delta, epsilon=asked.epsilon)
    return composition(rounds, certificate, of=of)


@answers(operations.CALIBRATE, at="calculating")
def calibrate(_call: Call, asked: asking.CalibrateRounds) -> CalibratedRounds:
    found = calibrated(
        asked.incomplete(),
        epsilon=asked.epsilon,
        delta=asked.delta,
        rounds=asked.rounds,
        policy=asked.policy,
    )
    return calibrated_rounds(found, calibrated_error(found))
