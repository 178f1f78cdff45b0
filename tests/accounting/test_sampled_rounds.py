"""Sampling and slots: against the mechanism itself, every sample and every report listed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shuffle_ledger.accounting import (
    Accountant,
    Parallel,
    ShuffledRound,
    calibrate,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.rounds import round_profile
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting import exact_sums
from tests.accounting.alike import alike
from tests.accounting.datasets import largest, shuffled


@pytest.mark.slow
@pytest.mark.parametrize(("k", "users", "sample"), [(2, 4, 2), (2, 5, 3), (3, 4, 2), (3, 3, 3), (2, 4, 1)])
@pytest.mark.parametrize("epsilon0", [0.5, 1.5, 3.0])
def test_no_neighbouring_datasets_tell_more(k: int, users: int, sample: int, epsilon0: float) -> None:
    """Every dataset of the others, both directions, sampled and unsampled: the true divergence stays below
    the bound."""
    weights = np.exp(epsilon0 * np.eye(k))
    table = weights / weights.sum(axis=1, keepdims=True)
    shuffled_round = alike(
        randomizer=parse_randomizer(f"krr(k={k}, epsilon0={epsilon0})"),
        reports=sample,
        sampled_from=users,
    )
    epsilons = [0.0, 0.2 * epsilon0, 0.6 * epsilon0]
    bounds = [Accountant().certify_delta({shuffled_round: 1}, epsilon=one).delta_upper for one in epsilons]
    for others in itertools.combinations_with_replacement(range(k), users - 1):
        laws = []
        for x in range(k):
            samples = itertools.combinations((x, *others), sample)
            laws.append(np.mean([shuffled(table[list(chosen)]) for chosen in samples], axis=0))
        assert np.all(largest(laws, np.exp(epsilons).tolist()) <= np.array(bounds) * (1 + 1e-12))


@pytest.mark.slow
def test_honest_fraction_under_sampling_is_the_hypergeometric_mixture(oracle: Any) -> None:
    """Every number of honest users in the sample, with its own rate: `sum_j Pr[j] s_j H^(j)(1 + (e^eps -
    1)/s_j)`."""
    population, sample, fraction = 20, 8, 0.7
    honest = 14
    shuffled = alike(
        randomizer=parse_randomizer("krr(k=2, epsilon0=1)"),
        reports=sample,
        sampled_from=population,
        honest_fraction=fraction,
    )
    masses = shuffled.randomizer.analysis("blanket").decomposition.merged()
    for epsilon in (0.0, 0.1, 0.3):
        exact = mp.mpf(0)
        for j in range(max(1, sample - (population - honest)), min(sample, honest) + 1):
            weight = mp.mpf(math.comb(honest, j) * math.comb(population - honest, sample - j))
            weight /= math.comb(population, sample)
            rate = mp.mpf(j) / honest
            inner = mp.log(1 + mp.expm1(mp.mpf(epsilon)) / rate)
            exact += weight * rate * oracle.delta(oracle.blanket_outcomes(masses, j), inner)
        certificate = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
        assert certificate.delta_lower <= exact <= certificate.delta_upper
        assert certificate.delta_upper - certificate.delta_lower <= 0.02 * certificate.delta_upper


@pytest.mark.parametrize("seed", range(6))
def test_cells_of_numbers_enclose_the_sum_over_every_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells from single numbers to two deviations, few orders and many: each between the bounds, by sums
    over clones."""
    random = np.random.default_rng(seed)
    epsilon0 = float(random.uniform(0.3, 3.0))
    population, sample = 300 + int(random.integers(300)), 40 + int(random.integers(120))
    fraction = round(float(random.uniform(0.2, 0.97)), 3)
    shuffled = alike(
        randomizer=parse_randomizer(f"generic(epsilon0={epsilon0!r})"),
        reports=sample,
        sampled_from=population,
        honest_fraction=fraction,
    )
    honest = math.floor(fraction * population)
    share, e = sample / population, math.exp(epsilon0)
    largest = math.log1p(share * (e - 1))
    epsilons = np.linspace(0.0, largest, 9)[:-1]
    law = stats.hypergeom(population, honest, sample)
    exact = np.zeros(len(epsilons))
    for j in range(1, sample + 1):
        if law.pmf(j) < 1e-18:
            continue
        pair = exact_sums.clones(j, 2 / (1 + e), e / (1 + e))
        rate = j / honest
        found = [pair.delta(math.log1p(math.expm1(epsilon) / rate)) for epsilon in epsilons]
        exact += law.pmf(j) * rate * np.array(found)
    many = np.union1d(epsilons, np.linspace(0.0, largest, 400))
    for cell, smoothing, width in ((2.0, 0.5, 1.0), (0.8, 0.014, 1.0), (1e-3, 0.014, 0.02)):
        monkeypatch.setattr(round_profile, "CELL_DEVIATIONS", cell)
        profile = RoundProfile(shuffled, smoothing=smoothing)
        for orders in (epsilons, many):
            bounds = profile(np.expm1(orders))
            at = np.searchsorted(orders, epsilons)
            upper, lower = bounds.upper[at], bounds.lower[at]
            assert np.all(lower <= exact * (1 + 1e-10) + 1e-15)
            assert np.all(exact <= upper * (1 + 1e-10) + 1e-15)
            seen = exact > 1e-12
            assert np.all((upper - lower)[seen] <= width * upper[seen])


@pytest.mark.parametrize(
    ("written", "reports", "fraction"),
    [
        ("generic(epsilon0=1)", 10_000, 0.8),
        ("rappor(epsilon0=2)", 20, 0.8),
        ("hadamard(epsilon0=4, domain=64)", 1000, 0.5),
        ("generic(epsilon0=1)", 9, 0.6),
    ],
)
def test_epsilon_of_a_partly_honest_sample_is_known_to_a_tenth(
    written: str, reports: int, fraction: float
) -> None:
    shuffled = alike(
        randomizer=parse_randomizer(written),
        reports=reports,
        sampled_from=10 * reports,
        honest_fraction=fraction,
    )
    accountant = Accountant()
    for rounds, delta in ((1, 1e-6), (1, 1e-12), (100, 1e-8)):
        certificate = accountant.certify({shuffled: rounds}, delta=delta)
        assert certificate.epsilon_lower > 0
        assert certificate.epsilon_upper <= 1.1 * certificate.epsilon_lower, (rounds, delta)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.integers(1, 10**12), st.integers(1, 10**12), st.floats(1e-6, 1.0))
def test_slots_round_to_the_safe_side_by_less_than_a_percent(first: int, second: int, rate: float) -> None:
    reports, population = min(first, second), max(first, second)
    krr = parse_randomizer("krr(k=4, epsilon0=1)")
    plain = slot_for(alike(randomizer=krr, reports=reports))
    assert reports / 1.0101 - 1 <= plain.reports <= reports
    assert slot_for(plain) == plain
    sampled = slot_for(alike(randomizer=krr, reports=reports, sampled_from=population))
    assert sampled.sampled_from is not None
    assert sampled.reports <= reports
    assert sampled.reports * population >= reports * sampled.sampled_from  # the rate only rises, in integers
    if reports > 1000:
        assert sampled.reports / sampled.sampled_from <= reports / population * 1.0202
    coin = slot_for(alike(randomizer=krr, reports=reports, participation=rate))
    assert coin.participation is not None
    assert rate <= coin.participation <= rate * 1.0101


@pytest.mark.slow
@pytest.mark.parametrize("sampled_from", [None, 4000])
def test_a_slot_dominates_the_rounds_in_it(sampled_from: int | None) -> None:
    accountant = Accountant()
    for reports in (1003, 1234, 1777):
        shuffled = alike(
            randomizer=parse_randomizer("krr(k=4, epsilon0=1)"),
            reports=reports,
            sampled_from=sampled_from,
        )
        slot = slot_for(shuffled)
        assert slot != shuffled
        for epsilon in (0.0, 0.05, 0.2):
            inside = accountant.certify_delta({shuffled: 1}, epsilon=epsilon)
            outside = accountant.certify_delta({slot: 1}, epsilon=epsilon)
            assert inside.delta_lower <= outside.delta_upper


def test_sampled_rounds_with_dishonest_users_are_their_own_slot() -> None:
    """At 55 of 56 users with 55 % honest, fewer reports at a higher rate cost less: no ordering holds."""
    shuffled = alike(
        randomizer=parse_randomizer("generic(epsilon0=1)"),
        reports=155,
        sampled_from=157,
        honest_fraction=0.55,
    )
    assert slot_for(shuffled) == shuffled


def test_a_smaller_sample_of_the_same_population_is_no_slot() -> None:
    """Why the rate is rounded up with the count rounded down: fewer reports at equal population are not
    dominated."""
    accountant = Accountant()
    krr = parse_randomizer("krr(k=4, epsilon0=1)")
    large = accountant.certify_delta(
        {alike(randomizer=krr, reports=900, sampled_from=1000): 1},
        epsilon=0.1,
    )
    small = accountant.certify_delta(
        {alike(randomizer=krr, reports=20, sampled_from=1000): 1},
        epsilon=0.1,
    )
    assert small.delta_upper < large.delta_lower


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("reports", (0, -1, 10**12 + 1, 1.0, float("nan"), float("inf"), "10", True, None)),
        ("sampled_from", (0, 9, -5, 10**12 + 1, 20.0)),
        ("participation", (0, -0.1, 1.1, float("nan"), "x", 1e-320)),
        ("honest_fraction", (0, -1, 1.01, 0.05, float("inf"))),
        ("delta0", (-1e-9, 1, float("nan"))),
        ("analysis", ("clone", "", 3)),
    ],
)
def test_bad_rounds_are_refused_by_field(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        arguments = {"randomizer": parse_randomizer("krr(k=3, epsilon0=1)"), "reports": 10, field: value}
        with pytest.raises(InvalidParameter) as caught:
            ShuffledRound(**arguments)
        assert caught.value.field == field
        assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        "krr(k=1, epsilon0=1)",
        "krr(k=2.5, epsilon0=1)",
        "krr(k=3, epsilon0=0)",
        "krr(k=3, epsilon0=-1)",
        "krr(k=3, epsilon0=30.001)",
        "krr(k=3, epsilon0=1e309)",
        "krr(k=3)",
        "krr(k=3, epsilon0=1, domain=4)",
        "krr(3, 1)",
        "krr(k=3, k=4, epsilon0=1)",
        "krr",
        "nothing(epsilon0=1)",
        "hadamard(epsilon0=1, domain=63)",
        "blh(epsilon0=1, domain=2)",
        "__import__('os')",
        "krr(k=3, epsilon0=(lambda: 1)())",
        "",
        "(" * 3000,
        {"kind": "krr", "epsilon0": 1},
        {"kind": ["krr"]},
        None,
        7,
    ],
)
def test_bad_randomizers_are_refused(written: object) -> None:
    with pytest.raises(InvalidParameter):
        parse_randomizer(written)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan, math.inf, "1e-6", None])
def test_bad_delta_is_refused(delta: Any) -> None:
    with pytest.raises(InvalidParameter, match="delta"):
        Accountant().certify({}, delta=delta)


@pytest.mark.parametrize("wrong", [None, 7, math.nan, "krr(k=3, epsilon0=1)", [1], b"1"])
def test_what_is_no_round_is_refused(wrong: Any) -> None:
    generic: Any = parse_randomizer("generic(epsilon0=1)")
    wrong_key: Any = "krr"
    for make in (
        lambda: ShuffledRound.from_mapping(wrong),
        lambda: Parallel(weights=wrong, parts=(generic, generic)),
        lambda: Accountant().certify(wrong, delta=0.1),
        lambda: Accountant().certify({wrong_key: 1}, delta=0.1),
        lambda: calibrate(wrong, epsilon=1, delta=0.1),
    ):
        with pytest.raises(InvalidParameter):
            make()


def test_what_is_written_is_read_back() -> None:
    for written in ("krr(epsilon0=1.15, k=10)", "blh(epsilon0=0.3)", "hadamard(epsilon0=8, domain=262144)"):
        randomizer = parse_randomizer(written)
        assert parse_randomizer(randomizer.describe()) == randomizer
        assert parse_randomizer(randomizer.to_mapping()) == randomizer
        shuffled = alike(randomizer=randomizer, reports=17, honest_fraction=0.9)
        assert ShuffledRound.from_mapping(shuffled.to_mapping()) == shuffled
    with pytest.raises(InvalidParameter, match="colour"):
        ShuffledRound.from_mapping({"randomizer": "krr(k=3, epsilon0=1)", "reports": 4, "colour": "red"})
