"""Floats next to exact fractions, on the safe side."""

from __future__ import annotations

import math
from fractions import Fraction


def float_above(value: Fraction) -> float:
    """Returns the smallest float that is at least the value."""
    nearest = float(value)
    numerator, denominator = nearest.as_integer_ratio()
    is_above = numerator * value.denominator >= value.numerator * denominator
    return nearest if is_above else math.nextafter(nearest, math.inf)


def float_below(value: Fraction) -> float:
    """Returns the largest float that is at most the value; 0 without a sign."""
    return 0.0 - float_above(-value)
