"""The budgets that a round is charged to: lives of cohorts, periods of their windows, quotas of teams.

Days are those of UTC. A window has a budget for each calendar unit, or for each run of units in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from shuffle_ledger.ledger.machine.values import BudgetKind, InvalidStep, Request

_UNITS: Final = ("day", "week", "month", "quarter", "year")
_ROLLING_UNITS: Final = ("day", "week", "month")
_RUN_MAX = 31  # units of a rolling window
_CALENDAR_UNITS_MAX = 2  # that one round may be collected in
_YEARS: Final = range(1970, 9000)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class WindowUnits:
    """A budget for each calendar unit, or for each run of `run` units in a row."""

    unit: str
    run: int = 1

    def __post_init__(self) -> None:
        """Raises InvalidStep for a window that there is not."""
        units = _UNITS if self.run == 1 else _ROLLING_UNITS
        if self.unit not in units or not 1 <= self.run <= _RUN_MAX:
            raise InvalidStep(
                f"a window of {self.run} {self.unit}", f"1 {', '.join(_UNITS)}, or 2 to {_RUN_MAX} of a unit"
            )


@dataclass(frozen=True, kw_only=True)
class CohortBudgets:
    """What budgets a cohort has: perhaps one of its life, some windows, and quotas of some teams."""

    name: str
    has_life: bool = True
    windows: tuple[WindowUnits, ...] = ()
    teams: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raises InvalidStep for a cohort without a promise."""
        if not self.has_life and not self.windows:
            raise InvalidStep(f"cohort {self.name} without a budget", "a life, a window, or both")


@dataclass(frozen=True, kw_only=True)
class BudgetName:
    """A budget's name, and where its rules come from: its cohort's life, one window, or a team's quota."""

    name: str
    cohort: str
    kind: BudgetKind
    window: WindowUnits | None = None
    team: str | None = None


def budgets_of(
    request: Request, cohorts: Mapping[str, CohortBudgets], day: date | None
) -> tuple[BudgetName, ...]:
    """Returns the budgets that a round is charged to.

    Args:
        request: the round.
        cohorts: its audience's cohorts, by name.
        day: the day of the decision; None for a release of the past, which must state its days.

    Source: docs/adaptivity.md, Theorem 12.

    Raises:
        InvalidStep: a cohort is missing or named twice, or the days are none, reversed, over before the
            decision, or in more units of a window than one round may be collected in.
    """
    if not request.audience or len(set(request.audience)) != len(request.audience):
        raise InvalidStep(f"the audience {request.audience}", "one cohort or more, each once")
    missing = [name for name in request.audience if name not in cohorts]
    if missing:
        raise InvalidStep(f"the cohorts {missing}", "cohorts that were opened")
    first, last = _days(request, day)
    return tuple(
        budget for name in request.audience for budget in _of_cohort(cohorts[name], request.team, first, last)
    )


def _of_cohort(cohort: CohortBudgets, team: str | None, first: date, last: date) -> Iterator[BudgetName]:
    name = cohort.name
    if cohort.has_life:
        yield BudgetName(name=name, cohort=name, kind=BudgetKind.LIFE)
    for window in cohort.windows:
        for label in _labels(window, first, last):
            yield BudgetName(name=f"{name}@{label}", cohort=name, kind=BudgetKind.PERIOD, window=window)
    if team in cohort.teams:
        yield BudgetName(name=f"{name}@team={team}", cohort=name, kind=BudgetKind.QUOTA, team=team)


def _days(request: Request, day: date | None) -> tuple[date, date]:
    try:
        first = date.fromisoformat(request.collected_on) if request.collected_on else day
        last = date.fromisoformat(request.collected_until) if request.collected_until else first
    except ValueError as error:
        raise InvalidStep(f"days of collection: {error}", "days such as 2026-11-23") from error
    if first is None or last is None:
        raise InvalidStep("a past release without days", "collected_on, and collected_until if it is later")
    if last < first or first.year not in _YEARS or last.year not in _YEARS:
        raise InvalidStep(f"a collection from {first} until {last}", "days in order, from 1970 on")
    if day is not None and last < day:
        raise InvalidStep(f"a collection that ended on {last}", f"one that ends on {day} or later")
    return first, last


def _labels(window: WindowUnits, first: date, last: date) -> Iterator[str]:
    """Yields the labels of the periods that meet these days, in order."""
    most = _CALENDAR_UNITS_MAX if window.run == 1 else window.run
    starts = [_start(window.unit, first)]
    while (following := _next(window.unit, starts[-1])) <= last:
        starts.append(following)
        if len(starts) > most:
            raise InvalidStep(
                f"a collection from {first} until {last}", f"days in at most {most} UTC {window.unit}s"
            )
    for _ in range(window.run - 1):  # runs that begin earlier meet the first day, too
        starts.insert(0, _start(window.unit, starts[0] - _DAY))
    suffix = "" if window.run == 1 else f"+{window.run}{window.unit[0]}"
    return (f"{_label(window.unit, start)}{suffix}" for start in starts)


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
