"""The sliding reserve: what it takes, what it gives back, and that no analyst gains by either.

As in `test_adaptive_adversary.py` the worst analyst is computed, not sampled.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Charge, FilterSet
from shuffle_ledger.accounting.filters.charges import charge_of
from shuffle_ledger.accounting.filters.counts import largest_count
from shuffle_ledger.accounting.filters.sliding_reserve import SlidingReserve
from tests.accounting.test_adaptive_adversary import (
    REACH,
    STEP,
    Array,
    Counts,
    Masses,
    coin,
    expected,
    gains,
    pair_of,
    worst_delta,
)

RESERVES = (0.0, 1 / 16, 1 / 4, 1 / 2)


def sliding_alone(filters: FilterSet) -> FilterSet:
    """The same rules without Renyi filters, so that nothing else decides."""
    return dataclasses.replace(filters, renyi=())


CASES = [
    ((coin(1), coin(10, rate=0.01)), 2.0, 1e-4),
    ((coin(1), coin(6, rate=0.05)), 2.0, 1e-2),
    ((coin(2), coin(30, rate=0.01)), 5.0, 1e-3),
]


@pytest.mark.parametrize(("menu", "epsilon", "delta"), CASES)
def test_no_adaptive_analyst_beats_the_sliding_reserve(
    menu: tuple[Masses, Masses], epsilon: float, delta: float
) -> None:
    """Given these numbers of rounds of each kind, the analyst gets the order with the least charges."""
    filters = sliding_alone(FilterSet.for_budget(epsilon=epsilon, delta=delta))
    costs = [charge_of(pair_of(masses), filters, slack=0.0) for masses in menu]
    without = 0

    @functools.cache
    def least(counts: Counts) -> Charge:
        options = []
        for which, cost in enumerate(costs):
            before = (counts[0] - (which == 0), counts[1] - (which == 1))
            if min(before) >= 0:
                options.append(least(before) + filters.taken(least(before), cost))
        return min(options, key=lambda spent: spent.sliding[0], default=filters.nothing())

    @functools.cache
    def allows(counts: Counts) -> bool:
        nonlocal without
        holds = filters.epsilon_upper(least(counts)) <= epsilon
        without += holds and filters.epsilon_upper(least(counts).cost) > epsilon
        return holds

    reached = worst_delta(menu, allows, epsilon)
    assert delta / 3 < reached <= delta
    assert without, "the fixed reserves decided everything: nothing was attacked"


def test_a_limit_that_is_too_large_is_beaten() -> None:
    menu, epsilon, delta = CASES[0]
    filters = sliding_alone(FilterSet.for_budget(epsilon=epsilon, delta=delta))
    assert filters.sliding_limit is not None
    reserve = SlidingReserve(limit=1.3 * filters.sliding_limit, reserves=filters.gaussian.reserves)
    costs = [charge_of(pair_of(masses), filters, slack=0.0).gaussian for masses in menu]

    @functools.cache
    def held(counts: Counts) -> Fraction:
        options = [Fraction(0)] if counts == (0, 0) else []
        for which, cost in enumerate(costs):
            before = (counts[0] - (which == 0), counts[1] - (which == 1))
            if min(before) >= 0:
                options.append(held(before) + reserve.charge(held(before), cost))
        return min(options)

    assert worst_delta(menu, lambda counts: held(counts) <= reserve.limit, epsilon) > delta


Open = tuple[tuple[int, Charge], ...]  # rounds admitted and neither released nor voided: kind, what it took
AT_MOST = 5  # rounds admitted on a path, counting those that are voided


def worst_delta_with_voids(
    menu: tuple[Masses, Masses],
    filters: FilterSet,
    epsilon: float,
    give_back: Callable[[Charge, Charge], Charge],
) -> tuple[float, int]:
    """The largest delta of analysts who admit, release and void at will, and how many voids gave less."""
    costs = [charge_of(pair_of(masses), filters, slack=0.0) for masses in menu]
    kept = 0

    @functools.cache
    def value(spent: Charge, waiting: Open, admitted: int) -> Array:
        nonlocal kept
        best = gains(epsilon)
        for place, (which, taken) in enumerate(waiting):
            rest = waiting[:place] + waiting[place + 1 :]
            best = np.maximum(best, expected(value(spent, rest, admitted), menu[which]))
            returned = give_back(spent, taken)
            kept += returned.gaussian == spent.gaussian
            best = np.maximum(best, value(returned, rest, admitted))
        if admitted < AT_MOST:
            for which, cost in enumerate(costs):
                taken = filters.taken(spent, cost)
                if filters.epsilon_upper(spent + taken) <= epsilon:
                    more = tuple(sorted((*waiting, (which, taken)), key=lambda one: (one[0], one[1].sliding)))
                    best = np.maximum(best, value(spent + taken, more, admitted + 1))
        return best

    return float(value(filters.nothing(), (), 0)[REACH]), kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("menu", "epsilon", "delta"),
    [((coin(4), coin(10, rate=0.2)), 1.5, 3e-2), ((coin(5), coin(12, rate=0.1)), 1.5, 1e-1)],
)
def test_nobody_gains_by_voiding_what_he_would_rather_not_release(
    menu: tuple[Masses, Masses], epsilon: float, delta: float
) -> None:
    filters = sliding_alone(FilterSet.for_budget(epsilon=epsilon, delta=delta))
    reached, kept = worst_delta_with_voids(menu, filters, epsilon, filters.given_back)
    assert delta / 3 < reached <= delta
    assert kept, "every void gave everything back: nothing was attacked"


costs_falling = st.lists(st.fractions(Fraction(1, 1000), 1), min_size=4, max_size=4).map(
    lambda costs: tuple(sorted(costs, reverse=True))
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(kinds=st.lists(costs_falling, min_size=1, max_size=3), order=st.lists(st.integers(0, 2), max_size=30))
def test_it_never_takes_more_than_a_fixed_reserve_and_always_leaves_the_reserve_it_used(
    kinds: list[tuple[Fraction, ...]], order: list[int]
) -> None:
    reserve = SlidingReserve(limit=1.0, reserves=RESERVES)
    held = Fraction(0)
    totals = [Fraction(0)] * len(RESERVES)
    for number in order:
        costs = kinds[number % len(kinds)]
        charge = reserve.charge(held, costs)
        held += charge
        totals = [total + cost for total, cost in zip(totals, costs, strict=True)]
        if held <= 1:
            used = [one for one, cost in zip(RESERVES, costs, strict=True) if cost == charge]
            assert not used[0] or Fraction(used[0]) + Fraction(1, 32) + held <= 1
        else:
            assert charge == costs[0]
        # But for charges that are alike, of which it prefers the one at the smaller reserve.
        room = 1 + Fraction(1, 500)
        for one, total in zip(RESERVES, totals, strict=True):
            headroom = Fraction(1, 32) if one else 0
            assert total * room + Fraction(one) + headroom > 1 or held <= total * room


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(costs=costs_falling, held=st.fractions(0, Fraction(6, 5)))
def test_how_many_more_fit_is_counted_as_if_one_by_one(costs: tuple[Fraction, ...], held: Fraction) -> None:
    reserve = SlidingReserve(limit=1.0, reserves=RESERVES)
    count, after = 0, held
    while after + (charge := reserve.charge(after, costs)) <= 1:
        count, after = count + 1, after + charge
    assert reserve.most_more(held, costs) == count


def test_a_round_gives_back_what_it_took_until_its_reserve_is_used() -> None:
    filters = FilterSet.for_budget(epsilon=2.0, delta=1e-5)
    rare, regular = (
        charge_of(pair_of(masses), filters, slack=0.0) for masses in (coin(10, rate=0.02), coin(1))
    )
    spent = filters.nothing()
    irregular = filters.taken(spent, rare)
    assert irregular.sliding[0] < rare.gaussian[0]
    spent += irregular
    assert filters.given_back(spent, irregular).cost == filters.nothing().cost
    plain = filters.taken(spent, regular)
    while filters.epsilon_upper(spent + plain) <= 2.0:
        spent += plain
        plain = filters.taken(spent, regular)
    after = filters.given_back(spent, irregular)
    assert after.gaussian == spent.gaussian
    assert after.renyi != spent.renyi, "other filters have shares of their own"
    assert filters.given_back(spent, plain).gaussian != spent.gaussian, "nothing was smoothed"
    assert not math.isinf(filters.epsilon_upper(after))


def test_what_a_round_turned_out_to_be_takes_no_less() -> None:
    filters = FilterSet.for_budget(epsilon=2.0, delta=1e-5)
    small, large = (charge_of(pair_of(coin(size, rate=0.05)), filters, slack=0.0) for size in (6, 9))
    spent = filters.taken(filters.nothing(), small)
    for _ in range(12):
        spent += filters.taken(spent, small)
    before = filters.taken(filters.nothing(), small)
    instead = filters.taken_instead(spent, before, large)
    assert instead.sliding[0] > before.sliding[0]
    assert filters.taken_instead(spent, instead, small).sliding[0] >= instead.sliding[0]


def binomial(rounds: int) -> Masses:
    """So many coins of one step together, without what is too rare to matter."""
    masses: dict[int, float] = {0: 1.0}
    for _ in range(rounds):
        after: dict[int, float] = {}
        for place, mass in masses.items():
            for position, more in coin(1).items():
                after[place + position] = after.get(place + position, 0.0) + mass * more
        masses = after
    ahead = {place: mass for place, mass in masses.items() if place > 0 and mass > 1e-25}
    behind = {-place: mass * math.exp(-place * STEP) for place, mass in ahead.items()}
    return {**ahead, **behind, 0: max(0.0, 1 - sum(ahead.values()) - sum(behind.values()))}


Instead = Callable[[Charge, Charge, Charge], Charge]


def worst_delta_with_a_late_settlement(
    filters: FilterSet, instead: Instead, rare: Masses, epsilon: float
) -> float:
    """The delta of an analyst who admits and releases a round, looks at it, goes on with one of two others,
    and says only then that the first one had as few reports as may be.
    """

    def cost(masses: Masses) -> Charge:
        return charge_of(pair_of(masses), filters, slack=0.0)

    def settles(spent: Charge, rounds: int) -> bool:
        charge = instead(spent, first, cost(binomial(rounds)))
        return filters.epsilon_upper(spent - first + charge) <= epsilon

    def fits(spent: Charge, rounds: int) -> bool:
        more = spent + filters.taken(spent, cost(binomial(rounds)))
        return filters.epsilon_upper(more) <= epsilon and settles(more, truth)

    first = filters.taken(filters.nothing(), cost(coin(1, rate=1e-6)))
    spent = filters.nothing() + first
    tempted = spent + filters.taken(spent, cost(rare))
    assert filters.epsilon_upper(tempted) <= epsilon
    truth = largest_count(lambda rounds: settles(tempted, rounds), 60)
    regular = largest_count(lambda rounds: fits(spent, rounds), 60)
    nothing = gains(epsilon)
    others = [expected(nothing, masses) for masses in (rare, binomial(regular))]
    return float(expected(np.maximum.reduce([nothing, *others]), binomial(truth))[REACH])


@pytest.mark.slow
def test_a_late_settlement_hides_nothing() -> None:
    epsilon, delta, rare = 6.0, 1e-2, coin(38, rate=0.08)
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)

    def as_if_admitted_now(spent: Charge, before: Charge, cost: Charge) -> Charge:
        return filters.taken(spent - before, before.cost.at_least(cost))

    assert worst_delta_with_a_late_settlement(filters, as_if_admitted_now, rare, epsilon) > delta
    reached = worst_delta_with_a_late_settlement(filters, filters.taken_instead, rare, epsilon)
    assert delta / 3 < reached <= delta


def worst_delta_with_an_incident(filters: FilterSet, instead: Instead, rare: Masses, epsilon: float) -> float:
    """The delta of an analyst who releases a round without asking, looks at it, has one of two others
    admitted, and tells only then of the first one, which is as large as may be.
    """

    def told(spent: Charge, rounds: int) -> bool:
        charge = instead(spent, filters.nothing(), charge_of(pair_of(binomial(rounds)), filters, slack=0.0))
        return filters.epsilon_upper(spent + charge) <= epsilon

    def fits(rounds: int) -> bool:
        more = filters.taken(filters.nothing(), charge_of(pair_of(binomial(rounds)), filters, slack=0.0))
        return filters.epsilon_upper(more) <= epsilon and told(more, incident)

    tempted = filters.taken(filters.nothing(), charge_of(pair_of(rare), filters, slack=0.0))
    assert filters.epsilon_upper(tempted) <= epsilon
    incident = largest_count(lambda rounds: told(tempted, rounds), 60)
    regular = largest_count(fits, 60)
    others = [expected(gains(epsilon), masses) for masses in (rare, binomial(regular))]
    return float(expected(np.maximum.reduce([gains(epsilon), *others]), binomial(incident))[REACH])


@pytest.mark.slow
def test_an_incident_hides_nothing() -> None:
    epsilon, delta, rare = 6.0, 1e-2, coin(38, rate=0.08)
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)

    def as_an_admission(spent: Charge, before: Charge, cost: Charge) -> Charge:
        return filters.taken(spent - before, cost)

    beaten = worst_delta_with_an_incident(filters, as_an_admission, rare, epsilon)
    reached = worst_delta_with_an_incident(filters, filters.taken_instead, rare, epsilon)
    assert beaten / delta == pytest.approx(1.055, abs=5e-4)
    assert reached / delta == pytest.approx(0.819, abs=5e-4)


def worst_delta_at_will(
    kinds: list[tuple[Masses, Masses]], filters: FilterSet, epsilon: float, instead: Instead
) -> float:
    """The largest delta of analysts who admit, release, void and settle up to four rounds in any order.

    Of each kind: what is declared, and what is true and must be settled before the end.
    """
    costs, truths = (
        [charge_of(pair_of(pair[side]), filters, slack=0.0) for pair in kinds] for side in (0, 1)
    )
    nothing = np.full(2 * REACH + 1, -1.0)  # what cannot end within the budget

    def sorted_by_kind(rounds: Open) -> Open:
        return tuple(sorted(rounds, key=lambda one: (one[0], one[1].sliding)))

    @functools.cache
    def value(spent: Charge, waiting: Open, unsettled: Open, admitted: int) -> Array:
        ended = not waiting and not unsettled and filters.epsilon_upper(spent) <= epsilon
        best = gains(epsilon) if ended else nothing
        for place, (which, taken) in enumerate(waiting):
            rest = waiting[:place] + waiting[place + 1 :]
            untrue = kinds[which][0] is not kinds[which][1]
            open_ = sorted_by_kind((*unsettled, (which, taken))) if untrue else unsettled
            after = value(spent, rest, open_, admitted)
            if after is not nothing:
                best = np.maximum(best, expected(after, kinds[which][1]))
            best = np.maximum(best, value(filters.given_back(spent, taken), rest, unsettled, admitted))
        for place, (which, taken) in enumerate(unsettled):
            rest = unsettled[:place] + unsettled[place + 1 :]
            settled = spent - taken + instead(spent, taken, truths[which])
            if filters.epsilon_upper(settled) <= epsilon:
                best = np.maximum(best, value(settled, waiting, rest, admitted))
        if admitted < 4:
            for which, cost in enumerate(costs):
                taken = filters.taken(spent, cost)
                if filters.epsilon_upper(spent + taken) <= epsilon:
                    more = sorted_by_kind((*waiting, (which, taken)))
                    best = np.maximum(best, value(spent + taken, more, unsettled, admitted + 1))
        return nothing if best.max() < 0 else best

    return float(value(filters.nothing(), (), (), 0)[REACH])


@pytest.mark.slow
def test_no_analyst_gains_by_when_he_settles_and_voids() -> None:
    epsilon, delta = 6.0, 1e-2
    filters = sliding_alone(FilterSet.for_budget(epsilon=epsilon, delta=delta))
    tiny, rare, regular, more = coin(1, rate=1e-6), coin(38, rate=0.08), binomial(177), binomial(225)

    def as_if_admitted_now(spent: Charge, before: Charge, cost: Charge) -> Charge:
        return filters.taken(spent - before, before.cost.at_least(cost))

    kinds = [(tiny, binomial(208)), (rare, rare), (regular, regular)]
    assert worst_delta_at_will(kinds, filters, epsilon, as_if_admitted_now) > delta
    assert worst_delta_at_will(kinds, filters, epsilon, filters.taken_instead) <= delta
    kinds = [(tiny, binomial(163)), (rare, rare), (more, more)]  # as much as the real rules let through
    assert delta / 2 < worst_delta_at_will(kinds, filters, epsilon, filters.taken_instead) <= delta
