"""Budgets that begin anew: which periods a round is charged to, and that each of them holds by itself."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import NUMERICAL_POLICY, InvalidParameter
from shuffle_ledger.ledger.answers.quotes import Fits
from shuffle_ledger.ledger.decisions import (
    admission,
    admit,
    admit_together,
    decide,
    price,
    refusals,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.decisions import windows as windows_module
from shuffle_ledger.ledger.decisions.quoting import fits_instead, quote_batch
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.reports.forecasts import joint_forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Cohort,
    Pending,
    RefusalReason,
    Refused,
    RoundRequest,
    most_spent,
)
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.attack import rewrite, stating
from tests.ledger.clerk import DAY, Clerk, a_monday, krr, parsed, today

database_url = sqlite_url  # the rules are the same in every database
WEEK = Window(unit="week", epsilon=0.2, delta=1e-7)
EACH_DAY = Window(unit="day", epsilon=0.2, delta=1e-7)
SEVEN_DAYS = Window(unit="day", sliding=7, epsilon=0.2, delta=1e-7)


def week_of(day: date, cohort: str = "phones") -> str:
    """Return the name of a period."""
    return f"{cohort}@{day:%G-W%V}"


def test_a_refusal_by_a_sliding_window_names_the_budget_that_has_the_least_left(clerk: Clerk) -> None:
    """A round is in three runs of three days; an earlier round of the next day is in two of these."""
    clerk.open(windows=(Window(unit="day", sliding=3, epsilon=0.2, delta=1e-6),), epsilon=5.0)
    day = today() + DAY
    assert clerk.admits(on=day + DAY)
    quoted = clerk.quote(clerk.request(parsed("krr(k=2, epsilon0=6)"), on=day))
    worst = max(quoted.refused_by, key=lambda each: each.epsilon_spent_upper)
    assert [each.epsilon_spent_upper > 0 for each in quoted.refused_by] == [False, True, True]
    assert (quoted.cohort, quoted.epsilon_spent_upper) == (worst.cohort, worst.epsilon_spent_upper)
    assert quoted.epsilon_remaining == pytest.approx(0.2 - quoted.epsilon_spent_upper)
    said = (
        f"Refused by the budget of phones from {day - DAY} to {day + DAY}, the most used of 3 such budgets: "
    )
    assert quoted.message is not None
    assert quoted.message.startswith(said)
    assert quoted.message.count("it would be") == 1
    assert [each.cohort for each in most_spent(quoted.refused_by)] == [worst.cohort]


def test_the_window_refuses_alone_and_the_cohort_is_not_charged(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    monday = a_monday()
    clerk.fill(on=monday)
    before = clerk.store.view("phones")
    refused = clerk.refusal(on=monday)
    assert refused.reason is RefusalReason.REFUSED_ELSEWHERE
    label = week_of(monday).partition("@")[2]
    assert refused.message.startswith(f"Refused by the {label} budget of phones: it would be 0.2")
    assert clerk.quote(clerk.request(on=monday)).message == refused.message
    assert [(each.cohort, each.epsilon_budget) for each in refused.refused_by] == [(week_of(monday), 0.2)]
    after = clerk.store.view("phones")
    assert (after.spent, after.details["standing"]) == (before.spent, before.details["standing"])
    answer = clerk.ask(on=monday + 7 * DAY)
    assert isinstance(answer, Admitted)
    assert [member.cohort for member in answer.audience] == ["phones", week_of(monday + 7 * DAY)]


def test_without_days_a_round_is_collected_today_whatever_day_it_is_asked_again(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk.open(windows=(WEEK, SEVEN_DAYS))
    request = clerk.request()
    answer, was_decided = register_and_admit(clerk.store, clerk.accountant, request, actor="ada")
    names = clerk.names()
    assert week_of(today()) in names
    clerk.shift(monkeypatch, 10 * DAY)
    again, is_decided = register_and_admit(clerk.store, clerk.accountant, request, actor="ada")
    assert (was_decided, is_decided, again) == (False, True, answer)
    assert register(clerk.store, request, actor="ada") == answer
    assert clerk.names() == names
    registered = RoundRequest.from_bytes(clerk.store.round(request.round_id).content)
    assert request.repeats(registered.to_bytes())
    assert not dataclasses.replace(request, use_case="other").repeats(registered.to_bytes())
    other = dataclasses.replace(request, collected_on=today() + 20 * DAY)
    assert not other.repeats(registered.to_bytes())
    with pytest.raises(Conflict):
        register(clerk.store, other, actor="ada")


def test_a_clock_that_steps_back_keeps_the_day_of_the_last_entry(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk.open(windows=(EACH_DAY,))
    clerk.shift(monkeypatch, -3 * DAY)
    answer = clerk.ask()
    assert isinstance(answer, Admitted)
    assert [member.cohort for member in answer.audience] == ["phones", f"phones@{today()}"]


@pytest.mark.slow
@pytest.mark.parametrize("by", [1, 2])
def test_a_round_that_is_decided_after_its_days_is_refused_by_every_budget(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    clerk.open(windows=(WEEK,))
    requests = (clerk.request(on=today()), clerk.request(on=today(), until=today() + DAY))
    for request in requests:
        assert isinstance(register(clerk.store, request, actor="ada"), Pending)
    clerk.shift(monkeypatch, by * DAY)
    answers = [admit(clerk.store, clerk.accountant, request.round_id) for request in requests]
    assert [isinstance(answer, Refused) for answer in answers] == [True, by > 1]
    for answer in answers:
        if isinstance(answer, Refused):
            assert answer.reason is RefusalReason.COLLECTION_OVER
            assert "the decision came after the last day of the collection" in answer.message
            assert {each.reason for each in answer.refused_by} == {RefusalReason.COLLECTION_OVER}
            registered = RoundRequest.from_bytes(clerk.store.round(answer.round_id).content)
            assert [each.cohort for each in answer.refused_by] == list(registered.cohorts)
    clerk.audit()


def test_a_quote_of_a_registered_round_says_what_was_decided_whatever_day_it_is(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk.open(windows=(WEEK,))
    admitted, late = clerk.request(on=today()), clerk.request(on=today())
    assert isinstance(clerk.decide(admitted), Admitted)
    assert isinstance(register(clerk.store, late, actor="ada"), Pending)
    clerk.shift(monkeypatch, DAY)
    before = clerk.quote(late)
    assert (before.would_be, before.reason) == ("refused", RefusalReason.COLLECTION_OVER)
    refused = admit(clerk.store, clerk.accountant, late.round_id)
    assert isinstance(refused, Refused)
    after = clerk.quote(late)
    assert (after.would_be, after.reason, after.refused_by) == ("refused", refused.reason, refused.refused_by)
    assert fits_instead(clerk.store, clerk.accountant, late) == Fits(rounds=0, epsilon0=None)
    again = clerk.quote(admitted)
    assert (again.would_be, again.reason, again.refused_by) == ("admitted", None, ())


@pytest.mark.parametrize(("named", "known"), [(False, True), (False, False), (True, True)])
def test_a_round_that_is_asked_for_at_midnight_is_of_the_day_that_begins(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch, *, named: bool, known: bool
) -> None:
    """Unless it names the day that ends: then it is not registered at all. A known kind is registered and
    decided in one commit."""
    opening, ahead = windows_module.open_periods, [timedelta()]  # SQLite's clock is ahead by the last one

    def clock(form: str, _moment: str) -> str:
        return (datetime.now(UTC) + ahead[-1]).strftime(form.replace("%f", "%S.%f"))[:-3]

    def put_clock(connection: Any, *_: object) -> None:
        connection.create_function("strftime", 2, clock)

    event.listen(clerk.store.engine, "checkout", put_clock)
    clerk.open(windows=(WEEK,))
    if known:
        assert clerk.admits()
    before = clerk.store.count_entries("phones")
    request = clerk.request(on=today() if named else None)

    def at_midnight(store: Store, asked: RoundRequest, *, actor: str) -> None:
        opening(store, asked, actor=actor)
        monkeypatch.setattr(admission, "open_periods", opening)
        ahead.append(DAY)

    monkeypatch.setattr(admission, "open_periods", at_midnight)
    if named:
        with pytest.raises(InvalidValue, match="is over: record it with `incident record`"):
            clerk.decide(request)
        assert clerk.store.count_entries("phones") == before
        return
    assert isinstance(clerk.decide(request), Admitted)
    registered = RoundRequest.from_bytes(clerk.store.round(request.round_id).content)
    assert registered.collected_on == today() + DAY
    clerk.check()


def test_a_refusal_that_says_wrongly_that_the_days_have_passed_is_found(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk.open(windows=(WEEK,))
    monkeypatch.setattr(refusals, "is_over", lambda _request, _today: True)
    clerk.refusal()
    monkeypatch.undo()
    clerk.blames_everywhere("it does not say what its round costs")


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (-1, None, "is over: record it with `incident record`"),
        (0, 14, "in at most 2 UTC weeks"),
        (1100, None, "is too far ahead: the last day allowed today is ....-12-31"),
    ],
)
def test_days_that_no_round_can_have(clerk: Clerk, first: int, last: int | None, message: str) -> None:
    clerk.open(windows=(WEEK,))
    with pytest.raises(InvalidValue, match=message):
        clerk.ask(on=today() + first * DAY, until=None if last is None else today() + last * DAY)
    assert clerk.names() == ["phones"]


def test_what_windows_do_not_allow(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    monday = a_monday()
    assert clerk.admits(on=monday)
    with pytest.raises(InvalidValue, match="a period of its window"):
        clerk.ask(None, week_of(monday), on=monday)
    with pytest.raises(InvalidValue, match="a period of its window"):
        clerk.ask(None, "phones", week_of(monday), on=monday)
    with pytest.raises(InvalidValue, match="the periods of the cohorts' windows"):
        decide.check_request(clerk.request(on=monday), [clerk.store.cohort("phones")])
    with pytest.raises(Conflict, match="fixed when the cohort is opened"):
        clerk.change(9.0, cohort=week_of(monday))
    with pytest.raises(InvalidValue, match="without @"):
        clerk.open("phones@2031")
    with pytest.raises(NotFound):
        clerk.ask(None, "nobody")


def test_a_round_is_settled_on_its_first_day_at_the_earliest(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    later, now = clerk.ask(on=a_monday()), clerk.ask()
    with pytest.raises(Conflict, match="is collected from"):
        clerk.settle(later.round_id, 9_000)
    settled = clerk.settle(now.round_id, 9_000)
    assert [member.cohort for member in settled.audience] == ["phones", week_of(today())]
    clerk.check()


def test_nothing_is_said_to_be_left_of_an_overspent_day(clerk: Clerk) -> None:
    clerk.open(windows=(EACH_DAY,))
    first = clerk.ask()
    clerk.ask()
    clerk.correct(first.round_id, reports=100)
    clerk.void(first.round_id)
    found = clerk.budget()
    (day,) = found.windows
    assert (day.status, day.epsilon_remaining) == ("overspent", 0.0)
    assert day.epsilon_spent_upper < 0.2  # what broke the promise was given back, and mends nothing
    assert [one.rounds_at_least for one in found.fits] == [0] * len(found.fits)
    (kind,) = clerk.forecast().kinds
    assert (kind.rounds_at_least, kind.limited_by) == (0, "window day")
    with pytest.raises(InvalidParameter, match="still admits"):
        clerk.calibrate(krr(50_000))
    with pytest.raises(InvalidValue, match="no round of earlier days is admitted"):
        clerk.forecast(every="day", first_on=today() - DAY)


def test_an_incident_is_of_days_that_came_and_opens_no_other_period(clerk: Clerk) -> None:
    """Any day was taken: a slip of the pen overspent a week of the year 8999, and left the true one alone."""
    clerk.open(windows=(WEEK,))
    with pytest.raises(InvalidValue, match="the first day of collection, for cohort 'phones' has windows"):
        clerk.incident("leak", krr())
    for day in (today() + 2 * DAY, date(8999, 1, 1)):
        for name in ("phones", week_of(day)):
            with pytest.raises(InvalidValue, match="is yet to come: register the round"):
                clerk.incident("leak", krr(), name, on=day)
    assert [(each, clerk.store.view(each).head_sequence) for each in clerk.names()] == [("phones", 1)]
    clerk.incident("leak", krr(), on=today())
    clerk.check()


def test_a_voided_round_that_was_released_is_of_the_days_of_its_registration(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    assert clerk.admits(name="one", on=today())
    clerk.void("one")
    with pytest.raises(Conflict, match="record it without other days"):
        clerk.incident("one", krr(), on=today() - 8 * DAY, after=clerk.later())
    found = clerk.incident("one", krr(), on=today(), after=clerk.later())
    assert [member.cohort for member in found.audience] == ["phones", week_of(today())]
    clerk.check()


@pytest.mark.slow
def test_quotes_and_forecasts_agree_with_what_is_admitted_and_leave_no_trace(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    monday = a_monday()
    (kind,), (now,) = clerk.forecast(every="day", first_on=monday).kinds, clerk.forecast().kinds
    assert clerk.quote(clerk.request(on=monday)).would_be == "admitted"
    assert price(clerk.store, clerk.accountant, clerk.request(on=monday)).would_be == "admitted"
    asked = [clerk.request() for _ in range(8)]
    batch = quote_batch(clerk.store, clerk.accountant, asked, fits=True)
    assert clerk.names() == ["phones"]
    assert (kind.limited_by, now.limited_by) == ("window week", "window week")
    admitted = 0
    while clerk.admits(on=monday + admitted * DAY):
        admitted += 1
    assert kind.rounds_at_least == admitted
    assert kind.ends_on == monday + (admitted - 1) * DAY
    assert clerk.budget().fits[0].rounds_at_least == now.rounds_at_least
    assert now.rounds_at_least == clerk.fill() == batch.rounds_admitted
    assert batch.fits is not None
    assert batch.fits.rounds == batch.rounds_admitted
    reading = clerk.budget().windows[0]
    assert reading.period.first <= today() <= reading.period.last
    assert reading.epsilon_spent_upper == clerk.spent(reading.period.name) > 0
    (long,) = clerk.forecast(every="week", first_on=monday + 7 * DAY).kinds
    assert long.limited_by.startswith("filter")


def test_a_schedule_begins_on_the_first_day_that_is_taken_though_the_clock_was_set_back(clerk: Clerk) -> None:
    """It began on the true day, of which a chain that is ahead takes no round any more."""
    clerk.open(windows=(EACH_DAY,))
    assert clerk.admits()
    yesterday, wanted = today() - DAY, ForecastWanted(round=krr(), every="day")
    joint = joint_forecast(clerk.store, clerk.accountant, ["phones"], wanted, today=yesterday)
    for found in (clerk.forecast(now=yesterday, every="day"), joint.budgets[0]):
        assert found.first_on == today()
        assert found.kinds[0].ends_on == today() + (found.kinds[0].rounds_at_least - 1) * DAY
        assert (joint.first_on, joint.ends_on) == (today(), found.kinds[0].ends_on)
    with pytest.raises(InvalidValue, match="no round of earlier days"):
        clerk.forecast(now=yesterday, every="day", first_on=yesterday)


def test_many_rounds_in_one_commit_are_charged_to_their_windows(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    price(clerk.store, clerk.accountant, clerk.request())
    clerk.ask(on=a_monday())
    requests = [clerk.request(on=a_monday() + n * DAY) for n in (0, 1, 7)]
    outcomes = admit_together(clerk.store, clerk.accountant, requests, actor="ada")
    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True] * 3
    clerk.check()


def placed_in(monkeypatch: pytest.MonkeyPatch, *periods: str) -> None:
    """Have the ledger charge rounds to these periods alone."""
    for module in (windows_module, decide):
        monkeypatch.setattr(module, "period_names", lambda _request, _cohorts: periods)


def test_an_entry_that_leaves_out_a_window_is_found(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    clerk.open(windows=(WEEK,))
    placed_in(monkeypatch)
    assert clerk.admits(on=a_monday())
    monkeypatch.undo()
    clerk.blames_everywhere("not charged to every period of the cohort's windows")


@pytest.mark.slow
def test_a_period_with_a_larger_budget_than_was_declared_is_found(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    period = next(WEEK.periods("phones", a_monday(), a_monday()))
    values: dict[str, Any] = {"population": 100_000, "epsilon_budget": 5.0, "delta_budget": WEEK.delta}
    larger = Cohort(name=period.name, policy="adaptive", period=period, **values)
    opening = [(larger, registry.policy_for(larger).opening())]
    clerk.store.open_cohorts(opening, actor="ada", numerical_policy=NUMERICAL_POLICY)
    assert clerk.admits(on=a_monday())
    clerk.blames_everywhere("declared no window with such a period and such a budget", period.name)


@pytest.mark.slow
def test_a_round_in_a_period_that_it_was_not_collected_in_is_found(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk.open(windows=(WEEK,))
    monday = a_monday()
    assert clerk.admits(on=monday)
    placed_in(monkeypatch, week_of(monday))
    assert clerk.admits(on=monday + 7 * DAY)
    monkeypatch.undo()
    clerk.blames_everywhere("not collected in this period", week_of(monday))
    clerk.blames_everywhere("not charged to every period")


@pytest.mark.slow
def test_a_round_of_other_days_is_told_of_the_periods_that_lack_it(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK, SEVEN_DAYS))
    monday = a_monday()
    assert clerk.admits(name="one", on=monday)
    life, late, after = clerk.store.view("phones").spent, monday - 7 * DAY, clerk.later()
    week = week_of(late)
    for _ in range(2):  # the same again changes nothing
        found = clerk.incident("one late", krr(), week, on=late, after=after)
        assert (found.cohort, found.overspent, found.audience) == (week, False, ())
    opened = clerk.store.cohort(week).opened_at
    assert opened is not None
    assert after < opened, "its rules follow from the opening of its cohort"
    assert clerk.spent(week) == clerk.spent(week_of(monday))
    assert clerk.store.view("phones").spent == life, "its cohort knows the round"
    assert sum("+7d" in name for name in clerk.names()) == 7, "no other period was opened"
    clerk.check()
    for name, day, match in (
        (week_of(late - 7 * DAY), late, "a day of"),
        (week, None, "first day of collection"),
        ("phones@2026-W99", late, "a day of"),
    ):
        with pytest.raises(InvalidValue, match=match):
            clerk.incident("no", krr(), name, on=day, after=after)
    with pytest.raises(NotFound):
        clerk.incident("no", krr(), "nobody@2026-W48", on=late, after=after)
    assert clerk.correct("one late", reports=9_000).changed
    clerk.audit()


def test_a_period_that_says_wrongly_when_a_release_came_is_found(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    opened_at, day = clerk.store.cohort("phones").opened_at, a_monday() - 7 * DAY
    for name, after, is_before in (("early", opened_at, True), ("late", clerk.later(), False)):
        found = clerk.incident(name, krr(), week_of(day), on=day, after=after)
        assert (found.chosen_after, found.overspent) == (is_before, True)
    clerk.check()
    rewrite(clerk.store, 2, stating(chosen_after=False), cohort=week_of(day))
    clerk.blames("wrongly whether the release may have come before the cohort", week_of(day))
