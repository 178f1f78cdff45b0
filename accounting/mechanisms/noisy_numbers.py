"""Numbers with noise, on devices or by a collector, and means by one bit or by the piecewise mechanism."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from numpy.random import Generator

from shuffle_ledger.accounting.mechanisms.base import (
    MeanOfContributions,
    Reports,
    moments_of,
    numbers_within,
    whole_within,
    with_probability,
)
from shuffle_ledger.accounting.numeric.arrays import FloatArray

_LARGEST_WHOLE = 1 << 53  # all whole numbers up to it are floats
# Deviations of discrete Gaussian noise that are listed; beyond them the mass is below 1e-54.
_DEVIATIONS = 16


class _Mean(MeanOfContributions):
    """A mechanism that estimates the mean of the users' numbers, by the mean of its reports."""

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        return moments_of(reports)


class LaplaceNoise(_Mean):
    """A number with Laplace noise of a scale; of a statistic any number, on devices one in [0, 1] or a
    bit."""

    def __init__(self, scale: float, *, low: float, high: float, bit: bool = False) -> None:
        self._scale, self._low, self._high, self._bit = scale, low, high, bit

    def _checked(self, values: Reports) -> Reports:
        if self._bit:
            return whole_within("values", values, 0, 1)
        return numbers_within("values", values, self._low, self._high)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        return values + generator.laplace(0.0, self._scale, size=values.shape)

    def _variance(self, values: Reports) -> FloatArray:
        return np.asarray(2 * self._scale**2)


class GaussianNoise(_Mean):
    """A number with Gaussian noise of a deviation; of a statistic any number, on devices one of an interval
    from 0."""

    def __init__(self, sigma: float, *, low: float = -math.inf, high: float = math.inf) -> None:
        self._sigma, self._low, self._high = sigma, low, high

    def _checked(self, values: Reports) -> Reports:
        return numbers_within("values", values, self._low, self._high)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        return values + generator.normal(0.0, self._sigma, size=values.shape)

    def _variance(self, values: Reports) -> FloatArray:
        return np.asarray(self._sigma**2)


class DiscreteGaussianNoise(_Mean):
    """A whole number with discrete Gaussian noise, drawn from the list of its probabilities."""

    def __init__(self, sigma: float) -> None:
        half = math.ceil(_DEVIATIONS * sigma) + 1
        self._noise = np.arange(-half, half + 1)
        masses = np.exp(-((self._noise / sigma) ** 2) / 2)
        self._masses = masses / masses.sum()

    def _checked(self, values: Reports) -> Reports:
        return whole_within("values", values, -_LARGEST_WHOLE, _LARGEST_WHOLE)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        return np.asarray(values + generator.choice(self._noise, size=values.shape, p=self._masses))

    def _variance(self, values: Reports) -> FloatArray:
        return np.asarray(self._noise.astype(np.float64) ** 2 @ self._masses)


class _OfSymmetricInterval(_Mean):
    """A mechanism for numbers in [-1, 1]."""

    def __init__(self, epsilon0: float) -> None:
        self._epsilon0 = epsilon0

    @property
    @abstractmethod
    def _bound(self) -> float:
        """Returns the largest contribution of a report."""

    def _checked(self, values: Reports) -> Reports:
        return numbers_within("values", values, -1.0, 1.0)


class OneBit(_OfSymmetricInterval):
    """Duchi's bit: a report is 1 with probability `1/2 + x (e - 1)/(2 (e + 1))`, else 0; it contributes
    `(e + 1)/(e - 1)` to the mean, or the negative."""

    @property
    def _bound(self) -> float:
        return 1 / math.tanh(self._epsilon0 / 2)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        ones = generator.random(values.shape) < (1 + values / self._bound) / 2
        return ones.astype(np.int64)

    def _checked_reports(self, reports: Reports) -> Reports:
        return whole_within("reports", reports, 0, 1)

    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        return moments_of(self._bound * (2.0 * reports - 1))

    def _variance(self, values: Reports) -> FloatArray:
        return np.asarray(self._bound**2 - np.mean(values**2))


class PiecewiseNumber(_OfSymmetricInterval):
    """The piecewise mechanism: with probability `r/(r + 1)`, `r = exp(epsilon0/2)`, a report is uniform in a
    window around the value, else uniform in the rest of `[-C, C]`, `C = (r + 1)/(r - 1)`."""

    @property
    def _bound(self) -> float:
        return 1 / math.tanh(self._epsilon0 / 4)

    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        largest, window = self._bound, 2 / math.expm1(self._epsilon0 / 2)
        start = (largest + 1) / 2 * values - window / 2
        drawn = generator.random(values.shape)
        outside = with_probability(1 / (math.exp(self._epsilon0 / 2) + 1), values.shape, generator)
        rest = drawn * (largest + 1) - largest
        skipped = np.where(rest < start, rest, rest + window)
        return np.clip(np.where(outside, skipped, start + drawn * window), -largest, largest)

    def _checked_reports(self, reports: Reports) -> Reports:
        return numbers_within("reports", reports, -self._bound, self._bound)

    def _variance(self, values: Reports) -> FloatArray:
        less = math.expm1(self._epsilon0 / 2)
        return np.asarray(np.mean(values**2) / less + (less + 4) / (3 * less**2))
