"""Hadamard responses, in one block or several, and the Hadamard count mean sketch given its hash."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.mechanisms.base import Reports, whole_within, with_probability
from shuffle_ledger.accounting.mechanisms.frequency_oracles import FrequencyOracle, another
from shuffle_ledger.accounting.numeric.arrays import BoolArray, FloatArray, IndexArray

_MAXIMUM_OUTPUTS = 1 << 22  # of all blocks together. More: memory.


class HadamardBlocks(FrequencyOracle):
    """Hadamard response: category v belongs to block `v % blocks`, where its row of the Hadamard matrix is
    `v // blocks + 1`.

    A report is an output, `block * outputs + place`. A report supports a category if it is of its block and
    the row is positive at the place: the binary digits that row and place share are even in number. With
    `C = (e + 2 blocks - 1)/(e - 1)` it contributes C to the frequencies of the categories that it supports,
    and -C to those of the other ones of its block.
    """

    def __init__(self, categories: int, epsilon0: float, *, shape: tuple[int, int]) -> None:
        super().__init__(categories, epsilon0)
        blocks, outputs = shape
        if blocks * outputs > _MAXIMUM_OUTPUTS:
            expected = f"at most {_MAXIMUM_OUTPUTS} outputs of all blocks"
            raise InvalidParameter("randomizer", f"{blocks * outputs} outputs", expected)
        self._blocks, self._outputs = blocks, outputs
        places = np.arange(categories)
        self._block, self._row = places % blocks, places // blocks + 1
        self._scale = (math.exp(epsilon0) + 2 * blocks - 1) / math.expm1(epsilon0)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        # Every block has two halves: of places where the row of the value is positive, and the others.
        halves = 2 * self._blocks
        own = 2 * self._block[values]
        lies = with_probability(
            (halves - 1) / (math.exp(self.epsilon0) + halves - 1), values.shape, generator
        )
        half = np.where(lies, another(own, halves, generator), own)
        place = generator.integers(0, self._outputs, size=values.shape)
        row = self._row[values]
        # Changing a digit that the row has moves a place to the other half, one to one.
        place ^= np.where(_negative(row, place) == half % 2, 0, row & -row)
        return half // 2 * self._outputs + place

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, self._blocks * self._outputs - 1)

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`."""
        block, place = np.divmod(reports, self._outputs)
        near = block[:, None] == self._block
        return np.asarray(near & (_negative(self._row, place[:, None]) == 0))

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        counts = np.bincount(reports, minlength=self._blocks * self._outputs)
        shares = np.asarray(counts.reshape(self._blocks, self._outputs) / len(reports))
        mean = self._scale * transformed(shares)[self._block, self._row]
        return mean, self._scale**2 * shares.sum(axis=1)[self._block] - mean**2

    def _variance(self, values: Reports) -> FloatArray:
        frequencies = self._frequencies(values)
        near = np.bincount(self._block, weights=frequencies, minlength=self._blocks)[self._block]
        e, halves = math.exp(self.epsilon0), 2 * self._blocks
        of_block = near * (e + 1) + (1 - near) * 2
        return np.asarray(self._scale**2 * of_block / (e + halves - 1) - frequencies)


class HadamardSketch(FrequencyOracle):
    """One bit of the Hadamard transform of a place in a sketch: a report is a row of the matrix, and the bit,
    0 where the row is positive at the place."""

    report_shape = (2,)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        row = generator.integers(0, self.categories, size=values.shape)
        flips = with_probability(1 / (math.exp(self.epsilon0) + 1), values.shape, generator)
        return np.column_stack([row, _negative(row, values) ^ flips])

    def _checked_reports(self, reports: Reports) -> Reports:
        rows, bits = (
            whole_within("reports", reports[:, column], 0, most)
            for column, most in ((0, self.categories - 1), (1, 1))
        )
        return np.column_stack([rows, bits])

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`."""
        return np.asarray(_negative(np.arange(self.categories), reports[:, :1]) == reports[:, 1:])

    @property
    def _scale(self) -> float:
        return 1 / math.tanh(self.epsilon0 / 2)

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        signs = np.zeros(self.categories)
        np.add.at(signs, reports[:, 0], 1.0 - 2 * reports[:, 1])
        mean = self._scale * transformed(signs) / len(reports)
        return mean, self._scale**2 - mean**2

    def _variance(self, values: Reports) -> FloatArray:
        return np.asarray(self._scale**2 - self._frequencies(values))


def _negative(row: IndexArray, place: IndexArray) -> IndexArray:
    """Returns 1 where the Hadamard matrix has -1, and 0 where it has 1."""
    return np.asarray(np.bitwise_count(row & place) & 1, dtype=np.int64)


def transformed(values: FloatArray) -> FloatArray:
    """Returns the products of the Hadamard matrix with vectors on the last axis, of a power of two."""
    found = np.array(values, dtype=np.float64)
    half = 1
    while half < found.shape[-1]:
        pairs = found.reshape(*found.shape[:-1], -1, 2, half)
        found = np.stack([pairs.sum(axis=-2), pairs[..., 0, :] - pairs[..., 1, :]], axis=-2).reshape(
            values.shape
        )
        half *= 2
    return found
