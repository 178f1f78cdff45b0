"""The first row about a budget: how much is used, what still fits, and until when it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from shuffle_ledger.ledger.answers.budgets import BudgetStatement, FittingRounds, PromiseReading
from shuffle_ledger.ledger.answers.forecasts import RecentSchedule
from shuffle_ledger.ledger.answers.summaries import (
    BudgetState,
    fits_in_words,
    pace_detail,
    pace_in_words,
    state_in_words,
    used_percent,
)
from shuffle_ledger.ledger.api.pages.charts import plain, upper
from shuffle_ledger.ledger.values.requests import CohortStatus

COMPUTING = "being computed"
ON_ITS_PAGE = "on the cohort's page"
NO_KIND = "no kind was admitted yet"
_CLOSED = ("closed", "overspent", "frozen")


@dataclass(frozen=True, kw_only=True)
class FirstRow:
    """The answers that people look for first, in words."""

    state: BudgetState
    used: str  # in percent; or `unknown`
    spent: float  # epsilon, at most
    budget: float
    detail: str  # the same in epsilon, and which budget it is
    fits: tuple[str, ...]  # by randomizer; else one line that says why there is none
    pace: str  # empty: no pace is recognized
    pace_detail: str


def first_row(
    *,
    status: CohortStatus,
    spent: float,
    budget: float,
    detail: str,
    fits: Sequence[FittingRounds],
    late: RecentSchedule | None,
    unknown: str | None,
    renews: date | None = None,
    is_over: bool = False,
) -> FirstRow:
    """Return the row of one budget.

    Args:
        status: of its chain.
        spent: upper bound on the epsilon that is spent of it.
        budget: its epsilon.
        detail: which budget it is, at which delta.
        fits: how many more rounds of the kinds in use fit, in the order of their frequency.
        late: the present pace, if one is recognized.
        unknown: what stands in place of rounds that fit and of the pace; None: they were computed.
        renews: the day from which the cohort admits rounds again, if this budget is closed; None: never.
        is_over: whether the days of the budget have passed.
    """
    is_closed = is_over or status in _CLOSED
    until = f" before {renews}" if renews else ""
    return FirstRow(
        state=state_in_words(status, spent, budget, fits, is_over=is_over),
        used="unknown" if status == "frozen" else used_percent(spent, budget),
        spent=spent,
        budget=budget,
        detail=f"ε {upper(spent)} of {plain(budget)}, {detail}",
        fits=(f"nothing{until}",) if is_closed else fits_in_words(fits) or (unknown or NO_KIND,),
        pace=f"no round is admitted{until or ' any more'}"
        if is_closed
        else unknown or pace_in_words(late) or "",
        pace_detail="" if late is None or is_closed else pace_detail(late),
    )


def detail_of(promise: PromiseReading) -> str:
    """Return the delta of a promise, and its days if it is of a period."""
    period = "" if promise.first is None else f", {promise.first} to {promise.last}"
    return f"at δ {plain(promise.delta_budget)}{period}"


def row_of(statement: BudgetStatement, late: RecentSchedule | None, *, unknown: str | None) -> FirstRow:
    """Return the row of a cohort's promise that has the least left."""
    which = statement.least
    return first_row(
        status=statement.least_status,
        spent=statement.epsilon_spent_upper,
        budget=statement.epsilon_budget,
        detail=detail_of(which) if which is not None else f"at δ {plain(statement.delta_budget)}",
        fits=statement.fits,
        late=late,
        unknown=unknown,
        renews=which.renews
        if which is not None and statement.status == "open" and not statement.is_over
        else None,
        is_over=statement.is_over,
    )
