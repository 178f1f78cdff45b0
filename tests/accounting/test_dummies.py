"""The least number of dummies for a target: what `calibrate` finds for a mixed fleet that leaves them out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import shuffle_ledger as sl
from shuffle_ledger.accounting import Accountant, Calibration, InvalidParameter
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet


def _epsilon_with(found: Calibration, dummies: int, rounds: int) -> float:
    assert isinstance(found.round.randomizer, MixedFleet)
    fleet = dataclasses.replace(found.round.randomizer, dummies=dummies)
    described = dataclasses.replace(found.round, randomizer=fleet)
    return Accountant().certify({described: rounds}, delta=1e-6).epsilon_upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "reports", "epsilon", "rounds"),
    [
        ("mixed((100, krr(k=10, epsilon0=2)))", 100, 0.7, 1),
        ("mixed((40, krr(k=4, epsilon0=2)), (20, krr(k=4, epsilon0=1)))", 60, 2.0, 10),
    ],
)
def test_the_number_meets_the_target_and_one_dummy_less_does_not(
    written: str, reports: int, epsilon: float, rounds: int
) -> None:
    found = sl.calibrate(written, reports=reports, epsilon=epsilon, delta=1e-6, rounds=rounds)
    assert (found.parameter, found.value_beyond) == ("dummies", found.value - 1)
    assert isinstance(found.round.randomizer, MixedFleet)
    number = found.round.randomizer.dummies
    assert number == found.value
    assert found.epsilon_decided_upper <= epsilon
    assert found.certificate.epsilon_upper <= epsilon
    assert _epsilon_with(found, number, rounds) <= epsilon
    assert _epsilon_with(found, number - 1, rounds) > epsilon


@pytest.mark.slow
def test_the_number_beyond_is_at_most_one_percent_smaller() -> None:
    found = sl.calibrate("mixed((100, krr(k=10, epsilon0=2)))", reports=100, epsilon=0.5, delta=1e-6)
    assert found.value_beyond is not None
    assert 100 < found.value_beyond < found.value <= 1.01 * found.value_beyond + 1
    assert _epsilon_with(found, int(found.value_beyond), 1) > 0.5


def test_a_target_that_is_met_needs_none() -> None:
    found = sl.calibrate("mixed((1000, krr(k=10, epsilon0=1)))", reports=1_000, epsilon=1, delta=1e-6)
    assert (found.parameter, found.value, found.value_beyond) == ("dummies", 0, None)


def test_an_epsilon0_that_is_left_out_is_what_is_asked_for() -> None:
    group = {"kind": "krr", "k": 4}
    for groups in ([(30, group)], [[30, group]], [{"reports": 30, "randomizer": group}]):
        form: dict[str, Any] = {"randomizer": {"kind": "mixed", "groups": groups}, "reports": 30}
        assert sl.calibrate(form, epsilon=3, delta=1e-3, precision=0.1).parameter == "epsilon0"


def test_a_fleet_that_leaves_nothing_out_is_refused() -> None:
    for groups in ([(30, "krr(k=4, epsilon0=1)")], [{"reports": 30, "randomizer": "krr(k=4, epsilon0=1)"}]):
        form: dict[str, Any] = {
            "randomizer": {"kind": "mixed", "groups": groups, "dummies": 3},
            "reports": 30,
        }
        with pytest.raises(InvalidParameter, match="which is left out"):
            sl.calibrate(form, epsilon=3, delta=1e-3)


@pytest.mark.parametrize(
    ("written", "epsilon", "field"),
    [
        ("mixed((10, laplace(epsilon0=1)))", 0.1, "dummies"),
        ("mixed((10, generic(epsilon0=1)))", 0.1, "groups"),
        ("mixed((10, krr(k=10, epsilon0=9)))", 1e-9, "epsilon"),
        ("mixed((9, krr(k=10, epsilon0=1)))", 0.1, "reports"),
    ],
)
def test_what_no_number_meets_is_refused(written: str, epsilon: float, field: str) -> None:
    with pytest.raises(InvalidParameter, match=field):
        sl.calibrate(written, reports=10, epsilon=epsilon, delta=1e-12)


@pytest.mark.parametrize("policy", ["plan", "adaptive"])
@pytest.mark.parametrize("inner", ["krr(k=4)", "krr(k=4, epsilon0=1)"])
def test_no_cohort_is_said_to_admit_a_fleet(policy: str, inner: str) -> None:
    with pytest.raises(InvalidParameter, match="one randomizer for the whole round"):
        sl.calibrate(f"mixed((10, {inner}))", reports=10, epsilon=1, delta=1e-6, policy=policy)
