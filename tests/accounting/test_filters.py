"""Readings of filters, certified against many digits, and the totals that they allow at an epsilon."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import FilterSet, InvalidParameter
from shuffle_ledger.accounting.filters.filter_set import LARGEST_APPROXIMATE_SHARE
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, RenyiFilter
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence

mp.mp.dps = 50
BUDGETS = st.tuples(st.floats(-9, 3).map(lambda x: 10.0**x), st.floats(-40, -2).map(lambda x: 10.0**x))
ORDINARY = st.tuples(st.floats(0.01, 20), st.floats(-40, -2).map(lambda x: 10.0**x))
ANY_BUDGET = st.tuples(st.floats(-9, 4).map(lambda x: 10.0**x), st.floats(-60, -1).map(lambda x: 10.0**x))
SLIGHTLY = Fraction(1, 2**16)


def exact_gaussian(variance: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    mu = mp.sqrt(variance)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def number(value: Fraction) -> mp.mpf:
    return mp.mpf(value.numerator) / value.denominator


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(budget=BUDGETS, share=st.floats(1e-6, 30))
def test_a_gaussian_reading_is_certified(budget: tuple[float, float], share: float) -> None:
    rules = FilterSet.for_budget(epsilon=budget[0], delta=budget[1]).gaussian
    variance = rules.reserves[-1] * 16 * share
    upper, lower = rules.epsilon(variance)
    assert 0 <= lower <= upper

    def delta(epsilon: float) -> mp.mpf:
        return exact_gaussian(mp.mpf(variance), mp.mpf(epsilon)) + mp.mpf(rules.leak_rate) * variance

    if math.isfinite(upper):
        assert delta(upper) <= rules.delta
    if lower > 0:
        assert delta(lower) > rules.delta
    assert math.isinf(upper) or upper - lower <= (1e-6 + 1e-10 / math.sqrt(variance)) * upper


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(budget=BUDGETS, share=st.floats(1e-6, 30), which=st.integers(0, 1))
def test_a_renyi_reading_is_certified(budget: tuple[float, float], share: float, which: int) -> None:
    rules = FilterSet.for_budget(epsilon=budget[0], delta=budget[1]).renyi[which]
    total = budget[0] * share
    upper, lower = rules.reading(Fraction(total))
    order = mp.mpf(rules.order)

    def delta(epsilon: float) -> mp.mpf:
        moment = (
            mp.exp((order - 1) * (mp.mpf(total) - mp.mpf(epsilon))) * (1 - 1 / order) ** order / (order - 1)
        )
        extra = mp.mpf(rules.leak_rate)
        return moment + extra * total

    if math.isfinite(upper):
        assert delta(upper) <= rules.delta
    if lower > 0:
        assert delta(lower) > rules.delta


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(budget=BUDGETS, share=st.floats(0.5, 30), which=st.sampled_from([None, 0, 1]))
def test_nothing_below_the_lower_end_is_enough(
    budget: tuple[float, float], share: float, which: int | None
) -> None:
    """Also where leaks leave little room or none."""
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1])
    epsilons = np.linspace(0.0, 3 * share * budget[0] + 10, 20_000)
    if which is None:
        rules: GaussianFilter | RenyiFilter = filters.gaussian
        total = filters.gaussian.reserves[-1] * 5 * share
        reading = filters.gaussian.epsilon(total)
        tail = gaussian_divergence(math.sqrt(total), epsilons)[1]
    else:
        order = filters.renyi[which]
        rules, total = order, budget[0] * share
        reading = order.reading(Fraction(total))
        theta = order.order - 1
        peak = theta * math.log(theta) - order.order * math.log(order.order)
        tail = np.exp(np.minimum(theta * (total - epsilons) + peak, 700.0))
    enough = epsilons[tail + total * rules.leak_rate <= rules.delta * (1 - 1e-9)]
    if enough.size:
        assert reading.epsilon_lower <= enough[0]
        # A grid, too, sees room where there is some; beyond 10,000 no reading is sought.
        assert reading.epsilon_upper <= enough[0] * (1 + 1e-6) or enough[0] > 1e4


@given(budget=BUDGETS, approximate=st.floats(1e-9, LARGEST_APPROXIMATE_SHARE))
def test_shares_fit_into_the_budget(budget: tuple[float, float], approximate: float) -> None:
    epsilon, delta = budget
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta, approximate_share=approximate)
    parts = [filters.gaussian.delta, *(one.delta for one in filters.renyi)]
    parts += [filters.accounts.certain_loss, filters.accounts.slack]
    assert sorted(filters.shares()) == sorted(parts)
    assert Fraction(delta) * Fraction(1 - 1e-9) <= sum(map(Fraction, parts)) <= Fraction(delta)
    assert filters.accounts.slack == pytest.approx(approximate / 2 * delta)
    assert filters.gaussian.reserves[0] == 0
    assert FilterSet.from_mapping(filters.to_mapping()) == filters


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@example(budget=(1e-07, 10.0**-41.953125), share=1 / 64, times=1e-3)
@given(
    budget=ANY_BUDGET,
    share=st.sampled_from([1 / 64, 1e-9, LARGEST_APPROXIMATE_SHARE]),
    times=st.sampled_from([1.0, 1.0, 0.9, 1e-3, 2.0, 1e4]),
)
def test_a_limit_is_the_largest_total_that_holds(
    budget: tuple[float, float], share: float, times: float
) -> None:
    """At the budget's epsilon and others: what is within a limit reads as epsilon at most, what is slightly
    above it as more."""
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1], approximate_share=share)
    epsilon = budget[0] * times
    limits = filters.limits(epsilon)
    for part in (Fraction(1), 1 - SLIGHTLY, Fraction(999, 1000), Fraction(1, 3)):
        readings = filters.readings(limits.gaussian * part, [one * part for one in limits.renyi])
        # Far below the smallest budgets' epsilon, round-off may leave a reading wide: to its safe side.
        close = [one for one in readings if times == 1 or one.epsilon_upper < one.epsilon_lower * 1.01]
        assert max(one.epsilon_upper for one in close) <= epsilon, part
        assert max(one.epsilon_lower for one in readings) <= epsilon, part
    # Readings of the smallest budgets are as wide as round-off makes them.
    blurred = 1 + SLIGHTLY + Fraction(1e-12 / math.sqrt(limits.gaussian))
    assert filters.gaussian_reading(limits.gaussian * blurred).epsilon_upper > min(epsilon, 1e4)
    for rules, limit in zip(filters.renyi, limits.renyi, strict=True):
        above = limit * (1 + SLIGHTLY) or Fraction(epsilon) * SLIGHTLY
        assert rules.reading(above).epsilon_upper > min(epsilon, 1e4), rules.name


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(budget=ANY_BUDGET, low=st.floats(-9, 5), high=st.floats(-9, 5))
def test_limits_never_fall_where_epsilon_rises(budget: tuple[float, float], low: float, high: float) -> None:
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1])
    less, more = (filters.limits(10.0**exponent) for exponent in sorted((low, high)))
    room = 1 + SLIGHTLY + Fraction(1e-12 / math.sqrt(less.gaussian))  # limits are rounded down by that
    assert 0 < less.gaussian <= more.gaussian * room
    assert all(0 <= one <= other * (1 + SLIGHTLY) for one, other in zip(less.renyi, more.renyi, strict=True))


def test_limits_of_any_epsilon_are_found_and_certified() -> None:
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-6)
    for epsilon in (5e-324, 1e-300, 1e-100, 1e-12, 1e4, 1e300):
        limits = filters.limits(epsilon)
        exact = exact_gaussian(number(limits.gaussian), mp.mpf(min(epsilon, 1e4)))
        assert exact + mp.mpf(filters.gaussian.leak_rate) * number(limits.gaussian) <= filters.gaussian.delta
        assert limits.renyi[-1] <= epsilon
        assert all(math.isfinite(one) for one in limits.renyi)
    assert filters.limits(1e300).gaussian == filters.limits(1e4).gaussian
    assert not any(filters.limits(5e-324).renyi[:2])


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1.4564880424969032e-09, 2.3344231270142675e-57), (4.017959608977707e-09, 9.996634595583538e-40)],
)
def test_limits_fit_the_smallest_budgets(epsilon: float, delta: float) -> None:
    """Readings there are jagged: a little less may read as more, and nothing was ever admitted."""
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)
    limit = filters.limits(epsilon).gaussian
    for part in np.linspace(0.9, 1.0, 200):
        assert filters.gaussian_reading(limit * Fraction(float(part))).epsilon_upper <= epsilon


@given(budget=ORDINARY, cost=st.floats(1e-6, 1.0), more=st.floats(0, 1.0))
def test_a_reading_never_falls_when_more_is_spent(
    budget: tuple[float, float], cost: float, more: float
) -> None:
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1])
    scale = Fraction(filters.gaussian.reserves[-1]) * 16

    def readings(total: float) -> list[float]:
        spent = [Fraction(total)] * len(filters.renyi)
        return [one.epsilon_upper for one in filters.readings(Fraction(total) * scale, spent)]

    for less, greater in zip(readings(cost), readings(cost + more), strict=True):
        assert less <= greater * (1 + 1e-7)


def test_what_is_no_budget_is_refused() -> None:
    for epsilon, delta in (
        (0.0, 1e-6),
        (math.inf, 1e-6),
        (math.nan, 1e-6),
        (1.0, 0.0),
        (1.0, 1.0),
        (5e-324, 1e-6),
        (1.0, 5e-324),
    ):
        with pytest.raises(InvalidParameter):
            FilterSet.for_budget(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(
    "mapping",
    [
        *({}, {"gaussian": {}, "renyi": 1}, {"gaussian": {}, "renyi": []}),
        {"gaussian": {"delta": 1e-6, "leak_rate": -1.0, "reserves": [0.0]}, "renyi": []},
    ],
)
def test_what_are_no_filters_is_refused(mapping: dict[str, object]) -> None:
    accounts = {"accounts": {"certain_loss": 0.0, "slack": 0.0}}
    with pytest.raises(InvalidParameter):
        FilterSet.from_mapping({**mapping, **accounts})


def test_a_filter_that_is_used_up_says_so_from_both_sides() -> None:
    """A lower end of 0 would let somebody state any number in its place."""
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-6)
    beyond = 2 / filters.gaussian.leak_rate
    assert filters.gaussian.epsilon(beyond).epsilon_upper == math.inf
    assert filters.gaussian.epsilon(beyond).epsilon_lower > 1.0


@settings(max_examples=80, deadline=None)
@given(budget=BUDGETS, variance=st.floats(1e-6, 30), divergences=st.tuples(*[st.floats(1e-6, 3)] * 3))
def test_a_filter_that_is_left_out_decides_nothing(
    budget: tuple[float, float], variance: float, divergences: tuple[float, ...]
) -> None:
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1])
    spent = Fraction(filters.gaussian.reserves[-1] * variance)
    totals = [Fraction(budget[0] * part) for part in divergences]
    every = filters.readings(spent, totals)
    deciding = filters.readings(spent, totals, deciding=True)
    assert set(deciding) <= set(every)
    assert min(every, key=lambda one: one.epsilon_upper) in deciding
    assert all(one.epsilon_upper > every[0].epsilon_upper for one in set(every) - set(deciding))


@settings(max_examples=80, deadline=None)
@given(budget=BUDGETS, variance=st.floats(1e-6, 30), divergences=st.tuples(*[st.floats(1e-6, 3)] * 3))
def test_only_bounds_around_the_least_reading_are_confirmed(
    budget: tuple[float, float], variance: float, divergences: tuple[float, ...]
) -> None:
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1])
    spent = Fraction(filters.gaussian.reserves[-1] * variance)
    totals = [Fraction(budget[0] * part) for part in divergences]
    gaussian, *others = filters.readings(spent, totals)
    least = min((gaussian, *others), key=lambda one: one.epsilon_upper)
    upper, lower = gaussian.epsilon_upper, gaussian.epsilon_lower
    given = _float_behind(spent), [_float_behind(one) for one in totals]
    if lower > 0 and math.isfinite(upper) and min(one.epsilon_lower for one in others) > upper:
        assert filters.confirms(*given, lower, upper)
    # Never an upper end at which nothing holds, nor a lower end above the least reading.
    assert not filters.confirms(*given, 0.0, least.epsilon_lower * (1 - 2**-20))
    assert not filters.confirms(*given, least.epsilon_upper * (1 + 2**-20), math.inf)
    assert not filters.confirms(*given, least.epsilon_upper * (1 + 2**-20), 2 * least.epsilon_upper)


def _float_behind(total: Fraction) -> float:
    return math.nextafter(float(total), math.inf)
