"""Chernoff's bounds on many pairs' divergences at once, and tilts that suit them.

Moments of all pairs at one tilt are one product of matrices. `docs/theory.md`, "Ceilings", has the proofs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray

_NEAR_SADDLE = 1.05
# Room for the moments' round-off, in the logarithm.
_ROOM = 1e-3
# Tilts that pairs share, in units of the one that suits the pair whose losses vary most.
_MULTIPLES = 2.0 ** np.arange(-3.0, 4.1, 1.0)


class Powers(NamedTuple):
    """Moments of all pairs' sums at a few tilts that pairs share: next to nothing for a pair.

    Attributes:
        theta: the tilts, ascending, shape (tilts, orders); infinite where nothing is gained.
        logarithm: upper bounds on `n log M`, shape (tilts, pairs, orders); infinite where the tilts are.
    """

    theta: FloatArray
    logarithm: FloatArray

    @classmethod
    def of(cls, pairs: Pairs, reports: int, excess: FloatArray) -> Powers:
        """Those of the sums of so many reports at the orders `1 + excess`."""
        about = np.zeros_like(excess)
        for pair in (pairs.spread.argmax(), pairs.last_excess.argmax()):
            own = saddles(pairs, np.full(excess.size, int(pair)), reports, excess)
            about = np.where(about > 0, about, own)
        theta = np.where(about > 0, about, np.inf) * _MULTIPLES[:, None]
        finite = np.where(np.isfinite(theta), theta, 1.0)
        found = np.array([reports * pairs.log_moments(one, excess) for one in finite])
        return cls(theta, np.where(np.isfinite(theta)[:, None, :], found, np.inf))

    def least(self, reports: int) -> FloatArray:
        """Logarithms of the least of Chernoff's bounds, `M^n / (theta e_N n)`, shape (pairs, orders)."""
        with np.errstate(invalid="ignore"):
            bounds = self.logarithm - np.log(self.theta * reports)[:, None, :] - 1
        found = np.where(np.isfinite(bounds), bounds, np.inf).min(axis=0)
        return np.where(np.isfinite(self.theta[0]), np.minimum(found + _ROOM, 0.0), np.inf)


def chernoff(pairs: Pairs, reports: int, excess: FloatArray) -> FloatArray:
    """Logarithms of Chernoff's bounds on all pairs' divergences at the orders `1 + excess`, shape (pairs,
    orders): no closer than some factor."""
    found = Powers.of(pairs, reports, excess).least(reports)
    if pairs.bare:
        which, order = np.divmod(np.arange(found.size), excess.size)
        with np.errstate(divide="ignore"):
            shown = np.log(pairs.unhidden(which, excess[order])).reshape(found.shape)
        found = np.logaddexp(found, shown)
    last = pairs.last_excess[:, None]
    found[excess > last + 32 * UNIT_ROUND_OFF * (1 + last)] = -np.inf
    return found


def saddles(pairs: Pairs, which: IndexArray, reports: int, excess: FloatArray) -> FloatArray:
    """Tilts that suit the pairs `which[i]` at the orders `1 + excess[i]`, 0 where nothing is gained."""
    theta = np.zeros_like(excess)
    for rows, laws, _ in pairs.laws(which, excess):
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        if np.any(alive):
            theta[rows[alive]] = laws.at(alive).saddle(reports, closeness=_NEAR_SADDLE)
    return theta
