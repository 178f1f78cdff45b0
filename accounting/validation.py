"""Checks of single values, so that all constructors refuse the same values with the same message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
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


def between(
    field: str, value: object, least: float, most: float, *, of: str = "a number", more: str = ""
) -> float:
    """Returns `value` as a float from `least` to `most`, both included; an error calls it `of`, and ends with
    `more`."""
    expected = f"{of} from {exact_text(least)} to {exact_text(most)}{more}"
    number = real(field, value, expected)
    if not least <= number <= most:
        raise InvalidParameter(field, value, expected)
    return number


def not_negative(field: str, value: object) -> float:
    """Returns `value` as a finite float from 0 on."""
    expected = "a finite number, not negative"
    number = real(field, value, expected)
    if number < 0:
        raise InvalidParameter(field, value, expected)
    return number


def quotients(distance: float, least: float, most: float) -> tuple[float, float]:
    """Returns the least and the largest float by which a distance may be divided so that the quotient is from
    `least` to `most`, both included.

    All are taken for the decimal numbers that they print as: 0.7 may be divided by 0.07 if `most` is 10.
    """
    exact, smallest, largest = (Fraction(repr(one)) for one in (distance, least, most))
    low, high = float(exact / largest), float(exact / smallest)
    if Fraction(repr(low)) < exact / largest:
        low = math.nextafter(low, math.inf)
    if Fraction(repr(high)) > exact / smallest:
        high = math.nextafter(high, 0.0)
    return low, high


def sums_to_one(values: Sequence[float], tolerance: float) -> bool:
    """Returns whether the decimal numbers that the values print as sum to 1 within a tolerance, which is
    included."""
    if abs(math.fsum(values) - 1) <= tolerance / 2:
        return True
    total = sum((Fraction(repr(one)) for one in values), Fraction(0))
    return abs(total - 1) <= Fraction(repr(tolerance))


def local_epsilon(value: object) -> float:
    """Returns `value` as a local privacy parameter, in nats."""
    return between("epsilon0", value, MINIMUM_EPSILON0, MAXIMUM_EPSILON0)


def answered_epsilon(value: object) -> float:
    """Returns `value` as an epsilon at which delta can be asked for."""
    return between("epsilon", value, 0.0, MAXIMUM_EPSILON) + 0.0  # turns -0 into 0


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
