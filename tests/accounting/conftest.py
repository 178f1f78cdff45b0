"""Slow, plain and exact: what the accountant is compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import mpmath as mp
import numpy as np
import pytest

from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.pld.bounds import Sketch
from shuffle_ledger.accounting.pld.discretization import Profile, from_profile
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution

Outcome = tuple[mp.mpf, mp.mpf]  # mass under P and under Q


class Oracle:
    """Brute force over all outcomes in 60-digit arithmetic."""

    def __init__(self) -> None:
        mp.mp.dps = 60

    def blanket_outcomes(self, masses: Decomposition, reports: int) -> list[Outcome]:
        """Masses under both inputs of every multiset of components that `reports` users can show."""
        a, b, c = ([mp.mpf(float(x)) for x in column] for column in (masses.a, masses.b, masses.c))
        c.append(max(1 - mp.fsum(c), mp.mpf(0)))
        a.append(mp.mpf(0))
        b.append(mp.mpf(0))
        outcomes = []
        for counts in _compositions(reports, len(c)):
            p = q = mp.mpf(0)
            for j, count in enumerate(counts):
                if count == 0:
                    continue
                others = mp.factorial(
                    reports - 1
                )  # the other users' reports once one of component j is the user's
                for i, number in enumerate(counts):
                    rest = number - (i == j)
                    others *= c[i] ** rest / mp.factorial(rest)
                p += a[j] * others
                q += b[j] * others
            if p or q:
                outcomes.append((p, q))
        return outcomes

    def product_epsilon(self, parts: Sequence[list[Outcome]], delta: float) -> float:
        """Smallest epsilon >= 0 of independent rounds, every combination of outcomes listed, in double
        precision."""
        p, q = self.product(parts)
        low, high = 0.0, 64.0
        if np.maximum(p - q, 0).sum() <= delta:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            small = np.maximum(p - math.exp(middle) * q, 0).sum() <= delta
            low, high = (low, middle) if small else (middle, high)
        return high

    def product(self, parts: Sequence[list[Outcome]]) -> tuple[np.ndarray, np.ndarray]:
        """Masses of all combinations of outcomes of independent rounds."""
        p, q = np.ones(1), np.ones(1)
        for part in parts:
            p = np.multiply.outer(p, [float(x) for x, _ in part]).ravel()
            q = np.multiply.outer(q, [float(y) for _, y in part]).ravel()
        return p, q

    def delta(self, outcomes: list[Outcome], epsilon: float) -> mp.mpf:
        """Hockey-stick divergence of order exp(epsilon)."""
        order = mp.exp(mp.mpf(epsilon))
        return mp.fsum(max(p - order * q, mp.mpf(0)) for p, q in outcomes)

    def epsilon(self, outcomes: list[Outcome], delta: float) -> float:
        """Smallest epsilon >= 0 whose delta is at most `delta`."""
        low, high = 0.0, 64.0
        if self.delta(outcomes, 0.0) <= delta:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(outcomes, middle) <= delta else (middle, high)
        return high


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        edges = (-1, *bars, total + parts - 1)
        yield tuple(right - left - 1 for left, right in itertools.pairwise(edges))


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


def pairs_around(
    profile: Profile, *, largest_loss: float, end: float, precision: float
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """The pairs above and below a profile, with a sketch made of the profile itself."""
    losses = np.append(0.0, np.geomspace(1e-5 * end, end, 40))
    with np.errstate(divide="ignore"):
        sketch = Sketch(losses, np.log(profile(np.expm1(losses)).upper))
    return from_profile(
        profile,
        largest_loss=largest_loss,
        end=end,
        infinity=0.0,
        precision=precision,
        sketch=sketch,
        model=None,
        sharper=None,
        cheap=False,
    )
