"""Chernoff's bounds on many pairs' divergences at once, and tilts that suit them.

Moments of all pairs at one tilt are one product of matrices. `docs/theory.md`, "Ceilings", has the proofs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accounting.ceilings import Tilts
from accounting.gain_laws import Pairs
from accounting.numerics import UNIT_ROUND_OFF, FloatArray, IndexArray

_NEAR_SADDLE = 1.05
# Logarithms of probabilities with which a sum may be farther from 0 than a period; how long that is at most,
# in units of one over the tilt.
_HARDLY = (5.0, 25.0)
_LONGEST = 100.0
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

    def saddles(self, reports: int) -> Saddles:
        """About what suits the pairs at the orders."""
        theta, powers = self.theta, self.logarithm
        tilt = np.where(np.isfinite(theta[0]), _saddles(theta, powers), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            place = np.nan_to_num(np.log2(tilt / theta[0]), posinf=0.0, neginf=0.0)
            before = np.clip(place.astype(np.int64), 0, len(theta) - 2)
            left, right = (np.take_along_axis(powers, before[None] + one, axis=0)[0] for one in (0, 1))
            at = left + (right - left) * (tilt / (theta[0] * 2.0**before) - 1)
            near, far = (self._extent(tilt, at, hardly) for hardly in _HARDLY)
            return Saddles(tilt, near, far, at - np.log(tilt * reports))

    def _extent(self, tilt: FloatArray, at: FloatArray, hardly: float) -> FloatArray:
        """How far from 0 sums hardly ever are: Chernoff's bounds on either side, by the moments at the other
        tilts, and at 0."""
        above, below = np.full_like(at, np.inf), (hardly - at) / tilt
        for one, power in zip(self.theta, self.logarithm, strict=True):
            bound = (np.maximum(power - at, -hardly / 2) + hardly) / np.abs(one - tilt)
            above = np.where(one > tilt, np.fmin(above, bound), above)
            below = np.where(one < tilt, np.fmin(below, bound), below)
        return np.fmin(np.fmax(above, below), _LONGEST / tilt)


class Saddles(NamedTuple):
    """Tilts of all pairs and orders, shape (pairs, orders); nothing rests on them.

    Attributes:
        theta: tilts near the saddle points, rather smaller, 0 where nothing is gained.
        near, far: beyond which the tilted sums are with probabilities of hardly more than the exponentials of
            `-_HARDLY`.
        height: logarithms of `M^n / (theta n)`.
    """

    theta: FloatArray
    near: FloatArray
    far: FloatArray
    height: FloatArray

    def at(self, pair: IndexArray, order: IndexArray) -> Saddles:
        """Those of some pairs and orders, shape (rows,)."""
        return Saddles(*(column[pair, order] for column in self))

    def tilts(self, hardly: FloatArray | float) -> Tilts:
        """With periods so long that sums are farther from 0 with a probability of about `exp(-hardly)`."""
        low, high = _HARDLY
        share = np.clip((hardly - low) / (high - low), 0.0, 1.0)
        with np.errstate(invalid="ignore"):
            return Tilts(self.theta, self.near + share * (self.far - self.near))


def chernoff(pairs: Pairs, reports: int, excess: FloatArray, powers: Powers | None = None) -> FloatArray:
    """Logarithms of Chernoff's bounds on all pairs' divergences at the orders `1 + excess`, shape (pairs,
    orders): no closer than some factor."""
    powers = Powers.of(pairs, reports, excess) if powers is None else powers
    found = powers.least(reports)
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


def _saddles(theta: FloatArray, powers: FloatArray) -> FloatArray:
    """About where theta times the slope of `n log M` is 2, rather a smaller tilt, shape (pairs, orders): from
    its values at tilts of shape (tilts, orders)."""
    with np.errstate(invalid="ignore"):
        middle = np.broadcast_to(((theta[1:] + theta[:-1]) / 2)[:, None, :], powers[1:].shape)
        level = np.nan_to_num(np.diff(powers, axis=0), nan=np.inf, posinf=np.inf)
        level *= middle / np.diff(theta, axis=0)[:, None, :]
    after = np.where(level[-1] >= 2, (level >= 2).argmax(axis=0), len(level) - 1)[None]
    before = np.maximum(after - 1, 0)
    low, high, left, right = (
        np.take_along_axis(values, place, axis=0)[0]
        for values, place in ((level, before), (level, after), (middle, before), (middle, after))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.nan_to_num((2 - low) / (high - low), nan=0.0, posinf=0.0, neginf=0.0)
        return np.asarray(left + np.clip(share, 0.0, 1.0) * (right - left))
