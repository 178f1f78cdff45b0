"""Cohorts without a budget of their life: only those of periods limit and promise anything."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.cli.rendering.statements.document import document_from
from shuffle_ledger.ledger.errors import Conflict, InvalidValue
from shuffle_ledger.ledger.policies.registry import rules_digest
from shuffle_ledger.ledger.reports.listing import most_used
from shuffle_ledger.ledger.values.documents import document_of, value_of
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Cohort
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.attack import rewrite, stating
from tests.ledger.clerk import DAY, Clerk, a_monday, krr, parsed, today
from tests.ledger.test_windows import WEEK, week_of

database_url = sqlite_url  # the rules are the same in every database
NO_LIFE: dict[str, Any] = {"epsilon": None, "delta": None}


@pytest.fixture
def weekly(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones", which has weeks alone."""
    clerk.open(windows=(WEEK,), **NO_LIFE)
    return clerk


@pytest.mark.slow
def test_each_week_admits_what_it_admits_alone_however_many_weeks_there_are(weekly: Clerk) -> None:
    weekly.open("alone", epsilon=WEEK.epsilon, delta=WEEK.delta)
    monday, most = a_monday(), weekly.fill(None, "alone")
    for week in range(3):
        assert weekly.fill(on=monday + 7 * week * DAY) == most
    view = weekly.store.view("phones")
    assert (view.cohort.status, view.spent.rounds) == ("open", 3 * most)
    assert (view.spent.epsilon_upper, view.spent.delta) == (math.inf, 1.0), "of no budget, no number"
    assert view.details["standing"]["total"] == {}
    assert [one.cohort for one in weekly.refusal(on=monday).refused_by] == [week_of(monday)]
    weekly.audit()


def test_no_release_breaks_a_promise_that_was_not_made(weekly: Clerk) -> None:
    """Not even one of which nothing is known, nor one that may have come before the filters were chosen."""
    monday = a_monday()
    assert weekly.admits(on=monday)
    before = monday - 7 * DAY
    found = weekly.incident("leak", None, on=before)
    assert {member.cohort: member.overspent for member in found.audience} == {week_of(before): True}
    assert weekly.admits(on=monday + 7 * DAY)
    assert weekly.store.view("phones").spent.epsilon_upper_or_none is None
    weekly.check()
    stated = weekly.statement()
    (made,) = stated.cohorts
    assert (made.verdict, made.overspends, made.breach) == ("no_promise", (), None)
    text = str(document_from(stated, rows_max=50).blocks)
    assert "word='Not kept'" in text, "a week is not"
    assert f"Look at the promise of {before:%G-W%V}" in text


def test_accounts_of_delta_of_the_life_refuse_nothing(clerk: Clerk) -> None:
    clerk.open(windows=(Window(unit="week", epsilon=20.0, delta=1e-3),), **NO_LIFE)
    approximate = parsed("declared(epsilon=1, delta=1e-9)")
    assert all(clerk.admits(approximate, on=a_monday() + 7 * week * DAY) for week in range(3))
    clerk.check()


def test_nothing_fits_into_a_period_that_is_over(clerk: Clerk) -> None:
    clerk.open(windows=(WEEK,))
    past = week_of(today() - 21 * DAY)
    clerk.incident("leak", krr(), on=today() - 21 * DAY, after=clerk.store.now())
    (kind,) = clerk.budget(past).fits
    assert kind.rounds_at_least == 0
    for wanted in ({}, {"every": "day"}, {"round": None}):
        (found,) = clerk.forecast(past, **wanted).kinds
        assert (found.rounds_at_least, found.limited_by) == (0, "collection_over")
    with pytest.raises(Conflict, match="passed"):
        clerk.calibrate(krr(9), past)


def test_its_own_budget_never_changes_and_is_in_no_alarm(weekly: Clerk) -> None:
    with pytest.raises(Conflict, match="no budget of its life"):
        weekly.change(2.0)
    with pytest.raises(Conflict, match="no budget of its life"):
        weekly.quota("ads", 0.1)
    weekly.ask(on=a_monday())
    (worst,) = most_used(weekly.store, a_monday(), limit=9)
    assert worst.cohort == week_of(a_monday())


def test_only_budgets_that_rounds_may_still_be_charged_to_are_among_the_most_used(weekly: Clerk) -> None:
    monday = a_monday()
    for week in (0, 1, 2, 0):  # of the first week most is used
        weekly.ask(on=monday + 7 * week * DAY)
    weeks = [week_of(monday + 7 * week * DAY) for week in range(3)]
    for day, left in ((6, 3), (7, 2), (14, 1), (21, 0)):
        found = most_used(weekly.store, monday + day * DAY, limit=2)
        assert [use.cohort for use in found] == weeks[3 - left :][:2]


@pytest.mark.parametrize(
    ("windows", "changes", "match"),
    [
        ((), {}, "nothing would limit its rounds"),
        ((WEEK,), {"ceiling": 2.0}, "without a budget of the cohort's life"),
        ((WEEK,), {"local_budget": 2.0}, "without a budget of the cohort's life"),
        ((WEEK,), {"rounds_per_user": 2}, "without a budget of the cohort's life"),
        ((WEEK,), {"policy": "plan", "plan": {krr(): 1}}, "without a budget of the cohort's life"),
        ((WEEK,), {"epsilon": 1.0}, "both epsilon and delta"),
        ((WEEK,), {"epsilon": math.inf, "delta": 1e-6}, "finite"),
    ],
)
def test_something_must_limit_the_rounds(
    clerk: Clerk, windows: tuple[Window, ...], changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidValue, match=match):
        clerk.open(windows=windows, **{**NO_LIFE, **changes})


def test_no_answer_has_a_number_of_the_life(weekly: Clerk) -> None:
    monday = a_monday()
    admitted = weekly.ask(on=monday)
    assert isinstance(admitted, Admitted)
    period = weekly.store.view(week_of(monday))
    assert [member.cohort for member in admitted.audience] == [period.cohort.name]
    assert admitted.epsilon_spent_upper == period.spent.epsilon_upper
    assert admitted.epsilon_spent_lower == period.spent.epsilon_lower > 0
    made: Any = document_of(weekly.statement())
    promise = made["cohorts"][0]["promise"]
    assert (promise["epsilon_budget"], promise["delta_budget"]) == (None, None)
    cohort = weekly.store.cohort("phones")
    document: Any = document_of(cohort)
    assert (document["epsilon_budget"], document["delta_budget"]) == (None, None)
    assert value_of(Cohort, document) == cohort


def as_life(body: EntryBody) -> EntryBody:
    """The opening as one of a cohort that promises a budget, and has no filter that would hold it."""
    rules = {**body.details["rules"], "kind": "life"}
    standing = {**body.details["standing"], "rules": rules_digest(rules)}
    return stating(rules=rules, standing=standing)(body)


@pytest.mark.parametrize(
    ("forge", "found"),
    [
        (as_life, "are not those of policy adaptive"),
        (lambda body: dataclasses.replace(body, epsilon_budget=1.0), "delta: got 1.0"),
        (stating(windows=...), "nothing would limit its rounds"),
        (stating(local_budget=2.0), "expected none without a budget of the cohort's life"),
    ],
)
def test_a_forged_opening_is_found(
    weekly: Clerk, forge: Callable[[EntryBody], EntryBody], found: str
) -> None:
    weekly.ask(on=a_monday())
    weekly.check()
    rewrite(weekly.store, 1, forge)
    weekly.blames(found)


def test_a_number_that_is_said_to_be_spent_of_no_budget_is_found(weekly: Clerk) -> None:
    weekly.ask(on=a_monday())

    def forge(body: EntryBody) -> EntryBody:
        spent = dataclasses.replace(body.spent, epsilon_upper=0.0, method="nothing admitted")
        return dataclasses.replace(body, spent=spent)

    rewrite(weekly.store, 2, forge)
    weekly.blames("spent.epsilon_upper does not follow")


def test_a_period_that_declares_more_than_a_window_gives_it_is_found(weekly: Clerk) -> None:
    """As to take the promise of a week away, so that what it admits beyond its budget looks fine."""
    weekly.ask(on=a_monday())
    rewrite(weekly.store, 1, stating(windows=[WEEK.to_mapping()]), cohort=week_of(a_monday()))
    weekly.blames_everywhere("declares more than a part of a cohort has", week_of(a_monday()))


def test_a_refusal_by_the_record_is_found(weekly: Clerk) -> None:
    """A forged entry that says the cohort's own budget refused a round."""
    most = weekly.fill(on=a_monday())
    admitted = weekly.store.entry("phones", 2).content().details

    def forge(body: EntryBody) -> EntryBody:
        refused_by = {
            "phones": {
                "reason": "budget_exceeded",
                "epsilon_spent_upper": body.spent.epsilon_upper,
                "epsilon_requested_upper": body.spent.epsilon_upper,
                "epsilon_budget": body.epsilon_budget,
                "delta_budget": body.delta_budget,
            }
        }
        spent = {**body.spent.to_mapping(), "rounds": body.spent.rounds + 1}
        costs = {name: admitted[name] for name in ("cost", "charge", "privacy_loss")}
        said = {"reason": "budget_exceeded", "requested": spent, "refused_by": refused_by}
        return stating(**said, **costs)(body)

    rewrite(weekly.store, most + 2, forge)
    weekly.blames("details.reason does not follow")
