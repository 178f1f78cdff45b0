"""Schedules of late: until when a cohort can go on as its last rounds did, and what is spent meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import Final

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.policies.registry import Books, policy_of
from shuffle_ledger.ledger.reports.glimpses import Every, Schedule, glimpses
from shuffle_ledger.ledger.reports.rounds_left import KINDS_MAX
from shuffle_ledger.ledger.reports.schedule_days import ScheduleDays
from shuffle_ledger.ledger.reports.schedules_left import spent_after
from shuffle_ledger.ledger.reports.window_forecasts import first_day, periods_within
from shuffle_ledger.ledger.storage.rows import CohortView

COURSE_POINTS: Final = 12  # at which the spending of a schedule is computed


@dataclass(frozen=True, kw_only=True)
class ScheduleOfLate:
    """How long a cohort can go on as of late, from today: one round of each kind in every period."""

    every: Every
    kinds: tuple[ShuffledRound, ...]  # the last round of each use case and randomizer, as accounted
    periods_at_least: int
    ends_on: date | None  # the day of the last rounds; None: no period fits, or no end is known


def schedule_of_late(books: Books, view: CohortView, *, today: date) -> ScheduleOfLate | None:
    """Return how long the schedule that the last entries show fits; None if they show none; raises as
    `schedule_forecast`.
    """
    schedule = glimpses(books.store, [view.cohort.name])[view.cohort.name].schedule
    return None if schedule is None else schedule_forecast(books, view, schedule, today=today)


def schedule_forecast(
    books: Books, view: CohortView, schedule: Schedule, *, today: date
) -> ScheduleOfLate | None:
    """Return how long a cohort can go on as of late, from today.

    Guarantee: if the rounds of each period are collected on its day, registered in the order of the kinds,
    and nothing else is admitted in between, every round of `periods_at_least` periods is admitted.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.

    Returns:
        None of a schedule with more than 8 kinds.
    """
    if len(schedule.kinds) > KINDS_MAX:
        return None
    days = ScheduleDays(every=schedule.every, first=first_day([view], today), until=None)
    count = periods_within(books, view, schedule.kinds, days)
    return ScheduleOfLate(
        every=schedule.every,
        kinds=schedule.kinds,
        periods_at_least=count,
        ends_on=days.last_of(count),
    )


def schedule_course(
    books: Books, view: CohortView, late: ScheduleOfLate, *, today: date, until: date
) -> tuple[tuple[date, float], ...]:
    """Return days of a schedule that fits, and upper bounds on epsilon spent after their rounds.

    Args:
        books: where privacy losses come from.
        view: the cohort that `late` was computed for.
        late: the schedule.
        today: its first day.
        until: no later days are returned.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    days = ScheduleDays(every=late.every, first=first_day([view], today), until=until)
    periods = min(late.periods_at_least, days.count() or 0)
    counts = sorted({math.ceil(periods * step / COURSE_POINTS) for step in range(1, COURSE_POINTS + 1)} - {0})
    spent = spent_after(books, view, policy_of(books.store, view), late.kinds, counts)
    course = ((days.last_of(count), value) for count, value in zip(counts, spent, strict=True))
    return tuple((day, value) for day, value in course if day is not None)
