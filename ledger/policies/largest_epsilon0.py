"""The search for the largest epsilon0 with which a round still fits, for quotes and for forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from shuffle_ledger.accounting import InvalidParameter, ShuffledRound

EPSILON0_MIN: Final = 1e-3  # smaller ones are not tried
EPSILON0_MAX: Final = 30.0  # no randomizer has a larger one
_STEPS_MAX: Final = 30  # of a bisection


def epsilon0_of(described: ShuffledRound) -> float | None:
    """Returns the epsilon0 of a round's randomizer; None if it has another parameter or several parts."""
    epsilon0 = described.randomizer.to_mapping().get("epsilon0")
    return epsilon0 if isinstance(epsilon0, float) else None


def with_epsilon0(described: ShuffledRound, epsilon0: float) -> ShuffledRound:
    """Returns a round with another epsilon0; raises InvalidParameter if its randomizer cannot have it."""
    randomizer = {**described.randomizer.to_mapping(), "epsilon0": epsilon0}
    return ShuffledRound.from_mapping({**described.to_mapping(), "randomizer": randomizer})


def largest_epsilon0(
    fits: Callable[[ShuffledRound], bool], described: ShuffledRound, *, digits: int
) -> float | None:
    """Returns an epsilon0 with which a round fits, the largest that is found.

    Args:
        fits: whether a round fits.
        described: the round. Its own epsilon0 is tried first.
        digits: significant digits of the values that are tried, from 2.

    Guarantee: the round was tried with this epsilon0 and fits. It was tried with a larger one, by at most
    `2 * 10**(1 - digits)` relative, and does not fit, unless this one is 30, the largest that there is.

    Returns:
        None if the round has no epsilon0, or neither its own nor 0.001 fits.
    """

    def tried(epsilon0: float) -> bool:
        try:
            return fits(with_epsilon0(described, epsilon0))
        except InvalidParameter:  # its randomizer cannot have this one
            return False

    asked = epsilon0_of(described)
    if asked is None:
        return None
    if fits(described):
        if asked >= EPSILON0_MAX:
            return asked
        if tried(EPSILON0_MAX):
            return EPSILON0_MAX
        low, high = asked, EPSILON0_MAX
    else:
        if asked <= EPSILON0_MIN or not tried(EPSILON0_MIN):
            return None
        low, high = EPSILON0_MIN, asked
    width = 10.0 ** (1 - digits)
    for _ in range(_STEPS_MAX):
        middle = _rounded_down(math.sqrt(low * high), digits)
        if high <= low * (1 + width) or not low < middle < high:
            break
        low, high = (middle, high) if tried(middle) else (low, middle)
    return low


def _rounded_down(value: float, digits: int) -> float:
    scale = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{math.floor(value / scale) * scale:.{digits}g}")
