"""Checks of single values, so that all constructors refuse the same values with the same message."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import cast

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.printed_numbers import exact_text

MAXIMUM_REPORTS = 10**12  # of one round
MAXIMUM_REPORTS_PER_USER = 1000  # of one round; each counts as one of the `MAXIMUM_ROUNDS`
MINIMUM_EPSILON0 = 1e-9  # of one report, in nats
MAXIMUM_EPSILON0 = 30.0  # of one report, in nats
MAXIMUM_EPSILON = 1e9  # at which delta can be asked for, in nats
MAXIMUM_ROUNDS = 10**7  # in one composition
MINIMUM_PROBABILITY = 1e-200  # ratios of smaller probabilities overflow


def whole(field: str, value: object, low: int, high: int) -> int:
    """Returns `value` as an int from `low` to `high`; a float is refused even if it is whole."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(cast("int", value))
        if low <= number <= high:
            return number
    raise InvalidParameter(field, value, f"a whole number from {low} to {high}")


def real(field: str, value: object, expected: str) -> float:
    """Returns `value` as a finite float."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(cast("float", value))
        except OverflowError:
            raise InvalidParameter(field, value, expected) from None
        if math.isfinite(number):
            return number
    raise InvalidParameter(field, value, expected)


def local_epsilon(value: object) -> float:
    """Returns `value` as a local privacy parameter, in nats."""
    expected = f"a number from {exact_text(MINIMUM_EPSILON0)} to {exact_text(MAXIMUM_EPSILON0)}"
    number = real("epsilon0", value, expected)
    if MINIMUM_EPSILON0 <= number <= MAXIMUM_EPSILON0:
        return number
    raise InvalidParameter("epsilon0", value, expected)


def answered_epsilon(value: object) -> float:
    """Returns `value` as an epsilon at which delta can be asked for."""
    expected = f"a number from 0 to {exact_text(MAXIMUM_EPSILON)}"
    number = real("epsilon", value, expected)
    if 0 <= number <= MAXIMUM_EPSILON:
        return number + 0.0  # turns -0 into 0
    raise InvalidParameter("epsilon", value, expected)


def share(field: str, value: object, *, zero: bool = False) -> float:
    """Returns `value` as a number in (0, 1], or in [0, 1) if `zero`."""
    expected = "a number from 0 to below 1" if zero else "a number above 0 and at most 1"
    number = real(field, value, expected)
    if (0 <= number < 1) if zero else (0 < number <= 1):
        return number
    raise InvalidParameter(field, value, expected)


def probability(field: str, value: object) -> float:
    """Returns `value` as a number in the open interval (0, 1), such as delta."""
    number = real(field, value, "a number between 0 and 1, both excluded")
    if 0 < number < 1:
        return number
    raise InvalidParameter(field, value, "a number between 0 and 1, both excluded")
