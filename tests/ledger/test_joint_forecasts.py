"""All budgets of an audience admit what a forecast of all of them says."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.answers.forecasts import JointForecast
from shuffle_ledger.ledger.decisions import set_quota
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.reports import forecast, forecasts, joint_forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.desk import AnyDesk

pytestmark = pytest.mark.policies

KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=10_000)
DAY = timedelta(days=1)


class Desk(AnyDesk):
    """A ledger of some cohorts, and short words for what is asked of it."""

    def foresee(self, *audience: str, team: str | None = None, **wanted: Any) -> JointForecast:
        question = ForecastWanted(**{"round": KRR, **wanted})
        return joint_forecast(
            self.store, self.accountant, audience, question, today=datetime.now(UTC).date(), team=team
        )

    def admits(
        self, *audience: str, team: str | None = None, described: ShuffledRound = KRR, on: date | None = None
    ) -> bool:
        names = tuple(sorted(audience))
        request = RoundRequest(
            round_id=self.new_name(),
            cohort=names[0],
            audience=names if len(names) > 1 else (),
            round=described,
            team=team,
            collected_on=on,
        )
        return isinstance(self.decide(request), Admitted)


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


@pytest.mark.slow
@pytest.mark.parametrize(("team", "larger"), [(None, False), ("ads", False), ("ads", True)])
def test_the_budget_that_ends_first_ends_the_rounds_of_all(
    desk: Desk, team: str | None, *, larger: bool
) -> None:
    desk.open("austria", epsilon=0.4)
    desk.open("belgium", epsilon=1.0)
    desk.open("cyprus", epsilon=2.0, policy="plan", plan={KRR: 30})
    set_quota(
        desk.store,
        "belgium",
        team="ads",
        epsilon=0.9 if larger else 0.2,
        reason="agreed",
        actor="ada",
    )
    names = ("austria", "belgium", "cyprus")
    assert desk.admits(*names, team=team)
    found = desk.foresee(*names, team=team, every="week", until=datetime.now(UTC).date() + 700 * DAY)
    each = {one.cohort: one.kinds[0].rounds_at_least for one in found.budgets}
    assert set(each) == {*names, *(["belgium@team=ads"] if team else [])}
    assert found.rounds_at_least == min(each.values()) > 1
    assert found.limited_by == ("belgium@team=ads" if team and not larger else "austria")
    assert (found.rounds_until, found.reaches_until) == (101, False)
    assert found.ends_on == datetime.now(UTC).date() + 7 * (found.rounds_at_least - 1) * DAY
    for name in names:
        alone = forecast(
            desk.store, desk.accountant, name, ForecastWanted(round=KRR), today=datetime.now(UTC).date()
        )
        assert alone.kinds[0].rounds_at_least == each[name]
    assert all(desk.admits(*names, team=team) for _ in range(found.rounds_at_least))
    if found.next_is_refused:
        assert not desk.admits(*names, team=team)


def test_windows_of_any_cohort_count(desk: Desk) -> None:
    desk.open("austria", epsilon=5.0, windows=[Window(unit="week", epsilon=0.2, delta=1e-6)])
    desk.open("belgium", epsilon=5.0)
    found = desk.foresee("belgium", "austria")
    assert found.audience == ("austria", "belgium")
    assert found.limited_by == "austria"
    assert "week" in found.limit
    assert "collected on its day of the schedule" in found.promise
    fitting = range(found.rounds_at_least)
    assert all(desk.admits("austria", "belgium") for _ in fitting)
    weekly = desk.foresee("belgium", "austria", every="week", first_on=datetime.now(UTC).date() + 14 * DAY)
    assert weekly.rounds_at_least > 10 * len(fitting), "each week has a budget of its own"


@pytest.mark.slow
def test_the_largest_epsilon0_fits_everywhere(desk: Desk) -> None:
    desk.open("austria", epsilon=0.3)
    desk.open("belgium", epsilon=0.6)
    assert desk.admits("belgium")
    largest = desk.foresee("austria", "belgium", fit=6).largest
    assert largest is not None
    assert largest.rounds == 6
    assert largest.epsilon0 is not None
    randomizer = parse_randomizer(f"krr(k=10, epsilon0={largest.epsilon0!r})")
    described = ShuffledRound(randomizer=randomizer, reports=10_000)
    assert all(desk.admits("austria", "belgium", described=described) for _ in range(6))
    desk.open("croatia", epsilon=2.0, policy="plan", plan={KRR: 3})
    nothing = desk.foresee("austria", "croatia", fit=6).largest
    assert nothing is not None
    assert nothing.epsilon0 is None


def test_an_epsilon0_is_searched_for_among_few_budgets_only(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "SEARCHED_MAX", 1)
    desk.open("austria", epsilon=0.3)
    desk.open("belgium", epsilon=0.3)
    with pytest.raises(InvalidValue, match="more than 1 budgets, and these are 2"):
        desk.foresee("austria", "belgium", fit=6)
    today = datetime.now(UTC).date()
    schedule = desk.foresee("austria", "belgium", every="day", until=today + 3 * DAY)
    assert (schedule.reaches_until, schedule.largest) == (True, None)


def test_reports_are_of_all_cohorts_together(desk: Desk) -> None:
    desk.open("austria", epsilon=1.0, population=8_000)
    desk.open("belgium", epsilon=1.0, population=8_000)
    assert desk.foresee("austria", "belgium").rounds_at_least > 0
    with pytest.raises(InvalidValue, match="reports"):
        desk.foresee("austria")
    with pytest.raises(InvalidValue, match="reports"):
        desk.foresee("austria", "belgium", round=ShuffledRound(randomizer=KRR.randomizer, reports=16_001))


def test_questions_without_an_answer(desk: Desk) -> None:
    desk.open("austria", epsilon=1.0)
    with pytest.raises(InvalidValue, match="a round described"):
        desk.foresee("austria", round=None)
    with pytest.raises(NotFound):
        desk.foresee("austria", "nobody")
