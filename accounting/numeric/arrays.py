"""Array types, and functions that keep their relative accuracy where the obvious formula cancels."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from shuffle_ledger.accounting.numeric.later import np

if TYPE_CHECKING:
    import numpy.typing as npt

FloatArray: TypeAlias = "npt.NDArray[np.float64]"
ComplexArray: TypeAlias = "npt.NDArray[np.complex128]"
IndexArray: TypeAlias = "npt.NDArray[np.int64]"
BoolArray: TypeAlias = "npt.NDArray[np.bool_]"

#: A number below it may have few correct digits, or none: room for underflow in absolute error bounds.
UNDERFLOW = 1e-306
#: Largest relative error of one rounded operation, 2^-53.
UNIT_ROUND_OFF = 2.0**-53
#: Keeps a divisor, or the argument of a logarithm, positive; far below every probability that matters.
TINY = 1e-300
#: Exponents are clipped here: `exp(700)`, about 1e304, is still a float.
LARGEST_EXPONENT = 700.0
# Doublings and bisections of one search for roots: enough to cross all floats and reach any closeness.
_ROOT_STEPS = 700
# Share of the allowed distance by which the search goes beyond a line's root. One step in the second number
# bisects.
_PROBE, _BISECTING = 0.45, 4
# Taylor coefficients: of `(exp(x) - 1 - x) / x^2`, and of `(sin(x) - x) / x^3` in `x^2`.
_EXPONENTIAL = [1 / math.factorial(order) for order in range(2, 15)]
_SINE = [(-1) ** (order // 2) / math.factorial(order) for order in range(3, 14, 2)]
# The largest block whose release moves the thresholds of glibc's allocator is 32 MiB, its header included.
_THRESHOLD_BLOCK = 31 << 20


def keep_freed_memory() -> None:
    """Has the C library keep up to 62 MiB of freed memory for the next arrays.

    By default glibc returns a few freed megabytes to the system at once, and every new array has its pages
    mapped again: a third of the processor time of a new kind of round. Releasing one large block, of which no
    page was used, moves both of its thresholds up. Elsewhere this does nothing, nor where the environment
    sets these thresholds.
    """
    bytes(_THRESHOLD_BLOCK)


def increasing_root(
    function: Callable[[FloatArray, IndexArray], FloatArray], start: FloatArray, *, closeness: float = 1.001
) -> FloatArray:
    """Returns approximate positive roots of increasing functions, an array of the shape of `start`.

    Args:
        function: takes one argument for each of some functions, and the positions of these functions, both of
            shape (places,); returns the values.
        start: where each search begins, positive, shape (functions,).
        closeness: the factor within which roots are wanted, above 1.

    A value is within the factor `closeness` of its root. If there is no root in reach, it is the last place
    that was tried. Callers use roots as tilts: any positive tilt gives a sound bound, a good one a tight
    bound.
    """
    low, high, at = np.zeros_like(start), np.full_like(start, np.inf), start.copy()
    short, beyond = np.full_like(start, -np.inf), np.full_like(start, np.inf)  # values there
    left = np.arange(start.size)
    for step in range(_ROOT_STEPS):
        if not left.size:
            break
        value, tried = function(at[left], left), at[left]
        # A value that is not a number moves both ends: the search then ends.
        for ends, values, moved in ((low, short, ~(value >= 0)), (high, beyond, ~(value < 0))):
            ends[left[moved]], values[left[moved]] = tried[moved], value[moved]
        left = left[high[left] > low[left] * closeness]
        below, above = low[left], high[left]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            share = short[left] / (short[left] - beyond[left])
            # Beyond where the line between the ends' values has its root, by a part of what is allowed: the
            # next place is then likely to be on its other side, and near.
            ratio = np.log(above / below)
            share += np.where(share < 0.5, 1, -1) * _PROBE * math.log(closeness) / ratio
            share = np.where((share > 0) & (share < 1) & (step % _BISECTING > 0), share, 0.5)
            middle = below * np.exp(share * ratio)
        at[left] = np.where(np.isinf(above), 2 * below, np.where(below > 0, middle, above / 2))
    known = (low > 0) & np.isfinite(high)
    return np.where(known, np.sqrt(low) * np.sqrt(np.where(known, high, 1.0)), at)


@functools.lru_cache(maxsize=64)  # rounds of one randomizer share their largest loss
def order_less_one(loss: float) -> float:
    """Returns the float nearest to `exp(loss) - 1`, for losses from 1e-40 to 700. `math.expm1` may return a
    neighbouring float."""
    with decimal.localcontext(prec=60):
        return float(decimal.Decimal(loss).exp() - 1)


def chosen_rows(table: FloatArray, rows: BoolArray | IndexArray) -> FloatArray:
    """Returns some rows, of a table with the numbers of a column next to each other in memory: sums and
    largest numbers of rows with few columns then take a fifth of the time."""
    if table.ndim == 1:
        return table[rows]
    places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    return table.T.take(places, axis=1).T


def running_sums(values: FloatArray) -> FloatArray:
    """Returns the sums of the first 0, 1, ... values, shape (values + 1,).

    Guarantee: for values of one sign the relative round-off of each sum is about one unit, for ten values as
        for millions: the rounding error of every addition is computed and added up separately.
    Source: Ogita, Rump, Oishi, "Accurate Sum and Dot Product", proposition 4.5.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    added = np.diff(sums)
    sums[1:] += np.cumsum((sums[:-1] - (sums[1:] - added)) + (values - added))
    return sums


def expm1_minus(x: FloatArray) -> FloatArray:
    """Returns `exp(x) - 1 - x` for real x, without cancellation near 0.

    Guarantee: a relative error of a few units in the last place.
    """
    small = np.abs(x) < 0.3
    y = np.where(small, x, 0.0)
    return np.where(small, y * y * _polynomial(_EXPONENTIAL, y), np.expm1(x) - x)


def sine_minus(x: FloatArray) -> FloatArray:
    """Returns `sin(x) - x` for `|x| <= 0.5`, without cancellation."""
    square = x * x
    return np.asarray(x * square * _polynomial(_SINE, square))


def _polynomial(coefficients: Sequence[float], x: FloatArray) -> FloatArray:
    """Evaluates the polynomial with these coefficients, the constant first, by Horner's rule."""
    value = np.full_like(x, coefficients[-1])
    for one in coefficients[-2::-1]:
        value *= x
        value += one
    return value


def circle(angle: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns cosines and sines, with absolute errors of a few units: from one tangent, which numpy evaluates
    with vector instructions on many machines."""
    tangent = np.tan(angle / 2)
    square = tangent * tangent
    below = 1 / (1 + square)
    return (1 - square) * below, 2 * tangent * below


def turned(angles: FloatArray) -> ComplexArray:
    """Returns `exp(i angles)`, with an absolute error of a few units."""
    found = np.empty(angles.shape, dtype=np.complex128)
    found.real, found.imag = circle(angles)
    return found
