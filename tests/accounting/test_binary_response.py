"""Laplace noise on a bit, bounded by the binary randomized response of which it is a post-processing."""

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
from shuffle_ledger.accounting.amplification.binary_reports import thinned
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.comparison.attacks import attack_epsilon
from shuffle_ledger.accounting.randomizers import Laplace
from shuffle_ledger.accounting.rounds.dominance import fits
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from tests.accounting import exact_sums


def made(epsilon0: float, reports: int, **fields: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=Laplace(epsilon0=epsilon0), reports=reports, **fields)


def profile_of(epsilon0: float, share: float | None = None) -> thinned.ThinnedProfile:
    found = Laplace(epsilon0=epsilon0).profile(
        "binary-response", participation=1.0, smoothing=0.05, outcomes=1_000_000
    )
    assert isinstance(found, thinned.ThinnedProfile)
    if share is not None:
        found.share = share
    return found


def laplace_in_cells(epsilon0: float, cells: int) -> list[list[Fraction]]:
    """Returns the laws of a report under the two bits: below 0, in cells from 0 to 1, above 1."""
    ends = [-math.inf, *np.linspace(0, 1, cells + 1), math.inf]
    law = np.diff(scipy.stats.laplace.cdf(ends, 0.0, 1 / epsilon0))
    first = [Fraction(one) for one in law.tolist()]
    first = [one / sum(first) for one in first]
    return [first, first[::-1]]


def with_blanks(epsilon0: float, share: float) -> list[list[Fraction]]:
    """Returns the laws of 0, 1 and a blank."""
    p, kept = Fraction(1 / (1 + math.exp(epsilon0))), Fraction(share)
    zero = [kept * (1 - p), kept * p, 1 - kept]
    return [zero, [zero[1], zero[0], zero[2]]]


def shuffled_law(rows: list[list[Fraction]], inputs: Sequence[int]) -> dict[tuple[int, ...], Fraction]:
    """Returns the law of the numbers of all outputs."""
    law = {(0,) * len(rows[0]): Fraction(1)}
    for held in inputs:
        grown: dict[tuple[int, ...], Fraction] = {}
        for counts, mass in law.items():
            for output, chance in enumerate(rows[held]):
                more = (*counts[:output], counts[output] + 1, *counts[output + 1 :])
                grown[more] = grown.get(more, Fraction(0)) + mass * chance
        law = grown
    return law


def largest(rows: list[list[Fraction]], reports: int, orders: Sequence[Fraction]) -> list[Fraction]:
    """Returns the largest divergence over all datasets and both directions."""
    found = [Fraction(0)] * len(orders)
    for ones in range(reports):
        others = [1] * ones + [0] * (reports - 1 - ones)
        laws = [shuffled_law(rows, (held, *others)) for held in (0, 1)]
        for p, q in (laws, laws[::-1]):
            for place, order in enumerate(orders):
                value = sum((max(p[one] - order * q[one], Fraction(0)) for one in p), Fraction(0))
                found[place] = max(found[place], value)
    return found


@pytest.mark.parametrize("reports", [1, 2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("epsilon0", [0.1, 4.0])
def test_bounds_hold_for_all_datasets_of_few_users(epsilon0: float, reports: int) -> None:
    """In fractions: cells of Laplace noise, and the response with blanks itself, for every dataset."""
    profile = profile_of(epsilon0)
    excess = math.expm1(epsilon0) * np.array([0.0, 0.01, 0.05, 0.2, 0.4, 0.7, 0.95])
    orders = [1 + Fraction(one) for one in excess.tolist()]
    upper = profile.thinned(reports, excess).upper.tolist()
    for rows in (laplace_in_cells(epsilon0, 4), with_blanks(epsilon0, profile.share)):
        for bound, value in zip(upper, largest(rows, reports, orders), strict=True):
            assert value <= Fraction(bound)


@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
def test_every_randomizer_of_two_inputs_is_made_of_bits_and_blanks(epsilon0: float) -> None:
    """The proof's densities, of random laws whose largest ratio is exp(epsilon0) or less."""
    generator, e = np.random.default_rng(7), math.exp(epsilon0)
    for _ in range(50):
        ratio = np.exp(generator.uniform(-epsilon0, epsilon0, 9) / 2)
        r0 = generator.random(9) * ratio
        r1 = r0 / ratio
        r0, r1 = r0 / r0.sum(), r1 / r1.sum()
        if max((r0 / r1).max(), (r1 / r0).max()) > e:
            continue
        distance = float(np.maximum(r0 - r1, 0).sum())
        share = distance / math.tanh(epsilon0 / 2)
        u0, u1 = np.maximum(r0 - r1, 0) / (e - 1), np.maximum(r1 - r0, 0) / (e - 1)
        v = np.where(r0 >= r1, e * r1 - r0, e * r0 - r1) / (e - 1)
        assert v.min() >= -1e-15
        assert v.sum() == pytest.approx(1 - share)
        laws = [u0 * (e - 1) / distance, u1 * (e - 1) / distance]
        for held, target in ((0, r0), (1, r1)):
            bit = [e / (e + 1) * laws[held] + 1 / (e + 1) * laws[1 - held]]
            assert share * bit[0] + v == pytest.approx(target)


@pytest.mark.parametrize("epsilon0", [1e-9, 0.1, 1.0, 5.0, 30.0])
def test_the_share_is_the_distance_over_that_of_the_response(epsilon0: float) -> None:
    exact = -np.expm1(-np.longdouble(epsilon0) / 2) / np.tanh(np.longdouble(epsilon0) / 2)
    assert exact <= Laplace(epsilon0=epsilon0).bit_share <= min(float(exact) * (1 + 1e-13), 1.0)


@pytest.mark.parametrize("honest", [1, 2, 20, 300, 4_000, 10**6, 10**9])
def test_cells_have_all_numbers_of_bits(honest: int) -> None:
    """Every number is in a cell, between its ends, with the binomial's probability."""
    profile = profile_of(1.0)
    cells, hiding = profile.cells(honest), thinned._hiding(profile.share, honest)
    law = scipy.stats.binom(honest - 1, profile.share)
    for place, (fewest, most) in enumerate(cells):
        after = int(hiding.counts[place + 1])
        assert fewest <= most <= honest
        assert most >= min(after - 1, honest)
        weight = float(law.cdf(after - 2) - law.cdf(fewest - 2))
        assert hiding.weight[place] == pytest.approx(weight, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("epsilon0", "reports", "most"),
    [
        (1.0, 1_000, 1.095),
        (4.0, 100_000, 1.20),
    ],
)
def test_epsilon_is_between_the_attack_and_the_blanket(epsilon0: float, reports: int, most: float) -> None:
    """The bound is the default; far above the attack's epsilon it may not be."""
    accountant, round_ = Accountant(), made(epsilon0, reports)
    assert round_.analysis == "binary-response"
    found = accountant.certify({round_: 1}, delta=1e-8)
    blanket = accountant.certify({made(epsilon0, reports, analysis="blanket"): 1}, delta=1e-8)
    attack = attack_epsilon(round_, delta=1e-8)
    assert attack is not None
    assert attack < found.epsilon_upper <= most * attack
    assert found.epsilon_upper <= blanket.epsilon_upper
    assert found.epsilon_lower <= found.epsilon_upper <= found.epsilon_lower * 1.001


def test_the_smaller_bound_decides_at_every_order() -> None:
    """Where both bounds are computed neither is exceeded."""
    both, blanket = made(1.0, 2_000), made(1.0, 2_000, analysis="blanket")
    excess = np.expm1(np.linspace(0.0, 0.5, 12))
    found = RoundProfile(both, smoothing=0.05)(excess)
    other = RoundProfile(blanket, smoothing=0.05)(excess)
    assert np.all(found.upper <= other.upper * (1 + 1e-12))
    assert np.all(found.upper <= profile_of(1.0).thinned(2_000, excess).upper * (1 + 1e-12))


def test_partly_honest_samples_keep_the_blanket() -> None:
    """The round says so, also a derived one."""
    fields: dict[str, Any] = {"sampled_from": 4_000, "honest_fraction": 0.8}
    blanket = made(1.0, 2_000, analysis="blanket", **fields)
    for asked in (None, "binary-response"):
        found = made(1.0, 2_000, analysis=asked, **fields)
        assert found == blanket == dataclasses.replace(made(1.0, 2_000), **fields)
        assert found.to_mapping()["analysis"] == "blanket"
        assert ShuffledRound.from_mapping(found.asked_mapping()) == found
    for other in ({"honest_fraction": 0.5}, {"sampled_from": 4_000}, {"participation": 0.5}):
        assert made(1.0, 2_000, **other).analysis == "binary-response"


def test_both_analyses_fit_slots_of_each_other() -> None:
    for one, other in itertools.permutations(("binary-response", "blanket")):
        assert fits(made(1.0, 2_000, analysis=one), made(1.0, 1_500, analysis=other))
        assert not fits(made(1.0, 1_000, analysis=one), made(1.0, 1_500, analysis=other))


@pytest.mark.parametrize(
    ("epsilon0", "reports", "fields"),
    [
        (1.0, 600, {}),
        (1.0, 20_000, {}),
        (2.0, 10_000, {"sampled_from": 30_000}),
        (0.3, 5_000, {"honest_fraction": 0.5}),
    ],
)
def test_plain_convolutions_agree(epsilon0: float, reports: int, fields: dict[str, Any]) -> None:
    """Every cell of numbers of bits with its least one, where the bound is that of bits with blanks."""
    asked = made(epsilon0, reports, **fields)
    epsilon = Accountant().certify({asked: 1}, delta=1e-6).epsilon_upper
    honest, found = asked.certain_reports or 0, profile_of(epsilon0)
    rate, law, other = honest / asked.honest_users, BitLaw.of_response(epsilon0), 0.0
    numbers, cells = scipy.stats.binom(honest - 1, found.share), found.cells(honest)
    for (fewest, most), (after, _) in itertools.pairwise([*cells, (honest + 1, 0)]):
        weight = float(numbers.cdf(after - 2) - numbers.cdf(fewest - 2))
        excess = math.expm1(epsilon) / rate * honest / most
        other += rate * found.share * weight * exact_sums.bits(law.a, law.b, fewest, excess)
    assert other == pytest.approx(1e-6, rel=0.02)
