"""The number of honest users in a secret sample, and the mixture of profiles over that number.

If j of the population's H honest users were sampled, the profile at order `1 + excess` is
`s H^(j)(1 + excess/s)` with `s = j/H`. The numbers j are put in cells. Within a cell `H^(j)` falls with j, so
the ends bound it. The remaining function is convex in s: its mean is at most that of its chord, and at least
its value at the mean number. The proofs are in docs/theory/rounds-and-samples.md, S2.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import FloatArray, running_sums
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# Questions with more orders than this use chords between evaluated orders for the ends of cells.
_CHORDS_FROM = 7
# Cells further than this many deviations from the numbers that matter most are wider: by the second number of
# deviations for each deviation more.
_WIDER_FROM, _WIDENING = 3.0, 0.2
# If there are at most this many numbers, each has its own cell: few reports differ much by one more.
_FEW_NUMBERS = 40
# `-log` of the smallest delta that is answered precisely. At small deltas larger numbers matter more, by up
# to this many deviations.
_DEEPEST_LOG_DELTA, _MOST_SHIFT = 70.0, 5.0


@dataclass(frozen=True, kw_only=True)
class NumberCell:
    """Numbers of honest reports from `fewest` to `most`, of probability `weight`, and their mean."""

    weight: float
    fewest: int
    most: int
    mean: float

    @classmethod
    def of(cls, fewest: int, masses: FloatArray) -> NumberCell:
        """Makes the cell of consecutive numbers from `fewest` on with these probabilities, shape
        (numbers,)."""
        weight, most = float(masses.sum()), fewest + masses.size - 1
        mean = fewest + float((masses * np.arange(masses.size)).sum()) / weight
        return cls(weight=weight, fewest=fewest, most=most, mean=min(mean, float(most)))

    @property
    def ends(self) -> list[tuple[int, float]]:
        """Returns the smallest and the largest number with shares by which they have the cell's mean; a
        single number once."""
        if self.fewest == self.most:
            return [(self.fewest, 1.0)]
        share = (self.mean - self.fewest) / (self.most - self.fewest)
        return [(self.fewest, 1 - share), (self.most, share)]


def mixture(
    cells: list[NumberCell], honest: int, base: MechanismProfile, excess: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns upper and lower bounds on `sum over j of P(j) s H^(j)(1 + excess/s)`, `s = j/honest`, over the
    numbers j of all cells, for ascending `excess`, each of shape (orders,). The round-off of the sums is not
    included.

    Args:
        cells: cells of numbers, ascending.
        honest: number of honest users in the population.
        base: bounds on `H^(j)`.
        excess: orders minus one, ascending, shape (orders,).
    """
    upper, lower = np.zeros_like(excess), np.zeros_like(excess)
    between = len(cells) > 1 and excess.size > _CHORDS_FROM and excess[0] == 0
    last: tuple[int, FloatArray, FloatArray] | None = None
    for cell, after in itertools.zip_longest(cells, cells[1:]):
        # Orders are quotients. These are not smaller than the exact ones, which lower bounds allow.
        rate = cell.mean / honest * (1 - 1e-15)
        orders = excess / rate
        if between:
            if last is None or last[0] != cell.fewest:
                last = (cell.fewest, orders, base.bounds(cell.fewest, orders).upper)
            upper += cell.weight * _chord(cell, honest, excess, last)
            # The first number of the next cell also gives a valid lower bound, and is evaluated only once.
            number = cell.most + 1 if after is not None and cell.fewest < cell.most else cell.most
            found = base.bounds(number, orders)
            lower += cell.weight * rate * found.lower
            last = (number, orders, found.upper)
            continue
        for number, share in cell.ends:
            end = number / honest
            found = (base.bounds if end == 1 else base.near)(cell.fewest, excess / end)
            upper += cell.weight * share * end * found.upper
            if cell.fewest == cell.most:
                lower += cell.weight * end * found.lower
        if cell.fewest < cell.most:
            lower += cell.weight * rate * base.near(cell.most, orders).lower
    return upper, lower


def _chord(
    cell: NumberCell, honest: int, excess: FloatArray, known: tuple[int, FloatArray, FloatArray]
) -> FloatArray:
    """Returns the value, at a cell's mean rate, of the chord between its ends: the upper bound, shape
    (orders,).

    Args:
        known: the cell's smallest number, orders minus one, and upper bounds there, from which the ends'
            values are interpolated.
    """
    result = np.zeros_like(excess)
    for number, share in cell.ends:
        rate = number / honest
        result += share * rate * np.interp(excess / rate * (1 - 1e-15), known[1], known[2])
    return result


def numbers_in_sample(population: int, honest: int, sample: int) -> tuple[FloatArray, FloatArray]:
    """Returns the possible positive numbers of honest users in the sample and their probabilities, each of
    shape (numbers,); numbers of total probability below `NEGLIGIBLE_DELTA` are left out.

    The window is Hoeffding's for sampling without replacement. The masses are computed from the ratios of
    neighbours, so that no large logarithms are subtracted.
    """
    half = math.sqrt(sample * -math.log(NEGLIGIBLE_DELTA / 4) / 2) + 1
    mean = sample * honest / population
    low = max(0, sample + honest - population, math.floor(mean - half))
    high = min(sample, honest, math.ceil(mean + half))
    numbers = np.arange(low, high + 1, dtype=np.float64)
    j = numbers[:-1]
    ratios = (honest - j) / (j + 1) * ((sample - j) / (population - honest - sample + j + 1))
    log_masses = running_sums(np.log(ratios))
    masses = np.exp(log_masses - log_masses.max())
    kept = masses > NEGLIGIBLE_DELTA * 1e-6
    numbers, masses = numbers[kept], masses[kept] / math.fsum(masses[kept])
    return numbers[numbers > 0], masses[numbers > 0]


def number_cells(population: int, honest: int, sample: int, *, width: float) -> list[NumberCell]:
    """Returns the positive numbers of honest users in a sample in cells, ascending, of at least one number
    each.

    Args:
        population, honest, sample: numbers of users, of honest users, and of users in the sample.
        width: width of cells at the numbers that matter most, in deviations of the number.
    """
    numbers, masses = numbers_in_sample(population, honest, sample)
    centre = float((masses * numbers).sum() / masses.sum())
    deviation = math.sqrt(float((masses * (numbers - centre) ** 2).sum() / masses.sum()))
    shift = min(_DEEPEST_LOG_DELTA * deviation / max(centre, 1.0), _MOST_SHIFT)
    cells, start = [], 0
    while start < numbers.size:
        away = (numbers[start] - centre) / max(deviation, 1e-9)
        away = max(-away, away - shift)
        most = math.floor(max(width, _WIDENING * (away - _WIDER_FROM)) * deviation)
        stop = start + (max(1, most) if numbers.size > _FEW_NUMBERS else 1)
        cells.append(NumberCell.of(int(numbers[start]), masses[start:stop]))
        start = stop
    return cells
