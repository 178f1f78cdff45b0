"""Looks at many pairs' profiles at a few orders: which of them may be the largest."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray

#: Pairs that are evaluated first at every order, since they seem the largest.
CANDIDATES = 4
#: What a round may add to a profile without being evaluated: 100,000 rounds make a hundredth of 1e-30 of it.
LITTLE = 1e-37
#: A look that leaves so much of what it looks at is not repeated.
IN_VAIN = 0.8
#: Orders at which all pairs are looked at, and which of those of a question at least.
SAMPLES = 25
SPARSER = 4
#: Below what matters of a divergence.
TINY = 1e-300
# Fewer orders are divided, and orders beyond them added.
_MANY = 24
_BEYOND = 8


class Sample(NamedTuple):
    """Bounds on pairs' profiles at a few orders, shape (pairs, orders).

    `upper` is a bound everywhere; `lower` is -1 where nothing was evaluated. `majorants` are those of the
    pairs that may be the largest, where these are many, unless they would be `in_vain`.
    """

    few: FloatArray
    upper: FloatArray
    lower: FloatArray
    majorants: Majorants | None = None
    in_vain: bool = False

    def at(self, columns: IndexArray) -> Sample:
        """The same at some of the orders, with bounds of its own."""
        return self._replace(
            few=self.few[columns], upper=self.upper[:, columns], lower=self.lower[:, columns]
        )

    def open(self, columns: IndexArray, room: FloatArray) -> tuple[IndexArray, IndexArray]:
        """Which pairs, not evaluated, may be above all that are by more than such a share; and at which
        orders, of those in the columns."""
        reached = (np.maximum(self.lower.max(axis=0), LITTLE) * (1 + room))[columns]
        which, order = np.nonzero((self.lower[:, columns] < 0) & (self.upper[:, columns] > reached))
        return which, columns[order]

    def highest(self, columns: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Pairs, not evaluated, that may be above all that are, with the largest bounds at orders in these
        columns; and the orders."""
        reached = np.maximum(self.lower.max(axis=0), LITTLE)[columns]
        unknown = np.where(self.lower < 0, self.upper, -1.0)[:, columns]
        which, order = highest(unknown, CANDIDATES)
        left = unknown[which, order] > reached[order]
        return which[left], columns[order[left]]

    def covers(self, excess: FloatArray, *known: FloatArray) -> bool:
        """Whether it, and bounds known at other orders, say in all this range about what a sample of its own
        would say."""
        within = self.few[0] <= excess[0] and excess[-1] <= self.few[-1]
        inside = [np.diff(np.searchsorted(one, [excess[0], excess[-1]]))[0] for one in (self.few, *known)]
        return bool(within and max(inside) >= min(excess.size, SAMPLES) // SPARSER)

    @property
    def bounds(self) -> Bounds:
        """Those on all pairs."""
        every, others = np.arange(len(self.upper)), np.zeros_like(self.few)
        return Bounds(self.few, every, self.upper, others, self.lower.max(axis=0))

    def likely(self, excess: FloatArray) -> IndexArray:
        """The pair that seems the largest at each order."""
        nearest = np.minimum(np.searchsorted(self.few, excess), self.few.size - 1)
        seen = np.where(self.lower.max(axis=0) > 0, self.lower, self.upper)
        found: IndexArray = seen.argmax(axis=0)[nearest]
        return found


class Bounds(NamedTuple):
    """Upper bounds on pairs' profiles at some orders.

    Attributes:
        few: orders minus one, ascending, shape (orders,).
        places: which pairs, ascending, shape (pairs,).
        upper: theirs, shape (pairs, orders).
        others: those of all other pairs, shape (orders,).
        reached: what some pair reaches, about, shape (orders,): nothing rests on it.
    """

    few: FloatArray
    places: IndexArray
    upper: FloatArray
    others: FloatArray
    reached: FloatArray

    def of(self, places: IndexArray) -> FloatArray:
        """The bounds of the pairs at these places, shape (places, orders)."""
        at = np.minimum(np.searchsorted(self.places, places), self.places.size - 1)
        known = (self.places[at] == places)[:, None]
        return np.where(known, self.upper[at], self.others)

    def ceilings(self, places: IndexArray, excess: FloatArray) -> FloatArray:
        """Those at all orders, shape (places, orders)."""
        return chords(self.few, self.of(places), excess)

    def ruled_out(self, excess: FloatArray, enough: FloatArray) -> tuple[IndexArray, FloatArray]:
        """Pairs that are nowhere above enough, shape (orders,), and what bounds them all there, shape
        (orders,).

        Between two orders a pair is below the chord of what is reached there, times the larger of the two
        ratios of its bounds to that.
        """
        about = np.maximum(self.reached, LITTLE)
        reference = chords(self.few, about[None], excess)[0]
        cell = np.searchsorted(self.few, excess, side="right")
        asked, back = np.unique(cell, return_inverse=True)
        if asked[0] == 0:
            return self.places[:0], np.zeros_like(excess)
        ratio = self.upper / about
        ratio = np.maximum(ratio[:, asked - 1], ratio[:, np.minimum(asked, self.few.size - 1)])
        ratio *= 1 + 64 * UNIT_ROUND_OFF
        least = np.full(asked.size, np.inf)
        np.minimum.at(least, back, enough / reference)
        out = (ratio <= least).all(axis=1)
        return self.places[out], ratio[out].max(axis=0, initial=0.0)[back] * reference

    def with_orders_of(self, other: Bounds) -> Bounds:
        """Both orders and bounds: at orders of both, the lower ones."""
        few, places = np.union1d(self.few, other.few), np.union1d(self.places, other.places)
        upper, others = np.ones((places.size, few.size)), np.ones_like(few)
        reached = np.zeros_like(few)
        for one in (self, other):
            at = np.searchsorted(few, one.few)
            upper[:, at] = np.minimum(upper[:, at], one.of(places))
            others[at] = np.minimum(others[at], one.others)
            reached[at] = np.maximum(reached[at], one.reached)
        return Bounds(few, places, upper, others, reached)


def chords(few: FloatArray, upper: FloatArray, excess: FloatArray) -> FloatArray:
    """Upper bounds at all orders, shape (pairs, orders), from those at a few: a profile falls, and is below
    its chords."""
    after = np.searchsorted(few, excess, side="right")
    before, after = np.maximum(after - 1, 0), np.minimum(after, few.size - 1)
    width = few[after] - few[before]
    # Both ends with shares that are not negative: what is left of a steep fall is not lost to a rounding.
    share = np.where(width > 0, (excess - few[before]) / np.where(width > 0, width, 1.0), 1.0)
    rest = np.where(width > 0, (few[after] - excess) / np.where(width > 0, width, 1.0), 0.0)
    found = (rest * upper[:, before] + share * upper[:, after]) * (1 + 16 * UNIT_ROUND_OFF)
    found[:, excess < few[0]] = 1.0
    return np.asarray(found)


def spread(excess: FloatArray, most: int, last: float) -> FloatArray:
    """Up to so many orders, spread like these, the first and, but for a rounding, the last among them; all of
    them and some between and up to the last of all where they are fewer but many."""
    few = excess.copy()
    if excess.size > most:
        few = excess[np.linspace(0, excess.size - 1, most).round().astype(np.int64)]
    elif excess.size >= _MANY:
        parts = -(-most // excess.size)
        divided = np.arange(parts * (excess.size - 1) + 1) / parts
        few = np.expm1(np.interp(divided, np.arange(excess.size), np.log1p(excess)))
        few[::parts] = excess
    if excess.size >= _MANY and few[-1] < last < math.inf:
        beyond = np.linspace(math.log1p(few[-1]), math.log1p(last), _BEYOND + 1)
        few = np.append(few, np.expm1(beyond[1:]))
    if few.size > 1:
        few[-1] *= 1 + 2.0**-40
    return few


def highest(values: FloatArray, most: int) -> tuple[IndexArray, IndexArray]:
    """The places of the largest values in every column, up to so many; and their columns."""
    most = min(most, len(values))
    which = np.argpartition(-values, most - 1, axis=0)[:most]
    return which.ravel(), np.tile(np.arange(values.shape[1]), most)
