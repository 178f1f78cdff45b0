"""A chain over days of collection: which entry tells what was spent by the end of each day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Protocol

from shuffle_ledger.ledger.values.entries import EntryKind


class Dated(Protocol):
    """An entry, or what is known of it."""

    @property
    def kind(self) -> EntryKind:
        """Its kind."""
        ...

    @property
    def collected_on(self) -> date | None:
        """Of an admitted or refused round, if it was given."""
        ...

    @property
    def recorded_at(self) -> datetime:
        """When it was recorded."""
        ...


def days_of(chain: Sequence[Dated]) -> list[date]:
    """Return the day of each entry, UTC: of collection if it is known, and else on which it was recorded.

    The cohort was opened before its first round, so the first entry is not later than any other.
    """
    days = [each.collected_on or each.recorded_at.astimezone(UTC).date() for each in chain]
    if chain and chain[0].kind is EntryKind.OPENED:
        days[0] = min(days)
    return days


def last_of_days(days: Sequence[date]) -> dict[date, int]:
    """Return for each day, in order, which entry states what was spent by its end: the last of the chain
    among those of this day and of earlier ones.

    Guarantee: the entry counts every round that was collected until that day. Where rounds were registered
    in another order than they were collected, it may count later ones too, so an upper bound stays one.
    """
    found: dict[date, int] = {}
    last = -1
    for day, number in sorted((day, number) for number, day in enumerate(days)):
        last = max(last, number)
        found[day] = last
    return found
