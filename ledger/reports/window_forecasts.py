"""How many more rounds of one kind the windows of a cohort admit, on given days of collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.windows import empty_view, views_today
from shuffle_ledger.ledger.policies.registry import Books, policy_of
from shuffle_ledger.ledger.reports.rounds_left import room_for
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.windows import Window, periods_of

SCHEDULED_MAX = 5_000  # rounds of a schedule whose periods are looked at


@dataclass(frozen=True, kw_only=True)
class WindowForecast:
    """How many rounds of one kind a window admits by itself."""

    window: Window
    rounds_today: int  # more, if they are collected today, UTC
    rounds_in_empty: int  # in a period in which nothing else is collected


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """The window that refuses a round of a schedule."""

    rounds: int  # that fit before it
    window: Window | None  # None: none of the windows refuses any


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
        now = min(_room(books, each, kind) for each in of_kind)
        empty = _room(books, empty_view(view, window), kind)
        found.append(WindowForecast(window=window, rounds_today=now, rounds_in_empty=empty))
    return tuple(found)


def blocked(
    books: Books,
    view: CohortView,
    kind: ShuffledRound,
    windows: Sequence[WindowForecast],
    days: Sequence[date],
) -> Blocked:
    """Return how many rounds fit into a cohort's windows, one collected on each of some days, in their order.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        kind: the round.
        windows: what `of_windows` returned for it.
        days: of collection; a day may occur several times.
    """
    name, declared = view.cohort.name, [each.window for each in windows]
    met = [periods_of(declared, name, day, day) for day in days]
    names = {period.name for periods in met for period in periods}
    opened = {cohort.name for cohort in books.store.cohorts(only=names)} if names else set()
    empty = {each.window.kind: each.rounds_in_empty for each in windows}
    by_kind = {window.kind: window for window in declared}
    rooms: dict[str, int] = {}
    taken: Counter[str] = Counter()
    for count, periods in enumerate(met):
        for period in periods:
            if period.name not in rooms:
                is_open = period.name in opened
                room = _room(books, books.store.view(period.name), kind) if is_open else empty[period.kind]
                rooms[period.name] = room
            if taken[period.name] >= rooms[period.name]:
                return Blocked(rounds=count, window=by_kind[period.kind])
        taken.update(period.name for period in periods)
    return Blocked(rounds=len(days), window=None)


def _room(books: Books, view: CohortView, kind: ShuffledRound) -> int:
    if view.cohort.status != "open":
        return 0
    policy = policy_of(books.store, view)
    return room_for(books, view, policy, kind, compositions=0, exactly=False).count
