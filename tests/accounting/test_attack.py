"""Lower bounds on the true divergence, against the shuffled reports themselves, listed one by one."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import mpmath as mp
import numpy as np
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
from shuffle_ledger.accounting.comparison.attacks import WitnessProfile
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting.alike import alike

Law = list[mp.mpf]


def _round(randomizer: str, reports: int, **rest: Any) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), reports=reports, **rest)


def _response(k: int, epsilon0: float) -> list[Law]:
    e = mp.exp(epsilon0)
    return [[(e if x == y else mp.mpf(1)) / (e + k - 1) for y in range(k)] for x in range(k)]


def _unary(kept: mp.mpf, flipped: mp.mpf) -> list[Law]:
    laws = []
    for x in range(3):
        law = []
        for bits in itertools.product((0, 1), repeat=3):
            ones = [kept if i == x else flipped for i in range(3)]
            law.append(mp.fprod(one if bit else 1 - one for one, bit in zip(ones, bits, strict=True)))
        laws.append(law)
    return laws


def _rows(epsilon0: float) -> list[Law]:
    """The first three rows of a Hadamard matrix: one is the product of the other two."""
    e = mp.exp(epsilon0)
    return [[(1 if (x & y).bit_count() % 2 else e) / (e + 1) / 4 for y in range(8)] for x in (1, 2, 3)]


def _signs(epsilon0: float) -> list[Law]:
    """Hashes of three values to a bit each."""
    e = mp.exp(epsilon0)
    patterns = list(itertools.product((0, 1), repeat=3))
    return [[(e if hits[x] else mp.mpf(1)) / (e + 1) / 4 for hits in patterns] for x in range(3)]


def _laws(kind: str, epsilon0: float) -> tuple[str, list[Law]]:
    """How the randomizer is written, and its reports' laws under three values."""
    e, x = mp.exp(epsilon0), mp.exp(mp.mpf(epsilon0) / 2)
    return {
        "krr": (f"krr(k=3, epsilon0={epsilon0!r})", _response(3, epsilon0)),
        "binary": (f"krr(k=2, epsilon0={epsilon0!r})", _response(2, epsilon0)),
        "rappor": (f"rappor(domain=3, epsilon0={epsilon0!r})", _unary(x / (x + 1), 1 / (x + 1))),
        "oue": (f"oue(domain=3, epsilon0={epsilon0!r})", _unary(mp.mpf(1) / 2, 1 / (e + 1))),
        "blh": (f"blh(domain=3, epsilon0={epsilon0!r})", _signs(epsilon0)),
        "hadamard": (f"hadamard(domain=8, epsilon0={epsilon0!r})", _rows(epsilon0)),
    }[kind]


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


@pytest.mark.parametrize("kind", ["krr", "binary", "rappor", "oue", "blh", "hadamard"])
@pytest.mark.parametrize(("users", "epsilon0"), [(1, 0.7), (2, 2.0), (3, 1.0), (3, 4.0)])
def test_the_bound_is_the_divergence_of_the_worst_dataset_of_its_kind(
    kind: str, users: int, epsilon0: float
) -> None:
    mp.mp.dps = 40
    written, laws = _laws(kind, epsilon0)
    for epsilon in (0.0, 0.3 * epsilon0, 0.8 * epsilon0):
        exact = _most(laws, users, epsilon)
        bound = attack_delta(_round(written, users), epsilon=epsilon)
        assert bound is not None
        assert bound <= exact
        assert bound >= exact * 0.999 - 1e-12


@pytest.mark.slow
def test_reports_of_several_parts_are_attacked_in_every_part() -> None:
    mp.mp.dps = 40
    three, two = _response(3, 1.0), _response(2, 0.5)
    joint = [[p * q for p in a for q in b] for a in three for b in two]
    parallel = [[p / 4 for p in a] + [3 * q / 4 for q in b] for a in three for b in two]
    parts = "krr(k=3, epsilon0=1), krr(k=2, epsilon0=0.5)"
    first, second = parts.split("), ")
    for written, laws in (
        (f"joint({parts})", joint),
        (f"parallel((0.25, {first})), (0.75, {second}))", parallel),
    ):
        for epsilon in (0.0, 0.3):
            exact = _most(laws, 2, epsilon)
            bound = attack_delta(_round(written, 2), epsilon=epsilon)
            assert bound is not None
            assert 0.99 * exact <= bound <= exact


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=3),
    st.floats(0, 2),
    st.integers(1, 3),
)
def test_tables_are_attacked_by_their_own_rows(rows: list[list[int]], epsilon: float, users: int) -> None:
    mp.mp.dps = 40
    masses = [[weight + (0 if sum(row) else 1) for weight in row] for row in rows]
    laws = [[mp.mpf(weight) / sum(row) for weight in row] for row in masses]
    table = [[weight / sum(row) for weight in row] for row in masses]
    bound = attack_delta(_round(f"table({table})", users), epsilon=epsilon)
    assert bound is not None
    assert bound <= _most(laws, users, epsilon) * (1 + mp.mpf(1e-12)) + mp.mpf(1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_a_sampled_user_is_replaced_by_one_of_the_others(epsilon: float) -> None:
    mp.mp.dps = 40
    written, laws = _laws("krr", 1.5)
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
    written, laws = _laws("krr", 1.5)
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


def test_an_attack_comes_close_where_analyses_are_tight() -> None:
    """Ten-ary response of a thousand users: the bounds are within a permille; generic: within a quarter."""
    shuffled = _round("krr(k=10, epsilon0=2)", 1000)
    certificate = Accountant().certify({shuffled: 1}, delta=1e-6)
    assert attack_epsilon(shuffled, delta=1e-6) >= 0.999 * certificate.epsilon_lower  # type: ignore[operator]
    generic = _round("generic(epsilon0=4)", 10**5)
    certificate = Accountant().certify({generic: 1}, delta=1e-6)
    assert attack_epsilon(generic, delta=1e-6) >= 0.99 * certificate.epsilon_lower  # type: ignore[operator]


def _noisy_sums(values: tuple[int, ...], sample: int, p: float) -> Counter[int]:
    """The law of the number of ones that a sample of users shows, each with its bit and one of noise."""
    law: Counter[int] = Counter()
    chosen = list(itertools.combinations(values, sample))
    for users in chosen:
        for noise in itertools.product((0, 1), repeat=sample):
            mass = mp.fprod(mp.mpf(p) if bit else 1 - mp.mpf(p) for bit in noise) / len(chosen)
            law[sum(users) + sum(noise)] += mass
    return law


def _parities(values: tuple[int, ...], sample: int, p: float) -> Counter[tuple[int, int]]:
    """Sums modulo 2 of two labels, over a sample: a fair bit of every user for its own, else 1 with p."""
    law: Counter[tuple[int, int]] = Counter()
    chosen = list(itertools.combinations(values, sample))
    for users in chosen:
        odd = []
        for label in (0, 1):
            one = mp.mpf(0)
            for value in users:
                flip = mp.mpf("0.5") if value == label else mp.mpf(p)
                one = one * (1 - flip) + (1 - one) * flip
            odd.append(one)
        for first, second in itertools.product((0, 1), repeat=2):
            mass = (odd[0] if first else 1 - odd[0]) * (odd[1] if second else 1 - odd[1])
            law[first, second] += mass / len(chosen)
    return law


@pytest.mark.parametrize("population", [3, 5])
@pytest.mark.parametrize("kind", ["binomial_sum", "distinct_elements"])
def test_protocols_are_attacked_by_datasets_that_attain_the_bound(kind: str, population: int) -> None:
    """Three users, or a sample of three: the largest divergence over all neighbouring datasets."""
    mp.mp.dps = 40
    p, users = (0.7, 3) if kind == "binomial_sum" else (0.2, 3)
    law: Any = _noisy_sums if kind == "binomial_sum" else _parities
    choices = (0, 1) if kind == "binomial_sum" else (0, 1, 2)
    rest = {"sampled_from": population} if population > users else {}
    for epsilon in (0.0, 0.1, 0.5):
        order, exact = mp.exp(mp.mpf(epsilon)), mp.mpf(0)
        for others in itertools.combinations_with_replacement(choices, population - 1):
            for x0, x1 in ((0, 1), (1, 0)):
                first, second = (law((x, *others), users, p) for x in (x0, x1))
                exact = max(exact, mp.fsum(max(first[y] - order * second[y], mp.mpf(0)) for y in first))
        bound = attack_delta(_round(f"{kind}(p={p})", users, **rest), epsilon=epsilon)
        assert bound is not None
        assert 0 < bound <= exact * (1 + mp.mpf(1e-12)) or exact == bound == 0
        if kind == "binomial_sum" or not rest:
            assert bound >= exact * (1 - mp.mpf(1e-7))


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    ["binomial_histogram(p=0.5)", "uniformity_tester(noise=1)", "binomial_sum(p=0.9)", "laplace(epsilon0=1)"],
)
@pytest.mark.parametrize("rest", [{}, {"sampled_from": 400, "honest_fraction": 0.9}])
def test_attacks_stay_below_what_is_certified(written: str, rest: dict[str, Any]) -> None:
    shuffled = _round(written, 40, **rest)
    attacked = attack_delta(shuffled, epsilon=0.01)
    certified = RoundProfile(shuffled, smoothing=0.01)(np.expm1([0.01]))
    assert attacked is not None
    assert 0.3 * certified.lower[0] <= attacked <= certified.upper[0]


@pytest.mark.slow
def test_laplace_noise_is_attacked_by_its_cells() -> None:
    """Two users, one of whom holds 1: an integral over both reports."""
    mp.mp.dps = 20
    scale, epsilon = 1.0, 0.2

    def law(y: float, x: int) -> float:
        return scale / 2 * math.exp(-scale * abs(y - x))

    grid = np.linspace(-12, 13, 2501)
    first, second = (np.array([law(y, x) for y in grid]) for x in (0, 1))
    p, q = np.multiply.outer(first, second), np.multiply.outer(second, second)
    p, order = (p + p.T) / 2, math.exp(epsilon)
    exact = max(float(np.maximum(one - order * two, 0).sum()) * 0.01**2 for one, two in ((p, q), (q, p)))
    bound = attack_delta(_round("laplace(epsilon0=1)", 2), epsilon=epsilon)
    assert bound is not None
    assert 0.98 * exact <= bound <= exact * 1.001


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


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf, "1", None])
def test_bad_epsilon_is_refused(epsilon: Any) -> None:
    with pytest.raises(InvalidParameter, match="epsilon"):
        attack_delta(_round("krr(k=3, epsilon0=1)", 10), epsilon=epsilon)


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


@pytest.mark.parametrize(
    "written",
    [
        "rappor(epsilon0={})",
        "oue(epsilon0={})",
        "parallel((0.5, rappor(epsilon0={})), (0.5, blh(epsilon0=1)))",
    ],
)
@pytest.mark.parametrize("epsilon0", [21.0, 25.0, 30.0])
def test_bits_that_are_hardly_ever_flipped_are_attacked(written: str, epsilon0: float) -> None:
    """Whose masses once summed to no more than 1 - 1e-11, and were refused."""
    shuffled = alike(randomizer=parse_randomizer(written.format(epsilon0)), reports=5)
    found = attack_delta(shuffled, epsilon=1.0)
    assert found is not None
    assert 0.2 < found <= Accountant().certify_delta({shuffled: 1}, epsilon=1.0).delta_upper


@pytest.mark.slow
@pytest.mark.parametrize("written", ["krr(k=4, epsilon0=2)"])
def test_attacks_on_samples_look_where_the_usual_number_says(written: str) -> None:
    shuffled = alike(
        randomizer=parse_randomizer(written),
        reports=60,
        sampled_from=2_000,
        honest_fraction=0.6,
    )
    found = attack_epsilon(shuffled, delta=1e-7)
    assert found is not None
    profile = WitnessProfile(shuffled, shuffled.randomizer.witnesses())
    reach = profile.loss_within_reach(1e-7)
    grid = np.union1d(np.linspace(0.0, reach, 30), found * np.linspace(0.99, 1.02, 16))
    certain = grid[np.flatnonzero(profile(np.expm1(grid)) >= 1e-7)[-1]]
    assert found >= certain * (1 - 2e-3)
    assert profile(np.expm1(np.array([found])))[0] >= 1e-7 * (1 - 1e-9)
    assert found <= Accountant().certify({shuffled: 1}, delta=1e-7).epsilon_upper
