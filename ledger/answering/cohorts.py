"""Answers about cohorts."""

from __future__ import annotations

from datetime import UTC, datetime

from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, ThreadName, answers
from shuffle_ledger.ledger.answers.budgets import BudgetStatement, QuotaReading
from shuffle_ledger.ledger.answers.cohorts import ListedCohort, ShownCohort
from shuffle_ledger.ledger.answers.forecasts import Forecast
from shuffle_ledger.ledger.answers.quotes import BatchQuote
from shuffle_ledger.ledger.decisions.budget_changes import change_budget as decide_budget
from shuffle_ledger.ledger.decisions.closing import close_cohort
from shuffle_ledger.ledger.decisions.opening import check_opening, open_cohort
from shuffle_ledger.ledger.decisions.quotas import quotas_of
from shuffle_ledger.ledger.decisions.quotas import set_quota as decide_quota
from shuffle_ledger.ledger.decisions.quoting import quote_batch
from shuffle_ledger.ledger.errors import NotAllowed
from shuffle_ledger.ledger.questions import cohorts as asking
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.forecasts import forecast as forecast_of
from shuffle_ledger.ledger.reports.listing import shown_cohort
from shuffle_ledger.ledger.reports.promises import listed_cohorts
from shuffle_ledger.ledger.values.quotas import checked_team
from shuffle_ledger.ledger.values.requests import Cohort, RoundRequest, cohort_from_opening
from shuffle_ledger.ledger.values.texts import checked_text


def _composing(asked: asking.OpenCohort) -> ThreadName:
    return "deciding" if asked.plan is None else "auditing"  # composing a plan may take minutes


@answers(operations.OPEN_COHORT, at=_composing)
def open_(call: Call, asked: asking.OpenCohort) -> Cohort:
    if not call.sees(checked_text("name", asked.name)):
        raise NotAllowed("the token is limited to other cohorts")
    opening = asked.opening()
    if not asked.accept_warnings:
        check_opening(call.store, cohort_from_opening(**opening))
    return open_cohort(
        call.store,
        actor=call.actor,
        plan=asked.planned(),
        approximate_share=asked.approximate_share,
        accountant=call.accountant,
        **opening,
    )


@answers(operations.LIST_COHORTS)
def list_(call: Call, asked: asking.ListCohorts) -> list[ListedCohort]:
    found = call.store.cohorts(only=call.cohorts, parts=False, after=asked.after, limit=asked.limit)
    return listed_cohorts(call.store, found, datetime.now(UTC).date())


@answers(operations.SHOW_COHORT)
def show(call: Call, asked: asking.OfCohort) -> ShownCohort:
    return shown_cohort(call.store, call.cohort(asked.cohort))


@answers(operations.SHOW_BUDGET)
def show_budget(call: Call, asked: asking.ShowBudget) -> BudgetStatement:
    return budget(call.store, call.accountant, call.cohort(asked.cohort), on=asked.on)


@answers(operations.CHANGE_BUDGET, at="deciding")
def change_budget(call: Call, asked: asking.ChangeBudget) -> Cohort:
    name = call.cohort(asked.cohort)
    found = call.store.cohort(name)
    if found.epsilon_budget == asked.epsilon:
        return found
    return decide_budget(call.store, name, epsilon=asked.epsilon, reason=asked.reason, actor=call.actor)


@answers(operations.CLOSE_COHORT, at="deciding")
def close(call: Call, asked: asking.CloseCohort) -> Cohort:
    return close_cohort(call.store, call.cohort(asked.cohort), reason=asked.reason, actor=call.actor)


@answers(operations.QUOTAS)
def quotas(call: Call, asked: asking.OfCohort) -> tuple[QuotaReading, ...]:
    return quotas_of(call.store, call.cohort(asked.cohort))


@answers(operations.SET_QUOTA, at="deciding")
def set_quota(call: Call, asked: asking.SetQuota) -> QuotaReading:
    name, team = call.cohort(asked.cohort), checked_team(asked.team)
    fields = {"reason": asked.reason, "actor": call.actor}
    return decide_quota(call.store, name, team=team, epsilon=asked.epsilon, **fields)


@answers(operations.QUOTE, at="pricing")
def quote(call: Call, asked: asking.QuoteRounds) -> BatchQuote:
    name = call.cohort(asked.cohort)
    call.store.cohort(name)  # before any round is looked at: no cohort, no answer
    requests = [
        RoundRequest(round_id="quote", cohort=name, round=each.described(), team=call.team)
        for each in asked.rounds
    ]
    return quote_batch(call.store, call.accountant, requests=requests, fits=asked.fits)


@answers(operations.FORECAST, at="pricing")
def forecast(call: Call, asked: asking.ForecastRounds) -> Forecast:
    name = call.cohort(asked.cohort)
    call.store.cohort(name)  # before the round is looked at: no cohort, no answer
    today = datetime.now(UTC).date()
    return forecast_of(call.store, call.accountant, name, asked.wanted(), today=today)
