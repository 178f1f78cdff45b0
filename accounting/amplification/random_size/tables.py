"""Tables of the profiles for every number of reports on one grid of orders, fine enough for bounds between
them.

Between two orders of the grid a profile is convex: it is at most its chord, and at least the chord between
lowered values, lowered by as much as a chord can be above the profile. `docs/theory.md`, "Every number at
once", has the proofs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.amplification.enumeration import is_countable
from shuffle_ledger.accounting.amplification.random_size.contour import Counts, every_count
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    UNIT_ROUND_OFF,
    FloatArray,
    order_less_one,
)
from shuffle_ledger.accounting.numeric.convex_minorants import SupportingLines
from shuffle_ledger.accounting.numeric.effort import MOST_EFFORT, counted
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# A table is made for at most this many pairs, and not if a number's outcomes, at most this many, can be
# listed: then one number after the other is faster.
_MOST_PAIRS = 4
_LISTED_OUTCOMES = 60_000
# The first grid has this many stretches, each filled evenly with at most this many cells.
_STRETCHES, _MOST_CELLS_OF_STRETCH = 48, 256
# Allowed distance of a chord from the profile in the first grid, and in the final one, in units of the
# allowed distance of the bounds; a cell is divided into at most this many pieces at once, and the grid this
# often.
_FIRST_CHORD_DISTANCE, _LAST_CHORD_DISTANCE = 1.0, 1.2
_MOST_PIECES, _MOST_DIVISIONS = 8, 3
# The smoothing is this share of the one asked for, since chords widen the bounds too. Where bounds come out
# wide it is divided by the root of their width times a margin, at most by the third number at once, this
# often.
_SMOOTHING_SHARE, _SMOOTHING_MARGIN, _MOST_DIVISOR, _MOST_TRIES = 0.8, 1.1, 6.0, 8
# The work of a table, in nodes of one order with the usual smoothing, is limited: for many numbers by the
# first value, and for fewer numbers by a share of it, half of it for the second value. If outcomes could be
# listed instead, orders times numbers are limited by the third.
_MOST_NODE_WORK, _NUMBERS_OF_HALF_WORK, _MOST_LISTED_VALUES = 4e4, 500, 3e5
# The same in array elements, of which a node takes about the second number; and the least smoothing of an
# order, as a share of the usual one: less would take millions of nodes.
_MOST_TABLE_EFFORT, _NODE_ELEMENTS, _SHARE_OF_USUAL = MOST_EFFORT / 4, 35, 1 / 64
# About how many times the effort of the typical number's profile a table takes.
_TABLE_FACTOR = 3.0
# Share of the orders at which bounds may stay wide; with more there is no table.
_MOST_WIDE_SHARE = 0.02
_STEEPEST_SLOPE = -1.0  # of a profile, from order 1 on
_NUMBERS_TOGETHER = 64  # numbers whose chords are lowered in one array operation
_ROUND_OFF = 8 * UNIT_ROUND_OFF
_CHORD_ROUND_OFF = 64 * UNIT_ROUND_OFF  # room that values make for the round-off of chords


class CountTable(NamedTuple):
    """Bounds on the profiles for every number of reports on one grid of orders.

    Attributes:
        excess: orders minus one, ascending from 0, shape (orders,).
        upper: values whose chords are above the profiles, shape (counts, orders).
        lower: values whose chords are below the profiles, shape (counts, orders).
        blur, reach: an order `1 + excess` may be off by `blur * (excess + reach)`.
    """

    excess: FloatArray
    upper: FloatArray
    lower: FloatArray
    blur: float
    reach: float

    @classmethod
    def of(cls, excess: FloatArray, bounds: ProfileBounds, *, blur: float, reach: float) -> CountTable:
        """Makes the table of profiles from bounds at the orders of the grid, shape (counts, orders)."""
        upper, lower = bounds.upper * (1 + _CHORD_ROUND_OFF), bounds.lower * (1 - _CHORD_ROUND_OFF)
        # If the range of orders begins far from 0, the value at its beginning is a lower bound before it.
        first = int(excess.size > 2 and excess[1] > 2 * (excess[2] - excess[1]))
        for start in range(0, len(lower), _NUMBERS_TOGETHER):
            some = slice(start, start + _NUMBERS_TOGETHER), slice(first, None)
            lower[some] = SupportingLines.of(
                excess[first:], upper[some], lower[some], _STEEPEST_SLOPE
            ).lowered()
        lower[:, 0] = lower[:, first]
        # A chord that falls by many digits has round-off in units of its beginning.
        upper[:, 1:] += _ROUND_OFF * bounds.upper[:, :-1]
        return cls(excess, upper, lower, blur, reach)

    def above(self, row: int, excess: FloatArray) -> FloatArray:
        """Returns upper bounds on the profile of the number at position `row`, at orders that may be off by
        round-off, shape of `excess`."""
        off = self._off(excess)
        # Beyond order 1 a profile falls no faster than the order rises.
        before = np.maximum(off - excess, 0.0)
        return np.asarray(np.interp(np.maximum(excess - off, 0.0), self.excess, self.upper[row]) + before)

    def below(self, row: int, excess: FloatArray) -> FloatArray:
        """Returns lower bounds, likewise."""
        return np.asarray(np.interp(excess + self._off(excess), self.excess, self.lower[row], right=0.0))

    def _off(self, excess: FloatArray) -> FloatArray:
        return np.asarray(self.blur * (excess + self.reach) + _ROUND_OFF * excess)


class _Plan(NamedTuple):
    """Orders of a table, and the smoothing that they need.

    Attributes:
        excess: orders minus one, ascending, shape (orders,).
        smoothing: for the pairs of each side, shape (sides, orders).
        bounds: bounds on the typical number's profile with this smoothing, each of shape (orders,).
        wide: number of orders at which these bounds are too wide.
    """

    excess: FloatArray
    smoothing: FloatArray
    bounds: ProfileBounds
    wide: int

    def joined(self, other: _Plan) -> _Plan:
        """Returns one plan with the orders of both."""
        excess = np.concatenate([self.excess, other.excess])
        order = np.argsort(excess)
        smoothing = np.concatenate([self.smoothing, other.smoothing], axis=1)
        upper, lower = (np.concatenate(both)[order] for both in zip(self.bounds, other.bounds, strict=True))
        bounds = ProfileBounds(upper, lower)
        return _Plan(excess[order], smoothing[:, order], bounds, self.wide + other.wide)


@dataclass(frozen=True, kw_only=True)
class CountTables:
    """Makes tables of the largest profile of some blanket pairs.

    Attributes:
        above, below: pairs for upper and for lower bounds; the same if the pairs are exact.
        largest_loss: privacy loss beyond which the profile is exactly 0.
        smoothing: its square is the allowed error of losses; see `blanket_profile`.
        bounds: returns bounds on the largest profile, given a number of reports and orders minus one.
        usual: returns the usual relative width of bounds, given a number of reports and about their values.
        is_listed: returns whether, without a table, the outcomes of this many reports would be listed.
    """

    above: Pairs
    below: Pairs
    largest_loss: float
    smoothing: float
    bounds: Callable[[int, FloatArray], ProfileBounds]
    usual: Callable[[int, FloatArray], FloatArray]
    is_listed: Callable[[int], bool]

    def between(self, counts: Counts, first: float, last: float) -> tuple[FloatArray, ProfileBounds] | None:
        """Returns a grid of orders minus one, and bounds on the divergences of every number of reports there,
        shape (counts, orders).

        The grid is ascending: 0, then from `first` to `last` or to the end of the profiles. The result is
        None if bounds would be too wide, or if evaluating one number after the other is faster.
        """
        if max(len(self.above), len(self.below)) > _MOST_PAIRS or self._is_listed_fast(counts.typical):
            return None
        end = order_less_one(min(self.largest_loss, LARGEST_EXPONENT))
        if min(last, end) <= first:
            return None
        most = _MOST_NODE_WORK * counts.size / (counts.size + _NUMBERS_OF_HALF_WORK)
        if self.is_listed(counts.typical):
            most = min(most, _MOST_LISTED_VALUES / counts.size)
        with counted() as effort:
            spaced = self._spaced(counts.typical, first, min(last, end))
        if _TABLE_FACTOR * effort.spent / _STRETCHES * spaced.size > MOST_EFFORT:
            return None
        plan = self._planned(counts, spaced, end, most)
        for _ in range(_MOST_DIVISIONS):
            if plan.wide > _MOST_WIDE_SHARE * plan.excess.size:
                return None
            added = self._dividing(counts.typical, plan)
            if not added.size:
                break
            plan = plan.joined(self._planned(counts, added, end, most - self._more_nodes(plan.smoothing)))
        if plan.wide > _MOST_WIDE_SHARE * plan.excess.size:
            return None
        return plan.excess, self._followed(counts, plan, end)

    def _is_listed_fast(self, reports: int) -> bool:
        return all(is_countable(one, reports, limit=_LISTED_OUTCOMES) for one in self.above)

    def _spaced(self, reports: int, first: float, last: float) -> FloatArray:
        """Returns orders minus one, so close to each other that chords are about as far from the profile as
        the bounds are allowed to be apart."""
        ends = first + (last - first) * np.linspace(0.0, 1.0, _STRETCHES + 1) ** 2
        values = np.maximum(self.bounds(reports, ends).upper, NEGLIGIBLE_DELTA)
        # Where a profile falls by the exponent h between two orders, a chord is above it by up to h^2 / 8.
        apart = np.sqrt(_FIRST_CHORD_DISTANCE * self._allowed(reports, ends, values) / values)
        cells = np.clip(
            -np.diff(np.log(values)) / np.minimum(apart[:-1], apart[1:]), 1, _MOST_CELLS_OF_STRETCH
        )
        return np.unique(np.concatenate([[0.0, last], *_divided(ends, np.ceil(cells))]))

    def _dividing(self, reports: int, plan: _Plan) -> FloatArray:
        """Returns orders minus one that divide the cells whose chords are too far from the typical
        profile."""
        lines = SupportingLines.of(plan.excess, plan.bounds.upper, plan.bounds.lower, _STEEPEST_SLOPE)
        far = lines.sag / (_LAST_CHORD_DISTANCE * self._allowed(reports, plan.excess, plan.bounds.upper)[:-1])
        pieces = np.minimum(np.ceil(np.sqrt(far)), _MOST_PIECES)
        return np.concatenate([np.zeros(0), *(part[1:] for part in _divided(plan.excess, pieces))])

    def _allowed(self, reports: int, excess: FloatArray, values: FloatArray) -> FloatArray:
        """Returns the allowed distance of bounds on divergences, shape (orders,): losses are then known up to
        the square of the smoothing. It is larger where the values fall fast."""
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = -np.diff(np.log(np.maximum(values, NEGLIGIBLE_DELTA))) / np.diff(np.log(excess))
        fall = np.maximum(np.maximum(np.append(fall, np.inf), np.append(0.0, fall)), 0.0)
        relative = np.minimum(self.usual(reports, values), self.smoothing**2 * (1 + fall))
        return np.asarray(relative * values + NEGLIGIBLE_DELTA)

    @property
    def _sides(self) -> list[Pairs]:
        return [self.above] if self.below is self.above else [self.above, self.below]

    def _planned(self, counts: Counts, excess: FloatArray, end: float, most: float) -> _Plan:
        """Returns a plan with the smoothing that these orders need, found at the typical number with the
        contours that serve all numbers."""
        inside = excess < end
        found = [self._tried(pairs, counts, excess[inside], most) for pairs in self._sides]
        smoothing = np.full((len(found), excess.size), self.smoothing)
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        smoothing[:, inside] = [side for _, side, _ in found]
        upper[inside], lower[inside] = found[0][0].upper, found[-1][0].lower
        return _Plan(excess, smoothing, ProfileBounds(upper, lower), max(wide for *_, wide in found))

    def _tried(
        self, pairs: Pairs, counts: Counts, excess: FloatArray, most: float
    ) -> tuple[ProfileBounds, FloatArray, int]:
        """Returns bounds on the typical number's profile from the pairs of one side, the smoothing of each
        order, and the number of orders at which the bounds are too wide."""
        ends, least = counts.ends, _SHARE_OF_USUAL * self.smoothing
        smoothing, left = np.full_like(excess, _SMOOTHING_SHARE * self.smoothing), np.arange(excess.size)
        found = ProfileBounds(np.empty_like(excess), np.empty_like(excess))
        stuck = 0
        for _ in range(_MOST_TRIES):
            with counted() as effort:
                tried = _largest(pairs, ends, excess[left], smoothing[left])
            if left.size == excess.size:
                most = min(most, _affordable(effort.spent, counts, excess.size))
            for known, values in zip(found, tried, strict=True):
                known[left] = values[ends.place]
            width = (found.upper - found.lower) / self._allowed(counts.typical, excess, found.upper)
            # The width is about proportional to the square of the smoothing, the nodes to its inverse.
            left = left[width[left] > 1]
            closer = smoothing.copy()
            closer[left] /= np.clip(_SMOOTHING_MARGIN * np.sqrt(width[left]), 1.0, _MOST_DIVISOR)
            closer[left] = np.maximum(closer[left], np.minimum(least, smoothing[left]))
            if not left.size or self._more_nodes(closer) > most:
                break
            going = closer[left] < smoothing[left]
            stuck, left, smoothing = stuck + int((~going).sum()), left[going], closer
            if not left.size:
                break
        return found, smoothing, left.size + stuck

    def _more_nodes(self, smoothing: FloatArray) -> float:
        """Returns the work that less smoothing adds, in nodes of one order with the usual smoothing."""
        return float((self.smoothing / smoothing).sum()) - smoothing.size / _SMOOTHING_SHARE

    def _followed(self, counts: Counts, plan: _Plan, end: float) -> ProfileBounds:
        """Returns bounds on the profiles of every number at the plan's orders, shape (counts, orders)."""
        inside = plan.excess < end
        found = [
            _largest(pairs, counts, plan.excess[inside], smoothing[inside])
            for pairs, smoothing in zip(self._sides, plan.smoothing, strict=True)
        ]
        upper, lower = (np.zeros((counts.size, inside.size)) for _ in range(2))
        upper[:, inside], lower[:, inside] = found[0].upper, found[-1].lower
        return ProfileBounds(upper, lower)


def _affordable(effort: float, counts: Counts, orders: int) -> float:
    """Returns the work that less smoothing may add (see `_more_nodes`), given the array elements that the
    ends of the counts took at these orders."""
    every, ends = (
        _NODE_ELEMENTS + sum(sum(run.factors) for run in one.runs) for one in (counts, counts.ends)
    )
    usual = orders / _SMOOTHING_SHARE
    return usual * (_MOST_TABLE_EFFORT / max(effort * every / ends, 1.0) - 1)


def _largest(pairs: Pairs, counts: Counts, excess: FloatArray, smoothing: FloatArray) -> ProfileBounds:
    """Returns bounds on the largest of the pairs' divergences, shape (counts, orders)."""
    parts = (every_count(pairs, place, counts, excess, smoothing=smoothing) for place in range(len(pairs)))
    return functools.reduce(lambda one, other: ProfileBounds(*map(np.maximum, one, other)), parts)


def _divided(ends: FloatArray, pieces: FloatArray) -> list[FloatArray]:
    """Divides the cell between `ends[i]` and `ends[i + 1]` evenly into `pieces[i]` pieces, for every i, and
    returns the beginnings of the pieces."""
    cells = zip(ends[:-1].tolist(), ends[1:].tolist(), pieces.astype(np.int64).tolist(), strict=True)
    return [np.linspace(start, end, max(number, 1), endpoint=False) for start, end, number in cells]
