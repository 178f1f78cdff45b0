"""Declared guarantees: against randomized response with the declared parameters."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.3, 1e-6), (3.0, 0.01), (0.0, 1e-9)])
def test_declared_rounds_are_randomized_response(epsilon: float, delta: float) -> None:
    mp.mp.dps = 40
    e, d = mp.exp(mp.mpf(epsilon)), mp.mpf(delta)
    p: dict[object, mp.mpf] = {"sure": d, 1: (1 - d) * e / (1 + e), 0: (1 - d) / (1 + e)}
    q: dict[object, mp.mpf] = {"other": d, 0: (1 - d) * e / (1 + e), 1: (1 - d) / (1 + e)}
    points = sorted({0.0, epsilon / 2, epsilon, 2 * epsilon, 5.0})
    declared = parse_randomizer(f"declared(epsilon={epsilon}, delta={delta})")
    shuffled = ShuffledRound(randomizer=declared, reports=1)
    bounds = RoundProfile(shuffled, smoothing=2e-3)(np.expm1(points))
    for point, upper, lower in zip(points, bounds.upper, bounds.lower, strict=True):
        order = mp.exp(mp.mpf(point))
        exact = mp.fsum(max(mass - order * q.get(y, mp.mpf(0)), mp.mpf(0)) for y, mass in p.items())
        assert lower <= exact * (1 + mp.mpf("1e-30")) + mp.mpf("1e-30")
        assert exact <= upper + mp.mpf("1e-30")
        assert upper - lower <= 1e-13


def test_adding_or_removing_is_half_of_substituting() -> None:
    half = parse_randomizer("declared(epsilon=0.5, delta=1e-6, relation='add-remove')")
    whole = parse_randomizer(f"declared(epsilon=1, delta={1e-6 * (1 + math.exp(0.5))!r})")
    accountant = Accountant()
    first, second = (
        accountant.certify({ShuffledRound(randomizer=one, reports=1): 8}, delta=1e-4) for one in (half, whole)
    )
    assert first.epsilon_upper == pytest.approx(second.epsilon_upper, rel=1e-6)
    # Not less than the truth of a mechanism that has the guarantee: Laplace noise on a count, substituted.
    assert parse_randomizer("declared(epsilon=1)").to_mapping()["relation"] == "substitution"


@pytest.mark.parametrize(
    ("written", "rounds", "delta", "epsilon"),
    [
        ("declared(epsilon=1, delta=1e-20)", 1, 1e-18, 1.0),
        ("declared(epsilon=1, delta=1e-20)", 90, 1e-18, 90.0),
        ("declared(epsilon=2)", 3, 1e-30, 6.0),
        ("declared(epsilon=0)", 5, 1e-30, 0.0),
        ("declared(epsilon=0, delta=1e-9)", 5, 1e-8, 0.0),
        ("declared(epsilon=0, delta=0.5)", 1, 0.6, 0.0),
        ("declared(epsilon=1e-9, delta=0.3)", 2, 0.52, 0.0),
    ],
)
def test_declared_deltas_are_not_rounded_up(written: str, rounds: int, delta: float, epsilon: float) -> None:
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=1)
    certificate = Accountant().certify({shuffled: rounds}, delta=delta)
    assert certificate.epsilon_lower <= certificate.epsilon_upper <= epsilon * (1 + 1e-9) + 1e-7
    assert certificate.epsilon_upper >= epsilon * 0.9


def test_declared_rounds_compose_as_published() -> None:
    """The optimal composition of k pure mechanisms, by binomial coefficients."""
    epsilon, rounds, delta = 0.1, 40, 1e-6
    mp.mp.dps = 40
    e = mp.exp(mp.mpf(epsilon))
    losses = [(2 * k - rounds, mp.binomial(rounds, k) * e**k / (1 + e) ** rounds) for k in range(rounds + 1)]

    def exact(at: float) -> float:
        return float(mp.fsum(m * max(1 - mp.exp(mp.mpf(at) - j * mp.mpf(epsilon)), 0) for j, m in losses))

    shuffled = ShuffledRound(randomizer=parse_randomizer(f"declared(epsilon={epsilon})"), reports=1)
    certificate = Accountant().certify({shuffled: rounds}, delta=delta)
    assert exact(certificate.epsilon_upper) <= delta <= exact(certificate.epsilon_lower) * (1 + 1e-12)
    assert certificate.precise


def test_declared_rounds_share_a_slot() -> None:
    declared = parse_randomizer("declared(epsilon=1, delta=1e-9)")
    assert slot_for(ShuffledRound(randomizer=declared, reports=5)) == slot_for(
        ShuffledRound(randomizer=declared, reports=10**9)
    )
    sampled = ShuffledRound(randomizer=declared, reports=1234, sampled_from=9000)
    slot = slot_for(sampled)
    assert slot.sampled_from is not None
    assert slot.reports / slot.sampled_from >= 1234 / 9000
