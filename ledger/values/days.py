"""Days (YYYY-MM-DD) and moments (2025-01-06T12:00:00Z) that people write, and what is wrong with others."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, date, datetime, timedelta

DAY_EXPECTED = "a date as YYYY-MM-DD"
MOMENT_EXPECTED = "a time with its zone, as 2025-01-06T12:00:00Z"
_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class NotADay(ValueError):
    """A text that is no day, or no moment; its text says what was expected, as a phrase."""


def day_from(text: str, *, first: date = date.min, last: date = date.max) -> date:
    """Return the day that a text spells as YYYY-MM-DD, in the years of `first` to `last`; raises NotADay."""
    found = _DAY.fullmatch(text)
    if found is None:
        raise NotADay(DAY_EXPECTED)
    year, month, day = map(int, found.groups())
    if not first.year <= year <= last.year:
        raise NotADay(f"a date from {first.isoformat()} to {last.isoformat()}")
    if not 1 <= month <= 12:
        raise NotADay(f"{DAY_EXPECTED}: a month from 01 to 12")
    days = calendar.monthrange(year, month)[1]
    if not 1 <= day <= days:
        raise NotADay(f"{DAY_EXPECTED}: {calendar.month_name[month]} {year} has {days} days")
    return date(year, month, day)


def check_day_of(text: str, *, first: date = date.min, last: date = date.max) -> None:
    """Raise NotADay for a text that begins as a day, and with none."""
    if (begins := _DAY.match(text)) is not None:
        day_from(begins[0], first=first, last=last)


def moment_from(text: str, *, first: date = date.min, last: date = date.max) -> datetime:
    """Return the moment that a text spells in ISO 8601, with its zone, of a day as `day_from` takes it.

    Raises:
        NotADay: it is none.
    """
    check_day_of(text, first=first, last=last)
    try:
        found = datetime.fromisoformat(text)
        found.astimezone(UTC)
    except (OverflowError, ValueError):
        raise NotADay(MOMENT_EXPECTED) from None
    if found.tzinfo is None:
        raise NotADay(MOMENT_EXPECTED)
    return found


def microseconds_of(moment: datetime | None) -> int | None:
    """Return a moment as the machine counts it: microseconds since 1970; None for none."""
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND
