"""Protocols in which all users contribute to common noise; each is bounded by its exact pair.

Without the shuffler a single report hides little or nothing. Only the noise of honest users counts. The pairs
are exact, in both directions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.noise_pairs import (
    Pair,
    coarsened,
    losses_for,
    multiplied,
    shifted_binomial,
    shifted_poisson,
)
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile, PairProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNDERFLOW, UNIT_ROUND_OFF
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import LocalRandomizer

_MAXIMUM_BITS = 10**6  # of noise, of one user
_MINIMUM_NOISE, _MAXIMUM_NOISE = 1e-12, 1e6  # mean messages of one user for one label
_MAXIMUM_SECURITY = 1000.0  # bits
_MINIMUM_BIAS = 1e-13  # least p of distinct elements


@dataclass(frozen=True, kw_only=True)
class _NoiseProtocol(LocalRandomizer):
    """A protocol in which every user adds noise, and the noise of all honest users together hides each of
    them."""

    takes_participation: ClassVar[bool] = False

    epsilon0: float = field(init=False, compare=False, default=math.inf)

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("exact",)

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        return PairProfile(
            lambda honest: self.pairs(honest, outcomes, up=True),
            lambda honest: self.pairs(honest, outcomes, up=False),
        )

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """See `LocalRandomizer.attained`. The pairs are exact, and all others may hold the second value: a
        sample without the differing user then has the same law as one with the user's second value."""
        return (self,)

    @abstractmethod
    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """Returns pairs above (`up`) or below the protocol's with `honest` honest users, one for each
        direction unless both are equal. A product of two has at most about `outcomes` outcomes."""

    def slack(self, honest: float, delta0: float) -> float:
        """See `LocalRandomizer.slack`."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class BinomialSum(_NoiseProtocol):
    """A count of bits: every user sends the bit in clear and `bits` more, each 1 with probability `p`.

    The shuffler reveals the number of ones: the true count plus `Bin(honest * bits, p)`.

    Guarantee: the pair `1 + Bin` against `Bin` is the protocol's own, taken in the worse direction at every
        order; counts that only one input can make have infinite loss.
    Source: Balcer, Cheu, Joseph, Mao, Lemma 2.4 and Claim A.5, which bound the same pair;
        docs/theory/randomizers.md, R16.
    """

    kind = "binomial_sum"
    noise_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "p": (validation.MINIMUM_PROBABILITY, 0.5),
        "bits": (1, _MAXIMUM_BITS),
    }

    p: float = 0.5
    bits: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", validation.probability("p", self.p))
        if self.p < validation.MINIMUM_PROBABILITY:
            expected = f"a probability from {exact_text(validation.MINIMUM_PROBABILITY)} to below 1"
            raise InvalidParameter("p", self.p, expected)
        object.__setattr__(self, "bits", validation.whole("bits", self.bits, 1, _MAXIMUM_BITS))

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`; both sides are the exact pair."""
        trials = honest * self.bits
        return [shifted_binomial(trials, self.p, up=True), shifted_binomial(trials, self.p, up=False)]

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """See `LocalRandomizer.attained`. The others hold one fixed value, whatever the number of them in the
        sample."""
        directions = (_OneMore, _OneLess) if sampled else (BinomialSum,)
        return tuple(one(p=self.p, bits=self.bits) for one in directions)


class _OneMore(BinomialSum):
    """The output of a sample if all other users hold 0."""

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`."""
        return super().pairs(honest, outcomes, up=up)[:1]


class _OneLess(BinomialSum):
    """The output of a sample if all other users hold 1."""

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`."""
        return super().pairs(honest, outcomes, up=up)[1:]


@dataclass(frozen=True, kw_only=True)
class BinomialHistogram(BinomialSum):
    """A histogram: every user sends its category in clear and, for each category, `bits` noise messages, each
    present with probability `p`.

    A user who changes category moves two counts, one up and one down.

    Guarantee: the pair is the product of `1 + Bin` against `Bin` and of `Bin` against `1 + Bin`.
    Source: as for `binomial_sum`; docs/theory/randomizers.md, R16.
    """

    kind = "binomial_histogram"

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`."""
        losses = losses_for(outcomes)
        ways = super().pairs(honest, outcomes, up=up)
        return [multiplied(*(coarsened(one, losses, up=up) for one in ways))]

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """See `LocalRandomizer.attained`. The pair is symmetric."""
        return (self,)


@dataclass(frozen=True, kw_only=True)
class UniformityTester(_NoiseProtocol):
    """The noisy counts behind a uniformity test: for each label a bit in clear, whether it is the user's, and
    `Pois(noise)` more messages with fair bits.

    `noise` is the mean number of noise messages of one user for one label.

    Guarantee: of each of the two labels that a substitution concerns, the shuffler reveals `(A + 1, C - A)`
        against `(A, C - A + 1)`, with C Poisson of mean `honest * noise` and A binomial of C fair coins.
    Source: Balcer, Cheu, Joseph, Mao, Theorem 4.2; docs/theory/randomizers.md, R17.
    """

    kind = "uniformity_tester"
    noise_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"noise": (_MINIMUM_NOISE, _MAXIMUM_NOISE)}

    noise: float

    def __post_init__(self) -> None:
        noise = validation.between("noise", self.noise, _MINIMUM_NOISE, _MAXIMUM_NOISE)
        object.__setattr__(self, "noise", noise)

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`.

        The noise's ones and zeros are independent Poisson counts of half the mean each: one gains a message,
        the other loses one. The other label is the same, with ones for zeros.
        """
        losses, mean = losses_for(outcomes), Fraction(self.noise) * honest / 2
        ways = (coarsened(shifted_poisson(mean, up=way), losses, up=up) for way in (True, False))
        label = coarsened(multiplied(*ways), losses, up=up)
        return [multiplied(label, label)]


@dataclass(frozen=True, kw_only=True)
class DistinctElements(_NoiseProtocol):
    """Counting distinct elements: for each label every user adds a bit modulo 2, a fair one for its own
    label, else 1 with probability `p`, in shares that the shuffler mixes.

    `p` is the protocol's `(1 - (1 - exp(-epsilon))^(1/n)) / 2` for the n users it was made for. The shares
    hide all but the sum up to a total variation distance of `2^-security` a label, which is charged as slack.

    Guarantee: of the two labels that a substitution concerns, the sums are a fair bit and one that is 1 with
        probability `(1 - (1 - 2p)^honest) / 2`, or the other way round. It takes two honest users.
    Source: Balcer, Cheu, Joseph, Mao, Theorems 3.2 and 3.3, Lemma 3.5; docs/theory/randomizers.md, R18.
    """

    kind = "distinct_elements"
    minimum_honest: ClassVar[int] = 2
    noise_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"p": (_MINIMUM_BIAS, 0.5)}

    p: float
    security: float = 128.0

    def __post_init__(self) -> None:
        p = validation.probability("p", self.p)
        object.__setattr__(self, "p", validation.between("p", p, _MINIMUM_BIAS, 0.5, of="a probability"))
        bits = "a number of bits"
        security = validation.between("security", self.security, 1.0, _MAXIMUM_SECURITY, of=bits)
        object.__setattr__(self, "security", security)
        local = math.log1p(-self.p) - math.log(self.p)
        object.__setattr__(self, "epsilon0", local * (1 + 8 * UNIT_ROUND_OFF))

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """See `LocalRandomizer.attained`."""
        return (_OneLabel(p=self.p, security=self.security) if sampled else self,)

    def slack(self, honest: float, delta0: float) -> float:
        """See `LocalRandomizer.slack`: two labels."""
        return 2 * math.exp2(-self.security) * (1 + 8 * UNIT_ROUND_OFF)

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`."""
        if honest < self.minimum_honest:
            return [Pair(np.ones(1), -np.ones(1), 1.0, 0.0, 0.0)]  # reveals everything
        label, s = self._fair_against_biased(honest)
        other = Pair(np.full(2, 0.5), np.array([s, -s]), 0.0, 0.0, label.relative_error, label.ratio_error)
        return [multiplied(label, other)]

    def _fair_against_biased(self, honest: int) -> tuple[Pair, float]:
        """Returns the pair of a fair bit against the sum of a label that no user holds, and the bias s of
        that sum."""
        # Its probability of 0 is (1 + s)/2, of 1 is (1 - s)/2, with s = (1 - 2p)^honest.
        log_power = honest * math.log1p(-2 * self.p) if self.p < 0.5 else -math.inf
        s, rest = math.exp(log_power), -math.expm1(log_power)
        error = 64 * UNIT_ROUND_OFF * (1 + min(abs(log_power), 1000.0))
        q, x = np.array([(1 + s) / 2, rest / 2]), np.array([-s / (1 + s), s / rest])
        return Pair(q, x, 0.0, UNDERFLOW if self.p < 0.5 else 0.0, error, error), s


class _OneLabel(DistinctElements):
    """The output of a sample if all other users hold the second label: only the first label's sum varies.

    In a sample without the differing user the second label's sum is fair as well, so the two samples differ
    in the first label only.
    """

    def pairs(self, honest: int, outcomes: int, *, up: bool) -> list[Pair]:
        """See `_NoiseProtocol.pairs`; one honest user is enough."""
        return [self._fair_against_biased(honest)[0]]
