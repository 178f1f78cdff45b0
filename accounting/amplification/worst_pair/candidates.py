"""The shortlist of pairs that may have the largest profile at some orders, and bounds on that profile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants, group_ceilings
from shuffle_ledger.accounting.amplification.worst_pair.evaluation import PairSums
from shuffle_ledger.accounting.amplification.worst_pair.sampled_bounds import (
    SPARSER,
    UNEVALUATED_DELTA,
    USELESS_SHARE,
    Bounds,
    chords,
)
from shuffle_ledger.accounting.numeric.arrays import BoolArray, FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# If more than this many pairs are evaluated, outcomes are listed only for pairs at this many orders or more:
# for fewer orders the quadrature is faster.
_LISTED_PAIRS, _LISTED_ORDERS = 64, 4
# An unevaluated pair may raise the upper bound by this share of the usual width of bounds. Larger: fewer
# evaluations, a wider result.
_UNEVALUATED_SHARE = 0.5
# The same at orders at which more than this many pairs are left.
_CROWD, _UNEVALUATED_SHARE_IN_CROWDS = 8, 1.2
# Orders at which a law above all remaining pairs is tried first.
_PROBED_ORDERS = 4


class Shortlist:
    """Pairs that may have the largest profile, and bounds on the largest profile of all pairs.

    Attributes:
        places: positions of the pairs on the list, ascending, shape (pairs,).
        upper, lower: the bounds so far, shape (orders,); `upper` covers all pairs once none is `left`.
        best: position of a pair that reaches `lower`, shape (orders,).
        left: which pairs are neither evaluated nor certainly at most `upper`, shape (pairs, orders).
    """

    def __init__(self, sums: PairSums, excess: FloatArray, places: IndexArray) -> None:
        self._sums = sums
        self._excess = excess
        self.places = places
        self._ceiling = np.ones((places.size, excess.size))
        self.upper, self.lower = np.zeros_like(excess), np.zeros_like(excess)
        self._evaluated = np.zeros_like(excess)
        self.best = np.full(excess.size, places[0])
        self.left = np.ones(self._ceiling.shape, dtype=np.bool_)

    def lower_ceilings(self, every: Sequence[Bounds]) -> None:
        """Lowers the pairs' upper bounds to these, where these are smaller."""
        for one in every:
            np.minimum(self._ceiling, one.ceilings(self.places, self._excess), out=self._ceiling)
        self._settle()

    def admit(self, every: Sequence[Bounds]) -> None:
        """Adds all pairs to the list that the bounds do not rule out. The first bounds must cover all
        pairs."""
        added, enough = every[0].places, np.maximum(self._evaluated, UNEVALUATED_DELTA)
        for one in every:
            out, most = one.ruled_out(self._excess, enough)
            self.upper = np.maximum(self.upper, most)
            added = np.setdiff1d(added, out, assume_unique=True)
        added = np.setdiff1d(added, self.places, assume_unique=True)
        order = np.argsort(np.append(self.places, added), kind="stable")
        more = np.ones((added.size, self._excess.size))
        self.places = np.append(self.places, added)[order]
        self._ceiling = np.vstack([self._ceiling, more])[order]
        self.left = np.vstack([self.left, more.astype(np.bool_)])[order]
        self.lower_ceilings(every)

    def screen(self, majorants: Majorants | None, smoothing: FloatArray) -> None:
        """Lowers the bounds of the pairs that are left, at orders at which they are many, by majorants.

        Every fourth order comes first, with chords between; all orders follow if that ruled out enough pairs.

        Args:
            majorants: laws above all pairs and above groups of them; None for no change.
            smoothing: as of `blanket_profile`, shape (orders,).
        """
        if majorants is None:
            return
        size = self._excess.size
        for every in (SPARSER, 1):
            columns = np.unique(np.append(np.arange(0, size, every), size - 1))
            many = self.left[:, columns].sum()
            self._majorize(majorants, smoothing, columns)
            if self.left[:, columns].sum() > USELESS_SHARE * many:
                return
            if columns.size < size:
                between = chords(self._excess[columns], self._ceiling[:, columns], self._excess)
                np.minimum(self._ceiling, between, out=self._ceiling)
                self._settle()

    def _majorize(self, majorants: Majorants, smoothing: FloatArray, columns: IndexArray) -> None:
        """Does the same at the orders in these columns."""
        crowded = self.left.sum(axis=0) > _CROWD
        enough = self._enough(np.where(crowded, _UNEVALUATED_SHARE_IN_CROWDS, _UNEVALUATED_SHARE))
        bounds = np.where(self.left, self._ceiling, 0.0)[:, columns]
        rows, excess = (self.places, bounds), self._excess[columns]
        majorants.lower(rows, enough[columns], self._sums.reports, excess, smoothing[columns])
        self._ceiling[:, columns] = np.where(self.left[:, columns], bounds, self._ceiling[:, columns])
        self._settle(enough)

    def join(self, smoothing: FloatArray) -> None:
        """Lowers the bounds of the pairs that are left, at orders at which they are many, by one law above
        all of them. A few orders come first; the others follow if that ruled out enough pairs."""
        pairs, reports = self._sums.pairs, self._sums.reports
        for fewest in (_PROBED_ORDERS, np.inf):
            many = self.left.sum(axis=0)
            orders = np.flatnonzero(many > _CROWD)
            orders = orders[:: max(int(orders.size // fewest), 1)]
            if not orders.size or not Majorants.are_for(pairs, self._excess):
                return
            groups = [self.places[self.left[:, one]] for one in orders]
            found = group_ceilings(pairs, groups, reports, self._excess[orders], smoothing[orders])
            bounds = np.where(self.left[:, orders], found, 1.0)
            self._ceiling[:, orders] = np.minimum(self._ceiling[:, orders], bounds)
            self._settle(
                self._enough(np.where(many > _CROWD, _UNEVALUATED_SHARE_IN_CROWDS, _UNEVALUATED_SHARE))
            )
            if self.left[:, orders].sum() > USELESS_SHARE * many[orders].sum():
                return

    def highest(self) -> IndexArray:
        """Returns the remaining pair with the largest upper bound at each order, shape (orders,)."""
        found: IndexArray = self.places[np.where(self.left, self._ceiling, -1.0).argmax(axis=0)]
        return found

    def bounds(self) -> Bounds:
        """Returns all upper bounds on pairs, as copies: callers may change their arrays later."""
        upper, lower = self.upper.copy(), self.lower.copy()
        return Bounds(self._excess.copy(), self.places, self._ceiling, upper, lower)

    def evaluate_some(self, likely: IndexArray) -> None:
        """Evaluates the pair `likely[i]` at order i, for every i, if it is left there."""
        chosen = np.zeros_like(self.left)
        chosen[self._rows(likely), np.arange(likely.size)] = True
        self.evaluate(chosen & self.left, likely=True)

    def evaluate(self, chosen: BoolArray, *, likely: bool = False) -> None:
        """Evaluates pairs, and raises both bounds to theirs.

        Args:
            chosen: which pairs at which orders, shape (pairs, orders).
            likely: whether these pairs are probably the largest, so that the smoothing that was enough for
                them before is used at once.
        """
        sums, excess = self._sums, self._excess
        summed, number = chosen.copy(), chosen.sum(axis=1)
        for one in np.flatnonzero(
            number >= (1 if np.count_nonzero(number) <= _LISTED_PAIRS else _LISTED_ORDERS)
        ):
            outcomes = sums.listed(int(self.places[one]))
            if outcomes is not None:
                summed[one], orders = False, np.flatnonzero(chosen[one])
                self._raise(np.full(orders.size, one), orders, outcomes.profile(excess[orders]))
        row, order = np.nonzero(summed)
        found = sums.finely(self.places[row], order, excess, self.lower, likely=likely)
        self._ceiling[row, order] = np.minimum(self._ceiling[row, order], found.upper)
        self._raise(row, order, found)
        self.left &= ~chosen
        self._settle()

    def _rows(self, which: IndexArray) -> IndexArray:
        return np.searchsorted(self.places, which)

    def _raise(self, row: IndexArray, order: IndexArray, found: ProfileBounds) -> None:
        np.maximum.at(self._evaluated, order, found.upper)
        np.maximum(self.upper, self._evaluated, out=self.upper)
        # Of several values for one order the last assignment stays, so they are sorted.
        rising = np.argsort(found.lower, kind="stable")
        rising = rising[found.lower[rising] > self.lower[order[rising]]]
        self.lower[order[rising]] = found.lower[rising]
        self.best[order[rising]] = self.places[row[rising]]

    def _enough(self, share: float | FloatArray = _UNEVALUATED_SHARE) -> FloatArray:
        """Returns the level up to which pairs need no evaluation, shape (orders,): the largest evaluated
        upper bound plus this share of the usual width of bounds."""
        more = share * self._sums.usual(self._evaluated)
        return np.asarray(self._evaluated * (1 + more) + UNEVALUATED_DELTA)

    def _settle(self, enough: FloatArray | None = None) -> None:
        """Drops the pairs whose upper bound is at most `enough`; the common upper bound is raised to
        theirs."""
        settled = self.left & (self._ceiling <= (self._enough() if enough is None else enough))
        self.upper = np.maximum(self.upper, np.where(settled, self._ceiling, 0.0).max(axis=0))
        self.left &= ~settled
