"""The picture of a cohort's spending over days: a curve, its continuation, a strip for each use case."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from shuffle_ledger.ledger.answers.forecasts import RecentSchedule
from shuffle_ledger.ledger.answers.summaries import day_in_words
from shuffle_ledger.ledger.api.pages.charts import Chart, plain, stepped_chart, time_place, upper
from shuffle_ledger.ledger.reports.budgets import HistoryPoint
from shuffle_ledger.ledger.reports.collection_days import by_use_case, days_of
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import refusal_in_words

USE_CASES_MAX: Final = 12  # strips; the rounds of all other use cases share one more
DAYS_LISTED: Final = 60  # in the table
NAMED_MAX: Final = 3  # refused rounds of a day that their mark names
_AHEAD_MIN = timedelta(days=180)  # that a continuation may be drawn for; more if more is behind


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The rounds of one use case, in the units of the picture."""

    name: str
    admitted: int
    refused: int
    admitted_at: tuple[float, ...]  # each day once
    refused_at: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class DayRow:
    """The same as the picture in words, for one day."""

    day: date
    epsilon_upper: float
    admitted: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class SpendingPicture:
    """All of it."""

    chart: Chart
    strips: tuple[Strip, ...]
    rows: tuple[DayRow, ...]  # the last days first
    days: int  # all of them


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What would be spent at the present pace."""

    late: RecentSchedule
    foreseen: tuple[tuple[date, float], ...]  # days, and upper bounds on epsilon spent by then


def drawn_until(points: Sequence[HistoryPoint], today: date) -> date:
    """Return the day up to which a continuation is drawn, so that it leaves room for what happened."""
    behind = today - min(days_of(points)) if points else timedelta()
    return today + max(2 * behind, _AHEAD_MIN)


def spending_picture(
    points: Sequence[HistoryPoint],
    spent: Mapping[date, float],
    *,
    budget: float,
    continuation: Continuation | None,
    today: date,
    budget_word: str = "budget",
) -> SpendingPicture | None:
    """Return the picture of the last entries of a chain; None without a round.

    `spent`: upper bounds on the epsilon spent by the end of each day, in order, as `spent_by_day`.
    """
    days = days_of(points)
    per_use_case = by_use_case(points)
    if not per_use_case:
        return None
    foreseen = continuation.foreseen if continuation is not None else ()
    last = max([*spent, *(day for day, _ in foreseen), *([today] if foreseen else [])])
    first_at, last_at = _seconds(min(spent)), _seconds(last + timedelta(days=1))

    def x(day: date) -> float:
        return time_place(_seconds(day), first_at, last_at)

    curve = [(_seconds(day), value) for day, value in spent.items()]
    now = (_seconds(today), curve[-1][1])
    ahead = [now, *((_seconds(day), value) for day, value in foreseen if math.isfinite(value))]
    chart = stepped_chart(
        curve,
        budget=budget,
        ahead=ahead if len(ahead) > 1 else (),
        begins=first_at,
        ends=_seconds(today)
        if foreseen and _seconds(today) > curve[-1][0]
        else _seconds(max(spent) + timedelta(days=1)),
        domain_ends=last_at,
        title=_in_words(spent, budget, continuation),
        marks=_refusals(points, days, spent),
        budget_word=budget_word,
    )
    return SpendingPicture(
        chart=chart,
        strips=tuple(_strip(name, rounds, x) for name, rounds in _most(per_use_case).items()),
        rows=tuple(_rows(spent, per_use_case))[: -DAYS_LISTED - 1 : -1],
        days=len(spent),
    )


def _in_words(spent: Mapping[date, float], budget: float, ahead: Continuation | None) -> str:
    first, last = min(spent), max(spent)
    said = (
        f"Epsilon spent over days of collection, {first} to {last}: at most"
        f" {upper(spent[last])} of {plain(budget)}"
    )
    if ahead is not None and ahead.late.ends_on is not None:
        said += f"; at the present pace enough until {day_in_words(ahead.late.ends_on)}"
    return said


def _refusals(
    points: Sequence[HistoryPoint], days: Sequence[date], spent: Mapping[date, float]
) -> list[tuple[float, float, str]]:
    """Return one mark for each day with refusals."""
    found: dict[date, list[HistoryPoint]] = defaultdict(list)
    for day, point in zip(days, points, strict=True):
        if point.kind is EntryKind.REFUSED:
            found[day].append(point)
    marks = []
    for day, refused in found.items():
        named = [f"{each.round_id}: {refusal_in_words(str(each.reason))}" for each in refused[:NAMED_MAX]]
        more = f" and {len(refused) - NAMED_MAX:,} more" if len(refused) > NAMED_MAX else ""
        text = f"refused on {day}: {'; '.join(named)}{more}"
        marks.append((_seconds(day), spent[day], text))
    return marks


def _most(
    per_use_case: Mapping[str, list[tuple[date, EntryKind]]],
) -> dict[str, list[tuple[date, EntryKind]]]:
    """Return the use cases with the most rounds, and the rounds of all others together."""
    if len(per_use_case) <= USE_CASES_MAX + 1:
        return dict(per_use_case)
    most = sorted(per_use_case, key=lambda name: -len(per_use_case[name]))[:USE_CASES_MAX]
    others = [rounds for name, rounds in per_use_case.items() if name not in most]
    found = {name: rounds for name, rounds in per_use_case.items() if name in most}
    return found | {f"{len(others):,} other use cases": [one for rounds in others for one in rounds]}


def _strip(name: str, rounds: Sequence[tuple[date, EntryKind]], x: Callable[[date], float]) -> Strip:
    admitted = [day for day, kind in rounds if kind is EntryKind.ADMITTED]
    refused = [day for day, kind in rounds if kind is EntryKind.REFUSED]
    return Strip(
        name=name,
        admitted=len(admitted),
        refused=len(refused),
        admitted_at=tuple(x(day) for day in sorted(set(admitted))),
        refused_at=tuple(x(day) for day in sorted(set(refused))),
    )


def _rows(
    spent: Mapping[date, float],
    per_use_case: Mapping[str, list[tuple[date, EntryKind]]],
) -> list[DayRow]:
    counts = Counter(one for rounds in per_use_case.values() for one in rounds)
    return [
        DayRow(
            day=day,
            epsilon_upper=value,
            admitted=counts[day, EntryKind.ADMITTED],
            refused=counts[day, EntryKind.REFUSED],
        )
        for day, value in spent.items()
    ]


def _seconds(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()
