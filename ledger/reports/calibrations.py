"""Calibration: the largest epsilon0, or the least common noise, with which a cohort, or a new one, admits a
number of rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shuffle_ledger import accounting
from shuffle_ledger.accounting import (
    CALIBRATION_POLICIES,
    DEFAULT_PRECISION,
    Accountant,
    Calibration,
    InvalidParameter,
    ShuffledRound,
    alike_rounds,
    calibrate_by,
    slot_for,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions.windows import views_on
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.registry import BudgetPolicy, LossSource, policy_of
from shuffle_ledger.ledger.policies.room import is_over, room_of
from shuffle_ledger.ledger.reports.listing import views_now
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, Cohort
from shuffle_ledger.ledger.values.texts import POPULATION_MAX, checked_text


def calibrate(
    described: object,
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    policy: str = CALIBRATION_POLICIES[0],
    precision: float = DEFAULT_PRECISION,
    **fields: object,
) -> Calibration:
    """Returns the largest epsilon0, the least common noise, or the least number of dummies, with which
    `rounds` rounds meet a target: with a policy, so that a new cohort with this budget admits them.

    Args:
        described, epsilon, delta, rounds, precision, fields: as of `accounting.calibrate`.
        policy: what decides: as of `accounting.calibrate`; or `adaptive`: the filters of a new cohort.

    Guarantee: as of `accounting.calibrate`; a new cohort with policy `adaptive` and this budget admits all
        rounds, one after the other.

    Raises:
        InvalidParameter: as `accounting.calibrate`.
        InvalidValue: no cohort can have this budget.
    """
    if policy != POLICY_ADAPTIVE:
        return accounting.calibrate(
            described,
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            policy=policy,
            precision=precision,
            **fields,
        )
    form, count = alike_rounds(described, fields)
    rounds *= count
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
        return opened.epsilon_after(state, cost, rounds, epsilon=epsilon)

    return calibrate_by(
        decides,
        form,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        policy=policy,
        accountant=accountant,
        width=precision,
    )


def calibrate_for(
    store: Store,
    accountant: Accountant,
    cohort: str,
    described: Mapping[str, object],
    *,
    rounds: int = 1,
    width: float = DEFAULT_PRECISION,
) -> Calibration:
    """Return the largest epsilon0, or the least noise (`p`, `bits`, `noise`), with which a cohort admits all
    of these rounds, one after the other; of a cohort with windows, if all of them are collected today.

    Nothing is reserved: the answer holds if nothing else is registered, settled, voided or changed before,
    and no other cohort or quota that the rounds are charged to refuses.

    Args:
        store: the ledger.
        accountant: computes with the ledger's precision.
        cohort: its name.
        described: a round's JSON form without the parameter that is searched for, as for
            `accounting.calibrate`.
        rounds: how many.
        width: wanted relative width of the answer.

    Raises:
        NotFound: no such cohort.
        BehindCheckpoint: more was spent than the ledger knows.
        Conflict: the cohort admits no rounds any more.
        InvalidParameter: a value is out of range, no parameter is left out, or none is admitted.
    """
    (view,) = views_now(store, [store.view(checked_text("cohort", cohort))])
    store.check_anchor()  # now: the connection may have been opened for this
    _refuse_closed(view)
    losses = LossSource(store=store, accountant=accountant, keep=False)
    budgets = [*([view] if view.cohort.has_life else []), *views_on(store, view, view.now.date())]
    # The answer is about the budget of its life; else about the one with the least left.
    target = min(budgets, key=lambda each: each.cohort.remaining(each.spent.epsilon_upper))
    target = view if view.cohort.has_life else target
    policy, epsilon = policy_of(store, target), target.cohort.epsilon_budget

    def decides(described: ShuffledRound) -> float:
        if room_of(losses, budgets, [described]).turns < rounds:
            return math.inf
        cost = policy.cost(losses, described)
        return policy.epsilon_after(policy.state(target), cost, rounds, epsilon=epsilon)

    try:
        return calibrate_by(
            decides,
            described,
            epsilon=epsilon,
            delta=target.cohort.delta_budget,
            rounds=rounds,
            policy=view.cohort.policy,
            accountant=accountant,
            width=width,
            spent=0.0 if policy_of(store, view).filters is None else target.spent.epsilon_upper,
        )
    except InvalidParameter as error:
        if error.field != "epsilon":
            raise
        expected = f"a number of such rounds that cohort {cohort!r} still admits with some epsilon0"
        raise InvalidParameter("rounds", rounds, expected) from error


def _refuse_closed(view: CohortView) -> None:
    name, status = view.cohort.name, view.cohort.status
    if status != "open":
        raise Conflict(f"cohort {name!r} is {status}: it admits no rounds")
    if is_over(view):
        raise Conflict(f"the days of {name!r} have passed: it admits no rounds")
