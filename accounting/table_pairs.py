"""All pairs of inputs of a table of probabilities, without a decomposition for each."""

from __future__ import annotations

import numpy as np

from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.decomposition import Decomposition, rounded
from accounting.gain_laws import ComplexArray, IndexArray, Masses, Pairs

# Exponents up to which a moment is no overflow; what underflows beside them is less than this.
_LARGEST = 600.0
_UNDERFLOW = 1e-40
_LOST = 1e-20
# What a pair costs by itself, and an input, in units of one more pair of two inputs.
_PAIR, _INPUT = 6, 5
# Numbers that are multiplied together.
_BLOCK_ELEMENTS = 1 << 12


class TablePairs(Pairs):
    """The pairs of different rows of a table, in both directions; each divergence once, as far as outputs
    that are exchanged tell.

    Args:
        rows: probabilities of every output under every input, shape (inputs, outputs).
        rest: what no output hides, to its own digits; 1 less the rest by default.
        least: outputs that are less probable under some input hide nobody.
        ends: the first and the second rows of the pairs, where they are known.

    Guarantee: what others certainly hide is the least probability of an output, the largest decomposition
    there is.
    Source: Su, Cheng, Wang, Theorem 6.
    """

    def __init__(
        self,
        rows: FloatArray,
        rest: float | None = None,
        *,
        least: float = 0.0,
        ends: tuple[IndexArray, IndexArray] | None = None,
    ) -> None:
        rows = _joined(rows[:, rows.max(axis=0) > 0])
        hidden = (rows.min(axis=0) > 0) & (rows.min(axis=0) >= least)
        self._rows, self._bare = rows[:, hidden], rows[:, ~hidden]
        self._c = self._rows.min(axis=0)
        self._ends = _different(self._rows, self._c, self._bare) if ends is None else ends
        self._rest = rest
        self._made: dict[int, Decomposition] = {}

    def __len__(self) -> int:
        return int(self._ends[0].size)

    def __getitem__(self, place: int) -> Decomposition:  # type: ignore[override]  # places, not slices
        if place not in self._made:
            if not 0 <= place < len(self):
                raise IndexError(place)
            a, b = (np.concatenate([self._rows[one[place]], self._bare[one[place]]]) for one in self._ends)
            c = np.concatenate([self._c, np.zeros(self._bare.shape[1])])
            self._made[place] = Decomposition(a, b, c, rest=self._rest).merged()
        return self._made[place]

    @property
    def components(self) -> int:
        """See `Pairs.components`."""
        return int(self._c.size)

    def masses(self, which: IndexArray) -> Masses:
        """See `Pairs.masses`."""
        first, second = (one[which] for one in self._ends)
        b, bare_b = self._rows[second], self._bare[second]
        return Masses(
            difference=self._rows[first] - b,
            b=b,
            c=np.broadcast_to(self._c, b.shape),
            bare_difference=self._bare[first] - bare_b,
            bare_b=bare_b,
            leftover=np.full(which.size, self._leftover),
        )

    def leftover(self, which: IndexArray) -> FloatArray:
        """See `Pairs.leftover`."""
        return np.full(which.size, self._leftover)

    def gained(self, which: IndexArray, excess: float) -> FloatArray:
        """See `Pairs.gained`."""
        first, second = (one[which] for one in self._ends)
        room = 16 * UNIT_ROUND_OFF
        gained = (1 + room) * self._rows[first] - ((1 - room) * (1 + excess) * self._rows)[second]
        return np.asarray(np.maximum(gained, 0.0, out=gained).sum(axis=1))

    def log_moments(self, theta: FloatArray, excess: FloatArray) -> FloatArray:
        """See `Pairs.log_moments`: gains are differences of what the inputs say, so that the moments of all
        pairs are one product of matrices."""
        ratios, rest = self._rows / self._c - 1, self._leftover
        rest += UNIT_ROUND_OFF * (self._c.size + 4)
        found = np.full((len(self), excess.size), np.inf)
        for place, (tilt, more) in enumerate(zip(theta, excess, strict=True)):
            gained, lost = _exponents(float(tilt), float(more), ratios, ratios)
            if max(gained.max(initial=0.0), lost.max(initial=0.0)) < _LARGEST / 2:
                moments = np.exp(gained) @ (np.exp(lost) * self._c).T + rest + _UNDERFLOW
                size = tilt * (float(ratios.max(initial=0.0)) + 1)
                error = UNIT_ROUND_OFF * (self._c.size + 64 + 16 * (2 + more) * size)
                found[:, place] = np.log(moments[self._ends]) + error
        return found

    def moments(
        self, which: IndexArray, excess: float, theta: float, step: float, count: int
    ) -> tuple[ComplexArray, FloatArray]:
        """See `Pairs.moments`: a product of matrices for each point."""
        (inputs, first), (others, second) = (np.unique(one[which], return_inverse=True) for one in self._ends)
        if _PAIR * which.size < inputs.size * others.size + _INPUT * (inputs.size + others.size):
            return super().moments(which, excess, theta, step, count)
        gained, lost = (self._rows[one] / self._c - 1 for one in (inputs, others))
        highest = max(float(gained.max(initial=0.0)), float(lost.max(initial=0.0)))
        sizes = _exponents(theta, excess, gained, lost)
        lost = (1 + excess) * lost + excess
        found = np.full((count, which.size), np.inf, dtype=np.complex128)
        if max(one.max(initial=0.0) for one in sizes) < _LARGEST / 2:
            height = max(1, min(count, _BLOCK_ELEMENTS // max(gained.size, lost.size, 1)))
            left = _turns(np.exp(sizes[0]), step * gained, height)
            right = _turns(self._c * np.exp(sizes[1]), -step * lost, height)
            flat = first * others.size + second
            more = np.exp(1j * step * height * gained), np.exp(-1j * step * height * lost)
            for start in range(0, count, height):
                some = slice(start, min(start + height, count))
                products = np.matmul(left, right.transpose(0, 2, 1))
                products.reshape(height, -1)[: some.stop - start].take(flat, axis=1, out=found[some])
                left *= more[0]
                right *= more[1]
            found.real += self._leftover
        size = np.hypot(theta, step * np.arange(count))
        units = 2 * self._c.size + 128 + 8 * np.arange(count) + 16 * (2 + excess) * size * (highest + 1)
        return found, UNIT_ROUND_OFF * units + _LOST

    def hiding(self, least: float) -> TablePairs | None:
        """See `Pairs.hiding`."""
        rare = self._c < least
        if not np.any(rare):
            return None
        rest = self._leftover + float(self._c[rare].sum())
        return TablePairs(np.hstack([self._rows, self._bare]), rest, least=least, ends=self._ends)

    def impossible(self) -> tuple[FloatArray, FloatArray]:
        """See `Pairs.impossible`."""
        without = np.where(self._bare[self._ends[1]] == 0, self._bare[self._ends[0]], 0.0).sum(axis=1)
        return without, np.full(len(self), float(self._c.sum()))

    @property
    def _leftover(self) -> float:
        return max(0.0, 1.0 - float(self._c.sum())) if self._rest is None else self._rest


def _exponents(
    theta: float, excess: float, gained: FloatArray, lost: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Two exponents that add up to `theta G`, `G = gained - (1 + excess) lost - excess`, (inputs, outputs)
    each: both are large only where those of some pair are."""
    lost = (1 + excess) * lost + excess
    middle = (gained.max(axis=0) + lost.min(axis=0)) / 2
    return theta * (gained - middle), theta * (middle - lost)


def _turns(size: FloatArray, angles: FloatArray, count: int) -> ComplexArray:
    """`size exp(i k angles)` for `k < count`, shape (count, ...)."""
    turned = np.exp(1j * np.arange(count)[:, None, None] * angles)
    turned *= size
    return np.asarray(turned)


def _joined(rows: FloatArray) -> FloatArray:
    """Outputs of equal ratios joined, but for outputs that some input cannot make: others see them."""
    least = rows.min(axis=0)
    hidden = least > 0
    _, group = np.unique(rounded(rows[:, hidden] / least[hidden]), axis=1, return_inverse=True)
    size = int(group.max(initial=-1)) + 1
    together = [np.bincount(group.ravel(), weights=row, minlength=size) for row in rows[:, hidden]]
    return np.hstack([np.array(together).reshape(len(rows), size), rows[:, ~hidden]])


def _different(rows: FloatArray, c: FloatArray, bare: FloatArray) -> tuple[IndexArray, IndexArray]:
    """The first and the second rows of pairs that have different columns, in any order."""
    first, second = (one.ravel() for one in np.indices((len(rows), len(rows))))
    first, second = first[first != second], second[first != second]
    ratios, masses, alone = (_numbered(rounded(one)) for one in (rows / c, c, bare))
    pairs = [(ratios[first] * (ratios.max(initial=0) + 1) + ratios[second]) * (masses.max(initial=0) + 1)]
    pairs[0] += masses
    pairs.append(alone[first] * (alone.max(initial=0) + 1) + alone[second])
    signatures = np.hstack([np.sort(one, axis=1) for one in pairs])
    kept = {row.tobytes(): place for place, row in reversed(list(enumerate(signatures)))}
    places = np.array(sorted(kept.values()), dtype=np.int64)
    return first[places], second[places]


def _numbered(values: FloatArray) -> IndexArray:
    """Equal numbers for equal values, in their order."""
    _, number = np.unique(values, return_inverse=True)
    return np.asarray(number.reshape(values.shape), dtype=np.int64)
