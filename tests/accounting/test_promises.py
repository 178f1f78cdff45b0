"""Basic composition: no answer exceeds the sum of the rounds' guarantees, however small delta is."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, calibrate, parse_randomizer
from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.pld.basic_composition import Promise
from tests.accounting.alike import alike


def _round(written: str, reports: int = 1000, **rest: object) -> ShuffledRound:
    return alike(
        randomizer=parse_randomizer(written),
        reports=reports,
        **rest,
    )


@pytest.mark.parametrize("delta", [1e-45, 1e-48, 1e-60, 1e-200, 1e-300])
def test_no_delta_is_so_small_that_pure_rounds_have_no_epsilon(delta: float) -> None:
    accountant = Accountant()
    response, others = _round("krr(k=10, epsilon0=1.15)"), _round("generic(epsilon0=1)")
    sampled = _round("oue(epsilon0=2)", sampled_from=10_000)
    for rounds in ({response: 1}, {others: 5}, {response: 2, others: 3}, {sampled: 4}):
        most = sum(
            Fraction(count) * Fraction(accountant.privacy_loss(one).upper.support)
            for one, count in rounds.items()
        )
        found = accountant.certify(rounds, delta=delta)
        assert found.epsilon_lower <= found.epsilon_upper <= math.nextafter(float(most), math.inf)
    assert accountant.certify({response: 1}, delta=delta).epsilon_upper <= 1.15


def test_nothing_is_left_beyond_the_largest_losses() -> None:
    accountant = Accountant()
    response = _round("krr(k=10, epsilon0=1.15)")
    for rounds, epsilon in (({response: 1}, 1.15), ({_round("generic(epsilon0=1)"): 5}, 5.0)):
        for beyond in (epsilon, 1.5 * epsilon, 1e6):
            found = accountant.certify_delta(rounds, epsilon=beyond)
            assert found.delta_upper == 0.0
            assert found.precise


def test_a_declared_guarantee_holds_at_its_own_delta() -> None:
    accountant = Accountant()
    declared = _round("declared(epsilon=1, delta=1e-6)")
    assert accountant.certify({declared: 1}, delta=1e-6).epsilon_upper == 1.0
    assert accountant.certify({declared: 1}, delta=math.nextafter(1e-6, 0.0)).epsilon_upper == math.inf
    three = accountant.certify({declared: 3}, delta=3.0000001e-6)
    assert 2.99 <= three.epsilon_lower <= three.epsilon_upper <= 3.0
    together = {declared: 1, _round("generic(epsilon0=2)", 10): 2}
    assert accountant.certify(together, delta=1e-6).epsilon_upper <= 5.0


def test_rounds_without_a_promise_are_left_as_they_are() -> None:
    accountant = Accountant()
    for one in (_round("binomial_sum(p=0.9)", 50), _round("generic(epsilon0=1)", 1000, delta0=1e-9)):
        assert accountant.certify({one: 1}, delta=1e-12).epsilon_upper == math.inf


@pytest.mark.slow
def test_what_promises_meet_is_calibrated() -> None:
    found = calibrate({"randomizer": "oue(domain=64)", "reports": 1000}, epsilon=1, delta=1e-60)
    assert found.round.randomizer.epsilon0 >= 1.0
    assert found.certificate.epsilon_upper <= 1.0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.tuples(st.floats(0.0, 40.0), st.floats(0.0, 0.01)), st.integers(1, 10**6)),
        min_size=1,
        max_size=6,
    ),
    st.floats(1e-300, 0.9),
    st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1.0)),
)
def test_sums_are_rounded_up_and_intervals_stay_intervals(
    rounds: list[tuple[tuple[float, float], int]], delta: float, ends: tuple[float, float]
) -> None:
    promise = Promise.of(rounds)
    assert Fraction(promise.most) >= sum(Fraction(e) * count for (e, _), count in rounds)
    assert promise.rest == sum(Fraction(d) * count for (_, d), count in rounds)
    interval = Interval(upper=ends[0], lower=ends[0] * ends[1], truncation=ends[0])
    for found in (promise.epsilon(interval, delta), promise.delta(interval, ends[0])):
        assert found.lower <= found.upper <= interval.upper
        assert found.truncation <= interval.truncation
    if Fraction(delta) >= promise.rest:
        assert promise.epsilon(interval, delta).upper <= math.nextafter(float(promise.most), math.inf)


@pytest.mark.slow
def test_products_that_floats_cannot_tell_from_nothing_are_refused() -> None:
    """They were impossible then, and what rules a value out."""
    rare = "table([[0.5, 0.5], [1e-50, 1.0]])"
    with pytest.raises(InvalidParameter, match="1e-280"):
        parse_randomizer(f"parallel((1e-300, {rare}), (1.0, krr(k=2, epsilon0=1)))")
    with pytest.raises(InvalidParameter, match="1e-280"):
        parse_randomizer(f"joint({', '.join([rare] * 5)}, {', '.join(['krr(k=2, epsilon0=30)'] * 3)})")
    with pytest.raises(InvalidParameter, match="participation"):
        _round(f"joint({', '.join([rare] * 3)})", 2, participation=1e-150)
    with pytest.raises(InvalidParameter, match="delta0"):
        _round("generic(epsilon0=30)", 1, sampled_from=2, delta0=1e-311)
    fine = _round(f"joint({', '.join([rare] * 2)})", 2, participation=1e-100)
    assert Accountant().renyi_divergence({fine: 1}, order=2).lower < math.inf


def test_everybody_who_certainly_reports_hides_as_without_a_coin() -> None:
    certain, plain = _round("generic(epsilon0=2)", 1000, participation=1.0), _round("generic(epsilon0=2)")
    accountant = Accountant()
    found = [accountant.certify({one: 1}, delta=1e-6).epsilon_upper for one in (certain, plain)]
    assert certain.analysis == "tight"
    assert found[0] == found[1]


@pytest.mark.parametrize("delta", [0.3, 0.5, 0.999])
def test_basic_composition_never_states_a_negative_epsilon(delta: float) -> None:
    """A delta above a round's total variation distance needs no epsilon: it is 0, not less."""
    promise = Promise.of([((0.4, 0.0), 1)])
    found = promise.epsilon(Interval(upper=0.4, lower=0.0), delta)
    assert found.lower == found.upper == 0.0
