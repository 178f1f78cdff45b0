"""Chernoff's upper bounds on the divergences of many pairs, and tilts that suit the pairs.

The moments of all pairs of a table at one tilt are one matrix product. The proofs are in
docs/theory/amplification.md, A12.
"""

from __future__ import annotations

from typing import NamedTuple

from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, BoolArray, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np

# Room for the round-off of the moments, added to the logarithm of a bound.
_LOG_MOMENT_ROUND_OFF = 1e-3
# Tilts that all pairs share, in units of the tilt that suits the pair whose losses vary most.
_TILT_MULTIPLES = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]


class Powers(NamedTuple):
    """Moments of all pairs' sums at a few common tilts, so that a moment costs little for each pair.

    Attributes:
        theta: the tilts, ascending, shape (tilts, orders); infinite at orders with no positive gain.
        logarithm: upper bounds on `n log M`, shape (tilts, pairs, orders); infinite where the tilts are.
    """

    theta: FloatArray
    logarithm: FloatArray

    @classmethod
    def of(cls, pairs: Pairs, reports: int, excess: FloatArray) -> Powers:
        """Computes the moments of the sums over `reports` reports at the orders `1 + excess`."""
        about = np.zeros_like(excess)
        # Where the second one's hidden components have no positive gain, no pair's have.
        for pair in (pairs.spread.argmax(), pairs.last_hidden_excess.argmax()):
            own = saddles(pairs, np.full(excess.size, int(pair)), reports, excess)
            about = np.where(about > 0, about, own)
        theta = np.where(about > 0, about, np.inf) * np.array(_TILT_MULTIPLES)[:, None]
        finite = np.where(np.isfinite(theta), theta, 1.0)
        found = np.array([reports * pairs.log_moments(one, excess) for one in finite])
        return cls(theta, np.where(np.isfinite(theta)[:, None, :], found, np.inf))

    def least(self, reports: int) -> FloatArray:
        """Returns the logarithm of the least of Chernoff's bounds `M^n / (e theta n)` over the tilts, shape
        (pairs, orders); of 1, which bounds every divergence, at orders without tilts."""
        with np.errstate(invalid="ignore"):
            bounds = self.logarithm - np.log(self.theta * reports)[:, None, :] - 1
        found = np.where(np.isfinite(bounds), bounds, np.inf).min(axis=0)
        return np.where(np.isfinite(self.theta[0]), np.minimum(found + _LOG_MOMENT_ROUND_OFF, 0.0), 0.0)


def chernoff(pairs: Pairs, reports: int, excess: FloatArray) -> FloatArray:
    """Returns logarithms of upper bounds on all pairs' divergences at the orders `1 + excess`, shape (pairs,
    orders).

    The bounds are Chernoff's; they may be too large by a considerable factor. Where there is nothing to bound
    the result is minus infinity.

    Guarantee: round-off included.
    """
    found = Powers.of(pairs, reports, excess).least(reports)
    found[_is_beyond(excess, pairs.last_hidden_excess)] = -np.inf
    if pairs.bare:
        which, order = np.divmod(np.arange(found.size), excess.size)
        with np.errstate(divide="ignore"):
            shown = np.log(pairs.unhidden(which, excess[order])).reshape(found.shape)
        found = np.logaddexp(found, shown)
    found[_is_beyond(excess, pairs.last_excess)] = -np.inf
    return found


def _is_beyond(excess: FloatArray, last: FloatArray) -> BoolArray:
    last = last[:, None]
    return np.asarray(excess > last + 32 * UNIT_ROUND_OFF * (1 + last))


def saddles(pairs: Pairs, which: IndexArray, reports: int, excess: FloatArray) -> FloatArray:
    """Returns tilts that suit the pairs `which[i]` at the orders `1 + excess[i]`, 0 where no gain is
    positive."""
    theta = np.zeros_like(excess)
    for rows, laws, _ in pairs.laws(which, excess):
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        if np.any(alive):
            theta[rows[alive]] = laws.at(alive).saddle(reports)
    return theta
