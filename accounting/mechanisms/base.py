"""The base class of reference mechanisms, estimates, and the checks of values and reports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import FloatArray, IndexArray

Reports = npt.NDArray[Any]

# Limits of one call: numbers in all reports, and categories of one randomizer. More: memory.
_MAXIMUM_NUMBERS = 1 << 26
MAXIMUM_CATEGORIES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """An unbiased estimate from reports.

    Attributes:
        values: the estimates, shape (categories,) of frequencies, () of a single number.
        variance: for each of them the sample variance of what a report contributes, divided by the number of
            reports. Its mean is the variance of the estimate if the users are drawn at random from a
            population, and at least the variance if they are fixed. It is infinite for one report.
        reports: number of reports.
    """

    values: FloatArray
    variance: FloatArray
    reports: int


class Mechanism(ABC):
    """A reference implementation of a randomizer: what one device sends, and the estimate from all reports.

    It is for tests, for simulations of utility, and for teams that check their own clients. It is not a
    client library: its randomness is that of the given generator, which is not made for cryptography, and
    probabilities are as exact as floats, to about 1e-16.
    """

    #: Shape of one user's value, and of one report; () is a single number.
    value_shape: tuple[int, ...] = ()
    report_shape: tuple[int, ...] = ()

    def encode(self, values: npt.ArrayLike, generator: Generator) -> Reports:
        """Returns one randomized report for each value.

        Args:
            values: the users' values, shape `(*users, *value_shape)`; one value has the shape `value_shape`.
            generator: draws all randomness.

        Returns:
            The reports, shape `(*users, *report_shape)`, independent of each other given the values.

        Raises:
            InvalidParameter: a value is out of range, a shape is wrong, or the reports would have more than
                67,108,864 numbers together.
        """
        if not isinstance(generator, Generator):
            expected = "a numpy.random.Generator, such as numpy.random.default_rng()"
            raise InvalidParameter("generator", generator, expected)
        given = np.asarray(values)
        users = _outer("values", given, self.value_shape)
        size = math.prod(users)
        if size * self._work > _MAXIMUM_NUMBERS:
            raise InvalidParameter("values", f"{size} values", f"at most {_MAXIMUM_NUMBERS // self._work}")
        made = self._encoded(self._checked(given.reshape(size, *self.value_shape)), generator)
        return made.reshape(*users, *self.report_shape)

    def estimate(self, reports: npt.ArrayLike) -> Estimate:
        """Returns the unbiased estimate from reports: frequencies of categories, or a mean.

        Args:
            reports: shape `(*users, *report_shape)`, as `encode` returns them, in any order.

        Raises:
            InvalidParameter: there is no report, a shape is wrong, or a report is impossible.
        """
        given = np.asarray(reports)
        size = math.prod(_outer("reports", given, self.report_shape))
        if size == 0:
            raise InvalidParameter("reports", "none", "at least one report")
        estimated, variance = self._estimated(self._checked_reports(given.reshape(size, *self.report_shape)))
        return Estimate(values=estimated, variance=variance, reports=size)

    def variance(self, values: npt.ArrayLike) -> FloatArray:
        """Returns the exact variance of each estimate, if users hold these values, over the reports'
        randomness.

        Args:
            values: the users' values, at least one, shape `(*users, *value_shape)`.

        Raises:
            InvalidParameter: there is no value, or one is out of range.
        """
        given = np.asarray(values)
        size = math.prod(_outer("values", given, self.value_shape))
        if size == 0:
            raise InvalidParameter("values", "none", "at least one value")
        return self._exact_variance(self._checked(given.reshape(size, *self.value_shape)))

    @property
    def _work(self) -> int:
        """Returns the numbers that one report needs while it is made."""
        return math.prod(self.report_shape)

    @abstractmethod
    def _checked(self, values: Reports) -> Reports:
        """Returns the values, shape (users, *value_shape), all of them in range."""

    def _checked_reports(self, reports: Reports) -> Reports:
        """Returns the reports, shape (reports, *report_shape), all of them possible."""
        return numbers_within("reports", reports, -math.inf, math.inf)

    @abstractmethod
    def _encoded(self, values: Reports, generator: Generator) -> Reports:
        """Returns the reports, shape (users, *report_shape)."""

    @abstractmethod
    def _estimated(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        """Returns the estimates and their sample variances."""

    @abstractmethod
    def _exact_variance(self, values: Reports) -> FloatArray:
        """Returns the variance of each estimate, if users hold these values."""


class MeanOfContributions(Mechanism):
    """A mechanism whose estimates are means over reports of what each report contributes."""

    def _estimated(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        mean, spread = self._moments(reports)
        degrees = len(reports) - 1
        return mean, np.maximum(spread, 0.0) / degrees if degrees else np.full_like(spread, np.inf)

    def _exact_variance(self, values: Reports) -> FloatArray:
        return self._variance(values) / len(values)

    @abstractmethod
    def _moments(self, reports: Reports) -> tuple[FloatArray, FloatArray]:
        """Returns the means over reports of the contributions and of their squared distances from the
        mean."""

    @abstractmethod
    def _variance(self, values: Reports) -> FloatArray:
        """Returns the mean over users of the variances of their reports' contributions."""


def _outer(field: str, given: Reports, inner: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape without that of one value or report, which it must end with."""
    place = given.ndim - len(inner)
    if place < 0 or given.shape[place:] != inner:
        raise InvalidParameter(field, f"shape {given.shape}", f"a shape that ends with {inner}")
    return given.shape[:place]


def whole_within(field: str, given: Reports, low: int, high: int) -> IndexArray:
    """Returns an array of whole numbers from `low` to `high`; booleans and floats are refused."""
    expected = f"whole numbers from {low} to {high}"
    if given.size == 0:
        return given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise InvalidParameter(field, f"type {given.dtype}", expected)
    wrong = given[(given < low) | (given > high)]
    if wrong.size:
        raise InvalidParameter(field, wrong.ravel()[0].item(), expected)
    return given.astype(np.int64)


def numbers_within(field: str, given: Reports, low: float, high: float) -> FloatArray:
    """Returns an array of finite numbers from `low` to `high`."""
    expected = "finite numbers" if high == math.inf else f"numbers from {low} to {high}"
    if given.size == 0:
        return given.astype(np.float64)
    if given.dtype.kind not in "iuf":
        raise InvalidParameter(field, f"type {given.dtype}", expected)
    numbers = given.astype(np.float64)
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= low) & (numbers <= high))]
    if wrong.size:
        raise InvalidParameter(field, wrong.ravel()[0].item(), expected)
    return numbers


def moments_of(contributions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the means and the mean squared distances from them, of contributions of shape (reports,
    ...)."""
    return np.asarray(contributions.mean(axis=0)), np.asarray(contributions.var(axis=0))


def with_probability(
    probability: float, shape: tuple[int, ...], generator: Generator
) -> npt.NDArray[np.bool_]:
    """Returns independent coins, True with this probability."""
    return generator.random(shape) < probability
