"""Profiles of blankets whose losses are unbounded: every order is bounded from a law that is cut off where
the mass beyond is negligible at that order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.profiles import BlanketProfile, MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.effort import counted, spend
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Largest mass beyond a cut, as a share of the estimate of the divergence. Smaller: later cuts, which take
# longer; larger: a larger upper bound, by at most this share.
_MOST_BEYOND = 1e-4


class Cut(NamedTuple):
    """A law that is cut off.

    Attributes:
        beyond: the mass that counts as certain loss, which is what it adds to the upper bound.
        profile: bounds on the profile, with this mass.
    """

    beyond: float
    profile: BlanketProfile


class CutProfile(MechanismProfile):
    """The profile of one blanket of unbounded losses, from the cheapest cut that suits each order.

    Args:
        cuts: the cuts, from the first to the farthest one. Each profile bounds the same divergence.
        estimate: returns an estimate of the divergence, given the number of honest users and orders minus
            one. No bound depends on it: it chooses the cut.
        effort: time that an array element takes here, at least 1, in units of the usual one: where gains are
            on many scales there are many sums of few elements. Larger: fewer orders, so wider bounds.

    Guarantee: as of `MechanismProfile`. The upper bound does not fall below the mass beyond the last cut.
    Source: docs/theory/randomizers.md, R13.
    """

    def __init__(
        self, cuts: Sequence[Cut], estimate: Callable[[int, FloatArray], FloatArray], effort: float
    ) -> None:
        self.largest_loss = math.inf
        self._cuts = tuple(cuts)
        self._estimate = estimate
        self._effort = effort

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        most = np.maximum(_MOST_BEYOND * self._estimate(honest, excess), self._cuts[-1].beyond)
        chosen = np.argmax(np.array([cut.beyond for cut in self._cuts])[:, None] <= most, axis=0)
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        for place in np.unique(chosen).tolist():
            rows = chosen == place
            with counted() as effort:
                upper[rows], lower[rows] = self._cuts[place].profile.bounds(honest, excess[rows])
            spend((self._effort - 1) * effort.spent)
        return ProfileBounds(upper, lower)

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`: the least of the cuts' bounds."""
        found = [cut.profile.crude_log(honest, excess) for cut in self._cuts]
        return np.asarray(np.min(found, axis=0), dtype=np.float64)

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """See `MechanismProfile.estimated_log`."""
        return self._cuts[0].profile.estimated_log(crude)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`: before the law is cut off, every loss is finite."""
        return 0.0

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return False

    def sharper(self, share: float) -> CutProfile:
        """See `MechanismProfile.sharper`."""
        cuts = [cut._replace(profile=cut.profile.sharper(share)) for cut in self._cuts]
        return CutProfile(cuts, self._estimate, self._effort)
