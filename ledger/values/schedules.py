"""Schedules: one round of each of some kinds in every day, week or month, the days of its rounds, and what is
asked about their future.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import MAXYEAR, date, timedelta
from typing import Final, Literal, TypeAlias

from shuffle_ledger import accounting
from shuffle_ledger.ledger.errors import InvalidValue

Every: TypeAlias = Literal["day", "week", "month"]
EVERY: tuple[Every, ...] = ("day", "week", "month")
FIT_MAX: Final = 1_000  # rounds for which an epsilon0 is searched for: an answer takes seconds


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Rounds that were collected again and again: one of each kind in every period, or fewer."""

    every: Every
    # As accounted: the last round of each use case and randomizer.
    kinds: tuple[accounting.ShuffledRound, ...]


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


@dataclass(frozen=True, kw_only=True)
class ForecastWanted:
    """A question about the future of a cohort."""

    # None: each kind that the cohort has had, or that its plan has.
    round: accounting.ShuffledRound | None = None
    fit: int | None = None  # ask for the largest epsilon0 with which this number of rounds still fits
    every: Every | None = None  # one round in each of these periods
    until: date | None = None  # the last day of the schedule
    first_on: date | None = None  # the day of its first round; None: today, UTC

    def __post_init__(self) -> None:
        """Raises InvalidValue for questions that contradict each other."""
        if self.fit is not None and self.round is None:
            expected = "a round described beside it, by its randomizer and reports"
            raise InvalidValue(field="fit", value=self.fit, expected=expected)
        whole = isinstance(self.fit, int) and not isinstance(self.fit, bool)
        if self.fit is not None and not (whole and 1 <= self.fit <= FIT_MAX):
            raise InvalidValue(field="fit", value=self.fit, expected=f"a whole number from 1 to {FIT_MAX}")
        if self.every not in (None, *EVERY):
            raise InvalidValue(field="every", value=self.every, expected="one of: " + ", ".join(EVERY))
        for name, day in (("until", self.until), ("first_on", self.first_on)):
            if day is not None and self.every is None:
                expected = "`every` beside it: " + ", ".join(EVERY)
                raise InvalidValue(field=name, value=day.isoformat(), expected=expected)

    def days(self, today: date) -> ScheduleDays:
        """Returns the days of the schedule; `today` is its first one, if it names none."""
        return ScheduleDays(every=self.every, first=self.first_on or today, until=self.until)

    def described(self) -> accounting.ShuffledRound:
        """Returns the round; raises InvalidValue if none is described."""
        if self.round is None:
            expected = "a round described, by randomizer and reports"
            raise InvalidValue(field="round", value=None, expected=expected)
        return self.round
