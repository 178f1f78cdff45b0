"""Basic composition: the sum of the rounds' own guarantees, an upper bound on their epsilon or delta
together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.arrays import TINY, UNIT_ROUND_OFF
from shuffle_ledger.accounting.numeric.rounding import float_above, float_below

# Relative room for the round-off of logarithms and of sums of a few thousand of them.
_LOG_ROUND_OFF = 1e-13


class Promise(NamedTuple):
    """The guarantee of rounds together by basic composition: `(most, rest)`-differential privacy, and
    slightly more.

    Attributes:
        most: the sum of the rounds' largest losses, or of their declared epsilons; may be infinite.
        rest: the sum of their declared deltas.
        all_largest: upper bound on the probability that randomized responses with these epsilons all have
            their largest loss.
        step: if they do not, the sum of their losses is at least this far below `most`; at most `most`.

    Guarantee: delta at `most - x` is at most `rest + all_largest (1 - exp(-x))`, for x from 0 to `step`.
    Source: docs/theory/pld.md, P7; Dwork and Roth, "The Algorithmic Foundations of Differential
    Privacy", Theorem 3.16; Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy".
    """

    most: Fraction | float
    rest: Fraction = Fraction(0)
    all_largest: float = 1.0
    step: float = 0.0

    @classmethod
    def of(cls, rounds: Iterable[tuple[tuple[float, float], int]]) -> Promise:
        """Adds up rounds, given as `((epsilon, delta), count)`."""
        each = [one for one in rounds if one[1]]
        if any(math.isinf(epsilon) for (epsilon, _), _ in each):
            return cls(math.inf)
        most = sum((count * Fraction(epsilon) for (epsilon, _), count in each), Fraction(0))
        rest = sum((count * Fraction(delta) for (_, delta), count in each), Fraction(0))
        telling = [(epsilon, count) for (epsilon, _), count in each if epsilon > 0]
        doubt = math.fsum(count * math.log1p(math.exp(-epsilon)) for epsilon, count in telling)
        step = min(2 * min((epsilon for epsilon, _ in telling), default=0.0), float_below(most))
        all_largest = math.exp(-doubt * (1 - _LOG_ROUND_OFF)) * (1 + _LOG_ROUND_OFF)
        return cls(most, rest, max(all_largest, TINY), step)

    def epsilon(self, interval: Interval, delta: float) -> Interval:
        """Returns bounds on epsilon at `delta`: the given interval, lowered to the guarantee if that is
        smaller."""
        if isinstance(self.most, float) or self.rest > Fraction(delta):
            return interval
        upper = float_above(self.most - Fraction(self._saved(Fraction(delta) - self.rest)))
        if interval.upper <= upper:
            return interval
        # The exact value is also at most that, so the lower bound may be lowered too.
        return _below(interval, upper, min(interval.lower, upper * (1 - 8 * UNIT_ROUND_OFF)))

    def _saved(self, delta: Fraction) -> float:
        """Returns the difference between `most` and the guaranteed epsilon at this delta, rounded down."""
        share = float(delta) * (1 - _LOG_ROUND_OFF) / self.all_largest
        return self.step if share >= 1 else min(self.step, -math.log1p(-share) * (1 - _LOG_ROUND_OFF))

    def delta(self, interval: Interval, epsilon: float) -> Interval:
        """Returns bounds on delta at `epsilon`, likewise."""
        if isinstance(self.most, float) or Fraction(epsilon) < self.most - Fraction(self.step):
            return interval
        below = max(float_above(self.most - Fraction(epsilon)), 0.0)
        most = float(self.rest) * (1 + 2 * UNIT_ROUND_OFF)
        most += self.all_largest * -math.expm1(-below) * (1 + _LOG_ROUND_OFF)
        if interval.upper <= most:
            return interval
        return _below(interval, most, min(interval.lower, most * (1 - 8 * UNIT_ROUND_OFF)))


def _below(interval: Interval, upper: float, lower: float) -> Interval:
    """Returns the interval with other ends; the stated causes of its width are limited to the new width."""
    causes = (min(one, upper - lower) for one in (interval.truncation, interval.round_off))
    truncation, round_off = causes
    return Interval(upper=upper, lower=lower, truncation=truncation, round_off=round_off)
