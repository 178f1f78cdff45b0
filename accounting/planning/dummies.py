"""How many dummies a shuffler must add, so that rounds meet a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.effort import MOST_EFFORT, counted
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.mixed import MAXIMUM_DUMMIES

# Wanted relative distance of the number from one that is too small. Smaller: more certificates.
_WIDTH = 0.01
# The next number aims this share of `_WIDTH` beyond the interpolated one, so that both sides come close.
_BEYOND_SHARE = 0.4
# Every how many numbers the range is halved, so that a bad interpolation costs few certificates.
_HALVED_EVERY = 6
# While no number meets the target, reports and dummies grow at most by this factor at once.
_MOST_GROWTH = 1024.0
# Array elements after which the search ends with the range that it has: some seconds. Larger: a closer
# number, more time.
_SEARCH_EFFORT = 1.25 * MOST_EFFORT


def least_dummies(cost_of: Callable[[int], float], *, reports: int, epsilon: float) -> tuple[int, int | None]:
    """Returns about the least number of dummies with which rounds meet a target, and a smaller number that
    was tried and does not; None if no dummies are needed.

    Args:
        cost_of: returns the epsilon of the rounds, with a number of dummies in each.
        reports: number of the devices' reports of one round.
        epsilon: the target.

    Guarantee: `cost_of` is at most the target at the first number, and above it at the second. The two are
        neighbours or at most one percent apart, except where certificates are slow: the search then ends
        after some seconds, and the two say how wide the answer is.

    Raises:
        InvalidParameter: the largest number does not meet the target.
    """
    enough, beyond = _searched(lambda number: _log_ratio(cost_of(number), epsilon), reports)
    if enough is None:
        expected = f"a target that {MAXIMUM_DUMMIES} dummies meet"
        raise InvalidParameter("epsilon", exact_text(epsilon), expected)
    return enough, beyond


class _Tried(NamedTuple):
    """A number of dummies, and the logarithm of its epsilon over the target."""

    number: int
    excess: float


def _log_ratio(epsilon: float, target: float) -> float:
    """Returns `log(epsilon / target)`: at most 0 exactly if epsilon is at most the target."""
    if min(epsilon, target) <= 0:
        return -math.inf if epsilon <= target else math.inf
    found = math.log(epsilon) - math.log(target)
    return min(found, 0.0) if epsilon <= target else max(found, math.ulp(0.0))


def _searched(excess_of: Callable[[int], float], reports: int) -> tuple[int | None, int | None]:
    """Returns a number at which the excess is at most 0, and a smaller one that was tried at which it is not;
    the second is None if the first is 0, the first if the largest number is not enough.

    Epsilon is about a power of reports and dummies together, so lines between logarithms find the number.
    """
    low, high = _Tried(0, excess_of(0)), None
    if low.excess <= 0:
        return 0, None
    tried = [low]
    with counted() as effort:
        while high is None or high.number - low.number > max(1.0, _WIDTH * low.number):
            if high is not None and effort.spent > _SEARCH_EFFORT:
                break
            number = _grown(tried, reports) if high is None else _between(low, high, tried, reports)
            found = _Tried(number, excess_of(number))
            tried.append(found)
            if found.excess <= 0:
                high = found
            elif number >= MAXIMUM_DUMMIES:
                return None, number
            else:
                low = found
    return high.number, low.number


def _grown(tried: list[_Tried], reports: int) -> int:
    """Returns a larger number: that with which epsilon, falling like the root of reports and dummies, meets
    the target, but at least twice as many reports and dummies, then 4, 16 and 256 times."""
    low = tried[-1]
    known = low.excess if math.isfinite(low.excess) else 0.0
    factor = math.exp(min(2 * known + _WIDTH, math.log(_MOST_GROWTH)))
    factor = max(factor, math.ldexp(1.0, 1 << min(len(tried) - 1, 3)))
    return max(min(math.ceil((low.number + reports) * factor) - reports, MAXIMUM_DUMMIES), low.number + 1)


def _between(low: _Tried, high: _Tried, tried: list[_Tried], reports: int) -> int:
    """Returns a number between two: slightly beyond that at which a line through the two nearest numbers is
    0, on the side that was not tried last."""
    start, end = (math.log(one.number + reports) for one in (low, high))
    known = sorted((one for one in tried if math.isfinite(one.excess)), key=lambda one: abs(one.excess))[:2]
    middle = (start + end) / 2
    if len(tried) % _HALVED_EVERY and len(known) == 2 and known[0].excess != known[1].excess:
        (x, y), (x2, y2) = ((math.log(one.number + reports), one.excess) for one in known)
        middle = min(max(x - y * (x2 - x) / (y2 - y), start), end)
    side = 1 if tried[-1].excess > 0 else -1
    number = (math.exp(middle) - reports) * (1 + side * _BEYOND_SHARE * _WIDTH)
    return min(max(round(number), low.number + 1), high.number - 1)
