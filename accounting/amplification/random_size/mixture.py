"""The mixture of profiles over every number of honest users that a secret sample may have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.random_size.contour import Counts, Run
from shuffle_ledger.accounting.amplification.random_size.tables import CountTable
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Groups are wide, in deviations, of numbers that are so many deviations away from the mean, or from where
# they matter most at the smallest delta that is answered precisely, whose logarithm this is.
_WIDE_IN_DEVIATIONS, _AWAY, _MOST_SHIFT = 0.15, 4.0, 5.0
_DEEPEST = 70.0
# How many deviations numbers may be below the typical one before their orders are beyond a table.
_BELOW = 6.0
_FEW_ORDERS, _INSIDE = 32, 0.9


class Numbers(NamedTuple):
    """Numbers of honest users in a sample, some next to each other as one group; arrays of shape (groups,).

    Attributes:
        counts: the smallest number of every group, and one that is beyond the last group's numbers.
        weight: probability of a group.
        most: its largest number.
        mean: its mean.
        deviation: of all numbers.
    """

    counts: Counts
    weight: FloatArray
    most: FloatArray
    mean: FloatArray
    deviation: float

    @classmethod
    def of(cls, numbers: FloatArray, masses: FloatArray, *, finest: float) -> Numbers:
        """Consecutive numbers with these probabilities, in groups of about this relative width where they
        weigh most."""
        total = masses.sum()
        centre = float((masses * numbers).sum() / total)
        deviation = math.sqrt(float((masses * (numbers - centre) ** 2).sum() / total))
        stride = max(1, int(finest * centre))
        wide = max(stride, int(_WIDE_IN_DEVIATIONS * deviation))
        # At small deltas larger numbers matter more.
        shift = min(_DEEPEST * deviation / centre, _MOST_SHIFT)
        ends = centre - _AWAY * deviation, centre + (_AWAY + shift) * deviation
        first, last = int(numbers[0]), int(numbers[-1])
        runs = []
        for end, step in ((ends[0], wide), (ends[1], stride), (last + 1, wide)):
            size = max(0, -(-(min(math.ceil(end), last + 1) - first) // step))
            if size:
                runs.append(Run(first, step, size))
            first += step * size
        runs.append(Run(first, 1, 1))
        counts = Counts(tuple(runs), round(centre))
        starts = counts.values[:-1] - int(numbers[0])
        weight, mean = (
            np.add.reduceat(masses, starts),
            np.add.reduceat(masses * (numbers - numbers[0]), starts),
        )
        most = np.minimum(counts.values[1:] - 1.0, last)
        with np.errstate(invalid="ignore"):
            mean = np.where(weight > 0, mean / weight, 0.0) + numbers[0]
        return cls(counts, weight, most, np.clip(mean, numbers[starts], most), deviation)

    @property
    def groups(self) -> Iterator[tuple[float, float, float, float]]:
        """The smallest number of every group, its probability, its largest number and its mean."""
        columns = self.counts.values[:-1].astype(np.float64), self.weight, self.most, self.mean
        return zip(*(one.tolist() for one in columns), strict=True)

    def orders(self, excess: FloatArray, honest: int) -> tuple[float, float]:
        """The range of orders minus one at which profiles are asked for, given those of the mixture,
        ascending; numbers that are much smaller than the typical one are asked for beyond."""
        least = max(self.counts.typical - _BELOW * self.deviation, 1.0)
        return float(excess[0]) * honest / self.counts.last, float(excess[-1]) * honest / least


class EveryNumber:
    """The mixture over all numbers, where profiles of all are known at once.

    Args:
        numbers: how many honest users there may be in the sample.
        honest: how many there are altogether.
        last: the largest order, less one, that many are asked for up to.
        end: the order, less one, from which on all profiles are 0.
        table: profiles of every number at orders from one to another; None where that is not worthwhile.
    """

    def __init__(
        self,
        numbers: Numbers,
        honest: int,
        last: float,
        end: float,
        table: Callable[[Counts, float, float], CountTable | None],
    ) -> None:
        self._numbers, self._honest, self._table = numbers, honest, table
        self._last, self._end = last, end

    @functools.cached_property
    def _whole(self) -> CountTable | None:
        return self._of(np.array([0.0, self._last]))

    def _of(self, excess: FloatArray) -> CountTable | None:
        first, last = self._numbers.orders(excess, self._honest)
        return self._table(self._numbers.counts, first, last)

    @property
    def is_known(self) -> bool:
        """Whether there is a table for all orders."""
        return self._whole is not None

    def bounds(self, excess: FloatArray) -> ProfileBounds | None:
        """Bounds, before round-off of the sum, on `sum of weight * s H^(j)(1 + excess/s)`, `s = j/honest`,
        each of the shape of `excess` (ascending), where the orders may be off by a few roundings; None where
        there is no table."""
        # A few orders near each other are worth a table of their own, but where profiles end: there numbers
        # far from the typical one are all that counts.
        if excess.size > _FEW_ORDERS or "_whole" in self.__dict__:
            table = self._whole
        elif excess[0] * self._honest < _INSIDE * self._numbers.counts.typical * self._end:
            table = self._of(excess)
        else:
            return None
        return None if table is None else self._mixture(table, excess)

    def _mixture(self, table: CountTable, excess: FloatArray) -> ProfileBounds:
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        for row, (fewest, weight, most, mean) in enumerate(self._numbers.groups):
            if most == fewest:
                rate = fewest / self._honest
                upper += weight * rate * table.above(row, excess / rate)
                lower += weight * rate * table.below(row, excess / rate)
                continue
            # What is left of a number's profile is convex in the rate: at most its chord, and at least on
            # average its value at the mean.
            share = (mean - fewest) / (most - fewest)
            for number, part in ((fewest, 1 - share), (most, share)):
                rate = number / self._honest
                upper += weight * part * rate * table.above(row, excess / rate)
            rate = mean / self._honest * (1 - 1e-15)
            lower += weight * rate * table.below(row + 1, excess / rate)
        return ProfileBounds(upper, lower)
