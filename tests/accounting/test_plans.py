"""A round that fits a slot costs no more than the slot at any order; what does not fit may cost more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    fits,
    largest_common_epsilon0,
    parse_randomizer,
    place,
)
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile


def made(randomizer: str, reports: int, **fields: object) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(randomizer), reports=reports, **fields)  # type: ignore[arg-type]


SLOTS = [
    made("generic(epsilon0=2)", 1_000),
    made("generic(epsilon0=2)", 1_000, analysis="clone", delta0=1e-12),
    made("krr(k=4, epsilon0=2)", 500),
    made("rappor(epsilon0=3)", 2_000),
    made("oue(epsilon0=2, domain=8)", 300),
    made("laplace(epsilon0=1)", 200),
    made("krr(k=4, epsilon0=2)", 1_000, sampled_from=10_000),
    made("krr(k=4, epsilon0=2)", 5_000, participation=0.2),
    made("generic(epsilon0=1)", 1_000, honest_fraction=0.8),
    made("declared(epsilon=1, delta=1e-6)", 1),
    made('declared(epsilon=1, delta=1e-6, relation="add-remove")', 1),
]
CHANGES: list[dict[str, float]] = [
    {},
    {"epsilon0": 0.5},
    {"epsilon0": 1.1},
    {"k": 2},
    {"reports": 0.5},
    {"reports": 1.7},
    {"reports": 1.7, "sampled_from": 1.7},
    {"reports": 1.7, "sampled_from": 3.0},
    {"sampled_from": 0.9},
    {"participation": 0.5},
    {"participation": 1.5},
    {"honest_fraction": 0.5},
    {"honest_fraction": 1.2},
    {"epsilon": 0.5},
    {"epsilon": 1.1},
    {"epsilon": 0.5, "delta": 1.1},
    {"delta": 0.5},
    {"delta0": 0.1},
    {"delta0": 10.0},
]


def changed(slot: ShuffledRound, factors: dict[str, float]) -> ShuffledRound | None:
    mapping: dict[str, Any] = slot.to_mapping()
    randomizer = dict(mapping["randomizer"])
    for name, factor in factors.items():
        into = randomizer if name in randomizer else mapping
        if into.get(name) is None:
            return None
        value = into[name] * factor
        into[name] = round(value) if isinstance(into[name], int) else value
    try:
        return ShuffledRound.from_mapping({**mapping, "randomizer": randomizer})
    except InvalidParameter:
        return None


def curve(shuffled: ShuffledRound, slack: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    excess = np.expm1(np.append(0.0, np.geomspace(1e-3, 2.5, 60)))
    bounds = RoundProfile(shuffled, smoothing=0.01)(excess)
    cost = (shuffled.slack if slack is None else slack) * (2 + excess)
    return bounds.lower + cost, bounds.upper + cost


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.randomizer.kind)
def test_what_fits_is_dominated(slot: ShuffledRound) -> None:
    _, above = curve(slot)
    found = set()
    for factors in CHANGES:
        described = changed(slot, factors)
        if described is None:
            continue
        verdict = fits(described, slot)
        found.add(verdict)
        if verdict:
            # The slot's slack bounds every mechanism that the slot describes, and so the round's.
            below, _ = curve(described, slack=slot.slack)
            assert np.all(below <= above * (1 + 1e-9)), factors
    assert found == {True, False}


def test_a_smaller_sample_of_the_same_population_does_not_fit() -> None:
    slot = made("krr(k=4, epsilon0=4)", 1_000, sampled_from=10_000)
    smaller = made("krr(k=4, epsilon0=4)", 100, sampled_from=10_000)
    assert not fits(smaller, slot)
    assert np.any(curve(smaller)[0] > curve(slot)[1]), "the rule would not be needed"


def test_other_mechanisms_and_modes_do_not_fit() -> None:
    slot = made("krr(k=4, epsilon0=2)", 1_000)
    assert not fits(made("generic(epsilon0=1)", 1_000), slot)
    assert not fits(made("krr(k=4, epsilon0=1)", 1_000, sampled_from=10_000), slot)
    assert not fits(made("krr(k=4, epsilon0=1)", 1_000, participation=0.5), slot)
    assert not fits(made("krr(k=3, epsilon0=2)", 1_000), slot)
    assert not fits(made("krr(k=8, epsilon0=2)", 1_000, analysis="strong-adversary"), slot)
    # By substitution, adding and removing count twice.
    removed = made('declared(epsilon=0.6, delta=1e-7, relation="add-remove")', 1)
    assert not fits(removed, made("declared(epsilon=1, delta=1e-6)", 1))
    assert fits(removed, made("declared(epsilon=1.2, delta=1e-6)", 1))


def test_what_is_declared_holds_for_any_number_of_reports() -> None:
    slot = made("declared(epsilon=1, delta=1e-6)", 5_000)
    assert fits(made("declared(epsilon=1, delta=1e-6)", 3), slot)
    assert not fits(made("declared(epsilon=1.1, delta=1e-6)", 3), slot)
    sampled = made("declared(epsilon=1, delta=1e-6)", 5_000, sampled_from=50_000)
    assert not fits(made("declared(epsilon=1, delta=1e-6)", 3, sampled_from=30), sampled)


def test_a_truth_is_placed_where_it_was_claimed_or_in_the_first_kind_that_it_fits() -> None:
    kinds = [made("krr(k=4, epsilon0=2)", 1_000), made("krr(k=4, epsilon0=2)", 400)]
    kinds += [made("krr(k=4, epsilon0=1)", 900), made("krr(k=4, epsilon0=2)", 300)]
    truth = made("krr(k=4, epsilon0=1)", 950)
    assert [place(kinds, claimed, truth) for claimed in range(4)] == [1, 1, 2, 3]
    assert place(kinds, 0, made("krr(k=4, epsilon0=2)", 350)) == 3
    assert place(kinds, 0, made("krr(k=4, epsilon0=2)", 299)) is None


@pytest.mark.slow
def test_the_largest_common_epsilon0_fits_and_hardly_more_does() -> None:
    accountant = Accountant(precision=4e-3)
    slots = {made("generic(epsilon0=1)", 10_000): 20, made("krr(k=10, epsilon0=3)", 20_000): 30}
    found = largest_common_epsilon0(accountant, slots, epsilon=0.5, delta=1e-8)
    assert found is not None

    def cost(epsilon0: float) -> float:
        wanted = {
            made(f"generic(epsilon0={epsilon0})", 10_000): 20,
            made(f"krr(k=10, epsilon0={epsilon0})", 20_000): 30,
        }
        return accountant.certify(wanted, delta=1e-8).epsilon_upper

    assert cost(found) <= 0.5 < cost(found * 1.03)
    assert largest_common_epsilon0(accountant, slots, epsilon=1e-9, delta=1e-30) is None
