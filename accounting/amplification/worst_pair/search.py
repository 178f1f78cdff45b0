"""The largest of many pairs' profiles, order by order, with few of them evaluated finely.

A profile is convex in its order, so between two orders it is below its chord: bounds at a few orders rule
most pairs out at all others, and cheap bounds at every order most of the rest. Pairs are summed together, one
row for each pair and order.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

import numpy as np

from shuffle_ledger.accounting.amplification.worst_pair.candidates import Shortlist
from shuffle_ledger.accounting.amplification.worst_pair.chernoff import chernoff
from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants
from shuffle_ledger.accounting.amplification.worst_pair.evaluation import PairSums
from shuffle_ledger.accounting.amplification.worst_pair.looks import (
    IN_VAIN,
    SAMPLES,
    TINY,
    Bounds,
    Sample,
    chords,
    highest,
    spread,
)
from shuffle_ledger.accounting.numeric.arrays import FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Of the orders at which all pairs are looked at, every eighth comes first; and the smoothing.
_STRIDE = 8
_COARSE = 0.04
# All pairs are listed, where that can be, if they are no more than that, with no more outcomes altogether.
_FEW_PAIRS = 64
_FEW_OUTCOMES = 300_000
_REMEMBERED = 4
# Bounds that are remembered, of pairs and orders.
_MOST_KNOWN = 1 << 22
# Pairs at an order, on average, that are worth laws above them; and what may be above what was reached at a
# few orders without being looked at, in units of the usual distance of bounds.
_MANY = 4
_ROOM = 2.0
# What pairs that are listed may add, as a share of that.
_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class WorstPair(PairSums):
    """Bounds on the largest of the profiles of several pairs."""

    # Memories, nothing else: lattices are made finer, and ask again in the same range.
    samples: list[Sample] = field(default_factory=list, compare=False)
    known: list[Bounds] = field(default_factory=list, compare=False)

    def smoothed(self, smoothing: float) -> WorstPair:
        """The same with so much smoothing. What bounds pairs bounds them still."""
        samples, known, needed = (
            list(self.samples),
            list(self.known),
            self.needed.scaled(smoothing / self.smoothing),
        )
        return dataclasses.replace(self, smoothing=smoothing, samples=samples, known=known, needed=needed)

    def largest(self, excess: FloatArray) -> tuple[ProfileBounds, IndexArray]:
        """Bounds at the orders `1 + excess`, ascending, shape (orders,), and at each a pair that reaches the
        lower one.

        Guarantee: every pair's profile is at most `upper`, and some pair's at least `lower`, at every order.
        """
        if len(self.pairs) == 1 or self._is_listed:
            found = Shortlist(self, excess, np.arange(len(self.pairs)))
            found.evaluate(found.left, likely=len(self.pairs) == 1)
        else:
            found = self._searched(excess)
        return ProfileBounds(found.upper, found.lower), found.best

    def _searched(self, excess: FloatArray) -> Shortlist:
        """The same where pairs are many, or known closely at a price."""
        sample = self._sample(excess)
        likely = sample.likely(excess)
        # The pairs that seem largest come first: what they reach rules others out.
        found, known = Shortlist(self, excess, np.unique(likely)), [sample.bounds, *self.known]
        found.lower_ceilings(known)
        found.evaluate_some(likely)
        found.admit(known)
        smoothing = self.needed.at(likely, excess, self._closest(likely))
        found.screen(sample.majorants, smoothing)
        found.evaluate_some(found.highest())
        found.join(smoothing)
        found.evaluate(found.left)
        bounds = found.bounds()
        for one in self.known:
            bounds = bounds.with_orders_of(one)
        self.known[:] = [bounds] if bounds.upper.size <= _MOST_KNOWN else []
        return found

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
        found = Shortlist(self, excess, np.unique(which))
        found.evaluate_some(which)
        return found.lower

    def sketch(self, excess: FloatArray) -> ProfileBounds:
        """Bounds on the profile of a pair that seems the largest at each order."""
        if len(self.pairs) == 1:
            return self.largest(excess)[0]
        which, order = highest(chernoff(self.pairs, self.reports, excess), 1)
        found = self.roughly(self.smoothing, which, excess[order])
        upper, lower = (one.reshape(-1, excess.size).max(axis=0) for one in found)
        return ProfileBounds(upper, lower)

    def _sample(self, excess: FloatArray) -> Sample:
        """Rough bounds on all pairs' profiles at a few orders."""
        for one in self.samples:
            if one.covers(excess, *(bounds.few for bounds in self.known)):
                return one
        few = spread(excess, SAMPLES, float(self.pairs.last_excess.max()))
        ceiling = np.exp(np.minimum(chernoff(self.pairs, self.reports, few), 0.0)) + TINY
        known = Sample(few, ceiling, np.full_like(ceiling, -1.0))
        # What the pairs reach that seem largest rules most of the others out, by what costs least first; and
        # since profiles are convex, some of the orders rule out what is left at the others.
        some = np.unique(np.append(np.arange(0, few.size, _STRIDE), few.size - 1))
        for columns in (some, np.arange(few.size)):
            self._evaluate_highest(known, columns)
            self._majorize(known, stages=1)
            known = self._majorized(known, columns)
            self._evaluate(_COARSE, known, *known.open(columns, self._room(known)))
            np.minimum(known.upper, chords(few[columns], known.upper[:, columns], few), out=known.upper)
        self.samples[:] = [known, *self.samples[: _REMEMBERED - 1]]
        return known

    def _room(self, sample: Sample) -> FloatArray:
        """By which share a pair may be above what was reached at the orders of a sample before it counts."""
        return _ROOM * self.usual(sample.lower.max(axis=0))

    def _majorized(self, sample: Sample, columns: IndexArray) -> Sample:
        """The sample with majorants of the pairs that may be the largest at the orders in these columns,
        where they are many and some of the orders show that it is no vain effort, and bounds by these."""
        if sample.majorants is None:
            which, _ = sample.open(columns, self._room(sample))
            if which.size < _MANY * columns.size or sample.in_vain:
                return sample
            if not Majorants.are_for(self.pairs, sample.few):
                return sample
            places = np.union1d(which, np.flatnonzero((sample.lower[:, columns] >= 0).any(axis=1)))
            size = np.log(np.maximum(sample.upper[places][:, columns], TINY))
            ranked = places[np.argsort((size.max(axis=0) - size).mean(axis=1), kind="stable")]
            if columns.size < sample.few.size:
                part = sample.at(columns)
                self._majorize(part._replace(majorants=Majorants.of(self.pairs, ranked, part.few)), stages=2)
                left, _ = part.open(np.arange(columns.size), self._room(part))
                if left.size > IN_VAIN * which.size:
                    return sample._replace(in_vain=True)
            sample = sample._replace(majorants=Majorants.of(self.pairs, ranked, sample.few))
        self._majorize(sample, stages=2)
        return sample

    def _majorize(self, sample: Sample, *, stages: int) -> None:
        """Lower the sample's bounds by its majorants, if there are any."""
        if sample.majorants is not None:
            reached = sample.lower.max(axis=0)
            enough = np.where(reached > 0, reached * (1 + self._room(sample)), np.inf)
            # What the largest pairs need others probably do.
            smoothing = self.needed.at(sample.lower.argmax(axis=0), sample.few, self.smoothing)
            pairs = np.arange(len(self.pairs)), sample.upper
            sample.majorants.lower(pairs, enough, self.reports, sample.few, smoothing, stages=stages)

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
