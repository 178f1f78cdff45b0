"""Local randomizers: what every device runs on its own value before it reports.

A randomizer here is its parameters and its decomposition (see `decomposition.py`); `e` stands for
`exp(epsilon0)`.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from accounting import checks
from accounting.decomposition import Decomposition
from accounting.errors import InvalidParameter

_MAXIMUM_CATEGORIES = 10**12


class Analysis(NamedTuple):
    """How a round of a randomizer is bounded.

    The hockey-stick divergence at order `1 + excess >= 1` is at most `weight` times that of the blanket pair
    of `decomposition`, and exactly 0 at losses of `largest_loss` and beyond.
    """

    decomposition: Decomposition
    weight: float
    largest_loss: float


@dataclass(frozen=True, kw_only=True)
class LocalRandomizer(ABC):
    """A local randomizer with pure local privacy `epsilon0`.

    Subclasses are frozen values; their constructors raise `InvalidParameter`.
    """

    kind: ClassVar[str]
    analyses: ClassVar[tuple[str, ...]] = ("blanket",)  # the default one first

    epsilon0: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon0", checks.local_epsilon(self.epsilon0))

    @abstractmethod
    def analysis(self, name: str) -> Analysis:
        """The bound called `name`, one of `analyses`."""

    def to_mapping(self) -> dict[str, object]:
        """The JSON form: `kind` and the parameters that were given."""
        parameters = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"kind": self.kind, **{name: value for name, value in parameters.items() if value is not None}}

    def describe(self) -> str:
        """The call that writes this randomizer, such as `krr(epsilon0=1.0, k=10)`."""
        parameters = {name: value for name, value in self.to_mapping().items() if name != "kind"}
        return f"{self.kind}({', '.join(f'{name}={_plain(value)}' for name, value in parameters.items())})"


def _plain(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


@dataclass(frozen=True, kw_only=True)
class Generic(LocalRandomizer):
    """Any epsilon0-LDP randomizer, the same on every device.

    Analyses: `clone` is the published pair (Feldman, McMillan, Talwar, Theorem 3.2); `tight` the smallest
    bound that decompositions can give for all of them (docs/theory.md, Lemma 1), valid up to the loss
    epsilon0, where delta is 0.
    """

    kind = "generic"
    analyses = ("tight", "clone")

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        e = math.exp(self.epsilon0)
        hidden = 1 / (1 + e) if name == "tight" else 1 / (2 * e)
        ends = np.array([e, 1.0]) / (1 + e)
        gap = math.tanh(self.epsilon0 / 2)
        masses = Decomposition(ends, ends[::-1], np.full(2, hidden), np.array([gap, -gap]))
        return Analysis(masses, 1.0, self.epsilon0)


@dataclass(frozen=True, kw_only=True)
class KaryRandomizedResponse(LocalRandomizer):
    """k-ary randomized response: the true value with probability `e / (e + k - 1)`, any other with `1 / (e +
    k - 1)`.

    Analyses: `blanket` against an adversary who knows which other users answered at random (Su, Cheng, Wang,
    Example 4.1); `strong-adversary` against one who also sees the differing user's coin (Koskela, Heikkila,
    Honkela, Definition 12).
    """

    kind = "krr"
    analyses = ("blanket", "strong-adversary")

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", checks.whole("k", self.k, 2, _MAXIMUM_CATEGORIES))

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        e = math.exp(self.epsilon0)
        p = 1 / (e + self.k - 1)
        if name == "strong-adversary":
            shown = math.expm1(self.epsilon0) * p  # probability of the true value by the coin, 1 - gamma
            ends = np.array([1.0, 0.0])
            return Analysis(Decomposition(ends, ends[::-1], np.full(2, p)), shown, math.inf)
        others, gap = (self.k - 2) * p, math.expm1(self.epsilon0) * p
        a, c = np.array([e * p, p, others]), np.array([p, p, others])
        masses = Decomposition(a, a[[1, 0, 2]], c, np.array([gap, -gap, 0.0]))
        return Analysis(masses, 1.0, self.epsilon0)


@dataclass(frozen=True, kw_only=True)
class _FiveComponents(LocalRandomizer):
    """Frequency oracles whose outputs fall into the components `e/1`, `1/e`, `e/e`, `1/1` and a leftover.

    `domain` is the number of categories, None the limit of many, which dominates every finite number.
    Source: Su, Cheng, Wang, Tables 2 and 3 (Hadamard response corrected: docs/theory.md).
    """

    domain: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain is not None:
            object.__setattr__(self, "domain", checks.whole("domain", self.domain, 3, _MAXIMUM_CATEGORIES))

    @abstractmethod
    def _masses(self) -> tuple[float, float, float]:
        """`(p, q, r)`: guaranteed mass of the components with ratios `e/1` and `1/e`, with `e/e`, with
        `1/1`."""

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        e = math.exp(self.epsilon0)
        p, q, r = self._masses()
        a, gap = np.array([e * p, p, e * q, r]), math.expm1(self.epsilon0) * p
        masses = Decomposition(a, a[[1, 0, 2, 3]], np.array([p, p, q, r]), np.array([gap, -gap, 0.0, 0.0]))
        return Analysis(masses, 1.0, self.epsilon0)


def _vanishing(base: float, domain: int | None, exponent_shift: int) -> float:
    """`base ** (domain - exponent_shift)` for a base below 1, 0 in the limit of large domains."""
    return 0.0 if domain is None else base ** (domain - exponent_shift)


@dataclass(frozen=True, kw_only=True)
class BinaryLocalHash(_FiveComponents):
    """Binary local hashing with a uniformly random hash; for pairwise independent hashes leave `domain`
    out."""

    kind = "blh"

    def _masses(self) -> tuple[float, float, float]:
        e = math.exp(self.epsilon0)
        p = 1 / (2 * (e + 1))
        rare = _vanishing(0.5, self.domain, 1) / (e + 1)
        return p, p - rare, p + e * rare


@dataclass(frozen=True, kw_only=True)
class Rappor(_FiveComponents):
    """Basic RAPPOR: the unary encoding with every bit flipped with probability `1 / (exp(epsilon0/2) +
    1)`."""

    kind = "rappor"

    def _masses(self) -> tuple[float, float, float]:
        x = math.exp(self.epsilon0 / 2)
        p = 1 / (x + 1) ** 2
        rare = _vanishing(1 / (x + 1), self.domain, 0)
        return p, (p - rare) / x, x * p + x * rare


@dataclass(frozen=True, kw_only=True)
class OptimizedUnaryEncoding(_FiveComponents):
    """Optimized unary encoding: the user's bit kept with probability 1/2, other bits set with probability
    `1/(e + 1)`."""

    kind = "oue"

    def _masses(self) -> tuple[float, float, float]:
        e = math.exp(self.epsilon0)
        p = 1 / (2 * (e + 1))
        rare = _vanishing(1 / (e + 1), self.domain, 1) / 2
        return p, (p - rare) / e, e * p + rare


@dataclass(frozen=True, kw_only=True)
class HadamardResponse(_FiveComponents):
    """Hadamard response with a matrix of order `domain`: a power of two above the number of categories."""

    kind = "hadamard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain is not None and (self.domain < 4 or self.domain & (self.domain - 1)):
            raise InvalidParameter(
                "domain", self.domain, "a power of two from 4 on, or nothing for the limit of large domains"
            )

    def _masses(self) -> tuple[float, float, float]:
        e = math.exp(self.epsilon0)
        p = 1 / (2 * (e + 1))
        rare = 0.0 if self.domain is None else 2 / (self.domain * (e + 1))
        return p, p - rare, p + e * rare


RANDOMIZERS: Mapping[str, type[LocalRandomizer]] = {
    randomizer.kind: randomizer
    for randomizer in (
        Generic,
        KaryRandomizedResponse,
        BinaryLocalHash,
        Rappor,
        OptimizedUnaryEncoding,
        HadamardResponse,
    )
}
