"""Numbers in an interval: bounds against all pairs of values, not the ends alone."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    attack_epsilon,
    fits,
    parse_randomizer,
)
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.randomizers.base import Bracket, DecomposedRandomizer
from tests.accounting.conftest import Oracle

VALUES = np.linspace(0.0, 1.0, 11)


def bracket(written: str) -> Bracket:
    randomizer = parse_randomizer(written)
    assert isinstance(randomizer, DecomposedRandomizer)
    return randomizer.analysis("blanket").brackets[0]


def laplace_cells(epsilon0: float, ends: np.ndarray) -> np.ndarray:
    """Probabilities of cells of reports, one row for each value, from the distribution function."""
    t = epsilon0 * (ends - VALUES[:, None])
    below = np.where(t < 0, np.exp(np.minimum(t, 0)) / 2, 1 - np.exp(-np.maximum(t, 0)) / 2)
    found: np.ndarray = np.diff(below, axis=1)
    return found


def excess_above(law: Decomposition, order: float, thresholds: np.ndarray) -> np.ndarray:
    """`E(G - s)_+`, of gains at an order: what convex order compares. Bare components count in full."""
    hidden = law.c > 0
    gains = (law.difference - (order - 1) * law.b)[hidden] / law.c[hidden]
    above = np.maximum(gains[:, None] - thresholds, 0).T @ law.c[hidden]
    bare = np.maximum((law.a - order * law.b)[~hidden], 0).sum()
    found: np.ndarray = above + law.leftover * np.maximum(-thresholds, 0) + bare
    return found


@pytest.mark.parametrize("epsilon0", [1e-3, 0.5, 12.0])
def test_no_more_is_hidden_than_what_the_densities_of_all_values_share(epsilon0: float) -> None:
    """Beside the lower end: the excess of its density, over the largest ratio of densities less 1."""
    e = mp.mpf(epsilon0)

    def density(x: mp.mpf, y: mp.mpf) -> mp.mpf:
        return e / 2 * mp.exp(-e * abs(y - x))

    def hidden(y: mp.mpf) -> mp.mpf:
        most = density(max(y, 0), y) / density(1, y)
        return (density(0, y) - density(1, y)) / (most - 1)

    above = bracket(f"bounded_laplace(epsilon0={epsilon0})").above
    exact = mp.quad(hidden, [-60 / e, 0, mp.mpf("0.5") - mp.mpf("1e-13")])
    assert exact * (1 - 1e-9) <= math.fsum(above.c[above.difference > 0]) <= exact


@pytest.mark.parametrize("epsilon0", [0.05, 1.0, 4.0])
def test_no_pair_of_values_gains_more(epsilon0: float) -> None:
    """Cells of reports with what the densities of the ends hide: the mean of the components of each cell."""
    ends = np.concatenate([[-np.inf], np.linspace(-0.5, 1.5, 401), [np.inf]])
    cells = laplace_cells(epsilon0, ends)
    middle = (ends[1:] + ends[:-1]) / 2 < 0.5
    middle[0] = True
    hidden = np.where(middle, cells[-1], cells[0])
    both = bracket(f"bounded_laplace(epsilon0={epsilon0})")
    thresholds = np.concatenate(
        [np.linspace(-(math.exp(epsilon0) ** 2), 0, 41), np.linspace(0, math.exp(epsilon0), 60)]
    )
    for order in (1.0, 1 + 0.1 * epsilon0, math.exp(0.6 * epsilon0)):
        above = excess_above(both.above, order, thresholds)
        below = excess_above(both.below, order, thresholds)
        assert np.all(below <= above + 1e-9)
        reached = 0.0
        for x0, x1 in itertools.product(range(len(VALUES)), repeat=2):
            law = Decomposition(cells[x0], cells[x1], hidden, rest=-math.expm1(-epsilon0 / 2))
            found = excess_above(law, order, thresholds)
            assert np.all(found <= above + 1e-9)
            reached = max(reached, float(found[41] / above[41]))
        assert reached > 0.85  # of the bound on one report


def outcomes(rows: np.ndarray, one: int, other: int) -> np.ndarray:
    """Multisets of two reports."""
    both = np.multiply.outer(rows[one], rows[other])
    found: np.ndarray = np.triu(both + both.T) - np.diag(np.diag(both))
    return found


def test_two_shuffled_reports_reveal_no_more() -> None:
    cells = laplace_cells(1.5, np.concatenate([[-np.inf], np.linspace(-0.2, 1.2, 57), [np.inf]]))
    accountant = Accountant()
    shuffled = ShuffledRound(randomizer=parse_randomizer("bounded_laplace(epsilon0=1.5)"), reports=2)
    for epsilon in (0.3, 1.0):
        worst = max(
            float(np.maximum(outcomes(cells, x0, x2) - math.exp(epsilon) * outcomes(cells, x1, x2), 0).sum())
            for x0, x1, x2 in itertools.product((0, 3, 5, 10), repeat=3)
        )
        bound = accountant.certify_delta({shuffled: 1}, epsilon=epsilon).delta_upper
        assert 0.7 * bound < worst <= bound
        attack = attack_epsilon(shuffled, delta=worst)
        assert attack is not None
        assert attack <= epsilon * 1.01


def windows(epsilon0: float, x0: float, x1: float) -> Decomposition:
    """The piecewise mechanism's outputs of two values: in both windows, in one, in none."""
    root = math.exp(epsilon0 / 2)
    reach = (root + 1) / (root - 1)
    density = (math.exp(epsilon0) - root) / (2 * root + 2) / math.exp(epsilon0)
    left = [(reach + 1) / 2 * x - (reach - 1) / 2 for x in (x0, x1)]
    both = max(0.0, reach - 1 - abs(left[0] - left[1]))
    one, none = reach - 1 - both, 2 * reach - 2 * (reach - 1) + both
    c = density * np.array([one, one, both, none])
    rise = math.exp(epsilon0)
    kept = c > 0
    return Decomposition((c * [rise, 1, rise, 1])[kept], (c * [1, rise, rise, 1])[kept], c[kept])


@pytest.mark.parametrize("epsilon0", [0.4, 2.0])
def test_the_ends_are_the_worst_values_of_the_piecewise_mechanism(epsilon0: float, oracle: Oracle) -> None:
    bound = bracket(f"piecewise(epsilon0={epsilon0})").above
    ends = windows(epsilon0, -1.0, 1.0)
    for name in ("a", "b", "c"):
        assert np.allclose(np.sort(getattr(bound, name)), np.sort(getattr(ends, name)), rtol=1e-12)
    listed = oracle.blanket_outcomes(bound, 3)
    for x0, x1 in ((-1.0, 0.9), (0.0, 1.0), (0.2, 0.3), (-0.5, 0.5)):
        found = oracle.blanket_outcomes(windows(epsilon0, x0, x1), 3)
        for epsilon in (0.0, 0.1, 0.7 * epsilon0):
            assert oracle.delta(found, epsilon) <= oracle.delta(listed, epsilon) + 1e-12


@pytest.mark.parametrize("epsilon0", [0.4, 2.0])
def test_the_ends_are_the_worst_values_of_one_bit(epsilon0: float, oracle: Oracle) -> None:
    bound = bracket(f"duchi(epsilon0={epsilon0})").above
    slope = math.tanh(epsilon0 / 2) / 2
    least = np.full(2, 0.5 - slope)
    listed = oracle.blanket_outcomes(bound, 4)
    for x0, x1 in itertools.permutations((-1.0, -0.3, 0.5, 1.0), 2):
        a, b = (np.array([0.5 + slope * x, 0.5 - slope * x]) for x in (x0, x1))
        found = oracle.blanket_outcomes(Decomposition(a, b, least), 4)
        for epsilon in (0.0, 0.1, 0.7 * epsilon0):
            assert oracle.delta(found, epsilon) <= oracle.delta(listed, epsilon) + 1e-12
    shuffled = ShuffledRound(randomizer=parse_randomizer(f"duchi(epsilon0={epsilon0})"), reports=5)
    binary = ShuffledRound(randomizer=parse_randomizer(f"krr(epsilon0={epsilon0}, k=2)"), reports=5)
    accountant = Accountant()
    one, two = (accountant.certify({each: 1}, delta=1e-4).epsilon_upper for each in (shuffled, binary))
    assert one == pytest.approx(two, rel=1e-6)


def test_more_noise_fits_less() -> None:
    def at(written: str) -> ShuffledRound:
        return ShuffledRound(randomizer=parse_randomizer(written), reports=1000)

    for kind in ("bounded_laplace", "duchi"):
        assert fits(at(f"{kind}(epsilon0=1)"), at(f"{kind}(epsilon0=2)"))
        assert not fits(at(f"{kind}(epsilon0=2)"), at(f"{kind}(epsilon0=1)"))
    # Smaller epsilons have other windows.
    assert not fits(at("piecewise(epsilon0=1)"), at("piecewise(epsilon0=2)"))
