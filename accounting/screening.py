"""Upper bounds on many pairs' divergences that cost a few moments each: what rules most pairs out.

The kink's transform is integrated over the modulus of the characteristic function, which is bounded by the
variance and the fourth moment: within a few percent where the sum is nearly Gaussian. `docs/theory.md`,
"Tables", has the proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import erfcx

from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.gain_laws import IndexArray, Laws, Pairs

# Shares of the fourth moment's part in the bound of the modulus, and smoothings, that are tried.
_SHARES = (0.02, 0.1, 0.4)
_SMOOTHINGS = (0.0, 2.0, 4.0)
_NEAR_SADDLE = 1.05
# In the logarithm: room for the moments' round-off, and the least variance, in units of the largest gain's
# square, that has so many digits.
_ROOM = 1e-3
_DIGITS = 1e-18
#: Below what matters of a divergence.
TINY = 1e-300
# Tilts that pairs share, in units of the one that suits the pair whose losses vary most.
_MULTIPLES = 2.0 ** np.arange(-1.0, 5.1, 1.0)


def ceilings(
    pairs: Pairs, which: IndexArray, reports: int, excess: FloatArray, theta: FloatArray | None = None
) -> FloatArray:
    """Upper bounds on the divergences of the pairs `which[i]` at the orders `1 + excess[i]`, for every i.

    Args:
        pairs: the pairs.
        which: their places, shape (rows,).
        reports: number of honest reports.
        excess: orders minus one, shape (rows,).
        theta: positive tilts, shape (rows,), near the saddle points for tight bounds; by default about there.

    Guarantee: round-off included, for every tilt.
    """
    found, lost = np.full_like(excess, -np.inf), np.zeros_like(excess)
    for rows, laws, bare in pairs.laws(which, excess):
        lost[rows] = laws.lost(excess[rows])
        # Values a - (1 + excess) b are rounded relative to their terms, not to their difference.
        rounding = 16 * UNIT_ROUND_OFF * (1 + excess[rows])
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        lone = np.maximum(laws.difference - laws.taken, 0.0).sum(axis=1) + bare + rounding
        above = alive | (bare > 0)
        found[rows[above]] = np.log(lone[above])
        if np.any(alive):
            hidden = laws.at(alive)
            tilt = hidden.saddle(reports, closeness=_NEAR_SADDLE) if theta is None else theta[rows][alive]
            summed, alone = _log_ceiling(hidden, reports, tilt), bare[alive]
            shown = np.where(alone > 0, np.log(np.maximum(alone + rounding[alive], TINY)), -np.inf)
            found[rows[alive]] = np.minimum(found[rows[alive]], np.logaddexp(summed, shown))
    return np.asarray(np.exp(np.minimum(found, 0.0)) + lost + TINY)


class Ceilings(NamedTuple):
    """Of all pairs and orders, shape (pairs, orders): logarithms of upper bounds on divergences, and the
    tilts that suit them best, 0 where nothing is gained."""

    logarithm: FloatArray
    theta: FloatArray


def chernoff(pairs: Pairs, reports: int, excess: FloatArray) -> Ceilings:
    """Chernoff's bounds `M^n / (theta e_N n)` on all pairs' divergences at the orders `1 + excess`, each the
    least of those at a few tilts that pairs share: next to nothing for a pair, and no closer than some
    factor."""
    about = np.zeros_like(excess)
    for pair in (pairs.spread.argmax(), pairs.last_excess.argmax()):
        own = saddles(pairs, np.full(excess.size, int(pair)), reports, excess)
        about = np.where(about > 0, about, own)
    n, usable = float(reports), (about > 0) & (about < np.inf)
    theta = np.where(usable, about, 1.0) * _MULTIPLES[:, None]
    bounds = np.array([n * pairs.log_moments(one, excess) - np.log(one * n) - 1 for one in theta])
    best = np.where(np.isfinite(bounds), bounds, np.inf).argmin(axis=0)
    # In the logarithm of the tilt a bound is about a parabola near its least.
    middle = np.clip(best, 1, len(theta) - 2)
    low, at, high = (np.take_along_axis(bounds, middle[None] + step, axis=0)[0] for step in (-1, 0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        step = np.clip(np.nan_to_num((low - high) / (2 * (low - 2 * at + high))), -1, 1)
    ratio = _MULTIPLES[1] / _MULTIPLES[0]
    tilt = np.take_along_axis(theta[:, None, :], middle[None], axis=0)[0] * ratio**step
    least = np.take_along_axis(bounds, best[None], axis=0)[0]
    with np.errstate(divide="ignore"):
        found = np.logaddexp(np.minimum(least + _ROOM, 0.0), np.log(pairs.unhidden(excess)))
    found = np.where(usable, found, np.inf)
    last = pairs.last_excess[:, None]
    found[excess > last + 32 * UNIT_ROUND_OFF * (1 + last)] = -np.inf
    return Ceilings(found, np.where(usable, tilt, 0.0))


def saddles(pairs: Pairs, which: IndexArray, reports: int, excess: FloatArray) -> FloatArray:
    """Tilts for `ceilings`, of the pairs `which[i]` at the orders `1 + excess[i]`, 0 where nothing is
    gained."""
    theta = np.zeros_like(excess)
    for rows, laws, _ in pairs.laws(which, excess):
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        if np.any(alive):
            theta[rows[alive]] = laws.at(alive).saddle(reports, closeness=_NEAR_SADDLE)
    return theta


class _Moments(NamedTuple):
    """Of laws of G under a tilt: the logarithm of the moment generating function and a bound on its
    round-off, the variance, the fourth central moment, and the largest distance of two gains."""

    log_mass: FloatArray
    log_mass_error: FloatArray
    variance: FloatArray
    fourth: FloatArray
    reach: FloatArray
    exact: FloatArray  # whether the variance has digits


def _moments(laws: Laws, theta: FloatArray) -> _Moments:
    weights, rest, total, top = laws.weighted(theta)
    weights /= total[:, None]
    rest = rest / total
    mean = (weights * laws.gains).sum(axis=1)
    square = (laws.gains - mean[:, None]) ** 2
    part = weights * square
    variance = part.sum(axis=1) + rest * mean**2
    fourth = (part * square).sum(axis=1) + rest * mean**4
    highest, lowest = np.maximum(laws.gains.max(axis=1), 0.0), np.minimum(laws.gains.min(axis=1), 0.0)
    # What the rounding of G, relative to its terms, moves the logarithm by.
    terms = (weights * (np.abs(laws.difference) + laws.taken) / np.where(laws.c > 0, laws.c, 1.0)).sum(axis=1)
    size = laws.c.shape[1]
    error = UNIT_ROUND_OFF * (size + 16 + 8 * theta * terms + 8 * top + (size + 4) / total)
    exact = variance > _DIGITS * np.maximum(highest, -lowest) ** 2
    return _Moments(np.log(total) + top, error, variance, fourth, highest - lowest, exact)


def _log_ceiling(laws: Laws, reports: int, theta: FloatArray) -> FloatArray:
    """Logarithm of the smaller of Chernoff's bound, `M^n / (theta e_N n)`, and the integral of the
    modulus."""
    n = float(reports)
    usable = (theta > 0) & (theta < np.inf)
    theta = np.where(usable, theta, 1.0)
    moments = _moments(laws, theta)
    variance = np.where(moments.exact, moments.variance, 1.0)
    fourth = np.where(moments.exact, moments.fourth, 1.0)
    log_factor = -np.log(theta) - 1.0
    lobe = np.pi / moments.reach
    for share in _SHARES:
        # Up to `near` the modulus is at most exp(-n u^2 variance (1 - share) / 2).
        near = np.sqrt(12 * share * variance / (fourth + 3 * variance**2))
        end = np.maximum(lobe, near)
        between = np.arctan(end / theta) - np.arctan(near / theta)
        beyond = np.arctan(theta / end)
        log_between = -2 * n * near**2 * variance / np.pi**2
        for smoothing in _SMOOTHINGS:
            tau = smoothing / end
            middle = np.pi * erfcx(theta * np.sqrt((n * variance * (1 - share) + tau**2) / 2))
            outer = 2 * between * np.exp(log_between - (near * tau) ** 2 / 2)
            outer += 2 * beyond * np.exp(-(smoothing**2) / 2)
            log_integral = np.log((middle + outer) / (2 * np.pi * theta)) + (theta * tau) ** 2 / 2
            log_factor = np.where(moments.exact, np.minimum(log_factor, log_integral), log_factor)
    logarithm = n * (moments.log_mass + moments.log_mass_error) - np.log(n) + log_factor + _ROOM
    return np.where(usable, logarithm, 0.0)
