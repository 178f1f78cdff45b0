"""Gaussian noise on every device: the pair `(epsilon0, delta0)` at which a round of it is bounded best."""

from __future__ import annotations

from typing import NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.certificate import Certificate
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import Generic
from shuffle_ledger.accounting.randomizers.local_gaussian import gaussian_distance, gaussian_local_epsilon
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, honest_share

# Shares of delta that the local deltas of all honest reports may take, from the most on: each a factor below
# the one before. Their delta is multiplied by 1 + exp(epsilon) at least twice.
_LARGEST_SHARE, _FACTOR, _SHARES = 0.4, 0.6, 22


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
            30 holds, or all of them are below 1e-200.
    """
    delta = validation.probability("delta", delta)
    reports = validation.whole("reports", reports, 1, validation.MAXIMUM_REPORTS)
    honest = honest_share(validation.share("honest_fraction", honest_fraction), reports)
    mu = gaussian_distance(sigma, width)
    found: LocalGaussianRound | None = None
    for step in range(_SHARES):
        delta0 = _LARGEST_SHARE * _FACTOR**step * delta / (2 * max(honest, 1))
        epsilon0 = gaussian_local_epsilon(mu, delta0)
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
        expected = "more noise, or a larger delta: no epsilon0 of at most 30 holds at these reports"
        raise InvalidParameter("sigma", sigma, expected)
    return found
