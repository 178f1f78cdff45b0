"""Rounds whose losses are almost certainly 0: bounds from the outcomes in which one round alone has a loss.

They cost two sums over each pair, where a contour would need very many nodes for losses this rare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.arrays import TINY
from shuffle_ledger.accounting.pld.distribution import Side
from shuffle_ledger.accounting.pld.inversion import first_that_holds
from shuffle_ledger.accounting.pld.pair_bounds import SIDES, RoundLoss

# Relative room for the round-off of sums of the masses of a pair, and of sums over kinds.
_ROUND_OFF = 1e-11


class RareLosses:
    """Rounds together, by the probability that the loss of one of them, or of several, is not 0.

    Args:
        losses: privacy losses, and the number of rounds of each.

    Guarantee: with `u` a round's probability of a loss other than 0, which is the same under P and under Q,
        delta of all rounds at any `epsilon >= 0` is at most the sum of their deltas plus `(sum of u)^2 / 2`,
        and at least the sum of their deltas times `1 - sum of u`.
    Source: docs/theory/pld.md, P8.
    """

    def __init__(self, losses: Sequence[tuple[RoundLoss, int]]) -> None:
        self._losses = losses
        self._largest = {
            side: math.fsum(count * loss.side(side).largest_loss for loss, count in losses) for side in SIDES
        }
        self._some = {side: self._of_some(side) for side in SIDES}

    def _of_some(self, side: Side) -> float:
        """Returns an upper bound on the sum of the probabilities of a loss other than 0."""
        pairs = [(loss.side(side), count) for loss, count in self._losses]
        masses = (count * (float(one.p.sum() + one.q.sum()) + one.infinity) for one, count in pairs)
        return math.fsum(masses) * (1 + _ROUND_OFF) + TINY

    def upper(self, epsilon: float) -> float:
        """Returns an upper bound on delta at `epsilon >= 0`."""
        several = self._some["upper"] ** 2 / 2
        return min((self._of_one("upper", epsilon) + several) * (1 + _ROUND_OFF), 1.0)

    def lower(self, epsilon: float) -> float:
        """Returns a lower bound on delta at `epsilon >= 0`."""
        others = max(1.0 - self._some["lower"], 0.0)
        return self._of_one("lower", epsilon) * others * (1 - _ROUND_OFF)

    def _of_one(self, side: Side, epsilon: float) -> float:
        return math.fsum(count * loss.side(side).divergence_bound(epsilon) for loss, count in self._losses)

    def delta(self, epsilon: float) -> Interval:
        """Returns bounds on delta at `epsilon >= 0`."""
        upper = self.upper(epsilon)
        return Interval(
            upper=upper, lower=min(self.lower(epsilon), upper), truncation=self._some["upper"] ** 2
        )

    def epsilon(self, delta: float) -> Interval:
        """Returns bounds on the epsilon at `delta`; the upper one is infinite if these bounds are above delta
        everywhere."""
        lower = self._first("lower", lambda epsilon: self.lower(epsilon) < delta)
        upper = self._first("upper", lambda epsilon: self.upper(epsilon) <= delta)
        high, low = upper[1], min(lower[0], upper[1])
        return Interval(upper=high, lower=low, truncation=max(high - low, 0.0) if high < math.inf else high)

    def _first(self, side: Side, holds: Callable[[float], bool]) -> tuple[float, float]:
        largest = self._largest[side]
        if not holds(largest):
            return (0.0 if side == "upper" else largest), math.inf
        return first_that_holds(holds, largest)
