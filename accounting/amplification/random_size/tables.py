"""Profiles of every number of reports on one grid of orders, as fine as bounds between its orders need.

In between a profile is convex: at most its chord, and at least a chord between values that are lowered by as
much as chords can be above. `docs/theory.md`, "Every number at once", has the proofs.
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
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, order_less_one
from shuffle_ledger.accounting.numeric.convex_minorants import SupportingLines
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# Pairs whose every number is summed at most. Outcomes that are few enough to be listed one number after the
# other in no time.
_FEW_PAIRS = 4
_FEW_OUTCOMES = 60_000
# Stretches of a first grid that are filled evenly, with so many cells at most; what chords may do at first,
# and at last, in units of what bounds may be apart by; into how many cells one is divided at most, and how
# often.
_STRETCHES, _MOST_CELLS = 48, 256
_CHORDS, _FAR = 1.0, 1.2
_MOST_PIECES, _DIVISIONS = 8, 3
# Smoothing is less than asked, for chords are next to what it does. Where bounds come out wide it is as
# little as they need, but for this factor and no less at once than by that, so often.
_CLOSER, _SURER, _SHARPEST, _TRIES = 0.8, 1.1, 6.0, 8
# Nodes are as many as there is little smoothing. These are worth while as long as they are no more than those
# of so many orders: the less, the fewer numbers there are, for one after the other these cost no more than
# nodes do that serve so many; or as values of so many where outcomes are listed instead. A share of orders
# may remain wide.
_MOST_ORDERS, _NODES_ALONE, _MOST_LISTED = 4e4, 500, 3e5
_HARDLY_ANY = 0.02
_STEEPEST = -1.0  # slope of a profile from order 1 on
_TOGETHER = 64  # numbers whose chords are lowered together
_ROUNDING = 8 * UNIT_ROUND_OFF
_ROOM = 64 * UNIT_ROUND_OFF  # for that of chords
_UNLIMITED = 700.0


class CountTable(NamedTuple):
    """Profiles of every number of reports on one grid of orders.

    Attributes:
        excess: orders minus one, ascending from 0, shape (orders,).
        upper: values whose chords are above the profiles, shape (counts, orders).
        lower: values whose chords are below them.
        blur: how far off orders may be, in units of `excess + reach`.
        reach: see there.
    """

    excess: FloatArray
    upper: FloatArray
    lower: FloatArray
    blur: float
    reach: float

    @classmethod
    def of(cls, excess: FloatArray, bounds: ProfileBounds, *, blur: float, reach: float) -> CountTable:
        """The table of profiles between these bounds at the orders, shape (counts, orders)."""
        upper, lower = bounds.upper * (1 + _ROOM), bounds.lower * (1 - _ROOM)
        # Before a range of orders that begins far from 0 profiles are no less than at its beginning.
        first = int(excess.size > 2 and excess[1] > 2 * (excess[2] - excess[1]))
        for start in range(0, len(lower), _TOGETHER):
            some = slice(start, start + _TOGETHER), slice(first, None)
            lower[some] = SupportingLines.of(excess[first:], upper[some], lower[some], _STEEPEST).lowered()
        lower[:, 0] = lower[:, first]
        # A chord that falls by many digits is rounded by units of its beginning.
        upper[:, 1:] += _ROUNDING * bounds.upper[:, :-1]
        return cls(excess, upper, lower, blur, reach)

    def above(self, row: int, excess: FloatArray) -> FloatArray:
        """Upper bounds on the profile of a number, by its place, at orders that are rounded."""
        off = self._off(excess)
        # Beyond order 1 a profile falls no faster than the order rises.
        before = np.maximum(off - excess, 0.0)
        return np.asarray(np.interp(np.maximum(excess - off, 0.0), self.excess, self.upper[row]) + before)

    def below(self, row: int, excess: FloatArray) -> FloatArray:
        """Lower bounds, likewise."""
        return np.asarray(np.interp(excess + self._off(excess), self.excess, self.lower[row], right=0.0))

    def _off(self, excess: FloatArray) -> FloatArray:
        return np.asarray(self.blur * (excess + self.reach) + _ROUNDING * excess)


class _Plan(NamedTuple):
    """Orders of a table, and what they need.

    Attributes:
        excess: orders minus one, ascending, shape (orders,).
        smoothing: of each side's pairs, shape (sides, orders).
        bounds: what a typical number's profile is then between, each of shape (orders,).
        wide: at how many orders that is wide.
    """

    excess: FloatArray
    smoothing: FloatArray
    bounds: ProfileBounds
    wide: int

    def joined(self, other: _Plan) -> _Plan:
        """Both plans' orders."""
        excess = np.concatenate([self.excess, other.excess])
        order = np.argsort(excess)
        smoothing = np.concatenate([self.smoothing, other.smoothing], axis=1)
        upper, lower = (np.concatenate(both)[order] for both in zip(self.bounds, other.bounds, strict=True))
        bounds = ProfileBounds(upper, lower)
        return _Plan(excess[order], smoothing[:, order], bounds, self.wide + other.wide)


@dataclass(frozen=True, kw_only=True)
class CountTables:
    """Makes tables of the largest of some blanket pairs' profiles.

    Attributes:
        above, below: pairs for upper and for lower bounds; the same where these are exact.
        largest_loss: loss beyond which the profile is exactly 0.
        smoothing: how far apart bounds may be: the square of it, of losses; see `blanket_profile`.
        bounds: those on the largest profile of so many reports.
        usual: how far apart bounds are, relative, that are about so large, where laws are of one scale.
        is_listed: whether the outcomes of so many reports are listed, if there is no table.
    """

    above: Pairs
    below: Pairs
    largest_loss: float
    smoothing: float
    bounds: Callable[[int, FloatArray], ProfileBounds]
    usual: Callable[[int, FloatArray], FloatArray]
    is_listed: Callable[[int], bool]

    def between(self, counts: Counts, first: float, last: float) -> tuple[FloatArray, ProfileBounds] | None:
        """Orders minus one, ascending: 0, and from first to last, or to where profiles are 0; and bounds on
        the divergences of every number of reports, shape (counts, orders). None where bounds would be wide,
        or where numbers one after the other are faster."""
        if max(len(self.above), len(self.below)) > _FEW_PAIRS or self._is_in_no_time(counts.typical):
            return None
        end = order_less_one(min(self.largest_loss, _UNLIMITED))
        if min(last, end) <= first:
            return None
        most = _MOST_ORDERS * counts.size / (counts.size + _NODES_ALONE)
        if self.is_listed(counts.typical):
            most = min(most, _MOST_LISTED / counts.size)
        plan = self._planned(counts, self._spaced(counts.typical, first, min(last, end)), end, most)
        for _ in range(_DIVISIONS):
            if plan.wide > _HARDLY_ANY * plan.excess.size:
                return None
            added = self._dividing(counts.typical, plan)
            if not added.size:
                break
            plan = plan.joined(self._planned(counts, added, end, most - self._more_nodes(plan.smoothing)))
        if plan.wide > _HARDLY_ANY * plan.excess.size:
            return None
        return plan.excess, self._followed(counts, plan, end)

    def _is_in_no_time(self, reports: int) -> bool:
        return all(is_countable(one, reports, limit=_FEW_OUTCOMES) for one in self.above)

    def _spaced(self, reports: int, first: float, last: float) -> FloatArray:
        """Orders that are so close that chords between them are about as far from the profile as bounds may
        be apart."""
        ends = first + (last - first) * np.linspace(0.0, 1.0, _STRETCHES + 1) ** 2
        values = np.maximum(self.bounds(reports, ends).upper, NEGLIGIBLE_DELTA)
        # Where a profile falls by the exponent h between two orders, a chord is above it by up to h^2 / 8.
        apart = np.sqrt(_CHORDS * self._allowed(reports, ends, values) / values)
        cells = np.clip(-np.diff(np.log(values)) / np.minimum(apart[:-1], apart[1:]), 1, _MOST_CELLS)
        return np.unique(np.concatenate([[0.0, last], *_divided(ends, np.ceil(cells))]))

    def _dividing(self, reports: int, plan: _Plan) -> FloatArray:
        """Orders that divide cells whose chords are far from the profile of a typical number."""
        lines = SupportingLines.of(plan.excess, plan.bounds.upper, plan.bounds.lower, _STEEPEST)
        far = lines.sag / (_FAR * self._allowed(reports, plan.excess, plan.bounds.upper)[:-1])
        pieces = np.minimum(np.ceil(np.sqrt(far)), _MOST_PIECES)
        return np.concatenate([np.zeros(0), *(part[1:] for part in _divided(plan.excess, pieces))])

    def _allowed(self, reports: int, excess: FloatArray, values: FloatArray) -> FloatArray:
        """How far apart bounds on divergences may be for losses to be known to the smoothing's square: the
        more, the faster these values fall."""
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = -np.diff(np.log(np.maximum(values, NEGLIGIBLE_DELTA))) / np.diff(np.log(excess))
        fall = np.maximum(np.maximum(np.append(fall, np.inf), np.append(0.0, fall)), 0.0)
        relative = np.minimum(self.usual(reports, values), self.smoothing**2 * (1 + fall))
        return np.asarray(relative * values + NEGLIGIBLE_DELTA)

    @property
    def _sides(self) -> list[Pairs]:
        return [self.above] if self.below is self.above else [self.above, self.below]

    def _planned(self, counts: Counts, excess: FloatArray, end: float, most: float) -> _Plan:
        """How much smoothing these orders need, by the contours of all numbers at the typical one."""
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
        """Bounds on the profile of a typical number by the pairs of one side, the smoothing of each order,
        and at how many of these they came out wide."""
        ends = counts.ends
        smoothing, left = np.full_like(excess, _CLOSER * self.smoothing), np.arange(excess.size)
        found = ProfileBounds(np.empty_like(excess), np.empty_like(excess))
        for _ in range(_TRIES):
            tried = _largest(pairs, ends, excess[left], smoothing[left])
            for known, values in zip(found, tried, strict=True):
                known[left] = values[ends.place]
            width = (found.upper - found.lower) / self._allowed(counts.typical, excess, found.upper)
            # Distances are as the square of the smoothing, and nodes as many as there is little of it.
            left = left[width[left] > 1]
            closer = smoothing.copy()
            closer[left] /= np.clip(_SURER * np.sqrt(width[left]), 1.0, _SHARPEST)
            if not left.size or self._more_nodes(closer) > most:
                break
            smoothing = closer
        return found, smoothing, left.size

    def _more_nodes(self, smoothing: FloatArray) -> float:
        """Of how many orders with the usual smoothing nodes are added by less of it."""
        return float((self.smoothing / smoothing).sum()) - smoothing.size / _CLOSER

    def _followed(self, counts: Counts, plan: _Plan, end: float) -> ProfileBounds:
        """Bounds on the profiles of every number, shape (counts, orders)."""
        inside = plan.excess < end
        found = [
            _largest(pairs, counts, plan.excess[inside], smoothing[inside])
            for pairs, smoothing in zip(self._sides, plan.smoothing, strict=True)
        ]
        upper, lower = (np.zeros((counts.size, inside.size)) for _ in range(2))
        upper[:, inside], lower[:, inside] = found[0].upper, found[-1].lower
        return ProfileBounds(upper, lower)


def _largest(pairs: Pairs, counts: Counts, excess: FloatArray, smoothing: FloatArray) -> ProfileBounds:
    """Bounds on the largest divergences of the pairs, shape (counts, orders)."""
    parts = (every_count(pairs, place, counts, excess, smoothing=smoothing) for place in range(len(pairs)))
    return functools.reduce(lambda one, other: ProfileBounds(*map(np.maximum, one, other)), parts)


def _divided(ends: FloatArray, pieces: FloatArray) -> list[FloatArray]:
    """The cells between the ends divided evenly into so many pieces: where these begin."""
    cells = zip(ends[:-1].tolist(), ends[1:].tolist(), pieces.astype(np.int64).tolist(), strict=True)
    return [np.linspace(start, end, max(number, 1), endpoint=False) for start, end, number in cells]
