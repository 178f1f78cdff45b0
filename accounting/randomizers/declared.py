"""Declared rounds: only an (epsilon, delta) guarantee is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import LocalRandomizer

_TINY_LOSS = 1e-9
_BEYOND = 1e-12
_RELATIONS = ("substitution", "add-remove")


@dataclass(frozen=True, kw_only=True)
class Declared(LocalRandomizer):
    """A round of which only a guarantee is known: its release is `(epsilon, delta)`-differentially private.

    Attributes:
        epsilon: the declared epsilon, from 0.
        delta: the declared delta.
        relation: which datasets the guarantee calls neighbours. Adding or removing a user once is half of
            substituting one: `add-remove` is accounted as `(2 epsilon, (1 + exp(epsilon)) delta)`.

    Its privacy without a trusted shuffler is unknown: `epsilon0` is infinite.
    Guarantee: the profile is that of randomized response with the declared parameters, which dominates every
        mechanism that has them.
    Source: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", Theorem 3.3.
    """

    kind = "declared"
    minimum_honest: ClassVar[int] = 0
    takes_participation: ClassVar[bool] = False
    silence: ClassVar[str] = "what it declares holds as it stands"

    epsilon: float
    delta: float = 0.0
    relation: str = "substitution"
    epsilon0: float = field(init=False, compare=False, default=math.inf)

    def __post_init__(self) -> None:
        expected = f"a number from 0 to {exact_text(validation.MAXIMUM_EPSILON0)}"
        epsilon = validation.real("epsilon", self.epsilon, expected)
        if not 0 <= epsilon <= validation.MAXIMUM_EPSILON0:
            raise InvalidParameter("epsilon", self.epsilon, expected)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", validation.share("delta", self.delta, zero=True))
        if str(self.relation) not in _RELATIONS:
            raise InvalidParameter("relation", self.relation, f"one of {', '.join(_RELATIONS)}")
        if self.substitution[1] >= 1:
            raise InvalidParameter("delta", self.delta, "one that leaves (1 + exp(epsilon)) delta below 1")

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("declared",)

    @property
    def substitution(self) -> tuple[float, float]:
        """Returns the guarantee (epsilon, delta) for datasets that differ in one user's data, rounded up."""
        if self.relation == "substitution":
            return self.epsilon, self.delta
        return 2 * self.epsilon, self.delta * (1 + math.exp(self.epsilon)) * (1 + 8 * UNIT_ROUND_OFF)

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        return _DeclaredProfile(*self.substitution)

    @property
    def guarantee(self) -> tuple[float, float]:
        """See `LocalRandomizer.guarantee`."""
        return self.substitution

    @property
    def exact_loss(self) -> Fraction:
        """See `LocalRandomizer.exact_loss`: the declared epsilon is the decimal that people write, so that
        ten rounds of 0.1 cost 1 and no more."""
        times = 1 if self.relation == "substitution" else 2
        return times * Fraction(repr(self.epsilon))

    def slack(self, honest: float, delta0: float) -> float:
        """See `LocalRandomizer.slack`: the declared delta is part of the profile."""
        return 0.0


class _DeclaredProfile(MechanismProfile):
    """`H_(1 + r) = delta + (1 - delta) (exp(epsilon) - 1 - r)_+ / (exp(epsilon) + 1)`."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self.largest_loss = max(epsilon, _TINY_LOSS) if delta == 0 else math.inf
        # Slightly larger, so that rounding cannot leave any of the profile beyond it.
        self.last_loss = max(epsilon * (1 + 4 * _BEYOND), _TINY_LOSS)
        self._reach = math.expm1(epsilon)
        self._delta = delta

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        gain = np.maximum(self._reach - excess, 0.0) / (self._reach + 2)
        value = self._delta + (1 - self._delta) * gain
        doubt = 16 * UNIT_ROUND_OFF
        upper = np.where(excess > self._reach * (1 + _BEYOND), self._delta, np.minimum(value + doubt, 1.0))
        return ProfileBounds(upper, np.maximum(value - doubt, self._delta))

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        return self._delta

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return True
