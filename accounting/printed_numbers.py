"""Numbers in text for people: upper bounds are rounded up, lower bounds down, given numbers are exact.

Every sentence, table, page and drawing takes its numbers from here. The arithmetic is decimal and starts from
the exact value of the float, so that the printed number is a bound too.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 6  # significant digits of a bound
UNBOUNDED = "unbounded"  # text for infinity
_UNKNOWN = "unknown"  # text for NaN
_LEAST_POWER = -4  # smaller numbers, and those with more digits than asked for, are written with an exponent
_EXACT = Context(prec=1200)  # more digits than any float has


def upper_text(value: float | None, *, digits: int = DIGITS) -> str:
    """Returns an upper bound with at most `digits` significant digits, rounded up.

    None and infinity are "unbounded", NaN is "unknown".

    Guarantee: the decimal number in the text is at least `value`.
    """
    return _bound(math.inf if value is None else value, digits, ROUND_CEILING)


def lower_text(value: float, *, digits: int = DIGITS) -> str:
    """Returns a lower bound, or the rest of a budget, with at most `digits` significant digits, rounded down.

    Guarantee: the decimal number in the text is at most `value`.
    """
    return _bound(value, digits, ROUND_FLOOR)


def exact_text(value: float) -> str:
    """Returns a given number, such as a budget, with the fewest digits that read back as the same float."""
    if math.isnan(value):
        return _UNKNOWN
    if math.isinf(value):
        return UNBOUNDED
    return repr(float(value) or 0.0).removesuffix(".0")  # zero has no sign


def interval_text(lower: float, upper: float) -> str:
    """Returns a certified interval as "LOWER to UPPER", as one number if both ends are equal, or as
    "at least LOWER" if it has no upper end; "no bound" if it has neither.

    Guarantee: the first number is at most `lower`, and the second is at least `upper`.
    """
    if lower == upper:
        return exact_text(upper)
    if math.isinf(upper):
        return f"at least {lower_text(lower)}" if lower > 0 else "no bound"
    return f"{lower_text(lower)} to {upper_text(upper)}"


def bounds_text(lower: float, upper: float) -> str:
    """Returns a certified interval as "at most UPPER (and at least LOWER)"; without an upper end as
    `interval_text`.

    Guarantee: as `interval_text`.
    """
    if math.isinf(upper):
        return interval_text(lower, upper)
    return f"at most {upper_text(upper)} (and at least {lower_text(lower)})"


def upper_column(value: float, *, decimals: int) -> str:
    """Returns an upper bound with `decimals` decimals, rounded up, for a column of numbers."""
    return _column(value, decimals, ROUND_CEILING)


def lower_column(value: float, *, decimals: int) -> str:
    """Returns a lower bound with `decimals` decimals, rounded down, for a column of numbers."""
    return _column(value, decimals, ROUND_FLOOR)


def _bound(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return exact_text(value)
    rounded = Context(prec=digits, rounding=rounding).create_decimal_from_float(value)
    if not rounded:
        return "0"
    power = rounded.adjusted()
    if _LEAST_POWER <= power < digits:
        return _without_zeros(f"{rounded:f}")
    return f"{_without_zeros(f'{rounded.scaleb(-power):f}')}e{power:+03d}"


def _column(value: float, decimals: int, rounding: str) -> str:
    if not math.isfinite(value):
        return exact_text(value)
    step = Decimal(1).scaleb(-decimals)
    return f"{Decimal(value or 0.0).quantize(step, rounding=rounding, context=_EXACT):,f}"


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
