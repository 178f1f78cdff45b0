"""All pairs of inputs of a table of probabilities, without a decomposition for each."""

from __future__ import annotations

import numpy as np

from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.decomposition import Decomposition, rounded
from accounting.gain_laws import IndexArray, Masses, Pairs

# Exponents up to which a moment is no overflow; what underflows beside them is less than this.
_LARGEST = 600.0
_UNDERFLOW = 1e-40


class TablePairs(Pairs):
    """The pairs of different rows of a table, in both directions; each divergence once, as far as outputs
    that are exchanged tell.

    Args:
        rows: probabilities of every output under every input, shape (inputs, outputs).
        rest: what no output hides, to its own digits; 1 less the rest by default.

    Guarantee: what others certainly hide is the least probability of an output, the largest decomposition
    there is.
    Source: Su, Cheng, Wang, Theorem 6.
    """

    def __init__(self, rows: FloatArray, rest: float | None = None) -> None:
        rows = _joined(rows[:, rows.max(axis=0) > 0])
        hidden = rows.min(axis=0) > 0
        self._rows, self._bare = rows[:, hidden], rows[:, ~hidden]
        self._c = self._rows.min(axis=0)
        self._first, self._second = _different(self._rows, self._c, self._bare)
        self._rest = rest
        self._made: dict[int, Decomposition] = {}

    def __len__(self) -> int:
        return int(self._first.size)

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
        rest = max(0.0, 1.0 - float(self._c.sum())) if self._rest is None else self._rest
        return Masses(
            difference=self._rows[first] - b,
            b=b,
            c=np.broadcast_to(self._c, b.shape),
            bare_difference=self._bare[first] - bare_b,
            bare_b=bare_b,
            leftover=np.full(which.size, rest),
        )

    def log_moments(self, theta: FloatArray, excess: FloatArray) -> FloatArray:
        """See `Pairs.log_moments`: gains are differences of what the inputs say, so that the moments of all
        pairs are one product of matrices."""
        ratios, hidden = self._rows / self._c, float(self._c.sum())
        rest = max(0.0, 1.0 - hidden) if self._rest is None else self._rest
        rest += UNIT_ROUND_OFF * (self._c.size + 4)
        found = np.full((len(self), excess.size), np.inf)
        for place, (tilt, more) in enumerate(zip(theta, excess, strict=True)):
            exponents = tilt * (ratios - 1)
            highest = float(exponents.max(initial=0.0))
            if highest < _LARGEST:
                gained, lost = np.exp(exponents), np.exp(-(1 + more) * exponents) * self._c
                moments = gained @ lost.T * np.exp(-tilt * more) + rest + _UNDERFLOW
                error = UNIT_ROUND_OFF * (self._c.size + 64 + 16 * (2 + more) * (highest + tilt))
                found[:, place] = np.log(moments[self._first, self._second]) + error
        return found

    def impossible(self) -> tuple[FloatArray, FloatArray]:
        """See `Pairs.impossible`."""
        without = np.where(self._bare[self._second] == 0, self._bare[self._first], 0.0).sum(axis=1)
        return without, np.full(len(self), float(self._c.sum()))

    @property
    def _ends(self) -> tuple[IndexArray, IndexArray]:
        return self._first, self._second


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
