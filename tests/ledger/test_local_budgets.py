"""Local budgets: the epsilon0 of a user's rounds never add up to more than the limit, by the exact sum."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import RefusalReason
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.clerk import DAY, Clerk, krr, parsed, today

database_url = sqlite_url  # the rules are the same in every database
LIMITED: dict[str, Any] = {"population": 10**6, "epsilon": 5.0, "local_budget": 10.0}
WEEKLY = Window(unit="week", epsilon=3.0, delta=1e-7, local_budget=4.0)


def of(epsilon0: float, **more: Any) -> ShuffledRound:
    """Return a large round."""
    return krr(50_000, epsilon0, **more)


def test_rounds_are_admitted_up_to_the_limit_and_voided_ones_still_count(clerk: Clerk) -> None:
    clerk.open(**LIMITED)
    assert clerk.fill(of(2.0)) == 5
    refused = clerk.refusal(of(2.0))
    assert refused.reason is RefusalReason.LOCAL_BUDGET_EXCEEDED
    assert "add up to 12 of 10 (10 used)" in refused.message
    clerk.void("round-0")
    assert not clerk.admits(of(0.01)), "its reports may have been sent"
    found = clerk.budget()
    assert (found.local_epsilon_upper, found.local_budget) == (10.0, 10.0)
    clerk.check()


@pytest.mark.slow
def test_forecasts_calibrations_and_what_fits_know_the_limit(clerk: Clerk) -> None:
    clerk.open(**LIMITED)
    clerk.ask(of(2.0))
    (kind,) = clerk.forecast(round=of(2.0), every="week").kinds
    assert (kind.rounds_at_least, kind.next_is_refused, kind.limited_by) == (4, True, "local_budget")
    assert clerk.budget().fits[0].rounds_at_least == 4
    assert 3.9 < clerk.calibrate(of(2.0), rounds=2).epsilon0 <= 4.0


def test_several_reports_of_a_user_count_each(clerk: Clerk) -> None:
    clerk.open(**LIMITED)
    assert clerk.fill(of(1.5, reports_per_user=3)) == 2
    assert clerk.budget().local_epsilon_upper == 9.0
    assert clerk.fill(of(0.5)) == 2
    clerk.check()


@pytest.mark.parametrize("limit", [0.0, float("nan"), float("inf"), True])
def test_a_limit_is_a_positive_number(clerk: Clerk, limit: float) -> None:
    with pytest.raises(InvalidValue, match="local_budget"):
        clerk.open(**LIMITED | {"local_budget": limit})


def test_ten_rounds_of_a_tenth_fit_a_limit_of_one(clerk: Clerk) -> None:
    clerk.open(**LIMITED | {"local_budget": 1.0})
    assert clerk.fill(of(0.1)) == 10


def test_a_correction_counts_the_largest_epsilon0_that_was_stated(clerk: Clerk) -> None:
    clerk.open(**LIMITED)
    clerk.ask(of(3.0))
    for epsilon0 in (4.0, 1.0):
        clerk.correct("round-0", randomizer=of(epsilon0).randomizer.to_mapping())
    assert not clerk.admits(of(6.5))
    assert clerk.admits(of(6.0))
    clerk.check()


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.tuples(st.floats(0.01, 9.0), st.integers(0, 5)), max_size=4))
def test_what_is_shown_is_the_exact_sum_rounded_up(counts: list[tuple[float, int]]) -> None:
    spent: dict[ShuffledRound, int] = {}
    for epsilon0, count in counts:
        spent[of(epsilon0)] = spent.get(of(epsilon0), 0) + count
    total = sum((Fraction(repr(epsilon0)) * count for epsilon0, count in counts), Fraction(0))
    upper, _ = local_bounds(spent.items())
    assert Fraction(repr(upper)) >= total
    assert upper == 0.0 or Fraction(repr(math.nextafter(upper, 0.0))) < total


@pytest.mark.slow
def test_each_period_of_a_window_has_its_limit(clerk: Clerk) -> None:
    clerk.open(**LIMITED, windows=[WEEKLY])
    (kind,) = clerk.forecast(round=of(2.0)).kinds
    assert (kind.rounds_at_least, kind.limited_by) == (2, "window week")
    assert 1.9 < clerk.calibrate(of(2.0), rounds=2).epsilon0 <= 2.0
    assert clerk.fill(of(2.0)) == 2
    assert clerk.store.cohort(f"phones@{today():%G-W%V}").local_budget == 4.0
    assert clerk.admits(of(2.0), on=today() + 7 * DAY)
    clerk.check()
    for wrong in (0.0, float("nan"), True, "4"):
        with pytest.raises(InvalidValue, match="window"):
            Window(unit="week", epsilon=3.0, delta=1e-7, local_budget=wrong)  # type: ignore[arg-type]  # also a text
    assert Window.from_text("calendar=week,epsilon=3,delta=1e-7,local_budget=4") == WEEKLY
    assert Window.from_mapping(WEEKLY.to_mapping()) == WEEKLY


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_report_without_an_epsilon_is_refused_with_a_sentence_that_helps(clerk: Clerk, policy: str) -> None:
    number, vector, common = (
        parsed(written, 50_000)
        for written in (
            "local_gaussian(sigma=4)",
            "local_gaussian(sigma=4, delta0=1e-16)",
            "binomial_sum(p=0.25, bits=4)",
        )
    )
    plan = {number: 1, vector: 1, common: 1} if policy == "plan" else None
    clerk.open(**LIMITED, policy=policy, plan=plan)
    for kind, remedy in (
        (number, "State a delta0 in local_gaussian"),
        (common, "its local budget of 10 admits"),
    ):
        refused = clerk.refusal(kind)
        assert refused.reason is RefusalReason.LOCAL_BUDGET_EXCEEDED
        assert "which alone has no finite epsilon0" in refused.message
        assert remedy in refused.message
    assert clerk.admits(vector)
    found = clerk.budget()
    assert (found.local_epsilon_upper, found.local_delta_upper) == (vector.randomizer.epsilon0, 1e-16)
    clerk.check()
