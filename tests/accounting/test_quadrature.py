"""What the quadrature leaves out, and its ways out where that is too much."""

from __future__ import annotations

import numpy as np
import pytest

from accounting import blanket_sum, quadrature
from accounting.blanket_sum import blanket_profile
from accounting.decomposition import Decomposition
from accounting.enumeration import enumerate_outcomes

REPORTS = 40
EXCESS = np.expm1(np.linspace(0.0, 0.9, 25))
MASSES = Decomposition(
    np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.25, 0.1])
)  # a quarter of each report, or more, hides nothing


def listed() -> np.ndarray:
    """The exact profile, outcome by outcome."""
    outcomes = enumerate_outcomes(MASSES, REPORTS, limit=10**6)
    assert outcomes is not None
    bounds = outcomes.profile(EXCESS)
    assert np.all(bounds.upper - bounds.lower <= 1e-9 * bounds.upper)
    return bounds.upper


@pytest.mark.parametrize("negligible", [0.5, 2.0, 5.0, 46.0])
def test_nodes_that_are_left_out_are_paid_for(monkeypatch: pytest.MonkeyPatch, negligible: float) -> None:
    """However many nodes count as negligible: what they hold is in the bounds."""
    monkeypatch.setattr(quadrature, "_NEGLIGIBLE", negligible)
    bounds, exact = blanket_profile(MASSES, REPORTS, EXCESS, smoothing=0.01), listed()
    assert np.all(bounds.lower <= exact)
    assert np.all(exact <= bounds.upper)
    if negligible == 46.0:
        assert np.all(bounds.upper - bounds.lower <= 5e-2 * exact)


@pytest.mark.parametrize("overwhelming", [0.5, 2.0])
def test_outcomes_that_hold_too_much_are_not_left_out(
    monkeypatch: pytest.MonkeyPatch, overwhelming: float
) -> None:
    """Where reports that are called overwhelming are not, the law is summed whole, as narrowly as ever."""
    monkeypatch.setattr(blanket_sum, "_OVERWHELMING", overwhelming)
    bounds, exact = blanket_profile(MASSES, REPORTS, EXCESS, smoothing=0.01), listed()
    assert np.all(bounds.lower <= exact)
    assert np.all(exact <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= 5e-2 * exact)


@pytest.mark.parametrize("epsilon0", [1e-9, 1e-6])
@pytest.mark.parametrize("reports", [50, 10**6])
def test_nothing_turns_at_the_smallest_epsilon0(epsilon0: float, reports: int) -> None:
    """Hidden halves that differ in the ninth digit: the profile at order 1 is that of a Gaussian, or of a
    few users."""
    gap = np.array([epsilon0, -epsilon0]) / 2
    masses = Decomposition(0.5 + gap / 2, 0.5 - gap / 2, np.array([0.5, 0.5]), gap)
    bounds = blanket_profile(masses, reports, np.zeros(1), smoothing=0.01)
    # The mean distance of a fair walk from where it began, by Stirling's series.
    walk = np.sqrt(2 * reports / np.pi) * (1 - 1 / (4 * reports) + 1 / (32 * reports**2))
    exact = epsilon0 * walk / 2 / reports
    assert bounds.lower[0] <= exact * (1 + 1e-5)
    assert exact * (1 - 1e-5) <= bounds.upper[0]
    assert bounds.upper[0] - bounds.lower[0] <= 1e-2 * exact
