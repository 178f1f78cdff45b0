"""Frequency oracles whose reports support categories: direct and unary encodings, local hashing, subsets."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from numpy.random import Generator

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.mechanisms.base import (
    MeanOfContributions,
    Reports,
    moments_of,
    whole_within,
    with_probability,
)
from shuffle_ledger.accounting.numeric.arrays import BoolArray, FloatArray, IndexArray
from shuffle_ledger.accounting.randomizers import (
    BinaryLocalHash,
    BloomRappor,
    LocalHash,
    LocalRandomizer,
    SubsetSelection,
    Table,
)
from shuffle_ledger.accounting.randomizers.estimation_error import SupportProbabilities


class FrequencyOracle(MeanOfContributions):
    """A mechanism whose reports support categories; it estimates their frequencies.

    A value is a category, from 0 to `categories - 1`.
    """

    def __init__(self, categories: int, epsilon0: float) -> None:
        self.categories = categories
        self.epsilon0 = epsilon0

    @abstractmethod
    def supports(self, reports: Reports) -> BoolArray:
        """Returns which categories each report supports, shape (reports, categories)."""

    def _checked(self, values: Reports) -> Reports:
        return whole_within("values", values, 0, self.categories - 1)

    def _frequencies(self, values: Reports) -> FloatArray:
        return np.asarray(np.bincount(values, minlength=self.categories) / values.size)


class SupportOracle(FrequencyOracle):
    """An oracle with one probability of support for the own category, and one for every other one."""

    def __init__(self, randomizer: LocalRandomizer, support: SupportProbabilities) -> None:
        super().__init__(int(support.categories or 0), randomizer.epsilon0)
        self._support = support

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        share = self._supporting(reports) / len(reports)
        stray, gap = self._support.stray, self._support.gap
        return (share - stray) / gap, share * (1 - share) / gap**2

    def _supporting(self, reports: Reports) -> IndexArray:
        """Returns how many reports support each category."""
        return np.asarray(self.supports(reports).sum(axis=0), dtype=np.int64)

    def _variance(self, values: Reports) -> FloatArray:
        known = self._support
        own, other = ((p * (1 - p)) / known.gap**2 for p in (known.kept, known.stray))
        return other + self._frequencies(values) * (own - other)


class DirectEncoding(SupportOracle):
    """k-ary randomized response: a report is a category."""

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        k = self.categories
        lies = with_probability((k - 1) / (math.exp(self.epsilon0) + k - 1), values.shape, generator)
        return np.where(lies, another(values, k, generator), values)

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, self.categories - 1)

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`."""
        return np.asarray(reports[:, None] == np.arange(self.categories))

    def _supporting(self, reports: Reports) -> IndexArray:
        return np.bincount(reports, minlength=self.categories)


def another(values: IndexArray, count: int, generator: Generator) -> IndexArray:
    """Returns for each value a uniformly random other one of `count` values."""
    drawn = generator.integers(0, count - 1, size=values.shape)
    return np.asarray(drawn + (drawn >= values), dtype=np.int64)


class UnaryEncoding(SupportOracle):
    """One bit for each category, the user's own set and every bit randomized: basic RAPPOR and OUE. Given the
    hash it is Apple's count mean sketch, where a category is a place in the sketch."""

    def __init__(self, randomizer: LocalRandomizer, support: SupportProbabilities) -> None:
        super().__init__(randomizer, support)
        self.report_shape = (self.categories,)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        bits = with_probability(self._support.stray, (values.size, self.categories), generator)
        kept = with_probability(self._support.kept, values.shape, generator)
        bits[np.arange(values.size), values] = kept
        return bits.astype(np.int64)

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, 1)

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`."""
        return np.asarray(reports == 1)


class BloomFilter(UnaryEncoding):
    """RAPPOR on a Bloom filter: a value is the array of bits that its hash functions set, at most `hashes` of
    them. The estimates are the shares of users whose bit is set."""

    def __init__(self, randomizer: BloomRappor, support: SupportProbabilities) -> None:
        super().__init__(randomizer, support)
        self.value_shape = self.report_shape
        self._hashes = randomizer.hashes

    def _checked(self, values: Reports) -> Reports:
        bits = whole_within("values", values, 0, 1)
        whole_within("bits that a value sets", bits.sum(axis=1), 0, self._hashes)
        return bits

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        stray, gap = self._support.stray, self._support.gap
        return (generator.random(values.shape) < stray + gap * values).astype(np.int64)

    def _frequencies(self, values: Reports) -> FloatArray:
        return np.asarray(values.mean(axis=0))


class LocalHashing(SupportOracle):
    """Local hashing with a uniformly random hash among all functions.

    A report is the table of the hash, the hash values of all categories, and behind it the reported hash
    value.
    """

    def __init__(self, randomizer: BinaryLocalHash | LocalHash, support: SupportProbabilities) -> None:
        super().__init__(randomizer, support)
        self._hashes_to = randomizer.hashes_to if isinstance(randomizer, LocalHash) else 2
        self.report_shape = (self.categories + 1,)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        g = self._hashes_to
        tables = generator.integers(0, g, size=(values.size, self.categories))
        own = tables[np.arange(values.size), values]
        lies = with_probability((g - 1) / (math.exp(self.epsilon0) + g - 1), values.shape, generator)
        return np.column_stack([tables, np.where(lies, another(own, g, generator), own)])

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, self._hashes_to - 1)

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`."""
        return np.asarray(reports[:, :-1] == reports[:, -1:])


class Subset(SupportOracle):
    """Subset selection: a report is the ascending list of the categories of a subset."""

    def __init__(self, randomizer: SubsetSelection, support: SupportProbabilities) -> None:
        super().__init__(randomizer, support)
        self._size = randomizer.counts[1]
        self.report_shape = (self._size,)

    @property
    def _work(self) -> int:
        return self.categories

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        keys = generator.random((values.size, self.categories))
        # The subset has the least keys: the own category's is below or above all others.
        with_own = with_probability(self._support.kept, values.shape, generator)
        keys[np.arange(values.size), values] = np.where(with_own, -1.0, 2.0)
        chosen = np.argpartition(keys, self._size - 1, axis=1)[:, : self._size]
        return np.sort(chosen, axis=1)

    def _checked_reports(self, reports: Reports) -> Reports:
        checked = whole_within("reports", reports, 0, self.categories - 1)
        if np.any(np.diff(checked, axis=1) <= 0):
            wrong = checked[np.any(np.diff(checked, axis=1) <= 0, axis=1)][0]
            expected = "the categories of a subset, each once, in ascending order"
            raise InvalidParameter("reports", wrong.tolist(), expected)
        return checked

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`."""
        found = np.zeros((len(reports), self.categories), dtype=np.bool_)
        found[np.arange(len(reports))[:, None], reports] = True
        return found

    def _supporting(self, reports: Reports) -> IndexArray:
        return np.bincount(reports.ravel(), minlength=self.categories)


class Rows(FrequencyOracle):
    """A table of probabilities: a report is the number of an output, drawn from the row of the value.

    The estimate is the least-squares solution, unbiased if the rows are linearly independent.
    """

    def __init__(self, randomizer: Table) -> None:
        super().__init__(len(randomizer.rows), randomizer.epsilon0)
        rows = np.array(randomizer.rows)
        self._rows = rows / rows.sum(axis=1, keepdims=True)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        last = self._rows.shape[1] - 1
        drawn = generator.random(values.shape)
        made = np.zeros(values.shape, dtype=np.int64)
        for value in np.unique(values):
            ends = np.cumsum(self._rows[value])
            places = np.searchsorted(ends, drawn[values == value] * ends[-1], side="right")
            made[values == value] = np.minimum(places, last)
        return made

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, self._rows.shape[1] - 1)

    def supports(self, reports: Reports) -> BoolArray:
        """See `FrequencyOracle.supports`: the values of which a report is possible."""
        return np.asarray(self._rows.T[reports] > 0)

    def _contributions(self) -> FloatArray:
        """Returns the contribution of each output to each frequency, shape (outputs, categories)."""
        if np.linalg.matrix_rank(self._rows) < self.categories:
            expected = "linearly independent rows: other tables tell no frequencies"
            raise InvalidParameter("rows", self._rows.tolist(), expected)
        return np.asarray(np.linalg.pinv(self._rows), dtype=np.float64)

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        return moments_of(self._contributions()[reports])

    def _variance(self, values: Reports) -> FloatArray:
        contributions = self._contributions()
        means = self._rows @ contributions
        spread = self._rows @ contributions**2 - means**2
        return np.asarray(self._frequencies(values) @ spread)
