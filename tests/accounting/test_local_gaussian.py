"""Gaussian noise at a local delta: the local guarantee holds, and no other one nearby is better."""

from __future__ import annotations

import mpmath as mp
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    Generic,
    InvalidParameter,
    LocalGaussian,
    ShuffledRound,
    best_local_gaussian,
    fits,
    parse_randomizer,
    slot_for,
)
from tests.accounting.alike import alike


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "width", "reports", "delta"), [(3.0, 2.0, 2000, 1e-4)])
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
def test_only_honest_reports_take_a_share_of_delta() -> None:
    accountant = Accountant(precision=0.1)
    partly = best_local_gaussian(accountant, sigma=2, reports=10_000, delta=1e-6, honest_fraction=0.01)
    alone = best_local_gaussian(accountant, sigma=2, reports=100, delta=1e-6)
    assert partly.round.delta0 == alone.round.delta0
    assert partly.certificate.epsilon_upper == alone.certificate.epsilon_upper


def test_a_delta_that_is_too_small_for_any_noise_is_named() -> None:
    with pytest.raises(InvalidParameter, match="a larger delta"):
        best_local_gaussian(Accountant(), sigma=1e5, reports=1000, delta=1e-300)


@pytest.mark.parametrize(
    ("sigma", "delta0", "sensitivity"),
    [(4.0, 1e-10, 1.0), (0.5, 1e-30, 1.0), (60.0, 1e-6, 7.0), (1e4, 1e-9, 1.0), (2.0, 0.1, 1.0)],
)
def test_the_local_epsilon_is_the_least_that_holds(sigma: float, delta0: float, sensitivity: float) -> None:
    mp.mp.dps = 60
    found = LocalGaussian(sigma=sigma, delta0=delta0, sensitivity=sensitivity)
    mu = mp.mpf(sensitivity) / sigma

    def exact(epsilon: float) -> mp.mpf:
        at = mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)

    assert exact(found.epsilon0) <= delta0
    assert found.epsilon0 <= 1e-9 or exact(found.epsilon0 * (1 - 1e-6) - 1e-11) > delta0


def test_a_round_is_that_of_generic_with_the_pair() -> None:
    written = "local_gaussian(sigma=4, delta0=1e-10)"
    noise = parse_randomizer(written)
    assert parse_randomizer(noise.to_mapping()) == noise == parse_randomizer(noise.describe())
    described = ShuffledRound(randomizer=written, reports=5000, honest_fraction=0.9)  # type: ignore[arg-type]
    generic = alike(
        randomizer=Generic(epsilon0=noise.epsilon0),
        reports=5000,
        honest_fraction=0.9,
        delta0=1e-10,
    )
    assert described == generic
    assert described.slack == generic.slack > 0
    # The question and the record read back.
    assert ShuffledRound.from_mapping(described.asked_mapping()) == described
    assert ShuffledRound.from_mapping(described.to_mapping()) == described
    assert fits(described, slot_for(described))
    louder, quieter = (
        ShuffledRound(randomizer=LocalGaussian(sigma=sigma, delta0=1e-10), reports=5000) for sigma in (5, 3)
    )
    slot = ShuffledRound(randomizer=noise, reports=5000)
    assert fits(louder, slot)
    assert not fits(quieter, slot)
    assert not fits(ShuffledRound(randomizer=LocalGaussian(sigma=5, delta0=1e-9), reports=5000), slot)


def test_bad_local_noise_is_refused() -> None:
    for written, message in (
        ("local_gaussian(delta0=1e-9)", "needs a value for sigma"),
        ("local_gaussian(sigma=0.5)", "at least the sensitivity"),
        ("local_gaussian(sigma=0.05, delta0=1e-9)", "a number from 0.1"),
        ("local_gaussian(sigma=0.11, delta0=1e-9)", "more noise"),
        ("local_gaussian(sigma=4, delta0=0)", "delta0"),
        ("local_gaussian(sigma=4, delta0=1e-300)", "1e-200"),
        ("local_gaussian(sigma=4, delta0=1e-9, sensitivity=-1)", "sensitivity: got -1"),
        ("joint(krr(k=3, epsilon0=1), local_gaussian(sigma=4, delta0=1e-9))", "parts"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            parse_randomizer(written)
    noise = LocalGaussian(sigma=4, delta0=1e-9)
    with pytest.raises(InvalidParameter, match="names a delta0"):
        ShuffledRound(randomizer=noise, reports=10, delta0=1e-8)
