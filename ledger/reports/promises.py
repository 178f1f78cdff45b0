"""Reads the used and the remaining part of the promises of many cohorts, for lists and overviews."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import date, timedelta

from shuffle_ledger.ledger.answers.budgets import PromiseReading, status_now, worth_showing
from shuffle_ledger.ledger.answers.cohorts import ListedCohort
from shuffle_ledger.ledger.reports.listing import CohortUse, closed_among, cohort_uses
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Cohort, CohortStatus, epsilon_left
from shuffle_ledger.ledger.values.windows import Period, Window


def listed_cohorts(store: Store, cohorts: Collection[Cohort], day: date) -> list[ListedCohort]:
    """Return cohorts with their promises on a day, in their order."""
    promises = promises_of(store, cohorts, day)
    return [ListedCohort(**vars(one), promises=promises[one.name]) for one in cohorts]


def promises_of(
    store: Store, cohorts: Collection[Cohort], day: date
) -> dict[str, tuple[PromiseReading, ...]]:
    """Return the promises of some cohorts that a round collected on a day is charged to: the life, and of
    each window the period with the least left. A period that is not opened yet has nothing used; of a cohort
    that lost entries, what it used is unknown.

    Raises:
        Damaged: a last entry lacks what is read.
    """
    periods = {
        one.name: [
            (window, period) for window in one.windows for period in window.periods(one.name, day, day)
        ]
        for one in cohorts
    }
    names = {one.name for one in cohorts if one.has_life}
    names |= {each.name for some in periods.values() for one in some for each in _from(*one)}
    uses = cohort_uses(store, only=names)
    closed = closed_among(store, [one.name for one in cohorts if one.status != "open"])

    def of(one: Cohort) -> Iterator[PromiseReading]:
        is_closed = one.name in closed
        if one.has_life:
            yield _of_chain(uses[one.name], None, is_closed=is_closed)
        yield from worth_showing(
            [_of_period(one, *each, uses, is_closed=is_closed) for each in periods[one.name]]
        )

    return {one.name: tuple(of(one)) for one in cohorts}


def renewals(store: Store, periods: Collection[tuple[Window, Period]]) -> dict[str, date]:
    """Return by name, for periods of windows, the first day of collection on which less of the window's
    budget is used: of a calendar unit, the day after its last one. Raises Damaged."""
    names = {each.name for window, period in periods for each in _from(window, period)}
    uses = cohort_uses(store, only=names)
    return {period.name: _renews(window, period, uses) for window, period in periods}


def _renews(window: Window, period: Period, uses: Mapping[str, CohortUse]) -> date:
    def used(each: Period) -> float:
        use = uses.get(each.name)
        return 0.0 if use is None else use.epsilon_spent_upper if use.status == "open" else math.inf

    now, last = used(period), period.last
    for each in _from(window, period):
        if used(each) < now:
            break  # something that counts now counts no more
        last = each.last if now else last
    return last + timedelta(days=1)


def _from(window: Window, period: Period) -> list[Period]:
    """Return a period and, of a run of days, the later runs that share days with it."""
    return (
        [period] if window.sliding is None else list(window.periods(period.cohort, period.last, period.last))
    )


def _of_chain(
    use: CohortUse, period: Period | None, *, is_closed: bool, renews: date | None = None
) -> PromiseReading:
    return promise_reading(
        budget=use.cohort,
        period=period,
        status=status_now(use.status, is_closed=is_closed),
        epsilon_budget=use.epsilon_budget,
        delta_budget=use.delta_budget,
        epsilon_spent_upper=use.epsilon_spent_upper,
        renews=renews,
    )


def _of_period(
    cohort: Cohort, window: Window, period: Period, uses: Mapping[str, CohortUse], *, is_closed: bool
) -> PromiseReading:
    if period.name in uses:
        renews = _renews(window, period, uses)
        return _of_chain(uses[period.name], period, is_closed=is_closed, renews=renews)
    lost = cohort.status == "frozen"
    return promise_reading(
        budget=period.name,
        period=period,
        status=status_now("frozen" if lost else "open", is_closed=is_closed),
        epsilon_budget=window.epsilon,
        delta_budget=window.delta,
        epsilon_spent_upper=math.inf if lost else 0.0,
    )


def promise_reading(
    *,
    budget: str,
    period: Period | None,
    status: CohortStatus,
    epsilon_budget: float,
    delta_budget: float,
    epsilon_spent_upper: float,
    renews: date | None = None,
) -> PromiseReading:
    """Return what is used and left of one budget: nothing is left unless it is open. It renews on a day, if
    it ever does; None: on that after its period."""
    is_open = status == "open"
    if period is None or status in ("closed", "frozen"):
        renews = None
    elif renews is None:
        renews = period.last + timedelta(days=1)
    return PromiseReading(
        budget=budget,
        period="life" if period is None else period.label,
        kind="life" if period is None else period.kind,
        first=None if period is None else period.first,
        last=None if period is None else period.last,
        renews=renews,
        status=status,
        epsilon_budget=epsilon_budget,
        delta_budget=delta_budget,
        epsilon_spent_upper=epsilon_spent_upper,
        epsilon_remaining=epsilon_left(epsilon_budget, epsilon_spent_upper) if is_open else 0.0,
    )
