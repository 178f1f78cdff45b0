"""Local randomizers: what every device runs on its own value before it reports.

A randomizer is its parameters, its local privacy, and what bounds a shuffled round of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from accounting.randomizers.base import Analysis, DecomposedRandomizer, LocalRandomizer
from accounting.randomizers.categorical import (
    BinaryLocalHash,
    HadamardResponse,
    KaryRandomizedResponse,
    OptimizedUnaryEncoding,
    Rappor,
)
from accounting.randomizers.composite import Joint, Parallel
from accounting.randomizers.declared import Declared
from accounting.randomizers.generic import Generic
from accounting.randomizers.laplace import Laplace
from accounting.randomizers.protocols import (
    BinomialHistogram,
    BinomialSum,
    DistinctElements,
    UniformityTester,
)
from accounting.randomizers.table import Table

RANDOMIZERS: Mapping[str, type[LocalRandomizer]] = {
    randomizer.kind: randomizer
    for randomizer in (
        Generic,
        KaryRandomizedResponse,
        BinaryLocalHash,
        Rappor,
        OptimizedUnaryEncoding,
        HadamardResponse,
        Laplace,
        Table,
        Joint,
        Parallel,
        Declared,
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
    "Declared",
    "DecomposedRandomizer",
    "DistinctElements",
    "Generic",
    "HadamardResponse",
    "Joint",
    "KaryRandomizedResponse",
    "Laplace",
    "LocalRandomizer",
    "OptimizedUnaryEncoding",
    "Parallel",
    "Rappor",
    "Table",
    "UniformityTester",
]
