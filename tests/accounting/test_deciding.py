"""Reports that decide, against every outcome summed in sixty digits."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest

from accounting import deciding
from accounting.blanket_sum import blanket_profile
from accounting.deciding import decide
from accounting.decomposition import Decomposition
from accounting.gain_laws import Laws, ListedPairs


def laws(masses: Decomposition, excess: np.ndarray) -> Laws:
    """The laws of what one user gains, one for each order."""
    pairs = ListedPairs([masses])
    ((_, found, _),) = pairs.laws(np.zeros(excess.size, dtype=np.int64), excess)
    return found


def enumerated(masses: Decomposition, reports: int, excess: float, chosen: np.ndarray) -> mpmath.mpf:
    """`E[S_+; a chosen report] / n`, outcome by outcome."""
    c = [mpmath.mpf(one) for one in masses.c]
    gains = [
        (mpmath.mpf(a) - (1 + mpmath.mpf(excess)) * mpmath.mpf(b)) / one
        for a, b, one in zip(masses.a, masses.b, c, strict=True)
    ]
    c, gains = [*c, 1 - mpmath.fsum(c)], [*gains, mpmath.mpf(0)]
    total = mpmath.mpf(0)
    for counts in itertools.product(range(reports + 1), repeat=len(c)):
        if sum(counts) != reports or not any(k for k, one in zip(counts, chosen, strict=False) if one):
            continue
        probability = mpmath.factorial(reports)
        for k, mass in zip(counts, c, strict=True):
            probability *= mass**k / mpmath.factorial(k)
        total += probability * max(mpmath.fsum(k * g for k, g in zip(counts, gains, strict=True)), 0)
    return total / reports


def two_scales(draw: np.random.Generator, smallest: float) -> Decomposition:
    """Masses of which some are rarely hidden."""
    a, b = draw.dirichlet(np.ones(4), size=2)
    c = np.minimum(a, b) * np.exp(draw.uniform(np.log(smallest), 0.0, 4))
    return Decomposition(a, b, c)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("smallest", [1e-9, 1e-3, 0.1])
def test_what_deciding_reports_add(seed: int, smallest: float) -> None:
    draw = np.random.default_rng(seed)
    masses, reports = two_scales(draw, smallest), int(draw.integers(1, 6))
    excess = np.expm1(draw.uniform(0.0, float(np.log((masses.a / masses.b).max())), 5))
    one = laws(masses, excess)
    theta = one.saddle(reports, closeness=1.1)
    found = decide(one, reports, excess, theta, np.full(5, 10.0))
    with mpmath.workdps(60):
        for row, order in enumerate(excess):
            truth = enumerated(masses, reports, float(order), found.components[row])
            # Masses are floats: what their rounding moves.
            room = mpmath.mpf("1e-14")
            assert found.lower[row] <= truth * (1 + room)
            assert truth <= found.upper[row] * (1 + room)


def test_much_is_decided_by_few() -> None:
    """A rare component beside common ones decides, and is known closely."""
    masses = Decomposition(np.array([0.3, 0.4, 0.3]), np.array([0.05, 0.5, 0.45]), np.array([1e-3, 0.3, 0.3]))
    excess = np.array([0.5])
    one = laws(masses, excess)
    found = decide(one, 20, excess, one.saddle(20, closeness=1.1), np.full(1, 1e-6))
    assert found.components.tolist() == [[True, False, False]]
    assert 0 < found.lower[0] <= found.upper[0] <= found.lower[0] * (1 + 1e-6)


def test_losses_of_another_scale_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative gains so large that moments of any use overflow beside those of deciding ones."""
    masses = Decomposition(
        np.array([0.3, 0.1, 0.4, 0.2]), np.array([0.1, 0.2, 0.2, 0.5]), np.array([2e-5, 4e-5, 2e-5, 2e-5])
    )
    excess = np.array([0.2, 0.9])
    one = laws(masses, excess)
    monkeypatch.setattr(deciding, "_DECIDES", 0.1)
    monkeypatch.setattr(deciding, "_FEW", 1e9)
    for share in (1e-6, 1e-4, 1.0, 1e9):
        found = decide(one, 4, excess, one.saddle(4, closeness=1.1), np.full(2, share))
        with mpmath.workdps(60):
            for row, order in enumerate(excess):
                truth = enumerated(masses, 4, float(order), found.components[row])
                assert found.lower[row] <= truth * (1 + mpmath.mpf("1e-13")) <= found.upper[row] * (1 + 1e-12)


@pytest.mark.parametrize("reports", [3, 30, 300])
def test_laws_of_two_scales_are_as_narrow_as_others(reports: int) -> None:
    """A gain a thousand times the others', once in a while."""
    masses = Decomposition(
        np.array([0.2, 0.5, 0.3]), np.array([0.05, 0.35, 0.6]), np.array([5e-5, 0.3, 0.28])
    )
    excess = np.expm1(np.linspace(0.0, 1.1, 12))
    bounds = blanket_profile(masses, reports, excess, smoothing=0.0142)
    assert np.all(bounds.upper - bounds.lower <= 2e-3 * bounds.upper)
