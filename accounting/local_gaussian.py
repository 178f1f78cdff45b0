"""Gaussian noise on every device: the pair `(epsilon0, delta0)` at which a round of it is bounded best."""

from __future__ import annotations

import math
from typing import NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.certificate import Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence_at
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import Generic
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

# Shares of delta that the local deltas of all reports may take, from the most on: each a factor below the one
# before. Their delta is multiplied by 1 + exp(epsilon) at least twice.
_LARGEST_SHARE, _FACTOR, _SHARES = 0.4, 0.6, 22
_HALVINGS = 60
_MINIMUM_MU, _MAXIMUM_MU = 1e-6, 10.0
_LARGEST = 1e12


class LocalGaussianRound(NamedTuple):
    """A round of local Gaussian noise, as `generic` with the best local guarantee that was found.

    Attributes:
        round: the round, with its epsilon0 and delta0.
        certificate: its certified epsilon at the delta that was asked for.
    """

    round: ShuffledRound
    certificate: Certificate


def best_local_gaussian(
    accountant: Accountant,
    *,
    sigma: float,
    reports: int,
    delta: float,
    width: float = 1.0,
    honest_fraction: float = 1.0,
) -> LocalGaussianRound:
    """Finds `epsilon0` and `delta0` for a round of reports with Gaussian noise.

    Args:
        accountant: computes the certificates.
        sigma: standard deviation of the noise on each number of a report.
        reports: number of reports that are shuffled.
        delta: at which epsilon is to be small.
        width: largest Euclidean distance of two users' values; 1 for numbers in [0, 1], 2B for [-B, B].
        honest_fraction: share of the reports that have the noise.

    Guarantee: the noise has the local guarantee of the round returned, and the certificate is that
        round's. Of 22 local deltas the one with the smallest certified epsilon is taken.
    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8; the local
        delta: Feldman, McMillan, Talwar, Theorem 3.8.

    Raises:
        InvalidParameter: a value is out of range, or at none of these local deltas an epsilon0 of at most
            30 holds.
    """
    delta = validation.probability("delta", delta)
    reports = validation.whole("reports", reports, 1, validation.MAXIMUM_REPORTS)
    mu = _apart(sigma, width)
    found: LocalGaussianRound | None = None
    for step in range(_SHARES):
        delta0 = _LARGEST_SHARE * _FACTOR**step * delta / (2 * reports)
        epsilon0 = _local_epsilon(mu, delta0)
        if epsilon0 is None or delta0 < validation.MINIMUM_PROBABILITY:
            continue
        shuffled = ShuffledRound(
            randomizer=Generic(epsilon0=epsilon0),
            reports=reports,
            delta0=delta0,
            honest_fraction=honest_fraction,
        )
        one = LocalGaussianRound(shuffled, accountant.certify({shuffled: 1}, delta=delta))
        if found is None or one.certificate.epsilon_upper < found.certificate.epsilon_upper:
            found = one
    if found is None:
        raise InvalidParameter("sigma", sigma, "more noise: no epsilon0 of at most 30 holds at these reports")
    return found


def _apart(sigma: object, width: object) -> float:
    """The largest distance of two values in deviations of the noise, rounded up."""
    expected = f"a number above 0 and at most {exact_text(_LARGEST)}"
    numbers = []
    for name, value in (("sigma", sigma), ("width", width)):
        number = validation.real(name, value, expected)
        if not 1 / _LARGEST <= number <= _LARGEST:
            raise InvalidParameter(name, value, expected)
        numbers.append(number)
    mu = numbers[1] / numbers[0] * (1 + 1e-15)
    if not _MINIMUM_MU <= mu <= _MAXIMUM_MU:
        low, high = (exact_text(numbers[1] / one) for one in (_MAXIMUM_MU, _MINIMUM_MU))
        raise InvalidParameter("sigma", sigma, f"a number from {low} to {high} for this width")
    return mu


def _local_epsilon(mu: float, delta0: float) -> float | None:
    """About the smallest epsilon0 in range at which the noise is `(epsilon0, delta0)`-private, from above;
    None where there is none."""
    low, high = validation.MINIMUM_EPSILON0, validation.MAXIMUM_EPSILON0
    if gaussian_divergence_at(mu, high)[1] > delta0:
        return None
    if gaussian_divergence_at(mu, low)[1] <= delta0:
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_divergence_at(mu, middle)[1] <= delta0 else (middle, high)
    return high
