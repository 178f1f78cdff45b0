"""Several reports of one user: what a round is charged as bounds every input, enumerated; less does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    attack_epsilon,
    calibrate,
    charged_as,
    charged_together,
    fits,
    parse_randomizer,
    published_bounds,
    slot_for,
)
from shuffle_ledger.accounting.verification import Coverage, round_delta
from tests.accounting.alike import alike
from tests.accounting.datasets import Array, largest, shuffled

ACCOUNTANT = Accountant()
EPSILONS = (0.0, 0.3, 1.0, 2.0)


def krr(reports: int, per_user: int = 1, *, k: int = 2, epsilon0: float = 1.0, **more: Any) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": k, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports, reports_per_user=per_user, **more)


def law_of(inputs: Sequence[int], k: int, epsilon0: float) -> Array:
    """Return the law of the multiset of reports of these inputs."""
    weights = np.exp(epsilon0 * np.eye(k))
    return shuffled((weights / weights.sum(axis=1, keepdims=True))[list(inputs)])


def worst(reports: int, per_user: int, *, k: int, epsilon0: float) -> list[float]:
    """Return the largest divergences at `EPSILONS` between inputs that differ in the reports of one user."""
    inputs = list(itertools.combinations_with_replacement(range(k), reports))
    laws = np.array([law_of(one, k, epsilon0) for one in inputs])
    counts = np.array([np.bincount(one, minlength=k) for one in inputs])
    apart = np.maximum(counts[:, None] - counts, 0).sum(axis=2)
    ones, others = np.nonzero((apart > 0) & (apart <= per_user))
    return [
        float(np.maximum(laws[ones] - math.exp(each) * laws[others], 0).sum(axis=1).max(initial=0.0))
        for each in EPSILONS
    ]


def rule(described: ShuffledRound, epsilon: float) -> float:
    return ACCOUNTANT.certify_delta({described: 1}, epsilon=epsilon).delta_upper


@pytest.mark.slow
@pytest.mark.parametrize(("k", "most"), [(2, 8), (3, 6)])
@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
def test_no_input_beats_the_rule(k: int, most: int, epsilon0: float) -> None:
    best = 0.0
    for reports, per_user in itertools.product(range(1, most + 1), (1, 2, 3)):
        described = krr(reports, per_user, k=k, epsilon0=epsilon0)
        found = worst(reports, per_user, k=k, epsilon0=epsilon0)
        for epsilon, true in zip(EPSILONS, found, strict=True):
            bound = rule(described, epsilon)
            assert true <= bound * (1 + 1e-9) + 1e-15, (reports, per_user, epsilon)
            best = max(best, true / bound if bound > 1e-6 else 0.0)
    assert best > 0.999  # the rule is attained: reports of one user alone


def test_one_round_of_a_share_of_the_reports_is_no_bound() -> None:
    true = worst(8, 2, k=2, epsilon0=1.0)[1]
    assert math.isclose(true, 0.2128, abs_tol=5e-5)
    assert math.isclose(rule(krr(4), 0.3), 0.1438, abs_tol=5e-5)
    assert math.isclose(rule(krr(8, 2), 0.3), 0.2507, abs_tol=5e-5)


def test_a_user_alone_among_dishonest_devices_is_charged_for_every_report() -> None:
    # A quarter of 4 reports is one; all 3 of the user's are honest, and nothing else hides them.
    described = krr(4, 3, honest_fraction=0.25)
    assert charged_as(described) == (krr(4, honest_fraction=0.25), 3)
    for epsilon, true in zip(EPSILONS, worst(3, 3, k=2, epsilon0=1.0), strict=True):
        assert true <= rule(described, epsilon) * (1 + 1e-9) + 1e-15


def test_a_coin_of_the_user_would_break_the_bound() -> None:
    both = [np.append(0.2 * law_of((value, value), 2, 1.0), 0.8) for value in (0, 1)]
    coins = ACCOUNTANT.certify_delta({krr(1, participation=0.2): 2}, epsilon=1.0).delta_upper
    assert largest(both, [math.e])[0] > 4.9 * coins
    with pytest.raises(InvalidParameter, match="1 with participation"):
        krr(100, 2, participation=0.2)


def test_charges_are_those_of_the_rounds() -> None:
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-6)
    (one, half, two) = (
        ACCOUNTANT.charge(krr(n, m, k=10, epsilon0=2.0), filters)
        for n, m in ((20_000, 1), (10_000, 1), (20_000, 2))
    )
    assert two == half * 2
    assert math.isclose(two.gaussian[0] / one.gaussian[0], 4.0, abs_tol=5e-4)


def test_a_charge_is_covered_and_a_smaller_one_is_not() -> None:
    filters, coverage = FilterSet.for_budget(epsilon=1.0, delta=1e-6), Coverage(ACCOUNTANT)
    described = krr(300, 3)
    charge = ACCOUNTANT.charge(described, filters)
    assert coverage.covers(described, filters, charge)
    assert not coverage.covers(described, filters, charge * Fraction(98, 100))
    assert not coverage.covers(described, filters, ACCOUNTANT.charge(krr(100), filters))


def test_local_deltas_add_up() -> None:
    described = alike(
        randomizer=parse_randomizer("generic(epsilon0=1)"),
        reports=2_000,
        delta0=1e-12,
        analysis="clone-identical",
        reports_per_user=2,
    )
    single, count = charged_as(described)
    assert (single.reports, single.delta0, count) == (1_000, 1e-12, 2)
    assert 2 * single.slack <= described.slack <= 2 * single.slack * (1 + 1e-15)
    filters = FilterSet.for_budget(epsilon=1.0, delta=1e-6)
    one, both = (ACCOUNTANT.charge(each, filters) for each in (single, described))
    assert both.account == tuple(2 * part for part in one.account)
    assert both.account[1] > 0


@pytest.mark.parametrize("honest", [1.0, 0.7])
@pytest.mark.parametrize(("reports", "per_user"), [(5, 9), (1000, 3), (123_457, 7), (10**6, 1000)])
def test_a_slot_is_charged_as_slots_and_is_its_own(reports: int, per_user: int, honest: float) -> None:
    described = krr(reports, per_user, honest_fraction=honest)
    slot = slot_for(described)
    (single, count), (inner, often) = charged_as(described), charged_as(slot)
    assert (inner, often) == (slot_for(single), count)
    assert slot_for(slot) == slot
    assert fits(described, slot)
    assert slot.reports <= reports
    assert slot.reports_per_user == per_user


def test_a_sample_earns_no_credit() -> None:
    sampled = krr(2_000, 2, sampled_from=5_000)
    assert charged_as(sampled) == charged_as(krr(2_000, 2)) == (krr(1_000), 2)
    assert slot_for(sampled).sampled_from is None
    assert krr(2_000, 2, sampled_from=1_000).sampled_from == 1_000  # users, of whom each may send two
    with pytest.raises(InvalidParameter, match="at least 1000 users, who sent the 2000 reports"):
        krr(2_000, 2, sampled_from=999)


def test_what_fits_a_slot() -> None:
    slot = krr(100, 2)  # two rounds of 50
    for described in (slot, krr(120, 2), krr(50), krr(51), krr(100)):
        assert fits(described, slot), described
    for described in (krr(98, 2), krr(49), krr(1_000, 3), krr(100, 2, epsilon0=1.1), krr(1, 3)):
        assert not fits(described, slot), described
    assert not fits(krr(10**6, 2), krr(50))  # never two in one
    # One report in all reveals no more; but a settlement may tell of more, and a local budget counts them.
    assert not fits(krr(1, 3), krr(2, 2))
    # Two reports in all are two rounds of one; five rounds of two are more.
    assert not fits(krr(10, 5), krr(2, 5))
    assert fits(krr(2, 5), krr(2, 5))


def test_what_fits_is_dominated() -> None:
    slot = krr(12, 2)
    for described in (krr(12, 2), krr(13, 2), krr(6), krr(20, 2, epsilon0=0.5)):
        assert fits(described, slot)
        assert all(rule(described, each) <= rule(slot, each) * (1 + 1e-9) for each in EPSILONS)
    assert rule(krr(11, 2), 0.3) > rule(slot, 0.3)


def test_the_same_sum_is_charged_together() -> None:
    assert charged_together({krr(100, 2): 3, krr(50): 1, krr(50, 7, k=3): 0}) == {
        krr(50): 7,
        krr(7, k=3): 0,
    }
    both = ACCOUNTANT.certify({krr(100, 2): 3, krr(50): 1}, delta=1e-6)
    alone = ACCOUNTANT.certify({krr(50): 7}, delta=1e-6)
    assert (both.epsilon_upper, both.epsilon_lower) == (alone.epsilon_upper, alone.epsilon_lower)
    assert (both.rounds, alone.rounds) == (4, 7)
    renyi = [ACCOUNTANT.renyi_divergence(each, order=4).upper for each in ({krr(100, 2): 1}, {krr(50): 2})]
    assert renyi[0] == renyi[1]


def test_no_single_loss_and_no_single_bound_stand_for_the_whole() -> None:
    described = krr(100, 2)
    with pytest.raises(InvalidParameter, match="charged as several rounds"):
        ACCOUNTANT.privacy_loss(described)
    assert attack_epsilon(described, delta=1e-6) is None
    assert round_delta(described, 0.1) is None
    assert all(one.epsilon_upper is None for one in published_bounds(krr(10**5, 2), delta=1e-6))


def test_more_rounds_than_can_be_composed_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="each counted once for every report that a user may send"):
        ACCOUNTANT.certify({krr(1_000, 1000): 10_001}, delta=1e-6)


@pytest.mark.slow
def test_calibration_finds_the_epsilon0_of_the_rounds() -> None:
    several = {"randomizer": "krr(k=4)", "reports": 2_000, "reports_per_user": 2}
    single = {"randomizer": "krr(k=4)", "reports": 1_000}
    found, other = (
        calibrate(each, epsilon=1.0, delta=1e-6, rounds=rounds, precision=1e-2)
        for each, rounds in ((several, 3), (single, 6))
    )
    assert found.round.reports_per_user == 2
    assert found.certificate.epsilon_upper <= 1.0
    assert math.isclose(found.value, other.value, rel_tol=0.02)


REFUSED = [
    ({"randomizer": "generic(epsilon0=1)"}, "1 for clone: .*, as tight and clone-identical do"),
    ({"randomizer": "binomial_sum(p=0.5, bits=100)"}, "1 for binomial_sum"),
    ({"randomizer": "gaussian(sigma=2)"}, "1 for gaussian"),
    ({"randomizer": "declared(epsilon=1)"}, "1 for declared"),
    ({"randomizer": "krr(k=2, epsilon0=1)", "participation": 0.5}, "leave it out and count the reports"),
    (
        {"randomizer": "krr(k=2, epsilon0=1)", "sampled_from": 1000, "honest_fraction": 0.5},
        "1 for a partly honest sample",
    ),
]


@pytest.mark.parametrize(("fields", "why"), REFUSED)
def test_what_no_bound_is_proven_for_is_refused(fields: dict[str, Any], why: str) -> None:
    assert ShuffledRound.from_mapping({**fields, "reports": 200}).reports_per_user == 1
    with pytest.raises(InvalidParameter, match=f"reports_per_user: got 2, expected .*{why}"):
        ShuffledRound.from_mapping({**fields, "reports": 200, "reports_per_user": 2})


def test_the_field_is_written_only_where_it_says_something() -> None:
    assert "reports_per_user" not in krr(100).to_mapping()
    assert krr(100, 3).to_mapping()["reports_per_user"] == 3
    for described in (krr(100), krr(100, 3)):
        assert ShuffledRound.from_mapping(described.to_mapping()) == described
    assert "at most 3 reports of each user" in krr(100, 3).describe()
