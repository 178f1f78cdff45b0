"""Schedules: one round of each of some kinds in every day, week or month, and the days of its rounds."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import MAXYEAR, date, timedelta
from typing import Literal, TypeAlias

from shuffle_ledger.accounting import ShuffledRound

Every: TypeAlias = Literal["day", "week", "month"]
EVERY: tuple[Every, ...] = ("day", "week", "month")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Rounds that were collected again and again: one of each kind in every period, or fewer."""

    every: Every
    kinds: tuple[ShuffledRound, ...]  # as accounted: the last round of each use case and randomizer


@dataclass(frozen=True, kw_only=True)
class ScheduleDays:
    """The days of a schedule."""

    every: Every | None
    first: date
    until: date | None

    def last_of(self, count: int) -> date | None:
        """Returns the day of round `count`, counted from 1; None if there is none, or beyond all
        calendars."""
        if self.every is None or count < 1:
            return None
        if self.every == "month":
            return self._after_months(count - 1)
        days = (count - 1) * (7 if self.every == "week" else 1)
        return self.first + timedelta(days=days) if days <= (date.max - self.first).days else None

    def count(self) -> int | None:
        """Returns how many rounds the schedule has until its last day; None if it has no last day."""
        if self.every is None or self.until is None:
            return None
        days = (self.until - self.first).days
        if days < 0:
            return 0
        if self.every != "month":
            return days // (7 if self.every == "week" else 1) + 1
        months = 12 * (self.until.year - self.first.year) + self.until.month - self.first.month
        last = self._after_months(months)
        return months + (last is not None and last <= self.until)

    def reaches(self, count: int) -> bool | None:
        """Returns whether `count` rounds complete the schedule; None if it has no end."""
        needed = self.count()
        return None if needed is None else count >= needed

    def _after_months(self, months: int) -> date | None:
        """Returns the same day of a later month, or that month's last day where it is shorter."""
        year, month = divmod(12 * self.first.year + self.first.month - 1 + months, 12)
        if year > MAXYEAR:
            return None
        day = min(self.first.day, calendar.monthrange(year, month + 1)[1])
        return date(year, month + 1, day)
