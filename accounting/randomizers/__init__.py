"""Local randomizers: what every device runs on its own value before it reports.

A randomizer is its parameters, its local privacy, and what bounds a shuffled round of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from shuffle_ledger.accounting.randomizers.base import Analysis, DecomposedRandomizer, LocalRandomizer
from shuffle_ledger.accounting.randomizers.bounded_noise import (
    BoundedLaplace,
    Duchi,
    Piecewise,
)
from shuffle_ledger.accounting.randomizers.central import CentralLaplace, DiscreteGaussian, Gaussian
from shuffle_ledger.accounting.randomizers.composite import Joint, Parallel
from shuffle_ledger.accounting.randomizers.declared import Declared
from shuffle_ledger.accounting.randomizers.frequency_oracles import (
    BinaryLocalHash,
    HadamardResponse,
    KaryRandomizedResponse,
    OptimizedUnaryEncoding,
    Rappor,
)
from shuffle_ledger.accounting.randomizers.generic import Generic
from shuffle_ledger.accounting.randomizers.laplace import Laplace
from shuffle_ledger.accounting.randomizers.local_gaussian import LocalGaussian
from shuffle_ledger.accounting.randomizers.noise_protocols import (
    BinomialHistogram,
    BinomialSum,
    DistinctElements,
    UniformityTester,
)
from shuffle_ledger.accounting.randomizers.privacy_loss import PrivacyLoss
from shuffle_ledger.accounting.randomizers.support_oracles import (
    BlockHadamard,
    BloomRappor,
    CountMeanSketch,
    HadamardCountMeanSketch,
    LocalHash,
    SubsetSelection,
)
from shuffle_ledger.accounting.randomizers.table import Table
from shuffle_ledger.accounting.randomizers.whole_release import WholeRelease

# By the name with which each is written.
RANDOMIZERS: Mapping[str, type[LocalRandomizer]] = {
    randomizer.kind: randomizer
    for randomizer in (
        Generic,
        KaryRandomizedResponse,
        BinaryLocalHash,
        Rappor,
        OptimizedUnaryEncoding,
        HadamardResponse,
        LocalHash,
        SubsetSelection,
        BlockHadamard,
        BloomRappor,
        CountMeanSketch,
        HadamardCountMeanSketch,
        Laplace,
        BoundedLaplace,
        Duchi,
        Piecewise,
        LocalGaussian,
        Table,
        Joint,
        Parallel,
        Declared,
        PrivacyLoss,
        Gaussian,
        DiscreteGaussian,
        CentralLaplace,
        BinomialSum,
        BinomialHistogram,
        UniformityTester,
        DistinctElements,
    )
}

__all__ = [
    "RANDOMIZERS",
    "Analysis",
    "BinaryLocalHash",
    "BinomialHistogram",
    "BinomialSum",
    "BlockHadamard",
    "BloomRappor",
    "BoundedLaplace",
    "CentralLaplace",
    "CountMeanSketch",
    "Declared",
    "DecomposedRandomizer",
    "DiscreteGaussian",
    "DistinctElements",
    "Duchi",
    "Gaussian",
    "Generic",
    "HadamardCountMeanSketch",
    "HadamardResponse",
    "Joint",
    "KaryRandomizedResponse",
    "Laplace",
    "LocalGaussian",
    "LocalHash",
    "LocalRandomizer",
    "OptimizedUnaryEncoding",
    "Parallel",
    "Piecewise",
    "PrivacyLoss",
    "Rappor",
    "SubsetSelection",
    "Table",
    "UniformityTester",
    "WholeRelease",
]
