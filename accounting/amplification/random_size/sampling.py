"""How many honest users are in a secret sample, and the mixture of profiles that this makes.

Given that j honest users of the population's H were sampled, the profile at order `1 + excess` is
`s H^(j)(1 + excess/s)`, `s = j/H`. In a cell of counts H^(j), which falls with j, is bounded by the cell's
ends, and the rest is convex in s: at most its chord, and on average at least its value at the mean.
`docs/theory.md` has the proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shuffle_ledger.accounting.numeric.arrays import FloatArray, running_sums
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# Beyond so many orders, those in between are bounded by chords instead of being evaluated.
_MANY_ORDERS = 100
# Cells are wider where they weigh less, up to so many deviations, more than that only far out.
_WIDEST_IN_DEVIATIONS = 0.5
# Logarithm of the smallest delta that is answered precisely: there larger counts matter more.
_DEEPEST = 70.0
_MOST_SHIFT = 5.0


@dataclass(frozen=True, kw_only=True)
class SamplingTerm:
    """Rounds in which between `fewest` and `most` honest reports were sampled, with probability `weight`."""

    weight: float
    fewest: int
    most: int
    lower_rate: float
    upper_rate: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Counts from `fewest` to `most`, of probability `weight`, their mean, and the probability of each, shape
    (counts,)."""

    weight: float
    fewest: int
    most: int
    mean: float
    masses: FloatArray

    @classmethod
    def of(cls, fewest: int, masses: FloatArray) -> Cell:
        """Consecutive counts from `fewest` on with these probabilities, shape (counts,)."""
        weight, most = float(masses.sum()), fewest + masses.size - 1
        mean = fewest + float((masses * np.arange(masses.size)).sum()) / weight
        return cls(weight=weight, fewest=fewest, most=most, mean=min(mean, float(most)), masses=masses)

    @property
    def halves(self) -> tuple[Cell, Cell]:
        """The two cells of its smaller and of its larger counts."""
        half = self.masses.size // 2
        return Cell.of(self.fewest, self.masses[:half]), Cell.of(self.fewest + half, self.masses[half:])

    @property
    def is_single(self) -> bool:
        """Whether the count is certain."""
        return self.fewest == self.most


#: Bounds on `H^(j)` at some orders, as sharp as the cell is worth.
BaseBounds = Callable[[Cell, int, FloatArray], ProfileBounds]


def mixture(
    cells: list[Cell], honest: int, base: BaseBounds, excess: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds, before round-off, on `sum of mass * s H^(j)(1 + excess/s)`, `s = j/honest`, over the counts j
    of every cell, for ascending `excess`, each of shape (cells, orders)."""
    upper, lower = (np.zeros((len(cells), excess.size)) for _ in range(2))
    between = excess.size > _MANY_ORDERS and excess[0] == 0
    last: tuple[int, FloatArray, FloatArray] | None = None
    for place, (cell, after) in enumerate(itertools.zip_longest(cells, cells[1:])):
        rate = cell.mean / honest * (1 - 1e-15)
        if cell.is_single:
            rate = cell.fewest / honest
            found = base(cell, cell.fewest, excess / rate)
            upper[place] = cell.weight * rate * found.upper
            lower[place] = cell.weight * rate * found.lower
            last = None
            continue
        orders = excess / rate
        if not between:
            last = None
        elif last is None or last[0] != cell.fewest:
            last = (cell.fewest, orders, base(cell, cell.fewest, orders).upper)
        upper[place] = cell.weight * _chord(cell, honest, base, excess, last)
        # The next cell's first count is as good a lower bound, and serves there too.
        shared = between and after is not None and not after.is_single
        shared = shared and after.fewest == cell.most + 1
        count = after.fewest if shared and after is not None else cell.most
        found = base(cell, count, orders)
        lower[place] = cell.weight * rate * found.lower
        last = (count, orders, found.upper)
    return upper, lower


def _chord(
    cell: Cell,
    honest: int,
    base: BaseBounds,
    excess: FloatArray,
    known: tuple[int, FloatArray, FloatArray] | None,
) -> FloatArray:
    """The chord over a cell's rates at its mean; values at orders that are not known are bounded by chords
    between those that are."""
    share = (cell.mean - cell.fewest) / (cell.most - cell.fewest)
    result = np.zeros_like(excess)
    for count, weight in ((cell.fewest, 1 - share), (cell.most, share)):
        rate = count / honest
        if known is None:
            values = base(cell, cell.fewest, excess / rate).upper
        else:
            values = np.interp(excess / rate * (1 - 1e-15), known[1], known[2])
        result += weight * rate * values
    return result


def counts_in_sample(population: int, honest: int, sample: int) -> tuple[FloatArray, FloatArray]:
    """Counts of honest users in the sample, from 1, and their probabilities, but for a mass below
    `NEGLIGIBLE_DELTA`.

    The window is Hoeffding's for sampling without replacement; the masses follow by ratios from the mode, so
    that no large logarithms are subtracted.
    """
    half = math.sqrt(sample * -math.log(NEGLIGIBLE_DELTA / 4) / 2) + 1
    mean = sample * honest / population
    low = max(0, sample + honest - population, math.floor(mean - half))
    high = min(sample, honest, math.ceil(mean + half))
    counts = np.arange(low, high + 1, dtype=np.float64)
    j = counts[:-1]
    ratios = (honest - j) / (j + 1) * ((sample - j) / (population - honest - sample + j + 1))
    log_masses = running_sums(np.log(ratios))
    masses = np.exp(log_masses - log_masses.max())
    kept = masses > NEGLIGIBLE_DELTA * 1e-6
    counts, masses = counts[kept], masses[kept] / math.fsum(masses[kept])
    return counts[counts > 0], masses[counts > 0]


def sampling_cells(
    counts: FloatArray, masses: FloatArray, *, finest: float, narrowest: float = 0.0
) -> list[Cell]:
    """Cells of counts: of the relative width `finest`, or so many deviations if that is more, where they
    weigh most, wider where less."""
    centre = float((masses * counts).sum() / masses.sum())
    deviation = math.sqrt(float((masses * (counts - centre) ** 2).sum() / masses.sum()))
    shift = min(_DEEPEST * deviation / max(centre, 1.0), _MOST_SHIFT)
    cells, start = [], 0
    while start < counts.size:
        away = (counts[start] - centre) / max(deviation, 1e-9)
        away = max(-away, away - shift, 0.0)
        fine = max(finest * counts[start], narrowest * deviation)
        limit = max(fine, _WIDEST_IN_DEVIATIONS * deviation * max(1.0, away - 3.0))
        width = max(1, math.floor(min(fine * math.exp(min(away * away / 4, 50.0)), limit)))
        stop = min(start + width, counts.size)
        cells.append(Cell.of(int(counts[start]), masses[start:stop]))
        start = stop
    return cells
