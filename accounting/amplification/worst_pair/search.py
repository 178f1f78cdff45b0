"""The largest of many pairs' profiles at every order.

Bounds become closer and dearer in turn: Chernoff's of all pairs, then rough sums, then close ones of the
pairs that may still be the largest. Sums of several pairs and orders are done together, one row each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.amplification.enumeration import Outcomes
from shuffle_ledger.accounting.amplification.worst_pair.chernoff import chernoff
from shuffle_ledger.accounting.amplification.worst_pair.convex_order import law_ceilings
from shuffle_ledger.accounting.numeric.arrays import TINY, UNIT_ROUND_OFF, BoolArray, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

#: Where at most this many pairs, those of 16 inputs, may be the largest, each is ruled out or summed; where
#: more may be, the upper bound is that of one law above all of them. Larger: more time.
MOST_SUMMED_PAIRS = 16 * 15
#: A pair may have a divergence of at most this without being evaluated: it is added to the upper bound.
#: 100,000 rounds make 1e-32 of it, a hundredth of 1e-30.
UNEVALUATED_DELTA = 1e-37
# At most this many pairs are summed closely at once: no cheaper bound would pay.
_FEW_PAIRS = 2
# A pair needs no sum that is above the upper bound on a summed one by at most this share of the distance of
# its bounds. Larger: fewer sums, a wider result.
_UNSUMMED_SHARE = 0.5
# Smoothing of sums that rule pairs out, as of `blanket_profile`, and every how many orders they are made.
_ROUGH_SMOOTHING, _ROUGH_STRIDE = 0.04, 4
# Pairs are listed only for more orders than this: for fewer the quadrature is faster.
_LISTED_ORDERS = 4
# Bounds wider than this many times the usual width are computed again with less smoothing, at most this
# often. The width is about proportional to the square of the smoothing: it is divided by the root of the
# width times this margin, at once by at most the last factor.
_WIDE_FACTOR, _MOST_RETRIES, _SMOOTHING_MARGIN, _MOST_DIVISION = 2.0, 2, 1.2, 5.0
# The least smoothing, as a share of the usual one; and the share of the width down to which it must have
# helped to be lowered again.
_LEAST_SMOOTHING, _HELPFUL_SHARE = 1 / 30, 0.7


@dataclass(frozen=True, kw_only=True)
class WorstPair:
    """Bounds on the largest of the profiles of several pairs.

    Attributes:
        pairs: the masses of the pairs, in every direction that may have another profile.
        reports: number of honest reports.
        smoothing: width of the quadrature's smoothing; see `blanket_profile`.
        listed: returns the outcomes of the pair at a position, None if they are too many to be listed.

    Source: docs/theory/amplification.md, A12.
    """

    pairs: Pairs
    reports: int
    smoothing: float
    listed: Callable[[int], Outcomes | None]

    def largest(self, excess: FloatArray) -> tuple[ProfileBounds, IndexArray]:
        """Returns bounds on the largest profile at the orders `1 + excess`, ascending, shape (orders,), and
        for each order a pair that reaches the lower bound.

        Guarantee: every pair's profile is at most `upper`, and some pair's at least `lower`, at every order.
        """
        shape = len(self.pairs), excess.size
        if shape[0] <= _FEW_PAIRS:
            every = np.ones(shape, dtype=np.bool_)
            upper, lower = self._summed(every, excess)
            return ProfileBounds(upper.max(axis=0), lower.max(axis=0)), lower.argmax(axis=0)
        ceiling = np.exp(np.minimum(chernoff(self.pairs, self.reports, excess), 0.0)) + TINY
        first = np.zeros(shape, dtype=np.bool_)
        # Where several bounds are equal (1, near order 1), the pair whose profile ends last is the likeliest.
        likely = np.where(ceiling >= ceiling.max(axis=0), self.pairs.last_excess[:, None], -1.0)
        first[likely.argmax(axis=0), np.arange(excess.size)] = True
        upper, lower = self._summed(first, excess)
        ceiling = np.where(first, np.minimum(upper, ceiling), ceiling)
        # Summing a pair that is not above this would leave the bounds about as far apart.
        most, least = upper.max(axis=0), lower.max(axis=0)
        enough = np.maximum(most + _UNSUMMED_SHARE * (most - least), UNEVALUATED_DELTA)
        left = ~first & (ceiling > enough)
        crowd = left & (left.sum(axis=0) > MOST_SUMMED_PAIRS)
        above = law_ceilings(self.pairs, crowd, self.reports, excess, self.smoothing)
        ceiling, left = np.where(crowd, np.minimum(ceiling, above), ceiling), left & ~crowd
        self._rule_out(ceiling, lower, left, excess)
        left &= ceiling > np.maximum(enough, lower.max(axis=0))
        upper, more = self._summed(left, excess)
        ceiling, lower = np.where(left, np.minimum(upper, ceiling), ceiling), np.maximum(lower, more)
        return ProfileBounds(ceiling.max(axis=0), lower.max(axis=0)), lower.argmax(axis=0)

    def reached(self, which: IndexArray, excess: FloatArray) -> FloatArray:
        """Returns lower bounds on the profiles of the pairs `which[i]` at the orders `1 + excess[i]`."""
        chosen = np.zeros((len(self.pairs), excess.size), dtype=np.bool_)
        chosen[which, np.arange(excess.size)] = True
        found: FloatArray = self._summed(chosen, excess).lower.max(axis=0)
        return found

    def smoothed(self, smoothing: float) -> WorstPair:
        """Returns the same search with another smoothing."""
        return dataclasses.replace(self, smoothing=smoothing)

    def _rule_out(self, ceiling: FloatArray, lower: FloatArray, left: BoolArray, excess: FloatArray) -> None:
        """Lowers upper bounds on the pairs that are left, and raises lower ones, in place, by rough sums at
        some of the orders. Between these a convex profile is below its chord."""
        some = np.unique(np.append(np.arange(0, excess.size, _ROUGH_STRIDE), excess.size - 1))
        which, order = np.nonzero(left[:, some])
        smoothing = max(_ROUGH_SMOOTHING, self.smoothing)
        found = blanket_profiles(self.pairs, which, self.reports, excess[some][order], smoothing=smoothing)
        ceiling[which, some[order]] = np.minimum(ceiling[which, some[order]], found.upper)
        lower[which, some[order]] = np.maximum(lower[which, some[order]], found.lower)
        np.minimum(ceiling, chords(excess[some], ceiling[:, some], excess), out=ceiling)

    def _summed(self, chosen: BoolArray, excess: FloatArray) -> ProfileBounds:
        """Returns close bounds on the profiles of chosen pairs at chosen orders, by lists of outcomes where
        there are any; 0 for the others, each of shape (pairs, orders)."""
        upper, lower = np.zeros(chosen.shape), np.zeros(chosen.shape)
        summed = chosen.copy()
        for pair in np.flatnonzero(chosen.sum(axis=1) > min(_LISTED_ORDERS, excess.size - 1)).tolist():
            if (outcomes := self.listed(pair)) is not None:
                orders = np.flatnonzero(chosen[pair])
                upper[pair, orders], lower[pair, orders] = outcomes.profile(excess[orders])
                summed[pair] = False
        which, order = np.nonzero(summed)
        upper[which, order], lower[which, order] = self._closely(which, order, excess, lower.max(axis=0))
        return ProfileBounds(upper, lower)

    def _closely(
        self, which: IndexArray, order: IndexArray, excess: FloatArray, reached: FloatArray
    ) -> ProfileBounds:
        """Returns bounds on the profiles of the pairs `which[i]` at the orders `1 + excess[order[i]]`.

        Bounds that come out wide, and may be above the largest lower one, are computed again with less
        smoothing.

        Args:
            reached: lower bounds on the largest profile, shape (orders,).
        """
        smoothing = np.full(order.size, self.smoothing)
        upper, lower = blanket_profiles(self.pairs, which, self.reports, excess[order], smoothing=smoothing)
        # The divergence of order 1 of a Gaussian sum of the same variance.
        usual = np.sqrt(self.pairs.spread[which] / (2 * math.pi * self.reports))
        usual = np.clip(usual, NEGLIGIBLE_DELTA, 1.0)
        wide, width = np.arange(order.size), _width(upper, lower, usual) / self.smoothing**2
        for _ in range(_MOST_RETRIES):
            np.maximum.at(reached, order, lower)
            open_ = upper[wide] > np.maximum(reached[order[wide]], UNEVALUATED_DELTA)
            wide = wide[
                open_ & (width[wide] > _WIDE_FACTOR) & (smoothing[wide] > self.smoothing * _LEAST_SMOOTHING)
            ]
            if not wide.size:
                break
            smoothing[wide] /= np.minimum(_SMOOTHING_MARGIN * np.sqrt(width[wide]), _MOST_DIVISION)
            above, below = blanket_profiles(
                self.pairs, which[wide], self.reports, excess[order[wide]], smoothing=smoothing[wide]
            )
            upper[wide], lower[wide] = np.minimum(upper[wide], above), np.maximum(lower[wide], below)
            before, width = width, _width(upper, lower, usual) / self.smoothing**2
            # If less smoothing did not help, round-off makes the bounds wide.
            wide = wide[width[wide] <= _HELPFUL_SHARE * before[wide]]
        return ProfileBounds(upper, lower)


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


def _width(upper: FloatArray, lower: FloatArray, usual: FloatArray) -> FloatArray:
    """Returns the relative distance of bounds, in units of the distance that a smoothing of 1 makes for a law
    of one scale, whose divergence of order 1 is `usual`.

    The kernels then differ by `(theta tau)^2` of the value, tau the smoothing times the deviation; `theta`
    times the deviation is about the root of `-2 log(value / usual)`. A law of two scales (rare large gains
    beside many small ones) has a deviation that fits neither scale, and may come out wider.
    """
    depth = 1 - 2 * np.log(np.clip(upper / usual, NEGLIGIBLE_DELTA, 1.0))
    return np.asarray((upper - lower) / np.maximum(upper * depth, NEGLIGIBLE_DELTA))
