"""Reference mechanisms: what devices send by each named randomizer, and the estimates from their reports.

They are for tests, for simulations of utility, and for teams that check their own clients; they are no client
library. All randomness is drawn from the generator that the caller gives.
"""

from __future__ import annotations

import dataclasses
import math

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
    Support,
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
from shuffle_ledger.accounting.randomizers.estimation_error import support_probabilities
from shuffle_ledger.accounting.randomizers.frequency_oracles import FiveComponents

# Kinds that say nothing of the number of their categories, labels or bits.
_OPEN = (BinomialHistogram, BloomRappor, DistinctElements, UniformityTester)

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
    mechanism = _of_categories(known) or _of_numbers(known) or _of_protocol(known, labels or 0)
    if mechanism is None:
        expected = "a randomizer that says its probabilities; of joint and parallel, each part by itself"
        raise InvalidParameter("randomizer", getattr(randomizer, "kind", randomizer), expected)
    return mechanism


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


def _of_categories(randomizer: LocalRandomizer) -> Mechanism | None:
    """Returns the mechanism of a frequency oracle with a known number of categories, or of a table."""
    found: Mechanism | None = None
    match randomizer:
        case Table():
            found = Rows(randomizer)
        case HadamardResponse(domain=order) if order is not None:
            found = HadamardBlocks(order - 1, randomizer.epsilon0, blocks=1, outputs=order)
        case BlockHadamard(domain=domain) if domain is not None:
            blocks, outputs = randomizer.shape
            found = HadamardBlocks(domain, randomizer.epsilon0, blocks=blocks, outputs=outputs)
        case HadamardCountMeanSketch(domain=width) if width is not None:
            found = HadamardSketch(width, randomizer.epsilon0)
        case CountMeanSketch(domain=width):  # given the hash it is basic RAPPOR
            found = _of_categories(Rappor(epsilon0=randomizer.epsilon0, domain=width))
    return found or _of_supports(randomizer)


def _of_supports(randomizer: LocalRandomizer) -> Mechanism | None:
    """Returns the mechanism of an oracle that supports all categories but the own one alike."""
    known = support_probabilities(randomizer)
    if known is None:
        return None
    support, categories = Support(known.stray, known.gap), known.categories
    match randomizer:
        case KaryRandomizedResponse(k=k):
            return DirectEncoding(k, randomizer.epsilon0, support)
        case BinaryLocalHash() | LocalHash():
            return LocalHashing(randomizer, support)
        case SubsetSelection():
            return Subset(randomizer, support)
        case Rappor() | OptimizedUnaryEncoding() if categories is not None:
            return UnaryEncoding(categories, randomizer.epsilon0, support)
    return None


def _of_numbers(randomizer: LocalRandomizer) -> Mechanism | None:
    """Returns the mechanism of numbers with noise, or of a mean."""
    found: Mechanism | None = None
    match randomizer:
        case Laplace(epsilon0=epsilon0):
            found = LaplaceNoise(1 / epsilon0, low=0.0, high=1.0, bit=True)
        case BoundedLaplace(epsilon0=epsilon0):
            found = LaplaceNoise(1 / epsilon0, low=0.0, high=1.0)
        case CentralLaplace(scale=scale):
            found = LaplaceNoise(scale, low=-math.inf, high=math.inf)
        case Gaussian(sigma=sigma):
            found = GaussianNoise(sigma)
        case LocalGaussian(sigma=sigma, sensitivity=length):
            found = GaussianNoise(sigma, low=0.0, high=length)
        case DiscreteGaussian(sigma=sigma):
            found = DiscreteGaussianNoise(sigma)
        case Duchi(epsilon0=epsilon0):
            found = OneBit(epsilon0)
        case Piecewise(epsilon0=epsilon0):
            found = PiecewiseNumber(epsilon0)
    return found


def _of_protocol(randomizer: LocalRandomizer, labels: int) -> Mechanism | None:
    """Returns the mechanism of a protocol with common noise, or of a Bloom filter; `labels` is its
    number of labels or bits."""
    found: Mechanism | None = None
    match randomizer:
        case BloomRappor(hashes=hashes):
            bit = randomizer.epsilon0 / hashes
            stray = scipy.special.expit(-bit / 2) if randomizer.flip is None else randomizer.flip
            # The odds of a bit that the value sets are exp(bit) times the odds of another one.
            more = float(stray) * math.expm1(bit)
            support = Support(float(stray), more * (1 - float(stray)) / (1 + more))
            found = BloomFilter(labels, randomizer.epsilon0, support, hashes)
        case BinomialHistogram():
            found = HistogramMessages(randomizer, labels)
        case BinomialSum():
            found = BinomialBits(randomizer)
        case UniformityTester():
            found = LabelledBits(randomizer, labels)
        case DistinctElements():
            found = DistinctBits(randomizer, labels)
    return found
