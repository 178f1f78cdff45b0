"""Masses and ratios of counts, in many digits, and the coarser pairs that are made of them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting.amplification.noise_pairs import (
    Pair,
    binomial_masses,
    coarsened,
    multiplied,
    poisson_masses,
    shifted_binomial,
    shifted_poisson,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.floats(1e-3, 1 - 1e-3))
def test_binomial_masses_are_right_far_out(trials: int, p: float) -> None:
    mp.mp.dps = 60
    law = binomial_masses(trials, p)
    last = law.first + len(law.values) - 1
    for k in {law.first, (law.first + last) // 2, last, (law.first + 3 * last) // 4}:
        p1 = mp.mpf(p)
        exact = mp.binomial(trials, k) * p1**k * (1 - p1) ** (trials - k)
        value = mp.mpf(float(law.values[k - law.first]))
        assert abs(value - exact) <= law.relative_error * exact + mp.mpf("1e-300")  # but for underflow
    assert law.relative_error < 1e-6


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-9, 1e7))
def test_poisson_masses_are_right_far_out(mean: float) -> None:
    mp.mp.dps = 60
    law = poisson_masses(mean)
    last = law.first + len(law.values) - 1
    for k in {law.first, (law.first + last) // 2, last}:
        exact = mp.exp(k * mp.log(mp.mpf(mean)) - mp.mpf(mean) - mp.loggamma(k + 1))
        value = mp.mpf(float(law.values[k - law.first]))
        assert abs(value - exact) <= (law.relative_error + 1e-15) * exact + mp.mpf("1e-300")


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.floats(0.01, 0.99), st.floats(0.0, 1.0), st.booleans())
def test_ratios_of_shifted_noise(trials: int, p: float, where: float, up: bool) -> None:
    """`x = P/Q - 1` to full relative accuracy, also where it nearly vanishes."""
    mp.mp.dps = 60
    pair = shifted_binomial(trials, p, up=up)
    law = binomial_masses(trials, p)
    position = int(where * (len(pair.x) - 1))
    k = law.first + position + (0 if up else 1)
    p1 = mp.mpf(p)
    likely, unlikely = k * (1 - p1), (trials - k + 1) * p1
    exact = likely / unlikely - 1 if up else unlikely / likely - 1
    assert abs(mp.mpf(float(pair.x[position])) - exact) <= mp.mpf("1e-14") * abs(exact)


@pytest.mark.parametrize("losses", [20, 60, 200])
def test_coarsening_only_goes_its_way(losses: int) -> None:
    excess = np.expm1(np.linspace(0, 1.2, 40))
    for p, way in itertools.product((0.5, 0.85), (True, False)):
        pair = shifted_binomial(800, p, up=way)
        exact = pair.outcomes().profile(excess)
        above, below = (coarsened(pair, losses, up=side).outcomes().profile(excess) for side in (True, False))
        assert np.all(above.upper >= exact.lower)
        assert np.all(below.lower <= exact.upper)
        doubled = multiplied(pair, pair).outcomes().profile(excess)
        over = multiplied(coarsened(pair, losses, up=True), coarsened(pair, losses, up=True))
        under = multiplied(coarsened(pair, losses, up=False), coarsened(pair, losses, up=False))
        assert np.all(over.outcomes().profile(excess).upper >= doubled.lower)
        assert np.all(under.outcomes().profile(excess).lower <= doubled.upper)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(1, 10**6), st.floats(0.0, 1.0), st.booleans())
def test_ratios_of_shifted_poisson_noise(noise: float, honest: int, where: float, up: bool) -> None:
    """Of a mean that no float is, to full relative accuracy."""
    mean = Fraction(noise) * honest / 3
    if mean > 10**9:
        mean /= 10**4
    pair, law = shifted_poisson(mean, up=up), poisson_masses(float(mean))
    position = int(where * (len(pair.x) - 1))
    k = law.first + position + (0 if up else 1)
    exact = k / mean - 1 if up else mean / k - 1
    assert abs(Fraction(float(pair.x[position])) - exact) <= abs(exact) / 10**14


@pytest.mark.parametrize("mean", [Fraction(1, 10), Fraction(7, 3), Fraction(40)])
def test_independent_counts_are_fair_coins_given_their_total(mean: Fraction) -> None:
    """One label of the uniformity tester, by its total: `1 + Bin(C, 1/2)` against `Bin(C, 1/2)`."""
    excess = np.expm1(np.linspace(0, 2.0, 30))
    label = multiplied(*(shifted_poisson(mean, up=way) for way in (True, False))).outcomes().profile(excess)
    totals = poisson_masses(float(2 * mean))
    exact = np.zeros_like(excess)
    for total, weight in enumerate(totals.values, start=totals.first):
        if total == 0:
            exact += weight  # one message, and no noise
        elif weight > 1e-25:
            exact += weight * shifted_binomial(total, 0.5, up=True).outcomes().profile(excess).upper
    assert np.all(label.lower <= exact * (1 + 1e-9) + 1e-20)
    assert np.all(exact <= label.upper * (1 + 1e-9) + 1e-20)
    assert np.all(label.upper - label.lower <= 5e-8 * exact + 1e-20)


def test_impossible_outcomes_of_products_are_impossible() -> None:
    """However `-1 + y - y` is rounded: next to -1 a ratio stretched the grid that products are put on."""
    ways = [shifted_poisson(Fraction(5000), up=way) for way in (True, False)]
    rare = [one._replace(q=np.append(one.q, 1e-200), x=np.append(one.x, -1.0)) for one in ways]
    product = multiplied(*(coarsened(one, 300, up=True) for one in rare))
    assert np.all((product.x == -1) | (product.x > -0.9))
    assert coarsened(product, 300, up=True).x.size > 290


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1e-2, 1.0, 50.0]))
def test_sums_over_outcomes_hold_at_orders_that_are_off_by_eight_roundings(seed: int, scale: float) -> None:
    """Ratios that are orders, are next to one, or whatever they are."""
    draw = np.random.default_rng(seed)
    excess = np.sort(draw.uniform(0.0, scale, 4))
    x = np.concatenate(
        [excess, np.nextafter(excess, 0), np.nextafter(excess, 2 * scale), draw.uniform(0, scale, 3)]
    )
    q = draw.dirichlet(np.ones(x.size))
    found = Pair(q, x, 0.0, 0.0, 0.0).outcomes().profile(excess)
    for place, order in enumerate(excess.tolist()):
        for off in (-8, 0, 8):
            at = Fraction(order) * (1 + Fraction(off, 2**53))
            gains = (
                Fraction(mass) * (Fraction(ratio) - at)
                for mass, ratio in zip(q.tolist(), x.tolist(), strict=True)
            )
            exact = sum((gain for gain in gains if gain > 0), Fraction(0))
            assert found.lower[place] <= exact <= found.upper[place]
