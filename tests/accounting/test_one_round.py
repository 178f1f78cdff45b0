"""The sum over users, against brute force, binomial tails and published numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from shuffle_ledger.accounting import Accountant, parse_randomizer
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import _counts, _fewest_counts, enumerate_outcomes
from tests.accounting.alike import alike
from tests.accounting.memory import peak_memory


@st.composite
def decompositions(draw: st.DrawFn) -> Decomposition:
    """Random pure decompositions: 1 to 4 components, some of them unhidden, some possible under one input
    only."""
    size = draw(st.integers(1, 4))
    shares = st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)
    a, b, c = (np.array(draw(shares)) for _ in range(3))
    for masses in (a, b, c):
        for position in range(1, size):
            if draw(st.integers(0, 7)) == 0:
                masses[position] = 0.0
    kept = draw(st.floats(1e-6, 1.0))
    return Decomposition(a / a.sum(), b / b.sum(), kept * c / c.sum())


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@example(Decomposition(np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.array([0.99999, 0.0])), 4, 0.0)
@given(decompositions(), st.integers(1, 6), st.floats(0.0, 6.0))
def test_both_ways_of_summing_enclose_brute_force(
    oracle: Any, masses: Decomposition, reports: int, epsilon: float
) -> None:
    exact = oracle.delta(oracle.blanket_outcomes(masses, reports), epsilon)
    excess = np.array([math.expm1(epsilon)])
    quadrature = blanket_profile(masses, reports, excess, smoothing=0.02)
    outcomes = enumerate_outcomes(masses.merged(), reports, limit=10**6)
    assert quadrature.lower[0] <= exact <= quadrature.upper[0]
    if outcomes is None:
        assert 0 <= masses.leftover < 1e-7  # known to too few digits to be listed
        return
    listed = outcomes.profile(excess)
    assert listed.lower[0] <= exact <= listed.upper[0]
    # The leftover mass is known to units of 1.
    unsure = 1e-14 * reports / masses.leftover if masses.leftover > 0 else 0.0
    assert listed.upper[0] - listed.lower[0] <= (1e-9 + unsure) * (1 + math.exp(epsilon))


@given(st.integers(1, 10**6), st.lists(st.floats(-9.0, 0.0), min_size=1, max_size=4))
def test_no_round_counts_as_long_that_is_short(reports: int, logarithms: list[float]) -> None:
    """What rules a list of outcomes out in advance never says more outcomes than there would be."""
    c = 10.0 ** np.array(logarithms)
    listed = math.prod(len(_counts(reports, float(mass), 1 - float(mass))) for mass in c)
    assert _fewest_counts(reports, c) <= listed * (1 + 1e-12)


@pytest.mark.parametrize("reports", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_many_components_that_are_overwhelming_one_after_the_other(
    oracle: Any, seed: int, reports: int
) -> None:
    """Towards the largest loss ever more components count for nothing beside a report of theirs."""
    draw = np.random.default_rng(seed)
    ratio = np.sort(np.exp(draw.uniform(-2.0, 2.0, 14)))
    b = draw.dirichlet(np.ones(14))
    a = b * ratio / (b * ratio).sum()
    masses = Decomposition(a, b, 0.8 * np.minimum(a, b))
    last = float(np.log((a / b).max()))
    losses = last * (1 - np.geomspace(1.0, 1e-4, 40))
    bounds = blanket_profile(masses, reports, np.expm1(losses), smoothing=0.01)
    outcomes = oracle.blanket_outcomes(masses, reports)
    exact = np.array([float(oracle.delta(outcomes, loss)) for loss in losses])
    assert np.all(bounds.lower <= exact * (1 + 1e-12))
    assert np.all(exact <= bounds.upper * (1 + 1e-12))
    assert np.all(bounds.upper <= 1.02 * exact)


def _by_binomial_tails(masses: Decomposition, reports: int, excess: float) -> float:
    """A third way for pairs of two components with equal c: given how many reports are hidden, a binomial
    tail."""
    p = float(masses.c[0])
    gains = (masses.a - masses.b - excess * masses.b) / p
    mean = 2 * p * reports
    number = np.arange(max(1, int(mean - 16 * mean**0.5)), min(reports, int(mean + 16 * mean**0.5 + 90)) + 1)
    least = np.floor(-number * gains[1] / (gains[0] - gains[1])) + 1
    first = number / 2 * binom.sf(least - 2, number - 1, 0.5)
    tail = (gains[0] - gains[1]) * first + number * gains[1] * binom.sf(least - 1, number, 0.5)
    return float((binom.pmf(number, reports, 2 * p) * np.maximum(tail, 0)).sum() / reports)


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ["clone", "tight"])
@pytest.mark.parametrize("epsilon0", [0.1, 6.0])
@pytest.mark.parametrize("reports", [30, 1000])
def test_quadrature_agrees_with_binomial_tails(analysis: str, epsilon0: float, reports: int) -> None:
    masses = parse_randomizer({"kind": "generic", "epsilon0": epsilon0}).analysis(analysis).decomposition
    deviation = math.sqrt(2 / (reports * masses.c[0])) * abs(masses.a[0] - masses.b[0]) + 1e-3 * epsilon0
    epsilons = [share * min(deviation, epsilon0 / 7) for share in (0.0, 1.0, 3.0, 5.0)]
    excess = np.expm1(epsilons)
    bounds = blanket_profile(masses, reports, excess, smoothing=0.004)
    for order, upper, lower in zip(excess, bounds.upper, bounds.lower, strict=True):
        other = _by_binomial_tails(masses, reports, order)
        assert lower <= other * (1 + 1e-9)
        assert other * (1 - 1e-9) <= upper
        if other > 1e-40:
            assert upper / lower - 1 < 2e-2


@pytest.mark.parametrize("reports", [1, 3, 100])
@pytest.mark.parametrize("analysis", ["clone", "tight"])
def test_tiny_rounds_are_hardly_amplified(oracle: Any, reports: int, analysis: str) -> None:
    shuffled = alike(
        randomizer=parse_randomizer("generic(epsilon0=4)"),
        reports=reports,
        analysis=analysis,
    )
    certificate = Accountant().certify({shuffled: 1}, delta=1e-6)
    assert certificate.epsilon_upper <= 4.0
    # Nothing like the 4e-6 that sums which lose all digits once gave for 100 reports.
    assert certificate.epsilon_lower > 3.99
    assert certificate.epsilon_upper / certificate.epsilon_lower - 1 < 1e-3
    if reports <= 3:
        masses = shuffled.randomizer.analysis(analysis).decomposition
        exact = min(oracle.epsilon(oracle.blanket_outcomes(masses, reports), 1e-6), 4.0)
        assert certificate.epsilon_lower <= exact <= certificate.epsilon_upper


def test_a_fraction_of_honest_reports_counts_only_them() -> None:
    accountant = Accountant()
    all_honest = alike(randomizer=parse_randomizer("krr(k=4, epsilon0=2)"), reports=980)
    some = alike(
        randomizer=parse_randomizer("krr(k=4, epsilon0=2)"),
        reports=1000,
        honest_fraction=0.98,
    )
    assert accountant.certify({some: 1}, delta=1e-6) == accountant.certify({all_honest: 1}, delta=1e-6)


def test_outcomes_of_many_components_fit_into_memory() -> None:
    """Two hundred thousand outcomes over a hundred components: their counts would take 170 MiB."""
    masses = parse_randomizer("laplace(epsilon0=2)").analysis("blanket").decomposition.merged()
    with peak_memory() as peak:
        outcomes = enumerate_outcomes(masses, 3, limit=1_000_000)
    assert outcomes is not None
    assert outcomes.p.size > 200_000
    assert peak.used < 80 << 20
    assert math.isclose(math.fsum(outcomes.p), 1.0, rel_tol=1e-12)
    assert math.isclose(math.fsum(outcomes.q), 1.0, rel_tol=1e-12)
