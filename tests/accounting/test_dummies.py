"""The least number of dummies for a target."""

from __future__ import annotations

import dataclasses

import pytest

from shuffle_ledger.accounting import Accountant, InvalidParameter, least_dummies
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "reports", "epsilon", "rounds"),
    [
        ("krr(k=10, epsilon0=2)", 100, 0.5, 1),
        ("mixed((40, krr(k=4, epsilon0=2)), (20, krr(k=4, epsilon0=1)))", 60, 2.0, 10),
    ],
)
def test_the_number_meets_the_target_and_the_one_beyond_does_not(
    written: str, reports: int, epsilon: float, rounds: int
) -> None:
    found = least_dummies(written, reports=reports, epsilon=epsilon, delta=1e-6, rounds=rounds)
    assert found.certificate.epsilon_upper <= epsilon
    assert found.dummies_beyond is not None
    assert found.dummies_beyond < found.dummies <= 1.01 * found.dummies_beyond + 1
    assert isinstance(found.round.randomizer, MixedFleet)
    fewer = dataclasses.replace(found.round.randomizer, dummies=found.dummies_beyond)
    less = dataclasses.replace(found.round, randomizer=fewer)
    assert Accountant().certify({less: rounds}, delta=1e-6).epsilon_upper > epsilon


def test_a_target_that_is_met_needs_none() -> None:
    found = least_dummies("krr(k=10, epsilon0=1)", reports=1_000, epsilon=1, delta=1e-6)
    assert (found.dummies, found.dummies_beyond) == (0, None)


@pytest.mark.parametrize(
    ("written", "epsilon", "field"),
    [
        ("laplace(epsilon0=1)", 0.1, "dummies"),
        ("generic(epsilon0=1)", 0.1, "groups"),
        ("krr(k=10, epsilon0=9)", 1e-9, "epsilon"),
    ],
)
def test_what_no_number_meets_is_refused(written: str, epsilon: float, field: str) -> None:
    with pytest.raises(InvalidParameter, match=field):
        least_dummies(written, reports=10, epsilon=epsilon, delta=1e-12)
