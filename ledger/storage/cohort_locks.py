"""Taking turns on a contended cohort: who waits in line does not compute in vain.

A courtesy, nothing more: whether an entry is appended is decided by the head alone, with a turn or without.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
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
# In one order, for many want several.
_LINE_UP_TOGETHER = """
SELECT count(pg_advisory_xact_lock(%(space)s, line)) AS turns FROM unnest(%(lines)s::integer[]) AS given(line)
"""
_LEAVE = "SELECT pg_advisory_unlock(%(space)s, %(line)s)"


class Turn:
    """A place in a cohort's line, on a connection that commits every statement; on SQLite there is no line.

    Who finds nobody takes the turn with the statement that reads, and leaves with the one that writes: that
    costs no round trip, so that everybody lines up, also who knows nothing of the others.
    """

    def __init__(self, turns: Turns, connection: Connection, cohort: str) -> None:
        """Use `Turns.on`."""
        self._turns, self._connection, self._cohort = turns, connection, cohort
        self._possible = engines.is_postgresql(connection.engine)
        self._line = _line(cohort)
        self.is_held = False

    def ask(self) -> dict[str, int | None]:
        """Return what the statement that reads is given: it takes the turn, if nobody has it."""
        if self.is_held or not self._possible:
            return {"space": LOCK_SPACE, "line": None}
        self.is_held = True  # perhaps: to leave without it does no harm
        return self.place

    def answer(self, *, taken: bool | None) -> bool:
        """Note what that statement said, and where somebody else had the turn, wait for it.

        Returns whether it was waited for, so that what was read is old.
        """
        if taken is not False:
            return False
        self.is_held = False
        self._turns.note_contention(self._cohort)
        return self.wait()

    def wait(self) -> bool:
        """Wait for the turn; who has waited for too long goes on without. Returns whether it came."""
        if not self._possible:
            return False
        self.is_held = True  # perhaps, also where waiting ends with an error
        try:
            with engines.translated_errors():
                if prepared.run(self._connection, _LINE_UP, self.place).waited:
                    self._turns.note_contention(self._cohort)
        except TryAgain:
            self._possible = False
        return self._possible

    @property
    def place(self) -> dict[str, int | None]:
        """What the statement that writes is given: it leaves the line, once it is committed."""
        return {"space": LOCK_SPACE, "line": self._line if self.is_held else None}

    def leave(self) -> None:
        """Let the next one have the turn, if the statement that writes did not."""
        if not self.is_held or self._connection.invalidated:
            return  # a lock goes with its connection
        try:
            prepared.run(self._connection, _LEAVE, self.place)
        except DBAPIError:
            self._connection.invalidate()  # nobody may find it with the lock


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
    def take(self, cohorts: Iterable[str]) -> Iterator[None]:
        """Wait for the turns of some cohorts, and keep them.

        Who has waited for too long goes on without, and so does who gets no connection to wait on.
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
        """Wait for the turns of some cohorts, and keep them until the transaction ends.

        Who decides many rounds at a time would else be faster, again and again, than who computes.
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
