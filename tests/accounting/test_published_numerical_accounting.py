"""The settings of "Numerical Accounting in the Shuffle Model of Differential Privacy" (Koskela, Heikkila,
Honkela), against plain sums of our own over their pairs.

The paper prints no numbers with its figures. Its `p = 1/(e + 1)` of equation 3.2 gives the pair that we call
`tight`; its source for it was withdrawn, and A2 in docs/theory/amplification.md proves the bound for
users who all run one randomizer.
"""

from __future__ import annotations

import math
from fractions import Fraction

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
@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 8])
def test_figure_1_compositions_of_any_randomizer(rounds: int) -> None:
    """epsilon0 = 4, n = 10,000."""
    pair = _any_randomizer(4.0, 10**4)
    _check(_round("generic(epsilon0=4)", 10**4), pair, rounds, 1e-4, (1e-3, 1e-6, 1e-10))


@pytest.mark.slow
def test_figure_1_profile_of_one_round() -> None:
    pair = _any_randomizer(4.0, 10**4)
    shuffled = _round("generic(epsilon0=4)", 10**4)
    for epsilon in (0.0, 0.1, 0.3, 0.5, 0.8):
        certificate = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
        exact = pair.delta(epsilon)
        assert certificate.delta_lower <= exact * (1 + 1e-9) + 1e-14
        assert exact * (1 - 1e-9) - 1e-14 <= certificate.delta_upper


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


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_figure_3_compositions_of_sampled_rounds(rounds: int) -> None:
    """epsilon0 = 3, n = 10,000 of a million."""
    pair = sampled(_any_randomizer(3.0, 10**4), 0.01)
    shuffled = _round("generic(epsilon0=3)", 10**4, sampled_from=10**6)
    _check(shuffled, pair, rounds, 1e-5 if rounds < 100 else 1e-6, (1e-6,))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
@pytest.mark.parametrize("analysis", ["strong-adversary", "blanket"])
def test_figure_4_randomized_response_against_both_adversaries(analysis: str, rounds: int) -> None:
    """n = 1,000, k = 4, gamma = 0.25."""
    gamma, k, users = 0.25, 4, 1000
    epsilon0 = math.log(((1 - gamma) * k + gamma) / gamma)
    shuffled = _round(f"krr(k={k}, epsilon0={epsilon0!r})", users, analysis=analysis)
    pair = randomized_response(users, k, gamma, coin_seen=analysis == "strong-adversary")
    _check(shuffled, pair, rounds, 2e-4, (1e-3, 1e-6, 1e-10))


@pytest.mark.parametrize("rounds", [1, 4])
def test_figure_4_the_weaker_adversary_learns_less_and_any_randomizer_more(rounds: int) -> None:
    """An adversary without the differing user's coin learns less; the bound for any randomizer lies above
    both at one round."""
    epsilon0 = math.log((0.75 * 4 + 0.25) / 0.25)
    at = {
        name: Accountant().certify(
            {_round(written.format(epsilon0), 1000, analysis=name): rounds}, delta=1e-6
        )
        for name, written in (
            ("blanket", "krr(k=4, epsilon0={!r})"),
            ("strong-adversary", "krr(k=4, epsilon0={!r})"),
            ("tight", "generic(epsilon0={!r})"),
            ("clone", "generic(epsilon0={!r})"),
        )
    }
    assert at["blanket"].epsilon_upper < at["strong-adversary"].epsilon_lower
    assert at["blanket"].epsilon_upper < at["tight"].epsilon_lower
    assert at["tight"].epsilon_upper < at["clone"].epsilon_lower


@pytest.mark.parametrize(("theorem", "coin_seen"), [(13, True), (16, False)])
def test_theorems_13_and_16_are_above_the_divergence(theorem: int, coin_seen: bool) -> None:
    """`Pr[Z >= epsilon]`, printed as the tight delta, is what the divergence stays below; against the weaker
    adversary too."""
    pair = randomized_response(1000, 4, 0.25, coin_seen=coin_seen)
    for epsilon in (0.2, 0.5, 0.8) if theorem == 13 else (0.2, 0.4, 0.6):
        tail = float(pair.p[pair.p >= math.exp(epsilon) * pair.q].sum())
        assert pair.delta(epsilon) < 0.5 * tail


def test_appendix_b_prints_p_for_2p() -> None:
    """Lemma A.2: `P_0 = 2 (1 - 2p) a / ((n - a - b) p) P_2` is twice too large; with 2p for p it holds."""
    users, p = 12, Fraction(1, 5)

    def clones_are(total: int, first: int) -> Fraction:
        kept = math.comb(users - 1, total) * (2 * p) ** total * (1 - 2 * p) ** (users - 1 - total)
        return kept * Fraction(math.comb(total, first), 2**total)

    for a in range(1, 5):
        for b in range(1, 5):
            ratio = clones_are(a + b - 1, a - 1) / clones_are(a + b, a)
            printed = 2 * (1 - 2 * p) * a / ((users - a - b) * p)
            assert printed == 2 * ratio
            assert 2 * (1 - 2 * p) * a / ((users - a - b) * 2 * p) == ratio
