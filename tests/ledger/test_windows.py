"""Budgets that begin anew: which periods a round is charged to, and that each of them holds by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import (
    NUMERICAL_POLICY,
    Accountant,
    InvalidParameter,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.ledger.answers.quotes import Fits
from shuffle_ledger.ledger.decisions import (
    admission,
    admit,
    admit_together,
    change_budget,
    decide,
    price,
    quote,
    refusals,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.decisions import windows as windows_module
from shuffle_ledger.ledger.decisions.quoting import fits_instead, quote_batch
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotCollectable, NotFound
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast, joint_forecast
from shuffle_ledger.ledger.storage.rows import CohortView, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Cohort,
    Outcome,
    Pending,
    RefusalReason,
    Refused,
    RoundRequest,
    most_spent,
)
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, rewrite, trust_any_clock
from tests.ledger.releases import after_opening

pytestmark = pytest.mark.policies

DAY = timedelta(days=1)
WEEK = Window(unit="week", epsilon=0.2, delta=1e-7)
SEVEN_DAYS = Window(unit="day", sliding=7, epsilon=0.2, delta=1e-7)
KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=10_000)


def today() -> date:
    return datetime.now(UTC).date()


def a_monday() -> date:
    """Return a Monday that is to come, so that nothing here depends on the day of the week."""
    return today() + (8 - today().weekday()) * DAY - DAY


class Desk(AnyDesk):
    """A ledger, and short words for what is done to it."""

    def open(self, name: str, /, *windows: Window, **changes: Any) -> None:
        super().open(name, windows=windows, **changes)

    def request(self, first: date | None = None, last: date | None = None, **changes: Any) -> RoundRequest:
        values: dict[str, Any] = {"round_id": self.new_name(), "cohort": "phones", "round": KRR}
        return RoundRequest(collected_on=first, collected_until=last, **{**values, **changes})

    def ask(self, first: date | None = None, last: date | None = None, **changes: Any) -> Outcome:
        request = self.request(first, last, **changes)
        return self.decide(request)

    def admitted(self, first: date | None = None, most: int = 30, **changes: Any) -> int:
        """Return how many rounds are admitted one after the other."""
        for count in range(most):
            if isinstance(self.ask(first, **changes), Refused):
                return count
        return most

    def names(self) -> list[str]:
        return [cohort.name for cohort in self.store.cohorts()]


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


@pytest.fixture
def sqlite_desk(sqlite_url: str, accountant: Accountant) -> Iterator[Desk]:
    with Store.connect(sqlite_url) as opened:
        yield Desk(opened, accountant)


def alone(desk: Desk, window: Window) -> int:
    """Return how many rounds a cohort admits whose only budget is a window's."""
    desk.open("alone", epsilon=window.epsilon, delta=window.delta)
    return desk.admitted(cohort="alone")


def test_a_refusal_by_a_sliding_window_names_the_budget_that_has_the_least_left(sqlite_desk: Desk) -> None:
    """A round is in three runs of three days; an earlier round of the next day is in two of these."""
    desk = sqlite_desk
    desk.open("phones", Window(unit="day", sliding=3, epsilon=0.2, delta=1e-6), epsilon=5.0)
    day = today() + DAY
    assert isinstance(desk.ask(day + DAY), Admitted)
    strong = dataclasses.replace(KRR, randomizer=parse_randomizer("krr(k=2, epsilon0=6)"))
    quoted = quote(desk.store, desk.accountant, desk.request(day, round=strong))
    worst = max(quoted.refused_by, key=lambda each: each.epsilon_spent_upper)
    assert [each.epsilon_spent_upper > 0 for each in quoted.refused_by] == [False, True, True]
    assert (quoted.cohort, quoted.epsilon_spent_upper) == (worst.cohort, worst.epsilon_spent_upper)
    assert quoted.epsilon_remaining == pytest.approx(0.2 - quoted.epsilon_spent_upper)
    assert quoted.message is not None
    said = (
        f"Refused by the budget of phones from {day - DAY} to {day + DAY}, the most used of 3 such budgets: "
    )
    assert quoted.message.startswith(said)
    assert quoted.message.count("it would be") == 1
    assert [each.cohort for each in most_spent(quoted.refused_by)] == [worst.cohort]


@pytest.mark.slow
def test_each_week_admits_what_its_budget_admits_alone_and_the_life_ends_them_all(desk: Desk) -> None:
    desk.open("phones", WEEK, epsilon=0.3)
    monday, most = a_monday(), alone(desk, WEEK)
    counts = [desk.admitted(monday + 7 * week * DAY) for week in range(3)]
    desk.open("life", epsilon=0.3)
    life = desk.admitted(cohort="life")
    assert counts == [most, min(most, life - most), max(0, life - 2 * most)]
    assert sum(counts) == life > most
    refused = desk.ask(monday)
    assert isinstance(refused, Refused)
    assert [each.cohort for each in refused.refused_by] == ["phones", f"phones@{monday:%G-W%V}"]
    desk.check()


def test_the_window_refuses_alone_and_the_cohort_is_not_charged(desk: Desk) -> None:
    desk.open("phones", WEEK)
    monday = a_monday()
    desk.admitted(monday)
    before = desk.store.view("phones")
    refused = desk.ask(monday)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.REFUSED_ELSEWHERE
    name = f"phones@{monday:%G-W%V}"
    label = name.partition("@")[2]
    assert refused.message.startswith(f"Refused by the {label} budget of phones: it would be 0.2")
    assert quote(desk.store, desk.accountant, desk.request(monday)).message == refused.message
    assert [(each.cohort, each.epsilon_budget) for each in refused.refused_by] == [(name, 0.2)]
    after = desk.store.view("phones")
    assert (after.spent, after.details["standing"]) == (before.spent, before.details["standing"])
    answer = desk.ask(monday + 7 * DAY)
    assert isinstance(answer, Admitted)
    assert [member.cohort for member in answer.audience] == ["phones", f"phones@{monday + 7 * DAY:%G-W%V}"]


def test_without_days_a_round_is_collected_today_whatever_day_it_is_asked_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.open("phones", WEEK, SEVEN_DAYS)
    request = desk.request()
    answer, was_decided = register_and_admit(desk.store, desk.accountant, request, actor="ada")
    names = desk.names()
    assert f"phones@{today():%G-W%V}" in names
    _shift(monkeypatch, desk.store, 10 * DAY)
    again, is_decided = register_and_admit(desk.store, desk.accountant, request, actor="ada")
    assert (was_decided, is_decided, again) == (False, True, answer)
    assert register(desk.store, request, actor="ada") == answer
    assert desk.names() == names
    registered = RoundRequest.from_bytes(desk.store.round(request.round_id).content)
    assert request.repeats(registered.to_bytes())
    assert not dataclasses.replace(request, use_case="other").repeats(registered.to_bytes())
    other = dataclasses.replace(request, collected_on=today() + 20 * DAY)
    assert not other.repeats(registered.to_bytes())
    with pytest.raises(Conflict):
        register(desk.store, other, actor="ada")


def test_a_clock_that_steps_back_keeps_the_day_of_the_last_entry(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.open("phones", Window(unit="day", epsilon=0.2, delta=1e-7))
    _shift(monkeypatch, desk.store, -3 * DAY)
    answer = desk.ask()
    assert isinstance(answer, Admitted)
    assert [member.cohort for member in answer.audience] == ["phones", f"phones@{today()}"]


@pytest.mark.slow
@pytest.mark.parametrize("by", [0, 1, 2])
def test_a_round_that_is_decided_after_its_days_is_refused_by_every_budget(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    desk.open("phones", WEEK)
    now, until_tomorrow = desk.request(), desk.request(today(), today() + DAY)
    for request in (now, until_tomorrow):
        assert isinstance(register(desk.store, request, actor="ada"), Pending)
    _shift(monkeypatch, desk.store, by * DAY)
    answers = [admit(desk.store, desk.accountant, request.round_id) for request in (now, until_tomorrow)]
    assert [isinstance(answer, Refused) for answer in answers] == [by > 0, by > 1]
    for answer in answers:
        if isinstance(answer, Refused):
            assert answer.reason is RefusalReason.COLLECTION_OVER
            assert "the decision came after the last day of the collection" in answer.message
            assert {each.reason for each in answer.refused_by} == {RefusalReason.COLLECTION_OVER}
            registered = RoundRequest.from_bytes(desk.store.round(answer.round_id).content)
            assert [each.cohort for each in answer.refused_by] == list(registered.cohorts)
    if by == 2:
        assert all(desk.store.view(name).spent.epsilon_upper == 0 for name in desk.names())
    desk.check()
    made = make_bundle(desk.store, desk.names())
    assert verify_bundle(made.data, desk.accountant).ok


def test_a_cohort_without_windows_asks_for_no_days(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open("phones")
    request = desk.request(today())
    assert isinstance(register(desk.store, request, actor="ada"), Pending)
    _shift(monkeypatch, desk.store, 3 * DAY)
    assert isinstance(admit(desk.store, desk.accountant, request.round_id), Admitted)


def test_a_quote_of_a_registered_round_says_what_was_decided_whatever_day_it_is(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    admitted, late = desk.request(today()), desk.request(today())
    assert isinstance(register_and_admit(desk.store, desk.accountant, admitted, actor="ada")[0], Admitted)
    assert isinstance(register(desk.store, late, actor="ada"), Pending)
    _shift(monkeypatch, desk.store, DAY)
    before = quote(desk.store, desk.accountant, late)
    assert (before.would_be, before.reason) == ("refused", RefusalReason.COLLECTION_OVER)
    refused = admit(desk.store, desk.accountant, late.round_id)
    assert isinstance(refused, Refused)
    after = quote(desk.store, desk.accountant, late)
    assert (after.would_be, after.reason, after.refused_by) == ("refused", refused.reason, refused.refused_by)
    assert fits_instead(desk.store, desk.accountant, late) == Fits(rounds=0, epsilon0=None)
    again = quote(desk.store, desk.accountant, admitted)
    assert (again.would_be, again.reason, again.refused_by) == ("admitted", None, ())


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("known", [False, True])  # a known kind is registered and decided in one commit
def test_a_round_that_is_asked_for_at_midnight_is_of_the_day_that_begins(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch, *, named: bool, known: bool
) -> None:
    """Unless it names the day that ends: then it is not registered at all."""
    desk, opening = sqlite_desk, windows_module.open_periods
    ahead = [timedelta()]  # of the true time, the last one: what SQLite's clock says

    def clock(form: str, _moment: str) -> str:
        assert form.endswith("%f")  # seconds with three decimals, as SQLite counts them
        return (datetime.now(UTC) + ahead[-1]).strftime(form.replace("%f", "%S.%f"))[:-3]

    def put_clock(connection: Any, *_: object) -> None:
        connection.create_function("strftime", 2, clock)

    event.listen(desk.store.engine, "checkout", put_clock)
    desk.open("phones", WEEK)
    if known:
        assert isinstance(desk.ask(), Admitted)
    before = desk.store.count_entries("phones")
    request = desk.request(today() if named else None)

    def at_midnight(store: Store, asked: RoundRequest, *, actor: str) -> None:
        opening(store, asked, actor=actor)
        monkeypatch.setattr(admission, "open_periods", opening)
        ahead.append(DAY)

    monkeypatch.setattr(admission, "open_periods", at_midnight)
    if named:
        with pytest.raises(InvalidValue, match="is over: record it with `incident record`"):
            register_and_admit(desk.store, desk.accountant, request, actor="ada")
        assert desk.store.count_entries("phones") == before
        return
    assert isinstance(register_and_admit(desk.store, desk.accountant, request, actor="ada")[0], Admitted)
    registered = RoundRequest.from_bytes(desk.store.round(request.round_id).content)
    assert registered.collected_on == today() + DAY
    desk.check()


def test_a_refusal_that_says_wrongly_that_the_days_have_passed_is_found(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    monkeypatch.setattr(refusals, "is_over", lambda _request, _today: True)
    assert isinstance(desk.ask(), Refused)
    monkeypatch.undo()
    _is_found(desk, "phones", "it does not say what its round costs")


def _shift(monkeypatch: pytest.MonkeyPatch, store: Store, by: timedelta) -> None:
    """Move the database's clock, as views tell it."""
    trust_any_clock(store)
    views, view_of_round = store.views, store.view_of_round

    def shifted(names: Any) -> list[CohortView]:
        return [dataclasses.replace(view, at=view.at + by) for view in views(names)]

    def shifted_of_round(round_id: str) -> list[CohortView] | StoredRound:
        found = view_of_round(round_id)
        if isinstance(found, StoredRound):
            return found
        return [dataclasses.replace(view, at=view.at + by) for view in found]

    monkeypatch.setattr(store, "views", shifted)
    monkeypatch.setattr(store, "view_of_round", shifted_of_round)


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (-1, None, "is over: record it with `incident record`"),
        (-9, -1, "is over: record it with `incident record`"),
        (0, 14, "in at most 2 UTC weeks"),
        (1100, None, "is too far ahead: the last day allowed today is ....-12-31"),
    ],
)
def test_days_that_no_round_can_have(sqlite_desk: Desk, first: int, last: int | None, message: str) -> None:
    sqlite_desk.open("phones", WEEK)
    until = None if last is None else today() + last * DAY
    with pytest.raises(InvalidValue, match=message):
        sqlite_desk.ask(today() + first * DAY, until)
    assert sqlite_desk.names() == ["phones"]


def test_what_windows_do_not_allow(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    monday = a_monday()
    assert isinstance(desk.ask(monday), Admitted)
    name = f"phones@{monday:%G-W%V}"
    with pytest.raises(InvalidValue, match="a period of its window"):
        desk.ask(monday, cohort=name)
    with pytest.raises(InvalidValue, match="a period of its window"):
        desk.ask(monday, audience=("phones", name))
    with pytest.raises(InvalidValue, match="the periods of the cohorts' windows"):
        decide.check_request(desk.request(monday), [desk.store.cohort("phones")])
    with pytest.raises(Conflict, match="fixed when the cohort is opened"):
        change_budget(desk.store, name, epsilon=9.0, reason="more", actor="ada")
    with pytest.raises(InvalidValue, match="without @"):
        desk.open("phones@2031")
    desk.open("phones", WEEK)
    with pytest.raises(NotFound):
        desk.ask(cohort="nobody")


def test_a_round_is_settled_on_its_first_day_at_the_earliest(desk: Desk) -> None:
    desk.open("phones", WEEK)
    later, now = desk.ask(a_monday()), desk.ask()
    assert isinstance(later, Admitted)
    assert isinstance(now, Admitted)
    with pytest.raises(Conflict, match="is collected from"):
        desk.settle(later.round_id, 9_000)
    settled = desk.settle(now.round_id, 9_000)
    assert [member.cohort for member in settled.audience] == ["phones", f"phones@{today():%G-W%V}"]
    desk.check()


def test_an_overspent_week_ends_with_the_week(desk: Desk) -> None:
    desk.open("phones", WEEK)
    monday = a_monday()
    first = desk.ask(monday)
    told = desk.correct(first.round_id, reports=100)
    assert [member.cohort for member in told.audience if member.overspent] == [f"phones@{monday:%G-W%V}"]
    refused = desk.ask(monday)
    assert isinstance(refused, Refused)
    assert [each.reason for each in refused.refused_by] == [RefusalReason.COHORT_OVERSPENT]
    with pytest.raises(NotCollectable, match="overspent"):
        desk.ask(monday, round_id=first.round_id)
    assert isinstance(desk.ask(monday + 7 * DAY), Admitted)
    desk.check()


def test_nothing_is_said_to_be_left_of_an_overspent_day(desk: Desk) -> None:
    desk.open("phones", Window(unit="day", epsilon=0.2, delta=1e-7))
    first = desk.ask()
    desk.ask()
    desk.correct(first.round_id, reports=100)
    desk.void(first.round_id)
    found = budget(desk.store, desk.accountant, "phones")
    (day,) = found.windows
    assert (day.status, day.epsilon_remaining) == ("overspent", 0.0)
    assert day.epsilon_spent_upper < 0.2  # what broke the promise was given back, and mends nothing
    assert [one.rounds_at_least for one in found.fits] == [0] * len(found.fits)
    (kind,) = forecast(desk.store, desk.accountant, "phones", ForecastWanted(round=KRR), today=today()).kinds
    assert (kind.rounds_at_least, kind.limited_by) == (0, "window day")
    described = {"randomizer": "krr(k=10)", "reports": 50_000}
    with pytest.raises(InvalidParameter, match="still admits"):
        calibrate_for(desk.store, desk.accountant, "phones", described)
    wanted = ForecastWanted(round=KRR, every="day", first_on=today() - DAY)
    with pytest.raises(InvalidValue, match="no round of earlier days is admitted"):
        forecast(desk.store, desk.accountant, "phones", wanted, today=today())


def test_an_incident_is_charged_to_the_days_of_its_collection(desk: Desk) -> None:
    desk.open("phones", WEEK)
    with pytest.raises(InvalidValue, match="the first day of collection, for cohort 'phones' has windows"):
        desk.incident("leak", KRR, "phones")
    past = today() - 40 * DAY
    for _ in range(2):  # the same again is the same
        found = desk.incident("leak", KRR, "phones", collected_on=past)
    assert [member.cohort for member in found.audience] == ["phones", f"phones@{past:%G-W%V}"]
    assert desk.store.view(f"phones@{past:%G-W%V}").spent.epsilon_upper > 0
    assert [entry.kind for entry in desk.store.entries_of("phones")] == ["opened", "incident"]
    desk.check()


def test_an_incident_of_days_to_come_is_refused_and_opens_no_period(desk: Desk) -> None:
    """Any day was taken: a slip of the pen overspent a week of the year 8999, and left the true one alone."""
    desk.open("phones", WEEK)
    for day in (today() + 2 * DAY, today() + 400 * DAY, date(8999, 1, 1)):
        for name in ("phones", f"phones@{day:%G-W%V}"):
            with pytest.raises(InvalidValue, match="is yet to come: register the round"):
                desk.incident("leak", KRR, name, collected_on=day)
    assert [(each, desk.store.view(each).head_sequence) for each in desk.names()] == [("phones", 1)]
    desk.incident("leak", KRR, "phones", collected_on=today())
    desk.check()


def test_cohorts_of_an_audience_bring_their_own_windows(desk: Desk) -> None:
    desk.open("phones", WEEK)
    desk.open("tablets")
    desk.open("watches", Window(unit="day", epsilon=0.05, delta=1e-7))
    monday = a_monday()
    both = desk.ask(monday, audience=("phones", "tablets"))
    assert isinstance(both, Admitted)
    assert [member.cohort for member in both.audience] == ["phones", f"phones@{monday:%G-W%V}", "tablets"]
    # 200,000 users, who are not counted again in the windows
    many = dataclasses.replace(KRR, reports=200_001)
    with pytest.raises(InvalidValue, match="the population of its 2 cohorts, 200000"):
        desk.ask(monday, audience=("phones", "tablets"), round=many)
    refused = desk.ask(monday, audience=("phones", "tablets", "watches"))
    assert isinstance(refused, Refused)
    assert [each.cohort for each in refused.refused_by] == [f"watches@{monday}"]
    desk.check()


@pytest.mark.slow
def test_a_batch_of_quotes_says_what_would_be_left_of_the_cohorts_own_budget(desk: Desk) -> None:
    desk.open("phones", WEEK)
    batch = quote_batch(desk.store, desk.accountant, [desk.request() for _ in range(8)])
    assert (batch.cohort, batch.epsilon_spent_upper) == ("phones", 0.0)
    assert desk.admitted() == batch.rounds_admitted < 8
    life = budget(desk.store, desk.accountant, "phones").promises[0]
    assert life.budget == "phones"
    assert batch.epsilon_remaining == life.epsilon_remaining > WEEK.epsilon


@pytest.mark.slow
def test_quotes_and_forecasts_agree_with_what_is_admitted_and_leave_no_trace(desk: Desk) -> None:
    desk.open("phones", WEEK)
    monday = a_monday()
    wanted = ForecastWanted(round=KRR, every="day", first_on=monday)
    (kind,) = forecast(desk.store, desk.accountant, "phones", wanted, today=today()).kinds
    (now,) = forecast(desk.store, desk.accountant, "phones", ForecastWanted(round=KRR), today=today()).kinds
    assert quote(desk.store, desk.accountant, desk.request(monday)).would_be == "admitted"
    assert price(desk.store, desk.accountant, desk.request(monday)).would_be == "admitted"
    batch = quote_batch(desk.store, desk.accountant, [desk.request() for _ in range(8)], fits=True)
    assert desk.names() == ["phones"]
    assert (kind.limited_by, now.limited_by) == ("window week", "window week")
    admitted = 0
    while isinstance(desk.ask(monday + admitted * DAY), Admitted):
        admitted += 1
    assert kind.rounds_at_least == admitted
    assert kind.ends_on == monday + (admitted - 1) * DAY
    assert budget(desk.store, desk.accountant, "phones").fits[0].rounds_at_least == now.rounds_at_least
    assert now.rounds_at_least == desk.admitted() == batch.rounds_admitted
    assert batch.fits is not None
    assert batch.fits.rounds == batch.rounds_admitted
    reading = budget(desk.store, desk.accountant, "phones").windows[0]
    assert reading.period.first <= today() <= reading.period.last
    assert reading.epsilon_spent_upper == desk.store.view(reading.period.name).spent.epsilon_upper > 0
    weekly = ForecastWanted(round=KRR, every="week", first_on=monday + 7 * DAY)
    (long,) = forecast(desk.store, desk.accountant, "phones", weekly, today=today()).kinds
    assert long.limited_by.startswith("filter")


def test_a_schedule_begins_on_the_first_day_that_is_taken_though_the_clock_was_set_back(desk: Desk) -> None:
    """It began on the true day, of which a chain that is ahead takes no round any more."""
    desk.open("phones", Window(unit="day", epsilon=0.2, delta=1e-7))
    assert isinstance(desk.ask(), Admitted)
    yesterday, wanted = today() - DAY, ForecastWanted(round=KRR, every="day")
    for found in (
        forecast(desk.store, desk.accountant, "phones", wanted, today=yesterday),
        joint_forecast(desk.store, desk.accountant, ["phones"], wanted, today=yesterday).budgets[0],
    ):
        assert found.first_on == today()
        assert found.kinds[0].ends_on == today() + (found.kinds[0].rounds_at_least - 1) * DAY
    joint = joint_forecast(desk.store, desk.accountant, ["phones"], wanted, today=yesterday)
    assert (joint.first_on, joint.ends_on) == (today(), found.kinds[0].ends_on)
    early = dataclasses.replace(wanted, first_on=yesterday)
    with pytest.raises(InvalidValue, match="no round of earlier days"):
        forecast(desk.store, desk.accountant, "phones", early, today=yesterday)


def test_many_rounds_in_one_commit_are_charged_to_their_windows(desk: Desk) -> None:
    desk.open("phones", WEEK)
    price(desk.store, desk.accountant, desk.request())
    register_and_admit(desk.store, desk.accountant, desk.request(a_monday()), actor="ada")
    requests = [desk.request(a_monday() + n * DAY) for n in (0, 1, 7)]
    outcomes = admit_together(desk.store, desk.accountant, requests, actor="ada")
    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True] * 3
    desk.check()


def test_an_entry_that_leaves_out_a_window_is_found(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    for module in (windows_module, decide):
        monkeypatch.setattr(module, "period_names", lambda _request, _cohorts: ())
    assert isinstance(desk.ask(a_monday()), Admitted)
    monkeypatch.undo()
    _is_found(desk, "phones", "not charged to every period of the cohort's windows")


@pytest.mark.slow
def test_a_period_with_a_larger_budget_than_was_declared_is_found(sqlite_desk: Desk) -> None:
    desk, monday = sqlite_desk, a_monday()
    desk.open("phones", WEEK)
    period = next(WEEK.periods("phones", monday, monday))
    larger = Cohort(
        name=period.name,
        population=100_000,
        epsilon_budget=5.0,
        delta_budget=WEEK.delta,
        policy="adaptive",
        period=period,
    )
    opening = [(larger, registry.policy_for(larger).opening())]
    desk.store.open_cohorts(opening, actor="ada", numerical_policy=NUMERICAL_POLICY)
    assert isinstance(desk.ask(monday), Admitted)
    _is_found(desk, period.name, "declared no window with such a period and such a budget")


@pytest.mark.slow
def test_a_round_in_a_period_that_it_was_not_collected_in_is_found(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    monday = a_monday()
    assert isinstance(desk.ask(monday), Admitted)
    for module in (windows_module, decide):
        monkeypatch.setattr(module, "period_names", lambda _request, _cohorts: (f"phones@{monday:%G-W%V}",))
    assert isinstance(desk.ask(monday + 7 * DAY), Admitted)
    monkeypatch.undo()
    _is_found(desk, f"phones@{monday:%G-W%V}", "not collected in this period")
    _is_found(desk, "phones", "not charged to every period")


def _is_found(desk: Desk, cohort: str, what: str) -> None:
    """Assert that the ledger's verification names a fault, and that of a bundle, which has no ledger."""
    (found,) = verify(desk.store, desk.accountant, cohort).cohorts
    assert any(what in problem.what for problem in found.problems), found
    made = make_bundle(desk.store, desk.names())
    report = verify_bundle(made.data, desk.accountant)
    assert any(what in finding.what and finding.cohort == cohort for finding in report.findings), report


def test_a_statement_of_a_period_promises_the_period_and_says_what_it_does_not(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    monday = a_monday()
    desk.ask(monday)
    name = f"phones@{monday:%G-W%V}"
    made = make_statement(desk.store, desk.accountant, ["phones", name], made_at=datetime.now(UTC))
    life, week = made.cohorts
    assert life.promise.windows == (WEEK,)
    assert week.promise.epsilon_budget == 0.2
    assert f"UTC calendar week, {monday} to {monday + 6 * DAY}" in week.promise.privacy_unit
    assert "the same" in week.promise.neighbours
    (condition,) = [each for each in made.conditions if each.name == "Days of collection"]
    assert "twice the epsilon" in condition.otherwise
    assert [entry.kind for entry in desk.store.entries_of(name)] == [EntryKind.OPENED, EntryKind.ADMITTED]


@pytest.mark.slow
def test_a_round_of_other_days_is_told_of_the_periods_that_lack_it(desk: Desk) -> None:
    desk.open("phones", WEEK, SEVEN_DAYS)
    monday = a_monday()
    assert isinstance(desk.ask(monday, round_id="one"), Admitted)
    life = desk.store.view("phones").spent
    late = monday - 7 * DAY
    after = after_opening(desk.store.cohort("phones")).after
    assert after is not None
    week = f"phones@{late:%G-W%V}"
    for _ in range(2):  # the same again changes nothing
        found = desk.incident("one late", KRR, week, collected_on=late, after=after)
        assert (found.cohort, found.overspent, found.audience) == (week, False, ())
    opened = desk.store.cohort(week).opened_at
    assert opened is not None
    assert after < opened, "its rules follow from the opening of its cohort"
    assert (
        desk.store.view(week).spent.epsilon_upper
        == desk.store.view(f"phones@{monday:%G-W%V}").spent.epsilon_upper
    )
    assert desk.store.view("phones").spent == life, "its cohort knows the round"
    assert sum("+7d" in name for name in desk.names()) == 7, "no other period was opened"
    desk.check()
    other = f"phones@{late - 7 * DAY:%G-W%V}"
    for name, day, match in (
        (other, late, "a day of"),
        (week, None, "first day of collection"),
        ("phones@2026-W99", late, "a day of"),
    ):
        with pytest.raises(InvalidValue, match=match):
            desk.incident("no", KRR, name, collected_on=day, after=after)
    with pytest.raises(NotFound):
        desk.incident("no", KRR, "nobody@2026-W48", collected_on=late, after=after)
    corrected = desk.correct("one late", reports=9_000)
    assert corrected.changed
    desk.check()
    bundle = make_bundle(desk.store, ["phones", week])
    assert all(each.ok for each in verify_bundle(bundle.data, desk.accountant).cohorts)


def test_a_period_that_says_wrongly_when_a_release_came_is_found(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.open("phones", WEEK)
    opened_at, day = desk.store.cohort("phones").opened_at, a_monday() - 7 * DAY
    assert opened_at is not None
    week = f"phones@{day:%G-W%V}"
    later = after_opening(desk.store.cohort("phones")).after
    for name, after, is_before in (("early", opened_at, True), ("late", later, False)):
        found = desk.incident(name, KRR, week, collected_on=day, after=after)
        assert (found.chosen_after, found.overspent) == (is_before, True)
    desk.check()

    def forge(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, details={**body.details, "chosen_after": False})

    rewrite(desk.store, 2, forge, cohort=week)
    assert "wrongly whether the release may have come before the cohort" in str(
        verify(desk.store, desk.accountant, week)
    )
