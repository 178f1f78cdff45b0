"""Noise that users make together, and declared guarantees: against the pairs and the protocols, listed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.amplification.noise_pairs import poisson_masses, shifted_binomial
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

Law = dict[Any, mp.mpf]


def _bounds(written: str, reports: int, epsilons: list[float], **rest: Any) -> Any:
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=reports, **rest)
    return RoundProfile(shuffled, smoothing=2e-3)(np.expm1(epsilons))


def _delta(p: Law, q: Law, epsilon: float) -> mp.mpf:
    order = mp.exp(mp.mpf(epsilon))
    return mp.fsum(max(mass - order * q.get(y, mp.mpf(0)), mp.mpf(0)) for y, mass in p.items())


def _worst(p: Law, q: Law, epsilon: float) -> mp.mpf:
    return max(_delta(p, q, epsilon), _delta(q, p, epsilon))


def _binomial(trials: int, p: float) -> Law:
    mp.mp.dps = 60
    p1 = mp.mpf(p)
    return {k: mp.binomial(trials, k) * p1**k * (1 - p1) ** (trials - k) for k in range(trials + 1)}


def _moved(law: Law) -> Law:
    return {k + 1: mass for k, mass in law.items()}


def _times(first: Law, second: Law) -> Law:
    return {(x, y): p * q for x, p in first.items() for y, q in second.items()}


def _encloses(bounds: Any, exact: list[mp.mpf], width: float = 1e-6) -> None:
    for lower, upper, value in zip(bounds.lower, bounds.upper, exact, strict=True):
        assert lower <= value <= upper
        assert upper - lower <= width * value + 1e-40


@pytest.mark.parametrize("p", [0.5, 0.9, 0.01])
@pytest.mark.parametrize("reports", [1, 7, 400])
def test_binomial_noise_is_its_pair_in_the_worse_direction(p: float, reports: int) -> None:
    law = _binomial(reports, p)
    epsilons = [0.0, 0.05, 0.5, 2.0, 6.0]
    exact = [_worst(_moved(law), law, epsilon) for epsilon in epsilons]
    _encloses(_bounds(f"binomial_sum(p={p})", reports, epsilons), exact)


def test_the_directions_of_skewed_noise_differ_manyfold() -> None:
    """p = 0.9, 50 users: an account of one direction alone would be wrong by a factor of 30."""
    law = _binomial(50, 0.9)
    forwards, backwards = _delta(_moved(law), law, 1.0), _delta(law, _moved(law), 1.0)
    assert max(forwards, backwards) > 25 * min(forwards, backwards)
    assert _bounds("binomial_sum(p=0.9)", 50, [1.0]).lower[0] == pytest.approx(
        float(max(forwards, backwards)), rel=1e-9
    )
    # Counts that only one input can make: the noise of all users is 1, or of none.
    profile = RoundProfile(ShuffledRound(randomizer="binomial_sum(p=0.9)", reports=50), smoothing=0.01)  # type: ignore[arg-type]
    assert profile.infinity == pytest.approx(0.9**50, rel=1e-6)


def test_several_bits_each_are_so_many_users() -> None:
    assert np.array_equal(
        _bounds("binomial_sum(p=0.3, bits=5)", 40, [0.1, 1.0]).upper,
        _bounds("binomial_sum(p=0.3)", 200, [0.1, 1.0]).upper,
    )


@pytest.mark.parametrize(("p", "reports"), [(0.5, 3), (0.9, 12), (0.2, 30)])
def test_a_histogram_moves_two_counts(p: float, reports: int) -> None:
    law = _binomial(reports, p)
    up, down = _times(_moved(law), law), _times(law, _moved(law))
    epsilons = [0.0, 0.2, 1.0, 4.0]
    _encloses(
        _bounds(f"binomial_histogram(p={p})", reports, epsilons), [_worst(up, down, e) for e in epsilons]
    )


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_a_large_histogram_is_enclosed_on_a_coarse_grid(p: float) -> None:
    """5,000 users have too many pairs of counts to list: the bounds enclose a sum over pairs, listed in the
    test in full."""
    reports, epsilons = 5000, [0.0, 0.05, 0.15, 0.3]
    up, down = (shifted_binomial(reports, p, up=way) for way in (True, False))
    bounds = _bounds(f"binomial_histogram(p={p})", reports, epsilons)
    for epsilon, upper, lower in zip(epsilons, bounds.upper, bounds.lower, strict=True):
        total = up.infinite + down.infinite
        order = math.exp(epsilon)
        for x, q in zip(up.x, up.q, strict=True):
            gains = (1 + x) * (1 + down.x) - order
            total += q * float((down.q * np.maximum(gains, 0)).sum())
        assert lower <= total * (1 + 1e-9)
        assert total * (1 - 1e-9) <= upper
        assert upper - lower <= 1e-2 * upper


def _zsum_law(values: tuple[int, ...], p: float) -> Law:
    """The shuffler's output for users who send their bit and one bit of noise, report by report."""
    law: Counter[int] = Counter()
    for noise in itertools.product((0, 1), repeat=len(values)):
        law[sum(values) + sum(noise)] += math.prod(p if bit else 1 - p for bit in noise)  # type: ignore[assignment]
    return {key: mp.mpf(mass) for key, mass in law.items()}


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_no_neighbours_of_the_binary_sum_tell_more(p: float) -> None:
    epsilons = [0.0, 0.3, 1.0]
    upper = _bounds(f"binomial_sum(p={p})", 5, epsilons).upper
    for others in itertools.combinations_with_replacement((0, 1), 4):
        first, second = (_zsum_law((x, *others), p) for x in (0, 1))
        for epsilon, bound in zip(epsilons, upper, strict=True):
            assert _worst(first, second, epsilon) <= bound * (1 + 1e-12)


def _tester_label(mean: float, most: int) -> tuple[Law, Law]:
    """Counts of ones and zeros of one label with Poisson noise, for a user with this label and a user without
    it."""
    mp.mp.dps = 40
    half = [mp.exp(-mp.mpf(mean) / 2) * (mp.mpf(mean) / 2) ** k / mp.factorial(k) for k in range(most)]
    holds = {(a + 1, b): half[a] * half[b] for a in range(most) for b in range(most)}
    lacks = {(a, b + 1): half[a] * half[b] for a in range(most) for b in range(most)}
    return holds, lacks


@pytest.mark.parametrize(("noise", "reports"), [(0.5, 2), (0.25, 8), (3.0, 1)])
def test_the_uniformity_tester_shows_two_labels(noise: float, reports: int) -> None:
    holds, lacks = _tester_label(noise * reports, 16 if noise * reports < 2.5 else 20)
    epsilons = [0.0, 0.4, 1.5]
    bounds = _bounds(f"uniformity_tester(noise={noise})", reports, epsilons)
    p, q = _listed(holds, lacks), _listed(lacks, holds)
    for epsilon, upper, lower in zip(epsilons, bounds.upper, bounds.lower, strict=True):
        order = math.exp(epsilon)
        exact = float(
            np.maximum(np.multiply.outer(p[0], q[0]) - order * np.multiply.outer(p[1], q[1]), 0).sum()
        )
        assert lower <= exact * (1 + 1e-6)  # counts beyond the list hold less than that
        assert exact <= upper
        assert upper - lower <= 2e-3 * upper


def _listed(p: Law, q: Law) -> tuple[Any, Any]:
    keys = sorted(set(p) | set(q))
    first, second = (np.array([float(law.get(key, 0)) for key in keys]) for law in (p, q))
    return first, second


@pytest.mark.slow
def test_a_uniformity_tester_of_many_is_enclosed_by_its_total_counts() -> None:
    """Given the totals of both labels the losses are those of fair coins: a sum over totals in the test."""
    reports, noise, epsilon = 300, 0.5, 0.8
    totals = poisson_masses(reports * noise)
    order, label_q, label_x, infinite = math.exp(epsilon), [], [], 0.0
    for position, weight in enumerate(totals.values):
        coins = totals.first + position
        if weight < 1e-18 or coins == 0:
            infinite += weight
            continue
        pair = shifted_binomial(coins, 0.5, up=True)
        kept = pair.q > 1e-16
        label_q.append(weight * pair.q[kept])
        label_x.append(pair.x[kept])
    q, x = np.concatenate(label_q), np.concatenate(label_x)
    keys, where = np.unique(np.round(x, 12), return_inverse=True)
    masses = np.bincount(where, weights=q)
    total = sum(
        m * float((masses * np.maximum((1 + k) * (1 + keys) - order, 0)).sum())
        for k, m in zip(keys, masses, strict=True)
        if m > 1e-17
    )
    bounds = _bounds(f"uniformity_tester(noise={noise})", reports, [epsilon])
    assert bounds.lower[0] <= total * (1 + 1e-6)
    assert total * (1 - 1e-6) <= bounds.upper[0]
    assert bounds.upper[0] - bounds.lower[0] <= 5e-3 * bounds.upper[0]


def _parities(values: tuple[int, ...], labels: int, p: float) -> Law:
    """Sums modulo 2 of every label, listed."""
    law: Law = {(): mp.mpf(1)}
    for label in range(labels):
        one = mp.mpf(0)  # probability that the sum is odd
        for value in values:
            flip = mp.mpf("0.5") if value == label else mp.mpf(p)
            one = one * (1 - flip) + (1 - one) * flip
        law = {(*key, bit): m * (one if bit else 1 - one) for key, m in law.items() for bit in (0, 1)}
    return law


@pytest.mark.parametrize("p", [0.02, 0.2])
@pytest.mark.parametrize("users", [2, 6])
def test_distinct_elements_against_every_neighbour(p: float, users: int) -> None:
    epsilons = [0.0, 0.3, 1.0, 3.0]
    bounds = _bounds(f"distinct_elements(p={p})", users, epsilons)
    worst = [mp.mpf(0)] * len(epsilons)
    for others in itertools.combinations_with_replacement(range(3), users - 1):
        first, second = _parities((0, *others), 3, p), _parities((1, *others), 3, p)
        worst = [
            max(seen, _worst(first, second, epsilon)) for seen, epsilon in zip(worst, epsilons, strict=True)
        ]
    for upper, lower, value in zip(bounds.upper, bounds.lower, worst, strict=True):
        assert lower - 1e-15 <= value <= upper + 1e-30
        assert upper - lower <= 1e-7


@pytest.mark.parametrize(("users", "p"), [(302, 0.4569486747387447), (10**6, 0.001)])
def test_what_floats_cannot_hold_of_distinct_elements_is_not_nothing(users: int, p: float) -> None:
    """The bias s, a power of n, underflows."""
    bounds = _bounds(f"distinct_elements(p={p!r})", users, [0.0])
    with mp.workdps(50):
        # A fair bit and one that is 0 with (1 + s)/2, against the two the other way round.
        exact = (1 - 2 * mp.mpf(p)) ** users / 2
        assert bounds.lower[0] <= exact < bounds.upper[0] < 1e-300


def test_distinct_elements_as_published() -> None:
    """With a share h of the users honest, a label alone costs `-ln(1 - (1 - exp(-epsilon))^h)`; two cost less
    than twice that, because a one and a zero are not equally telling."""
    epsilon, users, honest = 0.5, 200, 0.6
    p = -math.expm1(math.log(-math.expm1(-epsilon)) / users) / 2
    label = -math.log1p(-((-math.expm1(-epsilon)) ** honest))
    shuffled = ShuffledRound(
        randomizer=parse_randomizer(f"distinct_elements(p={p!r}, security=200)"),
        reports=users,
        honest_fraction=honest,
    )
    certificate = Accountant().certify({shuffled: 1}, delta=1e-20)
    exact = label + math.log(2 - math.exp(-label))
    assert certificate.epsilon_lower <= exact <= certificate.epsilon_upper * (1 + 1e-12) < 2 * label
    assert certificate.precise


@pytest.mark.slow
def test_what_shares_leak_is_charged() -> None:
    randomizer = parse_randomizer("distinct_elements(p=0.3, security=20)")
    described = ShuffledRound(randomizer=randomizer, reports=40)
    assert described.slack == pytest.approx(2 * 2.0**-20)
    # Nothing else is left at any epsilon, to 15 digits: it is charged as at 0.
    found = Accountant().certify_delta({described: 3}, epsilon=0.5)
    assert found.delta_upper == pytest.approx(3 * 2 * 2 * 2.0**-20, rel=1e-6)


def test_slack_is_charged_however_large_the_losses() -> None:
    """A hundred labels in clear: `exp(epsilon)` times any slack is more than 1, and far beyond a float."""
    shuffled = ShuffledRound(randomizer=parse_randomizer("distinct_elements(p=1e-9)"), reports=10)
    certificate = Accountant().certify({shuffled: 100}, delta=1e-6)
    assert certificate.epsilon_upper == math.inf
    assert not certificate.precise


def test_a_sampled_sum_against_the_protocol_itself() -> None:
    """All datasets of four users, two of them sampled, every noise listed."""
    epsilons = [0.0, 0.2, 0.6]
    upper = _bounds("binomial_sum(p=0.6)", 2, epsilons, sampled_from=4).upper

    def law(values: tuple[int, ...]) -> Law:
        total: Law = {}
        for chosen in itertools.combinations(values, 2):
            for key, mass in _zsum_law(chosen, 0.6).items():
                total[key] = total.get(key, mp.mpf(0)) + mass / 6
        return total

    for others in itertools.product((0, 1), repeat=3):
        for epsilon, bound in zip(epsilons, upper, strict=True):
            assert _worst(law((0, *others)), law((1, *others)), epsilon) <= bound


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.4])
def test_a_sampled_uniformity_tester_is_a_mixture_over_its_honest_users(epsilon: float) -> None:
    """Samples of 2 from 4 users, 3 honest: one or two honest ones, each number with its own noise."""
    noise, exact = 1.0, 0.0
    bounds = _bounds(f"uniformity_tester(noise={noise})", 2, [epsilon], sampled_from=4, honest_fraction=0.75)
    for honest, chance in ((1, 3 / 6), (2, 3 / 6)):
        holds, lacks = _tester_label(noise * honest, 18)
        p, q = _listed(holds, lacks), _listed(lacks, holds)
        rate = honest / 3
        order = 1 + math.expm1(epsilon) / rate
        pair = np.multiply.outer(p[0], q[0]) - order * np.multiply.outer(p[1], q[1])
        exact += chance * rate * float(np.maximum(pair, 0).sum())
    assert bounds.lower[0] <= exact * (1 + 1e-6)
    assert exact <= bounds.upper[0] * (1 + 1e-12)
    assert bounds.upper[0] - bounds.lower[0] <= 2e-3 * bounds.upper[0]


def test_too_few_honest_users_in_a_sample_are_charged_in_full() -> None:
    """Three sampled of ten, seven of them honest: where only one is, distinct elements promises nothing."""
    bounds = _bounds("distinct_elements(p=0.4)", 3, [0.0, 3.0], sampled_from=10, honest_fraction=0.7)
    alone = 7 * math.comb(3, 2) / math.comb(10, 3)
    assert np.all(bounds.upper >= alone / 7)


def test_noise_beyond_what_can_be_listed_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="reports"):
        Accountant().certify(
            {ShuffledRound(randomizer=parse_randomizer("binomial_sum(p=0.5)"), reports=10**12): 1}, delta=1e-6
        )


def _round_of(written: str, **rest: Any) -> Callable[[], ShuffledRound]:
    return lambda: ShuffledRound(randomizer=parse_randomizer(written), **{"reports": 10, **rest})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (_round_of("binomial_sum(p=0.5)", participation=0.5), "participation"),
        (_round_of("declared(epsilon=1)", participation=0.5), "participation"),
        (_round_of("declared(epsilon=1)", honest_fraction=0.5), "honest_fraction"),
        (_round_of("distinct_elements(p=0.1)", honest_fraction=0.1), "honest_fraction"),
        (_round_of("distinct_elements(p=0.1)", reports=1), "reports"),
        (_round_of("binomial_sum(p=0.5)", analysis="blanket"), "analysis"),
        (_round_of("binomial_sum(p=0.5)", delta0=1e-6), "delta0"),
        (_round_of("declared(epsilon=-1)"), "epsilon"),
        (_round_of("declared(epsilon=1, delta=1)"), "delta"),
        (_round_of("declared(epsilon=1, delta=0.5, relation='add-remove')"), "delta"),
        (_round_of("declared(epsilon=1, relation='event')"), "relation"),
        (_round_of("binomial_sum(p=0.5, bits=2.5)"), "bits"),
        (_round_of("uniformity_tester()"), "randomizer"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], ShuffledRound], field: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        make()
    assert caught.value.field == field
    assert "expected" in str(caught.value) or "needs a value for" in str(caught.value)


@pytest.mark.parametrize("times", [1, 3, 60])
def test_what_is_nearly_certain_is_not_called_certain(times: int) -> None:
    """One user's bit is revealed, unless the noise hides it every time, which is very improbable."""
    shuffled = ShuffledRound(randomizer=parse_randomizer("binomial_sum(bits=1, p=0.9)"), reports=1)
    exact = 1 - (1 - Fraction("0.9")) ** times
    certificate = Accountant().certify_delta({shuffled: times}, epsilon=60)
    assert Fraction(certificate.delta_lower) <= exact <= Fraction(certificate.delta_upper)
    assert certificate.delta_lower > exact - Fraction(1, 10**6)
