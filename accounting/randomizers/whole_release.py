"""The base class and the profiles of releases whose privacy does not depend on the number of users."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence
from shuffle_ledger.accounting.randomizers.base import LocalRandomizer

_RELATIONS = ("substitution", "add-remove")  # of neighbouring datasets
_ROUND_OFF = 8 * UNIT_ROUND_OFF  # relative, of a few products and sums
# Relative distance beyond a largest loss within which a profile may not be 0 yet, because orders are rounded.
LOSS_ROUND_OFF = 1e-12


@dataclass(frozen=True, kw_only=True)
class WholeRelease(LocalRandomizer):
    """A release that is private as a whole. The privacy of single reports is unknown: `epsilon0` is
    infinite."""

    minimum_honest: ClassVar[int] = 0
    takes_participation: ClassVar[bool] = False
    silence: ClassVar[str] = "what it declares holds as it stands"

    epsilon0: float = field(init=False, compare=False, default=math.inf)

    @abstractmethod
    def covers(self, other: WholeRelease) -> bool:
        """Returns True only if this release's pair dominates the other one's, by a rule without numbers."""

    @property
    def gaussian_mu(self) -> float:
        """Returns an upper bound on the mu of Gaussian differential privacy; infinite if none is known."""
        return math.inf

    def renyi_bound(self, order: float) -> float:
        """Returns an upper bound on the Renyi divergence of an order above 0, in nats, in both directions;
        infinite if none is known."""
        if self.gaussian_mu == math.inf:
            return math.inf
        return order * self.gaussian_mu**2 / 2 * (1 + _ROUND_OFF)

    @property
    def finite_loss(self) -> Fraction | None:
        """Returns an exact upper bound on all finite privacy losses; None if none is known."""
        return None

    def slack(self, honest: float, delta0: float) -> float:
        """See `LocalRandomizer.slack`."""
        return 0.0


def checked_relation(value: object) -> str:
    """Returns the relation of neighbours of a guarantee.

    Raises:
        InvalidParameter: it is not one of the two.
    """
    if str(value) not in _RELATIONS:
        raise InvalidParameter("relation", value, f"one of {', '.join(_RELATIONS)}")
    return str(value)


class ReleaseProfile(MechanismProfile):
    """The profile `H_a = delta + (1 - delta) H'_a`, for any number of users: everything is revealed with
    probability delta.

    Args:
        pure: bounds on H' at the orders `1 + excess`.
        delta: probability of revealing everything.
        largest_loss: loss beyond which H' is exactly 0; may be infinite.
        last_loss: loss beyond which H' is constant, None if that is not known.
        infinity: lower bound on H' at all orders.
    """

    def __init__(
        self,
        pure: Callable[[FloatArray], ProfileBounds],
        *,
        delta: float,
        largest_loss: float = math.inf,
        last_loss: float | None = None,
        infinity: float = 0.0,
    ) -> None:
        self.largest_loss = math.inf if delta else largest_loss
        self.last_loss = last_loss
        self._pure, self._delta = pure, delta
        self._infinity = max((delta + (1 - delta) * infinity) * (1 - _ROUND_OFF), 0.0)

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        upper, lower = self._pure(excess)
        if self._delta:
            upper = (self._delta + (1 - self._delta) * upper) * (1 + _ROUND_OFF)
            lower = (self._delta + (1 - self._delta) * lower) * (1 - _ROUND_OFF)
        return ProfileBounds(np.minimum(upper, 1.0), np.maximum(lower, self._infinity))

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        return self._infinity

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return True


def gaussian_profile(mu: float, delta: float = 0.0) -> ReleaseProfile:
    """Returns the profile of `N(mu, 1)` against `N(0, 1)`."""

    def pure(excess: FloatArray) -> ProfileBounds:
        lower, upper = gaussian_divergence(mu, np.log1p(excess))
        return ProfileBounds(upper, lower)

    return ReleaseProfile(pure, delta=delta)


def laplace_profile(epsilon: float) -> ReleaseProfile:
    """Returns the profile of Laplace laws `epsilon` scales apart: `1 - exp((x - epsilon)/2)` at the loss
    x."""

    def pure(excess: FloatArray) -> ProfileBounds:
        losses = np.log1p(excess)
        value = -np.expm1(np.minimum(losses - epsilon, 0.0) / 2)
        doubt = _ROUND_OFF * (value + epsilon)
        upper = np.where(losses > epsilon * (1 + LOSS_ROUND_OFF), 0.0, np.minimum(value + doubt, 1.0))
        return ProfileBounds(upper, np.maximum(value - doubt, 0.0))

    return ReleaseProfile(pure, delta=0.0, largest_loss=epsilon, last_loss=epsilon * (1 + 4 * LOSS_ROUND_OFF))
