"""Forecasts of rounds of several cohorts: the least of all their budgets, each by its own rules."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from shuffle_ledger.ledger.answers.forecasts import JointForecast
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.reports import forecasts
from shuffle_ledger.ledger.reports.forecasts import joint_forecast
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.clerk import DAY, Clerk, krr, today

database_url = sqlite_url  # the rules are the same in every database


def foresee(clerk: Clerk, *audience: str, team: str | None = None, **wanted: Any) -> JointForecast:
    """Return how many rounds of some cohorts fit."""
    asked = ForecastWanted(**{"round": krr(), **wanted})
    return joint_forecast(clerk.store, clerk.accountant, audience, asked, today=today(), team=team)


@pytest.mark.slow
@pytest.mark.parametrize(("team", "quota"), [(None, 0.2), ("ads", 0.2), ("ads", 0.9)])
def test_the_budget_that_ends_first_ends_the_rounds_of_all(
    clerk: Clerk, team: str | None, quota: float
) -> None:
    clerk.open("austria", epsilon=0.4)
    clerk.open("belgium")
    clerk.open("cyprus", epsilon=2.0, policy="plan", plan={krr(): 30})
    clerk.quota("ads", quota, cohort="belgium")
    names = ("austria", "belgium", "cyprus")
    assert clerk.admits(None, *names, team=team)
    until = today() + 700 * DAY
    found = foresee(clerk, *names, team=team, every="week", until=until)
    each = {one.cohort: one.kinds[0].rounds_at_least for one in found.budgets}
    assert set(each) == {*names, *(["belgium@team=ads"] if team else [])}
    assert found.rounds_at_least == min(each.values()) > 1
    assert found.limited_by == ("belgium@team=ads" if team and quota == 0.2 else "austria")
    assert (found.rounds_until, found.reaches_until) == (101, False)
    assert found.ends_on == today() + 7 * (found.rounds_at_least - 1) * DAY
    assert {name: clerk.forecast(name).kinds[0].rounds_at_least for name in names}.items() <= each.items()
    fitting = clerk.fill(None, *names, team=team)
    assert fitting == found.rounds_at_least if found.next_is_refused else fitting >= found.rounds_at_least


def test_windows_of_any_cohort_count(clerk: Clerk) -> None:
    clerk.open("austria", epsilon=5.0, windows=[Window(unit="week", epsilon=0.2, delta=1e-6)])
    clerk.open("belgium", epsilon=5.0)
    found = foresee(clerk, "belgium", "austria")
    assert found.audience == ("austria", "belgium")
    assert found.limited_by == "austria"
    assert "week" in found.limit
    assert "collected on its day of the schedule" in found.promise
    assert clerk.fill(None, "austria", "belgium") >= found.rounds_at_least
    first: date = today() + 14 * DAY
    weekly = foresee(clerk, "belgium", "austria", every="week", first_on=first)
    assert weekly.rounds_at_least > 10 * found.rounds_at_least, "each week has a budget of its own"


def test_an_epsilon0_is_searched_for_among_few_budgets_only(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "SEARCHED_MAX", 1)
    clerk.open("austria", "belgium", epsilon=0.3)
    with pytest.raises(InvalidValue, match="more than 1 budgets, and these are 2"):
        foresee(clerk, "austria", "belgium", fit=6)
    schedule = foresee(clerk, "austria", "belgium", every="day", until=today() + 3 * DAY)
    assert (schedule.reaches_until, schedule.largest) == (True, None)


def test_reports_are_of_all_cohorts_together(clerk: Clerk) -> None:
    clerk.open("austria", "belgium", population=8_000)
    assert foresee(clerk, "austria", "belgium").rounds_at_least > 0
    for audience, reports in ((("austria",), 10_000), (("austria", "belgium"), 16_001)):
        with pytest.raises(InvalidValue, match="reports"):
            foresee(clerk, *audience, round=krr(reports))
    with pytest.raises(InvalidValue, match="a round described"):
        foresee(clerk, "austria", round=None)
    with pytest.raises(NotFound):
        foresee(clerk, "austria", "nobody")
