"""One-bit reports of which a random number is honest, or sent at all: every dataset, sample and coin listed
in fractions, against the theorem and against the bounds that are computed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.amplification.binary_reports import profile
from shuffle_ledger.accounting.amplification.binary_reports.few import EveryDataset
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.binary_reports.thinned import ThinnedProfile
from shuffle_ledger.accounting.comparison.attacks import attack_epsilon
from shuffle_ledger.accounting.randomizers.notation import parse_randomizer
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from tests.accounting.datasets import Array

# The probability of a one under the first input and under the second; every float is exact.
CHANCES = {
    "table([[0.25, 0.75], [0.75, 0.25]])": (0.75, 0.25),
    "table([[0.0625, 0.9375], [0.9375, 0.0625]])": (0.9375, 0.0625),
    "table([[0.75, 0.25], [0.9375, 0.0625]])": (0.25, 0.0625),
    "table([[0.125, 0.875], [0.5, 0.5]])": (0.875, 0.5),
}
SHARES = [Fraction(0), Fraction(1, 50), Fraction(1, 10), Fraction(3, 10), Fraction(6, 10), Fraction(9, 10)]
Law = dict[tuple[object, ...], Fraction]


@functools.cache
def ones(chances: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Returns the law of the number of ones among reports with these chances."""
    law = [Fraction(1)]
    for one in chances:
        law = [
            (1 - one) * (law[t] if t < len(law) else 0) + one * (law[t - 1] if t else 0)
            for t in range(len(law) + 1)
        ]
    return tuple(law)


def divergence(p: Law, q: Law, order: Fraction) -> Fraction:
    return sum((max(mass - order * q.get(seen, 0), Fraction(0)) for seen, mass in p.items()), Fraction(0))


def largest_divergence(pairs: Iterable[tuple[Law, Law]], order: Fraction) -> Fraction:
    """Returns the largest divergence of the pairs, in both directions."""
    return max(max(divergence(p, q, order), divergence(q, p, order)) for p, q in pairs)


@functools.cache
def worst_of_all_sent(chances: tuple[Fraction, Fraction], users: int, order: Fraction) -> Fraction:
    """Returns the largest divergence over all neighbouring datasets if all users certainly report."""
    pairs = []
    for firsts in range(users):
        others = (chances[0],) * firsts + (chances[1],) * (users - 1 - firsts)
        laws: list[Law] = [{(t,): mass for t, mass in enumerate(ones((one, *others)))} for one in chances]
        pairs.append((laws[0], laws[1]))
    return largest_divergence(pairs, order)


def with_coin(chances: Sequence[Fraction], share: Fraction) -> Law:
    """Returns the law of the numbers of ones and of zeros if each user reports with probability `share`."""
    law: Law = {}
    for reporting in itertools.product((0, 1), repeat=len(chances)):
        sent = tuple(one for one, says in zip(chances, reporting, strict=True) if says)
        chance = share ** len(sent) * (1 - share) ** (len(chances) - len(sent))
        for count, mass in enumerate(ones(sent)):
            seen = (count, len(sent) - count)
            law[seen] = law.get(seen, Fraction(0)) + chance * mass
    return law


def with_sample(honest: Sequence[Fraction], dishonest: int, sample: int, *, told: bool) -> Law:
    """Returns what is seen of a sample without replacement of honest users with these chances and of
    dishonest ones, who send alternating bits.

    Args:
        told: whether the observer also sees which dishonest users are in the sample, so that their reports
            can be taken out; else the multiset of all reports alone.
    """
    law: Law = {}
    samples = list(itertools.combinations(range(len(honest) + dishonest), sample))
    for chosen in samples:
        known = tuple(user for user in chosen if user >= len(honest))
        sent = sum(user % 2 for user in known)
        for count, mass in enumerate(ones(tuple(honest[user] for user in chosen if user < len(honest)))):
            seen = (known, count) if told else (sent + count,)
            law[seen] = law.get(seen, Fraction(0)) + mass / len(samples)
    return law


def of_every_number(
    numbers: dict[int, Fraction], honest: int, chances: tuple[Fraction, Fraction], excess: Fraction
) -> Fraction:
    """Returns the theorem's mean of `s sup D_j(1 + excess/s)`, `s = j/honest`, over the numbers j."""
    total = Fraction(0)
    for number, weight in numbers.items():
        if number:
            rate = Fraction(number, honest)
            total += weight * rate * worst_of_all_sent(chances, number, 1 + excess / rate)
    return total


def exactly(text: str) -> tuple[Fraction, Fraction]:
    first, second = CHANCES[text]
    return Fraction(first), Fraction(second)


def orders_of(chances: tuple[Fraction, Fraction], rate: Fraction) -> list[Fraction]:
    """Returns excesses up to the last one at which a round of this rate reveals something."""
    first, second = chances
    return [share * rate * (max(first / second, (1 - second) / (1 - first)) - 1) for share in SHARES]


def upper_of(text: str, reports: int, excess: list[Fraction], **fields: Any) -> list[Fraction]:
    """Returns the upper bounds that are computed at these orders or just below."""
    shuffled = ShuffledRound(randomizer=parse_randomizer(text), reports=reports, analysis="exact", **fields)
    assert shuffled.analysis == "exact"
    found = RoundProfile(shuffled, smoothing=0.05)(rounded_down(excess)).upper
    return [Fraction(one) for one in found.tolist()]


def rounded_down(excess: list[Fraction]) -> Array:
    return np.array([math.nextafter(float(one), 0.0) for one in excess])


def datasets(chances: tuple[Fraction, Fraction], users: int) -> Iterable[list[list[Fraction]]]:
    """Yields both neighbours' chances for every dataset of the others, up to the order of users."""
    for firsts in range(users):
        others = [chances[0]] * firsts + [chances[1]] * (users - 1 - firsts)
        yield [[one, *others] for one in chances]


@pytest.mark.parametrize("users", [1, 2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", [0.125, 0.5, 0.9375])
@pytest.mark.parametrize("text", CHANCES)
def test_no_dataset_with_a_coin_is_above_the_theorem(text: str, share: float, users: int) -> None:
    chances, coin = exactly(text), Fraction(share)
    numbers = {j: math.comb(users, j) * coin**j * (1 - coin) ** (users - j) for j in range(users + 1)}
    excess = orders_of(chances, coin)
    bounds = upper_of(text, users, excess, participation=share)
    profile = parse_randomizer(text).profile("exact", participation=share, smoothing=0.05, outcomes=10_000)
    assert isinstance(profile, ThinnedProfile)
    by_bits = profile.thinned(users, rounded_down(excess)).upper.tolist()
    laws = [[with_coin(one, coin) for one in both] for both in datasets(chances, users)]
    for one, bound, bits in zip(excess, bounds, by_bits, strict=True):
        truth = largest_divergence([(p, q) for p, q in laws], 1 + one)
        assert truth <= of_every_number(numbers, users, chances, one)
        assert truth <= min(bound, Fraction(bits))


SAMPLES = [(1, 1, 1), (2, 1, 2), (3, 2, 2), (3, 2, 4), (4, 1, 3), (4, 3, 5), (5, 2, 3), (5, 2, 6), (6, 1, 2)]


@pytest.mark.parametrize(("honest", "dishonest", "sample"), SAMPLES)
@pytest.mark.parametrize("text", CHANCES)
def test_no_partly_honest_sample_is_above_the_theorem(
    text: str, honest: int, dishonest: int, sample: int
) -> None:
    chances, users = exactly(text), honest + dishonest
    numbers = {
        j: Fraction(math.comb(honest, j) * math.comb(dishonest, sample - j), math.comb(users, sample))
        for j in range(max(0, sample - dishonest), min(honest, sample) + 1)
    }
    excess = orders_of(chances, Fraction(min(honest, sample), honest))
    fraction = (honest + 0.5) / users
    bounds: list[Fraction] | list[None] = [None] * len(excess)
    if math.floor(fraction * sample) >= 1:
        bounds = upper_of(text, sample, excess, sampled_from=users, honest_fraction=fraction)
    laws = [
        [with_sample(one, dishonest, sample, told=told) for one in both]
        for both in datasets(chances, honest)
        for told in (True, False)
    ]
    for one, bound in zip(excess, bounds, strict=True):
        truth = largest_divergence([(p, q) for p, q in laws], 1 + one)
        theorem = of_every_number(numbers, honest, chances, one)
        assert truth <= theorem
        assert bound is None or truth <= bound <= theorem * (1 + Fraction(1, 50_000)) + Fraction(1, 10**30)


@pytest.mark.parametrize("epsilon0", [1.0, 4.0])
@pytest.mark.parametrize("users", [60, 700])
@pytest.mark.parametrize("lines", [0.0, profile.FEW_LINES_OF_MIXTURE])
def test_bounds_for_a_mixture_enclose_the_largest_of_every_dataset(
    users: int, epsilon0: float, lines: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few orders are computed, with lines between: no bound is on the wrong side at any order, whether
    datasets are listed or their law is tilted."""
    monkeypatch.setattr(profile, "FEW_LINES_OF_MIXTURE", lines)
    law = BitLaw.of_response(epsilon0)
    randomizer = parse_randomizer(f"krr(k=2, epsilon0={epsilon0})")
    computed = randomizer.profile("exact", participation=1.0, smoothing=0.05, outcomes=0).for_mixture()
    deviation = math.sqrt(law.a * law.not_a * users)
    end = min(9 * law.gap / deviation, math.expm1(epsilon0))
    truth = EveryDataset(law, users - 1)
    for excess in (np.linspace(0, end, 900), np.append(0.0, np.geomspace(1e-6 * end, end, 500))):
        exact, found = truth.bounds(excess), computed.bounds(users, excess)
        assert np.all(found.upper >= exact.lower)
        assert np.all(found.lower <= exact.upper)
        seen = exact.lower > 1e-20
        assert np.median(found.upper[seen] / found.lower[seen]) <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon0", "reports", "fields", "gain"),
    [
        (1.0, 10_000, {"participation": 0.9}, 1.19),
        (2.0, 10**6, {"participation": 0.1}, 1.33),
        (4.0, 10**6, {"participation": 0.1}, 1.34),
        (1.0, 10_000, {"sampled_from": 100_000, "honest_fraction": 0.5}, 1.21),
        (2.0, 100_000, {"sampled_from": 10**6, "honest_fraction": 0.8}, 1.35),
    ],
)
def test_the_bound_is_between_the_attack_and_the_blanket(
    epsilon0: float, reports: int, fields: dict[str, Any], gain: float
) -> None:
    randomizer = parse_randomizer(f"krr(k=2, epsilon0={epsilon0})")
    exact, blanket = (
        ShuffledRound(randomizer=randomizer, reports=reports, analysis=one, **fields)
        for one in (None, "blanket")
    )
    found, wider = (Accountant().certify({one: 1}, delta=1e-6) for one in (exact, blanket))
    attack = attack_epsilon(exact, delta=1e-6)
    assert attack is not None
    assert attack <= found.epsilon_upper <= wider.epsilon_upper / gain


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon0", "share"), [(0.01, 0.5), (1.0, 1e-200), (2.0, 0.05), (6.0, 0.999)])
def test_few_bits_with_a_coin_have_the_bound_of_the_blanket(epsilon0: float, share: float) -> None:
    """Where the theorem's bound would be larger, or delta too rare, it is not computed."""
    randomizer = parse_randomizer(f"krr(k=2, epsilon0={epsilon0})")
    exact, blanket = (
        ShuffledRound(randomizer=randomizer, reports=1_000, participation=share, analysis=one)
        for one in ("exact", "blanket")
    )
    found, wider = (Accountant().certify_delta({one: 1}, epsilon=0.001) for one in (exact, blanket))
    assert found.delta_upper == wider.delta_upper
