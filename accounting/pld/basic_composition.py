"""What rounds promise one by one, added up: a ceiling for what they reveal together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF


class Promise(NamedTuple):
    """Rounds together are `(most, rest)`-differentially private.

    Attributes:
        most: the sum of their largest losses, or of the epsilons that they declare, rounded up to a float;
            may be infinite.
        rest: the sum of the deltas that they declare.

    Source: basic composition, Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", Theorem
    3.16.
    """

    most: float
    rest: Fraction

    @classmethod
    def of(cls, rounds: Iterable[tuple[tuple[float, float], int]]) -> Promise:
        """Of rounds that promise an epsilon at a delta each, repeated so often."""
        each = list(rounds)
        if any(math.isinf(epsilon) for (epsilon, _), _ in each):
            return cls(math.inf, Fraction(0))
        most = sum((count * Fraction(epsilon) for (epsilon, _), count in each), Fraction(0))
        rest = sum((count * Fraction(delta) for (_, delta), count in each), Fraction(0))
        rounded = float(most)
        return cls(rounded if rounded >= most else math.nextafter(rounded, math.inf), rest)

    def epsilon(self, interval: Interval, delta: float) -> Interval:
        """Bounds on epsilon at delta, no larger than what is promised."""
        if interval.upper <= self.most or self.rest > Fraction(delta):
            return interval
        # The exact value is no larger either, however its lower bound was rounded.
        lower = min(interval.lower, self.most * (1 - 8 * UNIT_ROUND_OFF))
        return _below(interval, self.most, lower)

    def delta(self, interval: Interval, epsilon: float) -> Interval:
        """Bounds on delta at epsilon, likewise."""
        if epsilon < self.most or interval.upper <= self.rest:
            return interval
        most = float(self.rest) * (1 + 2 * UNIT_ROUND_OFF)
        return _below(interval, most, min(interval.lower, most * (1 - 8 * UNIT_ROUND_OFF)))


def _below(interval: Interval, upper: float, lower: float) -> Interval:
    """The interval with other ends, the causes of its width no larger than that."""
    causes = (min(one, upper - lower) for one in (interval.truncation, interval.round_off))
    truncation, round_off = causes
    return Interval(upper=upper, lower=lower, truncation=truncation, round_off=round_off)
