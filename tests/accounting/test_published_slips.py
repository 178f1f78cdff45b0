"""Slips of papers that no figure or table shows, each by its own arithmetic (docs/theory/verification.md)."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, norm


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the divergence of `N(mu, 1)` from `N(0, 1)`, by its closed form."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("epsilon0", "delta0"), [(0.5, 1e-6), (1.0, 1e-8), (2.0, 1e-10)])
def test_algorithm_2_of_the_clones_has_noise_for_half_the_distance(epsilon0: float, delta0: float) -> None:
    """Two gradients of norm at most 1 are up to 2 apart."""
    sigma = (1 + math.sqrt(2 * math.log(1 / delta0))) / epsilon0
    assert gaussian_delta(epsilon0, 1 / sigma) <= delta0
    assert gaussian_delta(epsilon0, 2 / sigma) > 10 * delta0
    assert gaussian_delta(epsilon0, 2 / (2 * sigma)) <= delta0


@pytest.mark.parametrize("delta", [0.1, 1e-4])
@pytest.mark.parametrize("between", [0.0, 0.5])
def test_lemma_a_1_of_the_clones_holds_where_its_proof_does_not_reach(delta: float, between: float) -> None:
    """Clones between `16 ln(2/delta)`, which is asked for, and `16 ln(4/delta)`, which the proof uses."""
    users, clones = 400, 16 * (math.log(2 / delta) + between * math.log(2))
    assert clones < 16 * math.log(4 / delta)
    ratio = 1 + math.sqrt(64 * math.log(4 / delta) / clones) + 8 / clones
    outside = 0.0
    for count in range(users):
        a = np.arange(count + 1)
        chances = binom.pmf(a, count, 0.5)
        with np.errstate(divide="ignore"):
            ratios = (a + 1) / (count - a)
        far = (ratios > ratio) | (ratios < 1 / ratio)
        outside += float(binom.pmf(count, users - 1, clones / users) * chances[far].sum())
    assert outside < 0.01 * delta


def test_algorithm_6_of_the_role_of_interactivity_subtracts_too_much() -> None:
    """The expectation for users of whom `held` hold a value: others say it with chance `1/(e + 1)`."""
    e, users = Fraction(3), 100
    for held in (0, 30, 100):
        count = held * e / (e + 1) + (users - held) / (e + 1)
        printed = (e + 1) / (e - 1) * (count - users / (e - 1))
        right = (e + 1) / (e - 1) * (count - users / (e + 1))
        assert right == held
        assert printed == held - 2 * users / (e - 1) ** 2  # the same for both values: their order stays


def test_theorem_3_3_of_robust_shuffle_privacy_states_twice_what_its_proof_shows() -> None:
    """A label's delta is at most `delta/gamma` by the proof, so that of two labels is the `2 delta/gamma` of
    Corollary A.4, not the `4 delta/gamma` of the theorem that the corollary refers to."""
    epsilons, shares = (0.01, 0.5, math.log(2), 1.0, 5.0), (0.01, 0.3, 0.9, 1.0)
    for epsilon, gamma in itertools.product(epsilons, shares):
        left = -math.expm1(gamma * math.log(-math.expm1(-epsilon)))  # exp(-epsilon'), of honest users alone
        one_label = (1 / left + 1) / (math.exp(epsilon) + 1)  # times delta
        assert one_label <= (1 + 1e-12) / gamma
        assert 2 * one_label <= 2 * (1 + 1e-12) / gamma < 4 / gamma
