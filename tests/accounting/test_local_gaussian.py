"""Gaussian noise on every device: the local guarantee holds, and no other one nearby is better."""

from __future__ import annotations

import math

import mpmath as mp
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    Generic,
    InvalidParameter,
    ShuffledRound,
    best_local_gaussian,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "width", "reports", "delta"), [(4.0, 1.0, 100_000, 1e-6), (3.0, 2.0, 2000, 1e-4)]
)
def test_the_guarantee_is_that_of_the_noise(sigma: float, width: float, reports: int, delta: float) -> None:
    mp.mp.dps = 40
    accountant = Accountant(precision=0.01)
    found = best_local_gaussian(accountant, sigma=sigma, width=width, reports=reports, delta=delta)
    epsilon0, mu = mp.mpf(found.round.randomizer.epsilon0), mp.mpf(width) / sigma
    exact = mp.ncdf(mu / 2 - epsilon0 / mu) - mp.exp(epsilon0) * mp.ncdf(-mu / 2 - epsilon0 / mu)
    assert exact <= found.round.delta0 <= exact * (1 + mp.mpf("1e-6"))
    again = accountant.certify({found.round: 1}, delta=delta)
    assert found.certificate == again
    assert found.certificate.epsilon_upper < float(epsilon0)
    # Half and twice the local delta are no better, but for the steps of the search.
    for factor in (0.25, 4.0):
        delta0 = found.round.delta0 * factor
        low, high = 1e-6, 30.0
        for _ in range(60):
            middle = mp.mpf((low + high) / 2)
            small = mp.ncdf(mu / 2 - middle / mu) - mp.exp(middle) * mp.ncdf(-mu / 2 - middle / mu) <= delta0
            low, high = (low, float(middle)) if small else (float(middle), high)
        other = ShuffledRound(randomizer=Generic(epsilon0=high), reports=reports, delta0=delta0)
        assert (
            accountant.certify({other: 1}, delta=delta).epsilon_upper
            >= found.certificate.epsilon_upper * 0.99
        )


@pytest.mark.slow
def test_fewer_honest_reports_cost_more() -> None:
    accountant = Accountant(precision=0.1)
    usual, half = (
        best_local_gaussian(accountant, sigma=4, reports=2000, delta=1e-4, honest_fraction=share)
        for share in (1.0, 0.5)
    )
    assert 1.2 * usual.certificate.epsilon_upper < half.certificate.epsilon_upper < math.inf


def test_bad_values_are_refused() -> None:
    accountant = Accountant()
    for values, message in (
        ({"sigma": 0.0}, "a number above 0"),
        ({"sigma": 0.05}, "a number from 0.1"),
        ({"sigma": 0.11}, "more noise"),
        ({"sigma": 1.0, "width": -1.0}, "a number above 0"),
        ({"sigma": 1.0, "reports": 0}, "reports"),
    ):
        arguments = {"reports": 1000, **values}
        with pytest.raises(InvalidParameter, match=message):
            best_local_gaussian(accountant, delta=1e-6, **arguments)  # type: ignore[arg-type]
