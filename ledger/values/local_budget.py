"""Losses of users where the shuffler is not trusted: sums of the randomizers' epsilons and deltas.

Each report of a user is epsilon0-locally private by itself, so all of them together are private with the sum,
however rounds were chosen (basic composition, which holds for adaptive choices). Each number is the decimal
number that people write, the shortest one that is read as its float: ten times 0.1 is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from shuffle_ledger.accounting import ShuffledRound


def local_bounds(counts: Iterable[tuple[ShuffledRound, int]]) -> tuple[float, float]:
    """Return the epsilon and delta that a user may lose to rounds, each so often, without the shuffler."""
    often = [(each, count * each.reports_per_user) for each, count in counts]
    epsilon = _above(_sum((count, each.randomizer.epsilon0) for each, count in often))
    return epsilon, min(1.0, _above(_sum((count, each.delta0) for each, count in often)))


def _sum(terms: Iterable[tuple[int, float]]) -> Fraction | None:
    """Return the exact sum of count times value; None if it is infinite."""
    total = Fraction(0)
    for count, value in terms:
        if count == 0:
            continue
        if math.isinf(value):
            return None
        total += count * _written(value)
    return total


def _written(value: float) -> Fraction:
    return Fraction(repr(float(value)))


def _above(total: Fraction | None) -> float:
    """Return the smallest float that is at least a sum, as the number that it is written as."""
    if total is None:
        return math.inf
    rounded = float(total)
    return rounded if _written(rounded) >= total else math.nextafter(rounded, math.inf)
