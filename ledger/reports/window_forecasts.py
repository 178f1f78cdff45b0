"""How many more rounds the windows of a cohort admit, on given days of collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.windows import empty_view, views_today
from shuffle_ledger.ledger.policies.registry import Books, policy_of
from shuffle_ledger.ledger.reports.rounds_left import is_over, room_for
from shuffle_ledger.ledger.reports.schedule_days import ScheduleDays
from shuffle_ledger.ledger.reports.schedules_left import periods_for
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.windows import Window, periods_of

SCHEDULED_MAX = 1_000  # days of a schedule whose windows are looked at


@dataclass(frozen=True, kw_only=True)
class WindowForecast:
    """How many rounds of one kind a window admits by itself."""

    window: Window
    rounds_today: int  # more, if they are collected today, UTC
    rounds_in_empty: int  # in a period in which nothing else is collected


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """The window that refuses rounds of a schedule."""

    days: int  # whose rounds fit before it
    window: Window | None  # None: none of the windows refuses any


def first_day(views: Iterable[CohortView], today: date) -> date:
    """Return the first day of collection that cohorts take now: today, or a later one where a chain with
    windows has an entry of it, since the database's clock was set back or is ahead of ours.
    """
    return max([today, *(view.now.date() for view in views if view.cohort.windows)])


def of_windows(books: Books, view: CohortView, kind: ShuffledRound) -> tuple[WindowForecast, ...]:
    """Return how many more rounds each window of a cohort admits by itself.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        kind: the round, as declared or as it is accounted.

    Guarantee: a window admits this number of rounds one after the other, if nothing else refuses them.
    """
    today = views_today(books.store, view)
    found = []
    for window in view.cohort.windows:
        of_kind = [each for each in today if each.cohort.period and each.cohort.period.kind == window.kind]
        now = min(_room(books, each, [kind]) for each in of_kind)
        empty = _room(books, empty_view(books.store, view, window), [kind])
        found.append(WindowForecast(window=window, rounds_today=now, rounds_in_empty=empty))
    return tuple(found)


def blocked(
    books: Books, view: CohortView, kinds: Sequence[ShuffledRound], days: ScheduleDays, count: int
) -> Blocked:
    """Return on how many days of a schedule its rounds fit into a cohort's windows.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        kinds: the rounds that are collected on each day, in the order in which they are registered.
        days: the schedule.
        count: how many of its days are looked at.

    Guarantee: if the rounds of the returned number of days are registered in their order, with nothing else
    in between, no window refuses any.
    """
    name, declared = view.cohort.name, view.cohort.windows
    dates = [day for number in range(1, count + 1) if (day := days.last_of(number)) is not None]
    met = [periods_of(declared, name, day, day) for day in dates]
    opened = _opened(books, {period.name for periods in met for period in periods})
    empty: dict[str, int] = {}
    by_kind = {window.kind: window for window in declared}
    rooms: dict[str, int] = {}
    taken: Counter[str] = Counter()
    for number, periods in enumerate(met):
        for period in periods:
            if period.name in opened and period.name not in rooms:
                rooms[period.name] = _room(books, books.store.view(period.name), kinds)
            elif period.kind not in empty:
                empty[period.kind] = _room(books, empty_view(books.store, view, by_kind[period.kind]), kinds)
            if taken[period.name] >= rooms.get(period.name, empty.get(period.kind, 0)):
                return Blocked(days=number, window=by_kind[period.kind])
        taken.update(period.name for period in periods)
    return Blocked(days=len(dates), window=None)


def periods_within(books: Books, view: CohortView, kinds: Sequence[ShuffledRound], days: ScheduleDays) -> int:
    """Return how many periods of a schedule a cohort admits: in its life, and in all of its windows.

    Guarantee: as `periods_for`, if the rounds of each period are collected on its day.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    if view.cohort.status != "open" or is_over(view):
        return 0
    count = periods_for(books, view, policy_of(books.store, view), kinds)
    if view.cohort.windows:
        return blocked(books, view, kinds, days, min(count, SCHEDULED_MAX)).days
    return count


def _opened(books: Books, names: Collection[str]) -> set[str]:
    """Return the names of the periods in which something was registered already."""
    return {cohort.name for cohort in books.store.cohorts_among(names, parts=True)}


def _room(books: Books, view: CohortView, kinds: Sequence[ShuffledRound]) -> int:
    if view.cohort.status != "open":
        return 0
    policy = policy_of(books.store, view)
    if len(kinds) == 1:
        return room_for(books, view, policy, kinds[0]).count
    return periods_for(books, view, policy, kinds)
