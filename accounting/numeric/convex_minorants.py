"""Supporting lines of a convex function that is known only between bounds at some orders, and a piecewise
linear function that is certainly below it."""

from __future__ import annotations

from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np

# A chord whose extension supports the profile spans fewer cells than this.
_LONGEST_CHORD = 64
_ROUND_OFF = 8 * UNIT_ROUND_OFF
# Rounds in which points that are no corners are found by array operations; the rest point by point.
_FIRST_ROUNDS = 6


class SupportingLines(NamedTuple):
    """Two lines for every cell between neighbouring orders, through the lower bounds at its ends; both lie
    below the profile in the cell.

    A chord between an end and a point outside of the cell, extended into the cell, lies below a convex
    function. Long chords lose less from the distance of the bounds, short ones less from the curvature.

    Attributes:
        excess: ends of the cells (orders minus one), ascending, shape (orders,).
        upper, lower: bounds on one or several profiles there, shape (..., orders); lower bounds are raised to
            the lines of neighbouring cells.
        left, right: slopes of the lines through the left and the right ends, shape (..., orders - 1).

    Source: docs/theory/pld.md, P4.
    """

    excess: FloatArray
    upper: FloatArray
    lower: FloatArray
    left: FloatArray
    right: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, upper: FloatArray, lower: FloatArray, first: float) -> SupportingLines:
        """Computes the lines of profiles between these bounds; `first` is a lower bound on the slope at the
        first order.

        The bounds must have room for the round-off of chords, a few dozen units of themselves.
        """
        step = np.diff(excess)
        left, right = _slopes(excess, upper, lower, first)
        lower = lower.copy()
        lower[..., 1:] = np.maximum(lower[..., 1:], lower[..., :-1] + left * step)
        lower[..., :-1] = np.maximum(lower[..., :-1], lower[..., 1:] - right * step)
        lower = np.minimum(lower, upper)
        return cls(excess, upper, lower, *_slopes(excess, upper, lower, first))

    @property
    def _apart(self) -> tuple[FloatArray, FloatArray]:
        """Returns how far the slopes of a cell's left and right line are from that of the cell's chord."""
        with np.errstate(invalid="ignore"):
            chord = np.diff(self.lower) / np.diff(self.excess)
            return np.maximum(chord - self.left, 0.0), np.maximum(self.right - chord, 0.0)

    @property
    def meeting(self) -> FloatArray:
        """Returns the order minus one at which the two lines of every cell meet, shape (..., cells)."""
        before, beyond = self._apart
        with np.errstate(invalid="ignore"):
            share = np.where(np.isinf(before), 0.0, beyond / np.where(beyond > 0, before + beyond, 1.0))
        return np.asarray(self.excess[:-1] + share * np.diff(self.excess))

    @property
    def sag(self) -> FloatArray:
        """Returns how far below each cell's own chord its lines meet, shape (..., cells)."""
        before, beyond = self._apart
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # At distance t from the left end both lines lie `before * t` below the chord.
            step = np.diff(self.excess)
            sag = np.where(np.isinf(before), beyond * step, step / (1 / before + 1 / beyond))
        return np.where((before == 0) | (beyond == 0), 0.0, sag)

    def at(self, cells: IndexArray, excess: FloatArray) -> FloatArray:
        """Returns values below both lines of each cell, at one order `1 + excess[i]` inside cell
        `cells[i]`."""
        since, until = excess - self.excess[cells], self.excess[cells + 1] - excess
        falls, rises = self.left[cells] * since, -self.right[cells] * until
        values = np.minimum(self.lower[cells] + falls, self.lower[cells + 1] + rises)
        return np.asarray(values - _ROUND_OFF * (self.upper[cells] + np.abs(falls) + np.abs(rises)))

    def values(self, bent: IndexArray, excess: FloatArray, *, steep: bool) -> FloatArray:
        """Returns the corners of a piecewise linear function below the profile, shape (orders + bent cells,).

        The corners are at all orders and, in each cell of `bent`, at `excess`. In a bent cell the function
        goes from one lower bound to a point below both lines, and on to the other lower bound. In other cells
        the chord is lowered to where the lines meet, and each corner takes the smaller of its two values. If
        the profile falls steeply, a lowered chord reaches 0 early. With `steep`, the line that supports the
        profile at the cell's right end replaces it: the function is smaller before that cell and keeps its
        values beyond.
        """
        upper, lower, step = self.upper, self.lower, np.diff(self.excess)
        sag = self.sag
        sag[bent] = 0.0
        lines_left = lower[:-1] - sag - _ROUND_OFF * upper[:-1]
        lines_right = lower[1:] - sag - _ROUND_OFF * (upper[1:] + sag)
        if steep:
            rise, ends = -self.right * step, (lines_right < 0) & (lower[1:] > 0)
            higher = lower[1:] + rise - _ROUND_OFF * (lower[1:] + np.abs(rise))
            lines_left = np.where(ends, higher, lines_left)
            lines_right = np.where(ends, lower[1:] * (1 - _ROUND_OFF), lines_right)
        values = np.minimum(np.append(lines_left, np.inf), np.insert(lines_right, 0, np.inf))
        values = np.insert(values, bent + 1, self.at(bent, excess))
        # Raising a negative corner to 0 would lift the chord that ends there: the chord's other end becomes 0
        # too.
        ends = np.append(np.flatnonzero(values < 0), len(values) - 1)
        values[max(int(ends[0]) - 1, 0) :] = 0.0
        return np.asarray(np.minimum.accumulate(values))


def _slopes(
    excess: FloatArray, upper: FloatArray, lower: FloatArray, first: float
) -> tuple[FloatArray, FloatArray]:
    cells = excess.size - 1
    shape = (*upper.shape[:-1], cells)
    left, right = np.full(shape, first), np.full(shape, np.inf)
    right[..., -1] = 0.0
    apart = 1
    while apart < min(cells, _LONGEST_CHORD):
        width = excess[apart:] - excess[:-apart]
        at_most = (lower[..., apart:] - upper[..., :-apart]) / width
        at_least = (upper[..., apart:] - lower[..., :-apart]) / width
        left[..., apart:] = np.maximum(left[..., apart:], at_most[..., :-1])
        right[..., :-apart] = np.minimum(right[..., :-apart], at_least[..., 1:])
        apart *= 2
    return left, right


def corners(x: FloatArray, y: FloatArray, *, straight: float = 0.0) -> IndexArray:
    """Returns the positions of the corners of the greatest convex minorant of points, ascending in x,
    including the first and the last point.

    Args:
        x, y: the points, shape (points,).
        straight: a point where the slope changes by at most this share of itself is no corner. Then the
            function through the corners is above the minorant by about this share of its fall; where points
            lie on a line but for round-off, the corners do not depend on the round-off.
    """
    kept = np.arange(x.size)
    for _ in range(_FIRST_ROUNDS):
        run, rise = np.diff(x[kept]), np.diff(y[kept])
        before, after = rise[:-1] * run[1:], rise[1:] * run[:-1]
        above = before + straight * np.abs(before) >= after
        if not np.any(above):
            return kept
        # Of neighbours that are all above the chord of the points beside them, every other one goes.
        place = np.arange(above.size)
        since = place - np.maximum.accumulate(np.where(above, -1, place))
        kept = np.delete(kept, 1 + np.flatnonzero(above & (since % 2 == 1)))
    found: list[int] = []
    xs, ys = x[kept].tolist(), y[kept].tolist()
    for k in range(len(xs)):
        while len(found) >= 2:
            i, j = found[-2], found[-1]
            before, after = (ys[j] - ys[i]) * (xs[k] - xs[j]), (ys[k] - ys[j]) * (xs[j] - xs[i])
            if before + straight * abs(before) >= after:
                found.pop()
            else:
                break
        found.append(k)
    return np.asarray(kept[found])
