"""The database's clock, compared with the last moment that a chain knows and with this machine's clock.

An entry that is written while the clock is ahead moves its cohort's days ahead for good: moments of a chain
never go back. So nothing is written while the clock is implausible. A clock that is far after the last moment
is normal: the cohort was idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shuffle_ledger.ledger.errors import ClockOff, LostRace

CLOCK_DIFFERENCE_MAX_SECONDS = 3600.0  # the default; larger: more days may be charged to a wrong period
READING_AGE_MAX_SECONDS = 900.0  # of a cohort, when an entry is to follow it: no task takes longer
# From reading a cohort until its entry has a place in the feed: statements are cancelled after a minute each.
APPEND_SECONDS_MAX = 2 * READING_AGE_MAX_SECONDS
_LOOK_AGAIN_SECONDS = 60.0  # two clocks that are nearer are not read a second time
_WAY_OUT = "Alarm CLOCK in docs/operations.md says what to do"


def own_clock() -> datetime:
    """Return this machine's clock, UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """How far the database's clock may be from others.

    SQLite asks this machine's clock, so there is nothing to compare it with but the last moment.
    """

    is_of_this_machine: bool  # the database's clock
    difference_max_seconds: float = CLOCK_DIFFERENCE_MAX_SECONDS
    reading_age_max_seconds: float = READING_AGE_MAX_SECONDS
    own: Callable[[], datetime] = own_clock

    def check(
        self, at: datetime, last: datetime | None, *, what: str, read_again: Callable[[], datetime]
    ) -> None:
        """Raise ClockOff if the clock is implausible, LostRace if it was read too long ago.

        Args:
            at: the database's clock.
            last: the last moment that is known; None: none is.
            what: of which that moment is, in words.
            read_again: reads the database's clock: a long computation may have made `at` old.
        """
        if abs(self.own() - at).total_seconds() > min(_LOOK_AGAIN_SECONDS, self.difference_max_seconds):
            now = read_again()
            if said := self.difference_from_own(now):
                raise ClockOff(f"nothing is written: {said}. {_WAY_OUT}")
            if (now - at).total_seconds() > self.reading_age_max_seconds:
                raise LostRace(f"the ledger was read {_length(now - at)} ago, which is too long")
        if said := self.behind(at, last, what=what):
            raise ClockOff(f"nothing is written: {said}. {_WAY_OUT}")

    def difference_from_own(self, at: datetime) -> str | None:
        """Return in words how far a clock that was just read is from this machine's; None: near enough."""
        if self.is_of_this_machine:
            return None
        own = self.own()
        ahead = at - own
        if abs(ahead).total_seconds() <= self.difference_max_seconds:
            return None
        where = "ahead of" if ahead > timedelta() else "behind"
        return (
            f"the database's clock says {_text(at)}, {_length(abs(ahead))} {where} this machine's,"
            f" which says {_text(own)}; at most {self._allowed} are allowed, so one of the two is wrong"
        )

    def behind(self, at: datetime, last: datetime | None, *, what: str) -> str | None:
        """Return in words how far a clock is behind the last moment of `what`; None: near enough."""
        if last is None or (last - at).total_seconds() <= self.difference_max_seconds:
            return None
        return (
            f"the database's clock says {_text(at)}, {_length(last - at)} behind the last moment of {what},"
            f" {_text(last)}; at most {self._allowed} are allowed."
            " The clock is wrong now, or it was ahead then"
        )

    @property
    def _allowed(self) -> str:
        return f"{int(self.difference_max_seconds):,} seconds (SHUFFLE_LEDGER_CLOCK_DIFFERENCE_MAX_SECONDS)"


def _text(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


def _length(difference: timedelta) -> str:
    seconds = difference.total_seconds()
    days = f" (about {int(seconds + 43_200) // 86_400:,} days)" if seconds >= 86_400 else ""
    return f"{int(seconds):,} seconds{days}"
