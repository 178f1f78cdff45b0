"""The privacy profile of a round of one-bit reports, by the reports' own law."""

from __future__ import annotations

import functools
import math

from shuffle_ledger.accounting.amplification.binary_reports.few import EveryDataset, lines_of
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.binary_reports.tilted import LITTLE, crude_log, tilted_bounds
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, FloatArray, order_less_one
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

#: Every dataset is listed if they have at most this many lines: the first number, or the second one if
#: the variance of the others' sum is at most the third one, where nodes would be many. More: memory and
#: time. The bounds hold for all values.
FEW_LINES, FEW_LINES_OF_RARE, RARE = 7e5, 3e6, 200.0
#: One of many profiles of a mixture: the same limit of lines, the share by which bounds may be apart, and
#: the most orders that are computed, but for the last one. The bounds hold for all values.
FEW_LINES_OF_MIXTURE, LITTLE_OF_MIXTURE, ORDERS_OF_MIXTURE = 2e5, 5e-3, 200
# Lines of this many laws and numbers of users are kept.
_TABLES_KEPT = 16
# Where the upper bound is more than this many times the lower one, the blanket may be closer; and in a
# mixture.
_WIDE, _WIDE_IN_MIXTURE = 1.01, 1.5
# A line through two lower bounds is not extended by more than this many times their distance.
_LONGEST_EXTENSION = 4.0


class BitProfile(MechanismProfile):
    """The largest divergence over all datasets of reports that are one bit each.

    Args:
        law: the law of one report.
        blanket: a profile that is nowhere below; it replaces the upper bound where it is closer.
        room: relative room in the bounds for the round-off of masses.
        of_mixture: whether it is one of many; see `MechanismProfile.for_mixture`.

    Guarantee: the upper bound is at least, and the lower bound at most, the supremum over all pairs of
        neighbouring datasets, in both directions. More honest users only lower that supremum: their reports
        can be drawn from their inputs by anybody.
    Source: docs/theory/amplification.md, A8.
    """

    def __init__(
        self, law: BitLaw, *, blanket: MechanismProfile, room: float, of_mixture: bool = False
    ) -> None:
        self.largest_loss = blanket.largest_loss
        self._laws = (law,) if law.is_symmetric else (law, law.mirrored)
        self._blanket = blanket
        self._room = room
        self._is_of_mixture = of_mixture

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        inside = excess < order_less_one(min(self.largest_loss, LARGEST_EXPONENT))
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        if np.any(inside):
            find = self._on_lines if self._is_of_mixture else self._with_blanket
            upper[inside], lower[inside] = find(honest, excess[inside])
        return ProfileBounds(np.minimum(upper, 1.0), lower)

    def for_mixture(self) -> BitProfile:
        """See `MechanismProfile.for_mixture`."""
        return BitProfile(self._laws[0], blanket=self._blanket, room=self._room, of_mixture=True)

    def _on_lines(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at some of the orders, and lines between them: the supremum over all datasets is
        convex.

        Below are the lower bound at the next order that was computed, as the supremum falls, and the line
        through it and the upper bound at the one after, extended.
        """
        every = -(-excess.size // ORDERS_OF_MIXTURE)
        chosen = np.union1d(np.arange(0, excess.size, every), excess.size - 1)
        at = excess[chosen]
        upper, lower = self._with_blanket(honest, at)
        after = np.searchsorted(at, excess)
        last = np.minimum(after + 1, at.size - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (at[after] - excess) / (at[last] - at[after])
        extended = np.where(share <= _LONGEST_EXTENSION, share, 0.0)
        below = lower[after] + extended * np.maximum(lower[after] - upper[last], 0.0)
        return ProfileBounds(np.interp(excess, at, upper), below * (1 - self._room))

    def _with_blanket(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at every order; where they are wide, the blanket's replaces the upper one if it is
        smaller."""
        found = self._largest(honest, excess)
        above, below = found.upper * (1 + self._room), found.lower * (1 - self._room)
        wide = np.flatnonzero(above > (_WIDE_IN_MIXTURE if self._is_of_mixture else _WIDE) * below)
        if wide.size:
            other = self._blanket.bounds(honest, excess[wide]).upper
            above[wide] = np.minimum(above[wide], other)
        return ProfileBounds(above, below)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`: no loss is infinite."""
        return 0.0

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        law, others = self._laws[0], honest - 1
        if self._is_of_mixture:
            return lines_of(law, others) <= FEW_LINES_OF_MIXTURE
        is_rare = others * max(law.a * law.not_a, law.b * law.not_b) <= RARE
        return lines_of(law, others) <= (FEW_LINES_OF_RARE if is_rare else FEW_LINES)

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`."""
        return np.asarray(np.max([crude_log(law, honest - 1, excess) for law in self._laws], axis=0))

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """See `MechanismProfile.estimated_log`: a Gaussian sum's divergence is about this share of its
        largest density."""
        deviations = np.sqrt(2 * np.maximum(crude[0] - np.maximum(crude, -LARGEST_EXPONENT), 0.0))
        return np.asarray(crude - np.log1p(deviations * (math.sqrt(math.pi / 2) + deviations)))

    def _largest(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on the larger one of both directions' divergences."""
        if self.is_listed(honest):
            each = [every_dataset(law, honest - 1).bounds(excess) for law in self._laws]
        else:
            little = LITTLE_OF_MIXTURE if self._is_of_mixture else LITTLE
            each = [tilted_bounds(law, honest - 1, excess, little=little) for law in self._laws]
        return ProfileBounds(*(np.max(side, axis=0) for side in zip(*each, strict=True)))


@functools.lru_cache(maxsize=_TABLES_KEPT)
def every_dataset(law: BitLaw, others: int) -> EveryDataset:
    """Returns the lines of every dataset; they do not depend on the precision that is asked for."""
    return EveryDataset(law, others)
