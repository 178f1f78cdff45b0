"""Renyi divergences of rounds, against sums over all outcomes in many digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    PrivacyLossDistribution,
    ShuffledRound,
    parse_randomizer,
)
from tests.accounting.alike import alike


def _round(randomizer: str, reports: int, **rest: Any) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), reports=reports, **rest)


def _exact(outcomes: list[Any], order: float) -> mp.mpf:
    p_total, q_total = (mp.fsum(column) for column in zip(*outcomes, strict=True))
    outcomes = [(p / p_total, q / q_total) for p, q in outcomes]  # masses given in floating point
    if order == 1:
        return mp.fsum(p * mp.log(p / q) for p, q in outcomes)
    return mp.log(mp.fsum(p ** mp.mpf(order) * q ** (1 - mp.mpf(order)) for p, q in outcomes)) / (
        mp.mpf(order) - 1
    )


ORDERS = [0.3, 0.999, 1, 1.0001, 2, 3.5, 20, 400]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["generic", "krr", "rappor", "oue", "blh"]),
    st.floats(-9, 1.5).map(math.exp),
    st.integers(1, 5),
    st.sampled_from(ORDERS),
)
def test_the_pairs_enclose_the_divergence_of_the_round(
    oracle: Any, kind: str, epsilon0: float, reports: int, order: float
) -> None:
    extra = ", k=3" if kind == "krr" else ""
    shuffled = _round(f"{kind}(epsilon0={epsilon0!r}{extra})", reports)
    loss = Accountant().privacy_loss(shuffled)
    masses = shuffled.randomizer.analysis(str(shuffled.analysis)).decomposition.merged()
    exact = _exact(oracle.blanket_outcomes(masses, reports), order)
    upper, lower = loss.upper.renyi_divergence(order), loss.lower.renyi_divergence(order)
    # The oracle takes a and b as rounded, and so their small difference; the accountant knows it better.
    doubt = mp.mpf(1e-14) * (1 + 1 / mp.mpf(epsilon0))
    assert lower <= exact * (1 + doubt)
    assert exact * (1 - doubt) <= upper
    assert upper <= epsilon0
    assert upper - lower <= 2e-3 * upper


def _pair(losses: list[float], q: list[float], infinity: float, **rest: Any) -> PrivacyLossDistribution:
    masses = np.array(q)
    p = masses * np.exp(np.array(losses))
    return PrivacyLossDistribution(
        spacing=0.5,
        index=np.array([round(x / 0.5) for x in losses], dtype=np.int64),
        p=p,
        q=masses,
        zero=1 - infinity - float(p.sum() + masses.sum()),
        infinity=infinity,
        **{"support": math.inf, "side": "upper", **rest},
    )


def test_infinite_losses_are_infinite_or_at_the_largest_loss() -> None:
    """Without a largest loss there is no divergence from order 1 on; with one, the mass counts there; below
    order 1 it counts as lost."""
    unbounded = _pair([0.5], [0.1], 1e-3)
    assert unbounded.renyi_divergence(1) == unbounded.renyi_divergence(5) == math.inf
    assert unbounded.renyi_divergence(5, finite=True) < 0.5
    assert math.isclose(
        unbounded.renyi_divergence(0.5),
        -2 * math.log(1 - 1e-3 - 0.1 * (1 + math.exp(0.5) - 2 * math.exp(0.25))),
        rel_tol=1e-9,
    )
    bounded = _pair([0.5], [0.1], 1e-3, support=3.0)
    # The profile's line from 1e-3 at loss 0.5 to 0 at loss 3.
    q = 1e-3 / (math.exp(3) - math.exp(0.5))
    finite = _pair([0.5, 3.0], [0.1, q], 0.0)
    for order in (1, 2, 7, 100):
        assert math.isclose(bounded.renyi_divergence(order), finite.renyi_divergence(order), rel_tol=1e-9)
        assert bounded.renyi_divergence(order) <= 3.0
    lower = _pair([0.5], [0.1], 1e-3, side="lower", support=3.0)
    assert lower.renyi_divergence(2) == math.inf


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    left=st.floats(10, 50).map(lambda x: 2.0**-x),
    shares=st.tuples(st.floats(1e-12, 0.3), st.floats(0.01, 40.0)),
    order=st.floats(0.01, 0.99),
    side=st.sampled_from(["upper", "lower"]),
)
def test_below_order_1_where_nearly_all_is_lost(
    left: float, shares: tuple[float, float], order: float, side: Any
) -> None:
    """The rest of 1 beside a mass at infinity near 1 has full relative accuracy."""
    infinity, spacing = 1.0 - left, shares[1]
    left = 1.0 - infinity
    p = left * shares[0]
    q = p * math.exp(-spacing)
    pair = PrivacyLossDistribution(
        spacing=spacing,
        index=np.array([1]),
        p=np.array([p]),
        q=np.array([q]),
        zero=left - p - q,
        infinity=infinity,
        support=math.inf,
        side=side,
    )
    with mp.workdps(50):
        a, x, z = mp.mpf(order), mp.mpf(spacing), mp.mpf(q)
        # The mass under P is that under Q times the exponential of the loss, whatever float p is.
        lost = mp.mpf(infinity) + z * (1 - mp.e ** ((1 - a) * x)) * (1 - mp.e ** (a * x))
        exact = -mp.log(1 - lost) / (1 - a)
        found = pair.renyi_divergence(order)
        assert (found >= exact) if side == "upper" else (found <= exact)
        assert abs(found / exact - 1) < 1e-8


def test_conditioned_on_finite_losses() -> None:
    """Of `(1 - t) (P', Q')` and a mass t at infinity, the divergence of `(P', Q')`."""
    whole = _pair([0.5, 2.0], [0.1, 0.01], 0.0)
    part = _pair([0.5, 2.0], [0.1 * 0.75, 0.01 * 0.75], 0.25)
    for order in (0.5, 1, 2, 30):
        assert math.isclose(
            part.renyi_divergence(order, finite=True), whole.renyi_divergence(order), rel_tol=1e-12
        )


@pytest.mark.parametrize("order", [0, -1, math.nan, math.inf, 1e10, "2", None, 5e-324])
def test_bad_orders_are_refused(order: Any) -> None:
    with pytest.raises(InvalidParameter, match="order"):
        _pair([0.5], [0.1], 0.0).renyi_divergence(order)


def _clone_divergence(epsilon0: float, reports: int, order: float) -> float:
    """The published pair's divergence, summed over all numbers of reports in the two components."""
    e = math.exp(epsilon0)
    c, most = 1 / (2 * e), min(reports, math.ceil(reports / e + 60 * math.sqrt(reports / e) + 200))
    i, j = np.arange(most + 1)[:, None], np.arange(most + 1)[None, :]
    with np.errstate(all="ignore"):
        log_mass = gammaln(reports + 1) - gammaln(i + 1) - gammaln(j + 1) - gammaln(reports - i - j + 1)
        log_mass = log_mass + (i + j) * math.log(c) + (reports - i - j) * math.log1p(-2 * c)
        p, q = ((i * x + j * y) / (c * (1 + e) * reports) for x, y in ((e, 1), (1, e)))
        terms = log_mass + order * np.log(p) - (order - 1) * np.log(q)
    seen = (i + j <= reports) & (i + j > 0)
    return float(logsumexp(np.where(seen, terms, -np.inf)) / (order - 1))


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon0", "reports"), [(1.0, 1000), (4.0, 20_000)])
@pytest.mark.parametrize("order", [2, 50, 10_000])
def test_high_orders_look_beyond_every_delta(epsilon0: float, reports: int, order: float) -> None:
    """Where the divergence comes from outcomes of mass below 1e-46, which the pair itself calls infinite."""
    shuffled = _round(f"generic(epsilon0={epsilon0})", reports, analysis="clone")
    bound = Accountant().renyi_divergence({shuffled: 1}, order=order)
    exact = _clone_divergence(epsilon0, reports, order)
    assert bound.lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= bound.upper
    assert bound.upper <= (1.2 if order > 10 else 1.00001) * exact


def test_rounds_add_up_and_local_delta_is_infinite() -> None:
    accountant = Accountant()
    one, other = _round("krr(k=4, epsilon0=1)", 1000), _round("rappor(epsilon0=2)", 500, participation=0.3)
    single = [accountant.renyi_divergence({x: 1}, order=4) for x in (one, other)]
    both = accountant.renyi_divergence({one: 3, other: 2}, order=4)
    assert math.isclose(both.upper, 3 * single[0].upper + 2 * single[1].upper, rel_tol=1e-12)
    assert math.isclose(both.lower, 3 * single[0].lower + 2 * single[1].lower, rel_tol=1e-12)
    assert both.upper - both.lower <= 2e-3 * both.upper
    assert accountant.renyi_divergence({}, order=4).upper == 0
    impure = _round("generic(epsilon0=1)", 1000, delta0=1e-12)
    assert accountant.renyi_divergence({impure: 1}, order=2).upper == math.inf
