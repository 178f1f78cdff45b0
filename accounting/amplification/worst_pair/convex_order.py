"""Laws above those of many pairs: one is summed in place of hundreds that are nearly as large.

A law is below another in the *increasing convex order* where its stop-loss transform `E[(G - t)_+]` is, for
every t, and so are then sums of independent gains. The largest transform of several pairs is that of a law,
next to those of the pairs where these are alike. `docs/theory.md`, "Majorants", has the proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.divergence import law_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Bare, Laws, Pairs
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, BoolArray, FloatArray, IndexArray

# Pairs of the first group; groups double, for the first pairs are nearly as large as the largest.
_FIRST = 16
# As many pairs are looked at closely in the time that it takes to sum a law above them.
_WORTH = 8
# Where transforms are known: at gains of the group's first pair, at quantiles of the gains of all, closer
# together at both ends, and at quantiles of their largest and least.
_OWN, _POOL = 24, 8000
_NEAR_END = 0.5 ** np.arange(3, 11)
_QUANTILES = np.concatenate([np.linspace(0, 1, 16), _NEAR_END, 1 - _NEAR_END])
_ENDS = np.linspace(0, 1, 5)
# Binary digits of these points, for the largest of an order and for the largest of all, and of the shares of
# two orders in one between them: products are exact.
_DIGITS, _MOST_DIGITS, _SHARES = 22, 30, 2.0**20
# Share of the mass that the least gain has at least, for what roundings add to others.
_SPARE = 1e-9
# Transforms that fall short by more than such a factor are no roundings.
_SHORT = 1.001
_TINY = 1e-300


class Majorants(NamedTuple):
    """Laws above those of all pairs of a group, at every order of a range.

    Attributes:
        few: the orders where transforms are known, minus one, ascending, shape (orders,).
        groups: places of the pairs that a law is above: all of them; then, where these are many, each in one
            of several groups.
        leftover: mass of the leftover component, of all pairs.
        points: gains, ascending, shape (groups, orders, points).
        transforms: `E[(G - t)_+; G is no leftover]` at most, at these, shape (groups, orders, points).
    """

    few: FloatArray
    groups: list[IndexArray]
    leftover: float
    points: FloatArray
    transforms: FloatArray

    @staticmethod
    def are_for(pairs: Pairs, few: FloatArray) -> bool:
        """Whether there are majorants of some of the pairs at such orders."""
        leftover = pairs.leftover(np.arange(len(pairs)))
        return not pairs.bare and np.ptp(leftover) == 0 and few.size > 1 and bool(np.all(np.diff(few) > 0))

    @classmethod
    def of(cls, pairs: Pairs, ranked: IndexArray, few: FloatArray) -> Majorants:
        """Those of the pairs at the places `ranked`, which seem the largest in this order.

        Args:
            pairs: pairs with no component that nobody hides, and leftover components of equal mass.
            ranked: places, shape (pairs,).
            few: orders minus one, ascending, shape (orders,).
        """
        ends = [0]
        while ends[-1] < ranked.size:
            ends.append(min(max(_FIRST, 2 * ends[-1]), ranked.size))
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
        """Lower bounds on pairs' divergences at the orders `1 + excess` to those of laws that are above them,
        as long as they are more than enough, shape (orders,).

        Args:
            pairs: their places, shape (pairs,), and the bounds, shape (pairs, orders).
            smoothing: see `blanket_profile`, shape (orders,).
            stages: 1 for the law above all pairs, 2 for those above some as well.
        """
        places, upper = pairs
        groups = [np.flatnonzero(np.isin(places, one)) for one in self.groups]
        for some in (slice(1), slice(1, None))[:stages]:
            counts = [(upper[one] > enough).sum(axis=0) for one in groups[some]]
            left = np.reshape(counts, (len(counts), excess.size))
            group, order = np.nonzero(left > _WORTH)
            found = np.ones(left.shape)
            rows = group + (some.start or 0), order
            found[group, order] = self.ceilings(rows, reports, excess, smoothing[order])
            for one, ceiling in zip(groups[some], found, strict=True):
                upper[one] = np.minimum(upper[one], ceiling)

    def ceilings(
        self, rows: tuple[IndexArray, IndexArray], reports: int, excess: FloatArray, smoothing: FloatArray
    ) -> FloatArray:
        """Upper bounds on the divergences of all pairs of the groups `rows[0][i]` at the orders
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
        """Laws above those of all pairs of the groups `group[i]` at the orders `1 + excess[i]`, and for which
        i there are any: at no order before the first one.

        Guarantee: in the increasing convex order, but for 1e-300 and for units in the last place of the
            gains. Transforms are convex along straight lines of orders and gains, and fall with the order.
        """
        after = np.clip(np.searchsorted(self.few, excess, side="right"), 1, self.few.size - 1)
        before = after - 1
        share = (excess - self.few[before]) / (self.few[after] - self.few[before])
        # Of an order that is no later; shares of few digits.
        share = np.clip(np.floor(share * _SHARES - 1e-3) / _SHARES, 0.0, 1.0)[:, None]
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
    """Upper bounds on the divergences of all pairs of `groups[i]` at the order `1 + excess[i]`, for every i,
    closer than by laws between orders; 1 where there is no law above them.

    Args:
        pairs: as of `Majorants.of`.
        groups: places of pairs, each of shape (pairs,).

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
    """Upper bounds on the divergences of sums."""
    nothing = Bare(np.zeros_like(excess), np.zeros_like(excess))
    bounds = law_profiles(laws, nothing, reports, excess, smoothing=smoothing)
    return np.fmin(bounds.upper + _TINY, 1.0)


def _unit(largest: float) -> float:
    """Points are multiples of it where gains are no larger."""
    return float(2.0 ** (math.frexp(max(largest, _TINY))[1] - _MOST_DIGITS))


def _gains(pairs: Pairs, which: IndexArray, excess: float) -> tuple[FloatArray, FloatArray]:
    """Gains of components, rounded up, and their masses, shape (pairs, components)."""
    masses = pairs.masses(which)
    hidden = np.where(masses.c > 0, masses.c, 1.0)
    taken = excess * masses.b
    # Outputs that were joined have ratios, and b, that agree but for a rounding.
    terms = (np.abs(masses.difference) + taken + masses.b) / hidden
    return (masses.difference - taken) / hidden + 8 * UNIT_ROUND_OFF * terms, masses.c


def _largest_transform(
    pairs: Pairs, which: IndexArray, excess: float, unit: float
) -> tuple[FloatArray, FloatArray]:
    """Points, ascending, from the least gain to the largest, and there the largest of the pairs' transforms,
    rounded up."""
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
    # From one point to the one before: what is between them, and a step for all mass beyond.
    after = np.column_stack([np.cumsum(mass[:, :1:-1], axis=1)[:, ::-1], np.zeros(which.size)])
    steps = between[:, 1:] + np.diff(points) * after
    transforms = np.column_stack([np.cumsum(steps[:, ::-1], axis=1)[:, ::-1], np.zeros(which.size)])
    largest = transforms.max(axis=0) * (1 + 4 * (size + gains.shape[1]) * UNIT_ROUND_OFF)
    return points, _spared(points, largest, float(c.sum(axis=1).min()))


def _together(found: list[tuple[FloatArray, FloatArray]], hidden: float) -> tuple[FloatArray, FloatArray]:
    """Points, and there the largest of the transforms of several groups, each a chord between its points."""
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
    """Transforms no less, of laws with some mass at the first point, and none beyond the last one."""
    least = transforms[0] - (1 - _SPARE) * hidden * (points - points[0])
    return np.append(np.maximum(transforms, least)[:-1], 0.0)


def _points(gains: FloatArray, unit: float) -> FloatArray:
    """Points between which gains, shape (pairs, components), are split: multiples of the unit, as many
    whatever the order, each about a continuous function of it."""
    highest, lowest = gains.max(axis=1), gains.min(axis=1)
    pool = gains.ravel()[:: -(-gains.size // _POOL)]
    places = np.linspace(0, 1, _OWN)
    parts = (gains[0], places), (pool, _QUANTILES), (lowest, _ENDS), (highest, _ENDS)
    between = np.concatenate([_quantiles(*one) for one in parts])
    first, last = lowest.min(), highest.max()
    unit = max(unit, 2.0 ** (math.frexp(max(last, -first, _TINY))[1] - _DIGITS))
    first, last = np.floor(first / unit), np.ceil(last / unit)
    between = np.sort(np.clip(np.round(between / unit), first, last))
    return np.asarray(np.concatenate([[first], between, [last]]) * unit)


def _quantiles(values: FloatArray, shares: FloatArray) -> FloatArray:
    return np.asarray(np.sort(values)[np.round(shares * (values.size - 1)).astype(np.int64)])


def _laws(points: FloatArray, transforms: FloatArray, leftover: float) -> tuple[Laws, BoolArray]:
    """Laws on these points whose transforms are at least these, one for each row; and which rows have one."""
    steps, size = np.diff(points, axis=1), points.shape[1]
    mass, beyond = np.zeros_like(points), np.zeros(len(points))
    for place in range(size - 1, 0, -1):
        fallen, step = transforms[:, place - 1] - transforms[:, place], steps[:, place - 1]
        slope = np.where(step > 0, fallen / np.where(step > 0, step, 1.0), 0.0)
        mass[:, place] = np.maximum(slope - beyond, 0.0)
        beyond += mass[:, place]
    # What these masses come to, and by how much that is to be raised for roundings.
    after = np.cumsum(mass[:, :0:-1], axis=1)[:, ::-1]
    reached = np.cumsum((after * steps)[:, ::-1], axis=1)[:, ::-1]
    wanted = transforms[:, :-1]
    with np.errstate(over="ignore"):
        short = np.where(wanted > 0, wanted / np.maximum(reached, _TINY), 1.0).max(axis=1)
    mass *= np.clip(short, 1.0, _SHORT)[:, None] * (1 + 16 * size * UNIT_ROUND_OFF)
    # The least gain has what is left; of what is lost to a rounding, the leftover component.
    mass[:, 0] = [(1 - leftover) - math.fsum(one) - 4 * UNIT_ROUND_OFF for one in mass[:, 1:].tolist()]
    is_law = (short < _SHORT) & (mass[:, 0] > 0) & (points[:, 0] <= 0)
    gained = mass * points
    drift = [math.fsum(one) for one in gained.tolist()] + 4 * UNIT_ROUND_OFF * np.abs(gained).sum(axis=1)
    gains, nothing = np.where(mass > 0, points, 0.0), np.zeros_like(mass)
    rest, dropped = np.full(len(mass), leftover), np.zeros(len(mass))
    return Laws(gained, nothing, mass, gains, rest, drift, dropped), is_law
