"""Lower bounds on the true divergence, against the shuffled reports themselves, listed one by one."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    attack_delta,
    attack_epsilon,
    parse_randomizer,
)
from tests.accounting.alike import alike

Law = list[mp.mpf]


def _round(randomizer: str, reports: int, **rest: Any) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), reports=reports, **rest)


def _response(k: int, epsilon0: float) -> list[Law]:
    e = mp.exp(epsilon0)
    return [[(e if x == y else mp.mpf(1)) / (e + k - 1) for y in range(k)] for x in range(k)]


def _shuffled(users: list[Law]) -> Counter[tuple[int, ...]]:
    """The law of how often each output was reported, by users with these laws."""
    total: Counter[tuple[int, ...]] = Counter({(0,) * len(users[0]): mp.mpf(1)})
    for law in users:
        after: Counter[tuple[int, ...]] = Counter()
        for counts, mass in total.items():
            for y, probability in enumerate(law):
                seen = (*counts[:y], counts[y] + 1, *counts[y + 1 :])
                after[seen] += mass * probability
        total = after
    return total


def _most(laws: list[Law], users: int, epsilon: float, rate: float = 1.0) -> mp.mpf:
    """The largest divergence over neighbouring datasets in which all others hold one value; with a rate, the
    user is replaced by one of the others otherwise."""
    found, order = mp.mpf(0), mp.exp(mp.mpf(epsilon))
    for x0, x1 in itertools.permutations(range(len(laws)), 2):
        for other in range(len(laws)):
            mixed = [
                [rate * mine + (1 - rate) * theirs for mine, theirs in zip(laws[x], laws[other], strict=True)]
                for x in (x0, x1)
            ]
            p, q = (_shuffled([law] + [laws[other]] * (users - 1)) for law in mixed)
            found = max(found, mp.fsum(max(p[y] - order * q[y], mp.mpf(0)) for y in p))
    return found


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_a_sampled_user_is_replaced_by_one_of_the_others(epsilon: float) -> None:
    mp.mp.dps = 40
    written, laws = "krr(k=3, epsilon0=1.5)", _response(3, 1.5)
    exact = _most(laws, 3, epsilon, rate=3 / 8)
    bound = attack_delta(_round(written, 3, sampled_from=8), epsilon=epsilon)
    assert bound is not None
    assert exact * 0.999 <= bound <= exact


@pytest.mark.parametrize("rows", [((1, 0, 0), (0, 1, 0), (0, 0, 1)), ((2, 2, 0), (1, 3, 0), (1, 1, 2))])
@pytest.mark.parametrize("joined", [False, True])
def test_a_replacement_may_report_what_the_user_himself_cannot(
    rows: tuple[tuple[int, ...], ...], joined: bool
) -> None:
    mp.mp.dps = 40
    laws = [[mp.mpf(one) / sum(row) for one in row] for row in rows]
    written = f"table({[[one / sum(row) for one in row] for row in rows]})"
    if joined:
        two = _response(2, 0.5)
        laws = [[p * q for p in a for q in b] for a in laws for b in two]
        written = f"joint({written}, krr(k=2, epsilon0=0.5))"
    for users, population, epsilon in ((1, 2, 0.0), (2, 3, 0.1), (2, 9, 0.05)):
        exact = _most(laws, users, epsilon, rate=users / population)
        bound = attack_delta(_round(written, users, sampled_from=population), epsilon=epsilon)
        assert bound is not None
        assert exact * 0.999 <= bound <= exact * (1 + mp.mpf(1e-12))


def test_honest_users_of_a_sample_are_counted_by_the_attacker() -> None:
    """Samples of 3 from 8 users, 5 honest: 0 to 3 honest ones with known probabilities."""
    mp.mp.dps = 40
    written, laws = "krr(k=3, epsilon0=1.5)", _response(3, 1.5)
    for epsilon in (0.0, 0.2):
        exact = mp.mpf(0)
        for honest in (1, 2, 3):
            weight = mp.mpf(math.comb(5, honest) * math.comb(3, 3 - honest)) / math.comb(8, 3)
            exact += weight * _most(laws, honest, epsilon, rate=honest / 5)
        bound = attack_delta(_round(written, 3, sampled_from=8, honest_fraction=0.63), epsilon=epsilon)
        assert bound is not None
        assert exact * 0.999 <= bound <= exact


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["generic", "krr", "rappor", "oue", "blh", "hadamard"]),
    st.floats(0.1, 8.0),
    st.floats(0, 16).map(lambda x: int(math.exp(x))),
    st.floats(-20, -1).map(lambda x: 10**x),
    st.sampled_from([{}, {"participation": 0.2}, {"honest_fraction": 1.0}]),
)
def test_an_attack_never_beats_the_analysis(
    kind: str, epsilon0: float, reports: int, delta: float, rest: dict[str, Any]
) -> None:
    extra = {"krr": ", k=5", "hadamard": ", domain=64"}.get(kind, "")
    shuffled = _round(f"{kind}(epsilon0={epsilon0!r}{extra})", reports, **rest)
    certificate = Accountant().certify({shuffled: 1}, delta=delta)
    attacked = attack_epsilon(shuffled, delta=delta)
    assert attacked is not None
    assert 0 <= attacked <= certificate.epsilon_upper
    found = attack_delta(shuffled, epsilon=attacked)
    assert attacked == 0 or (found is not None and found >= delta * (1 - 1e-9))


def _noisy_sums(values: tuple[int, ...], sample: int, p: float) -> Counter[int]:
    """The law of the number of ones that a sample of users shows, each with its bit and one of noise."""
    law: Counter[int] = Counter()
    chosen = list(itertools.combinations(values, sample))
    for users in chosen:
        for noise in itertools.product((0, 1), repeat=sample):
            mass = mp.fprod(mp.mpf(p) if bit else 1 - mp.mpf(p) for bit in noise) / len(chosen)
            law[sum(users) + sum(noise)] += mass
    return law


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2])
def test_one_dataset_is_attacked_however_many_of_its_users_are_sampled(epsilon: float) -> None:
    """Three honest users of four, three of whom are sampled: what tells most of two honest reports is not
    what tells most of three, but everybody's value is the same in both cases."""
    mp.mp.dps = 40
    p, order, exact = 0.7, mp.exp(mp.mpf(epsilon)), mp.mpf(0)
    shuffled = _round(f"binomial_sum(p={p})", 3, sampled_from=4, honest_fraction=0.75)
    for others in itertools.combinations_with_replacement((0, 1), 2):
        for values in ((0, *others), (1, *others)), ((1, *others), (0, *others)):
            told = mp.mpf(0)
            for honest, weight in (2, mp.mpf(3) / 4), (3, mp.mpf(1) / 4):
                first, second = (_noisy_sums(one, honest, p) for one in values)
                told += weight * mp.fsum(max(first[y] - order * second[y], mp.mpf(0)) for y in first)
            exact = max(exact, told)
    bound = attack_delta(shuffled, epsilon=epsilon)
    assert bound is not None
    assert exact * (1 - mp.mpf(1e-7)) <= bound <= exact
    assert exact < Accountant().certify_delta({shuffled: 1}, epsilon=epsilon).delta_lower


def test_of_a_declared_round_nothing_but_its_declaration_is_known() -> None:
    shuffled = _round("declared(epsilon=1)", 10)
    assert attack_delta(shuffled, epsilon=0.1) is None
    assert attack_epsilon(shuffled, delta=1e-3) is None


def test_reports_that_tell_nothing_are_attacked_in_vain() -> None:
    shuffled = _round("table([[0.5, 0.5], [0.5, 0.5]])", 10)
    assert attack_epsilon(shuffled, delta=1e-6) == 0.0
    assert attack_delta(shuffled, epsilon=0.0) == 0.0


def test_pairwise_independent_hashes_are_not_attacked_with_a_third_value() -> None:
    """Without a domain the hash may be pairwise independent: the others hold one of the two values."""
    assert len(parse_randomizer("blh(epsilon0=1)").witnesses()) == 1
    assert len(parse_randomizer("blh(epsilon0=1, domain=8)").witnesses()) == 2


@pytest.mark.parametrize("other", [None, "krr(k=2, epsilon0=1)", 3, ()])
def test_what_is_no_round_is_refused(other: Any) -> None:
    asked = (
        lambda: attack_delta(other, epsilon=1),
        lambda: attack_epsilon(other, delta=0.1),
        lambda: Accountant().privacy_loss(other),
        lambda: Accountant().certify({other: 1}, delta=0.1),
    )
    for one in asked:
        with pytest.raises(InvalidParameter, match="ShuffledRound"):
            one()
