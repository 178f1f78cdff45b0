"""Advisory locks that let writers of a contended cohort take turns, so that a lost race wastes no
computation; and claims, so that processes do not compute the same at once.

Correctness does not depend on them: with or without a turn, an entry is appended only if the cohort's head is
unchanged (optimistic concurrency).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.ledger.errors import TryAgain, Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared

CONTENDED_SECONDS = 1.0  # how long a lost race makes the next decisions take turns
COHORTS_REMEMBERED_MAX = 10_000
RACES_IN_TURN_MAX = 5
LOCK_SPACE = 0x5475_726E  # any constant: tells these advisory locks from all others
# Returns whether there was a line.
_LINE_UP = """
SELECT CASE WHEN pg_try_advisory_lock(%(space)s, %(line)s) THEN false
  ELSE pg_advisory_lock(%(space)s, %(line)s) IS NOT NULL END AS waited
"""
_LEAVE = "SELECT pg_advisory_unlock(%(space)s, %(line)s)"
_CLAIM_SPACE = 0x4C6F_7373  # tells claims from the locks of cohorts


@contextmanager
def claimed(engine: Engine, key: bytes) -> Iterator[bool]:
    """Keep other processes from computing at the same time what `key` names.

    Nothing rests on a claim: on SQLite, or after the time limit of a lock, two may compute the same.

    Yields:
        Whether another process held the claim until now: it may have stored a result.
    """
    if not engines.is_postgresql(engine):
        yield False
        return
    place = {"space": _CLAIM_SPACE, "line": int.from_bytes(key[:4], "big", signed=True)}
    with engines.reading_once(engine) as connection:
        try:
            with engines.translated_errors(url=engine.url):
                waited = bool(prepared.run(connection, _LINE_UP, place).waited)
        except TryAgain:
            yield True
            return
        try:
            yield waited
        finally:
            try:
                prepared.run(connection, _LEAVE, place)
            except DBAPIError:
                connection.invalidate()  # a lock goes with its connection


class CohortTurns:
    """The advisory locks of contended cohorts; they do nothing on SQLite, which has one writer at a time."""

    def __init__(self, engine: Engine) -> None:
        """Uses a separate connection pool for waiting: the holder of a lock must still get a connection."""
        self._main = engine
        self._own: Engine | None = None
        self._contended: dict[str, float] = {}

    def close(self) -> None:
        """Close all connections."""
        if self._own is not None:
            self._own.dispose()

    def note_contention(self, cohort: str) -> None:
        """Records that another writer was faster."""
        if len(self._contended) >= COHORTS_REMEMBERED_MAX:
            self._contended.clear()
        self._contended[cohort] = time.monotonic()

    def is_contended(self, cohort: str) -> bool:
        """Returns whether another writer was faster within the last second."""
        last = self._contended.get(cohort)
        return last is not None and time.monotonic() - last < CONTENDED_SECONDS

    @contextmanager
    def take(self, cohorts: Iterable[str]) -> Iterator[None]:
        """Waits for the locks of some cohorts, and keeps them for the block.

        Continues without the lock after the time limit, or if no connection is free.
        """
        with ExitStack() as held:
            if lines := self.lines(cohorts):
                try:
                    with engines.translated_errors():
                        connection = held.enter_context(engines.writing(self._engine()))
                        connection.exec_driver_sql(waiting_for(lines))
                except (TryAgain, Unavailable):
                    held.close()
            yield

    def lines(self, cohorts: Iterable[str]) -> list[int]:
        """Returns the locks of some cohorts, in one order, for many want several; none on SQLite."""
        return sorted({_line(cohort) for cohort in cohorts}) if engines.is_postgresql(self._main) else []

    def _engine(self) -> Engine:
        if self._own is None:
            self._own = engines.connect(self._main.url.render_as_string(hide_password=False))
        return self._own


def waiting_for(lines: Sequence[int]) -> str:
    """Returns the statement that waits for locks and keeps them until its transaction ends.

    The next statement of the transaction sees what the last holder committed; this one does not.
    """
    return "SELECT " + ", ".join(f"pg_advisory_xact_lock({LOCK_SPACE}, {line})" for line in lines)


def _line(cohort: str) -> int:
    return int.from_bytes(hashlib.sha256(cohort.encode("utf-8")).digest()[:4], "big", signed=True)
