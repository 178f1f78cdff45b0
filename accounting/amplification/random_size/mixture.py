"""The mixture of profiles over every number of honest users that a secret sample may contain."""

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

# Numbers more than this many deviations away from those that matter most are put in groups of this width, in
# deviations. Wider groups: faster, looser bounds.
_WIDE_GROUP_FROM, _WIDE_GROUP = 4.0, 0.15
# `-log` of the smallest delta that is answered precisely. At small deltas larger numbers matter more, by up
# to this many deviations.
_DEEPEST_LOG_DELTA, _MOST_SHIFT = 70.0, 5.0
# A table's orders reach as far as numbers this many deviations below the typical one need.
_DEVIATIONS_COVERED = 6.0
# At most this many orders get a table for their own range, if the first is below this share of the order at
# which the typical number's profile ends.
_FEW_ORDERS, _SHARE_OF_END = 32, 0.9


class Numbers(NamedTuple):
    """The law of the number of honest users in a sample, neighbouring numbers in groups; arrays of shape
    (groups,).

    Attributes:
        counts: the smallest number of every group, and one number beyond the last group.
        weight: probability of each group.
        most: largest number of each group.
        mean: mean number of each group.
        deviation: standard deviation of the number.
    """

    counts: Counts
    weight: FloatArray
    most: FloatArray
    mean: FloatArray
    deviation: float

    @classmethod
    def of(cls, numbers: FloatArray, masses: FloatArray, *, finest: float) -> Numbers:
        """Groups consecutive numbers with the probabilities `masses`; groups have about the relative width
        `finest` where the numbers matter most."""
        total = masses.sum()
        centre = float((masses * numbers).sum() / total)
        deviation = math.sqrt(float((masses * (numbers - centre) ** 2).sum() / total))
        stride = max(1, int(finest * centre))
        wide = max(stride, int(_WIDE_GROUP * deviation))
        # At small deltas larger numbers matter more.
        shift = min(_DEEPEST_LOG_DELTA * deviation / centre, _MOST_SHIFT)
        ends = centre - _WIDE_GROUP_FROM * deviation, centre + (_WIDE_GROUP_FROM + shift) * deviation
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
        """Yields the smallest number of every group, its probability, its largest number and its mean."""
        columns = self.counts.values[:-1].astype(np.float64), self.weight, self.most, self.mean
        return zip(*(one.tolist() for one in columns), strict=True)

    def orders(self, excess: FloatArray, honest: int) -> tuple[float, float]:
        """Returns the range (first, last) of orders minus one that a table must cover for a mixture at these
        orders.

        Numbers much smaller than the typical one need orders beyond; there a table's last value bounds them.
        """
        least = max(self.counts.typical - _DEVIATIONS_COVERED * self.deviation, 1.0)
        return float(excess[0]) * honest / self.counts.last, float(excess[-1]) * honest / least


class EveryNumber:
    """The mixture over all numbers of honest users, from tables of all their profiles.

    Args:
        numbers: the law of the number of honest users in the sample.
        honest: number of honest users in the population.
        last: the largest order, minus one, of a question about many orders.
        end: the order, minus one, from which on all profiles are 0.
        table: returns the profiles of every number at orders between two given ones; None if a table does not
            pay.
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
        """Returns whether there is a table for all orders."""
        return self._whole is not None

    def bounds(self, excess: FloatArray) -> ProfileBounds | None:
        """Returns bounds on `sum over j of P(j) s H^(j)(1 + excess/s)`, `s = j/honest`, each of the shape of
        `excess` (ascending); None if there is no table.

        Guarantee: they hold although the orders are off by a few roundings; the round-off of the sum itself
        is
            not included.
        """
        # A few orders near each other get a separate table, except near the end of the profiles: there only
        # numbers far from the typical one contribute.
        if excess.size > _FEW_ORDERS or "_whole" in self.__dict__:
            table = self._whole
        elif excess[0] * self._honest < _SHARE_OF_END * self._numbers.counts.typical * self._end:
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
            # At a fixed number, `s H(1 + excess/s)` is convex in the rate s: its mean is at most that of its
            # chord, and at least its value at the mean rate.
            share = (mean - fewest) / (most - fewest)
            for number, part in ((fewest, 1 - share), (most, share)):
                rate = number / self._honest
                upper += weight * part * rate * table.above(row, excess / rate)
            rate = mean / self._honest * (1 - 1e-15)
            lower += weight * rate * table.below(row + 1, excess / rate)
        return ProfileBounds(upper, lower)
