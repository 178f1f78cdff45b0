"""Rounds with losses of many scales, and deltas beyond any list of outcomes, against plain sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import special, stats

from shuffle_ledger.accounting import Accountant, ShuffledRound
from tests.accounting.exact_sums import FloatArray, Pair, composed, randomized_response, sampled


def made(randomizer: str, **fields: object) -> ShuffledRound:
    return ShuffledRound.from_mapping({"randomizer": randomizer, **fields})


def honest_numbers(population: int, honest: int, sample: int) -> Iterator[tuple[int, float]]:
    """Every number of honest users in a sample, and its probability; those below 1e-30 are left out."""
    for number in range(1, min(sample, honest) + 1):
        mass = float(stats.hypergeom.pmf(number, population, honest, sample))
        if mass > 1e-30:
            yield number, mass


COIN = made(
    "krr(k=2, epsilon0=0.2439466325701713)",
    reports=367,
    sampled_from=1307578,
    honest_fraction=0.5375893802626583,
    analysis="strong-adversary",
)
GAMMA = 2 / (math.exp(0.2439466325701713) + 1)
HONEST = math.floor(0.5375893802626583 * 1307578)


@pytest.mark.slow
def test_a_strong_adversary_of_a_partly_honest_sample() -> None:
    epsilon = 0.0002527322075742553
    exact = 0.0
    for number, mass in honest_numbers(1307578, HONEST, 367):
        rate, pair = number / HONEST, randomized_response(number, 2, GAMMA, coin_seen=True)
        exact += mass * rate * pair.delta(math.log1p(math.expm1(epsilon) / rate))
    found = Accountant().certify_delta({COIN: 1}, epsilon=epsilon)
    assert exact == pytest.approx(3.2485e-11, rel=1e-3)
    # Counts that the sum leaves out have a mass of 1e-16.
    assert found.delta_lower * (1 - 1e-5) <= exact <= found.delta_upper * (1 + 1e-5)
    assert found.delta_upper < 1.25 * exact  # cells of the number of honest reports
    there = Accountant().certify({COIN: 1}, delta=exact)
    assert there.epsilon_lower <= epsilon * (1 + 1e-5)
    assert epsilon * (1 - 1e-5) <= there.epsilon_upper < 1.1 * epsilon


@pytest.mark.slow
def test_twenty_rounds_of_it() -> None:
    parts = [
        (mass, sampled(randomized_response(number, 2, GAMMA, coin_seen=True), number / HONEST))
        for number, mass in honest_numbers(1307578, HONEST, 367)
        if mass > 1e-14
    ]
    whole = Pair(*(np.concatenate([mass * pair[side] for mass, pair in parts]) for side in (0, 1)))
    low, high = composed([(whole, 20)], 2e-8)(1e-8)
    found = Accountant().certify({COIN: 20}, delta=1e-8)
    assert found.epsilon_lower <= high
    assert found.epsilon_upper >= low
    assert found.epsilon_upper == pytest.approx((low + high) / 2, rel=0.02)
    there = Accountant().certify_delta({COIN: 20}, epsilon=found.epsilon_upper)
    assert there.delta_lower <= 1e-8 * (1 + 1e-9)
    assert there.delta_upper <= 1.1e-8


def distinct(p: float, honest: int) -> Callable[[float], float]:
    """The profile of two labels' sums, 36 users sampled of 2,041: a fair bit beside a biased one, or the
    other way round; a single honest user is revealed."""
    numbers = list(honest_numbers(2041, honest, 36))

    def profile(epsilon: float) -> float:
        total = 0.0
        for number, mass in numbers:
            rate = number / honest
            order, s = 1 + math.expm1(epsilon) / rate, (1 - 2 * p) ** number
            biased = np.array([(1 + s) / 2, (1 - s) / 2])
            gains = np.add.outer(-order * biased / 2, biased / 2)
            total += mass * rate * (1.0 if number == 1 else float(np.maximum(gains, 0.0).sum()))
        return total

    return profile


@pytest.mark.parametrize("delta", [1e-12, 1e-8])
def test_few_honest_users_that_are_hardly_ever_sampled(delta: float) -> None:
    shuffled = made(
        "distinct_elements(p=0.0528, security=1000)", reports=36, sampled_from=2041, honest_fraction=0.75
    )
    profile = distinct(0.0528, 1530)
    found = Accountant().certify({shuffled: 1}, delta=delta)
    assert profile(found.epsilon_upper) <= delta * (1 + 1e-9)
    assert profile(found.epsilon_lower) >= delta * (1 - 1e-9)
    assert found.epsilon_upper - found.epsilon_lower <= 0.05 * found.epsilon_upper


def log_delta(hidden: float, own: float, reports: int, epsilon: float) -> float:
    """Logarithm of the divergence of counts of two kinds of reports, each of mass `hidden`; the user's own
    report is of the first with probability `own` or `1 - own`."""
    first, second = np.meshgrid(*2 * [np.arange(reports + 1.0)], indexing="ij")
    rest = reports - first - second
    seen = rest >= 0
    first, second, rest = first[seen], second[seen], rest[seen]
    log_mass: FloatArray = special.gammaln(reports + 1) - sum(
        (special.gammaln(count + 1) for count in (first, second, rest)), np.zeros(())
    )
    log_mass = log_mass + (first + second) * math.log(hidden) + rest * math.log1p(-2 * hidden)
    order = math.exp(epsilon)
    gains = (first * (own - order * (1 - own)) + second * (1 - own - order * own)) / hidden / reports
    ahead = gains > 0
    return float(special.logsumexp(log_mass[ahead] + np.log(gains[ahead])))


@pytest.mark.parametrize("delta", [1e-60, 1e-100, 1e-300])
def test_deltas_that_no_list_of_outcomes_reaches(delta: float) -> None:
    shuffled = made("generic(epsilon0=1)", reports=1000, analysis="tight")
    found = Accountant().certify({shuffled: 1}, delta=delta)
    lower = log_delta(1 / (1 + math.e), math.e / (1 + math.e), 1000, found.epsilon_lower)
    assert lower >= math.log(delta)
    if found.epsilon_upper < 1:
        assert log_delta(1 / (1 + math.e), math.e / (1 + math.e), 1000, found.epsilon_upper) <= math.log(
            delta
        )
    assert found.precise


def test_one_round_is_asked_for_its_own_pair() -> None:
    shuffled = made("krr(k=2, epsilon0=1e-9)", reports=1000, analysis="strong-adversary")
    found = Accountant().certify_delta({shuffled: 1}, epsilon=1e-11)
    # The coin shows the user's value with probability tanh(epsilon0 / 2): fair counts that differ by one.
    gamma = 2 / (math.exp(1e-9) + 1)
    exact = randomized_response(1000, 2, gamma, coin_seen=True).delta(1e-11)
    assert found.delta_lower <= exact * (1 + 1e-9)
    assert found.delta_upper >= exact * (1 - 1e-6)  # counts beyond 8.5 deviations are left out
    assert found.precise
