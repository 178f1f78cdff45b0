"""Lines that support a convex profile which is known between bounds, and a function made of them that lies
below it, however it runs between the orders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray

# Points between the ends of a chord that supports the profile's lower bound, fewer than.
_FARTHEST = 64
_ROUNDING = 8 * UNIT_ROUND_OFF


class SupportingLines(NamedTuple):
    """In every cell of orders a line through either end's lower bound that lies below the profile there.

    Chords from the ends to points further out, extended, lie below the profile. Far chords suffer less from
    how far apart the bounds are, near ones from the curvature.

    Attributes:
        excess: ends of the cells, ascending, shape (orders,).
        upper, lower: bounds on the profile there, or on several, shape (..., orders); the lower ones raised
            to lines of the cells beside them.
        left, right: slopes of the lines through the left and the right ends, shape (..., orders - 1).
    """

    excess: FloatArray
    upper: FloatArray
    lower: FloatArray
    left: FloatArray
    right: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, upper: FloatArray, lower: FloatArray, first: float) -> SupportingLines:
        """The lines of a profile between these bounds that falls by no more than `-first` at first.

        The bounds must have room for the rounding of chords, a few dozen units of themselves.
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
        """How much less steep than the cell's own chord, and how much steeper, its lines are."""
        with np.errstate(invalid="ignore"):
            chord = np.diff(self.lower) / np.diff(self.excess)
            return np.maximum(chord - self.left, 0.0), np.maximum(self.right - chord, 0.0)

    @property
    def meeting(self) -> FloatArray:
        """Orders, less one, at which the lines of every cell meet."""
        before, beyond = self._apart
        with np.errstate(invalid="ignore"):
            share = np.where(np.isinf(before), 0.0, beyond / np.where(beyond > 0, before + beyond, 1.0))
        return np.asarray(self.excess[:-1] + share * np.diff(self.excess))

    @property
    def sag(self) -> FloatArray:
        """How far below each cell's own chord its lines meet."""
        before, beyond = self._apart
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # At distance t from the left end, where both lie `before t` below the chord.
            step = np.diff(self.excess)
            sag = np.where(np.isinf(before), beyond * step, step / (1 / before + 1 / beyond))
        return np.where((before == 0) | (beyond == 0), 0.0, sag)

    def lowered(self) -> FloatArray:
        """Values at the orders whose chords are below the profile, shape (..., orders)."""
        sag, nothing = self.sag, np.full((*self.upper.shape[:-1], 1), np.inf)
        left = self.lower[..., :-1] - sag - _ROUNDING * self.upper[..., :-1]
        right = self.lower[..., 1:] - sag - _ROUNDING * (self.upper[..., :-1] + sag)
        values = np.minimum(
            np.concatenate([left, nothing], axis=-1), np.concatenate([nothing, right], axis=-1)
        )
        # Raising a negative corner to 0 would lift the chord that ends there: that chord's other end goes
        # down to 0, too, and with it all beyond.
        ends = np.logical_or.accumulate(values < 0, axis=-1)
        ends[..., :-1] |= ends[..., 1:]
        return np.where(ends, 0.0, np.minimum.accumulate(values, axis=-1))

    def at(self, cells: IndexArray, excess: FloatArray) -> FloatArray:
        """Values at an order within each of the cells that are below both of its lines."""
        since, until = excess - self.excess[cells], self.excess[cells + 1] - excess
        falls, rises = self.left[cells] * since, -self.right[cells] * until
        values = np.minimum(self.lower[cells] + falls, self.lower[cells + 1] + rises)
        return np.asarray(values - _ROUNDING * (self.upper[cells] + np.abs(falls) + np.abs(rises)))

    def values(self, bent: IndexArray, excess: FloatArray, *, steep: bool) -> FloatArray:
        """Values of a function that is straight between them and below the profile, at the orders and those
        in between at which cells are `bent`, shape (orders + bent cells,).

        In a bent cell it runs from one lower bound to a point below both lines, and on to the other. In any
        other it is below the steepest line on either side: the cell's own chord is lowered, and each corner
        takes the lower of the two that meet there. Where the profile falls steeply, such a line ends the
        function; if `steep`, the one that supports the profile at the cell's right end takes its place: less
        is left before that cell, and all beyond it.
        """
        upper, lower, step = self.upper, self.lower, np.diff(self.excess)
        sag = self.sag
        sag[bent] = 0.0
        lines_left = lower[:-1] - sag - _ROUNDING * upper[:-1]
        lines_right = lower[1:] - sag - _ROUNDING * (upper[1:] + sag)
        if steep:
            rise, ends = -self.right * step, (lines_right < 0) & (lower[1:] > 0)
            higher = lower[1:] + rise - _ROUNDING * (lower[1:] + np.abs(rise))
            lines_left = np.where(ends, higher, lines_left)
            lines_right = np.where(ends, lower[1:] * (1 - _ROUNDING), lines_right)
        values = np.minimum(np.append(lines_left, np.inf), np.insert(lines_right, 0, np.inf))
        values = np.insert(values, bent + 1, self.at(bent, excess))
        # Raising a negative corner to 0 would lift the chord that ends there: that chord's other end goes
        # down to 0 too.
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
    while apart < min(cells, _FARTHEST):
        width = excess[apart:] - excess[:-apart]
        at_most = (lower[..., apart:] - upper[..., :-apart]) / width
        at_least = (upper[..., apart:] - lower[..., :-apart]) / width
        left[..., apart:] = np.maximum(left[..., apart:], at_most[..., :-1])
        right[..., :-apart] = np.minimum(right[..., :-apart], at_least[..., 1:])
        apart *= 2
    return left, right


def corners(x: FloatArray, y: FloatArray) -> IndexArray:
    """Positions of the corners of the greatest convex minorant of the points, first and last included."""
    found: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for k in range(len(xs)):
        while len(found) >= 2:
            i, j = found[-2], found[-1]
            if (ys[j] - ys[i]) * (xs[k] - xs[j]) >= (ys[k] - ys[j]) * (xs[j] - xs[i]):
                found.pop()
            else:
                break
        found.append(k)
    return np.array(found, dtype=np.int64)
