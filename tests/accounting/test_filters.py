"""Readings of filters: certified against many digits; totals: exact, however they are reached."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Charge, FilterSet, InvalidParameter, RaisedLimits
from shuffle_ledger.accounting.filters.filter_set import LARGEST_APPROXIMATE_SHARE
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, RenyiFilter
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence

mp.mp.dps = 50
BUDGETS = st.tuples(st.floats(-9, 3).map(lambda x: 10.0**x), st.floats(-40, -2).map(lambda x: 10.0**x))
ORDINARY = st.tuples(st.floats(0.01, 20), st.floats(-40, -2).map(lambda x: 10.0**x))
COSTS = st.lists(st.floats(1e-14, 1e3), min_size=1, max_size=12)


def exact_gaussian(variance: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    mu = mp.sqrt(variance)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def number(value: Fraction) -> mp.mpf:
    return mp.mpf(value.numerator) / value.denominator


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(budget=BUDGETS, share=st.floats(1e-6, 30))
def test_a_gaussian_reading_is_certified(budget: tuple[float, float], share: float) -> None:
    rules = FilterSet.for_budget(epsilon=budget[0], delta=budget[1]).gaussian
    variance = rules.reserves[-1] * 16 * share
    spent = [Fraction(variance) for _ in rules.reserves]
    upper, lower = rules.reading(spent)
    assert 0 <= lower <= upper

    def delta(epsilon: float) -> mp.mpf:
        return exact_gaussian(mp.mpf(variance), mp.mpf(epsilon)) + mp.mpf(rules.leak_rate) * variance

    if math.isfinite(upper):
        assert delta(upper) <= rules.delta
    if lower > 0:
        assert delta(lower) > rules.delta
    assert math.isinf(upper) or upper - lower <= (1e-6 + 1e-10 / math.sqrt(variance)) * upper


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=300, deadline=None)
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


def test_a_raised_budget_changes_two_limits_and_nothing_else() -> None:
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-6)
    assert filters.raised(None, 0.5) is None, "a lower budget changes nothing"
    raised = filters.raised(None, 2.0)
    assert raised is not None
    assert filters.raised(raised, 1.5) == raised, "nor does lowering one that was raised"
    assert RaisedLimits.from_mapping(raised.to_mapping()) == raised
    now = filters.under(raised)
    assert now.accounts == filters.accounts.at(2.0)
    assert now.sliding_limit is not None
    assert filters.sliding_limit is not None
    assert filters.gaussian.epsilon(filters.sliding_limit).epsilon_upper <= 1.0
    assert 1.9 < now.gaussian.epsilon(now.sliding_limit).epsilon_upper <= 2.0
    assert (now.gaussian, now.renyi) == (filters.gaussian, filters.renyi)
    capped = FilterSet.for_budget(epsilon=1.0, delta=1e-6, rounds_per_user=3, ceiling=2.0)
    assert capped.raised(None, 2.0) is None, "there is no sliding reserve, and slack has the ceiling's price"


@pytest.mark.parametrize(
    "mapping",
    [
        *({}, 1, {"sliding_limit": 1.0}, {"sliding_limit": 1, "slack_epsilon": 1.0}),
        *({"sliding_limit": None, "slack_epsilon": math.inf}, {"sliding_limit": -1.0, "slack_epsilon": 1.0}),
    ],
)
def test_what_are_no_limits_is_refused(mapping: object) -> None:
    with pytest.raises(InvalidParameter):
        RaisedLimits.from_mapping(mapping)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1.4564880424969032e-09, 2.3344231270142675e-57), (4.017959608977707e-09, 9.996634595583538e-40)],
)
def test_the_sliding_limit_fits_the_smallest_budgets(epsilon: float, delta: float) -> None:
    """Readings there are jagged: a little less may read as more, and nothing was ever admitted."""
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)
    assert filters.sliding_limit is not None
    assert filters.gaussian.epsilon(filters.sliding_limit).epsilon_upper <= epsilon


@given(first=COSTS, second=COSTS)
def test_totals_are_exact_and_give_back_what_was_added(first: list[float], second: list[float]) -> None:
    def charge(value: float) -> Charge:
        parts = (Fraction(value), Fraction(value) / 3)
        return Charge(gaussian=parts, renyi=(Fraction(value) * 7,), account=parts)

    nothing = Charge(gaussian=(Fraction(0),) * 2, renyi=(Fraction(0),), account=(Fraction(0),) * 2)
    total = nothing
    for value in [*first, *second]:
        total = Charge.from_mapping((total + charge(value)).to_mapping())
    assert total.renyi[0] == 7 * sum(map(Fraction, [*first, *second]))
    for value in second:
        total -= charge(value)
    assert total.gaussian[0] == sum(map(Fraction, first))
    for value in first:
        total -= charge(value)
    assert total == nothing


@given(budget=ORDINARY, cost=st.floats(1e-6, 1.0), more=st.floats(0, 1.0))
def test_a_reading_never_falls_when_more_is_spent(
    budget: tuple[float, float], cost: float, more: float
) -> None:
    filters = FilterSet.for_budget(epsilon=budget[0], delta=budget[1])
    scale = Fraction(filters.gaussian.reserves[-1]) * 16

    def readings(total: float) -> list[float]:
        spent = Charge(
            gaussian=(Fraction(total) * scale,) * len(filters.gaussian.reserves),
            renyi=(Fraction(total),) * len(filters.renyi),
            account=(Fraction(0),) * 2,
        )
        return [one.epsilon_upper for one in filters.readings(spent)]

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


@pytest.mark.parametrize("share", [math.nan, 0.0, -0.1, 0.91, 1.0, "much", True])
def test_a_part_of_delta_that_leaves_too_little_is_refused(share: Any) -> None:
    with pytest.raises(InvalidParameter, match="approximate_share"):
        FilterSet.for_budget(epsilon=1, delta=1e-6, approximate_share=share)


@pytest.mark.parametrize(
    "mapping", [{}, {"gaussian": ["1/0"], "renyi": []}, {"gaussian": "1", "renyi": []}, {"gaussian": ["x"]}]
)
def test_what_is_no_charge_is_refused(mapping: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        Charge.from_mapping(mapping)


def test_a_filter_that_is_used_up_says_so_from_both_sides() -> None:
    """A lower end of 0 would let somebody state any number in its place."""
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-6)
    beyond = 2 / filters.gaussian.leak_rate
    assert filters.gaussian.epsilon(beyond).epsilon_upper == math.inf
    assert filters.gaussian.epsilon(beyond).epsilon_lower > 1.0
