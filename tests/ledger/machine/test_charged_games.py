"""No analyst beats a budget with the filters of the accountant, at the costs that it states.

As in `test_games.py` the worst analyst is computed, not sampled; here costs and limits are the accountant's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import FilterSet
from shuffle_ledger.accounting.filters.charges import charge_of
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.machine import Cause, Charge, Cost, Described, Round, State
from shuffle_ledger.ledger.machine import filters as rules_of
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, decided, level, restated
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, Cohort
from tests.accounting.test_adaptive_adversary import pair_of, worst_delta
from tests.benchmarks.filters import largest_count
from tests.ledger.machine.games import REACH, Game, Kind, Masses, coin, coins, expected, gains

Patch = pytest.MonkeyPatch
Counts = tuple[int, int]
NAME = "budget"  # of each budget that a policy decides
TINY, RARE = coin(1, 1e-6), coin(38, 0.08)


class Opened:
    """A new budget, and what rounds cost it."""

    def __init__(self, epsilon: float, delta: float, *, is_gaussian: bool = False) -> None:
        cohort = Cohort(
            name="new",
            population=10**9,
            epsilon_budget=epsilon,
            delta_budget=delta,
            policy=POLICY_ADAPTIVE,
        )
        policy = BudgetPolicy.opened(cohort)
        assert policy.filters is not None
        self.filters: FilterSet = policy.filters
        if is_gaussian:  # without Renyi filters, so that nothing else decides
            self.filters = replace(policy.filters, renyi=())
            most = level(self.filters, epsilon)
            limits = replace(policy.limits, refuse=most, promise=most, sliding=most.gaussian)
            policy = replace(policy, filters=self.filters, limits=limits)
        self.epsilon = epsilon
        self.state = machine.new_state(replace(policy.machine_rules, opened_at=0), policy.limits)

    def cost(self, masses: Masses) -> Cost:
        return cost_of(charge_of(pair_of(masses), self.filters, slack=0.0))

    def game(self, kinds: list[Kind], rounds: int) -> float:
        """The supremum of delta over all analysts."""
        game = Game(
            kinds=kinds,
            states={NAME: self.state},
            promised=lambda _: self.epsilon,
            rounds=rounds,
            mine=NAME,
        )
        return game.value()

    def asked(self, masses: Masses) -> Kind:
        return Kind(masses=masses, costs={NAME: self.cost(masses)})


CASES = [
    ((coin(1), coin(10, 0.01)), 2.0, 1e-4),
    ((coin(1), coin(6, 0.05)), 2.0, 1e-2),
    ((coin(2), coin(30, 0.01)), 5.0, 1e-3),
]


def worst_of_two_kinds(opened: Opened, menu: tuple[Masses, Masses]) -> tuple[float, int]:
    """The largest delta, and at how many places nothing but the sliding total holds.

    Given these numbers of rounds of each kind, the analyst gets the order with the least charges.
    """
    costs, without = [opened.cost(masses) for masses in menu], 0

    @functools.cache
    def least(counts: Counts) -> State:
        options = []
        for which, cost in enumerate(costs):
            before = (counts[0] - (which == 0), counts[1] - (which == 1))
            if min(before) >= 0:
                state = least(before)
                charge = rules_of.taken(state, cost)
                total = machine.added(state.rules, state.total, charge)
                options.append(replace(state, total=total))
        return min(options, key=lambda state: state.total.sliding, default=opened.state)

    @functools.cache
    def allows(counts: Counts) -> bool:
        nonlocal without
        state = least(counts)
        found = machine.standing(state.rules, state.limits, state.total, state.limits.promise)
        without += bool(found.promised) and not max(found.filters[:-1])
        return bool(found.promised)

    return worst_delta(menu, allows, opened.epsilon), without


@pytest.mark.parametrize(("menu", "epsilon", "delta"), CASES)
def test_no_adaptive_analyst_beats_the_sliding_total(
    menu: tuple[Masses, Masses], epsilon: float, delta: float
) -> None:
    reached, without = worst_of_two_kinds(Opened(epsilon, delta, is_gaussian=True), menu)
    assert delta / 3 < reached <= delta
    assert without, "the fixed reserves decided everything: nothing was attacked"


def test_a_limit_that_is_too_large_is_beaten() -> None:
    menu, epsilon, delta = CASES[0]
    opened = Opened(epsilon, delta, is_gaussian=True)
    limits = opened.state.limits
    more = replace(limits.promise, gaussian=limits.promise.gaussian * 13 // 10)
    larger = replace(limits, refuse=more, promise=more, sliding=more.gaussian)
    opened.state = replace(opened.state, limits=larger)
    reached, _ = worst_of_two_kinds(opened, menu)
    assert reached > delta


@pytest.mark.slow
@pytest.mark.parametrize(
    ("menu", "epsilon", "delta"),
    [((coin(4), coin(10, 0.2)), 1.5, 3e-2), ((coin(5), coin(12, 0.1)), 1.5, 1e-1)],
)
def test_nobody_gains_by_voiding_what_he_would_rather_not_release(
    menu: tuple[Masses, Masses], epsilon: float, delta: float, monkeypatch: Patch
) -> None:
    found, is_intact = set(), rules_of.is_intact

    def noted(state: State, charge: Charge) -> bool:
        found.add(is_intact(state, charge))
        return is_intact(state, charge)

    monkeypatch.setattr(rules_of, "is_intact", noted)
    opened = Opened(epsilon, delta, is_gaussian=True)
    reached = opened.game([opened.asked(masses) for masses in menu], rounds=5)
    assert delta / 3 < reached <= delta
    assert found == {True, False}, "every void gave everything back: nothing was attacked"


Told = Callable[[State, Cost], State | None]


def admitted(state: State, cost: Cost) -> State | None:
    posting = decided(state, cost)
    return None if posting.reasons else replace(state, total=posting.total)


def told(state: State, round_: Round, cost: Cost) -> State | None:
    """The state after a release turned out to cost this; None if that is too much."""
    cause = Cause.SETTLE if round_.charges else Cause.INCIDENT
    posting = restated(state, round_, Described.STATED, cause, cost)
    return None if posting.is_overspent else replace(state, total=posting.total)


def worst_of_a_late_record(opened: Opened, *, is_incident: bool) -> float:
    """The delta of an analyst who releases a round, looks at it, goes on with one of two others, and tells
    only then that the first one was as large as may be. It was declared as next to nothing, or not at all.
    """
    cost = functools.cache(lambda rounds: opened.cost(coins(rounds)))
    state, round_ = opened.state, Round(charges={}, released_after=1)
    if not is_incident:
        declared = decided(state, opened.cost(TINY))
        assert declared.charge is not None
        state = replace(state, total=declared.total)
        round_ = Round(charges={NAME: declared.charge})
    tempted = admitted(state, opened.cost(RARE))
    assert tempted is not None
    truth = largest_count(lambda rounds: told(tempted, round_, cost(rounds)) is not None, 60)

    def fits(rounds: int) -> bool:
        more = admitted(state, cost(rounds))
        return more is not None and told(more, round_, cost(truth)) is not None

    others = [expected(gains(opened.epsilon), one) for one in (RARE, coins(largest_count(fits, 60)))]
    return float(expected(np.maximum.reduce([gains(opened.epsilon), *others]), coins(truth))[REACH])


@pytest.mark.slow
@pytest.mark.parametrize("is_incident", [False, True])
def test_what_is_told_late_hides_nothing(is_incident: bool, monkeypatch: Patch) -> None:
    epsilon, delta = 6.0, 1e-2
    opened = Opened(epsilon, delta)
    assert worst_of_a_late_record(opened, is_incident=is_incident) / delta == pytest.approx(0.819, abs=5e-4)
    monkeypatch.setattr(rules_of, "added_by_restatements", lambda before, sliding: 0)
    assert worst_of_a_late_record(opened, is_incident=is_incident) / delta == pytest.approx(1.055, abs=5e-4)


@pytest.mark.slow
def test_no_analyst_gains_by_when_he_settles_and_voids() -> None:
    opened = Opened(6.0, 1e-2, is_gaussian=True)
    tiny = Kind(masses=coins(163), costs={NAME: opened.cost(TINY)}, truths={NAME: opened.cost(coins(163))})
    kinds = [tiny, opened.asked(RARE), opened.asked(coins(225))]  # as much as the rules let through
    assert 1e-2 / 2 < opened.game(kinds, rounds=3) <= 1e-2


RESERVES = (0, 2**8, 2**10, 2**11)
LIMIT = 2**12
costs_falling = st.lists(st.integers(4, LIMIT), min_size=4, max_size=4).map(
    lambda costs: tuple(sorted(costs, reverse=True))
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(kinds=st.lists(costs_falling, min_size=1, max_size=3), order=st.lists(st.integers(0, 2), max_size=30))
def test_a_sliding_total_never_takes_more_than_a_fixed_reserve(
    kinds: list[tuple[int, ...]], order: list[int]
) -> None:
    """But for charges that are alike, of which it prefers the one at the smaller reserve."""
    held, totals = 0, [0] * len(RESERVES)
    rules = machine.Rules(name="a", cohort="a", delta=3, shares=(1, 1, 1), reserves=RESERVES)
    for number in order:
        costs = kinds[number % len(kinds)]
        charge, place = rules_of.sliding_charge(rules, LIMIT, held, costs)
        held += charge
        totals = [total + cost for total, cost in zip(totals, costs, strict=True)]
        assert charge == costs[place]
        if held <= LIMIT:
            assert not place or RESERVES[place] + LIMIT // 32 + held <= LIMIT
        for reserve, total in zip(RESERVES, totals, strict=True):
            room = LIMIT // 32 if reserve else 0
            assert total * 501 + (reserve + room) * 500 > LIMIT * 500 or held * 500 <= total * 501
