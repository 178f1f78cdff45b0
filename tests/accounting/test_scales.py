"""Sums of gains over many scales, against every outcome listed in fractions, and sums in one piece."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from shuffle_ledger.accounting.amplification.blanket import divergence
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition


def _law(draw: np.random.Generator, components: int, spread: float) -> Decomposition:
    """Ratios of many sizes, of inputs that other users rarely hide."""
    a, b = (draw.dirichlet(np.full(components, 0.5)) + 1e-12 for _ in range(2))
    a, b = a / a.sum(), b / b.sum()
    return Decomposition(a, b, np.minimum(a, b) * np.exp(-draw.uniform(0.0, spread, components)))


def _exact(pair: Decomposition, reports: int, order: Fraction) -> Fraction:
    """The divergence, outcome by outcome."""
    a, b, c = ([Fraction(float(mass)) for mass in column] for column in (pair.a, pair.b, pair.c))
    return _summed([(x - order * y) / mass for x, y, mass in zip(a, b, c, strict=True)], c, reports)


def _summed(gains: list[Fraction], c: list[Fraction], reports: int) -> Fraction:
    """`E[(S)_+] / n` of these gains with these masses, and else none."""
    gains, masses = [*gains, Fraction(0)], [*c, 1 - sum(c)]
    total = Fraction(0)
    for counts in itertools.product(range(reports + 1), repeat=len(c)):
        left = reports - sum(counts)
        if left < 0:
            continue
        everyone = [*counts, left]
        gained = sum(count * gain for count, gain in zip(everyone, gains, strict=True))
        if gained > 0:
            ways = math.factorial(reports) // math.prod(math.factorial(count) for count in everyone)
            chance = math.prod(
                (mass**count for mass, count in zip(masses, everyone, strict=True)), start=Fraction(1)
            )
            total += ways * chance * gained
    return total / reports


@pytest.mark.parametrize("scale", [1.5, 16.0])
@pytest.mark.parametrize("seed", range(8))
def test_bounds_enclose_every_outcome(seed: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many scales as there are gains, and with the usual ones."""
    monkeypatch.setattr(divergence, "SCALE_RATIO", scale)
    draw = np.random.default_rng(seed)
    pair, reports = _law(draw, 4, float(draw.choice([0.0, 5.0, 25.0]))), int(draw.choice([2, 5, 9]))
    largest = float((pair.a / pair.b).max())
    orders = [Fraction(1), *(Fraction(float(one)) for one in np.exp(draw.uniform(0.0, math.log(largest), 5)))]
    excess = np.sort(np.array([float(order - 1) for order in orders]))
    exact = [_exact(pair, reports, 1 + Fraction(float(more))) for more in excess]
    for smoothing in (0.1, 0.01, 0.001):
        found = blanket_profile(pair, reports, excess, smoothing=smoothing)
        for upper, lower, truth in zip(found.upper, found.lower, exact, strict=True):
            assert lower <= truth <= upper


def test_a_rest_that_gains_nothing_but_a_rounding_is_no_law() -> None:
    """At an order that is a ratio to the last digit, gains of the rest may all have lost their sign."""
    c = np.array(
        [1.31911136e-14, 2.58903926e-12, 1.22160710e-12, 2.44844066e-05, 5.80640646e-09, 1.04434943e-11]
    )
    a = np.array([8.45678583e-15, 2.27504516e-11, 1.56558355e-19, 0, 1.19667642e-08, 1.26492988e-09])
    b = np.array([9.97344985e-15, 1.33316913e-17, 7.66948402e-15, 0, 4.65920194e-08, 7.39209245e-08])
    a[3], b[3] = 1 - a.sum(), 1 - b.sum()
    ratio = (a[3] - b[3]) / b[3]
    excess = np.array([ratio, np.nextafter(ratio, 1.0)])
    pair = Decomposition(a, b, c)
    found = blanket_profile(pair, 3, excess, smoothing=0.003)
    for upper, lower, more in zip(found.upper, found.lower, excess, strict=True):
        assert lower <= _exact(pair, 3, 1 + Fraction(float(more))) <= upper


@pytest.mark.slow
def test_losses_that_hardly_any_report_has_are_left_over() -> None:
    """What leaving them over adds, in fractions; and the bounds with it."""
    draw, left_over = np.random.default_rng(11), 0
    for _ in range(60):
        reports, components = int(draw.integers(1, 5)), int(draw.integers(2, 5))
        a, b = (draw.dirichlet(np.full(components, 0.7)) + 1e-9 for _ in range(2))
        a, b = a / a.sum(), b / b.sum()
        rarity = np.where(
            draw.uniform(size=components) < 0.5, 10.0 ** -draw.uniform(4.0, 12.0, components), 0.5
        )
        pair, order = (
            Decomposition(a, b, np.minimum(a, b) * rarity),
            Fraction(float(np.exp(draw.uniform(0.0, 9.0)))),
        )
        excess = np.array([float(order - 1)])
        (_, laws, _), *_ = ListedPairs([pair]).laws(np.array([0]), excess)
        rest, added = divergence._without_rare_losses(laws, reports)
        whole, less = (
            _summed(
                [Fraction(x) for x in one.gains[0].tolist()],
                [Fraction(x) for x in one.c[0].tolist()],
                reports,
            )
            for one in (laws, rest)
        )
        assert less * (1 - Fraction(float(added[0]))) <= whole <= less
        assert 0 <= added[0] <= 1.1e-5
        assert abs(float(rest.c.sum() + rest.leftover[0]) - 1) <= 1e-15
        left_over += int(added[0] > 0)
        bounds = blanket_profile(pair, reports, excess, smoothing=0.01)
        exact, room = _exact(pair, reports, 1 + Fraction(float(excess[0]))), 1e-15 * float(order)
        assert bounds.lower[0] - room <= exact <= bounds.upper[0] + room
    assert left_over > 15


@pytest.mark.parametrize("reports", [2, 3, 7])
def test_the_lower_bound_pays_for_losses_that_are_left_over(reports: int) -> None:
    """Nothing else is in doubt: all other reports gain or are left over."""
    a, b, c = np.array([0.9, 0.1]), np.array([0.1, 0.9]), np.array([0.3, 1e-7])
    excess = np.array([0.5])
    bounds = blanket_profile(Decomposition(a, b, c), reports, excess, smoothing=0.01)
    exact = _exact(Decomposition(a, b, c), reports, 1 + Fraction(float(excess[0])))
    room = 1e-14
    assert bounds.lower[0] - room <= exact <= bounds.upper[0] + room
    assert bounds.upper[0] - bounds.lower[0] <= 1e-5 * bounds.upper[0]


def test_nothing_is_left_over_where_that_may_be_a_rounding() -> None:
    """Masses that add up to 1 but for a unit: no report is left over for certain."""
    c = np.array([0.5, 0.5 - 2**-53, 1e-30])
    pair = Decomposition(np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5]), c)
    assert pair.leftover > 0
    (_, laws, _), *_ = ListedPairs([pair]).laws(np.array([0]), np.array([0.3]))
    rest, added = divergence._without_rare_losses(laws, 3)
    assert added[0] == 0
    assert np.array_equal(rest.c, laws.c)
