"""Profiles of reports that hide among unequal others: each of these is of one common law with a probability
of its group, and the number that are is a sum of independent binomials.

Let W be a law of reports, and `R(x) >= share W` for every input x of a user's randomizer R. At the order r
the divergence of the shuffled reports is at most

    sum over m of P(M = m) phi(m + 1),   phi(k) = E[(G_1 + ... + G_k)_+] / k,   G = r0(Y) - r r1(Y),

with r0 and r1 the differing user's densities relative to W, the `Y` of law W, and M the sum of a binomial of
each group's number of others and its share. phi falls, so fewer others bound it from above. The proofs are in
docs/theory/amplification.md, A10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import TINY, FloatArray, IndexArray, running_sums
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# Numbers of each group are rounded to multiples of a stride; all strides together are about this share of the
# mean number of all. Larger: fewer numbers to bound, wider intervals.
_STRIDES_SHARE = 1e-3
# Cells begin at these numbers, in deviations above the mean: fewer reports have a larger profile. With more
# cells bounds are closer, and take time in proportion.
_ENDS = (-8.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0)
_MOST_SINGLE = 24  # largest number of numbers that have a cell each
_MOST_CRUDE = 4  # cells of a crude bound
# Relative room for the round-off of probabilities.
_MASS_ROOM = 1e-8
_CRUDE_ROOM = 1e-3  # added to the logarithm of a crude bound, for its round-off


class Others(NamedTuple):
    """Other reports of one group: their number, and the probability with which one of them is of the common
    law, rounded down; 1 means certainly."""

    reports: int
    share: float


class Hiding(NamedTuple):
    """The law of the number of reports that hide together, the differing user's among them, in cells.

    Attributes:
        counts: least numbers of all cells, ascending, and behind the last cell a number above all, shape
            (cells + 1,).
        weight: probability of every cell, shape (cells,); a negligible probability is left out.
        most: position in `counts` of a number that is at least a cell's largest one, shape (cells,).
    """

    counts: IndexArray
    weight: FloatArray
    most: IndexArray

    @classmethod
    def of(cls, others: Sequence[Others]) -> Hiding:
        """Computes the law for independent others; each group's number is rounded down to a multiple of a
        stride, for the least numbers of cells."""
        kept = [one for one in others if one.reports and one.share > 0]
        mean = 1 + math.fsum(one.reports * one.share for one in kept)
        stride = max(1, math.floor(_STRIDES_SHARE * mean / max(len(kept), 1)))
        first, masses = 0, np.ones(1)
        for one in kept:
            begin, found = _binomial(one.reports, one.share)
            lowest = begin // stride
            cells = np.bincount((begin + np.arange(found.size)) // stride - lowest, weights=found)
            first, masses = first + lowest, np.convolve(masses, cells)
        starts = _starts(masses)
        numbers = 1 + stride * (first + np.append(starts, masses.size))
        # A number is above the least one of its cell by the strides that were rounded off.
        last = numbers[1:] - stride + len(kept) * (stride - 1)
        counts = np.append(numbers[:-1], last[-1] + 1)
        most = np.searchsorted(counts, last)
        return cls(counts, np.add.reduceat(masses, starts), most)

    def coarser(self, most: int) -> Hiding:
        """Returns the law in about `most` cells."""
        together = -(-self.weight.size // most)
        starts = np.arange(0, self.weight.size, together)
        counts = np.append(self.counts[:-1][starts], self.counts[-1])
        last = self.counts[np.maximum.reduceat(self.most, starts)]
        return Hiding(counts, np.add.reduceat(self.weight, starts), np.searchsorted(counts, last))


def _starts(masses: FloatArray) -> IndexArray:
    """Returns the beginnings of cells of consecutive numbers, given their probabilities."""
    place = np.arange(masses.size)
    if masses.size <= _MOST_SINGLE:
        return place
    centre = float(masses @ place)
    deviation = math.sqrt(float(masses @ (place - centre) ** 2))
    ends = np.clip(np.round(centre + np.array(_ENDS) * deviation), 0, masses.size - 1)
    return np.unique(np.append(0, ends)).astype(np.int64)


def _binomial(count: int, share: float) -> tuple[int, FloatArray]:
    """Returns the least of consecutive numbers and their probabilities, for `count` trials; numbers of total
    probability below `NEGLIGIBLE_DELTA` are left out, by Bernstein's inequality.

    Ratios of neighbours give the masses, so that no large logarithms are subtracted.
    """
    if share == 1:
        return count, np.ones(1)
    far = -math.log(NEGLIGIBLE_DELTA / 16)
    half = far / 3 + math.sqrt(far * far / 9 + 2 * far * count * share * (1 - share)) + 1
    low = max(0, math.floor(count * share - half))
    high = min(count, math.ceil(count * share + half))
    numbers = np.arange(low, high, dtype=np.float64)
    logs = running_sums(np.log((count - numbers) / (numbers + 1) * (share / (1 - share))))
    masses = np.exp(logs - logs.max())
    return low, masses / math.fsum(masses)


class CrowdProfile(MechanismProfile):
    """The profile of a user's report among others whose number that hide it is random.

    Args:
        base: the profile phi of k reports, of which all others are of the common law.
        hiding: the law of k.

    Guarantee: upper and lower bounds on `sum over k of P(k) phi(k)`, which is at least the divergence of any
        neighbouring datasets that differ in that user. The number of honest reports is not used.
    Source: docs/theory/amplification.md, A10.
    """

    def __init__(self, base: MechanismProfile, hiding: Hiding) -> None:
        self.largest_loss = base.largest_loss
        self._base, self._hiding = base, hiding

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        found = [self._base.bounds(count, excess) for count in self._hiding.counts.tolist()]
        above, below = (np.array(side) for side in zip(*found, strict=True))
        upper = self._hiding.weight @ above[:-1] * (1 + _MASS_ROOM) + NEGLIGIBLE_DELTA
        lower = self._hiding.weight @ below[self._hiding.most] * (1 - _MASS_ROOM)
        return ProfileBounds(np.minimum(upper, 1.0), lower)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`: no loss is infinite."""
        return 0.0

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return self._base.is_listed(int(self._hiding.counts[-1]))

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`."""
        hiding = self._hiding.coarser(_MOST_CRUDE)
        crude = [self._base.crude_log(count, excess) for count in hiding.counts[:-1].tolist()]
        with np.errstate(divide="ignore"):
            logs = np.log(hiding.weight)[:, None] + np.array(crude)
        found = np.logaddexp.reduce(logs, axis=0) + _MASS_ROOM
        return np.asarray(np.logaddexp(found, math.log(NEGLIGIBLE_DELTA)))

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """See `MechanismProfile.estimated_log`."""
        return self._base.estimated_log(crude)


class LargestProfile(MechanismProfile):
    """The largest of several profiles, each for a certain number of honest users.

    Args:
        parts: profiles, each with its number of honest users. The number that is asked for is not used.
    """

    def __init__(self, parts: Sequence[tuple[MechanismProfile, int]]) -> None:
        self.largest_loss = max(part.largest_loss for part, _ in parts)
        self._parts = tuple(parts)

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        crude = [part.crude_log(count, excess) + _CRUDE_ROOM for part, count in self._parts]
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        for place in sorted(range(len(crude)), key=lambda one: -float(crude[one].sum())):
            part, count = self._parts[place]
            # Where the cheap bound on a part is below the upper bound of the others, that holds for it, too.
            # Where the cheap bound is too small for a float, the part is still computed: 0 would be no bound.
            needed = np.exp(np.minimum(crude[place], 0.0)) + TINY > upper
            if np.any(needed):
                found = part.bounds(count, excess[needed])
                upper[needed] = np.maximum(upper[needed], found.upper)
                lower[needed] = np.maximum(lower[needed], found.lower)
        return ProfileBounds(upper, lower)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        return max(part.infinity(count) for part, count in self._parts)

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return all(part.is_listed(count) for part, count in self._parts)

    def sharper(self, share: float) -> LargestProfile:
        """See `MechanismProfile.sharper`."""
        return LargestProfile([(part.sharper(share), count) for part, count in self._parts])

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`."""
        return np.asarray(np.max([part.crude_log(count, excess) for part, count in self._parts], axis=0))

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """See `MechanismProfile.estimated_log`."""
        return self._parts[0][0].estimated_log(crude)
