"""Numbers in an interval, reported with noise or by a random bit: bounds for all pairs of values in it.

Take noise of a symmetric and log-concave density, on values in `[0, w]`. For any two values the gain of a
report is in convex order at most that of components with the ratios `M(y) : 1 : 1` and `1 : M(y) : 1`, for
y below the middle, beside one of ratios `1 : 1 : 1` (docs/theory/randomizers.md, R12).
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shuffle_ledger.accounting.amplification import witnesses
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.randomizers.base import (
    Bracket,
    Components,
    DecomposedRandomizer,
    OnePair,
)
from shuffle_ledger.accounting.randomizers.laplace import Laplace

# Cells of reports between an end of the interval and its middle. They keep the bounds of the components
# apart, by less than 1e-3 of epsilon.
_CELLS = 40
_NODES_OF_CELL = 24
#: Bound on the relative error of integrals over cells.
ROUGH = 1e-10


class Cells(NamedTuple):
    """One arm of components, of larger and larger ratios; arrays of shape (cells,).

    Attributes:
        low, high: logarithms of the ratios at the ends of the cells.
        excess: by how much one value's mass in a cell is above what others hide there.
        hidden: the mass that others hide there, rounded down.
        rest: what others do not hide at all.
        beyond: excess at ratios that are larger than all of these; `above` takes it as not hidden.
    """

    low: FloatArray
    high: FloatArray
    excess: FloatArray
    hidden: FloatArray
    rest: float
    beyond: float = 0.0

    def above(self) -> Decomposition:
        """Every cell's mass on its two ends, with the mean of the ratios kept."""
        top, bottom = np.expm1(self.high), np.expm1(self.low)
        span = np.where(top > bottom, top - bottom, 1.0)
        upper = np.where(top > bottom, (self.excess - self.hidden * bottom) / span, self.hidden)
        lower = np.maximum(self.hidden - upper, 0.0)
        return self._mirrored(np.append(self.high, self.low), np.append(upper, lower), self.beyond)

    def below(self) -> Decomposition:
        """Every cell's mass at the mean of its ratios."""
        hidden = self.hidden * (1 + 2 * ROUGH)
        return self._mirrored(np.log1p(self.excess / hidden), hidden, 0.0)

    def _mirrored(self, t: FloatArray, c: FloatArray, bare: float) -> Decomposition:
        """Components of ratios `exp(t) : 1 : 1`, one that is not hidden, the same for the other value, and
        what both share."""
        gap, shared = c * np.expm1(t), max(1 - self.rest - 2 * float(c.sum()), 0.0)
        ends = [bare, 0.0] if bare else []
        a = np.concatenate([c + gap, c, [shared], ends])
        b = np.concatenate([c, c + gap, [shared], ends[::-1]])
        hidden = np.concatenate([c, c, [shared], np.zeros(len(ends))])
        difference = np.concatenate([gap, -gap, [0.0], [bare, -bare] if bare else []])
        total = float(a.sum())  # 1 but for rounding
        return Decomposition(a / total, b / total, hidden, difference, self.rest).merged()


def integrated(density: Callable[[FloatArray], FloatArray], ends: FloatArray) -> FloatArray:
    """Integrals over the cells between ascending ends, shape (cells,)."""
    half, (nodes, weights) = np.diff(ends)[:, None] / 2, _gauss()
    places = ends[:-1, None] + half * (1 + nodes)
    return np.asarray((density(places) * weights * half).sum(axis=1), dtype=np.float64)


@functools.cache
def _gauss() -> tuple[FloatArray, FloatArray]:
    """Returns the nodes and weights of Gauss and Legendre between -1 and 1, shape (nodes,)."""
    return np.polynomial.legendre.leggauss(_NODES_OF_CELL)


@dataclass(frozen=True, kw_only=True)
class BoundedLaplace(DecomposedRandomizer):
    """Any value in an interval, with Laplace noise whose scale is the interval's length over `epsilon0`.

    On `[-B, B]` with noise of scale b, epsilon0 is `2B/b`. Values that are 0 or 1 only are `laplace`.

    Guarantee: the bound holds for all pairs of values in the interval, whatever values the others hold.
    Source: docs/theory/randomizers.md, R12.
    """

    kind = "bounded_laplace"

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: on a grid that is as fine as one round needs."""
        return self._on_grid(_CELLS)

    def coarser(self, most: int) -> Components:
        """See `DecomposedRandomizer.coarser`."""
        # Either arm has the ends of its cells and one more.
        return self._on_grid(max(min(most // 2 - 2, _CELLS), 1))

    def _on_grid(self, cells: int) -> Components:
        found = self._cells(cells)
        return Components((Bracket(found.above(), found.below()),), ())

    def _cells(self, cells: int) -> Cells:
        e = self.epsilon0
        # y from 0 to the middle, with the ratio exp(epsilon0 (1 - y)); all y below 0 have the ratio of y = 0.
        y = np.linspace(0.0, 0.5, cells + 1)

        def excess(at: FloatArray) -> FloatArray:
            return np.asarray(e / 2 * np.exp(-e * at) * -np.expm1(-e * (1 - 2 * at)))

        def hidden(at: FloatArray) -> FloatArray:
            return np.asarray(excess(at) / np.expm1(e * (1 - at)))

        t = e * (1 - y)
        return Cells(
            low=np.append(e, t[1:]),
            high=np.append(e, t[:-1]),
            excess=np.append(-math.expm1(-e) / 2, integrated(excess, y)),
            hidden=np.append(math.exp(-e) / 2, integrated(hidden, y) * (1 - ROUGH)),
            rest=-math.expm1(-e / 2),
        )

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`: the ends of the interval."""
        return Laplace(epsilon0=self.epsilon0).witnesses()


@dataclass(frozen=True, kw_only=True)
class _DisjointSupports(OnePair):
    """A value in `[-1, 1]` that makes some outputs `e` times as likely, of which the ends share none."""

    @abstractmethod
    def _masses(self) -> tuple[float, float]:
        """What others hide of the outputs of one end, and of those of neither."""

    def _pair(self) -> Decomposition:
        p, rest = self._masses()
        rise = math.expm1(self.epsilon0)
        a = [(1 + rise) * p, p, rest]
        return Decomposition.exchanged(a, [p, p, rest], gap=rise * p, rest=rise * p)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`: the ends, of which all others hold the second."""
        return witnesses.of_disjoint(*self._masses(), self.epsilon0)


@dataclass(frozen=True, kw_only=True)
class Duchi(_DisjointSupports):
    """The mean of values in `[-1, 1]` by one bit each: 1 with probability `1/2 + x (e - 1)/(2 (e + 1))`.

    Source: Duchi, Jordan, Wainwright, "Minimax Optimal Procedures for Locally Private Estimation"; all
        pairs of values: docs/theory/randomizers.md, R15.
    """

    kind = "duchi"

    @property
    def bit_law(self) -> BitLaw:
        """See `DecomposedRandomizer.bit_law`: the laws of all values are mixtures of those of the ends."""
        return BitLaw.of_response(self.epsilon0)

    def _masses(self) -> tuple[float, float]:
        return 1 / (math.exp(self.epsilon0) + 1), 0.0


@dataclass(frozen=True, kw_only=True)
class Piecewise(_DisjointSupports):
    """The piecewise mechanism: for a value in `[-1, 1]` a number near it, in a window of outputs that are
    `e` times as likely as all others.

    Source: Wang et al., "Collecting and Analyzing Multidimensional Data with Local Differential Privacy"
        (2019), Algorithm 2; all pairs of values: docs/theory/randomizers.md, R15.
    """

    kind = "piecewise"

    def _masses(self) -> tuple[float, float]:
        root = math.exp(self.epsilon0 / 2)
        p = 1 / (root * (root + 1))
        return p, math.expm1(self.epsilon0 / 2) * p

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`: the ends, of which all others hold the middle, or the second. The
        middle shares no output with the ends from `epsilon0 = 2 log 2` on."""
        return witnesses.of_windows(*self._masses(), self.epsilon0)
