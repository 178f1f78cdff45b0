"""A chain over days of collection: which entry tells what was spent by the end of each day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

from shuffle_ledger.ledger.values.entries import EntryKind

NO_USE_CASE = "(none)"
_FAR = timedelta(days=36_525)  # a century


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

    A day of collection that is far from its record stands for no day, as 9999-12-31, and no picture has it.
    The cohort was opened before its first round, so the first entry is not later than any other.
    """
    days = []
    for each in chain:
        recorded = each.recorded_at.astimezone(UTC).date()
        stated = each.collected_on or recorded
        days.append(stated if abs(stated - recorded) <= _FAR else recorded)
    if chain and chain[0].kind is EntryKind.OPENED:
        days[0] = min(days)
    return days


def last_of_days(chain: Sequence[Dated]) -> dict[date, int]:
    """Return for each day, in order, which entry states what was spent by its end: the last of the chain
    among those of this day and of earlier ones, refusals aside, which spend nothing.

    Guarantee: the entry counts every round that was admitted and collected until that day. Where rounds were
    registered in another order than they were collected, it may count later ones too, so an upper bound
    stays one.
    """
    found: dict[date, int] = {}
    last = -1
    for day, number in sorted((day, number) for number, day in enumerate(days_of(chain))):
        if last < 0 or chain[number].kind is not EntryKind.REFUSED:
            last = max(last, number)
        found[day] = last
    return found


class DatedRound(Dated, Protocol):
    """An entry about a round."""

    @property
    def use_case(self) -> str | None:
        """The purpose of the round, if it was given."""
        ...


def by_use_case(chain: Sequence[DatedRound]) -> dict[str, list[tuple[date, EntryKind]]]:
    """Return the days of admitted and of refused rounds, by use case in the order of their names."""
    found: dict[str, list[tuple[date, EntryKind]]] = {}
    for day, each in zip(days_of(chain), chain, strict=True):
        if each.kind in (EntryKind.ADMITTED, EntryKind.REFUSED):
            found.setdefault(each.use_case or NO_USE_CASE, []).append((day, each.kind))
    return dict(sorted(found.items()))
