"""The connection to a ledger's database, its life, and the anchor that says whether it may be written."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sqlalchemy import Engine

from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.anchor import Anchor, Guard
from shuffle_ledger.ledger.storage.cohort_locks import Turns
from shuffle_ledger.ledger.storage.positions import Positions

ERROR_LENGTH_MAX = 2000  # of a message that is stored
PAGE_ROWS = 500  # that are read at a time


class Database:
    """What all parts of the store have in common."""

    def __init__(self, engine: Engine, anchor: Anchor | None = None) -> None:
        """Use `connect` instead."""
        self._engine = engine
        self._guard = Guard(engine, anchor) if anchor else None
        self.turns = Turns(engine)
        self.positions = Positions(engine)

    @classmethod
    def connect(cls, database_url: str, *, anchor: Anchor | None = None) -> Self:
        """Return the store behind a database URL.

        With an anchor, a ledger that lacks what the anchor has seen is only read: whatever opens, registers
        or appends raises BehindCheckpoint.

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
        return cls(engine, anchor)

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
