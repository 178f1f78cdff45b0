"""Bounds on many pairs' profiles at a few sampled orders, and the chords that carry them to all other
orders."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray

#: Pairs with the largest bounds that are evaluated first at every order.
CANDIDATES = 4
#: A pair may have a divergence of at most this without being evaluated: it is added to the upper bound.
#: 100,000 rounds make 1e-32 of it, a hundredth of 1e-30.
UNEVALUATED_DELTA = 1e-37
#: An attempt to rule pairs out is not repeated if more than this share of the pairs is left after it.
USELESS_SHARE = 0.8
#: Number of orders at which all pairs are bounded. More: fewer pairs left at the other orders, more work.
SAMPLED_ORDERS = 25
#: Earlier bounds serve a question if they have, in its range, at least the number of its orders (or of a
#: sample's) over this; also the stride of the orders at which majorants are tried first.
SPARSER = 4
# Lists of at least this many orders are refined and continued beyond the last order, by this many orders.
_REFINED_FROM = 24
_ORDERS_BEYOND = 8


class Sample(NamedTuple):
    """Bounds on all pairs' profiles at a few orders.

    Attributes:
        few: orders minus one, ascending, shape (orders,).
        upper: upper bounds, shape (pairs, orders).
        lower: lower bounds, -1 where a pair was not evaluated, shape (pairs, orders).
        majorants: laws above the pairs that may be the largest; None if these are few or it does not pay.
        in_vain: whether a trial showed that majorants do not pay.
    """

    few: FloatArray
    upper: FloatArray
    lower: FloatArray
    majorants: Majorants | None = None
    in_vain: bool = False

    def at(self, columns: IndexArray) -> Sample:
        """Returns the same at some of the orders; its arrays are copies."""
        return self._replace(
            few=self.few[columns], upper=self.upper[:, columns], lower=self.lower[:, columns]
        )

    def open(self, columns: IndexArray, room: FloatArray) -> tuple[IndexArray, IndexArray]:
        """Returns the pairs that were not evaluated and may be above all evaluated ones by more than the
        share `room` (shape (orders,)), and the orders at which, among these columns."""
        reached = (np.maximum(self.lower.max(axis=0), UNEVALUATED_DELTA) * (1 + room))[columns]
        which, order = np.nonzero((self.lower[:, columns] < 0) & (self.upper[:, columns] > reached))
        return which, columns[order]

    def highest(self, columns: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Returns the pairs with the largest upper bounds, at most `CANDIDATES` for each order in these
        columns, that were not evaluated and may be above all evaluated ones; and the orders."""
        reached = np.maximum(self.lower.max(axis=0), UNEVALUATED_DELTA)[columns]
        unknown = np.where(self.lower < 0, self.upper, -1.0)[:, columns]
        which, order = highest(unknown, CANDIDATES)
        left = unknown[which, order] > reached[order]
        return which[left], columns[order[left]]

    def covers(self, excess: FloatArray, *known: FloatArray) -> bool:
        """Returns whether this sample, or bounds known at other orders, make a new sample unnecessary for
        these orders: they cover the range, and have enough orders in it."""
        within = self.few[0] <= excess[0] and excess[-1] <= self.few[-1]
        inside = [np.diff(np.searchsorted(one, [excess[0], excess[-1]]))[0] for one in (self.few, *known)]
        return bool(within and max(inside) >= min(excess.size, SAMPLED_ORDERS) // SPARSER)

    @property
    def bounds(self) -> Bounds:
        """Returns the upper bounds on all pairs."""
        every, others = np.arange(len(self.upper)), np.zeros_like(self.few)
        return Bounds(self.few, every, self.upper, others, self.lower.max(axis=0))

    def likely(self, excess: FloatArray) -> IndexArray:
        """Returns the pair that probably has the largest profile at each order, shape (orders,)."""
        nearest = np.minimum(np.searchsorted(self.few, excess), self.few.size - 1)
        seen = np.where(self.lower.max(axis=0) > 0, self.lower, self.upper)
        found: IndexArray = seen.argmax(axis=0)[nearest]
        return found


class Bounds(NamedTuple):
    """Upper bounds on pairs' profiles at some orders.

    Attributes:
        few: orders minus one, ascending, shape (orders,).
        places: positions of some pairs, ascending, shape (pairs,).
        upper: upper bounds on these pairs, shape (pairs, orders).
        others: upper bounds on every other pair, shape (orders,).
        reached: estimate of the largest profile, shape (orders,); no bound depends on it.
    """

    few: FloatArray
    places: IndexArray
    upper: FloatArray
    others: FloatArray
    reached: FloatArray

    def of(self, places: IndexArray) -> FloatArray:
        """Returns the bounds of the pairs at these positions, shape (places, orders)."""
        at = np.minimum(np.searchsorted(self.places, places), self.places.size - 1)
        known = (self.places[at] == places)[:, None]
        return np.where(known, self.upper[at], self.others)

    def ceilings(self, places: IndexArray, excess: FloatArray) -> FloatArray:
        """Returns the pairs' bounds at the orders `1 + excess`, by chords, shape (places, orders)."""
        return chords(self.few, self.of(places), excess)

    def ruled_out(self, excess: FloatArray, enough: FloatArray) -> tuple[IndexArray, FloatArray]:
        """Returns the pairs that are certainly at most `enough` at all orders, and an upper bound on all of
        these, shape (orders,).

        Args:
            excess, enough: orders minus one, ascending, and the levels there, shape (orders,).

        Between two sampled orders a pair is at most the chord of `reached` times the larger of the two ratios
        of its bounds to `reached`.
        """
        about = np.maximum(self.reached, UNEVALUATED_DELTA)
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
        """Returns the bounds at the orders of both; at common orders the smaller bound."""
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
    """Returns upper bounds at the orders `1 + excess`, shape (pairs, orders), from upper bounds at a few
    orders.

    Guarantee: a profile falls and is convex, so it is below its chords, and beyond the last order at most the
        last bound; before the first order the bound is 1. Round-off is included.
    """
    after = np.searchsorted(few, excess, side="right")
    before, after = np.maximum(after - 1, 0), np.minimum(after, few.size - 1)
    width = few[after] - few[before]
    # Both shares are computed, and not negative: a steep fall does not cancel.
    share = np.where(width > 0, (excess - few[before]) / np.where(width > 0, width, 1.0), 1.0)
    rest = np.where(width > 0, (few[after] - excess) / np.where(width > 0, width, 1.0), 0.0)
    found = (rest * upper[:, before] + share * upper[:, after]) * (1 + 16 * UNIT_ROUND_OFF)
    found[:, excess < few[0]] = 1.0
    return np.asarray(found)


def spread(excess: FloatArray, most: int, last: float) -> FloatArray:
    """Returns about `most` orders minus one for a sample, ascending, from the orders of a question.

    More orders than `most` are thinned out evenly. At least `_REFINED_FROM` of them are refined to about
    `most`, and continued up to `last`, beyond which all profiles are 0, if that is finite. Fewer stay as they
    are. The first order is kept; the last one is moved up by a few roundings, so that it covers the question.
    """
    few = excess.copy()
    if excess.size > most:
        few = excess[np.linspace(0, excess.size - 1, most).round().astype(np.int64)]
    elif excess.size >= _REFINED_FROM:
        parts = -(-most // excess.size)
        divided = np.arange(parts * (excess.size - 1) + 1) / parts
        few = np.expm1(np.interp(divided, np.arange(excess.size), np.log1p(excess)))
        few[::parts] = excess
    if excess.size >= _REFINED_FROM and few[-1] < last < math.inf:
        beyond = np.linspace(math.log1p(few[-1]), math.log1p(last), _ORDERS_BEYOND + 1)
        few = np.append(few, np.expm1(beyond[1:]))
    if few.size > 1:
        few[-1] *= 1 + 2.0**-40
    return few


def highest(values: FloatArray, most: int) -> tuple[IndexArray, IndexArray]:
    """Returns the rows of the largest values of every column, at most `most` of them, and their columns."""
    most = min(most, len(values))
    which = np.argpartition(-values, most - 1, axis=0)[:most]
    return which.ravel(), np.tile(np.arange(values.shape[1]), most)
