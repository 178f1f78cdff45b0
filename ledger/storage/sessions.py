"""Sessions of PostgreSQL: set up once they are open, read back, and refused where connections share them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from shuffle_ledger.ledger.errors import UnsafeSession

if TYPE_CHECKING:
    import psycopg

# A setting with the name that a connection gave its session. Another session has another name, or none.
NAME = "shuffle_ledger.session"
_NAME_BITS = 62
# Each step asks one of two connections what its session is called. A pooler that hands sessions on after
# every transaction gives both the same one, or one of them two in turn, whichever session it takes next.
_STEPS = (0, 1, 1, 0, 0, 1)
_UNKNOWN_STATEMENT = "26000"  # a prepared statement, and each session has its own
_UNKNOWN_SETTING = "42704"
_SHARED = (
    "connections to the database share its sessions: a pooler between them is in transaction or statement"
    " mode. The ledger needs a session of its own for each connection: set the pooler to session mode, or"
    " connect to PostgreSQL itself"
)


class SessionOpening:
    """Opens the connections of one engine."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Take settings as PostgreSQL itself spells their values, without units."""
        self._settings = settings
        self._comparing = threading.Lock()  # else many at once would need twice as many sessions

    def __call__(
        self, dialect: Any, record: ConnectionPoolEntry, arguments: Any, options: Mapping[str, Any]
    ) -> psycopg.Connection[Any]:
        """Open a connection whose session is its own and has our settings, as SQLAlchemy's `do_connect`.

        Settings are statements, not options at the start, which poolers refuse or ignore. Only where the
        server's process is not the one that answered at the start, something is between us.

        Raises:
            psycopg.Error: the database cannot be reached, or refuses a setting.
            UnsafeSession: a setting does not hold, or connections share sessions.
        """
        name = _new_name()
        connection = cast("psycopg.Connection[Any]", dialect.connect(*arguments, **options))
        try:
            process = self._set(connection, name)
            if process != connection.info.backend_pid:
                with self._comparing, closing(dialect.connect(*arguments, **options)) as other:
                    _compare(connection, name, other)
        except BaseException:
            connection.close()
            raise
        # Prepared statements are named by a counter: from a random start, no session has another's.
        connection._prepared._prepared_idx = secrets.randbits(_NAME_BITS)  # noqa: SLF001
        record.info[NAME] = name
        return connection

    def _set(self, connection: psycopg.Connection[Any], name: str) -> int:
        """Set the settings and read them back, in one round trip; return the server's process."""
        wanted = {**self._settings, NAME: name}
        setting = ", ".join(f"set_config('{each}', '{value}', false)" for each, value in wanted.items())
        known = ", ".join(f"'{each}'" for each in self._settings)
        reading = (
            f"SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({known})"  # noqa: S608 - ours
            f" UNION ALL SELECT '{NAME}', current_setting('{NAME}', true)"
            " UNION ALL SELECT 'process', pg_backend_pid()::text"
        )
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {setting}; {reading}".encode())
            cursor.nextset()
            found = dict(cursor.fetchall())
        for each, value in wanted.items():
            if found.get(each) != value:
                raise UnsafeSession(
                    f"the database's session has {each} = {found.get(each)!r}, although {value!r} was set;"
                    " the ledger does not work on it"
                )
        return int(found["process"])


def begin(connection: Connection, statement: str) -> None:
    """Begin a transaction, and see in the same round trip that the session is the connection's own.

    Raises:
        UnsafeSession: it is not.
    """
    try:
        # SHOW first: it takes no snapshot, so that `statement` may still choose an isolation level.
        found = connection.exec_driver_sql(f"SHOW {NAME}; {statement}").scalar()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _UNKNOWN_SETTING:
            raise
        found = None
    if found != connection.info.get(NAME):
        connection.invalidate()
        raise UnsafeSession(_SHARED)


def is_own(connection: psycopg.Connection[Any], record: ConnectionPoolEntry) -> bool:
    """Return whether a connection's session is the one it was opened with; raises psycopg.Error."""
    return _named(connection) == record.info.get(NAME)


def is_foreign(error: BaseException | None) -> bool:
    """Return whether a statement failed because it met another session than its connection's own."""
    return getattr(error, "sqlstate", None) == _UNKNOWN_STATEMENT


def shared() -> UnsafeSession:
    """Return the error that says that connections share sessions."""
    return UnsafeSession(_SHARED)


def _compare(connection: psycopg.Connection[Any], name: str, other: psycopg.Connection[Any]) -> None:
    other.autocommit = True
    other_name = _new_name()
    other.execute(f"SELECT set_config('{NAME}', '{other_name}', false)".encode())
    both = ((connection, name), (other, other_name))
    if any(_named(both[step][0]) != both[step][1] for step in _STEPS):
        raise shared()


def _named(connection: psycopg.Connection[Any]) -> str | None:
    row = connection.execute(f"SELECT current_setting('{NAME}', true)".encode()).fetchone()
    return row[0] if row else None


def _new_name() -> str:
    return secrets.token_hex(_NAME_BITS // 8)
