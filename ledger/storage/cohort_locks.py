"""Advisory locks that let writers of a contended cohort take turns, so that a lost race wastes no
computation; and claims, so that processes do not compute the same at once.

Correctness does not depend on them: with or without a turn, an entry is appended only if the cohort's head is
unchanged (optimistic concurrency).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from shuffle_ledger.ledger.errors import TryAgain, Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared

CONTENDED_SECONDS = 1.0  # how long a lost race, or a wait, makes the next decisions take turns
COHORTS_REMEMBERED_MAX = 10_000
RACES_IN_TURN_MAX = 5
LOCK_SPACE = 0x5475_726E  # any constant: tells these advisory locks from all others
# Returns whether there was a line.
_LINE_UP = """
SELECT CASE WHEN pg_try_advisory_lock(%(space)s, %(line)s) THEN false
  ELSE pg_advisory_lock(%(space)s, %(line)s) IS NOT NULL END AS waited
"""
# Locks are taken in one order: several writers may each take several.
_LINE_UP_TOGETHER = """
SELECT count(pg_advisory_xact_lock(%(space)s, line)) AS turns FROM unnest(%(lines)s::integer[]) AS given(line)
"""
_LEAVE = "SELECT pg_advisory_unlock(%(space)s, %(line)s)"
NO_TURN: Mapping[str, int | None] = {"space": LOCK_SPACE, "line": None}
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


class Turn:
    """The advisory lock of a cohort, on a connection that commits every statement; does nothing on SQLite.

    The statement that reads the cohort also tries to take the lock, and the statement that writes releases
    it. That costs no extra round trip, so every writer takes part, without knowing of other writers.
    """

    def __init__(self, turns: Turns, connection: Connection, cohort: str) -> None:
        """Use `Turns.on`."""
        self._turns, self._connection, self._cohort = turns, connection, cohort
        self._possible = engines.is_postgresql(connection.engine)
        self._line = _line(cohort)
        self.is_held = False

    def ask(self) -> Mapping[str, int | None]:
        """Returns the parameters with which the read statement tries to take the lock."""
        if self.is_held or not self._possible:
            return NO_TURN
        self.is_held = True  # assumed: releasing a lock that is not held does no harm
        return self.place

    def answer(self, *, taken: bool | None) -> bool:
        """Records the result of the read statement, and waits for the lock if another writer has it.

        Returns whether it waited: the data that was read is then outdated.
        """
        if taken is not False:
            return False
        self.is_held = False
        self._turns.note_contention(self._cohort)
        return self.wait()

    def wait(self) -> bool:
        """Waits for the lock, and continues without it after the time limit. Returns whether the lock was
        taken."""
        if not self._possible:
            return False
        self.is_held = True  # assumed, also if waiting ends with an error
        try:
            with engines.translated_errors(url=self._connection.engine.url):
                if prepared.run(self._connection, _LINE_UP, self.place).waited:
                    self._turns.note_contention(self._cohort)
        except TryAgain:
            self._possible = False
        return self._possible

    @property
    def place(self) -> dict[str, int | None]:
        """Returns the parameters with which the write statement releases the lock at its commit."""
        return {"space": LOCK_SPACE, "line": self._line if self.is_held else None}

    def leave(self) -> None:
        """Releases the lock, if the write statement has not done so."""
        if not self.is_held or self._connection.invalidated:
            return  # a lock goes with its connection
        try:
            prepared.run(self._connection, _LEAVE, self.place)
        except DBAPIError:
            self._connection.invalidate()  # the connection must not go back to the pool with the lock


class Turns:
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
        """Returns whether another writer was faster, or had to be waited for, within the last second."""
        last = self._contended.get(cohort)
        return last is not None and time.monotonic() - last < CONTENDED_SECONDS

    @contextmanager
    def take(self, cohorts: Iterable[str]) -> Iterator[None]:
        """Waits for the locks of some cohorts, and keeps them for the block.

        Continues without the lock after the time limit, or if no connection is free.
        """
        with ExitStack() as held:
            if engines.is_postgresql(self._main):
                try:
                    connection = held.enter_context(engines.writing(self._engine()))
                    for cohort in sorted(cohorts, key=_line):  # in one order, for many want several
                        self._wait(connection, cohort)
                except (TryAgain, Unavailable, PoolExhausted):
                    held.close()
            yield

    @contextmanager
    def on(self, connection: Connection, cohort: str) -> Iterator[Turn]:
        """Yield a turn on a connection that commits every statement; it is left at the end."""
        turn = Turn(self, connection, cohort)
        try:
            if self.is_contended(cohort):
                turn.wait()
            yield turn
        finally:
            turn.leave()

    def take_together(self, connection: Connection, cohorts: Iterable[str]) -> None:
        """Waits for the locks of some cohorts, and keeps them until the transaction ends.

        Without the locks, a writer of large batches would win every race against a writer that has to
        compute.
        """
        if engines.is_postgresql(self._main):
            lines = sorted({_line(cohort) for cohort in cohorts})
            prepared.run(connection, _LINE_UP_TOGETHER, {"space": LOCK_SPACE, "lines": lines})

    def _wait(self, connection: Connection, cohort: str) -> None:
        # The lock ends with its transaction: with this turn, or with this process.
        line = _line(cohort)
        if not connection.execute(select(func.pg_try_advisory_xact_lock(LOCK_SPACE, line))).scalar_one():
            self.note_contention(cohort)
            connection.execute(select(func.pg_advisory_xact_lock(LOCK_SPACE, line)))

    def _engine(self) -> Engine:
        if self._own is None:
            self._own = engines.connect(self._main.url.render_as_string(hide_password=False))
        return self._own


def _line(cohort: str) -> int:
    return int.from_bytes(hashlib.sha256(cohort.encode("utf-8")).digest()[:4], "big", signed=True)
