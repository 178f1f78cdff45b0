"""Declared rounds: only a guarantee is known, stated by epsilon, rho, mu or Renyi divergences, and by
delta."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.renyi_conversion import linear_curve, profile_of_renyi_bounds
from shuffle_ledger.accounting.randomizers.base import plain
from shuffle_ledger.accounting.randomizers.whole_release import (
    LOSS_ROUND_OFF,
    ReleaseProfile,
    WholeRelease,
    checked_relation,
    gaussian_profile,
)

# Least loss of the lattice, for an epsilon of 0.
_LEAST_LOSS = 1e-9
_ROUND_UP = 1 + 8 * UNIT_ROUND_OFF  # factor for the round-off of a few operations
# Largest epsilon of a substitution: losses beyond 120 nats count as infinite.
_MAXIMUM_EPSILON = 120.0
# Limits of rho and mu for a substitution. Larger ones give no epsilon below 100.
_MINIMUM_RHO, _MAXIMUM_RHO = 1e-12, 50.0
MINIMUM_MU, MAXIMUM_MU = 1e-6, 10.0
# Limits of a Renyi curve: number of orders, orders, and divergences in nats.
_MAXIMUM_ORDERS = 256
_MINIMUM_ORDER, _MAXIMUM_ORDER = 1.0001, 1e6
_MINIMUM_DIVERGENCE, _MAXIMUM_DIVERGENCE = 1e-12, 1e3
_MEASURES = ("epsilon", "rho", "mu", "renyi")


@dataclass(frozen=True, kw_only=True)
class Declared(WholeRelease):
    """A round of which only a guarantee is known, by one of four measures.

    Attributes:
        epsilon: differential privacy: the release is `(epsilon, delta)`-private.
        rho: zero-concentrated privacy: Renyi divergences of every order a > 1 are at most `rho a`.
        mu: Gaussian privacy: the pair `N(mu, 1)` against `N(0, 1)` dominates the release.
        renyi: pairs of an order above 1 and the largest Renyi divergence of that order, in nats.
        delta: the declared delta; with `rho`, `mu` and `renyi` the guarantee is that of a release that
            reveals everything with this probability, and otherwise has the declared privacy.
        relation: which datasets the guarantee calls neighbours. Adding or removing a user once is half of
            substituting one: `add-remove` is accounted as `(2 epsilon, (1 + exp(epsilon)) delta)`, `4 rho`,
            `2 mu`, and of a Renyi curve by the triangle inequality.

    Exactly one of the four measures is given. No guarantee without a trusted shuffler is known: `epsilon0` is
    infinite.

    Guarantee: the profile is at least that of every mechanism with the guarantee. For `epsilon` and `mu` it
    is attained,
        by randomized response and by Gaussian noise. For Renyi divergences it is the smallest one with that
        property, up to the finite number of orders and chords.
    Source: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", Theorem 3.3; Bun and
        Steinke, "Concentrated Differential Privacy", Proposition 1.9; Dong, Roth, Su, "Gaussian Differential
        Privacy"; Mironov, "Renyi Differential Privacy", Proposition 11;
        docs/theory/randomizers.md, R20; docs/theory/pld.md, P10.
    """

    kind = "declared"

    epsilon: float | None = None
    delta: float = 0.0
    relation: str = "substitution"
    rho: float | None = None
    mu: float | None = None
    renyi: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        given = [name for name in _MEASURES if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidParameter("declared", given, f"exactly one of {', '.join(_MEASURES)}")
        object.__setattr__(self, "relation", checked_relation(self.relation))
        object.__setattr__(self, "delta", validation.share("delta", self.delta, zero=True))
        object.__setattr__(self, given[0], getattr(self, f"_checked_{given[0]}")())
        if self.epsilon is None:
            if self.delta > 0 and self.relation != "substitution":
                expected = f"0 for {given[0]} and add-remove: declare the guarantee of a substitution"
                raise InvalidParameter("delta", self.delta, expected)
        elif self.substitution[1] >= 1:
            raise InvalidParameter("delta", self.delta, "one that leaves (1 + exp(epsilon)) delta below 1")

    @property
    def _is_doubled(self) -> bool:
        return self.relation == "add-remove"

    def _checked_epsilon(self) -> float:
        most = _MAXIMUM_EPSILON / 2 if self._is_doubled else _MAXIMUM_EPSILON
        return validation.between("epsilon", self.epsilon, 0.0, most)

    def _checked_rho(self) -> float:
        return validation.between(
            "rho", self.rho, _MINIMUM_RHO, _MAXIMUM_RHO / 4 if self._is_doubled else _MAXIMUM_RHO
        )

    def _checked_mu(self) -> float:
        return validation.between(
            "mu", self.mu, MINIMUM_MU, MAXIMUM_MU / 2 if self._is_doubled else MAXIMUM_MU
        )

    def _checked_renyi(self) -> tuple[tuple[float, float], ...]:
        expected = f"1 to {_MAXIMUM_ORDERS} pairs of an order and a divergence, such as [[2, 0.1], [8, 0.5]]"
        listed: object = self.renyi
        if not isinstance(listed, list | tuple) or not 1 <= len(listed) <= _MAXIMUM_ORDERS:
            raise InvalidParameter("renyi", listed, expected)
        found: dict[float, float] = {}
        for place, pair in enumerate(listed):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise InvalidParameter(f"renyi[{place}]", pair, "an order and a divergence")
            order = validation.between(f"renyi[{place}][0]", pair[0], _MINIMUM_ORDER, _MAXIMUM_ORDER)
            if order in found:
                raise InvalidParameter(f"renyi[{place}][0]", pair[0], "every order once")
            found[order] = validation.between(
                f"renyi[{place}][1]", pair[1], _MINIMUM_DIVERGENCE, _MAXIMUM_DIVERGENCE
            )
        if self._is_doubled and max(found) <= 2 * _MINIMUM_ORDER:
            expected = "an order above 2.0002 for add-remove, whose half is above 1"
            raise InvalidParameter("renyi", listed, expected)
        return tuple(sorted(found.items()))

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("declared",)

    @property
    def substitution(self) -> tuple[float, float]:
        """Returns the declared epsilon and delta for datasets that differ in one user's data, rounded up; the
        epsilon is infinite if another measure is declared."""
        if self.epsilon is None:
            return math.inf, self.delta
        if self.relation == "substitution":
            return self.epsilon, self.delta
        return 2 * self.epsilon, self.delta * (1 + math.exp(self.epsilon)) * (1 + 8 * UNIT_ROUND_OFF)

    @property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """Returns the orders and Renyi divergences of a declared curve, for a substitution; empty without a
        curve."""
        if self.renyi is None or not self._is_doubled:
            return self.renyi or ()
        # By Mironov's Proposition 11 for p = q = 2, and since divergences rise with their order.
        return tuple(
            (order / 2, divergence * ((order - 1) / (order - 2) + 1) * _ROUND_UP)
            for order, divergence in self.renyi
            if order > 2 * _MINIMUM_ORDER
        )

    @property
    def substitution_rho(self) -> float:
        """Returns the declared rho for datasets that differ in one user's data; 0 if none is declared."""
        return (self.rho or 0.0) * (4 if self._is_doubled else 1)

    @property
    def finite_loss(self) -> Fraction | None:
        """See `WholeRelease.finite_loss`. The declared epsilon is the decimal that people write: ten rounds
        of 0.1 cost 1."""
        if self.epsilon is None:
            return None
        return (2 if self._is_doubled else 1) * Fraction(repr(self.epsilon))

    @property
    def gaussian_mu(self) -> float:
        """See `WholeRelease.gaussian_mu`."""
        if self.mu is None or self.delta > 0:
            return math.inf
        return self.substitution_mu

    @property
    def substitution_mu(self) -> float:
        """Returns the declared mu for datasets that differ in one user's data; 0 if none is declared."""
        return (self.mu or 0.0) * (2 if self._is_doubled else 1)

    def renyi_bound(self, order: float) -> float:
        """See `WholeRelease.renyi_bound`."""
        if self.delta > 0:
            return math.inf
        if self.rho is not None:
            return self.substitution_rho * max(order, 1.0) * _ROUND_UP
        listed = [divergence for least, divergence in self.curve if order <= least]
        return min(listed) if listed else super().renyi_bound(order)

    def covers(self, other: WholeRelease) -> bool:
        """See `WholeRelease.covers`."""
        if not isinstance(other, Declared):
            return False
        if self.epsilon is not None and other.epsilon is not None:
            pairs = zip(other.substitution, self.substitution, strict=True)
            return all(here <= there for here, there in pairs)
        if other.delta > self.delta:
            return False
        if self.rho is not None and other.rho is not None:
            return other.substitution_rho <= self.substitution_rho
        if self.mu is not None and other.mu is not None:
            return other.substitution_mu <= self.substitution_mu
        # Lower divergences at the same orders allow less.
        known = dict(other.curve)
        return bool(self.curve) and all(known.get(order, math.inf) <= most for order, most in self.curve)

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        if self.epsilon is not None:
            return _DeclaredProfile(*self.substitution)
        if self.mu is not None:
            return gaussian_profile(self.substitution_mu, self.delta)
        return self._of_curve

    @functools.cached_property
    def _of_curve(self) -> ReleaseProfile:
        if self.rho is not None:
            orders, divergences = linear_curve(self.substitution_rho)
        else:
            orders, divergences = np.array(self.curve).T
        found = profile_of_renyi_bounds(orders, divergences)
        # Slightly larger, so that rounding cannot leave any of the profile beyond it.
        last = math.log1p(float(found.excess[-1])) * (1 + 4 * LOSS_ROUND_OFF)
        return ReleaseProfile(
            found.bounds, delta=self.delta, last_loss=last, infinity=float(found.heights[-1])
        )

    @property
    def guarantee(self) -> tuple[float, float] | None:
        """See `LocalRandomizer.guarantee`."""
        return None if self.epsilon is None else self.substitution

    def to_mapping(self) -> dict[str, object]:
        """See `LocalRandomizer.to_mapping`."""
        mapping = super().to_mapping()
        if self.renyi is not None:
            mapping["renyi"] = [list(pair) for pair in self.renyi]
        return mapping

    def describe(self) -> str:
        """See `LocalRandomizer.describe`."""
        if self.renyi is None:
            return super().describe()
        pairs = ", ".join(f"[{plain(order)}, {plain(divergence)}]" for order, divergence in self.renyi)
        rest = f"delta={plain(self.delta)}, relation={plain(self.relation)}"
        return f"{self.kind}({rest}, renyi=[{pairs}])"


class _DeclaredProfile(MechanismProfile):
    """`H_(1 + r) = delta + (1 - delta) (exp(epsilon) - 1 - r)_+ / (exp(epsilon) + 1)`."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self.largest_loss = max(epsilon, _LEAST_LOSS) if delta == 0 else math.inf
        # Slightly larger, so that rounding cannot leave any of the profile beyond it.
        self.last_loss = max(epsilon * (1 + 4 * LOSS_ROUND_OFF), _LEAST_LOSS)
        self._reach = math.expm1(epsilon)
        self._delta = delta

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        gain = np.maximum(self._reach - excess, 0.0) / (self._reach + 2)
        value = self._delta + (1 - self._delta) * gain
        doubt = 16 * UNIT_ROUND_OFF
        upper = np.where(
            excess > self._reach * (1 + LOSS_ROUND_OFF), self._delta, np.minimum(value + doubt, 1.0)
        )
        return ProfileBounds(upper, np.maximum(value - doubt, self._delta))

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        return self._delta

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return True
