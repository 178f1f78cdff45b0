"""The search for the largest of many pairs' profiles at every order, with few precise evaluations.

A profile is convex in its order, so between two orders it is below its chord. Bounds at a few orders
therefore rule out most pairs at all other orders, and cheap bounds at every order rule out most of the rest.
Evaluations of several pairs and orders are done together, one row each.
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
from shuffle_ledger.accounting.amplification.worst_pair.sampled_bounds import (
    SAMPLED_ORDERS,
    USELESS_SHARE,
    Bounds,
    Sample,
    chords,
    spread,
)
from shuffle_ledger.accounting.numeric.arrays import TINY, FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Every eighth order of a sample comes first: it rules out most pairs at the others.
_FIRST_STRIDE = 8
# Smoothing of the evaluations of a sample, as of `blanket_profile`: rough, for they only rule pairs out.
_SAMPLE_SMOOTHING = 0.04
# No search is made if there are at most this many pairs and their outcomes, at most this many altogether, can
# be listed: then all pairs are summed exactly.
_LISTED_PAIRS = 64
_LISTED_OUTCOMES = 300_000
# Samples, and upper bounds (pairs times orders), that are kept for later questions. More: memory.
_SAMPLES_KEPT = 4
_BOUNDS_KEPT = 1 << 22
# Pairs left at an order, on average, from which on laws above them are worth making.
_MAJORIZED_PAIRS = 4
# In a sample a pair may be above the largest evaluated one by this many times the usual width of bounds
# without being evaluated.
_SAMPLE_ROOM = 2.0
# Smoothing that rules out pairs, as a share of the usual one, if some of the largest pairs are listed.
_LISTED_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class WorstPair(PairSums):
    """Bounds on the largest of the profiles of several pairs."""

    # Caches: a finer lattice asks again about orders in the same range. They change no result's validity.
    samples: list[Sample] = field(default_factory=list, compare=False)
    known: list[Bounds] = field(default_factory=list, compare=False)

    def smoothed(self, smoothing: float) -> WorstPair:
        """Returns the same search with another smoothing. Bounds found so far stay valid and are kept."""
        samples, known, needed = (
            list(self.samples),
            list(self.known),
            self.needed.scaled(smoothing / self.smoothing),
        )
        return dataclasses.replace(self, smoothing=smoothing, samples=samples, known=known, needed=needed)

    def largest(self, excess: FloatArray) -> tuple[ProfileBounds, IndexArray]:
        """Returns bounds on the largest profile at the orders `1 + excess`, ascending, shape (orders,), and
        for each order a pair that reaches the lower bound.

        Guarantee: every pair's profile is at most `upper`, and some pair's at least `lower`, at every order.
        """
        if len(self.pairs) == 1 or self._is_listed:
            found = Shortlist(self, excess, np.arange(len(self.pairs)))
            found.evaluate(found.left, likely=len(self.pairs) == 1)
        else:
            found = self._searched(excess)
        return ProfileBounds(found.upper, found.lower), found.best

    def _searched(self, excess: FloatArray) -> Shortlist:
        """Finds the same if there are many pairs, or pairs that are expensive to evaluate."""
        sample = self._sample(excess)
        likely = sample.likely(excess)
        # Pairs that are probably the largest come first: their lower bounds rule others out.
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
        self.known[:] = [bounds] if bounds.upper.size <= _BOUNDS_KEPT else []
        return found

    @functools.cached_property
    def _is_listed(self) -> bool:
        """Returns whether the outcomes of all pairs are listed and few: then evaluating all pairs is
        cheapest."""
        if len(self.pairs) > _LISTED_PAIRS:
            return False
        left = _LISTED_OUTCOMES
        for place in range(len(self.pairs)):
            outcomes = self.listed(place)
            left -= left + 1 if outcomes is None else outcomes.p.size
            if left < 0:
                return False
        return True

    def _closest(self, which: IndexArray) -> float:
        """Returns the smoothing that separates other pairs from these: less if these are listed, hence
        exact."""
        listed = any(self.listed(place) is not None for place in np.unique(which).tolist())
        return self.smoothing * (_LISTED_SHARE if listed else 1.0)

    def reached(self, which: IndexArray, excess: FloatArray) -> FloatArray:
        """Returns lower bounds on the profiles of the pairs `which[i]` at the orders `1 + excess[i]`."""
        found = Shortlist(self, excess, np.unique(which))
        found.evaluate_some(which)
        return found.lower

    def _sample(self, excess: FloatArray) -> Sample:
        """Returns rough bounds on all pairs' profiles at a few orders, from the cache if they cover the
        question."""
        for one in self.samples:
            if one.covers(excess, *(bounds.few for bounds in self.known)):
                return one
        few = spread(excess, SAMPLED_ORDERS, float(self.pairs.last_excess.max()))
        ceiling = np.exp(np.minimum(chernoff(self.pairs, self.reports, few), 0.0)) + TINY
        known = Sample(few, ceiling, np.full_like(ceiling, -1.0))
        # Evaluate the largest pairs, then rule out others by the cheapest bound first. The first few orders
        # rule out pairs at the others, since profiles are convex.
        some = np.unique(np.append(np.arange(0, few.size, _FIRST_STRIDE), few.size - 1))
        for columns in (some, np.arange(few.size)):
            self._evaluate_highest(known, columns)
            self._majorize(known, stages=1)
            known = self._majorized(known, columns)
            self._evaluate(_SAMPLE_SMOOTHING, known, *known.open(columns, self._room(known)))
            np.minimum(known.upper, chords(few[columns], known.upper[:, columns], few), out=known.upper)
        self.samples[:] = [known, *self.samples[: _SAMPLES_KEPT - 1]]
        return known

    def _room(self, sample: Sample) -> FloatArray:
        """Returns the share by which an unevaluated pair may be above the largest lower bound of a sample,
        shape (orders,)."""
        return _SAMPLE_ROOM * self.usual(sample.lower.max(axis=0))

    def _majorized(self, sample: Sample, columns: IndexArray) -> Sample:
        """Returns the sample with majorants of the pairs that may be the largest at the orders in these
        columns, and lowers its bounds by them. Makes none if these pairs are few, or if a trial at some of
        the orders rules out too few pairs."""
        if sample.majorants is None:
            which, _ = sample.open(columns, self._room(sample))
            if which.size < _MAJORIZED_PAIRS * columns.size or sample.in_vain:
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
                if left.size > USELESS_SHARE * which.size:
                    return sample._replace(in_vain=True)
            sample = sample._replace(majorants=Majorants.of(self.pairs, ranked, sample.few))
        self._majorize(sample, stages=2)
        return sample

    def _majorize(self, sample: Sample, *, stages: int) -> None:
        """Lowers the sample's upper bounds by its majorants, if there are any."""
        if sample.majorants is not None:
            reached = sample.lower.max(axis=0)
            enough = np.where(reached > 0, reached * (1 + self._room(sample)), np.inf)
            # The others probably need the same smoothing as the largest pairs.
            smoothing = self.needed.at(sample.lower.argmax(axis=0), sample.few, self.smoothing)
            pairs = np.arange(len(self.pairs)), sample.upper
            sample.majorants.lower(pairs, enough, self.reports, sample.few, smoothing, stages=stages)

    def _evaluate_highest(self, sample: Sample, columns: IndexArray) -> None:
        """Evaluates the pairs with the largest upper bounds in these columns, precisely."""
        which, order = sample.highest(columns)
        reached = np.maximum(sample.lower.max(axis=0), 0.0)
        found = self.finely(which, order, sample.few, reached, likely=True)
        sample.upper[which, order] = np.minimum(sample.upper[which, order], found.upper)
        sample.lower[which, order] = np.maximum(sample.lower[which, order], found.lower)

    def _evaluate(self, smoothing: float, sample: Sample, which: IndexArray, order: IndexArray) -> None:
        """Evaluates the pairs `which[i]` at the orders `order[i]` of the sample with this smoothing."""
        upper, lower = self.roughly(smoothing, which, sample.few[order])
        sample.upper[which, order] = np.minimum(sample.upper[which, order], upper)
        sample.lower[which, order] = np.maximum(sample.lower[which, order], lower)
