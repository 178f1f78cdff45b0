"""How many rounds the machine admits to budgets with the filters of the accountant, at the costs that it
states.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from fractions import Fraction

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.machine import DELTA_UNIT, EPSILON_UNIT, LOSS_UNIT, UNBOUNDED, Cost, State
from shuffle_ledger.ledger.policies.numbers import units_above
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, decided, level
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, Cohort
from tests.accounting.alike import alike
from tests.benchmarks.filters import Budget

EPSILON, DELTA = 3.0, 1e-6
ACCOUNTANT = Accountant()
MOST = 25  # rounds that are admitted one by one


def made(randomizer: str, reports: int = 20_000, **fields: object) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), reports=reports, **fields)


def local(delta0: float) -> ShuffledRound:
    return made("generic(epsilon0=1)", delta0=delta0, analysis="clone")


KRR = made("krr(k=10, epsilon0=2)")


def opened(*rounds: ShuffledRound) -> Budget:
    """A budget to which these rounds are charged."""
    budget = Budget(ACCOUNTANT, EPSILON, DELTA, approximate_share=1 / 8)
    for one in rounds:
        assert budget.admits(one)
    return budget


@pytest.mark.parametrize(
    ("delta0", "count"), [(1e-16, 1251), (1e-15, 125), (1e-14, 12), (3e-14, 4), (1e-13, 1)]
)
def test_a_local_delta_that_fits_costs_nothing_else(delta0: float, count: int) -> None:
    pure = opened(KRR, local(0.0)).epsilon_upper()
    budget = opened(KRR, local(delta0))
    approximate = budget.epsilon_upper()
    assert approximate == pytest.approx(pure, rel=1e-3)
    assert approximate == pytest.approx(0.0686, abs=1e-4)
    composed = ACCOUNTANT.certify({KRR: 1, local(delta0): 1}, delta=DELTA).epsilon_upper
    assert approximate <= 1.02 * composed
    assert 1 + budget.room(local(delta0)) == count


@pytest.mark.slow
def test_a_declared_delta_is_certain_loss() -> None:
    """Filters charge `declared(0.1)` and no more."""
    declared = made("declared(epsilon=0.1, delta=1e-9)", 1)
    budget = opened(KRR, declared)
    assert budget.epsilon_upper() < 0.2115
    assert machine.room(opened().state, budget.cost(declared)).certain == 62
    assert 1 + budget.room(declared) == 38
    for delta in (1e-9, 1e-8, 6e-8):
        assert opened(made(f"declared(epsilon=0.1, delta={delta})", 1), KRR).epsilon_upper() < 0.22
    refusing = opened(KRR)
    more = refusing.cost(made("declared(epsilon=0.1, delta=1e-7)", 1))
    assert decided(refusing.state, more).reasons == ("certain loss",)


def test_the_order_of_rounds_does_not_matter() -> None:
    rounds = [KRR, local(1e-14), local(1e-15), made("declared(epsilon=0.1, delta=1e-9)", 1)]
    budgets = [opened(*order) for order in itertools.permutations(rounds)]
    totals = {
        (one.state.total.certain, one.state.total.slack, one.state.total.gaussian, one.epsilon_upper())
        for one in budgets
    }
    assert len(totals) == 1
    ((_, slack, _, _),) = totals
    exact = sum(Fraction(one.slack) for one in rounds)
    assert exact <= slack * DELTA_UNIT <= exact * Fraction(1 + 1e-8)


def capped(rounds: int) -> BudgetPolicy:
    return BudgetPolicy.opened(
        Cohort(
            name="new",
            population=10**9,
            epsilon_budget=1.0,
            delta_budget=1e-6,
            policy=POLICY_ADAPTIVE,
            rounds_per_user=rounds,
        ),
        approximate_share=1 / 8,
    )


SLIDING = Budget(ACCOUNTANT, 1.0, 1e-6, approximate_share=1 / 8).policy
FIXED = dataclasses.replace(SLIDING, limits=dataclasses.replace(SLIDING.limits, sliding=None))


def some_cost(policy: BudgetPolicy, draw: random.Random, *, is_approximate: bool) -> Cost:
    """The cost of one kind of rounds, of which a handful fits by each filter."""
    limits, parts = policy.limits, (0, 0)
    if is_approximate:
        parts = draw.choice([(1, 0), (0, 1), (1, 2), (3, 2)])
    certain, slack = (
        limit // part if part else 0
        for limit, part in zip((limits.certain, limits.slack // 4), parts, strict=True)
    )
    unit = int(1 / LOSS_UNIT)
    return Cost(
        certain=certain,
        slack=slack,
        gaussian=tuple(limits.promise.gaussian // part for part in sorted(draw.choices(range(5, 30), k=5))),
        divergences=tuple(unit // part for part in draw.choices(range(1, 20), k=3)),
    )


@pytest.mark.parametrize("policy", [SLIDING, FIXED, capped(2)], ids=["sliding", "fixed", "capped"])
def test_as_many_rounds_as_are_said_to_fit_are_admitted_one_by_one(policy: BudgetPolicy) -> None:
    draw = random.Random(0)  # noqa: S311 - the same each time
    refused = 0
    for _ in range(12):
        costs = [
            some_cost(policy, draw, is_approximate=is_approximate) for is_approximate in (True, False) * 2
        ]
        state = machine.new_state(policy.machine_rules, policy.limits)
        for cost in draw.choices(costs[:2], k=3) + draw.choices(costs, k=draw.randrange(3)):
            state, _ = after(state, cost)
        if state.limits.sliding is not None and draw.random() < 0.2:  # restatements used up its headroom
            state = dataclasses.replace(state, total=dataclasses.replace(state.total, late=2**200))
        epsilon = draw.choice([1.0, 1.0, 0.8])
        refuse = level(policy.filters, epsilon)
        state = dataclasses.replace(state, limits=dataclasses.replace(state.limits, refuse=refuse))
        for cost in costs:
            count = counted(state, cost)
            assert min(machine.room(state, cost).budget, MOST) == count
            if count < MOST:
                refused += 1
                assert policy.epsilon_after(state, cost, count, epsilon=epsilon) <= epsilon or not count
                assert policy.epsilon_after(state, cost, count + 1, epsilon=epsilon) == math.inf
    assert refused > 10


def after(state: State, cost: Cost) -> tuple[State, bool]:
    """The state after a round of some cost is decided, and whether it is admitted."""
    posting = decided(state, cost)
    return machine.fold(state, posting), not posting.reasons


def counted(state: State, cost: Cost) -> int:
    """How many rounds are admitted one by one."""
    for number in range(MOST):
        state, is_admitted = after(state, cost)
        if not is_admitted:
            return number
    return MOST


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-9, 1e-60), (0.1, 1e-6), (1.0, 1e-9), (1e4, 0.1)])
def test_what_is_admitted_reads_as_within_the_budget(epsilon: float, delta: float) -> None:
    """Limits decide and readings are shown: of each budget that is full, they say the same."""
    policy = Budget(ACCOUNTANT, epsilon, delta).policy
    limit = policy.limits.promise
    empty = machine.new_state(policy.machine_rules, policy.limits)
    gaussian = tuple(limit.gaussian - one for one in policy.machine_rules.reserves)
    for cost in (
        Cost(gaussian=gaussian, divergences=tuple(one + 1 for one in limit.divergences)),
        Cost(gaussian=tuple(one + 1 for one in gaussian), divergences=limit.divergences),
    ):
        full, is_admitted = after(empty, cost)
        assert is_admitted
        assert policy.spending(full, rounds=1).epsilon_upper <= epsilon
        assert policy.epsilon_after(empty, cost, 1, epsilon=epsilon) <= epsilon
        assert Fraction(repr(epsilon)) == limit.epsilon * EPSILON_UNIT
    beyond = Cost(
        gaussian=tuple(one + 1 for one in gaussian), divergences=tuple(one + 1 for one in limit.divergences)
    )
    assert decided(empty, beyond).reasons == ("filters",)


@pytest.mark.parametrize("unit", [LOSS_UNIT, DELTA_UNIT])
def test_a_cost_is_rounded_up_to_the_next_unit(unit: Fraction) -> None:
    for value in (0.0, 5e-324, 1e-9, 0.1, 1 / 3, 3.0, unit, Fraction(1, 3)):
        units = units_above(value, unit)
        assert (units - 1) * unit < value <= units * unit
    assert units_above(math.inf, unit) == units_above(1e300, unit) == UNBOUNDED
