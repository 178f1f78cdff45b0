"""The estimation error of frequency oracles: the distance of estimated frequencies from the true ones.

A report supports some categories: its own value (randomized response), the bits that are set (unary
encodings), the values that hash to its bit or whose row is positive at it (local hashing, Hadamard response).
A user's own category is supported with probability `kept`, any other with probability `stray`, and the
unbiased estimate of a category's frequency is `(supporting / reports - stray) / (kept - stray)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import (
    BinaryLocalHash,
    BlockHadamard,
    HadamardResponse,
    KaryRandomizedResponse,
    LocalHash,
    LocalRandomizer,
    OptimizedUnaryEncoding,
    Rappor,
    SubsetSelection,
)


class SupportProbabilities(NamedTuple):
    """Probabilities that a report supports categories; differences are computed without cancellation.

    Attributes:
        stray: that of a category that is not the user's.
        gap: `kept - stray`.
        neither: `1 - kept - stray`.
        categories: number of categories; None where it is not given.
    """

    stray: float
    gap: float
    neither: float
    categories: int | None

    @property
    def kept(self) -> float:
        """Returns the probability that a report supports the user's category."""
        return self.stray + self.gap


@dataclass(frozen=True, kw_only=True)
class FrequencyError:
    """Error of the unbiased estimate of the frequencies among a round's reports, all of them honest.

    Attributes:
        reports: number of reports, n.
        categories: number of categories, d; None where it is not given.
        per_category: variance of the estimate for a category that no user holds, `stray (1 - stray) / (n
            (kept - stray)^2)`; of `block_hadamard` an upper bound on it, and on `squared_l2`.
        squared_l2: expected squared l2 distance of all d estimates from the frequencies, `d per_category + (1
            - kept - stray) / (n (kept - stray))`, whatever the frequencies are; None without d.

    Source: the variances of Wang, Blocki, Li, Jha, "Locally Differentially Private Protocols for Frequency
    Estimation" (2017), Theorem 2, summed over categories.
    """

    reports: int
    categories: int | None
    per_category: float
    squared_l2: float | None

    @property
    def l2(self) -> float | None:
        """Returns the square root of `squared_l2`, an upper bound on the expected l2 distance."""
        return None if self.squared_l2 is None else math.sqrt(self.squared_l2)


def frequency_error(randomizer: LocalRandomizer, reports: int) -> FrequencyError | None:
    """Returns the error of frequencies estimated from `reports` reports; None if the randomizer is not a
    frequency oracle.

    Raises:
        InvalidParameter: reports is not a whole number from 1, or no randomizer is given.
    """
    if not isinstance(randomizer, LocalRandomizer):
        raise InvalidParameter("randomizer", randomizer, "a randomizer")
    reports = validation.whole("reports", reports, 1, validation.MAXIMUM_REPORTS)
    if isinstance(randomizer, BlockHadamard):
        return _of_blocks(randomizer, reports)
    oracle = support_probabilities(randomizer)
    if oracle is None:
        return None
    stray, gap, neither, categories = oracle
    per_category = stray * (1 - stray) / (reports * gap * gap)
    squared = None if categories is None else categories * per_category + neither / (reports * gap)
    return FrequencyError(
        reports=reports, categories=categories, per_category=per_category, squared_l2=squared
    )


def _of_blocks(randomizer: BlockHadamard, reports: int) -> FrequencyError:
    """Returns upper bounds on the error of a response in blocks. With `C = (e + 2 blocks - 1)/(e - 1)` a
    report adds C to the values of its block whose rows are positive at it, and subtracts C from the others of
    that block.

    The contribution to the user's own value has mean 1, that to other values mean 0. The variance of a value
    without users is largest where all users' values are of its block.
    """
    e, less = math.exp(randomizer.epsilon0), math.expm1(randomizer.epsilon0)
    (blocks, outputs), categories = randomizer.shape, randomizer.domain
    whole = e + 2 * blocks - 1
    return FrequencyError(
        reports=reports,
        categories=categories,
        per_category=(e + 1) * whole / (less * less) / reports,
        squared_l2=((outputs - 1) * (whole / less) ** 2 - 1) / reports,
    )


def support_probabilities(randomizer: LocalRandomizer) -> SupportProbabilities | None:
    """Returns the probabilities of a frequency oracle, None of any other randomizer."""
    e, less = math.exp(randomizer.epsilon0), math.expm1(randomizer.epsilon0)
    found: SupportProbabilities | None = None
    match randomizer:
        case KaryRandomizedResponse(k=k):
            found = SupportProbabilities(1 / (e + k - 1), less / (e + k - 1), (k - 2) / (e + k - 1), k)
        case Rappor(domain=domain):
            stray = 1 / (math.exp(randomizer.epsilon0 / 2) + 1)
            found = SupportProbabilities(stray, math.tanh(randomizer.epsilon0 / 4), 0.0, domain)
        case OptimizedUnaryEncoding(domain=domain):
            found = SupportProbabilities(1 / (e + 1), less / (2 * (e + 1)), less / (2 * (e + 1)), domain)
        case BinaryLocalHash(domain=domain):
            found = SupportProbabilities(0.5, less / (2 * (e + 1)), -less / (2 * (e + 1)), domain)
        case LocalHash(domain=domain):
            g = randomizer.hashes_to
            gap = less * (g - 1) / (g * (e + g - 1))
            found = SupportProbabilities(1 / g, gap, 1 - 2 / g - gap, domain)
        case SubsetSelection(domain=k):
            among, size = randomizer.counts
            every = 1 / ((among - 1) * (e * size + (among - size)))
            stray = size * (e * (size - 1) + (among - size)) * every
            gap = less * size * (among - size) * every
            found = SupportProbabilities(stray, gap, 1 - 2 * stray - gap, k)
        case HadamardResponse(domain=domain):
            # Row 0 of the matrix, positive everywhere, is no category's.
            categories = None if domain is None else domain - 1
            found = SupportProbabilities(0.5, less / (2 * (e + 1)), -less / (2 * (e + 1)), categories)
    return found
