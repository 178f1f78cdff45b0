"""Reads the used and the remaining part of the promises of many cohorts, for an overview."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import date

from shuffle_ledger.ledger.reports.budgets import PromiseReading, promise_reading
from shuffle_ledger.ledger.reports.listing import CohortHead, cohort_heads
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.windows import Period, Window


def promises_of(
    store: Store, own: Collection[CohortHead], day: date
) -> dict[str, tuple[PromiseReading, ...]]:
    """Return the promises of some cohorts that a round collected on a day is charged to, by two statements
    for all: the life, and of each window the period with the least left. A period that is not opened yet has
    nothing used; of a cohort that lost entries, what it used is unknown.
    """
    declared = {one.name: one for one in store.cohorts(only=[head.body.cohort for head in own])}
    periods = {
        name: [(window, period) for window in one.windows for period in window.periods(name, day, day)]
        for name, one in declared.items()
    }
    named = [period.name for each in periods.values() for _, period in each]
    opened = {head.body.cohort: head for head in cohort_heads(store, only=named)} if named else {}
    return {
        name: (
            *([_reading(head, None)] if head.has_life else []),
            *_least([_of_period(head, *each, opened.get(each[1].name)) for each in periods[name]]),
        )
        for name, head in ((head.body.cohort, head) for head in own)
    }


def _reading(head: CohortHead, period: Period | None) -> PromiseReading:
    body = head.body
    return promise_reading(
        budget=body.cohort,
        period=period,
        status=head.status,
        epsilon_budget=body.epsilon_budget,
        delta_budget=body.delta_budget,
        epsilon_spent_upper=body.spent.epsilon_upper,
    )


def _of_period(head: CohortHead, window: Window, period: Period, opened: CohortHead | None) -> PromiseReading:
    """Return the reading of a period; `head` is that of its cohort."""
    if opened is not None:
        return _reading(opened, period)
    lost = head.status == "frozen"
    return promise_reading(
        budget=period.name,
        period=period,
        status="frozen" if lost else "open",
        epsilon_budget=window.epsilon,
        delta_budget=window.delta,
        epsilon_spent_upper=math.inf if lost else 0.0,
    )


def _least(readings: Sequence[PromiseReading]) -> list[PromiseReading]:
    """Return of each kind of period the one with the least left, in the order of the kinds."""
    kinds = dict.fromkeys(one.kind for one in readings)
    return [
        min((one for one in readings if one.kind == kind), key=lambda one: one.epsilon_remaining)
        for kind in kinds
    ]
