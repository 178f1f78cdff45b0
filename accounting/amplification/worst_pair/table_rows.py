"""All pairs of inputs of a table of probabilities, without a decomposition for each."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.gain_laws import Masses, Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    BoolArray,
    ComplexArray,
    FloatArray,
    IndexArray,
)

# Exponents up to which a moment is no overflow; what underflows beside them is less than this.
_LARGEST = 600.0
_UNDERFLOW = 1e-40
_LOST = 1e-20
# Numbers are alike that are no further apart than that, relative. How far ratios are off, relative, where
# outputs of such ratios were joined, differences dropped, and pairs of such masses counted once.
_ALIKE = 2.0**-45
OFF = 8 * _ALIKE


class Twofold(NamedTuple):
    """Probabilities in two pieces, for nearly equal rows differ in digits that one float has not; arrays of
    shape (inputs, outputs)."""

    high: FloatArray
    low: FloatArray

    def of(self, outputs: BoolArray) -> Twofold:
        """Some of the outputs."""
        return Twofold(self.high[:, outputs], self.low[:, outputs])

    def difference(self, first: IndexArray | int, second: IndexArray | int) -> FloatArray:
        """Differences of rows, to nearly all of their own digits, shape (outputs,) or (pairs, outputs)."""
        return np.asarray((self.high[first] - self.high[second]) + (self.low[first] - self.low[second]))


class _Gains(NamedTuple):
    """Gains of pairs of inputs are differences of what one says for, shape (inputs, outputs), and the other
    against, shape (others, outputs); that is known to units of its terms."""

    gained: FloatArray
    lost: FloatArray
    terms: FloatArray

    @property
    def size(self) -> float:
        """What the largest terms add up to."""
        return float(np.abs(self.gained).max(initial=0.0) + self.terms.max(initial=0.0))

    def exponents(self, theta: float) -> tuple[FloatArray, FloatArray]:
        """Two that add up to theta times the gain: both are large only where those of some pair are."""
        middle = (self.gained.max(axis=0) + self.lost.min(axis=0)) / 2
        return theta * (self.gained - middle), theta * (middle - self.lost)


class TablePairs(Pairs):
    """The pairs of different rows of a table, in both directions; each divergence once, as far as outputs
    that are exchanged tell.

    Args:
        rows: probabilities of every output under every input, shape (inputs, outputs).
        low: what they are more than that, where differences of rows are known to more digits.
        rest: what no output hides, to its own digits; 1 less the rest by default.
        ends: the first and the second rows of the pairs; all different pairs by default.
        roughly: whether outputs are joined, and pairs counted once, where they differ by rounding only:
            ratios are then off by less than `OFF`, relative.

    Guarantee: what others certainly hide is the least probability of an output, the largest decomposition
    there is.
    Source: Su, Cheng, Wang, Theorem 6.
    """

    def __init__(
        self,
        rows: FloatArray,
        low: FloatArray | None = None,
        *,
        rest: float | None = None,
        ends: tuple[IndexArray, IndexArray] | None = None,
        roughly: bool = False,
    ) -> None:
        possible = rows.max(axis=0) > 0
        self._roughly = roughly
        self._all = _joined(
            Twofold(rows, np.zeros_like(rows) if low is None else low).of(possible), roughly=roughly
        )
        smallest = self._all.high.min(axis=0)
        hidden = smallest > 0
        self._hidden, self._bare = self._all.of(hidden), self._all.of(~hidden)
        self._rows, self._c = self._hidden.high, smallest[hidden]
        self._ends = _different(self._hidden, self._c, self._bare, roughly=roughly) if ends is None else ends
        self._rest = rest
        self._made: dict[int, Decomposition] = {}

    def __len__(self) -> int:
        return int(self._ends[0].size)

    def __getitem__(self, place: int) -> Decomposition:  # type: ignore[override]  # places, not slices
        if place not in self._made:
            if not 0 <= place < len(self):
                raise IndexError(place)
            x0, x1 = (int(one[place]) for one in self._ends)
            both = Twofold(*(np.hstack(one) for one in zip(self._hidden, self._bare, strict=True)))
            c = np.append(self._c, np.zeros(self._bare.high.shape[1]))
            a, b, difference = both.high[x0], both.high[x1], both.difference(x0, x1)
            if self._roughly:
                difference[np.abs(difference) <= OFF / 8 * (a + b)] = 0.0
            made = Decomposition(a, b, c, difference, self._rest)
            self._made[place] = made.merged() if self._roughly else made.merged_exactly()
        return self._made[place]

    @property
    def components(self) -> int:
        """See `Pairs.components`."""
        return int(self._c.size)

    def is_whole(self, place: int) -> bool:
        """See `Pairs.is_whole`."""
        if self._roughly:
            return False
        x0, x1 = (int(one[place]) for one in self._ends)
        ratios = np.sort(self._ratios[x0] + 1j * self._ratios[x1])
        return bool(np.all(ratios[1:] != ratios[:-1]))

    @functools.cached_property
    def _ratios(self) -> FloatArray:
        """Probabilities in units of what others hide."""
        return np.asarray(self._rows / self._c)

    def masses(self, which: IndexArray) -> Masses:
        """See `Pairs.masses`."""
        first, second = (one[which] for one in self._ends)
        b = self._rows[second]
        return Masses(
            difference=self._hidden.difference(first, second),
            b=b,
            c=np.broadcast_to(self._c, b.shape),
            bare_difference=self._bare.difference(first, second),
            bare_b=self._bare.high[second],
            leftover=np.full(which.size, self._leftover),
        )

    def leftover(self, which: IndexArray) -> FloatArray:
        """See `Pairs.leftover`."""
        return np.full(which.size, self._leftover)

    def log_moments(self, theta: FloatArray, excess: FloatArray) -> FloatArray:
        """See `Pairs.log_moments`: gains are differences of what the inputs say, so that the moments of all
        pairs are one product of matrices."""
        rest = self._leftover + UNIT_ROUND_OFF * (self._c.size + 4)
        found = np.full((len(self), excess.size), np.inf)
        every = np.arange(len(self._rows))
        for place, (tilt, more) in enumerate(zip(theta, excess, strict=True)):
            gains = self._gains(every, every, float(more))
            gained, lost = gains.exponents(float(tilt))
            if max(gained.max(initial=0.0), lost.max(initial=0.0)) < _LARGEST / 2:
                moments = np.exp(gained) @ (np.exp(lost) * self._c).T + rest + _UNDERFLOW
                error = UNIT_ROUND_OFF * (self._c.size + 64 + 16 * tilt * gains.size)
                found[:, place] = np.log(moments[self._ends]) + error
        return found

    def _gains(self, inputs: IndexArray, others: IndexArray, excess: float) -> _Gains:
        """What the inputs say for and the others against."""
        apart = self._apart / self._c
        taken = excess * self._rows[others] / self._c
        return _Gains(apart[inputs], apart[others] + taken, np.abs(apart[others]) + taken)

    @functools.cached_property
    def _apart(self) -> FloatArray:
        """How far the rows are from the first one."""
        every = np.arange(len(self._rows))
        return self._hidden.difference(every, np.zeros_like(every))

    def impossible(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """See `Pairs.impossible`."""
        bare = self._bare.high
        alone = np.where(bare[self._ends[1]] == 0, bare[self._ends[0]], 0.0).sum(axis=1)
        return alone, np.zeros(len(self)), np.full(len(self), float(self._c.sum()))

    @property
    def _leftover(self) -> float:
        return max(0.0, 1.0 - float(self._c.sum())) if self._rest is None else self._rest


def _joined(masses: Twofold, *, roughly: bool) -> Twofold:
    """Outputs of equal ratios joined, but for outputs that some input cannot make: others see them."""
    least = masses.high.min(axis=0)
    shown, hidden = masses.of(least == 0), masses.of(least > 0)
    least = least[least > 0]
    # Quotients of floats agree where ratios do not, in digits that rule rows next to equal: but for their
    # exponents, probabilities themselves must agree.
    scale = np.ldexp(1.0, -np.frexp(least)[1])
    keys = _alike(hidden.high / least) if roughly else np.vstack([hidden.high * scale, hidden.low * scale])
    _, place, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    group = group.ravel()
    high, low = hidden.high[:, place], hidden.low[:, place]
    for one in np.flatnonzero(np.bincount(group, minlength=place.size) > 1):
        together = hidden.of(group == one)
        high[:, one] = together.high.sum(axis=1)
        for row, parts in enumerate(zip(*together, strict=True)):
            low[row, one] = math.fsum([*parts[0], *parts[1], -high[row, one]])
    return Twofold(np.hstack([high, shown.high]), np.hstack([low, shown.low]))


def _different(
    hidden: Twofold, c: FloatArray, bare: Twofold, *, roughly: bool
) -> tuple[IndexArray, IndexArray]:
    """The first and the second rows of pairs that have different columns, in any order: in any digit, for
    next to the largest ratio the last one decides."""
    first, second = (one.ravel() for one in np.indices((len(hidden.high), len(hidden.high))))
    first, second = first[first != second], second[first != second]
    common, alone = (
        _alike(one.high) if roughly else _numbered(one.high + 1j * one.low) for one in (hidden, bare)
    )
    masses = _alike(c) if roughly else _numbered(c)
    pairs = [(common[first] * (common.max(initial=0) + 1) + common[second]) * (masses.max(initial=0) + 1)]
    pairs[0] += masses
    pairs.append(alone[first] * (alone.max(initial=0) + 1) + alone[second])
    signatures = np.hstack([np.sort(one, axis=1) for one in pairs])
    kept = {row.tobytes(): place for place, row in reversed(list(enumerate(signatures)))}
    places = np.array(sorted(kept.values()), dtype=np.int64)
    return first[places], second[places]


def _numbered(values: FloatArray | ComplexArray) -> IndexArray:
    """Equal numbers for equal values, in their order."""
    _, number = np.unique(values, return_inverse=True)
    return np.asarray(number.reshape(values.shape), dtype=np.int64)


def _alike(values: FloatArray) -> IndexArray:
    """Equal numbers for values that are alike, in their order."""
    every, number = np.unique(values, return_inverse=True)
    ends = np.searchsorted(every, every * (1 + _ALIKE), side="right").tolist()
    first = np.zeros(every.size, dtype=np.int64)
    place = 0
    while place < every.size:
        first[place] = 1
        place = ends[place]
    return np.asarray((np.cumsum(first) - 1)[number.reshape(values.shape)], dtype=np.int64)
