"""Majorants: laws above those of many pairs in the convex order, summed once instead of pair by pair.

A law is below another in the *increasing convex order* if its stop-loss transform `E[(G - t)_+]` is at most
the other's, for every t. Sums of independent gains keep this order. The pointwise maximum of several pairs'
transforms is again the transform of a law; if the pairs are alike, it is close to theirs. `docs/theory.md`,
"Majorants", has the proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.divergence import law_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Bare, Laws, Pairs
from shuffle_ledger.accounting.numeric.arrays import (
    TINY,
    UNIT_ROUND_OFF,
    BoolArray,
    FloatArray,
    IndexArray,
)

#: Pairs in the first group of a ranking. Each next group holds as many pairs as all groups before it: pairs
#: of high rank are closest to the largest and need the closest law. More: fewer laws, each further above its
#: pairs. Laws are above their pairs for every value; the tests change it.
FIRST_GROUP = 16

# A law is summed only if it is above more than this many pairs: fewer are evaluated one by one in that time.
_FEWEST_MAJORIZED = 8
# Points at which transforms are known: this many gains of the group's first pair; quantiles of at most this
# many gains of all pairs, closer together at both ends; and quantiles of the pairs' largest and least gains.
_POINTS_OF_FIRST, _POOLED_GAINS = 24, 8000
_TAIL_QUANTILES = 0.5 ** np.arange(3, 11)
_POOL_QUANTILES = np.concatenate([np.linspace(0, 1, 16), _TAIL_QUANTILES, 1 - _TAIL_QUANTILES])
_EXTREME_QUANTILES = np.linspace(0, 1, 5)
# Binary digits of a point in units of the largest one at its order, and of the largest one at any order; and
# the number of steps of the share of one order in a place between two. Products are then exact.
_POINT_DIGITS, _COMMON_POINT_DIGITS, _SHARE_STEPS = 22, 30, 2.0**20
# Least share of the mass at the least gain: room for round-off that adds mass to other points.
_LEAST_SHARE_AT_FIRST = 1e-9
# A transform that falls short of the wanted one by more than this factor is not explained by round-off: there
# is then no law.
_MOST_SHORTFALL = 1.001


class Majorants(NamedTuple):
    """Laws above those of all pairs of a group, at every order of a range.

    Attributes:
        few: the orders where transforms are known, minus one, ascending, shape (orders,).
        groups: positions of the pairs that each law is above: all pairs first; then, if they are many,
            disjoint groups of them.
        leftover: mass of the leftover component, the same for all pairs.
        points: gains t, ascending, shape (groups, orders, points).
        transforms: upper bounds on `E[(G - t)_+; G is not the leftover]`, shape (groups, orders, points).
    """

    few: FloatArray
    groups: list[IndexArray]
    leftover: float
    points: FloatArray
    transforms: FloatArray

    @staticmethod
    def are_for(pairs: Pairs, few: FloatArray) -> bool:
        """Returns whether majorants can be made: no unhidden components, equal leftover masses, ascending
        orders."""
        leftover = pairs.leftover(np.arange(len(pairs)))
        return not pairs.bare and np.ptp(leftover) == 0 and few.size > 1 and bool(np.all(np.diff(few) > 0))

    @classmethod
    def of(cls, pairs: Pairs, ranked: IndexArray, few: FloatArray) -> Majorants:
        """Makes the majorants of the pairs at the positions `ranked`.

        Args:
            pairs: pairs without unhidden components, and with leftover components of equal mass.
            ranked: positions, the probably largest pair first, shape (pairs,).
            few: orders minus one, ascending, shape (orders,).
        """
        ends = [0]
        while ends[-1] < ranked.size:
            ends.append(min(max(FIRST_GROUP, 2 * ends[-1]), ranked.size))
        groups = [ranked[slice(*one)] for one in itertools.pairwise(ends)]
        several = len(groups) > 1
        # Gains are linear in the order.
        unit = _unit(max(float(np.abs(_gains(pairs, ranked, float(one))[0]).max()) for one in few[[0, -1]]))
        leftover = float(pairs.leftover(ranked[:1])[0])
        hidden = float(pairs.masses(ranked[:1]).c.sum()) * (1 + pairs.components * UNIT_ROUND_OFF)
        points, transforms = [], []
        for excess in few.tolist():
            found = [_largest_transform(pairs, group, excess, unit) for group in groups]
            if several:
                found.insert(0, _together(found, hidden))
            points.append([one[0] for one in found])
            transforms.append([one[1] for one in found])
        by_group = (np.swapaxes(np.array(one), 0, 1) for one in (points, transforms))
        return cls(few, [ranked, *groups] if several else groups, leftover, *by_group)

    def lower(
        self,
        pairs: tuple[IndexArray, FloatArray],
        enough: FloatArray,
        reports: int,
        excess: FloatArray,
        smoothing: FloatArray,
        *,
        stages: int = 2,
    ) -> None:
        """Lowers upper bounds on pairs' divergences, in place, to the divergences of laws above the pairs.

        Args:
            pairs: positions of the pairs, shape (pairs,), and their bounds, shape (pairs, orders).
            enough: bounds up to this level need not be lowered, shape (orders,).
            reports, excess: number of reports, and orders minus one, shape (orders,).
            smoothing: see `blanket_profile`, shape (orders,).
            stages: 1 for the law above all pairs, 2 for the laws above groups as well.
        """
        places, upper = pairs
        groups = [np.flatnonzero(np.isin(places, one)) for one in self.groups]
        for some in (slice(1), slice(1, None))[:stages]:
            counts = [(upper[one] > enough).sum(axis=0) for one in groups[some]]
            left = np.reshape(counts, (len(counts), excess.size))
            group, order = np.nonzero(left > _FEWEST_MAJORIZED)
            found = np.ones(left.shape)
            rows = group + (some.start or 0), order
            found[group, order] = self.ceilings(rows, reports, excess, smoothing[order])
            for one, ceiling in zip(groups[some], found, strict=True):
                upper[one] = np.minimum(upper[one], ceiling)

    def ceilings(
        self, rows: tuple[IndexArray, IndexArray], reports: int, excess: FloatArray, smoothing: FloatArray
    ) -> FloatArray:
        """Returns upper bounds on the divergences of all pairs of the group `rows[0][i]` at the order
        `1 + excess[rows[1][i]]`, for every i; 1 where there is no law above them.

        Guarantee: round-off included.
        """
        group, order = rows
        laws, known = self.laws(group, excess[order])
        found = np.ones(order.size)
        if known.size:
            found[known] = _summed(laws, reports, excess[order[known]], smoothing[known])
        return found

    def laws(self, group: IndexArray, excess: FloatArray) -> tuple[Laws, IndexArray]:
        """Returns laws above those of all pairs of the group `group[i]` at the order `1 + excess[i]`, and the
        positions i for which there is one (there is none before the first order).

        Guarantee: above in the increasing convex order, up to 1e-300 and to units in the last place of the
            gains: transforms are convex along straight lines in the plane of orders and gains, and fall with
            the order.
        """
        after = np.clip(np.searchsorted(self.few, excess, side="right"), 1, self.few.size - 1)
        before = after - 1
        share = (excess - self.few[before]) / (self.few[after] - self.few[before])
        # Rounded down, to an order that is no later, and to few binary digits.
        share = np.clip(np.floor(share * _SHARE_STEPS - 1e-3) / _SHARE_STEPS, 0.0, 1.0)[:, None]
        points, transforms = (
            (1 - share) * one[group, before] + share * one[group, after]
            for one in (self.points, self.transforms)
        )
        laws, is_law = _laws(points, transforms * (1 + 8 * UNIT_ROUND_OFF), self.leftover)
        known = np.flatnonzero(is_law & (excess >= self.few[0]))
        return laws.at(known), known


def group_ceilings(
    pairs: Pairs, groups: Sequence[IndexArray], reports: int, excess: FloatArray, smoothing: FloatArray
) -> FloatArray:
    """Returns upper bounds on the divergences of all pairs of `groups[i]` at the order `1 + excess[i]`, for
    every i; 1 where there is no law above them.

    The laws are made for exactly these orders, so they are closer than those that `Majorants` interpolates.

    Args:
        pairs: as of `Majorants.of`.
        groups: positions of pairs, each of shape (pairs,).

    Guarantee: round-off included.
    """
    made = []
    for group, one in zip(groups, excess.tolist(), strict=True):
        unit = _unit(float(np.abs(_gains(pairs, group, one)[0]).max()))
        made.append(_largest_transform(pairs, group, one, unit))
    points, transforms = (np.array(one) for one in zip(*made, strict=True))
    laws, is_law = _laws(points, transforms, float(pairs.leftover(groups[0][:1])[0]))
    known, found = np.flatnonzero(is_law), np.ones(excess.size)
    if known.size:
        found[known] = _summed(laws.at(known), reports, excess[known], smoothing[known])
    return found


def _summed(laws: Laws, reports: int, excess: FloatArray, smoothing: FloatArray) -> FloatArray:
    """Returns upper bounds on the divergences of the sums of these laws' gains, shape (orders,)."""
    nothing = Bare(np.zeros_like(excess), np.zeros_like(excess))
    bounds = law_profiles(laws, nothing, reports, excess, smoothing=smoothing)
    return np.fmin(bounds.upper + TINY, 1.0)


def _unit(largest: float) -> float:
    """Returns the unit of which points are multiples if no gain is larger than `largest`."""
    return float(2.0 ** (math.frexp(max(largest, TINY))[1] - _COMMON_POINT_DIGITS))


def _gains(pairs: Pairs, which: IndexArray, excess: float) -> tuple[FloatArray, FloatArray]:
    """Returns gains of components, rounded up, and their masses, each of shape (pairs, components)."""
    masses = pairs.masses(which)
    hidden = np.where(masses.c > 0, masses.c, 1.0)
    taken = excess * masses.b
    # Outputs that were joined have ratios, and masses b, that agree up to round-off.
    terms = (np.abs(masses.difference) + taken + masses.b) / hidden
    return (masses.difference - taken) / hidden + 8 * UNIT_ROUND_OFF * terms, masses.c


def _largest_transform(
    pairs: Pairs, which: IndexArray, excess: float, unit: float
) -> tuple[FloatArray, FloatArray]:
    """Returns points from the least gain to the largest, ascending, and the largest of the pairs' transforms
    there, rounded up."""
    gains, c = _gains(pairs, which, excess)
    points = _points(gains, unit)
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


def _together(found: list[tuple[FloatArray, FloatArray]], hidden: float) -> tuple[FloatArray, FloatArray]:
    """Returns points, and the largest of several groups' transforms there; each transform is a chord between
    its own points."""
    points = found[-1][0].copy()
    points[0], points[-1] = min(one[0][0] for one in found), max(one[0][-1] for one in found)
    largest = np.zeros_like(points)
    for own, transform in found:
        after = np.clip(np.searchsorted(own, points, side="right"), 1, own.size - 1)
        width = own[after] - own[after - 1]
        share = np.clip((own[after] - points) / np.where(width > 0, width, 1.0), 0.0, 1.0)
        chord = share * transform[after - 1] + (1 - share) * transform[after]
        chord += np.maximum(own[0] - points, 0.0) * hidden
        largest = np.maximum(largest, np.where(points < own[-1], chord, 0.0))
    return points, _spared(points, largest * (1 + 16 * UNIT_ROUND_OFF), hidden)


def _spared(points: FloatArray, transforms: FloatArray, hidden: float) -> FloatArray:
    """Returns transforms that are at least these, of laws with some mass at the first point and none beyond
    the last one."""
    least = transforms[0] - (1 - _LEAST_SHARE_AT_FIRST) * hidden * (points - points[0])
    return np.append(np.maximum(transforms, least)[:-1], 0.0)


def _points(gains: FloatArray, unit: float) -> FloatArray:
    """Returns the points of a law above these gains, shape (pairs, components).

    Points are multiples of the unit. Their number does not depend on the order, and each of them is about a
    continuous function of it, so that points at two orders can be interpolated.
    """
    highest, lowest = gains.max(axis=1), gains.min(axis=1)
    pool = gains.ravel()[:: -(-gains.size // _POOLED_GAINS)]
    places = np.linspace(0, 1, _POINTS_OF_FIRST)
    parts = (
        (gains[0], places),
        (pool, _POOL_QUANTILES),
        (lowest, _EXTREME_QUANTILES),
        (highest, _EXTREME_QUANTILES),
    )
    between = np.concatenate([_quantiles(*one) for one in parts])
    first, last = lowest.min(), highest.max()
    unit = max(unit, 2.0 ** (math.frexp(max(last, -first, TINY))[1] - _POINT_DIGITS))
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
