"""The settings of "Numerical Accounting in the Shuffle Model of Differential Privacy" (Koskela, Heikkila,
Honkela), against plain sums of our own over their pairs.

The paper prints no numbers with its figures. Its `p = 1/(e + 1)` of equation 3.2 gives the pair that we call
`tight`; its source for it was withdrawn, and A2 in docs/theory/amplification.md proves the bound for
users who all run one randomizer.
"""

from __future__ import annotations

import math

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from tests.accounting.alike import alike
from tests.accounting.exact_sums import Pair, clones, composed, randomized_response, sampled


def _round(randomizer: str, reports: int, **rest: object) -> ShuffledRound:
    return alike(
        randomizer=parse_randomizer(randomizer),
        reports=reports,
        **rest,
    )


def _check(shuffled: ShuffledRound, pair: Pair, rounds: int, step: float, deltas: tuple[float, ...]) -> None:
    """Our interval meets the one of the plain sums, and is as narrow as certified."""
    bounds = composed([(pair, rounds)], step)
    for delta in deltas:
        certificate = Accountant().certify({shuffled: rounds}, delta=delta)
        low, high = bounds(delta)
        assert certificate.epsilon_lower <= high, (rounds, delta)
        assert low <= certificate.epsilon_upper, (rounds, delta)
        assert certificate.precise, (rounds, delta)
        assert certificate.epsilon_upper - certificate.epsilon_lower <= 1e-3 * certificate.epsilon_upper


def _any_randomizer(epsilon0: float, reports: int) -> Pair:
    e = math.exp(epsilon0)
    return clones(reports, 2 / (e + 1), e / (e + 1))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 8])
def test_figure_1_compositions_of_any_randomizer(rounds: int) -> None:
    """epsilon0 = 4, n = 10,000."""
    pair = _any_randomizer(4.0, 10**4)
    _check(_round("generic(epsilon0=4)", 10**4), pair, rounds, 1e-4, (1e-3, 1e-6, 1e-10))


@pytest.mark.slow
def test_figure_2_sampling_is_no_plain_mixture() -> None:
    """epsilon0 = 3, n = 10,000, rate 1 %, epsilon from -0.25 to 0.25: `H(rate P + (1 - rate) Q || Q)`, which
    the figure draws, is the dominating pair's profile above 0, and too small below."""
    base = _any_randomizer(3.0, 10**4)
    mixture = Pair(0.01 * base.p + 0.99 * base.q, base.q)
    pair = sampled(base, 0.01)
    shuffled = _round("generic(epsilon0=3)", 10**4, sampled_from=10**6)
    for epsilon in (0.0, 0.0005, 0.001, 0.002, 0.004):
        certificate = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
        exact = pair.delta(epsilon)
        assert math.isclose(exact, mixture.delta(epsilon), rel_tol=1e-9, abs_tol=1e-15)
        assert certificate.delta_lower <= exact * (1 + 1e-9) + 1e-15
        assert exact * (1 - 1e-9) - 1e-15 <= certificate.delta_upper
    loss = Accountant().privacy_loss(shuffled)
    for epsilon in (-0.25, -0.05, -0.001):
        below = loss.upper.hockey_stick_divergence(epsilon)
        assert pair.delta(epsilon) <= below * (1 + 1e-9)
        assert below <= pair.delta(epsilon) * 1.01
    assert mixture.delta(-0.001) < pair.delta(-0.001) * (1 - 1e-3)


@pytest.mark.parametrize("rounds", [1, 100])
def test_figure_3_compositions_of_sampled_rounds(rounds: int) -> None:
    """epsilon0 = 3, n = 10,000 of a million."""
    pair = sampled(_any_randomizer(3.0, 10**4), 0.01)
    shuffled = _round("generic(epsilon0=3)", 10**4, sampled_from=10**6)
    _check(shuffled, pair, rounds, 1e-5 if rounds < 100 else 1e-6, (1e-6,))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 8])
@pytest.mark.parametrize("analysis", ["strong-adversary", "blanket"])
def test_figure_4_randomized_response_against_both_adversaries(analysis: str, rounds: int) -> None:
    """n = 1,000, k = 4, gamma = 0.25."""
    gamma, k, users = 0.25, 4, 1000
    epsilon0 = math.log(((1 - gamma) * k + gamma) / gamma)
    shuffled = _round(f"krr(k={k}, epsilon0={epsilon0!r})", users, analysis=analysis)
    pair = randomized_response(users, k, gamma, coin_seen=analysis == "strong-adversary")
    _check(shuffled, pair, rounds, 2e-4, (1e-3, 1e-6, 1e-10))
