"""The largest of many pairs' profiles, order by order, with few of them evaluated finely.

A profile is convex in its order, so between two orders it is below its chord: bounds at a few orders rule
most pairs out at all others, and cheap bounds at every order most of the rest. Pairs are summed together, one
row for each pair and order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from accounting.blanket_sum import ProfileBounds, blanket_profiles
from accounting.ceilings import TINY
from accounting.contour import FloatArray
from accounting.enumeration import Outcomes
from accounting.gain_laws import BoolArray, IndexArray, Pairs
from accounting.looks import (
    CANDIDATES,
    LITTLE,
    SAMPLES,
    SPACING,
    SPARSER,
    Look,
    Sample,
    Screen,
    highest,
    spread,
)
from accounting.majorants import Majorants
from accounting.privacy_loss import NEGLIGIBLE_DELTA
from accounting.screening import chernoff

# Of the orders at which all pairs are looked at, every eighth comes first; and the smoothing.
_STRIDE = 8
_COARSE = 0.04
# Spacing of close kernels, in units of the root of how far apart bounds usually are; and how much closer they
# are than wide ones, in halvings.
_CLOSE = 3.0
_CLOSEST = 8
_CLOSER = 1
# All pairs are listed, where that can be, if they are no more than that, with no more outcomes altogether.
_FEW_PAIRS = 64
_FEW_OUTCOMES = 300_000
# Components are rare that so many are expected of.
_RARE = 1e-3
# Of the orders of a question, which are looked at, one time after the other.
_EVERY = (SPARSER, 1)
_REMEMBERED = 4
# Bounds that are remembered, of all pairs and orders.
_MOST_KNOWN = 1 << 22
# What a pair may add to the upper bound without being evaluated, as a share of the usual distance of bounds.
_SHARE = 0.5
# Pairs at an order, on average, that are worth laws above them; and what may be above what was reached at a
# few orders without being looked at, in units of the usual distance of bounds.
_MANY = 4
_ROOM = 2.0
# Bounds that are wider than so many times what is usual are computed again with less smoothing, which widths
# are as the square of: with a little to spare, and no less at once than by this factor.
_UNUSUAL = 1.5
_SURER = 1.2
_LEAST = 5.0
_RETRIES = 2
# The least smoothing, in units of the usual one, and by how much widths fall if less of it helps.
_FINEST = 1 / 30
_IN_VAIN = 0.7
# Smoothing is remembered as if bounds were no closer than that, and where it is less than the usual one.
_NARROWEST = 0.1
_OFTEN = 0.9


class _Needed(NamedTuple):
    """The smoothing that makes pairs' bounds as close as is usual: by pair, orders, ascending, and its
    logarithms there."""

    known: dict[int, tuple[FloatArray, FloatArray]]

    def at(self, which: IndexArray, excess: FloatArray, most: float) -> FloatArray:
        """What the pairs `which[i]` seem to need at the orders `1 + excess[i]`, by what is next to them."""
        found = np.full_like(excess, most)
        for pair in np.unique(which).tolist():
            if pair in self.known:
                rows = which == pair
                expected = np.exp(np.interp(excess[rows], *self.known[pair]))
                found[rows] = np.where(expected < _OFTEN * most, expected, most)
        return found

    def note(self, which: IndexArray, excess: FloatArray, smoothing: FloatArray) -> None:
        """Remember what was needed."""
        for pair in np.unique(which).tolist():
            orders, needed = excess[which == pair], np.log(smoothing[which == pair])
            if pair in self.known:
                before = self.known[pair]
                orders, needed = np.append(before[0], orders), np.append(before[1], needed)
            ascending = np.argsort(orders, kind="stable")
            self.known[pair] = orders[ascending], needed[ascending]


@dataclass(frozen=True, kw_only=True)
class WorstPair:
    """Bounds on the largest of the profiles of several pairs.

    Attributes:
        pairs: their masses, in every direction that counts.
        reports: number of honest reports.
        smoothing: width of the quadrature's smoothing; see `blanket_profile`.
        listed: the outcomes of a pair, given its position, None when there are too many to be listed.
    """

    pairs: Pairs
    reports: int
    smoothing: float
    listed: Callable[[int], Outcomes | None]
    # Memories, nothing else: lattices are made finer, and ask again in the same range.
    _samples: list[Sample] = field(default_factory=list, init=False, compare=False)
    _known: list[Sample] = field(default_factory=list, init=False, compare=False)
    _needed: _Needed = field(default_factory=lambda: _Needed({}), init=False, compare=False)

    def largest(self, excess: FloatArray) -> tuple[ProfileBounds, IndexArray]:
        """Bounds at the orders `1 + excess`, ascending, shape (orders,), and at each a pair that reaches the
        lower one.

        Guarantee: every pair's profile is at most `upper`, and some pair's at least `lower`, at every order.
        """
        search = _Search(self, excess)
        if len(self.pairs) > 1 and not self._is_listed:
            sample = self._sample(excess)
            likely = sample.likely(excess)
            search.lower_ceilings(one.ceilings(excess) for one in (sample, *self._known))
            # The pairs that seem largest come first: what they reach rules others out.
            search.evaluate_some(likely)
            if sample.majorants is not None:
                search.majorize(sample.majorants, self._needed.at(likely, excess, self._closest(likely)))
            search.screen(sample)
            search.evaluate_some(search.highest())
        search.evaluate(search.left)
        if len(self.pairs) > 1:
            reached = search.reached()
            for one in self._known:
                reached = reached.with_orders_of(one)
            self._known[:] = [reached] if reached.upper.size <= _MOST_KNOWN else []
        return ProfileBounds(search.upper, search.lower), search.best

    @functools.cached_property
    def _is_listed(self) -> bool:
        """Whether the outcomes of all pairs are listed, and few: no use to look for the largest."""
        if len(self.pairs) > _FEW_PAIRS:
            return False
        left = _FEW_OUTCOMES
        for place in range(len(self.pairs)):
            outcomes = self.listed(place)
            left -= left + 1 if outcomes is None else outcomes.p.size
            if left < 0:
                return False
        return True

    def _closest(self, which: IndexArray) -> float:
        """The smoothing that tells other pairs from these: less where these are listed, and known exactly."""
        listed = any(self.listed(place) is not None for place in np.unique(which).tolist())
        return self.smoothing * (_SHARE if listed else 1.0)

    def reached(self, which: IndexArray, excess: FloatArray) -> FloatArray:
        """Lower bounds of the pairs `which[i]` at the orders `1 + excess[i]`."""
        search = _Search(self, excess)
        search.evaluate_some(which)
        return search.lower

    def sketch(self, excess: FloatArray) -> ProfileBounds:
        """Bounds on the profile of a pair that seems the largest at each order."""
        if len(self.pairs) == 1:
            return self.largest(excess)[0]
        which, order = highest(chernoff(self.pairs, self.reports, excess), CANDIDATES)
        found = self.roughly(self.smoothing, which, excess[order])
        upper, lower = (one.reshape(-1, excess.size).max(axis=0) for one in found)
        return ProfileBounds(upper, lower)

    def _sample(self, excess: FloatArray) -> Sample:
        """Rough bounds on all pairs' profiles at a few orders."""
        for one in self._samples:
            if one.covers(excess):
                return one
        few = spread(excess, SAMPLES, float(self.pairs.last_excess.max()))
        screens = self._screens(few)
        logarithm = chernoff(self.pairs, self.reports, few, screens[0].screen.powers if screens else None)
        ceiling = np.exp(np.minimum(logarithm, 0.0)) + TINY
        known = Sample(few, ceiling, np.full_like(ceiling, -1.0), screens)
        # What the pairs reach that seem largest rules most of the others out, by what costs least first; and
        # since profiles are convex, some of the orders rule out what is left at the others.
        some = np.unique(np.append(np.arange(0, few.size, _STRIDE), few.size - 1))
        for columns in (some, np.arange(few.size)):
            self._evaluate_highest(known, columns)
            for look in screens:
                if look.close:
                    known = self._majorized(known, columns)
                reached = known.lower.max(axis=0)
                left = known.open(columns, self._room(known))
                found = look.ceilings(left, few, self.spacing(reached), reached)
                if found is None:
                    continue
                which, order, closer = found
                known.upper[which, order] = np.minimum(known.upper[which, order], closer)
                self._evaluate_highest(known, columns)
            self._evaluate(_COARSE, known, *known.open(columns, self._room(known)))
            chords = Sample(few[columns], known.upper[:, columns], known.lower[:, columns]).ceilings(few)
            np.minimum(known.upper, chords, out=known.upper)
        self._samples[:] = [known, *self._samples[: _REMEMBERED - 1]]
        return known

    def _room(self, sample: Sample) -> FloatArray:
        """By which share a pair may be above what was reached at the orders of a sample before it counts."""
        return _ROOM * self.usual(sample.lower.max(axis=0))

    def _majorized(self, sample: Sample, columns: IndexArray) -> Sample:
        """The sample with majorants of the pairs that may be the largest at the orders in these columns,
        where they are many, and bounds by these."""
        majorants = sample.majorants
        if majorants is None:
            which, _ = sample.open(columns, self._room(sample))
            if which.size < _MANY * columns.size or not Majorants.are_for(self.pairs, sample.few):
                return sample
            places = np.unique(which)
            size = np.log(np.maximum(sample.upper[places][:, columns], TINY))
            ranked = places[np.argsort((size.max(axis=0) - size).mean(axis=1), kind="stable")]
            majorants = Majorants.of(self.pairs, ranked, sample.few)
        reached = sample.lower.max(axis=0)
        enough = np.where(reached > 0, reached * (1 + self._room(sample)), np.inf)
        smoothing = np.full_like(enough, self.smoothing)
        majorants.lower(sample.upper, enough, self.reports, sample.few, smoothing)
        return sample._replace(majorants=majorants)

    def _screens(self, few: FloatArray) -> tuple[Look, ...]:
        """How many pairs are screened, one way after the other."""
        if len(self.pairs) <= CANDIDATES:
            return ()
        whole, rarer = Screen(self.pairs, self.reports, few), self.pairs.hiding(_RARE / self.reports)
        made = [whole] if rarer is None else [whole, Screen(rarer, self.reports, few)]
        return (*(Look(one, close=False) for one in made), Look(whole, close=True))

    def spacing(self, reached: FloatArray) -> FloatArray:
        """Of the kernels that are as close as pairs need to be told apart where one reaches so much."""
        close = _CLOSE * np.sqrt(self.usual(reached)) / SPACING
        return np.asarray(SPACING * np.exp2(np.clip(np.floor(2 * np.log2(close)) / 2, -_CLOSEST, -_CLOSER)))

    def usual(self, reached: FloatArray) -> FloatArray:
        """How far apart bounds are that are about so large, relative, where one scale rules the law; see
        `_width`."""
        return self.smoothing**2 * (1 + _depth(reached, self._most))

    @functools.cached_property
    def _most(self) -> float:
        return float(_at_1(self.pairs.spread, self.reports).max())

    def _evaluate_highest(self, sample: Sample, columns: IndexArray) -> None:
        """Evaluate the pairs of the largest bounds in these columns, closely."""
        which, order = sample.highest(columns)
        reached = np.maximum(sample.lower.max(axis=0), 0.0)
        found = self.finely(which, order, sample.few, reached, likely=True)
        sample.upper[which, order] = np.minimum(sample.upper[which, order], found.upper)
        sample.lower[which, order] = np.maximum(sample.lower[which, order], found.lower)

    def _evaluate(self, smoothing: float, sample: Sample, which: IndexArray, order: IndexArray) -> None:
        """Evaluate the pairs `which[i]` at the orders `order[i]` of the sample."""
        upper, lower = self.roughly(smoothing, which, sample.few[order])
        sample.upper[which, order] = np.minimum(sample.upper[which, order], upper)
        sample.lower[which, order] = np.maximum(sample.lower[which, order], lower)

    def roughly(self, smoothing: float, which: IndexArray, excess: FloatArray) -> ProfileBounds:
        """Bounds of the pairs `which[i]` at the orders `1 + excess[i]`."""
        smoothing = max(smoothing, self.smoothing)
        return blanket_profiles(self.pairs, which, self.reports, excess, smoothing=smoothing)

    def finely(
        self, which: IndexArray, order: IndexArray, excess: FloatArray, certain: FloatArray, *, likely: bool
    ) -> ProfileBounds:
        """Bounds of the pairs `which` at the orders `order`, with less smoothing where they come out wide and
        may be above what some pair certainly reaches."""
        at, most = excess[order], np.full(order.size, self.smoothing)
        smoothing = self._needed.at(which, at, self.smoothing) if likely else most
        upper, lower = blanket_profiles(self.pairs, which, self.reports, at, smoothing=smoothing)
        usual = _at_1(self.pairs.spread, self.reports)[which]
        reached, wide = certain.copy(), np.arange(order.size)
        width = first = _width(upper, lower, usual) / self.smoothing**2
        smoothing = smoothing.copy()
        for _ in range(_RETRIES):
            np.maximum.at(reached, order, lower)
            again = (width[wide] > _UNUSUAL) & (upper[wide] > np.maximum(reached[order[wide]], LITTLE))
            wide = wide[again & (smoothing[wide] > self.smoothing * _FINEST)]
            if not wide.size:
                break
            smoothing[wide] /= np.minimum(_SURER * np.sqrt(width[wide]), _LEAST)
            found = blanket_profiles(
                self.pairs, which[wide], self.reports, at[wide], smoothing=smoothing[wide]
            )
            upper[wide] = np.minimum(upper[wide], found.upper)
            lower[wide] = np.maximum(lower[wide], found.lower)
            width = _width(upper, lower, usual) / self.smoothing**2
        # Round-off is not what smoothing is to blame for.
        in_vain = (smoothing < self.smoothing) & (width > np.maximum(_IN_VAIN * first, _UNUSUAL))
        needed = smoothing / np.sqrt(np.clip(width, _NARROWEST, 1.0))
        needed = np.where(smoothing < self.smoothing, needed / _SURER, needed)
        self._needed.note(which, at, np.where(in_vain, most, needed))
        return ProfileBounds(upper, lower)


class _Search:
    """The orders of one question.

    Attributes:
        upper, lower: what was reached, shape (orders,).
        best: a pair that reaches `lower`, shape (orders,).
        left: which pairs are neither evaluated nor certainly at most `upper`, shape (pairs, orders).
    """

    def __init__(self, worst: WorstPair, excess: FloatArray) -> None:
        self._worst = worst
        self._excess = excess
        self._ceiling = np.ones((len(worst.pairs), excess.size))
        self.upper, self.lower = np.zeros_like(excess), np.zeros_like(excess)
        self._evaluated = np.zeros_like(excess)
        self.best = np.zeros(excess.size, dtype=np.int64)
        self.left = np.ones(self._ceiling.shape, dtype=np.bool_)

    def lower_ceilings(self, every: Iterable[FloatArray]) -> None:
        """Take upper bounds on all pairs into account, each of shape (pairs, orders)."""
        for one in every:
            np.minimum(self._ceiling, one, out=self._ceiling)
        self._settle()

    def majorize(self, majorants: Majorants, smoothing: FloatArray) -> None:
        """Lower the bounds of pairs that are left by laws above all of them, then by those above some, with
        such smoothing at the orders."""
        majorants.lower(self._ceiling, self._enough, self._worst.reports, self._excess, smoothing)
        self._settle()

    def screen(self, sample: Sample) -> None:
        """Lower the bounds of the pairs that are left where they are many: at some of the orders, then, with
        chords between these, at the others."""
        size = self._excess.size
        for every in _EVERY:
            columns = np.unique(np.append(np.arange(0, size, every), size - 1))
            for look in sample.screens:
                which, order = np.nonzero(self.left[:, columns])
                closest = self._worst.spacing(self.lower)
                found = look.ceilings((which, columns[order]), self._excess, closest, self.lower)
                if found is None:
                    break
                which, order, closer = found
                self._ceiling[which, order] = np.minimum(self._ceiling[which, order], closer)
                self._settle()
            if columns.size < size:
                some = self._ceiling[:, columns]
                chords = Sample(self._excess[columns], some, some).ceilings(self._excess)
                self.lower_ceilings([chords])

    def highest(self) -> IndexArray:
        """The pair that is left with the largest bound at each order."""
        found: IndexArray = np.where(self.left, self._ceiling, -1.0).argmax(axis=0)
        return found

    def reached(self) -> Sample:
        """All bounds on single pairs."""
        return Sample(self._excess, self._ceiling, np.full_like(self._ceiling, -1.0))

    def evaluate_some(self, likely: IndexArray) -> None:
        """Evaluate one pair at each order, where it is left."""
        chosen = np.zeros_like(self.left)
        chosen[likely, np.arange(likely.size)] = True
        self.evaluate(chosen & self.left, likely=True)

    def evaluate(self, chosen: BoolArray, *, likely: bool = False) -> None:
        """Raise both bounds to those of the pairs that are chosen at an order."""
        worst, excess = self._worst, self._excess
        summed = chosen.copy()
        for place in np.flatnonzero(chosen.any(axis=1)):
            outcomes = worst.listed(int(place))
            if outcomes is not None:
                summed[place], orders = False, np.flatnonzero(chosen[place])
                found = outcomes.profile(excess[orders])
                self._raise(np.full(orders.size, place), orders, found)
        which, order = np.nonzero(summed)
        found = worst.finely(which, order, excess, self.lower, likely=likely)
        self._ceiling[which, order] = np.minimum(self._ceiling[which, order], found.upper)
        self._raise(which, order, found)
        self.left &= ~chosen
        self._settle()

    def _raise(self, which: IndexArray, order: IndexArray, found: ProfileBounds) -> None:
        np.maximum.at(self._evaluated, order, found.upper)
        np.maximum(self.upper, self._evaluated, out=self.upper)
        # Of several at one order, the last one that is assigned stays.
        rising = np.argsort(found.lower, kind="stable")
        rising = rising[found.lower[rising] > self.lower[order[rising]]]
        self.lower[order[rising]], self.best[order[rising]] = found.lower[rising], which[rising]

    @property
    def _enough(self) -> FloatArray:
        """What pairs are hardly above those that were evaluated."""
        share = _SHARE * self._worst.usual(self._evaluated)
        return np.asarray(self._evaluated * (1 + share) + LITTLE)

    def _settle(self) -> None:
        """Let pairs go that are hardly above those that were evaluated, if at all: the upper bound takes
        theirs."""
        settled = self.left & (self._ceiling <= self._enough)
        self.upper = np.maximum(self.upper, np.where(settled, self._ceiling, 0.0).max(axis=0))
        self.left &= ~settled


def _at_1(spread: FloatArray, reports: int) -> FloatArray:
    """The divergences of order 1 of sums as if they were Gaussian."""
    return np.maximum(np.sqrt(spread / (2 * math.pi * reports)), NEGLIGIBLE_DELTA)


def _depth(values: FloatArray, usual: FloatArray | float) -> FloatArray:
    """About the square of how many deviations a sum needs, by the divergence and that of order 1."""
    return np.asarray(-2 * np.log(np.clip(values / usual, NEGLIGIBLE_DELTA, 1.0)))


def _width(upper: FloatArray, lower: FloatArray, usual: FloatArray) -> FloatArray:
    """How far apart bounds are, in units of what a smoothing of 1 makes them where one scale rules the law.

    The kernels then differ by `(theta tau)^2` of the value, `theta` times the deviation being about the root
    of `-2 log` of what the value is in units of the usual one. Laws of two scales, rare large gains beside
    many small ones, have a deviation that is that of neither.
    """
    width: FloatArray = (upper - lower) / np.maximum(upper * (1 + _depth(upper, usual)), NEGLIGIBLE_DELTA)
    return width
