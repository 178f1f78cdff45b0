"""What `budget` says of each promise of a cohort: the period, used and left, and when it renews."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time
from itertools import pairwise

import pytest

from shuffle_ledger.ledger.answers.budgets import BudgetStatement, least_promise
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.evidence.statement import StatedPromise
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.promises import listed_cohorts
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.desk import rewrite
from tests.ledger.test_windows import DAY, WEEK, Desk, a_monday, sqlite_desk, today

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


def test_a_day_that_admits_nothing_says_so_and_offers_nothing(sqlite_desk: Desk) -> None:
    sqlite_desk.open("phones", WEEK, epsilon=5.0)
    now, monday = today(), a_monday()
    assert isinstance(sqlite_desk.ask(now), Admitted)
    assert isinstance(sqlite_desk.ask(monday), Admitted)
    assert asked(sqlite_desk).on_refused is None
    assert asked(sqlite_desk).fits[0].rounds_at_least > 0
    last = date(now.year + 2, 12, 31)
    assert asked(sqlite_desk, last).on_refused is None
    ahead = asked(sqlite_desk, last + DAY)
    assert ahead.on_refused == (
        f"{(last + DAY).isoformat()} is too far ahead: the last day allowed today is {last.isoformat()}."
    )
    assert [each.rounds_at_least for each in ahead.fits] == [0]
    assert not any(each.is_over(ahead.today) for each in ahead.promises)
    past = asked(sqlite_desk, now - 7 * DAY)
    assert (past.on_refused or "").startswith(f"{(now - 7 * DAY).isoformat()} is over: ")
    assert [each.is_over(past.today) for each in past.promises] == [False, True]
    assert [each.first for each in past.booked] == [monday], "the week of today is not a later one"
    assert [each.rounds_at_least for each in past.fits] == [0]


@pytest.mark.slow
def test_a_run_of_days_renews_when_something_counts_no_more(sqlite_desk: Desk) -> None:
    run = Window.from_text("rolling=7d,epsilon=5,delta=1e-8")
    sqlite_desk.open("phones", run, epsilon=None, delta=None)
    now = today()
    booked = now + 3 * DAY

    def renewals(on: date | None = None) -> set[date]:
        least = least_promise(asked(sqlite_desk, on).promises)
        (listed,) = listed_cohorts(sqlite_desk.store, [sqlite_desk.store.cohort("phones")], on or now)[
            0
        ].promises
        alone = asked_about(sqlite_desk, least.budget).promises[0]
        assert least.renews is not None
        assert (listed.budget, listed.renews, alone.renews) == (least.budget, least.renews, least.renews)
        return {least.renews}

    assert least_promise(asked(sqlite_desk).promises).renewal == "all of it is free"
    assert isinstance(sqlite_desk.ask(booked), Admitted)
    assert renewals() == {booked + 7 * DAY}, "it counts until six days after it"
    assert isinstance(sqlite_desk.ask(now), Admitted)
    assert renewals() == renewals(now + DAY) == renewals(now + 3 * DAY) == {now + 7 * DAY}
    assert renewals(now + 7 * DAY) == {booked + 7 * DAY}
    used = [
        least_promise(asked(sqlite_desk, now + days * DAY).promises).epsilon_spent_upper for days in range(8)
    ]
    assert used[7] < min(used[:7]) == max(used[:7]), "nothing is free before"


def asked_about(desk: Desk, chain: str) -> BudgetStatement:
    return budget(desk.store, desk.accountant, chain)


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


def stated(desk: Desk, on: date, *names: str) -> dict[tuple[str, str], StatedPromise]:
    """Return the promises of a statement about cohorts that is made on a day."""
    made_at = datetime.combine(on, time(12), UTC)
    made = make_statement(desk.store, desk.accountant, names or ("phones", "tablets"), made_at=made_at)
    assert len({(one.cohort, one.period) for one in made.promises}) == len(made.promises)
    return {(one.cohort, one.period): one for one in made.promises}


def test_a_statement_about_several_cohorts_says_of_each_promise_whether_it_is_kept(sqlite_desk: Desk) -> None:
    desk, monday = sqlite_desk, a_monday()
    desk.open("phones", WEEK, epsilon=5.0)
    desk.open("tablets")
    assert isinstance(desk.ask(monday), Admitted)
    label, name = f"{monday:%G-W%V}", f"phones@{monday:%G-W%V}"
    days = [today(), monday, monday + 6 * DAY, monday + 7 * DAY]
    states = [stated(desk, day)["phones", label].state for day in days]
    assert states == ["not_begun", "so_far", "so_far", "kept"]
    late = stated(desk, monday + 7 * DAY, "phones", "tablets", name)
    assert {key: one.state for key, one in late.items()} == {
        ("phones", "life"): "so_far",  # a life is never over
        ("phones", label): "kept",
        ("phones", f"{monday + 7 * DAY:%G-W%V}"): "so_far",  # no round was charged to it
        ("tablets", "life"): "so_far",
        (name, label): "kept",
    }
    week = late["phones", label]
    assert (week.first, week.last, week.epsilon) == (monday, monday + 6 * DAY, WEEK.epsilon)
    assert week.epsilon_spent_upper == desk.store.view(name).spent.epsilon_upper > 0


def test_a_promise_that_was_broken_or_whose_chain_was_changed_is_never_called_kept(sqlite_desk: Desk) -> None:
    desk, day = sqlite_desk, today()
    desk.open("phones", WEEK, epsilon=50.0)
    desk.open("tablets")
    request = desk.request(day)
    assert isinstance(desk.decide(request), Admitted)
    desk.settle(request.round_id, 1)
    label = f"{day:%G-W%V}"
    assert stated(desk, day + 7 * DAY)["phones", label].state == "broken"
    rewrite(desk.store, 2, lambda body: replace(body, actor="eve"), cohort=f"phones@{label}")
    found = stated(desk, day + 7 * DAY)["phones", label]
    assert (found.state, found.epsilon_spent_upper) == ("unknown", float("inf"))


def test_what_remains_in_an_answer_is_the_least_of_the_budgets_that_promise(sqlite_desk: Desk) -> None:
    desk, day = sqlite_desk, today()
    desk.open("phones", WEEK, epsilon=5.0)
    name, answers = f"phones@{day:%G-W%V}", list[Outcome]()
    while not answers or isinstance(answers[-1], Admitted):
        answers.append(desk.ask(day))
        view = desk.store.view(name)
        assert answers[-1].epsilon_remaining == view.cohort.remaining(view.spent.epsilon_upper)
    assert isinstance(answers[-1], Refused)
    assert all(before.epsilon_remaining >= after.epsilon_remaining for before, after in pairwise(answers))
    first = answers[0].round_id
    settled = desk.settle(first, 10_000)
    assert settled.epsilon_remaining == answers[-1].epsilon_remaining


def test_a_day_that_no_period_has_is_refused(sqlite_desk: Desk) -> None:
    sqlite_desk.open("phones", WEEK)
    with pytest.raises(InvalidValue, match="from 1970"):
        asked(sqlite_desk, date(1066, 10, 14))
