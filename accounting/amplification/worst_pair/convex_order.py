"""Majorants: laws above those of many pairs in the convex order, summed once instead of pair by pair.

A law is below another in the *increasing convex order* if its stop-loss transform `E[(G - t)_+]` is at most
the other's, for every t. Sums of independent gains keep this order. The pointwise maximum of several pairs'
transforms is again the transform of a law; if the pairs are alike, it is close to theirs. The proofs are in
docs/theory/amplification.md, A13.
"""

from __future__ import annotations

import math

from shuffle_ledger.accounting.amplification.blanket.divergence import law_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Bare, Laws, Pairs
from shuffle_ledger.accounting.numeric.arrays import (
    TINY,
    UNIT_ROUND_OFF,
    BoolArray,
    FloatArray,
    IndexArray,
)
from shuffle_ledger.accounting.numeric.effort import spend
from shuffle_ledger.accounting.numeric.later import np

# Points at which transforms are known: this many gains of the group's first pair; quantiles of at most this
# many gains of all pairs, closer together at both ends; and quantiles of the pairs' largest and least gains.
_POINTS_OF_FIRST, _POOLED_GAINS = 24, 8000
# Binary digits of a point in units of the largest one: products are then exact.
_POINT_DIGITS = 22
# Time of a gain here, in array elements.
_ELEMENTS_OF_GAIN = 25
# Least share of the mass at the least gain: room for round-off that adds mass to other points.
_LEAST_SHARE_AT_FIRST = 1e-9
# A transform that falls short of the wanted one by more than this factor is not explained by round-off: there
# is then no law.
_MOST_SHORTFALL = 1.001


def law_ceilings(
    pairs: Pairs, groups: BoolArray, reports: int, excess: FloatArray, smoothing: float
) -> FloatArray:
    """Returns upper bounds on the divergences of the pairs in `groups[:, i]` at the order `1 + excess[i]`, by
    one law above all of them, for every i; 1 where there is no such law.

    Args:
        groups: which pairs, shape (pairs, orders).
        reports, smoothing: as of `blanket_profile`.

    Guarantee: round-off included. Components that no other user hides are added to the sum: they count with
        the largest contribution of all pairs.
    """
    found = np.ones(excess.size)
    laws, known = laws_above(pairs, groups, excess)
    if known.size:
        pair, place = np.nonzero(groups[:, known])
        shown = np.zeros(known.size)
        np.maximum.at(shown, place, pairs.unhidden(pair, excess[known][place]))
        width = np.full(known.size, smoothing)
        summed = law_profiles(laws, Bare(shown, shown), reports, excess[known], smoothing=width)
        found[known] = np.fmin(summed.upper + TINY, 1.0)
    return found


def laws_above(pairs: Pairs, groups: BoolArray, excess: FloatArray) -> tuple[Laws, IndexArray]:
    """Returns laws of gains on hidden components, each above those of the pairs in `groups[:, i]` at the
    order `1 + excess[i]`, and the positions i for which there is one: none without pairs or hidden
    components, or if the leftover masses of pairs differ.

    Guarantee: above in the increasing convex order, up to 1e-300 and to units in the last place of the gains.
    """
    orders, leftover = np.flatnonzero(groups.any(axis=0)), pairs.leftover(np.arange(len(pairs)))
    if not orders.size or not pairs.components or np.ptp(leftover) > 0:
        empty = np.zeros((0, 2))
        return _laws(empty, empty, 0.0)[0], orders[:0]
    made = [_largest_transform(pairs, np.flatnonzero(groups[:, one]), float(excess[one])) for one in orders]
    points, transforms = (np.array(one) for one in zip(*made, strict=True))
    laws, is_law = _laws(points, transforms, float(leftover[0]))
    return laws.at(is_law), orders[is_law]


def _gains(pairs: Pairs, which: IndexArray, excess: float) -> tuple[FloatArray, FloatArray]:
    """Returns gains of components, rounded up, and their masses, each of shape (pairs, components)."""
    masses = pairs.masses(which)
    hidden = np.where(masses.c > 0, masses.c, 1.0)
    taken = excess * masses.b
    # Outputs that were joined have ratios, and masses b, that agree up to round-off.
    terms = (np.abs(masses.difference) + taken + masses.b) / hidden
    return (masses.difference - taken) / hidden + 8 * UNIT_ROUND_OFF * terms, masses.c


def _largest_transform(pairs: Pairs, which: IndexArray, excess: float) -> tuple[FloatArray, FloatArray]:
    """Returns points from the least gain to the largest, ascending, and the largest of the pairs' transforms
    there, rounded up."""
    gains, c = _gains(pairs, which, excess)
    spend(_ELEMENTS_OF_GAIN * gains.size)
    points = _points(gains)
    size = points.size
    # Gains after the point before `place`, up to that at `place`, by pair.
    place = np.searchsorted(points, gains, side="left")
    beyond = c * (gains - points[np.maximum(place - 1, 0)])
    place += size * np.arange(which.size)[:, None]
    between, mass = (
        np.bincount(place.ravel(), one.ravel(), which.size * size).reshape(-1, size) for one in (beyond, c)
    )
    # From one point to the one before, the transform rises by the gains between, and by a step for all mass
    # beyond.
    after = np.column_stack([np.cumsum(mass[:, :1:-1], axis=1)[:, ::-1], np.zeros(which.size)])
    steps = between[:, 1:] + np.diff(points) * after
    transforms = np.column_stack([np.cumsum(steps[:, ::-1], axis=1)[:, ::-1], np.zeros(which.size)])
    largest = transforms.max(axis=0) * (1 + 4 * (size + gains.shape[1]) * UNIT_ROUND_OFF)
    return points, _spared(points, largest, float(c.sum(axis=1).min()))


def _spared(points: FloatArray, transforms: FloatArray, hidden: float) -> FloatArray:
    """Returns transforms that are at least these, of laws with some mass at the first point and none beyond
    the last one."""
    least = transforms[0] - (1 - _LEAST_SHARE_AT_FIRST) * hidden * (points - points[0])
    return np.append(np.maximum(transforms, least)[:-1], 0.0)


def _points(gains: FloatArray) -> FloatArray:
    """Returns the points of a law above these gains, shape (pairs, components).

    Points are multiples of a power of two, and equally many at every order.
    """
    highest, lowest = gains.max(axis=1), gains.min(axis=1)
    pool = gains.ravel()[:: -(-gains.size // _POOLED_GAINS)]
    places, tail = np.linspace(0, 1, _POINTS_OF_FIRST), 0.5 ** np.arange(3, 11)
    parts = (
        (gains[0], places),
        (pool, np.concatenate([np.linspace(0, 1, 16), tail, 1 - tail])),
        (lowest, np.linspace(0, 1, 5)),
        (highest, np.linspace(0, 1, 5)),
    )
    between = np.concatenate([_quantiles(*one) for one in parts])
    first, last = lowest.min(), highest.max()
    unit = 2.0 ** (math.frexp(max(last, -first, TINY))[1] - _POINT_DIGITS)
    first, last = np.floor(first / unit), np.ceil(last / unit)
    between = np.sort(np.clip(np.round(between / unit), first, last))
    return np.asarray(np.concatenate([[first], between, [last]]) * unit)


def _quantiles(values: FloatArray, shares: FloatArray) -> FloatArray:
    return np.asarray(np.sort(values)[np.round(shares * (values.size - 1)).astype(np.int64)])


def _laws(points: FloatArray, transforms: FloatArray, leftover: float) -> tuple[Laws, BoolArray]:
    """Returns laws on these points whose transforms are at least these, one for each row, and which rows have
    one."""
    steps, size = np.diff(points, axis=1), points.shape[1]
    mass, beyond = np.zeros_like(points), np.zeros(len(points))
    for place in range(size - 1, 0, -1):
        fallen, step = transforms[:, place - 1] - transforms[:, place], steps[:, place - 1]
        slope = np.where(step > 0, fallen / np.where(step > 0, step, 1.0), 0.0)
        mass[:, place] = np.maximum(slope - beyond, 0.0)
        beyond += mass[:, place]
    # The transforms that these masses have, and the factor by which round-off made them too small.
    after = np.cumsum(mass[:, :0:-1], axis=1)[:, ::-1]
    reached = np.cumsum((after * steps)[:, ::-1], axis=1)[:, ::-1]
    wanted = transforms[:, :-1]
    with np.errstate(over="ignore"):
        short = np.where(wanted > 0, wanted / np.maximum(reached, TINY), 1.0).max(axis=1)
    mass *= np.clip(short, 1.0, _MOST_SHORTFALL)[:, None] * (1 + 16 * size * UNIT_ROUND_OFF)
    # The rest of the mass goes to the least gain; mass lost to round-off goes to the leftover component.
    mass[:, 0] = [(1 - leftover) - math.fsum(one) - 4 * UNIT_ROUND_OFF for one in mass[:, 1:].tolist()]
    is_law = (short < _MOST_SHORTFALL) & (mass[:, 0] > 0) & (points[:, 0] <= 0)
    gained = mass * points
    drift = [math.fsum(one) for one in gained.tolist()] + 4 * UNIT_ROUND_OFF * np.abs(gained).sum(axis=1)
    gains, nothing = np.where(mass > 0, points, 0.0), np.zeros_like(mass)
    rest, dropped = np.full(len(mass), leftover), np.zeros(len(mass))
    return Laws(gained, nothing, mass, gains, rest, drift, dropped), is_law
