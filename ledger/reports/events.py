"""The feed: every entry of all chains once, in an order that agrees with each chain, read in pages."""

from __future__ import annotations

import re
from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, false, func, or_, select

from shuffle_ledger.ledger.answers.entries import CURSOR_PATTERN, PAGE_MAX, Event, EventPage
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, TryAgain
from shuffle_ledger.ledger.reports.published_entries import published
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import ENTRY_COLUMNS, entries
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry

SCANNED_MAX = 10_000  # entries that one page may pass over: bounds its time where few of them are asked for
_DIGEST_LENGTH = 16  # hexadecimal digits of the entry's digest within a cursor
_POSITION_MAX = 2**63 - 1


def events_after(
    store: Store,
    *,
    after: str | None = None,
    limit: int = PAGE_MAX,
    cohorts: Collection[str] | None = None,
    kinds: Collection[str] = (),
) -> EventPage:
    """Return the events behind a cursor, in the order of the feed.

    Args:
        store: the ledger.
        after: the cursor of an event or of a page; None: from the first entry of the ledger.
        limit: number of events at most, from 1 to 1000.
        cohorts: only entries of these and of the periods of their windows; None: of all.
        kinds: only entries of these kinds; empty: of all.

    Guarantee: going on with `after` gives every entry that was ever committed exactly once, and the entries
    of one cohort in the order of its chain. An entry whose transaction has not ended holds back those behind
    it; nothing is skipped.

    Raises:
        InvalidValue: `after`, `limit` or a kind is not one.
        Conflict: the ledger has no such event: the cursor is another ledger's, or the database was put back
            to an earlier state.
        Unavailable: the database is a standby.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidValue(field="limit", value=limit, expected=f"a whole number from 1 to {PAGE_MAX}")
    known = [str(kind) for kind in EntryKind]
    for kind in kinds:
        if kind not in known:
            raise InvalidValue(field="kind", value=kind, expected="one of " + ", ".join(known))
    begin, digest = _read(after) if after is not None else (0, "")
    settled = store.positions.settled()  # before the transaction below, which sees all of them then
    with engine.reading(store.engine) as connection:
        if after is not None and _cursor_at(connection, begin) != f"{begin}-{digest}":
            raise Conflict(
                f"after: the ledger has no event {after!r}: the cursor is another ledger's, or the database"
                " was put back to an earlier state. Read the feed from its beginning."
            )
        return _page(connection, begin, settled, limit=limit, cohorts=cohorts, kinds=kinds)


def end_of_feed(store: Store) -> str | None:
    """Return the cursor behind which entries come that are not in the feed yet; None if it has none.

    Raises:
        Unavailable: the database is a standby.
        TryAgain: others have been writing for a while, so the end is not known.
    """
    settled = store.positions.settled()
    last = select(func.max(entries.c.position)).where(entries.c.position <= settled)
    with engine.reading(store.engine) as connection:
        position = connection.execute(last).scalar_one()
        if position is not None:
            return _cursor_at(connection, position)
        if connection.execute(select(entries.c.position).limit(1)).first() is not None:
            raise TryAgain("others have been writing to the ledger for a while: its last entry is not known")
        return None


def _page(
    connection: Connection,
    begin: int,
    settled: int,
    *,
    limit: int,
    cohorts: Collection[str] | None,
    kinds: Collection[str],
) -> EventPage:
    place = entries.c.position
    scanned = select(*ENTRY_COLUMNS, place).where(place > begin, place <= settled)
    # The limit inside has the index of positions used, whichever cohort is asked for.
    some = scanned.order_by(place).limit(SCANNED_MAX).subquery()
    end, count = connection.execute(select(func.max(some.c.position), func.count())).one()
    wanted = select(some).order_by(some.c.position).limit(limit)
    if cohorts is not None:
        wanted = wanted.where(or_(false(), *(_is_of(some.c.cohort, name) for name in cohorts)))
    if kinds:
        wanted = wanted.where(some.c.kind.in_(kinds))
    found = tuple(_event(row._asdict()) for row in connection.execute(wanted))
    if len(found) == limit:
        return EventPage(events=found, after=found[-1].cursor, more=True)
    last = _cursor_at(connection, begin if end is None else end)
    return EventPage(events=found, after=last, more=count == SCANNED_MAX)


def _is_of(column: ColumnElement[str], name: str) -> ColumnElement[bool]:
    """Return whether a chain is a cohort's, or that of a period of its windows.

    Not LIKE, which takes some letters for others on SQLite.
    """
    prefix = f"{name}@"
    return or_(column == name, func.substr(column, 1, len(prefix)) == prefix)


def _event(row: dict[str, object]) -> Event:
    position = row.pop("position")
    entry = LedgerEntry(**row)  # type: ignore[arg-type]  # the columns of a row have the fields' types
    return Event(**vars(published(entry)), cursor=_cursor(position, entry.digest))


def _cursor(position: object, digest: bytes) -> str:
    return f"{position}-{digest.hex()[:_DIGEST_LENGTH]}"


def _cursor_at(connection: Connection, position: int) -> str | None:
    query = select(entries.c.digest).where(entries.c.position == position)
    digest = connection.execute(query).scalar_one_or_none()
    return None if digest is None else _cursor(position, digest)


def _read(cursor: str) -> tuple[int, str]:
    if re.fullmatch(CURSOR_PATTERN, cursor, re.ASCII) is not None:
        position, _, digest = cursor.partition("-")
        if int(position) <= _POSITION_MAX:
            return int(position), digest
    raise InvalidValue(field="after", value=cursor, expected="the cursor of an event or of a page")
