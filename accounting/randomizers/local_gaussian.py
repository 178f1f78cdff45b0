"""Gaussian noise on every device: its local epsilon at a local delta."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence_at
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import LocalRandomizer
from shuffle_ledger.accounting.randomizers.generic import CLONE, CLONE_IDENTICAL, Generic

_HALVINGS = 60  # of the range of epsilon0 that is searched: more change no digit
# Least and largest distance of two values, in deviations of the noise.
_MINIMUM_MU, _MAXIMUM_MU = 1e-6, 10.0
_LEAST, _LARGEST = 1e-12, 1e12  # of sigma and sensitivity
# Local epsilons are rounded up to multiples of 1 over it, so that the last digits of a divergence, which
# another machine may round otherwise, do not change them.
_EPSILON_STEPS = 2.0**40


@dataclass(frozen=True, kw_only=True)
class LocalGaussian(LocalRandomizer):
    """Gaussian noise of deviation `sigma` on each number of a report.

    The noise is `(epsilon0, delta0)`-LDP for a curve of pairs; `delta0` chooses one of them. A round of it is
    the round of `generic` with this pair, and is recorded as that.

    Attributes:
        sigma: standard deviation of the noise on each number.
        delta0: the local delta, from 1e-200 to below 1.
        sensitivity: largest Euclidean distance of two users' values: the length of an interval, or the
            diameter of a ball.
        epsilon0: the smallest local epsilon that holds at delta0, rounded up by at most 1e-12.

    Guarantee: the noise is `(epsilon0, delta0)`-LDP for all values at most `sensitivity` apart. The noise of
        a computer is not exactly Gaussian; this is not accounted.
    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8; the round:
        Feldman, McMillan, Talwar, Theorem 3.8.

    Raises:
        InvalidParameter: a value is out of range, or at delta0 no epsilon0 of at most 30 holds.
    """

    kind = "local_gaussian"

    epsilon0: float = field(init=False, compare=False)
    sigma: float
    delta0: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        mu = gaussian_distance(self.sigma, self.sensitivity, named="sensitivity")
        delta0 = validation.probability("delta0", self.delta0)
        if delta0 < validation.MINIMUM_PROBABILITY:
            expected = f"a number from {exact_text(validation.MINIMUM_PROBABILITY)} to below 1"
            raise InvalidParameter("delta0", self.delta0, expected)
        epsilon0 = gaussian_local_epsilon(mu, delta0)
        if epsilon0 is None:
            most = exact_text(validation.MAXIMUM_EPSILON0)
            raise InvalidParameter("sigma", self.sigma, f"more noise: no epsilon0 of at most {most} holds")
        for name, value in (("sigma", float(self.sigma)), ("sensitivity", float(self.sensitivity))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "delta0", delta0)
        object.__setattr__(self, "epsilon0", epsilon0)

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`: the published pair, which goes together with a local delta."""
        return (CLONE_IDENTICAL, CLONE)

    @property
    def as_generic(self) -> Generic:
        """Returns the randomizer as which a round is accounted, together with the local delta."""
        return Generic(epsilon0=self.epsilon0)

    def delta_of_round(self, given: float) -> float:
        """Returns the local delta of a round.

        Raises:
            InvalidParameter: the round was given another one.
        """
        if given not in (0.0, self.delta0):
            raise InvalidParameter("delta0", given, f"nothing: the {self.kind} names its delta0")
        return self.delta0

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`; without the local delta, which is slack."""
        return self.as_generic.profile(
            analysis, participation=participation, smoothing=smoothing, outcomes=outcomes
        )

    def slack(self, honest: float, delta0: float) -> float:
        """See `LocalRandomizer.slack`; always by its own local delta."""
        return super().slack(honest, self.delta0)


def gaussian_distance(sigma: object, width: object, *, named: str = "width") -> float:
    """Returns the largest distance of two values in deviations of the noise, rounded up.

    Raises:
        InvalidParameter: a value is out of range.
    """
    deviation = validation.between("sigma", sigma, _LEAST, _LARGEST)
    distance = validation.between(named, width, _LEAST, _LARGEST)
    low, high = validation.quotients(distance, _MINIMUM_MU, _MAXIMUM_MU)
    low, high = max(low, _LEAST), min(high, _LARGEST)
    if not low <= deviation <= high:
        expected = f"a number from {exact_text(low)} to {exact_text(high)} for this {named}"
        raise InvalidParameter("sigma", sigma, expected)
    return distance / deviation * (1 + 1e-15)


def gaussian_local_epsilon(mu: float, delta0: float) -> float | None:
    """Returns about the smallest epsilon0 in range at which the noise is `(epsilon0, delta0)`-private, from
    above; None if there is none."""
    low, high = validation.MINIMUM_EPSILON0, validation.MAXIMUM_EPSILON0
    if gaussian_divergence_at(mu, high)[1] > delta0:
        return None
    if gaussian_divergence_at(mu, low)[1] <= delta0:
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_divergence_at(mu, middle)[1] <= delta0 else (middle, high)
    return min(math.ceil(high * _EPSILON_STEPS) / _EPSILON_STEPS, validation.MAXIMUM_EPSILON0)
