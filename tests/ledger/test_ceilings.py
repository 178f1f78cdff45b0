"""Ceilings: they are promised whether the budget is raised or not, and no budget is raised beyond one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import exact_text, upper_text
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.machine import Limits
from shuffle_ledger.ledger.policies.numbers import read, spelled
from shuffle_ledger.ledger.values.entries import EntryBody
from tests.conftest import sqlite_url
from tests.ledger.attack import rewrite, stating
from tests.ledger.clerk import Clerk, krr, parsed

database_url = sqlite_url  # the rules are the same in every database


@pytest.fixture
def low(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones", of epsilon 0.2 and ceiling 0.4."""
    clerk.usual["epsilon"] = 0.2
    clerk.open(ceiling=0.4)
    return clerk


def test_the_budget_is_raised_up_to_its_ceiling(low: Clerk) -> None:
    low.open("small")
    assert low.fill() == low.fill(None, "small")
    low.change(0.3)
    assert low.fill() > 0
    low.change(0.25)
    for epsilon in (0.4000001, 1e308):
        with pytest.raises(InvalidValue, match="the ceiling"):
            low.change(epsilon)
    assert low.store.cohort("phones").epsilon_budget == 0.25
    low.change(0.4)
    low.check()
    for ceiling in (0.1, float("nan"), float("inf"), 0.0):
        with pytest.raises(InvalidValue, match="ceiling"):
            low.open("bad", ceiling=ceiling)


@pytest.mark.slow
def test_slack_is_priced_at_the_ceiling_from_the_beginning(low: Clerk) -> None:
    """The price of slack must be one on all paths, also on those on which the budget stays."""
    low.open("low", ceiling=3.0)
    low.open("none")
    low.open("high", epsilon=3.0)
    used, slack = {}, parsed("generic(epsilon0=1)", 20_000, delta0=1e-15)
    for name in ("low", "none", "high"):
        low.ask(slack, name)
        used[name] = low.state(name).limits.slack
    assert used["low"] == used["high"] < used["none"], "a unit of slack costs 1 + exp(epsilon)"
    low.check()


@pytest.mark.slow
def test_what_breaks_the_budget_and_not_the_ceiling_breaks_no_promise(low: Clerk) -> None:
    assert low.fill(most=3) == 3
    assert not low.correct("round-0", reports=1_000).overspent
    assert 0.2 < low.spent() <= 0.4
    assert low.status() == "open"
    assert low.fill() == 0
    assert low.forecast().kinds[0].rounds_at_least == 0
    (one,) = low.statement().cohorts
    assert (one.verdict, one.promise.epsilon_guaranteed, one.promise.epsilon_budget) == ("kept", 0.4, 0.2)
    low.audit()
    assert low.correct("round-1", reports=150).overspent
    assert low.statement().cohorts[0].verdict == "broken"
    low.check()


def test_a_plan_within_its_ceiling_waits_until_the_budget_is_raised(low: Clerk) -> None:
    low.open("other", epsilon=0.05, ceiling=0.4, policy="plan", plan={krr(): 5})
    assert low.fill(None, "other") == 0
    low.check()
    low.change(0.4, cohort="other")
    assert low.fill(None, "other") == 5
    low.check()


def test_a_plan_that_promises_more_than_a_lowered_budget_admits_nothing(low: Clerk) -> None:
    low.open("other", ceiling=0.4, policy="plan", plan={krr(): 5, krr(20_000): 1})
    assert low.admits(None, "other")
    promised = low.budget("other").epsilon_promised_upper
    assert promised is not None
    low.change(promised * (1 - 1e-12), cohort="other")
    assert low.status("other") == "open"
    assert [each.rounds_at_least for each in low.budget("other").fits] == [0, 0]
    found = low.forecast("other", round=None, every="week")
    assert {(each.rounds_at_least, each.next_is_refused, each.limited_by) for each in found.kinds} == {
        (0, True, "promise")
    }
    assert found.together is not None
    assert found.together.periods_at_least == 0
    refused = low.refusal(None, "other")
    assert refused.reason == "budget_exceeded"
    assert refused.epsilon_requested_upper is not None
    assert refused.epsilon_requested_upper < refused.epsilon_budget
    said = f"its plan promises {upper_text(promised)} of {exact_text(refused.epsilon_budget)}"
    assert said in refused.message
    low.audit()


@pytest.mark.parametrize(
    ("sequence", "forge", "found"),
    [
        (2, lambda body: dataclasses.replace(body, epsilon_budget=0.5), "above the ceiling"),
        (1, stating(ceiling=0.1), "expected at least epsilon"),
        (1, stating(ceiling="0.4"), "ceiling: got"),
    ],
)
def test_forged_raises_are_found(
    low: Clerk, sequence: int, forge: Callable[[EntryBody], EntryBody], found: str
) -> None:
    low.change(0.3)
    low.check()
    rewrite(low.store, sequence, forge)
    low.blames(found)


def test_slack_that_is_priced_below_the_ceiling_is_found(low: Clerk) -> None:
    low.open("plain")
    at_the_budget = low.state("plain").limits.slack

    def cheaper(body: EntryBody) -> EntryBody:
        limits = dataclasses.replace(read(Limits, body.details["limits"]), slack=at_the_budget)
        return stating(limits=spelled(limits))(body)

    rewrite(low.store, 1, cheaper)
    low.blames("larger than their shares of delta")


def test_the_database_keeps_what_was_declared(low: Clerk) -> None:
    for column in ("ceiling", "quota", "local_budget"):
        with (
            pytest.raises(Exception, match="keeps what it was opened with"),
            low.store.engine.begin() as connection,
        ):
            connection.execute(text(f"UPDATE cohorts SET {column} = :value"), {"value": b"9.0"})  # noqa: S608
