"""The budgets that promise something, each with what is left of it, and when it renews."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time
from itertools import pairwise

import pytest

from shuffle_ledger.ledger.answers.budgets import least_promise
from shuffle_ledger.ledger.evidence.statement import StatedPromise
from shuffle_ledger.ledger.reports.promises import listed_cohorts
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.attack import rewrite
from tests.ledger.clerk import DAY, Clerk, a_monday, today
from tests.ledger.test_windows import WEEK, week_of

database_url = sqlite_url  # the rules are the same in every database


@pytest.fixture
def phones(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones", which has weeks beside its life."""
    clerk.open(windows=(WEEK,), epsilon=5.0)
    return clerk


def test_the_numbers_beside_the_promises_are_those_of_the_one_with_the_least_left(phones: Clerk) -> None:
    monday = a_monday()
    assert phones.admits(on=monday)
    found = phones.budget(on=monday)
    life, week = found.promises
    assert (life.period, life.renews) == ("life", None)
    assert (week.budget, week.first, week.renews) == (week_of(monday), monday, monday + 7 * DAY)
    assert 0 < week.epsilon_spent_upper == phones.spent(week.budget)
    assert week.epsilon_remaining < life.epsilon_remaining
    assert (found.budget, found.epsilon_remaining) == (week.budget, week.epsilon_remaining)
    assert (found.epsilon_spent_upper, found.delta_budget) == (week.epsilon_spent_upper, week.delta_budget)


def test_a_day_that_admits_nothing_says_so_and_offers_nothing(phones: Clerk) -> None:
    now, monday = today(), a_monday()
    assert phones.admits(on=now)
    assert phones.admits(on=monday)
    assert phones.budget().on_refused is None
    assert phones.budget().fits[0].rounds_at_least > 0
    last = date(now.year + 2, 12, 31)
    assert phones.budget(on=last).on_refused is None
    ahead = phones.budget(on=last + DAY)
    assert ahead.on_refused == f"{last + DAY} is too far ahead: the last day allowed today is {last}."
    assert [each.rounds_at_least for each in ahead.fits] == [0]
    assert not any(each.is_over(ahead.today) for each in ahead.promises)
    past = phones.budget(on=now - 7 * DAY)
    assert (past.on_refused or "").startswith(f"{now - 7 * DAY} is over: ")
    assert [each.is_over(past.today) for each in past.promises] == [False, True]
    assert [each.first for each in past.booked] == [monday], "the week of today is not a later one"
    assert [each.rounds_at_least for each in past.fits] == [0]


@pytest.mark.slow
def test_a_run_of_days_renews_when_something_counts_no_more(clerk: Clerk) -> None:
    run = Window.from_text("rolling=7d,epsilon=5,delta=1e-8")
    clerk.open(windows=(run,), epsilon=None, delta=None)
    now, booked = today(), today() + 3 * DAY

    def renewal(on: date | None = None) -> date:
        least = least_promise(clerk.budget(on=on).promises)
        (listed,) = listed_cohorts(clerk.store, [clerk.store.cohort("phones")], on or now)[0].promises
        alone = clerk.budget(least.budget).promises[0]
        assert least.renews is not None
        assert (listed.budget, listed.renews, alone.renews) == (least.budget, least.renews, least.renews)
        return least.renews

    assert least_promise(clerk.budget().promises).renewal == "all of it is free"
    assert clerk.admits(on=booked)
    assert renewal() == booked + 7 * DAY, "it counts until six days after it"
    assert clerk.admits(on=now)
    assert renewal() == renewal(now + DAY) == renewal(now + 3 * DAY) == now + 7 * DAY
    assert renewal(now + 7 * DAY) == booked + 7 * DAY
    used = [
        least_promise(clerk.budget(on=now + days * DAY).promises).epsilon_spent_upper for days in range(8)
    ]
    assert used[7] < min(used[:7]) == max(used[:7]), "nothing is free before"


def test_another_day_has_the_budgets_of_its_own_periods_and_what_is_booked_later_is_shown(
    phones: Clerk,
) -> None:
    monday = a_monday()
    assert phones.admits(on=monday)
    before = phones.budget()
    assert before.on == today() < monday
    assert before.promises[1].epsilon_spent_upper == 0.0
    (booked,) = before.booked
    assert booked == phones.budget(on=monday).promises[1]
    assert phones.budget(on=monday).booked == ()
    assert phones.budget(on=monday + 7 * DAY).promises[1].epsilon_spent_upper == 0.0


def stated(clerk: Clerk, on: date, *names: str) -> dict[tuple[str, str], StatedPromise]:
    """Return the promises of a statement about cohorts that is made on a day."""
    made = clerk.statement(*(names or ("phones", "tablets")), at=datetime.combine(on, time(12), UTC))
    assert len({(one.cohort, one.period) for one in made.promises}) == len(made.promises)
    return {(one.cohort, one.period): one for one in made.promises}


def test_a_statement_about_several_cohorts_says_of_each_promise_whether_it_is_kept(phones: Clerk) -> None:
    monday = a_monday()
    phones.open("tablets")
    assert phones.admits(on=monday)
    label, name = f"{monday:%G-W%V}", week_of(monday)
    days = [today(), monday, monday + 6 * DAY, monday + 7 * DAY]
    states = [stated(phones, day)["phones", label].state for day in days]
    assert states == ["not_begun", "so_far", "so_far", "kept"]
    late = stated(phones, monday + 7 * DAY, "phones", "tablets", name)
    assert {key: one.state for key, one in late.items()} == {
        ("phones", "life"): "so_far",  # a life is never over
        ("phones", label): "kept",
        ("phones", f"{monday + 7 * DAY:%G-W%V}"): "so_far",  # no round was charged to it
        ("tablets", "life"): "so_far",
        (name, label): "kept",
    }
    week = late["phones", label]
    assert (week.first, week.last, week.epsilon) == (monday, monday + 6 * DAY, WEEK.epsilon)
    assert week.epsilon_spent_upper == phones.spent(name) > 0


def test_a_promise_that_was_broken_or_whose_chain_was_changed_is_never_called_kept(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,), epsilon=50.0)
    clerk.settle(clerk.ask(on=today()).round_id, 1)
    label, later = f"{today():%G-W%V}", today() + 7 * DAY
    assert stated(clerk, later, "phones")["phones", label].state == "broken"
    rewrite(clerk.store, 2, lambda body: replace(body, actor="eve"), cohort=week_of(today()))
    found = stated(clerk, later, "phones")["phones", label]
    assert (found.state, found.epsilon_spent_upper) == ("unknown", float("inf"))


def test_what_remains_in_an_answer_is_the_least_of_the_budgets_that_promise(phones: Clerk) -> None:
    day, answers = today(), list[Outcome]()
    while not answers or isinstance(answers[-1], Admitted):
        answers.append(phones.ask(on=day))
        view = phones.store.view(week_of(day))
        assert answers[-1].epsilon_remaining == view.cohort.remaining(view.spent.epsilon_upper)
    assert isinstance(answers[-1], Refused)
    assert all(before.epsilon_remaining >= after.epsilon_remaining for before, after in pairwise(answers))
    settled = phones.settle(answers[0].round_id, 10_000)
    assert settled.epsilon_remaining == answers[-1].epsilon_remaining
