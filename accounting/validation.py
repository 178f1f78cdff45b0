"""Checks of single values, so that every constructor refuses the same things in the same words."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import cast

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.printed_numbers import exact_text

MAXIMUM_REPORTS = 10**12
MINIMUM_EPSILON0 = 1e-9
MAXIMUM_EPSILON0 = 30.0
MAXIMUM_EPSILON = 1e9
# Rounds together that an answer is for.
MAXIMUM_ROUNDS = 10**7
# Ratios of smaller probabilities overflow.
MINIMUM_PROBABILITY = 1e-200


def whole(field: str, value: object, low: int, high: int) -> int:
    """`value` as an int between `low` and `high`; a float is refused even when it is whole."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(cast("int", value))
        if low <= number <= high:
            return number
    raise InvalidParameter(field, value, f"a whole number from {low} to {high}")


def real(field: str, value: object, expected: str) -> float:
    """`value` as a finite float."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(cast("float", value))
        except OverflowError:
            raise InvalidParameter(field, value, expected) from None
        if math.isfinite(number):
            return number
    raise InvalidParameter(field, value, expected)


def local_epsilon(value: object) -> float:
    """`value` as a local privacy parameter, in nats."""
    expected = f"a number from {exact_text(MINIMUM_EPSILON0)} to {exact_text(MAXIMUM_EPSILON0)}"
    number = real("epsilon0", value, expected)
    if MINIMUM_EPSILON0 <= number <= MAXIMUM_EPSILON0:
        return number
    raise InvalidParameter("epsilon0", value, expected)


def answered_epsilon(value: object) -> float:
    """`value` as an epsilon that delta is asked for at."""
    expected = f"a number from 0 to {exact_text(MAXIMUM_EPSILON)}"
    number = real("epsilon", value, expected)
    if 0 <= number <= MAXIMUM_EPSILON:
        return number + 0.0  # which is no -0
    raise InvalidParameter("epsilon", value, expected)


def share(field: str, value: object, *, zero: bool = False) -> float:
    """`value` as a number in (0, 1], or [0, 1) when `zero`."""
    expected = "a number from 0 to below 1" if zero else "a number above 0 and at most 1"
    number = real(field, value, expected)
    if (0 <= number < 1) if zero else (0 < number <= 1):
        return number
    raise InvalidParameter(field, value, expected)


def probability(field: str, value: object) -> float:
    """`value` as a number in the open interval (0, 1), such as delta."""
    number = real(field, value, "a number between 0 and 1, both excluded")
    if 0 < number < 1:
        return number
    raise InvalidParameter(field, value, "a number between 0 and 1, both excluded")
