"""A cohort admits every round that was calibrated for it, under each policy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    Calibration,
    InvalidParameter,
    ShuffledRound,
    slot_for,
)
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle
from shuffle_ledger.ledger.errors import Conflict, NotFound
from shuffle_ledger.ledger.reports.calibrations import calibrate, calibrate_for
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest

pytestmark = pytest.mark.policies

PRECISION = 1e-2  # where numbers need not be closer
# Calibrated and admitted rounds are numbers: the database changes neither.
ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

CASES: tuple[tuple[dict[str, Any], float, float, int], ...] = (
    ({"randomizer": "krr(k=9)", "reports": 3_011}, 0.9, 1e-7, 12),
    ({"randomizer": "generic()", "reports": 10_123}, 0.5, 1e-6, 1),
    ({"randomizer": "blh()", "reports": 5_017, "sampled_from": 101_003}, 0.5, 1e-8, 7),
    ({"randomizer": "oue()", "reports": 5_001, "participation": 0.313}, 0.3, 1e-8, 20),
    ({"randomizer": "hadamard(domain=16)", "reports": 307}, 2.0, 1e-6, 3),
)


def opened(
    store: Store, accountant: Accountant, policy: str, epsilon: float, delta: float, **more: Any
) -> None:
    wanted = {"name": "watches", "population": 10**6, "epsilon": epsilon, "delta": delta, "policy": policy}
    open_cohort(store, accountant=accountant, actor="tester", **{**wanted, **more})


def admitted(
    store: Store, accountant: Accountant, described: ShuffledRound, count: int, cohort: str = "watches"
) -> int:
    """Register a number of rounds; return how many were admitted before the first refusal."""
    for number in range(count):
        local = described.randomizer.epsilon0
        request = RoundRequest(round_id=f"{cohort}-{local}-{number}", cohort=cohort, round=described)
        register(store, request, actor="tester")
        if not isinstance(admit(store, accountant, request.round_id), Admitted):
            return number
    return count


def larger(found: Calibration, factor: float) -> ShuffledRound:
    randomizer = {**found.round.randomizer.to_mapping(), "epsilon0": found.epsilon0 * factor}
    return ShuffledRound.from_mapping({**found.round.to_mapping(), "randomizer": randomizer})


@pytest.mark.slow
@ONE_DATABASE
@pytest.mark.parametrize(
    ("policy", "case"),
    [
        ("plan", CASES[1]),
        ("adaptive", CASES[2]),
        ("adaptive", CASES[4]),
    ],
)
def test_a_new_cohort_admits_every_calibrated_round(
    store: Store, policy: str, case: tuple[dict[str, Any], float, float, int]
) -> None:
    described, epsilon, delta, rounds = case
    target: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "rounds": rounds, "precision": PRECISION}
    found = calibrate(described, policy=policy, **target)
    assert found.policy == policy
    assert found.accounted == slot_for(found.round)
    assert found.epsilon_decided_upper <= epsilon
    accountant = Accountant(precision=PRECISION)
    plan = {"plan": {found.round: rounds}} if policy == "plan" else {}
    opened(store, accountant, policy, epsilon, delta, **plan)
    assert admitted(store, accountant, found.round, rounds) == rounds


@pytest.mark.slow
@ONE_DATABASE
def test_all_of_many_calibrated_rounds_are_admitted_and_a_percent_more_is_not(store: Store) -> None:
    described, epsilon, delta, rounds = {"randomizer": "krr(k=96)", "reports": 30_000}, 1.5, 1e-7, 52
    found = calibrate(described, epsilon=epsilon, delta=delta, rounds=rounds, policy="adaptive")
    accountant = Accountant()
    opened(store, accountant, "adaptive", epsilon, delta)
    assert admitted(store, accountant, found.round, rounds) == rounds
    opened(store, accountant, "adaptive", epsilon, delta, name="others")
    assert admitted(store, accountant, larger(found, 1.01), rounds, cohort="others") < rounds


@pytest.mark.slow
@ONE_DATABASE
@pytest.mark.parametrize("before", [5])
def test_a_cohort_admits_every_round_calibrated_for_what_it_has_left(
    store: Store, accountant: Accountant, before: int
) -> None:
    other = ShuffledRound(randomizer="krr(k=4, epsilon0=2)", reports=9_000)  # type: ignore[arg-type]
    opened(store, accountant, "adaptive", 0.7, 1e-7)
    assert admitted(store, accountant, other, before) == before
    described = {"randomizer": "generic()", "reports": 20_011}
    found = calibrate_for(store, accountant, "watches", described, rounds=8, width=PRECISION)
    assert found.policy == "adaptive"
    alone = calibrate(described, epsilon=0.7, delta=1e-7, rounds=8, policy="adaptive", precision=PRECISION)
    assert found.epsilon0 < alone.epsilon0 * (1 + 2 * PRECISION)
    if before:
        assert found.epsilon0 < alone.epsilon0 * 0.98
    assert admitted(store, accountant, found.round, 8) == 8
    # Hardly anything is left for such rounds now.
    assert admitted(store, accountant, larger(found, 1.05), 3) < 3


@pytest.mark.slow
def test_a_plan_admits_what_fits_its_free_slots(store: Store, accountant: Accountant) -> None:
    kinds = [ShuffledRound(randomizer=f"krr(k=4, epsilon0={one})", reports=10_000) for one in (1.0, 0.5)]  # type: ignore[arg-type]
    opened(store, accountant, "plan", 2.0, 1e-7, plan={kinds[0]: 2, kinds[1]: 3})
    described = {"randomizer": "krr(k=4)", "reports": 10_000}
    two = calibrate_for(store, accountant, "watches", described, rounds=2)
    five = calibrate_for(store, accountant, "watches", described, rounds=5)
    assert 1 - 2e-3 <= two.epsilon0 <= 1
    assert 0.5 * (1 - 2e-3) <= five.epsilon0 <= 0.5
    with pytest.raises(InvalidParameter, match=r"rounds: got 6, expected a number .* still admits"):
        calibrate_for(store, accountant, "watches", described, rounds=6)
    assert admitted(store, accountant, five.round, 5) == 5


def test_cohorts_that_admit_nothing_calibrate_nothing(store: Store, accountant: Accountant) -> None:
    described = {"randomizer": "krr(k=4)", "reports": 10_000}
    opened(store, accountant, "adaptive", 0.1, 1e-7)
    with pytest.raises(NotFound):
        calibrate_for(store, accountant, "phones", described)
    for rounds in (0, -1, True, 1.5, 10**7):
        with pytest.raises(InvalidParameter, match="rounds"):
            calibrate_for(store, accountant, "watches", described, rounds=rounds)  # type: ignore[arg-type]
    one = ShuffledRound(randomizer="krr(k=4, epsilon0=1)", reports=10_000)  # type: ignore[arg-type]
    assert admitted(store, accountant, one, 1) == 1
    settle(store, accountant, "watches-1.0-0", reports=20, actor="tester")
    with pytest.raises(Conflict, match="overspent"):
        calibrate_for(store, accountant, "watches", described)


def test_numbers_of_rounds_whose_bound_is_larger_are_not_overlooked() -> None:
    """Bounds are certified, and need not rise with the number of rounds as the truth does."""
    from shuffle_ledger.accounting.planning.calibration import decided_by_composition

    described = ShuffledRound(randomizer="krr(k=4, epsilon0=1)", reports=100)  # type: ignore[arg-type]
    bounds = {50: 0.9995, 49: 0.9999, 48: 1.0001, 47: 0.99, **dict.fromkeys(range(1, 47), 0.9)}

    def composed(_: ShuffledRound, count: int) -> float:
        return bounds[count]

    wanted: dict[str, Any] = {"epsilon": 1.0, "precision": 1e-3}
    assert decided_by_composition(composed, described, rounds=50, **wanted) == math.inf
    assert decided_by_composition(composed, described, rounds=47, **wanted) == 0.99
    many = dataclasses.replace(described, reports=200)
    assert decided_by_composition(lambda *_: 0.9979, many, rounds=5000, **wanted) == 0.9979
    assert decided_by_composition(lambda *_: 0.9999, many, rounds=5000, **wanted) > 1
