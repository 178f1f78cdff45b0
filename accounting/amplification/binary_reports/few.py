"""Few users: the divergence of every dataset, from tables of the law of the others' sum."""

from __future__ import annotations

import numpy as np

from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.numeric.arrays import TINY, UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Numbers of tables that are worked on together. Larger: fewer calls, more memory.
_BLOCK_ELEMENTS = 1 << 17


class EveryDataset:
    """The laws of the sums of others' bits, for every number m of others who hold the first input.

    Args:
        law: the law of one report.
        others: the number N of other honest users.

    Guarantee: every entry of the tables has a relative error below `room`, or is below 1e-300: sums of
    positive terms make them.
    """

    def __init__(self, law: BitLaw, others: int) -> None:
        self._law = law
        self._room = UNIT_ROUND_OFF * (8 * others + 16)
        size = others + 1
        mass, beyond = np.zeros((size, size)), np.zeros((size, size))  # row m, column t
        mass[0, 0] = 1.0
        for users in range(1, size):
            # One more user of the second input in every row, and one of the first input makes the new row.
            before, last = mass[:users, :users].copy(), mass[users - 1, :users].copy()
            mass[:users, :users] *= law.not_b
            mass[:users, 1 : users + 1] += law.b * before
            mass[users, :users] = law.not_a * last
            mass[users, 1 : users + 1] += law.a * last
        beyond[:, :-1] = np.cumsum(mass[:, :0:-1], axis=1)[:, ::-1]
        self._mass, self._beyond = mass.ravel(), beyond.ravel()

    def bounds(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on `max over m and M of A f_m(M) - excess F_m(M)`, f_m the mass of the sum and `F_m`
        that beyond M: the largest divergence in one direction at the orders `1 + excess`, shape (orders,).

        Source: docs/theory.md, "Binary reports".
        """
        gained, room = self._law.gained(excess), self._room
        doubt = room * np.abs(gained) + 4 * UNIT_ROUND_OFF * (self._law.gap + excess * self._law.b)
        return ProfileBounds(
            self._largest(gained + doubt, excess * (1 - room)) + TINY,
            self._largest(gained - doubt, excess * (1 + room)),
        )

    def _largest(self, gained: FloatArray, excess: FloatArray) -> FloatArray:
        """Returns the largest difference, at least 0, of masses times `gained` and masses beyond times
        `excess`, shape (orders,)."""
        found = np.zeros_like(excess)
        together = max(1, _BLOCK_ELEMENTS // self._mass.size)
        for start in range(0, excess.size, together):
            some = slice(start, start + together)
            terms = gained[some, None] * self._mass - excess[some, None] * self._beyond
            found[some] = np.maximum(terms.max(axis=1), 0.0)
        return found
