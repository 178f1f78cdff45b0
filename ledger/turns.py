"""Taking turns on a contended cohort: who waits in line does not compute in vain.

A courtesy, nothing more: whether an entry is appended is decided by the head alone, with a turn or without.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from ledger import engines
from ledger.errors import TryAgain

CONTENDED_SECONDS = 1.0  # how long a lost race, or a wait, makes the next decisions take turns
COHORTS_REMEMBERED_MAX = 10_000
RACES_IN_TURN_MAX = 5
_LOCK_SPACE = 0x5475_726E  # any constant: tells these advisory locks from all others
# Returns whether there was a line.
_LINE_UP = text(
    "SELECT CASE WHEN pg_try_advisory_lock(:space, :line) THEN false"
    " ELSE pg_advisory_lock(:space, :line) IS NOT NULL END"
)
_LEAVE = text("SELECT pg_advisory_unlock(:space, :line)")


class Turns:
    """The lines in front of contended cohorts; empty on SQLite, where nobody computes elsewhere."""

    def __init__(self, engine: Engine) -> None:
        """Wait on connections of its own: whoever has a turn must still get one of the others."""
        self._main = engine
        self._own: Engine | None = None
        self._contended: dict[str, float] = {}

    def close(self) -> None:
        """Close all connections."""
        if self._own is not None:
            self._own.dispose()

    def note_contention(self, cohort: str) -> None:
        """Remember that somebody was faster."""
        if len(self._contended) >= COHORTS_REMEMBERED_MAX:
            self._contended.clear()
        self._contended[cohort] = time.monotonic()

    def is_contended(self, cohort: str) -> bool:
        """Return whether others were faster, or had to be waited for, just now."""
        last = self._contended.get(cohort)
        return last is not None and time.monotonic() - last < CONTENDED_SECONDS

    @contextmanager
    def take(self, cohort: str) -> Iterator[None]:
        """Wait for this cohort's turn, and keep it. Who has waited for too long goes on without."""
        with ExitStack() as held:
            if engines.is_postgresql(self._main):
                try:
                    self._wait(held.enter_context(engines.writing(self._engine())), cohort)
                except (TryAgain, PoolExhausted):
                    held.close()
            yield

    @contextmanager
    def take_on(self, connection: Connection, cohort: str) -> Iterator[int]:
        """Do as `take` where others were met just now, on a connection that commits every statement.

        Yields how often to try before the turn is given up.
        """
        if not (engines.is_postgresql(self._main) and self.is_contended(cohort)):
            yield 1
            return
        place = {"space": _LOCK_SPACE, "line": _line(cohort)}
        try:
            with engines.translated_errors():
                if connection.execute(_LINE_UP, place).scalar_one():
                    self.note_contention(cohort)
        except TryAgain:
            yield 1
            return
        try:
            yield RACES_IN_TURN_MAX
        finally:
            _leave(connection, place)

    def _wait(self, connection: Connection, cohort: str) -> None:
        # The lock ends with its transaction: with this turn, or with this process.
        line = _line(cohort)
        if not connection.execute(select(func.pg_try_advisory_xact_lock(_LOCK_SPACE, line))).scalar_one():
            self.note_contention(cohort)
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK_SPACE, line)))

    def _engine(self) -> Engine:
        if self._own is None:
            self._own = engines.connect(self._main.url.render_as_string(hide_password=False))
        return self._own


def _line(cohort: str) -> int:
    return int.from_bytes(hashlib.sha256(cohort.encode("utf-8")).digest()[:4], "big", signed=True)


def _leave(connection: Connection, place: Mapping[str, int]) -> None:
    if connection.invalidated:
        return  # the lock went with the connection
    try:
        connection.execute(_LEAVE, place)
    except DBAPIError:
        connection.invalidate()  # nobody may find it with the lock
