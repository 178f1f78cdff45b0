"""The pairs that may have the largest profile at the orders of one question, and bounds on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants, group_ceilings
from shuffle_ledger.accounting.amplification.worst_pair.evaluation import PairSums
from shuffle_ledger.accounting.amplification.worst_pair.looks import IN_VAIN, LITTLE, SPARSER, Bounds, chords
from shuffle_ledger.accounting.numeric.arrays import BoolArray, FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Of the orders of a question, which are looked at, one time after the other.
_EVERY = (SPARSER, 1)
# Of more pairs than that, outcomes of those are listed that are evaluated at so many orders at least: others
# are summed in less time.
_FEW, _OFTEN = 64, 4
# What a pair may add to the upper bound without being evaluated, as a share of the usual distance of bounds.
_SHARE = 0.5
# The same where more pairs than that are left at an order.
_CROWD, _SHARE_OF_CROWDS = 8, 1.2
# Orders at which it is tried first whether a law above all that are left is of use.
_PROBED = 4


class Shortlist:
    """Pairs, and bounds on the largest profile of them and of those that are certainly below it.

    Attributes:
        places: the pairs, ascending, shape (pairs,).
        upper, lower: what was reached, shape (orders,).
        best: a pair that reaches `lower`, shape (orders,).
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
        """Take upper bounds on the pairs into account."""
        for one in every:
            np.minimum(self._ceiling, one.ceilings(self.places, self._excess), out=self._ceiling)
        self._settle()

    def admit(self, every: Sequence[Bounds]) -> None:
        """Add all pairs that upper bounds, the first ones on all of them, do not rule out."""
        added, enough = every[0].places, np.maximum(self._evaluated, LITTLE)
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
        """Lower the bounds of the pairs that are left where they are many, by laws above all of them and
        above some, with such smoothing at the orders: at some of the orders, then, with chords between these,
        at the others."""
        if majorants is None:
            return
        size = self._excess.size
        for every in _EVERY:
            columns = np.unique(np.append(np.arange(0, size, every), size - 1))
            many = self.left[:, columns].sum()
            self._majorize(majorants, smoothing, columns)
            if self.left[:, columns].sum() > IN_VAIN * many:
                return
            if columns.size < size:
                between = chords(self._excess[columns], self._ceiling[:, columns], self._excess)
                np.minimum(self._ceiling, between, out=self._ceiling)
                self._settle()

    def _majorize(self, majorants: Majorants, smoothing: FloatArray, columns: IndexArray) -> None:
        """The same by laws above pairs at the orders in these columns."""
        crowded = self.left.sum(axis=0) > _CROWD
        enough = self._enough(np.where(crowded, _SHARE_OF_CROWDS, _SHARE))
        bounds = np.where(self.left, self._ceiling, 0.0)[:, columns]
        rows, excess = (self.places, bounds), self._excess[columns]
        majorants.lower(rows, enough[columns], self._sums.reports, excess, smoothing[columns])
        self._ceiling[:, columns] = np.where(self.left[:, columns], bounds, self._ceiling[:, columns])
        self._settle(enough)

    def join(self, smoothing: FloatArray) -> None:
        """Lower the bounds of the pairs that are left where they are many by a law above all of them at each
        order, unless some of the orders show that this is in vain."""
        pairs, reports = self._sums.pairs, self._sums.reports
        for fewest in (_PROBED, np.inf):
            many = self.left.sum(axis=0)
            orders = np.flatnonzero(many > _CROWD)
            orders = orders[:: max(int(orders.size // fewest), 1)]
            if not orders.size or not Majorants.are_for(pairs, self._excess):
                return
            groups = [self.places[self.left[:, one]] for one in orders]
            found = group_ceilings(pairs, groups, reports, self._excess[orders], smoothing[orders])
            bounds = np.where(self.left[:, orders], found, 1.0)
            self._ceiling[:, orders] = np.minimum(self._ceiling[:, orders], bounds)
            self._settle(self._enough(np.where(many > _CROWD, _SHARE_OF_CROWDS, _SHARE)))
            if self.left[:, orders].sum() > IN_VAIN * many[orders].sum():
                return

    def highest(self) -> IndexArray:
        """The pair that is left with the largest bound at each order."""
        found: IndexArray = self.places[np.where(self.left, self._ceiling, -1.0).argmax(axis=0)]
        return found

    def bounds(self) -> Bounds:
        """All bounds on pairs, which last: others may change what they asked, and were answered."""
        upper, lower = self.upper.copy(), self.lower.copy()
        return Bounds(self._excess.copy(), self.places, self._ceiling, upper, lower)

    def evaluate_some(self, likely: IndexArray) -> None:
        """Evaluate one pair at each order, where it is left."""
        chosen = np.zeros_like(self.left)
        chosen[self._rows(likely), np.arange(likely.size)] = True
        self.evaluate(chosen & self.left, likely=True)

    def evaluate(self, chosen: BoolArray, *, likely: bool = False) -> None:
        """Raise both bounds to those of the pairs that are chosen at an order."""
        sums, excess = self._sums, self._excess
        summed, number = chosen.copy(), chosen.sum(axis=1)
        for one in np.flatnonzero(number >= (1 if np.count_nonzero(number) <= _FEW else _OFTEN)):
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
        # Of several at one order, the last one that is assigned stays.
        rising = np.argsort(found.lower, kind="stable")
        rising = rising[found.lower[rising] > self.lower[order[rising]]]
        self.lower[order[rising]] = found.lower[rising]
        self.best[order[rising]] = self.places[row[rising]]

    def _enough(self, share: float | FloatArray = _SHARE) -> FloatArray:
        """What pairs are hardly above those that were evaluated: by such a share of the usual distance."""
        more = share * self._sums.usual(self._evaluated)
        return np.asarray(self._evaluated * (1 + more) + LITTLE)

    def _settle(self, enough: FloatArray | None = None) -> None:
        """Let pairs go that are hardly above those that were evaluated, if at all: the upper bound takes
        theirs."""
        settled = self.left & (self._ceiling <= (self._enough() if enough is None else enough))
        self.upper = np.maximum(self.upper, np.where(settled, self._ceiling, 0.0).max(axis=0))
        self.left &= ~settled
