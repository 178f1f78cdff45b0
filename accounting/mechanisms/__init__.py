"""Reference mechanisms: what devices send by each named randomizer, and the estimates from their reports.

They are for tests, for simulations of utility, and for teams that check their own clients; they are no client
library. All randomness is drawn from the generator that the caller gives.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import scipy

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.mechanisms.base import MAXIMUM_CATEGORIES, Estimate, Mechanism
from shuffle_ledger.accounting.mechanisms.frequency_oracles import (
    BloomFilter,
    DirectEncoding,
    LocalHashing,
    Rows,
    Subset,
    UnaryEncoding,
)
from shuffle_ledger.accounting.mechanisms.hadamard import HadamardBlocks, HadamardSketch
from shuffle_ledger.accounting.mechanisms.noise_protocols import (
    BinomialBits,
    DistinctBits,
    HistogramMessages,
    LabelledBits,
)
from shuffle_ledger.accounting.mechanisms.noisy_numbers import (
    DiscreteGaussianNoise,
    GaussianNoise,
    LaplaceNoise,
    OneBit,
    PiecewiseNumber,
)
from shuffle_ledger.accounting.randomizers import (
    BinaryLocalHash,
    BinomialHistogram,
    BinomialSum,
    BlockHadamard,
    BloomRappor,
    BoundedLaplace,
    CentralLaplace,
    CountMeanSketch,
    DiscreteGaussian,
    DistinctElements,
    Duchi,
    Gaussian,
    HadamardCountMeanSketch,
    HadamardResponse,
    KaryRandomizedResponse,
    Laplace,
    LocalGaussian,
    LocalHash,
    LocalRandomizer,
    OptimizedUnaryEncoding,
    Piecewise,
    Rappor,
    SubsetSelection,
    Table,
    UniformityTester,
)
from shuffle_ledger.accounting.randomizers.estimation_error import SupportProbabilities, support_probabilities
from shuffle_ledger.accounting.randomizers.frequency_oracles import FiveComponents

# Kinds that say nothing of the number of their categories, labels or bits.
_OPEN = (BinomialHistogram, BloomRappor, DistinctElements, UniformityTester)
_Maker = Callable[[Any, int], Mechanism]

__all__ = ["Estimate", "Mechanism", "mechanism_of"]


def mechanism_of(randomizer: LocalRandomizer, *, categories: int | None = None) -> Mechanism:
    """Returns the reference mechanism of a randomizer, which encodes values and estimates from reports.

    Args:
        randomizer: of any kind but `generic`, `declared` and `privacy_loss`, which say no probabilities. Of
            `joint` and `parallel` each part has a mechanism.
        categories: number of categories, labels, or bits of a Bloom filter, where the randomizer does not say
            it: without a `domain`, for `binomial_histogram`, `uniformity_tester`, `distinct_elements` and
            `bloom_rappor`. It is at most 1,048,576.

    Raises:
        InvalidParameter: the kind has no mechanism, or the categories are missing, given twice, or too many.

    For `cms` and `hcms` a category is a place in the sketch, under the hash that was drawn.
    """
    known = _full(randomizer, categories)
    labels = categories if isinstance(randomizer, _OPEN) else None
    make = _MAKERS.get(type(known))
    if make is None:
        expected = "a randomizer that says its probabilities; of joint and parallel, each part by itself"
        raise InvalidParameter("randomizer", getattr(randomizer, "kind", randomizer), expected)
    return make(known, labels or 0)


def _full(randomizer: LocalRandomizer, categories: int | None) -> LocalRandomizer:
    """Returns the randomizer with its number of categories, which is checked."""
    if isinstance(randomizer, FiveComponents):
        given = categories if randomizer.domain is None else randomizer.domain
        number = _categories("categories" if randomizer.domain is None else "domain", given)
        if randomizer.domain is None:
            whole = 1 << number.bit_length() if isinstance(randomizer, HadamardResponse) else number
            return dataclasses.replace(randomizer, domain=whole)
    elif isinstance(randomizer, _OPEN):
        _categories("categories", categories)
        return randomizer
    elif isinstance(randomizer, KaryRandomizedResponse):
        _categories("k", randomizer.k)
    if categories is not None:
        expected = f"nothing: {getattr(randomizer, 'kind', randomizer)} says which values there are"
        raise InvalidParameter("categories", categories, expected)
    return randomizer


def _categories(field: str, number: object) -> int:
    return validation.whole(field, number, 2, MAXIMUM_CATEGORIES)


def _of_supports(mechanism: Callable[..., Mechanism]) -> _Maker:
    """Returns what makes a mechanism of which every category but the own one is supported alike."""
    return lambda one, _: mechanism(one, support_probabilities(one))


def _bloom_filter(one: BloomRappor, bits: int) -> Mechanism:
    bit = one.epsilon0 / one.hashes
    stray = float(scipy.special.expit(-bit / 2)) if one.flip is None else one.flip
    # The odds of a bit that the value sets are exp(bit) times the odds of another one.
    more = stray * math.expm1(bit)
    gap = more * (1 - stray) / (1 + more)
    return BloomFilter(one, SupportProbabilities(stray, gap, 1 - 2 * stray - gap, bits))


# What makes the mechanism of a randomizer of each kind, whose number of categories is known; the second
# argument is the number of labels or bits of the kinds of `_OPEN`.
_MAKERS: dict[type[LocalRandomizer], _Maker] = {
    Table: lambda one, _: Rows(one),
    HadamardResponse: lambda one, _: HadamardBlocks(one.domain - 1, one.epsilon0, shape=(1, one.domain)),
    BlockHadamard: lambda one, _: HadamardBlocks(one.domain, one.epsilon0, shape=one.shape),
    HadamardCountMeanSketch: lambda one, _: HadamardSketch(one.domain, one.epsilon0),
    # Given the hash it is basic RAPPOR.
    CountMeanSketch: lambda one, _: mechanism_of(Rappor(epsilon0=one.epsilon0, domain=one.domain)),
    KaryRandomizedResponse: _of_supports(DirectEncoding),
    BinaryLocalHash: _of_supports(LocalHashing),
    LocalHash: _of_supports(LocalHashing),
    SubsetSelection: _of_supports(Subset),
    Rappor: _of_supports(UnaryEncoding),
    OptimizedUnaryEncoding: _of_supports(UnaryEncoding),
    BloomRappor: _bloom_filter,
    Laplace: lambda one, _: LaplaceNoise(1 / one.epsilon0, low=0.0, high=1.0, bit=True),
    BoundedLaplace: lambda one, _: LaplaceNoise(1 / one.epsilon0, low=0.0, high=1.0),
    CentralLaplace: lambda one, _: LaplaceNoise(one.scale, low=-math.inf, high=math.inf),
    Gaussian: lambda one, _: GaussianNoise(one.sigma),
    LocalGaussian: lambda one, _: GaussianNoise(one.sigma, low=0.0, high=one.sensitivity),
    DiscreteGaussian: lambda one, _: DiscreteGaussianNoise(one.sigma),
    Duchi: lambda one, _: OneBit(one.epsilon0),
    Piecewise: lambda one, _: PiecewiseNumber(one.epsilon0),
    BinomialSum: lambda one, _: BinomialBits(one),
    BinomialHistogram: HistogramMessages,
    UniformityTester: LabelledBits,
    DistinctElements: DistinctBits,
}
