"""Central mechanisms: a trusted collector computes a statistic and adds noise once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.noise_pairs import shifted_discrete_gaussian
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile, PairProfile
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF
from shuffle_ledger.accounting.randomizers.base import LocalRandomizer
from shuffle_ledger.accounting.randomizers.declared import MAXIMUM_MU, MINIMUM_MU
from shuffle_ledger.accounting.randomizers.whole_release import (
    WholeRelease,
    checked_relation,
    gaussian_profile,
    laplace_profile,
)

_ROUND_UP = 1 + 4 * UNIT_ROUND_OFF  # factor for the round-off of a few operations
_LEAST_PARAMETER, _LARGEST_PARAMETER = 1e-12, 1e12  # of a scale or a sensitivity
# Largest sigma of discrete Gaussian noise: about 32 sigma outcomes are listed.
_MAXIMUM_SIGMA = 2e4
_MINIMUM_EPSILON, _MAXIMUM_EPSILON = 1e-9, 120.0  # of Laplace noise, for a substitution


@dataclass(frozen=True, kw_only=True)
class _CentralMechanism(WholeRelease):
    """A statistic plus noise that hides the effect of one user's data.

    Attributes:
        sensitivity: largest distance of the statistic between neighbours, in the norm that the mechanism
            names.
        relation: which datasets are neighbours: `substitution`, or `add-remove`; in the second case a
            substitution changes the statistic by at most twice the sensitivity.
    """

    silence: ClassVar[str] = "the collector's noise does not depend on who reports"

    relation: str = "substitution"

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", checked_relation(self.relation))

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("exact",)

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """See `LocalRandomizer.attained`. Two datasets have statistics at the distance of the sensitivity,
        and a sample without the differing user has the law of the second one. How far a substitution moves a
        statistic of which only adding and removing is known, such as a count, is not."""
        return (self,) if self.relation == "substitution" else ()

    def _check_noise(self, name: str, least: float, most: float) -> None:
        """Checks the noise called `name` and the sensitivity, and that the change by a substitution over the
        noise is from `least` to `most`."""
        noise, sensitivity = (
            validation.between(one, getattr(self, one), _LEAST_PARAMETER, _LARGEST_PARAMETER)
            for one in (name, "sensitivity")
        )
        low, high = validation.quotients(self._times * sensitivity, least, most)
        low, high = max(low, _LEAST_PARAMETER), min(high, _LARGEST_PARAMETER)
        object.__setattr__(self, name, validation.between(name, noise, low, high))
        object.__setattr__(self, "sensitivity", sensitivity)

    @property
    def _times(self) -> int:
        """Returns how often the sensitivity counts in a substitution."""
        return 1 if self.relation == "substitution" else 2


@dataclass(frozen=True, kw_only=True)
class Gaussian(_CentralMechanism):
    """A real statistic, or a vector of them, with Gaussian noise of deviation `sigma` on each number.

    `sensitivity` is the largest Euclidean distance of neighbours' statistics.

    Guarantee: the pair `N(mu, 1)` against `N(0, 1)` with `mu = sensitivity/sigma` is attained.
        The noise of a computer is not exactly Gaussian; this is not accounted.
    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8.
    """

    kind = "gaussian"

    sigma: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_noise("sigma", MINIMUM_MU, MAXIMUM_MU)

    @property
    def gaussian_mu(self) -> float:
        """See `WholeRelease.gaussian_mu`."""
        return self._times * self.sensitivity / self.sigma * _ROUND_UP

    def covers(self, other: WholeRelease) -> bool:
        """See `WholeRelease.covers`."""
        return other.gaussian_mu <= self.gaussian_mu

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        return gaussian_profile(self.gaussian_mu)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(_CentralMechanism):
    """A whole number with discrete Gaussian noise: the integer k with probability in proportion to
    `exp(-k^2 / (2 sigma^2))`.

    `sensitivity` is the largest difference of neighbours' numbers. For a vector of numbers the worst pair is
    not known: declare it as `declared(rho=...)` with `rho = s^2 / (2 sigma^2)`, s the Euclidean sensitivity.

    Guarantee: the pair of laws at this distance is attained.
    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", Theorems 4 and 7.
    """

    kind = "discrete_gaussian"

    sigma: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        most = int(MAXIMUM_MU * _MAXIMUM_SIGMA)
        object.__setattr__(
            self, "sensitivity", validation.whole("sensitivity", self.sensitivity, 1, most // self._times)
        )
        low = self.shift / MAXIMUM_MU
        more = "; for larger ones declared(rho=...)"
        sigma = validation.between("sigma", self.sigma, low, _MAXIMUM_SIGMA, more=more)
        object.__setattr__(self, "sigma", sigma)

    @property
    def shift(self) -> int:
        """Returns the largest change of the number by a substitution."""
        return self._times * self.sensitivity

    def renyi_bound(self, order: float) -> float:
        """See `WholeRelease.renyi_bound`."""
        return max(order, 1.0) * (self.shift / self.sigma) ** 2 / 2 * _ROUND_UP**3

    def covers(self, other: WholeRelease) -> bool:
        """See `WholeRelease.covers`."""
        if not isinstance(other, DiscreteGaussian):
            return False
        return other.sigma == self.sigma and other.shift <= self.shift

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        pair = shifted_discrete_gaussian(self.sigma, self.shift)
        return PairProfile(lambda _: [pair], lambda _: [pair])


@dataclass(frozen=True, kw_only=True)
class CentralLaplace(_CentralMechanism):
    """A real statistic, or a vector of them, with Laplace noise of this `scale` on each number.

    `sensitivity` is the largest sum of the numbers' differences between neighbours. `laplace` is the local
    randomizer.

    Guarantee: the pair of Laplace laws at this distance dominates the mechanism, for vectors too; for a
    single number
        it is attained.
    Source: Dwork, McSherry, Nissim, Smith, "Calibrating Noise to Sensitivity in Private Data Analysis";
        vectors: docs/theory/randomizers.md, R21.
    """

    kind = "central_laplace"

    scale: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_noise("scale", _MINIMUM_EPSILON, _MAXIMUM_EPSILON)

    @property
    def guarantee(self) -> tuple[float, float]:
        """See `LocalRandomizer.guarantee`."""
        return self._times * self.sensitivity / self.scale * _ROUND_UP, 0.0

    def covers(self, other: WholeRelease) -> bool:
        """See `WholeRelease.covers`."""
        return isinstance(other, CentralLaplace) and other.guarantee[0] <= self.guarantee[0]

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        return laplace_profile(self.guarantee[0])
