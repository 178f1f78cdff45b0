"""Protocols in which all users contribute to common noise: messages of one user, and sums of them."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.mechanisms.base import (
    MeanOfContributions,
    Mechanism,
    Reports,
    moments_of,
    whole_within,
    with_probability,
)
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.randomizers import (
    BinomialHistogram,
    BinomialSum,
    DistinctElements,
    UniformityTester,
)

_LARGEST_COUNT = 1 << 53  # of reports: larger whole numbers are not all floats


class BinomialBits(MeanOfContributions):
    """A bit in clear, and behind it the noise bits; the estimate is the share of users whose bit is 1."""

    def __init__(self, randomizer: BinomialSum) -> None:
        self._p, self._bits = randomizer.p, randomizer.bits
        self.report_shape = (self._bits + 1,)

    def _checked(self, values: Reports) -> Reports:
        return whole_within("values", values, 0, 1)

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, 1)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        noise = with_probability(self._p, (values.size, self._bits), generator)
        return np.column_stack([values, noise.astype(np.int64)])

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        return moments_of(reports.sum(axis=1) - self._bits * self._p)

    def _variance(self, values: Reports) -> FloatArray:
        return np.asarray(self._bits * self._p * (1 - self._p))


class _Labels(Mechanism):
    """A protocol over labels: a value is a label, from 0 to `labels - 1`."""

    def __init__(self, labels: int) -> None:
        self.labels = labels

    def _checked(self, values: Reports) -> Reports:
        return whole_within("values", values, 0, self.labels - 1)

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, _LARGEST_COUNT)

    def _own(self, values: Reports) -> Reports:
        """Returns 1 at each user's own label and 0 at others, shape (users, labels)."""
        return np.asarray(values[:, None] == np.arange(self.labels), dtype=np.int64)


class HistogramMessages(_Labels, MeanOfContributions):
    """The own category in clear and, for each category, noise messages: a report has the number of messages
    for each category. The estimates are the frequencies of the categories."""

    def __init__(self, randomizer: BinomialHistogram, categories: int) -> None:
        super().__init__(categories)
        self._p, self._bits = randomizer.p, randomizer.bits
        self.report_shape = (categories,)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        own = self._own(values)
        return np.asarray(own + generator.binomial(self._bits, self._p, size=own.shape))

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        return moments_of(reports - self._bits * self._p)

    def _variance(self, values: Reports) -> FloatArray:
        return np.full(self.labels, self._bits * self._p * (1 - self._p))


class LabelledBits(_Labels, MeanOfContributions):
    """For each label a bit in clear, whether it is the own one, and a Poisson number of fair bits: a report
    has the numbers of ones and of zeros for each label, shape (labels, 2).

    The estimates are the frequencies of the labels: half of `ones - zeros + 1` of a report.
    """

    def __init__(self, randomizer: UniformityTester, labels: int) -> None:
        super().__init__(labels)
        self._noise = randomizer.noise
        self.report_shape = (labels, 2)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        own = self._own(values)
        # The ones and zeros among a Poisson number of fair bits are independent Poisson numbers.
        ones, zeros = (generator.poisson(self._noise / 2, size=own.shape) for _ in range(2))
        return np.stack([own + ones, 1 - own + zeros], axis=-1)

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        return moments_of((reports[..., 0] - reports[..., 1] + 1) / 2)

    def _variance(self, values: Reports) -> FloatArray:
        return np.full(self.labels, self._noise / 4)


class DistinctBits(_Labels):
    """A bit for each label, before it is split into shares: a fair one for the own label, others 1 with
    probability p. The estimate is the number of labels that users hold.

    The sum modulo 2 of a label's bits is fair if a user holds the label, else 1 with probability
    `s = (1 - (1 - 2p)^n)/2`; the estimate is `(ones - labels s)/(1/2 - s)`. The reports must be those of one
    round, of all its users.
    """

    def __init__(self, randomizer: DistinctElements, labels: int) -> None:
        super().__init__(labels)
        self._p = randomizer.p
        self.report_shape = (labels,)

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, 1)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        chances = np.where(self._own(values) == 1, 0.5, self._p)
        return (generator.random(chances.shape) < chances).astype(np.int64)

    def _estimated(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        stray, gap = self._chances(len(reports))
        ones = float((reports.sum(axis=0) % 2).sum())
        # The sample variance of one label's sum, times the number of labels.
        spread = ones * (self.labels - ones) / (self.labels - 1)
        return np.asarray((ones - self.labels * stray) / gap), np.asarray(spread / gap**2)

    def _exact_variance(self, values: Reports) -> FloatArray:
        stray, gap = self._chances(len(values))
        held = np.unique(values).size
        return np.asarray((held / 4 + (self.labels - held) * stray * (1 - stray)) / gap**2)

    def _chances(self, users: int) -> tuple[float, float]:
        """Returns the probability that the sum of a label without users is 1, and one half less it."""
        gap = (1 - 2 * self._p) ** users / 2
        if gap == 0:
            raise InvalidParameter("p", self._p, "less noise: the sum of every label is fair")
        return 0.5 - gap, gap
