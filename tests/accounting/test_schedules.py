"""The rounds that the filters admit of schedules that a cohort may repeat, beside those of composition."""

from __future__ import annotations

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound
from tests.benchmarks.filters import (
    REGULAR_KINDS,
    STRONG_SAMPLES,
    YEAR,
    Budget,
    admitted_beside_slots,
    admitted_of_schedule,
)

LEAST = 0.96
LEAST_BESIDE_SLOTS = 0.96
SCHEDULES = {
    "one kind": REGULAR_KINDS[:1],
    "a heavy round and light ones": (REGULAR_KINDS[1], *(REGULAR_KINDS[2],) * 4),
}


@pytest.fixture(scope="module")
def accountant() -> Accountant:
    """Return an accountant that is quick enough for compositions of hundreds of rounds."""
    return Accountant(precision=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-9)])
def test_regular_schedules_lose_almost_nothing(
    accountant: Accountant, schedule: str, epsilon: float, delta: float
) -> None:
    kept, exact = admitted_of_schedule(accountant, SCHEDULES[schedule], epsilon, delta)
    assert kept <= exact, "the exact composition would refuse this"
    assert kept >= min(LEAST * exact, exact - 2), (kept, exact)


@pytest.mark.slow
def test_a_year_of_weekly_and_monthly_rounds_loses_none(accountant: Accountant) -> None:
    assert admitted_of_schedule(accountant, YEAR, 0.5, 1e-6) == (32, 32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRONG_SAMPLES[:1], ids=lambda kind: str(kind.randomizer))
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-9)])
def test_declared_slots_beside_the_filters_have_room_for_small_samples(
    accountant: Accountant, kind: ShuffledRound, epsilon: float, delta: float
) -> None:
    """The missing rounds are the price of their share of delta, three quarters: at most 3.2 % of them."""
    kept, exact = admitted_beside_slots(accountant, kind, epsilon, delta)
    assert LEAST_BESIDE_SLOTS * exact <= kept <= exact, (kept, exact)
    assert Budget(accountant, epsilon, delta).room(kind) < kept
