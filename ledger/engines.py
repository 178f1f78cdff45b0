"""The one place that knows which database is underneath: connections, transactions, its clock, its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from ledger.errors import InvalidValue, TryAgain, Unavailable

LOCK_TIMEOUT_SECONDS = 10
STATEMENT_TIMEOUT_SECONDS = 60
POOL_SIZE = 8
_WRITE_OPTION = "shuffle_ledger_write"
# serialization failure, deadlock, lock not available, statement cancelled by its timeout
_POSTGRESQL_CONTENTION = frozenset({"40001", "40P01", "55P03", "57014"})
_SQLITE_CONTENTION = ("database is locked", "database table is locked", "database schema is locked")


def connect(database_url: str) -> Engine:
    """Return an engine for a SQLite file or a PostgreSQL database.

    Raises:
        InvalidValue: another kind of database, or one in memory, which would forget the ledger.
    """
    expected = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise InvalidValue(field="database_url", value=database_url, expected=expected) from error
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InvalidValue(
                field="database_url", value=shown, expected="a database file: one in memory forgets"
            )
        engine = create_engine(url, connect_args={"timeout": LOCK_TIMEOUT_SECONDS}, pool_size=POOL_SIZE)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.get_backend_name() == "postgresql" and url.drivername in ("postgresql", "postgresql+psycopg"):
        options = f"-c lock_timeout={LOCK_TIMEOUT_SECONDS}s -c statement_timeout={STATEMENT_TIMEOUT_SECONDS}s"
        psycopg_url = url.set(drivername="postgresql+psycopg")
        return create_engine(
            psycopg_url, connect_args={"options": options}, pool_size=POOL_SIZE, pool_pre_ping=True
        )
    raise InvalidValue(field="database_url", value=shown, expected=expected)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that sees one moment of the database throughout. Raises TryAgain, Unavailable."""
    with _translated_errors(), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that commits at the end, or leaves nothing. Raises TryAgain, Unavailable."""
    with _translated_errors(), engine.connect() as connection:
        # On SQLite the write lock is taken at the start: a reader that turns writer half-way may fail.
        connection.execution_options(**{_WRITE_OPTION: True})
        with connection.begin():
            yield connection


def database_time(connection: Connection) -> datetime:
    """Return the database's clock, UTC."""
    if connection.dialect.name == "sqlite":
        text = connection.execute(select(func.strftime("%Y-%m-%dT%H:%M:%f", "now"))).scalar_one()
        return datetime.fromisoformat(str(text)).replace(tzinfo=UTC)
    # clock_timestamp, not now(): the time of the statement, after any wait for a lock.
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def insert_if_absent(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; return whether it was inserted."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).values(**values).on_conflict_do_nothing()
    inserted = connection.execute(statement.returning(*table.primary_key.columns))
    return inserted.first() is not None


def _prepare_sqlite(dbapi_connection: Any, _record: Any) -> None:
    # None hands BEGIN to us: Python's driver would otherwise begin late, and never IMMEDIATE.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get(_WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if _is_contention(error):
            raise TryAgain("the database was busy for too long; nothing was changed, try again") from error
        if isinstance(error, OperationalError):
            raise Unavailable(f"the database cannot be used: {error.orig}") from error
        raise


def _is_contention(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) in _POSTGRESQL_CONTENTION:
        return True
    return isinstance(error, OperationalError) and any(text in str(error.orig) for text in _SQLITE_CONTENTION)
