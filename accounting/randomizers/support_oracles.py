"""More frequency oracles of which every output supports some values: hashes, subsets, blocks, sketches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification import witnesses
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.randomizers.base import (
    Bracket,
    Components,
    DecomposedRandomizer,
)
from shuffle_ledger.accounting.randomizers.frequency_oracles import (
    FiveComponents,
    check_matrix_order,
    masses_of_flipped_bits,
    masses_of_signs,
    vanishing,
)

# Limits of parameters: blocks (the largest number that is chosen if it is left out), hash values, hash
# functions, and the probability of a flipped bit.
_MAXIMUM_BLOCKS = 2**40
_MAXIMUM_G = 2 * 10**13
_MAXIMUM_HASHES = 8
_MINIMUM_FLIP = 1e-9


def _required(domain: int | None, kind: str) -> int:
    if domain is None:
        raise InvalidParameter("domain", None, f"the number of categories of {kind}, from 3 on")
    return domain


@dataclass(frozen=True, kw_only=True)
class LocalHash(FiveComponents):
    """Local hashing: a random hash maps the categories to `g` values, and the value's hash is reported by
    g-ary randomized response.

    Attributes:
        g: number of hash values, from 2; left out it is the whole number next to `exp(epsilon0) + 1`,
            which has the least error.
        domain: number of categories where the hash is uniformly random among all functions; left out it
            may be any family of pairwise independent hashes.

    Source: Wang, Blocki, Li, Jha, "Locally Differentially Private Protocols for Frequency Estimation",
        section 4.4; the masses: docs/theory/randomizers.md, R2.
    """

    kind = "olh"

    g: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = round(math.exp(self.epsilon0)) + 1 if self.g is None else self.g
        object.__setattr__(self, "g", validation.whole("g", given, 2, _MAXIMUM_G))

    @property
    def hashes_to(self) -> int:
        """Returns the number of hash values."""
        return int(self.g or 0)

    def _masses(self) -> tuple[float, float, float]:
        e, g = math.exp(self.epsilon0), self.hashes_to
        every = 1 / (e + g - 1)
        rare = vanishing(1 / g, self.domain, 1) * every
        others = (g - 1) / g
        return others * every, every / g - rare, others * (g - 1) * every + e * rare

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; pairwise independent hashes say nothing about a third value."""
        g = self.hashes_to
        every = g / (math.exp(self.epsilon0) + g - 1)
        return witnesses.of_supports(
            [every * (1 / g) ** ones * ((g - 1) / g) ** (3 - ones) for ones in range(4)],
            self.epsilon0,
            third=self.domain is not None,
        )


@dataclass(frozen=True, kw_only=True)
class SubsetSelection(FiveComponents):
    """Subset selection: a subset of `size` categories is reported, `e` times as likely if it has the true
    one.

    Attributes:
        domain: number of categories, from 3, no default.
        size: from 1 to below `domain`; left out it is the whole number next to `domain / (exp(epsilon0) +
            1)`, at least 1, which has the least error.

    Source: Ye and Barg, "Optimal Schemes for Discrete Distribution Estimation under Locally Differential
        Privacy"; Wang et al., "Mutual Information Optimally Local Private Discrete Distribution
        Estimation"; the masses: docs/theory/randomizers.md, R2.
    """

    kind = "subset"

    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        domain = _required(self.domain, self.kind)
        best = min(max(round(domain / (math.exp(self.epsilon0) + 1)), 1), domain - 1)
        size = validation.whole("size", best if self.size is None else self.size, 1, domain - 1)
        object.__setattr__(self, "size", size)

    @property
    def counts(self) -> tuple[int, int]:
        """Returns the number of categories, and the number of categories in a report."""
        return int(self.domain or 0), int(self.size or 0)

    def _masses(self) -> tuple[float, float, float]:
        k, d = self.counts
        every = 1 / ((k - 1) * (math.exp(self.epsilon0) * d + (k - d)))
        return d * (k - d) * every, d * (d - 1) * every, (k - d) * (k - d - 1) * every

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`."""
        k, d = self.counts
        every = 1 / ((k - 1) * (k - 2) * (math.exp(self.epsilon0) * d + (k - d)))
        falls = [math.prod(range(d - ones + 1, d + 1)) for ones in range(4)]
        rests = [math.prod(range(k - d - zeros + 1, k - d + 1)) for zeros in range(4)]
        masses = [every * max(falls[ones], 0) * max(rests[3 - ones], 0) for ones in range(4)]
        return witnesses.of_supports(masses, self.epsilon0, third=True)


@dataclass(frozen=True, kw_only=True)
class BlockHadamard(FiveComponents):
    """Hadamard response in blocks: a value belongs to one of `blocks` blocks of outputs, and half of its
    block, where its row of a Hadamard matrix is positive, is `e` times as likely as all other outputs.

    Attributes:
        domain: number of categories, from 3, no default.
        blocks: a power of two; left out it is `2^(ceil(log2(min(exp(epsilon0), 2 domain))) - 1)`, at which
            the error is optimal up to a constant.

    Source: Acharya, Sun, Zhang, "Hadamard Response: Estimating Distributions Privately, Efficiently, and with
        Little Communication", section 5; the worst pair: docs/theory/randomizers.md, R3.
    """

    kind = "block_hadamard"

    blocks: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        domain = _required(self.domain, self.kind)
        widest = math.ceil(math.log2(min(math.exp(self.epsilon0), 2 * domain)))
        blocks = 2 ** max(widest - 1, 0) if self.blocks is None else self.blocks
        blocks = validation.whole("blocks", blocks, 1, _MAXIMUM_BLOCKS)
        if blocks & (blocks - 1):
            raise InvalidParameter("blocks", self.blocks, "a power of two")
        object.__setattr__(self, "blocks", blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the number of blocks, and the number of outputs in each: a power of two above its
        categories."""
        blocks = int(self.blocks or 0)
        columns = -(-int(self.domain or 0) // blocks)
        return blocks, 1 << columns.bit_length()

    def _masses(self) -> tuple[float, float, float]:
        e, (blocks, outputs) = math.exp(self.epsilon0), self.shape
        every = 1 / (e + 2 * blocks - 1)
        if blocks > 1:  # two values of different blocks
            return every, 0.0, (2 * blocks - 2) * every
        rare = 2 * every / outputs  # the one output that every row of the matrix is positive at
        return every / 2, every / 2 - rare, every / 2 + e * rare

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`: two values of different blocks. The others hold a value of a
        third block if the categories fill three, and one of the first block if there are two blocks. In one
        block this is Hadamard response, of which categories have the first rows."""
        blocks, outputs = self.shape
        filled = -(-int(self.domain or 0) // (outputs - 1))
        if blocks == 1:
            return witnesses.of_rows(self.epsilon0)
        if blocks == 2 and filled == 2:
            return witnesses.of_two_blocks(self.epsilon0)
        return witnesses.of_response(2 * blocks, self.epsilon0, third=filled > 2) if filled > 1 else ()


@dataclass(frozen=True, kw_only=True)
class _Sketch(FiveComponents):
    """A sketch of Apple's: one of several public hashes is drawn, and the value's place among `domain`
    places is reported. The hash that was drawn is part of the report.

    Nothing is assumed of the hashes: values that collide only reveal less.
    """

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`: none, for values may collide under the hashes."""
        return ()


@dataclass(frozen=True, kw_only=True)
class CountMeanSketch(_Sketch):
    """The count mean sketch: the bits of the value's place among `domain`, each flipped with probability
    `1 / (exp(epsilon0/2) + 1)`.

    Source: Apple, "Learning with Privacy at Scale", Algorithm 1; given the hash it is basic RAPPOR.
    """

    kind = "cms"

    def _masses(self) -> tuple[float, float, float]:
        return masses_of_flipped_bits(self.epsilon0, self.domain)


@dataclass(frozen=True, kw_only=True)
class HadamardCountMeanSketch(_Sketch):
    """The Hadamard count mean sketch: one bit, that of a random row of the Hadamard matrix of order
    `domain` at the value's place, flipped with probability `1 / (exp(epsilon0) + 1)`; the row is part of
    the report.

    Source: Apple, "Learning with Privacy at Scale", Algorithm 4.
    """

    kind = "hcms"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_matrix_order(self.domain, limit="wide sketches")

    def _masses(self) -> tuple[float, float, float]:
        # The row that is positive everywhere is drawn with probability `1 / domain`.
        return masses_of_signs(self.epsilon0, 0.0 if self.domain is None else 1 / self.domain)


@dataclass(frozen=True, kw_only=True)
class BloomRappor(DecomposedRandomizer):
    """RAPPOR on a Bloom filter: a value sets the bits of `hashes` hash functions, and every bit is
    randomized.

    Attributes:
        epsilon0: of one report: `hashes * log(q (1 - p) / (p (1 - q)))`, where a bit that the value sets
            is reported as 1 with probability q, any other with probability p. Of the permanent response
            with parameter f, where `p = f/2 = 1 - q`, it is `2 hashes log((1 - f/2) / (f/2))`.
        hashes: from 1 to 8, default 2.
        flip: p, between 0 and 1; left out it is `1 - q`: bits are flipped alike.

    Guarantee: the bound holds for all hash functions, filters of any size and values that share bits.
    Source: Erlingsson, Pihur, Korolova, "RAPPOR: Randomized Aggregatable Privacy-Preserving Ordinal
        Response", Theorems 1 and 2; the worst pair: docs/theory/randomizers.md, R4.
    """

    kind = "bloom_rappor"

    hashes: int = 2
    flip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hashes", validation.whole("hashes", self.hashes, 1, _MAXIMUM_HASHES))
        if self.flip is not None:
            flip = validation.probability("flip", self.flip)
            if not _MINIMUM_FLIP <= flip <= 1 - _MINIMUM_FLIP:
                raise InvalidParameter("flip", self.flip, "a probability from 1e-9 to 1 - 1e-9")
            object.__setattr__(self, "flip", flip)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: by how many bits of either value are reported as 1."""
        bit, hashes = self.epsilon0 / self.hashes, self.hashes
        flip = scipy.special.expit(-bit / 2) if self.flip is None else self.flip
        ones = np.arange(hashes + 1)
        masses = scipy.special.comb(hashes, ones) * flip**ones * (1 - flip) ** (hashes - ones)
        log_hidden = -hashes * math.log1p(flip * math.expm1(bit))
        c = math.exp(log_hidden) * np.multiply.outer(masses, masses).ravel()
        own, others = (one.ravel() for one in np.meshgrid(ones, ones, indexing="ij"))
        a, b = c * np.exp(bit * own), c * np.exp(bit * others)
        difference = b * np.expm1(bit * (own - others))
        pair = Decomposition(a / a.sum(), b / b.sum(), c, difference, rest=-math.expm1(log_hidden))
        return Components((Bracket.exact(pair),), ())
