"""All pairs of inputs of a table of probabilities, without a decomposition for each."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.blanket.gain_laws import PairMasses, Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    BoolArray,
    ComplexArray,
    FloatArray,
    IndexArray,
)
from shuffle_ledger.accounting.numeric.later import np

# Largest exponent of a moment that is computed as a matrix product, and room for what underflows in it.
_LARGEST_MOMENT_EXPONENT = 600.0
_MOMENT_UNDERFLOW = 1e-40
# Relative distance up to which numbers count as equal when outputs and pairs are joined roughly.
_EQUAL_WITHIN = 2.0**-45
#: Bound on the relative error of likelihood ratios after such joining.
JOINED_RATIO_ERROR = 8 * _EQUAL_WITHIN


class Twofold(NamedTuple):
    """Probabilities as sums of two floats, since nearly equal rows may differ by less than a float resolves;
    arrays of shape (inputs, outputs)."""

    high: FloatArray
    low: FloatArray

    def of(self, outputs: BoolArray) -> Twofold:
        """Returns some of the outputs."""
        return Twofold(self.high[:, outputs], self.low[:, outputs])

    def difference(self, first: IndexArray | int, second: IndexArray | int) -> FloatArray:
        """Returns differences of rows with nearly full relative accuracy, shape (outputs,) or (pairs,
        outputs)."""
        return np.asarray((self.high[first] - self.high[second]) + (self.low[first] - self.low[second]))


class _Gains(NamedTuple):
    """Gains of pairs of inputs, as differences `gained - lost`.

    Attributes:
        gained: the first input's part, shape (inputs, outputs).
        lost: the other input's part, shape (others, outputs).
        terms: moduli of the terms of `lost`: it is known to units of these.
    """

    gained: FloatArray
    lost: FloatArray
    terms: FloatArray

    @property
    def size(self) -> float:
        """Returns the largest modulus of `gained` plus the largest of `terms`."""
        return float(np.abs(self.gained).max(initial=0.0) + self.terms.max(initial=0.0))

    def exponents(self, theta: float) -> tuple[FloatArray, FloatArray]:
        """Returns two arrays that add up to theta times the gain of a pair. Neither is large unless the gain
        of some pair is."""
        middle = (self.gained.max(axis=0) + self.lost.min(axis=0)) / 2
        return theta * (self.gained - middle), theta * (middle - self.lost)


class TablePairs(Pairs):
    """The pairs of different rows of a table, in both directions. Pairs that differ only by an exchange of
    outputs have the same divergence and are counted once.

    Args:
        rows: probabilities of every output under every input, shape (inputs, outputs).
        low: second parts of these probabilities, for more digits in differences of rows.
        rest: mass of the leftover component with full relative accuracy; by default computed as 1 minus the
            rest.
        ends: positions of the first and of the second rows of the pairs; all different pairs by default.
        roughly: whether outputs are joined, and pairs counted once, if they differ by round-off only: the
            relative error of ratios is then less than `JOINED_RATIO_ERROR`.

    Guarantee: the mass c that other users certainly put on an output is its least probability over all
    inputs, the largest decomposition there is.
    Source: Su, Cheng, Wang, Theorem 6; docs/theory/amplification.md, A11.
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
                difference[np.abs(difference) <= JOINED_RATIO_ERROR / 8 * (a + b)] = 0.0
            made = Decomposition(a, b, c, difference, self._rest)
            self._made[place] = made.merged() if self._roughly else made.merged_exactly()
        return self._made[place]

    @property
    def components(self) -> int:
        """See `Pairs.components`."""
        return int(self._c.size)

    def masses(self, which: IndexArray) -> PairMasses:
        """See `Pairs.masses`."""
        first, second = (one[which] for one in self._ends)
        b = self._rows[second]
        return PairMasses(
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
        """See `Pairs.log_moments`. A gain is a difference of one part for each input, so the moments of all
        pairs are one matrix product."""
        rest = self._leftover + UNIT_ROUND_OFF * (self._c.size + 4)
        found = np.full((len(self), excess.size), np.inf)
        every = np.arange(len(self._rows))
        for place, (tilt, more) in enumerate(zip(theta, excess, strict=True)):
            gains = self._gains(every, every, float(more))
            gained, lost = gains.exponents(float(tilt))
            if max(gained.max(initial=0.0), lost.max(initial=0.0)) < _LARGEST_MOMENT_EXPONENT / 2:
                moments = np.exp(gained) @ (np.exp(lost) * self._c).T + rest + _MOMENT_UNDERFLOW
                error = UNIT_ROUND_OFF * (self._c.size + 64 + 16 * tilt * gains.size)
                found[:, place] = np.log(moments[self._ends]) + error
        return found

    def _gains(self, inputs: IndexArray, others: IndexArray, excess: float) -> _Gains:
        """Returns the gains of these inputs (rows of `gained`) against the others (rows of `lost`)."""
        apart = self._apart / self._c
        taken = excess * self._rows[others] / self._c
        return _Gains(apart[inputs], apart[others] + taken, np.abs(apart[others]) + taken)

    @functools.cached_property
    def _apart(self) -> FloatArray:
        """Returns the differences of all rows from the first one."""
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
    """Joins outputs with equal likelihood ratios, except outputs that are impossible under some input
    (unhidden)."""
    least = masses.high.min(axis=0)
    shown, hidden = masses.of(least == 0), masses.of(least > 0)
    least = least[least > 0]
    # Equal quotients of floats do not imply equal ratios in the digits that matter for nearly equal rows: up
    # to a power of two, the probabilities themselves must agree.
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
    """Returns the first and the second rows of all pairs that differ by more than the order of their columns.
    Exact comparison uses every digit: near the largest ratio the last digit decides."""
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
    """Returns the rank of each value among the distinct values: equal values have equal numbers."""
    _, number = np.unique(values, return_inverse=True)
    return np.asarray(number.reshape(values.shape), dtype=np.int64)


def _alike(values: FloatArray) -> IndexArray:
    """Returns ranks likewise; values within `_EQUAL_WITHIN` of the first of a group share its number."""
    every, number = np.unique(values, return_inverse=True)
    ends = np.searchsorted(every, every * (1 + _EQUAL_WITHIN), side="right").tolist()
    first = np.zeros(every.size, dtype=np.int64)
    place = 0
    while place < every.size:
        first[place] = 1
        place = ends[place]
    return np.asarray((np.cumsum(first) - 1)[number.reshape(values.shape)], dtype=np.int64)
