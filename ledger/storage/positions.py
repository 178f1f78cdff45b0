"""Positions of entries in the feed of all chains, and up to which of them no transaction adds one more.

PostgreSQL gives an entry its position when it is inserted, and shows it when its transaction commits. So a
later position may be seen first. A reader that went on behind it would miss the earlier one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, func, or_, select

from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared, rows
from shuffle_ledger.ledger.storage.tables import entries, reconciliations, rounds

WAIT_SECONDS = 1.0  # for transactions that are adding entries; admissions take milliseconds
PAUSE_SECONDS = 0.005  # between two looks at them
_PAGE_ROWS = 5_000
# Where the database is another one, restarted or put back, positions may be given again.
_LAST_GIVEN = """
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS position,
  pg_is_in_recovery() AS is_standby,
  concat_ws(' ', pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()))
    AS database
FROM entries_position_seq
"""
_GIVEN = (
    "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS position FROM entries_position_seq"
)
# An INSERT takes this lock before it takes a position. The end of its transaction releases the lock, after
# the transaction's rows can be seen.
_WRITERS = """
SELECT coalesce(array_agg(virtualtransaction), '{}') AS writers FROM pg_locks
WHERE locktype = 'relation' AND relation = 'entries'::regclass AND mode = 'RowExclusiveLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The last position that was given, and afterwards the transactions that may have taken one and not
    ended.
    """

    database: str
    last: int
    writers: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class PlacedEntry:
    """An entry in the feed, with moments as its body spells them; other bytes where the body has none."""

    cohort: str
    sequence: int
    recorded_at: bytes
    registered_at: bytes  # of the round that it decides, or tells as an incident


class Positions:
    """How far the positions of one database are settled."""

    def __init__(self, engine: Engine) -> None:
        """Read nothing yet."""
        self._engine = engine
        self._lock = threading.Lock()  # a look is compared only with earlier ones
        self._settled = 0
        self._awaited: _Look | None = None
        self._database = ""

    def settled(self) -> int:
        """Return a position up to which all entries can be seen, by every transaction that begins now; 0 if
        none is known.

        Waits up to a second for the transactions that are adding entries. If one of them takes longer, the
        position is that of the last time they had all ended.

        Raises:
            Unavailable: the database is a standby, which does not know these transactions.
        """
        if not engines.is_postgresql(self._engine):
            with engines.reading_once(self._engine) as connection:
                last = select(func.coalesce(func.max(entries.c.position), 0))
                return int(connection.execute(last).scalar_one())
        ends = time.monotonic() + WAIT_SECONDS
        wanted: int | None = None
        while True:
            with self._lock:
                seen = self._look()
                reached = self._settled_after(seen)
            wanted = seen.last if wanted is None else wanted
            if reached >= wanted or time.monotonic() >= ends:
                return reached
            time.sleep(PAUSE_SECONDS)  # outside the lock, and for a second at most

    def misplaced(self, cohort: str, *, limit: int) -> list[int]:
        """Return entries of a chain whose place in the feed is not behind that of the entry before them, or
        was never given. Readers of the feed would miss them.

        What this does not show: entries of other chains may stand where this chain leaves room.
        """
        before = func.lag(entries.c.position).over(order_by=entries.c.sequence)
        places = select(entries.c.sequence, entries.c.position, before.label("before"))
        listed = places.where(entries.c.cohort == cohort).subquery()
        wrong = listed.c.position <= func.coalesce(listed.c.before, 0)
        with engines.reading(self._engine) as connection:
            if engines.is_postgresql(self._engine):
                wrong = or_(wrong, listed.c.position > prepared.run(connection, _GIVEN, {}).position)
            query = select(listed.c.sequence).where(wrong)
            found = connection.execute(query.order_by(listed.c.sequence).limit(limit)).scalars()
            return [sequence for sequence in found if isinstance(sequence, int)]  # SQLite takes any value

    def from_the_last(self) -> Iterator[PlacedEntry]:
        """Yield all entries, that of the last place first; some that are written meanwhile are left out."""
        dialect = self._engine.dialect.name
        query = select(
            entries.c.cohort,
            entries.c.sequence,
            entries.c.position,
            rows.moment_in(entries.c.body, rows.RECORDED, dialect).label("recorded_at"),
            rows.moment_in(entries.c.body, rows.REGISTERED, dialect).label("registered_at"),
        )
        query = query.order_by(entries.c.position.desc()).limit(_PAGE_ROWS)
        last: Any = None
        while True:
            page = query if last is None else query.where(entries.c.position < last)
            with engines.reading_once(self._engine) as connection:
                found = connection.execute(page).all()
            for cohort, sequence, _, recorded, registered in found:
                yield PlacedEntry(
                    cohort=cohort, sequence=sequence, recorded_at=recorded, registered_at=registered
                )
            if len(found) < _PAGE_ROWS:
                return
            last = found[-1].position

    def recovered_at(self) -> datetime | None:
        """Return when lost entries, or their loss, were last dealt with; None: never."""
        with engines.reading_once(self._engine) as connection:
            found: datetime | None = connection.execute(
                select(func.max(reconciliations.c.recorded_at))
            ).scalar_one()
            return found

    def earliest_registration(self, *, after: int) -> tuple[int, datetime] | None:
        """Return number and moment of the round with the earliest moment among the decided ones with a larger
        number than `after`; None if there is none."""
        query = select(rounds.c.registration, rounds.c.registered_at)
        query = query.where(rounds.c.registration > after, rounds.c.outcome_sequence.is_not(None))
        with engines.reading_once(self._engine) as connection:
            found = connection.execute(query.order_by(rounds.c.registered_at).limit(1)).one_or_none()
            return None if found is None else (found.registration, found.registered_at)

    def reached(self) -> int:
        """Return such a position without waiting; 0 if none is known, as on a standby."""
        if not engines.is_postgresql(self._engine):
            return self.settled()
        try:
            with self._lock:
                return self._settled_after(self._look())
        except Unavailable:
            return 0

    def _look(self) -> _Look:
        with engines.reading_once(self._engine) as connection:
            given: Any = prepared.run(connection, _LAST_GIVEN, {})
            if given.is_standby:
                raise Unavailable("the feed is read from the primary database, and this is a standby")
            writers = prepared.run(connection, _WRITERS, {}).writers  # second: see `_Look`
        return _Look(database=given.database, last=given.position, writers=frozenset(writers))

    def _settled_after(self, seen: _Look) -> int:
        if seen.database != self._database or seen.last < self._settled:
            self._database, self._settled, self._awaited = seen.database, 0, None
        if self._awaited is not None and not self._awaited.writers & seen.writers:
            self._settled, self._awaited = self._awaited.last, None
        if not seen.writers:
            self._settled, self._awaited = seen.last, None
        elif self._awaited is None and self._settled < seen.last:
            self._awaited = seen
        return self._settled
