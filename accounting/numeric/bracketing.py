"""Bracketing of the least number at which a condition holds"""

from __future__ import annotations

import math
from collections.abc import Callable

# Tests of the condition; a bisection of 13 decades to a relative width of 1e-6 needs fewer.
_MOST_STEPS = 200


def least_true(
    holds: Callable[[float], bool],
    *,
    start: float,
    least: float,
    most: float,
    width: float,
    step: float = 1.0,
    whole: bool = False,
) -> tuple[float, float | None] | None:
    """Returns a number at which a condition holds, and a slightly smaller one at which it does not.

    The condition is expected to hold from some number on; if it does not, the answer is still one of the
    numbers that were tried.

    Args:
        holds: the condition.
        start: where the search begins; it affects only the number of tests.
        least, most: the range, both positive.
        width: wanted relative distance of the two numbers, if they are not whole.
        step: relative distance of the second number tried from the first; later distances grow.
        whole: only whole numbers are tried, and the two are neighbours.

    Guarantee: `holds` was True at the first number and False at the second. The second is None if the first
    is `least`. The answer is None only if `holds` was False at `most`.
    """

    def kept(number: float) -> float:
        return min(max(float(round(number)) if whole else number, least), most)

    low = high = kept(start)
    factor = 1 + step
    if holds(high):
        low = kept(min(high / factor, high - whole))
        while low < high and holds(low):
            factor *= factor
            high, low = low, kept(min(low / factor, low - whole))
        if low == high:
            return high, None
    else:
        high = kept(max(low * factor, low + whole))
        while low < high and not holds(high):
            factor *= factor
            low, high = high, kept(max(high * factor, high + whole))
        if low == high:
            return None
    for _ in range(_MOST_STEPS):
        if high - low <= (1 if whole else width * low):
            break
        middle = kept((low + high) / 2 if whole else math.sqrt(low) * math.sqrt(high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high, low
