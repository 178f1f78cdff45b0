"""The connection to a ledger's database, its life, and the anchor that says whether it may be written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, Engine

from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.anchor import Anchor, Guard
from shuffle_ledger.ledger.storage.clocks import CLOCK_DIFFERENCE_MAX_SECONDS, Clocks
from shuffle_ledger.ledger.storage.cohort_locks import CohortTurns
from shuffle_ledger.ledger.storage.positions import Positions

if TYPE_CHECKING:
    from shuffle_ledger.ledger.settings import Settings

ERROR_LENGTH_MAX = 2000  # of a message that is stored
PAGE_ROWS = 500  # that are read at a time


class Database:
    """What all parts of the store have in common."""

    def __init__(self, engine: Engine, anchor: Anchor | None = None) -> None:
        """Use `connect` instead."""
        self._engine = engine
        self.clocks = Clocks(is_of_this_machine=not engines.is_postgresql(engine))
        self._guard = Guard(engine, anchor) if anchor else None
        self.turns = CohortTurns(engine)
        self.positions = Positions(engine)

    @classmethod
    def connect(
        cls,
        database_url: str,
        *,
        anchor: Anchor | None = None,
        clock_difference_max_seconds: float = CLOCK_DIFFERENCE_MAX_SECONDS,
    ) -> Self:
        """Return the store behind a database URL.

        With an anchor, a ledger that lacks what the anchor has seen is only read: whatever opens, registers
        or appends raises BehindCheckpoint. It raises ClockOff where the database's clock is further from this
        machine's than `clock_difference_max_seconds`, or as far behind the cohort's last entry.

        Raises:
            InvalidValue: the URL is of no supported database.
            SchemaError: the database is not initialised, or older or newer than this code.
        """
        engine = engines.connect(database_url)
        try:
            with engines.reading(engine) as connection:
                schema.check_revision(connection)
        except BaseException:
            engine.dispose()
            raise
        store = cls(engine, anchor)
        store.clocks = replace(store.clocks, difference_max_seconds=clock_difference_max_seconds)
        return store

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the store that the settings name; raises what `connect` raises."""
        return cls.connect(
            settings.database_url,
            anchor=Anchor.of(settings),
            clock_difference_max_seconds=settings.clock_difference_max_seconds,
        )

    @property
    def engine(self) -> Engine:
        """The database, for `access` and `reports.listing`, which read and write further rows."""
        return self._engine

    def check(self) -> None:
        """Raise SchemaError or Unavailable unless the database answers and has this code's schema."""
        with engines.reading(self._engine) as connection:
            schema.check_revision(connection)

    def check_anchor(self) -> None:
        """Raises BehindCheckpoint if there is an anchor and the ledger lacks one of its heads."""
        if self._guard is not None:
            self._guard.check()

    def check_clock(
        self,
        at: datetime,
        last: datetime | None = None,
        *,
        what: str = "",
        connection: Connection | None = None,
    ) -> None:
        """Raise ClockOff if the database's clock is implausible; see `Clocks.check`.

        `connection` is where the clock is read again, if it must be; None: on another one.
        """

        def read_again() -> datetime:
            if connection is not None:
                return engines.database_time(connection)
            with engines.reading_once(self._engine) as other:
                return engines.database_time(other)

        self.clocks.check(at, last, what=what, read_again=read_again)

    def close(self) -> None:
        """Close all connections."""
        self.turns.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()
