"""The periods of a window that days are in: calendar units, or runs of units in a row. Days are of UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from shuffle_ledger.ledger.machine.values import InvalidStep

CALENDAR_UNITS: Final = ("day", "week", "month", "quarter", "year")
#: Units of which a window may have runs.
RUN_UNITS: Final = ("day", "week", "month")
#: Largest number of units in a run.
RUN_MAX: Final = 31
#: Years that have periods.
YEARS: Final = range(1970, 9000)
_CALENDAR_UNITS_MAX: Final = 2  # that one round may be collected in
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class PeriodDays:
    """One period of a window: its label, and its first and last day."""

    label: str
    first: date
    last: date


def units_met_max(run: int) -> int:
    """Returns in how many units of a window one round may be collected."""
    return _CALENDAR_UNITS_MAX if run == 1 else run


def periods(unit: str, run: int, first: date, last: date) -> tuple[PeriodDays, ...]:
    """Returns the periods that a round is charged to: all that meet its days, in order.

    Args:
        unit: of the window.
        run: how many units in a row are one period; 1: each calendar unit is.
        first, last: the days on which the round is collected.

    Source: docs/adaptivity.md, Theorem 12.

    Raises:
        InvalidStep: there is no such window, or the days are reversed, too far away, or in more units than
            one round may be collected in.
    """
    if unit not in (CALENDAR_UNITS if run == 1 else RUN_UNITS) or not 1 <= run <= RUN_MAX:
        raise InvalidStep(
            f"a window of {run} {unit}", f"1 {', '.join(CALENDAR_UNITS)}, or 2 to {RUN_MAX} of a unit"
        )
    if last < first or first.year not in YEARS or last.year not in YEARS:
        raise InvalidStep(f"a collection from {first} until {last}", f"days in order, from {YEARS[0]} on")
    starts = [_start(unit, first)]
    while (following := _next(unit, starts[-1])) <= last:
        starts.append(following)
        if len(starts) > units_met_max(run):
            raise InvalidStep(
                f"a collection from {first} until {last}", f"days in at most {units_met_max(run)} {unit}s"
            )
    starts = [*starts_before(unit, run - 1, starts[0]), *starts]
    suffix = "" if run == 1 else f"+{run}{unit[0]}"
    return tuple(
        PeriodDays(label=f"{_label(unit, start)}{suffix}", first=start, last=_end(unit, run, start) - _DAY)
        for start in starts
    )


def starts_before(unit: str, count: int, start: date) -> list[date]:
    """Returns the starts of the `count` units before a unit: a run from one of them meets its days."""
    starts = [start]
    for _ in range(count):
        starts.insert(0, _start(unit, starts[0] - _DAY))
    return starts[:-1]


def _end(unit: str, run: int, start: date) -> date:
    """Returns the day after a run of units."""
    for _ in range(run):
        start = _next(unit, start)
    return start


def _start(unit: str, day: date) -> date:
    months = {"month": 1, "quarter": 3, "year": 12}
    if unit in months:
        return day.replace(month=day.month - (day.month - 1) % months[unit], day=1)
    return day - day.weekday() * _DAY if unit == "week" else day


def _next(unit: str, start: date) -> date:
    """Returns the beginning of the next unit: that of a day which is certainly in it."""
    within = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}[unit]
    return _start(unit, start + within * _DAY)


def _label(unit: str, start: date) -> str:
    if unit == "week":
        year, week, _ = start.isocalendar()
        return f"{year}-W{week:02d}"
    if unit == "quarter":
        return f"{start.year}-Q{(start.month + 2) // 3}"
    return start.isoformat()[: {"day": 10, "month": 7, "year": 4}[unit]]
