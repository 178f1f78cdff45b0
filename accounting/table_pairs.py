"""All pairs of inputs of a table of probabilities, without a decomposition for each."""

from __future__ import annotations

import numpy as np

from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.decomposition import Decomposition, rounded
from accounting.gain_laws import ComplexArray, IndexArray, Masses, Pairs, Tilted, turned

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

    def shared(self, which: IndexArray, excess: float, theta: float) -> Tilted | None:
        """See `Pairs.shared`: a product of matrices for each point."""
        (inputs, first), (others, second) = (np.unique(one[which], return_inverse=True) for one in self._ends)
        if _PAIR * which.size < inputs.size * others.size + _INPUT * (inputs.size + others.size):
            return None
        gained, lost = (self._rows[one] / self._c - 1 for one in (inputs, others))
        highest = theta * (max(float(gained.max(initial=0.0)), float(lost.max(initial=0.0))) + 1)
        sizes = _exponents(theta, excess, gained, lost)
        finite = max(one.max(initial=0.0) for one in sizes) < _LARGEST / 2
        left, right = (np.exp(np.minimum(one, _LARGEST / 2)) for one in sizes)
        right *= self._c
        gained, lost = theta * gained, theta * ((1 + excess) * lost + excess)
        flat = first * others.size + second

        def chosen(products: FloatArray) -> FloatArray:
            return np.asarray(products.ravel().take(flat))

        # The square by those of its terms and their product, which are rounded to units of the squares.
        squares = chosen((left * gained**2) @ right.T) + chosen(left @ (right * lost**2).T)
        units = 2 * self._c.size + 128 + 32 * (2 + excess) * highest
        square = squares * (1 + 2 * UNIT_ROUND_OFF * units) - 2 * chosen((left * gained) @ (right * lost).T)

        def summed(left: ComplexArray, right: ComplexArray) -> ComplexArray:
            products = np.matmul(left, right.transpose(0, 2, 1)).reshape(len(left), -1)
            return np.asarray(products.take(flat, axis=1) + self._leftover)

        def moments(u: FloatArray) -> ComplexArray:
            found = np.empty((u.size, which.size), dtype=np.complex128)
            for place in range(u.size):
                one = u[place : place + 1, None, None]
                found[place] = summed(left * turned(one * gained), right * turned(-one * lost))[0]
            return found

        def multiples(step: float, count: int) -> ComplexArray:
            height = max(1, min(count, _BLOCK_ELEMENTS // max(gained.size, lost.size, 1)))
            found = np.empty((count, which.size), dtype=np.complex128)
            turns = np.arange(height)[:, None, None] * step
            turning = left * turned(turns * gained), right * turned(-turns * lost)
            more = turned(step * height * gained), turned(-step * height * lost)
            for start in range(0, count, height):
                found[start : start + height] = summed(*(one[: count - start] for one in turning))
                turning = turning[0] * more[0], turning[1] * more[1]
            return found

        def error(u: FloatArray) -> FloatArray:
            units = 2 * self._c.size + 128 + 16 * (2 + excess) * np.hypot(1.0, u) * highest
            return np.asarray(UNIT_ROUND_OFF * units + _LOST)[:, None]

        mass = chosen(left @ right.T) + self._leftover
        return Tilted(mass, square, moments, multiples, error, np.full(which.size, finite))

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
