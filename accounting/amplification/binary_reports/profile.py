"""The privacy profile of a round of one-bit reports, by the reports' own law."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np

from shuffle_ledger.accounting.amplification.binary_reports.few import EveryDataset
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.binary_reports.tilted import crude_log, tilted_bounds
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, FloatArray, order_less_one
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

#: Every dataset of at most this many other users is listed. More: memory and time. The bounds hold for every
#: value; the tests change it.
FEW_OTHERS = 96
# A profile keeps the tables of this many numbers of users.
_TABLES_KEPT = 4
# Where the upper bound is more than this many times the lower one, the blanket may be closer.
_WIDE = 1.01


class BitProfile(MechanismProfile):
    """The largest divergence over all datasets of reports that are one bit each.

    Args:
        law: the law of one report.
        blanket: a profile that is nowhere below; it replaces the upper bound where it is closer.
        room: relative room in the bounds for the round-off of masses.

    Guarantee: the upper bound is at least, and the lower bound at most, the supremum over all pairs of
        neighbouring datasets, in both directions. More honest users only lower that supremum: their reports
        can be drawn from their inputs by anybody.
    Source: docs/theory.md, "Binary reports".
    """

    def __init__(self, law: BitLaw, *, blanket: MechanismProfile, room: float) -> None:
        self.largest_loss = blanket.largest_loss
        self._laws = (law,) if law.is_symmetric else (law, law.mirrored)
        self._blanket = blanket
        self._room = room
        self._tables: OrderedDict[int, list[EveryDataset]] = OrderedDict()

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        inside = excess < order_less_one(min(self.largest_loss, LARGEST_EXPONENT))
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        if np.any(inside):
            found = self._largest(honest, excess[inside])
            above, below = found.upper * (1 + self._room), found.lower * (1 - self._room)
            wide = np.flatnonzero(above > _WIDE * below)
            if wide.size:
                other = self._blanket.bounds(honest, excess[inside][wide]).upper
                above[wide] = np.minimum(above[wide], other)
            upper[inside], lower[inside] = above, below
        return ProfileBounds(np.minimum(upper, 1.0), lower)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`: no loss is infinite."""
        return 0.0

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return honest - 1 <= FEW_OTHERS

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
            each = [table.bounds(excess) for table in self._listed(honest - 1)]
        else:
            each = [tilted_bounds(law, honest - 1, excess) for law in self._laws]
        return ProfileBounds(*(np.max(side, axis=0) for side in zip(*each, strict=True)))

    def _listed(self, others: int) -> list[EveryDataset]:
        if others not in self._tables:
            while len(self._tables) >= _TABLES_KEPT:
                self._tables.popitem(last=False)
            self._tables[others] = [EveryDataset(law, others) for law in self._laws]
        return self._tables[others]
