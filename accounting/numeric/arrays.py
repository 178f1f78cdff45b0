"""Types of arrays, and functions that hold their digits where the obvious formula loses them."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complex128]
IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: What is below it may be known to few digits, or to none.
UNDERFLOW = 1e-306
UNIT_ROUND_OFF = float(np.finfo(np.float64).eps) / 2
_STEPS = 700
# Taylor coefficients: of `(exp(x) - 1 - x) / x^2`, and of `(sin(x) - x) / x^3` in `x^2`.
_EXPONENTIAL = [1 / math.factorial(order) for order in range(2, 15)]
_SINE = [(-1) ** (order // 2) / math.factorial(order) for order in range(3, 14, 2)]


def increasing_root(
    function: Callable[[FloatArray, IndexArray], FloatArray], start: FloatArray, *, closeness: float = 1.001
) -> FloatArray:
    """Approximate positive roots of increasing functions.

    Args:
        function: values of the functions at these places, shape (places,), given one for each.
        start: where to look first, shape (functions,).
        closeness: factor within which roots are wanted.

    Returns an array like `start`: within the factor `closeness` of the root, or how far was looked when there
    is none in reach. Any positive value keeps every bound that uses it sound; only tightness depends on
    it.
    """
    low, high, at = np.zeros_like(start), np.full_like(start, np.inf), start.copy()
    left = np.arange(start.size)
    for _ in range(_STEPS):
        if not left.size:
            break
        value = function(at[left], left)
        # Both ends where nothing is known.
        short, beyond = left[~(value >= 0)], left[~(value < 0)]
        low[short], high[beyond] = at[short], at[beyond]
        left = left[high[left] > low[left] * closeness]
        below, above = low[left], high[left]
        middle = np.sqrt(below) * np.sqrt(np.where(np.isinf(above), 1.0, above))
        at[left] = np.where(np.isinf(above), 2 * below, np.where(below > 0, middle, above / 2))
    known = (low > 0) & np.isfinite(high)
    return np.where(known, np.sqrt(low) * np.sqrt(np.where(known, high, 1.0)), at)


def order_less_one(loss: float) -> float:
    """The float nearest to `exp(loss) - 1`, for losses from 1e-40 to 700; `math.expm1` may be the one beside
    it."""
    with decimal.localcontext(prec=60):
        return float(decimal.Decimal(loss).exp() - 1)


def running_sums(values: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, ... values, shape (values + 1,).

    Guarantee: the relative round-off of sums of one sign is a unit and no more, whether of ten values or of
        millions: what every addition was off is added up beside them.
    Source: Ogita, Rump, Oishi, "Accurate Sum and Dot Product", proposition 4.5.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    added = np.diff(sums)
    sums[1:] += np.cumsum((sums[:-1] - (sums[1:] - added)) + (values - added))
    return sums


def expm1_minus(x: FloatArray) -> FloatArray:
    """`exp(x) - 1 - x` for real x, without cancellation near 0: relative error of a few units in the last
    place."""
    small = np.abs(x) < 0.3
    y = np.where(small, x, 0.0)
    return np.where(small, y * y * _polynomial(_EXPONENTIAL, y), np.expm1(x) - x)


def sine_minus(x: FloatArray) -> FloatArray:
    """`sin(x) - x` for `|x| <= 0.5`, without cancellation."""
    square = x * x
    return np.asarray(x * square * _polynomial(_SINE, square))


def _polynomial(coefficients: Sequence[float], x: FloatArray) -> FloatArray:
    """The polynomial with these coefficients, the constant first: Horner's rule."""
    value = np.full_like(x, coefficients[-1])
    for one in coefficients[-2::-1]:
        value *= x
        value += one
    return value


def circle(angle: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines, to a few units of 1: by one tangent, which many machines evaluate side by side."""
    tangent = np.tan(angle / 2)
    square = tangent * tangent
    below = 1 / (1 + square)
    return (1 - square) * below, 2 * tangent * below


def turned(angles: FloatArray) -> ComplexArray:
    """`exp(i angles)`, to a few units."""
    found = np.empty(angles.shape, dtype=np.complex128)
    found.real, found.imag = circle(angles)
    return found
