"""Largest numbers of rounds at which a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Largest number of rounds that a search returns.
ROUNDS_MAX: Final = 10**6
_SEARCH_PARTS = 16  # the first step of a search is its beginning over this


def largest_count(holds: Callable[[int], bool], about: int) -> int:
    """Returns the largest number up to `ROUNDS_MAX` at which the condition holds; 0 if there is none.

    The condition must be monotone: if it holds for a number, it holds for smaller ones.
    """
    low, high = 0, ROUNDS_MAX + 1
    count = min(max(about, 1), ROUNDS_MAX)
    step = max(1, count // _SEARCH_PARTS)
    while low < count < high:
        if holds(count):
            low, count = count, min(count + step, high)
        else:
            high, count = count, max(count - step, low)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
