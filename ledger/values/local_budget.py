"""Losses of users where the shuffler is not trusted: sums of the randomizers' epsilons and deltas.

Each report of a user is epsilon0-locally private by itself, so all of them together are private with the sum,
however rounds were chosen (basic composition, which holds for adaptive choices).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from shuffle_ledger.accounting import ShuffledRound

ROUNDS_UNLIMITED: Final = 2**62  # more rounds than any answer names


def local_bounds(counts: Iterable[tuple[ShuffledRound, int]]) -> tuple[float, float]:
    """Return the epsilon and delta that a user may lose to rounds, each so often, without the shuffler."""
    often = [(each, count * each.reports_per_user) for each, count in counts]
    epsilon = _above(_sum((count, each.randomizer.epsilon0) for each, count in often))
    return epsilon, min(1.0, _above(_sum((count, each.delta0) for each, count in often)))


def local_rounds_left(limit: float | None, spent: Mapping[ShuffledRound, int], *kinds: ShuffledRound) -> int:
    """Return how many more times one round of each kind fits in a limit on the sum of epsilon0.

    Args:
        limit: the local budget; None: there is none.
        spent: the rounds that count already, with their numbers.
        kinds: as they are accounted.

    Guarantee: the exact sum with this number is at most the limit; with one of each more it is above.
    """
    if limit is None:
        return ROUNDS_UNLIMITED
    total = _sum((count * each.reports_per_user, each.randomizer.epsilon0) for each, count in spent.items())
    cost = _sum((kind.reports_per_user, kind.randomizer.epsilon0) for kind in kinds)
    if total is None or cost is None or total > Fraction(limit):
        return 0
    return int((Fraction(limit) - total) // cost) if cost else ROUNDS_UNLIMITED


def _sum(terms: Iterable[tuple[int, float]]) -> Fraction | None:
    """Return the exact sum of count times value; None if it is infinite."""
    total = Fraction(0)
    for count, value in terms:
        if count == 0:
            continue
        if math.isinf(value):
            return None
        total += count * Fraction(value)
    return total


def _above(total: Fraction | None) -> float:
    """Return the smallest float that is at least a sum."""
    if total is None:
        return math.inf
    rounded = float(total)
    return rounded if Fraction(rounded) >= total else math.nextafter(rounded, math.inf)
