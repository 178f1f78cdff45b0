"""What `budget` says of each promise of a cohort: the period, used and left, and when it renews."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.reports.budgets import BudgetStatement, budget
from shuffle_ledger.ledger.values.requests import Admitted
from tests.ledger.test_windows import DAY, WEEK, Desk, a_monday, sqlite_desk

__all__ = ["sqlite_desk"]  # the fixture


def asked(desk: Desk, on: date | None = None) -> BudgetStatement:
    return budget(desk.store, desk.accountant, "phones", on=on)


def test_the_numbers_beside_the_promises_are_those_of_the_one_with_the_least_left(sqlite_desk: Desk) -> None:
    sqlite_desk.open("phones", WEEK, epsilon=5.0)
    monday = a_monday()
    assert isinstance(sqlite_desk.ask(monday), Admitted)
    found = asked(sqlite_desk, monday)
    life, week = found.promises
    assert (life.period, life.renews) == ("life", None)
    assert (week.budget, week.first, week.renews) == (f"phones@{monday:%G-W%V}", monday, monday + 7 * DAY)
    assert 0 < week.epsilon_spent_upper == sqlite_desk.store.view(week.budget).spent.epsilon_upper
    assert week.epsilon_remaining < life.epsilon_remaining
    assert (found.budget, found.epsilon_remaining) == (week.budget, week.epsilon_remaining)
    assert (found.epsilon_spent_upper, found.delta_budget) == (week.epsilon_spent_upper, week.delta_budget)


def test_a_life_with_less_left_than_its_periods_is_what_is_shown_first(sqlite_desk: Desk) -> None:
    sqlite_desk.open("phones", WEEK, epsilon=WEEK.epsilon / 2)
    assert asked(sqlite_desk).budget == "phones"


def test_another_day_has_the_budgets_of_its_own_periods_and_what_is_booked_later_is_shown(
    sqlite_desk: Desk,
) -> None:
    sqlite_desk.open("phones", WEEK, epsilon=5.0)
    monday = a_monday()
    assert isinstance(sqlite_desk.ask(monday), Admitted)
    before = asked(sqlite_desk)
    assert before.on == datetime.now(UTC).date() < monday
    assert before.promises[1].epsilon_spent_upper == 0.0
    (booked,) = before.booked
    assert booked == asked(sqlite_desk, monday).promises[1]
    assert asked(sqlite_desk, monday).booked == ()
    assert asked(sqlite_desk, monday + 7 * DAY).promises[1].epsilon_spent_upper == 0.0


def test_a_day_that_no_period_has_is_refused(sqlite_desk: Desk) -> None:
    sqlite_desk.open("phones", WEEK)
    with pytest.raises(InvalidValue, match="from 1970"):
        asked(sqlite_desk, date(1066, 10, 14))
