"""Reports of one bit, by their own law: the bounds hold for every dataset, and they are close."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats

from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.amplification.binary_reports import profile, tilted
from shuffle_ledger.accounting.amplification.binary_reports.few import EveryDataset
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.randomizers import Table
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.notation import parse_randomizer
from shuffle_ledger.accounting.rounds.dominance import fits
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from tests.accounting import exact_sums

RESPONSE = "table([[0.75, 0.25], [0.25, 0.75]])"
LOPSIDED = "table([[0.9375, 0.0625], [0.75, 0.25]])"
FAR_APART = "table([[0.0078125, 0.9921875], [0.875, 0.125]])"


def made(randomizer: str, reports: int, **fields: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(randomizer), reports=reports, analysis="exact", **fields)


def table_of(text: str) -> Table:
    table = parse_randomizer(text)
    assert isinstance(table, Table)
    return table


def bit_of(text: str) -> BitLaw:
    law = table_of(text).bit_law
    assert law is not None
    return law


def laws_of(rows: Sequence[Sequence[float]], inputs: Sequence[int]) -> list[Fraction]:
    """Returns the law of the number of ones of the users with these inputs."""
    law = [Fraction(1)]
    for held in inputs:
        zero, one = map(Fraction, rows[held])
        law = [
            zero * (law[t] if t < len(law) else 0) + one * (law[t - 1] if t else 0)
            for t in range(len(law) + 1)
        ]
    return law


def divergences(rows: Sequence[Sequence[float]], reports: int, orders: list[Fraction]) -> list[Fraction]:
    """Returns the largest divergence over all neighbouring datasets, one user after another and both
    directions."""
    pairs = []
    for others in itertools.product((0, 1), repeat=reports - 1):
        pairs += [[laws_of(rows, (x, *others)) for x in both] for both in ((0, 1), (1, 0))]
    return [
        max(sum(max(p - order * q, Fraction(0)) for p, q in zip(*pair, strict=True)) for pair in pairs)
        for order in orders
    ]


@pytest.mark.parametrize("reports", [1, 2, 3, 4])
@pytest.mark.parametrize("text", [RESPONSE, LOPSIDED, FAR_APART])
def test_bounds_hold_for_all_datasets_of_few_users(text: str, reports: int) -> None:
    """Every dataset in exact fractions: the listed datasets, and the nodes, enclose the largest."""
    randomizer = table_of(text)
    limit = math.expm1(randomizer.epsilon0)
    chances = np.random.default_rng(reports).random(6)
    excess = limit * np.sort([0.0, *chances**2, 0.95])
    truth = divergences(randomizer.rows, reports, [1 + Fraction(one) for one in excess.tolist()])
    laws = bit_of(text), bit_of(text).mirrored
    found = [RoundProfile(made(text, reports), smoothing=0.1)(excess)]
    if reports > 1:
        by_nodes = [tilted.tilted_bounds(one, reports - 1, excess) for one in laws]
        found.append(ProfileBounds(*(np.max(side, axis=0) for side in zip(*by_nodes, strict=True))))
    for bounds in found:
        for upper, lower, value in zip(bounds.upper.tolist(), bounds.lower.tolist(), truth, strict=True):
            assert Fraction(lower) <= value <= Fraction(upper)
            assert upper <= float(value) * 1.001 + 1e-12 or bounds is not found[0]


def orders_of(law: BitLaw, others: int, seed: int, count: int = 25) -> np.ndarray:
    """Returns random orders: most where the divergence is between 1e-30 and 1, some near the largest."""
    deviation = math.sqrt(min(law.a * law.not_a, law.b * law.not_b) * others)
    usual = np.random.default_rng(seed).uniform(0, 11, count) * law.gap / deviation
    largest = law.gap / law.b
    return np.sort(np.append(usual[usual < largest], np.random.default_rng(seed).uniform(0, largest, 5)))


LAWS = [
    BitLaw.of_response(1.0),
    BitLaw.of_response(0.01),
    BitLaw.of_response(3.0),
    BitLaw.of_response(6.0),
    bit_of(LOPSIDED),
    bit_of(FAR_APART),
    bit_of(FAR_APART).mirrored,
]


@pytest.mark.parametrize("others", [2, 33, 66])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.a:.3g}-{law.b:.3g}")
def test_nodes_enclose_the_largest_of_every_m(law: BitLaw, others: int) -> None:
    """No bound is below the supremum over all numbers of ones among the others, and most are close."""
    excess = orders_of(law, others, seed=others)
    truth = EveryDataset(law, others).bounds(excess)
    found = tilted.tilted_bounds(law, others, excess)
    assert np.all(found.upper >= truth.lower)
    assert np.all(found.lower <= truth.upper)
    plain = truth.lower > 1e-40
    assert np.all(found.upper[plain] <= 1.01 * truth.upper[plain])


@pytest.mark.parametrize("others", [230, 295])
@pytest.mark.parametrize("last", [0.0, 1e-3, 2.0])
def test_terms_too_small_for_a_float_at_one_end_count_at_the_other(last: float, others: int) -> None:
    """The sum of fair bits has next to no high frequencies, that of rare ones has: no bound misses them."""
    law = BitLaw(a=0.4375, b=0.0078125, not_a=0.5625, not_b=0.9921875, gap=0.4296875)
    excess = np.array([0.0, last])
    truth = EveryDataset(law, others).bounds(excess)
    found = tilted.tilted_bounds(law, others, excess)
    assert np.all(found.upper >= truth.lower)
    assert np.all(found.lower <= truth.upper)


@pytest.mark.parametrize(
    ("name", "value"), [("SPACING", 1.3), ("LAST_EXPONENT", 4.0), ("MOST_DATASETS", 3), ("SPACING", 0.2)]
)
@pytest.mark.parametrize("law", LAWS[::2], ids=lambda law: f"{law.a:.3g}-{law.b:.3g}")
def test_no_bound_depends_on_the_numerical_settings(
    monkeypatch: pytest.MonkeyPatch, law: BitLaw, name: str, value: float
) -> None:
    """Coarser nodes, fewer of them and fewer datasets make bounds wider, and not wrong."""
    excess = orders_of(law, 40, seed=3)
    truth = EveryDataset(law, 40).bounds(excess)
    monkeypatch.setattr(tilted, name, value)
    found = tilted.tilted_bounds(law, 40, excess)
    assert np.all(found.upper >= truth.lower)
    assert np.all(found.lower <= truth.upper)


@pytest.mark.parametrize("epsilon0", [4.0, 5.0])
def test_finer_steps_are_closer_and_enclose_the_largest(
    monkeypatch: pytest.MonkeyPatch, epsilon0: float
) -> None:
    """With three datasets next to the end, the bound on all others decides: finer steps lower it, and do not
    lower it below the largest."""
    law = BitLaw.of_response(epsilon0)
    others = int(15 / (law.a * law.not_a))
    excess = orders_of(law, others, seed=5, count=15)
    truth = EveryDataset(law, others).bounds(excess)
    monkeypatch.setattr(tilted, "MOST_DATASETS", 3)
    uppers = []
    for steps in (32, 256, 1024):
        monkeypatch.setattr(tilted, "FINEST_STEPS", steps)
        found = tilted.tilted_bounds(law, others, excess)
        assert np.all(found.upper >= truth.lower)
        assert np.all(found.lower <= truth.upper)
        uppers.append(found.upper)
    assert np.all(uppers[1] <= uppers[0] * (1 + 1e-9))
    assert np.any(uppers[1] < 0.95 * uppers[0])


@pytest.mark.parametrize("others", [5_000, 1_000_000])
@pytest.mark.parametrize("law", LAWS[:4], ids=lambda law: f"{law.a:.3g}-{law.b:.3g}")
def test_both_ends_of_many_users_are_enclosed(law: BitLaw, others: int) -> None:
    """Binomial tails of a library: the upper bound is above the end's divergence, and close to it."""
    excess = np.linspace(0.2, 5, 6) * law.gap / math.sqrt(law.a * law.not_a * others)
    excess = excess[excess < 0.5 * law.gap / law.b]
    found = tilted.tilted_bounds(law, others, excess)
    for place, one in enumerate(excess):
        for chance in (law.a, law.b):
            sums = scipy.stats.binom(others, chance)
            middle = np.arange(max(0, int(sums.mean() - 12 * sums.std())), int(sums.mean() + 12 * sums.std()))
            values = law.gained(np.array([one])) * sums.pmf(middle) - one * sums.sf(middle)
            assert found.upper[place] >= values.max() * (1 - 1e-6)
    assert np.all(found.upper <= 1.01 * found.lower)


@pytest.mark.parametrize("others", [600, 1_000, 1_999])
@pytest.mark.parametrize("chance", [0.5, 0.58])
def test_terms_are_not_lost_where_they_start_from_an_underflow(chance: float, others: int) -> None:
    """At order 1 both ends tie. If the products start at the wide one, those of far nodes underflow there,
    and at the narrow one, where the others' bits are nearly certain, these nodes decide."""
    law = bit_of(f"table([[{1 - chance}, {chance}], [0.9999, 0.0001]])")
    excess = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 3.0])
    found = tilted.tilted_bounds(law, others, excess)
    silent = math.exp(others * math.log1p(-law.b))  # all others send 0: the output 1 is the differing user's
    assert np.all(found.upper >= (law.gained(excess) * silent - excess * (1 - silent)) * (1 - 1e-9))
    assert np.all(found.upper <= 1.001 * found.lower)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon0", "reports", "delta", "epsilon"),
    [
        (1, 1_000, 1e-6, 0.1266145),
        (1, 1_000, 1e-8, 0.162947),
        (2, 10_000, 1e-6, 0.0870197),
        (4, 20_000, 1e-6, 0.209406),
        (5, 10**9, 1e-30, 0.00403895),
    ],
)
def test_epsilon_is_the_largest_of_all_datasets(
    epsilon0: float, reports: int, delta: float, epsilon: float
) -> None:
    """Numbers found by another program, which listed every m or the last ones."""
    for kind in (f"krr(k=2, epsilon0={epsilon0})", f"duchi(epsilon0={epsilon0})"):
        found = Accountant().certify({made(kind, reports): 1}, delta=delta)
        assert found.epsilon_lower <= epsilon * (1 + 1e-5)
        assert found.epsilon_upper >= epsilon * (1 - 1e-5)
        assert found.epsilon_upper <= 1.001 * found.epsilon_lower


@pytest.mark.slow
@pytest.mark.parametrize("text", ["krr(k=2, epsilon0=0.3)", "krr(k=2, epsilon0=6)", LOPSIDED])
@pytest.mark.parametrize(("reports", "delta"), [(30, 1e-3), (20_000, 1e-8), (10**7, 1e-30)])
def test_bounds_of_one_round_are_close(text: str, reports: int, delta: float) -> None:
    """Upper over lower is at most 1.001, and the blanket is nowhere below."""
    found = Accountant().certify({made(text, reports): 1}, delta=delta)
    assert found.epsilon_upper <= 1.001 * found.epsilon_lower + 1e-9
    blanket = ShuffledRound(randomizer=parse_randomizer(text), reports=reports, analysis="blanket")
    assert found.epsilon_upper <= Accountant().certify({blanket: 1}, delta=delta).epsilon_upper * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon0", "reports", "delta"),
    [
        (8, 100_000, 1e-6),
        (11, 654_321, 1e-13),
    ],
)
def test_bounds_of_rare_flips_are_close(epsilon0: float, reports: int, delta: float) -> None:
    """Few others send the other bit, so the laws of the datasets differ most."""
    found = Accountant().certify({made(f"krr(k=2, epsilon0={epsilon0})", reports): 1}, delta=delta)
    assert found.epsilon_upper <= 1.001 * found.epsilon_lower


@pytest.mark.parametrize("epsilon0", [2.5, 3.5])
def test_lists_and_nodes_of_rare_flips_enclose_one_another(epsilon0: float) -> None:
    """Two methods, where one takes over from the other: neither lower bound is above the other's upper."""
    law = BitLaw.of_response(epsilon0)
    others = int(100 / (law.a * law.not_a))
    excess = orders_of(law, others, seed=1, count=12)
    truth, found = EveryDataset(law, others).bounds(excess), tilted.tilted_bounds(law, others, excess)
    assert np.all(found.upper >= truth.lower)
    assert np.all(found.lower <= truth.upper)


@pytest.mark.slow
def test_rounds_compose() -> None:
    """Fifty-two rounds cost less than three quarters of what the blanket charges; the work is bounded."""
    shuffled = made("krr(k=2, epsilon0=2)", 10_000)
    found = Accountant().certify({shuffled: 52}, delta=1e-6)
    assert 0.70 < found.epsilon_lower <= found.epsilon_upper <= 1.001 * found.epsilon_lower < 0.71


def test_a_composition_asks_for_few_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """One table of a round, of at most as many orders as the blanket's."""
    asked: list[int] = []

    def counted(law: BitLaw, others: int, excess: np.ndarray, **fields: Any) -> ProfileBounds:
        asked.append(excess.size)
        return tilted.tilted_bounds(law, others, excess, **fields)

    monkeypatch.setattr(profile, "tilted_bounds", counted)
    Accountant().certify({made("krr(k=2, epsilon0=2)", 10_000): 52}, delta=1e-6)
    assert sum(asked) <= 1500


def test_two_rounds_cost_at_least_what_the_datasets_show() -> None:
    """The composition of two rounds is above the exact divergence of the same dataset twice."""
    rows, order = table_of(RESPONSE).rows, Fraction(3, 2)
    found = Accountant().certify_delta({made(RESPONSE, 4): 2}, epsilon=math.log(1.5))
    for others in itertools.product((0, 1), repeat=3):
        one, other = (laws_of(rows, (x, *others)) for x in (0, 1))
        twice = sum(
            max(p * p2 - order * q * q2, Fraction(0))
            for (p, q), (p2, q2) in itertools.product(zip(one, other, strict=True), repeat=2)
        )
        assert found.delta_upper >= float(twice) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("text", "reports", "fields"),
    [
        ("krr(k=2, epsilon0=1)", 60, {}),
        ("krr(k=2, epsilon0=1)", 1_000, {}),
        ("krr(k=2, epsilon0=1)", 1_000, {"sampled_from": 3_000}),
        ("krr(k=2, epsilon0=4)", 5_000, {}),
        ("krr(k=2, epsilon0=0.5)", 10**6, {}),
        (LOPSIDED, 2_000, {"honest_fraction": 0.5}),
    ],
)
def test_plain_convolutions_agree(text: str, reports: int, fields: dict[str, Any]) -> None:
    shuffled = made(text, reports, **fields)
    found = Accountant().certify({shuffled: 1}, delta=1e-5)
    randomizer, honest = shuffled.randomizer, shuffled.honest_reports
    assert isinstance(randomizer, DecomposedRandomizer)
    law = randomizer.bit_law
    assert law is not None
    rate = honest / shuffled.honest_users
    other = rate * exact_sums.bits(law.a, law.b, honest, math.expm1(found.epsilon_upper) / rate)
    assert other == pytest.approx(1e-5, rel=3e-3)


def test_dishonest_users_are_not_counted() -> None:
    half, fewer = made("duchi(epsilon0=1)", 2_000, honest_fraction=0.5), made("duchi(epsilon0=1)", 1_000)
    found, truth = (Accountant().certify({one: 1}, delta=1e-6) for one in (half, fewer))
    assert found.epsilon_upper == truth.epsilon_upper


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"honest_fraction": 0.5},
        {"sampled_from": 2_000},
        {"sampled_from": 2_000, "honest_fraction": 0.5},
        {"participation": 1.0},
        {"participation": 0.5},
        {"reports_per_user": 2},
    ],
    ids=str,
)
def test_exact_is_the_default_where_it_is_proven(fields: dict[str, Any]) -> None:
    for text in ("krr(k=2, epsilon0=1)", "duchi(epsilon0=1)", LOPSIDED):
        assert ShuffledRound(randomizer=parse_randomizer(text), reports=1_000, **fields).analysis == "exact"


def sampled_law(rows: Sequence[Sequence[float]], sample: int, held: Sequence[int]) -> list[Fraction]:
    """Returns the law of the number of ones in a sample of users who hold these inputs."""
    samples = list(itertools.combinations(held, sample))
    laws = [laws_of(rows, one) for one in samples]
    return [sum(masses, Fraction(0)) / len(samples) for masses in zip(*laws, strict=True)]


@pytest.mark.parametrize(("sample", "population"), [(1, 3), (2, 3), (2, 5), (4, 6)])
@pytest.mark.parametrize("text", [RESPONSE, LOPSIDED, FAR_APART])
def test_bounds_of_samples_hold_for_all_datasets(text: str, sample: int, population: int) -> None:
    """Every dataset of the population in exact fractions, whether or not the user is in the sample."""
    randomizer = table_of(text)
    end = sample / population * math.expm1(randomizer.epsilon0)
    excess = end * np.array([0.0, 0.01, 0.05, 0.2, 0.5, 0.9])
    found = RoundProfile(made(text, sample, sampled_from=population), smoothing=0.1)(excess)
    blanket = dataclasses.replace(made(text, sample, sampled_from=population), analysis="blanket")
    wider = RoundProfile(blanket, smoothing=0.1)(excess)
    assert np.all(found.upper <= wider.upper * (1 + 1e-9) + 1e-30)
    rows = randomizer.rows
    for others in itertools.combinations_with_replacement((0, 1), population - 1):
        laws = [sampled_law(rows, sample, (x, *others)) for x in (0, 1)]
        for p, q in itertools.permutations(laws):
            for upper, one in zip(found.upper.tolist(), excess.tolist(), strict=True):
                order = 1 + Fraction(one)
                value = sum(max(a - order * b, Fraction(0)) for a, b in zip(p, q, strict=True))
                assert value <= Fraction(upper)


@pytest.mark.parametrize("end", [0, 1])
def test_the_bound_of_a_sample_is_attained_where_the_others_hold_the_second_input(end: int) -> None:
    """A stand-in who holds what the second dataset holds makes the sample without the user that with it."""
    law = BitLaw.of_response(1.0)
    sample, population, excess = 40, 100, np.array([0.0, 0.05, 0.1])
    rate = sample / population
    found = RoundProfile(made("krr(k=2, epsilon0=1)", sample, sampled_from=population), smoothing=0.1)(excess)
    chance = (law.b, law.a)[end]
    others = scipy.stats.binom(sample - 1, chance)
    ones = np.arange(sample + 1)
    with_one, with_zero = others.pmf(ones - 1), others.pmf(ones)
    p, q = (
        one * with_one + (1 - one) * with_zero for one in ((law.a, law.b) if end == 0 else (law.b, law.a))
    )
    attained = [rate * np.maximum(p - (1 + one / rate) * q, 0).sum() for one in excess]
    assert np.all(found.upper >= np.array(attained) * (1 - 1e-12))
    assert np.all(found.upper[:2] <= 1.3 * np.array(attained)[:2])


def test_blanket_slots_hold_exact_rounds_and_exact_slots_rounds_of_the_blanket() -> None:
    """Both analyses bound the same divergences; the smaller one bounds whatever the larger one does."""
    for text in ("krr(k=2, epsilon0=1)", "duchi(epsilon0=1)", RESPONSE):
        one = made(text, 1_000)
        other = dataclasses.replace(one, analysis="blanket")
        fewer = dataclasses.replace(other, reports=900)
        assert fits(one, other)
        assert fits(other, one)
        assert fits(one, fewer)
        assert not fits(fewer, one)
    many = ShuffledRound(randomizer=parse_randomizer("krr(k=3, epsilon0=1)"), reports=1_000)
    assert not fits(many, made("krr(k=2, epsilon0=1)", 1_000))  # proven for the blanket's law alone
    assert fits(many, dataclasses.replace(made("krr(k=2, epsilon0=1)", 1_000), analysis="blanket"))
    strong = dataclasses.replace(made("krr(k=2, epsilon0=1)", 1_000), analysis="strong-adversary")
    assert not fits(made("krr(k=2, epsilon0=1)", 1_000), strong)


@pytest.mark.parametrize(
    "text",
    [
        "krr(k=3, epsilon0=1)",
        "table([[1, 0], [0.5, 0.5]])",
        "table([[0.5, 0.5], [0.5, 0.5]])",
        "table([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])",
    ],
)
def test_other_reports_have_no_exact_analysis(text: str) -> None:
    with pytest.raises(InvalidParameter, match="one of blanket"):
        made(text, 1_000)


def test_a_slot_of_fewer_reports_and_a_larger_epsilon0_dominates() -> None:
    inner, slot = made("krr(k=2, epsilon0=1)", 150), made("krr(k=2, epsilon0=1.5)", 140)
    assert fits(inner, slot)
    assert not fits(slot, inner)
    excess = np.linspace(0, 1.5, 40)
    small, large = (RoundProfile(one, smoothing=0.1)(excess) for one in (inner, slot))
    assert np.all(small.lower <= large.upper)
