"""Randomizers of categories: k-ary randomized response and the frequency oracles; `e` stands for
`exp(epsilon0)`."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification import witnesses
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.randomizers.base import Analysis, Bracket, OnePair

_MAXIMUM_CATEGORIES = 10**12  # of one randomizer


@dataclass(frozen=True, kw_only=True)
class KaryRandomizedResponse(OnePair):
    """k-ary randomized response: the true value with probability `e / (e + k - 1)`, any other with `1 / (e +
    k - 1)`.

    Analyses: `blanket` against an adversary who knows which other users answered at random (Su, Cheng, Wang,
    Example 4.1); `strong-adversary` against an adversary who also sees the differing user's coin (Koskela,
    Heikkila, Honkela, Definition 12); for k = 2 also `exact`, the supremum over all datasets
    (docs/theory/amplification.md, A8).
    Source: docs/theory/amplification.md, A5; docs/theory/randomizers.md, R1.
    """

    kind = "krr"

    k: int

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return (*super().analyses, "strong-adversary")

    @property
    def bit_law(self) -> BitLaw | None:
        """See `DecomposedRandomizer.bit_law`."""
        return BitLaw.of_response(self.epsilon0) if self.k == 2 else None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", validation.whole("k", self.k, 2, _MAXIMUM_CATEGORIES))

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        if name != "strong-adversary":
            return super().analysis(name)
        p = 1 / (math.exp(self.epsilon0) + self.k - 1)
        shown = math.expm1(self.epsilon0) * p  # probability of the true value by the coin, 1 - gamma
        left = (math.expm1(self.epsilon0) + (self.k - 2)) * p
        ends = np.array([1.0, 0.0])
        masses = Decomposition(ends, ends[::-1], np.full(2, p), rest=left)
        return Analysis((Bracket.exact(masses),), shown, math.inf)

    def _pair(self) -> Decomposition:
        e = math.exp(self.epsilon0)
        p = 1 / (e + self.k - 1)
        others, gap = (self.k - 2) * p, math.expm1(self.epsilon0) * p
        return Decomposition.exchanged([e * p, p, others], [p, p, others], gap=gap, rest=gap)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`."""
        return witnesses.of_response(self.k, self.epsilon0)


@dataclass(frozen=True, kw_only=True)
class FiveComponents(OnePair):
    """Frequency oracles whose outputs fall into the components `e/1`, `1/e`, `e/e`, `1/1` and a leftover.

    `domain` is the number of categories; None is the limit of many categories, which dominates every finite
    number.
    Source: Su, Cheng, Wang, Tables 2 and 3; docs/theory/randomizers.md, R2.
    """

    domain: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain is not None:
            object.__setattr__(
                self, "domain", validation.whole("domain", self.domain, 3, _MAXIMUM_CATEGORIES)
            )

    @abstractmethod
    def _masses(self) -> tuple[float, float, float]:
        """Returns `(p, q, r)`: the guaranteed mass of each component with ratio `e/1` or `1/e`, with `e/e`,
        with `1/1`."""

    def _pair(self) -> Decomposition:
        e, rise = math.exp(self.epsilon0), math.expm1(self.epsilon0)
        p, q, r = self._masses()
        a, c = [e * p, p, e * q, r], [p, p, q, r]
        return Decomposition.exchanged(a, c, gap=rise * p, rest=rise * (p + q))


def vanishing(base: float, domain: int | None, exponent_shift: int) -> float:
    """Returns `base ** (domain - exponent_shift)` for a base below 1; 0 in the limit of large domains."""
    return 0.0 if domain is None else base ** (domain - exponent_shift)


def masses_of_signs(epsilon0: float, rare: float) -> tuple[float, float, float]:
    """Returns the masses of `FiveComponents` where an output supports half of the categories, and is
    `exp(epsilon0)` times as likely if it supports the user's.

    Args:
        rare: share of the outputs by which fewer than a quarter support two categories, or neither.
    """
    e = math.exp(epsilon0)
    p, rare = 1 / (2 * (e + 1)), rare / (e + 1)
    return p, p - rare, p + e * rare


def masses_of_flipped_bits(epsilon0: float, domain: int | None) -> tuple[float, float, float]:
    """Returns `(p, q, r)` of `FiveComponents` for the unary encoding with every bit flipped with probability
    `1 / (exp(epsilon0/2) + 1)`."""
    x = math.exp(epsilon0 / 2)
    p = 1 / (x + 1) ** 2
    rare = vanishing(1 / (x + 1), domain, 0)
    return p, (p - rare) / x, x * p + x * rare


def check_matrix_order(domain: int | None, *, limit: str) -> None:
    """Raises InvalidParameter unless this is the order of a Hadamard matrix, from 4; None is the limit."""
    if domain is not None and (domain < 4 or domain & (domain - 1)):
        raise InvalidParameter(
            "domain", domain, f"a power of two from 4 on, or nothing for the limit of {limit}"
        )


@dataclass(frozen=True, kw_only=True)
class BinaryLocalHash(FiveComponents):
    """Binary local hashing with a uniformly random hash; for pairwise independent hashes leave `domain`
    out."""

    kind = "blh"

    def _masses(self) -> tuple[float, float, float]:
        return masses_of_signs(self.epsilon0, vanishing(0.5, self.domain, 1))

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; pairwise independent hashes say nothing about a third value."""
        return witnesses.of_signs(self.epsilon0, third=self.domain is not None)


@dataclass(frozen=True, kw_only=True)
class Rappor(FiveComponents):
    """Basic RAPPOR: the unary encoding with every bit flipped with probability `1 / (exp(epsilon0/2) +
    1)`."""

    kind = "rappor"

    def _masses(self) -> tuple[float, float, float]:
        return masses_of_flipped_bits(self.epsilon0, self.domain)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`."""
        x = math.exp(self.epsilon0 / 2)
        return witnesses.of_bits(1 / (x + 1), 1 / x, self.epsilon0)


@dataclass(frozen=True, kw_only=True)
class OptimizedUnaryEncoding(FiveComponents):
    """Optimized unary encoding: the user's bit kept with probability 1/2, other bits set with probability
    `1/(e + 1)`."""

    kind = "oue"

    def _masses(self) -> tuple[float, float, float]:
        e = math.exp(self.epsilon0)
        p = 1 / (2 * (e + 1))
        rare = vanishing(1 / (e + 1), self.domain, 1) / 2
        return p, (p - rare) / e, e * p + rare

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`."""
        e = math.exp(self.epsilon0)
        return witnesses.of_bits(1 / (e + 1), (1 + 1 / e) / 2, self.epsilon0)


@dataclass(frozen=True, kw_only=True)
class HadamardResponse(FiveComponents):
    """Hadamard response with a matrix of order `domain`: a power of two above the number of categories."""

    kind = "hadamard"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_matrix_order(self.domain, limit="large domains")

    def _masses(self) -> tuple[float, float, float]:
        return masses_of_signs(self.epsilon0, 0.0 if self.domain is None else 2 / self.domain)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; the values are three categories that have the first rows."""
        return witnesses.of_rows(self.epsilon0)
