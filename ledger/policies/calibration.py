"""Calibration for a new cohort: the largest epsilon0, or the least common noise, with which its policy admits
rounds."""

from __future__ import annotations

from collections.abc import Mapping

from shuffle_ledger import accounting
from shuffle_ledger.accounting import (
    CALIBRATION_POLICIES,
    DEFAULT_PRECISION,
    Accountant,
    Calibration,
    ShuffledRound,
    calibrate_by,
    slot_for,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, Cohort
from shuffle_ledger.ledger.values.texts import POPULATION_MAX


def calibrate(
    described: Mapping[str, object],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    policy: str = CALIBRATION_POLICIES[0],
    precision: float = DEFAULT_PRECISION,
) -> Calibration:
    """Returns the largest epsilon0, or the least common noise, with which `rounds` rounds meet a target: with
    a policy, so that a new cohort with this budget admits them.

    Args:
        described, epsilon, delta, rounds, precision: as of `accounting.calibrate`.
        policy: what decides: as of `accounting.calibrate`; or `adaptive`: the filters of a new cohort.

    Guarantee: as of `accounting.calibrate`; a new cohort with policy `adaptive` and this budget admits all
        rounds, one after the other.

    Raises:
        InvalidParameter: as `accounting.calibrate`.
        InvalidValue: no cohort can have this budget.
    """
    if policy != POLICY_ADAPTIVE:
        return accounting.calibrate(
            described, epsilon=epsilon, delta=delta, rounds=rounds, policy=policy, precision=precision
        )
    accountant = Accountant(precision=precision)
    opened = BudgetPolicy.opened(
        Cohort(
            name="new",
            population=POPULATION_MAX,
            epsilon_budget=epsilon,
            delta_budget=delta,
            policy=policy,
        )
    )
    state = machine.new_state(opened.machine_rules, opened.limits)

    def decides(shuffled: ShuffledRound) -> float:
        if opened.filters is None:
            raise AssertionError("policy adaptive has filters")
        cost = cost_of(accountant.charge(slot_for(shuffled), opened.filters))
        return opened.epsilon_of(state, cost, rounds, epsilon=epsilon)

    return calibrate_by(
        decides,
        described,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        policy=policy,
        accountant=accountant,
        width=precision,
    )
