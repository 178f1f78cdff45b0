"""The number of honest users in a secret sample, and the mixture of profiles over that number.

If j of the population's H honest users were sampled, the profile at order `1 + excess` is
`s H^(j)(1 + excess/s)` with `s = j/H`. The counts j are put in cells. Within a cell `H^(j)` falls with j, so
the ends bound it. The remaining function is convex in s: its mean is at most that of its chord, and at least
its value at the mean count. `docs/theory.md` has the proofs.
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

# Questions with more orders than this use chords between evaluated orders for the ends of cells.
_CHORDS_FROM = 100
# Widest cell near the counts that matter most, in deviations of the count; cells far out are wider.
_WIDEST_CELL = 0.5
# `-log` of the smallest delta that is answered precisely. At small deltas larger counts matter more, by up to
# this many deviations.
_DEEPEST_LOG_DELTA = 70.0
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
        """Makes the cell of consecutive counts from `fewest` on with these probabilities, shape (counts,)."""
        weight, most = float(masses.sum()), fewest + masses.size - 1
        mean = fewest + float((masses * np.arange(masses.size)).sum()) / weight
        return cls(weight=weight, fewest=fewest, most=most, mean=min(mean, float(most)), masses=masses)

    @property
    def halves(self) -> tuple[Cell, Cell]:
        """Returns two cells: the smaller and the larger counts."""
        half = self.masses.size // 2
        return Cell.of(self.fewest, self.masses[:half]), Cell.of(self.fewest + half, self.masses[half:])

    @property
    def is_single(self) -> bool:
        """Returns whether the cell holds a single count."""
        return self.fewest == self.most


#: Returns bounds on `H^(j)` at some orders, given a cell and j: precise ones only for cells of large weight.
BaseBounds = Callable[[Cell, int, FloatArray], ProfileBounds]


def mixture(
    cells: list[Cell], honest: int, base: BaseBounds, excess: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns upper and lower bounds on `sum over j of P(j) s H^(j)(1 + excess/s)`, `s = j/honest`, over the
    counts j of every cell, for ascending `excess`, each of shape (cells, orders). The round-off of the sums
    is not included."""
    upper, lower = (np.zeros((len(cells), excess.size)) for _ in range(2))
    between = excess.size > _CHORDS_FROM and excess[0] == 0
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
        # The first count of the next cell also gives a valid lower bound, and is evaluated only once.
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
    """Returns the value, at a cell's mean rate, of the chord between its ends: the upper bound, shape
    (orders,).

    Args:
        known: a count, orders minus one, and upper bounds there, from which the ends' values are
            interpolated; None to evaluate them.
    """
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
    """Returns the possible positive counts of honest users in the sample and their probabilities, each of
    shape (counts,); counts of total probability below `NEGLIGIBLE_DELTA` are left out.

    The window is Hoeffding's for sampling without replacement. The masses are computed from the ratios of
    neighbours, so that no large logarithms are subtracted.
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
    """Divides the counts into cells.

    Args:
        counts, masses: consecutive counts and their probabilities, shape (counts,).
        finest: relative width of cells at the counts that matter most; cells grow where they weigh less.
        narrowest: least width of a cell, in deviations of the count.
    """
    centre = float((masses * counts).sum() / masses.sum())
    deviation = math.sqrt(float((masses * (counts - centre) ** 2).sum() / masses.sum()))
    shift = min(_DEEPEST_LOG_DELTA * deviation / max(centre, 1.0), _MOST_SHIFT)
    cells, start = [], 0
    while start < counts.size:
        away = (counts[start] - centre) / max(deviation, 1e-9)
        away = max(-away, away - shift, 0.0)
        fine = max(finest * counts[start], narrowest * deviation)
        limit = max(fine, _WIDEST_CELL * deviation * max(1.0, away - 3.0))
        width = max(1, math.floor(min(fine * math.exp(min(away * away / 4, 50.0)), limit)))
        stop = min(start + width, counts.size)
        cells.append(Cell.of(int(counts[start]), masses[start:stop]))
        start = stop
    return cells
