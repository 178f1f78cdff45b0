"""The one place that knows which database is underneath: connections, transactions, its clock, its errors."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Integer,
    LargeBinary,
    Table,
    Text,
    bindparam,
    collate,
    column,
    create_engine,
    event,
    func,
    select,
    table,
    type_coerce,
)
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from shuffle_ledger.ledger.errors import (
    AnswerLost,
    InvalidValue,
    Ruined,
    SchemaError,
    StayedLocked,
    TryAgain,
    Unavailable,
)
from shuffle_ledger.ledger.storage import prepared, sessions
from shuffle_ledger.ledger.storage.tables import UtcDateTime, rounds
from shuffle_ledger.ledger.storage.unusable import (
    hidden,
    is_no_database,
    is_ruined,
    problem_of_file,
    reason_for,
)

LOCK_TIMEOUT_SECONDS = 10
STATEMENT_TIMEOUT_SECONDS = 60
MIGRATION_TIMEOUT_SECONDS = 3600
POOL_SIZE = 8
PING_AFTER_SECONDS = 1.0
# Of the driver; seconds, but for the last, milliseconds.
_LOST_HOST = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_LAST_USE = "shuffle_ledger_last_use"
# Nearly all we ask for is found by a key. By statistics from when its table was small, the planner would read
# all of a table that has grown since, also where foreign keys and triggers look; no plan of ours is worth
# compiling, whatever it seems to cost then.
_BY_KEY = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off")
# Plans are made once for each session: arrays of parameters would have every statement planned again.
_BY_KEY["plan_cache_mode"] = "force_generic_plan"
# Promises of ours, whatever the database sets: who was slower reads again, where a stricter isolation would
# raise an error; what was answered survives a crash; and numbers, moments and names come as they were stored.
_AS_PROMISED = {
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "extra_float_digits": "1",
    "DateStyle": "ISO, MDY",
    "client_encoding": "UTF8",
}
CHANGED, REGISTERED, DECIDED = "the change was recorded", "the round was registered", "the round was decided"
INITIALISE = "run `shuffle-ledger init`, with the same --database-url if one was given"
_WRITE_OPTION = "shuffle_ledger_write"
_READ_OPTION = "shuffle_ledger_read"
_TURN_OPTION = "shuffle_ledger_turn"
_ALONE_OPTION = "shuffle_ledger_alone"  # on PostgreSQL: every statement is its own transaction
# serialization failure, deadlock, lock not available, statement cancelled by its timeout
_POSTGRESQL_CONTENTION = frozenset({"40001", "40P01", "55P03", "57014"})
# A standby, or made read-only by its operator; a role without the rights that the ledger needs.
_POSTGRESQL_OUT_OF_USE = frozenset({"25006", "42501"})
_POSTGRESQL_UNTRANSLATABLE = "22P05"  # the database's encoding lacks a character
_SQLITE_CONTENTION = ("database is locked", "database table is locked", "database schema is locked")


def connect(database_url: str, *, migrating: bool = False) -> Engine:
    """Return an engine for a SQLite file or a PostgreSQL database.

    `migrating` allows long statements, and makes a SQLite file that does not exist.

    Raises:
        InvalidValue: another kind of database, one in memory, which would forget the ledger, or a file that
            cannot be one.
        SchemaError: a SQLite file that does not exist; only `migrating` creates one.
    """
    expected = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        raise InvalidValue(field="database_url", value=hidden(database_url), expected=expected) from error
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InvalidValue(
                field="database_url", value=shown, expected="a database file: one in memory forgets"
            )
        if (problem := problem_of_file(url, creating=migrating)) is not None:
            if not migrating and not Path(url.database).exists():
                raise SchemaError(f"there is no ledger in {shown}: {problem}")
            expected, message = "a database file in a folder that exists", f"database_url {shown}: {problem}"
            raise InvalidValue(field="database_url", value=shown, expected=expected, message=message)
        if not migrating and not url.database.startswith("file:") and not Path(url.database).exists():
            # Opening would create an empty file that could be taken for a ledger.
            raise SchemaError(f"there is no ledger in {shown}: {INITIALISE}")
        engine = create_engine(url, connect_args={"timeout": LOCK_TIMEOUT_SECONDS}, pool_size=POOL_SIZE)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.get_backend_name() == "postgresql" and url.drivername in ("postgresql", "postgresql+psycopg"):
        statement_timeout = MIGRATION_TIMEOUT_SECONDS if migrating else STATEMENT_TIMEOUT_SECONDS
        settings = {
            "lock_timeout": str(1000 * LOCK_TIMEOUT_SECONDS),
            "statement_timeout": str(1000 * statement_timeout),
            **_AS_PROMISED,
            **({} if migrating else _BY_KEY),
        }
        # The driver begins nothing by itself: to switch that for one statement takes longer than to say it.
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={"autocommit": True, **_noticing_a_lost_host(url)},
            isolation_level="AUTOCOMMIT",
            pool_size=POOL_SIZE,
        )
        event.listen(engine, "do_connect", sessions.SessionOpening(settings))
        event.listen(engine, "handle_error", _leave_foreign_session)
        event.listen(engine, "begin", _begin_postgresql)
        event.listen(engine, "checkin", _note_use)
        event.listen(engine, "checkout", _ping_unused)
        return engine
    raise InvalidValue(field="database_url", value=shown, expected=expected)


def _noticing_a_lost_host(url: URL) -> dict[str, str]:
    """Return what makes a connection fail about a minute after its host fell silent, unless the address says
    otherwise: by the system's own settings that may take hours."""
    return {name: value for name, value in _LOST_HOST.items() if name not in url.query}


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that sees one moment of the database throughout. Raises TryAgain, Unavailable."""
    with _connected(engine) as connection, translated_errors(url=engine.url):
        connection.execution_options(**{_READ_OPTION: True})
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine, *, fact: str = CHANGED) -> Iterator[Connection]:
    """Yield a connection that commits at the end, or leaves nothing. Raises TryAgain, Unavailable.

    Where the answer is lost, the commit's perhaps, the error says that `fact` is not known; so below.
    """
    with _connected(engine) as connection, translated_errors(fact, url=engine.url):
        # On SQLite the write lock is taken at the start: a reader that turns writer half-way may fail.
        connection.execution_options(**{_WRITE_OPTION: True})
        with connection.begin():
            yield connection


@contextmanager
def reading_once(engine: Engine) -> Iterator[Connection]:
    """Yield a connection for one statement, which sees one moment by itself: no round trips around it."""
    with _connected(engine) as connection, translated_errors(url=engine.url), _alone(connection):
        yield connection


@contextmanager
def deciding(engine: Engine, *, fact: str = CHANGED, in_turn: bool = False) -> Iterator[Connection]:
    """Yield a connection on which to read, to decide quickly, and to write one statement or none.

    On SQLite all of it is one transaction, during which no other connection can write. On PostgreSQL each
    statement is a separate transaction: the data that was read may be outdated, and the write statement must
    check that. `in_turn`: of PostgreSQL too it is one transaction, which the first statement begins and the
    writing one commits, each in its round trip. If nothing is written, it is committed with the block.
    """
    with (
        _connected(engine) as connection,
        translated_errors(fact, url=engine.url),
        _alone(connection, write=True, in_turn=in_turn),
    ):
        yield connection


def is_in_turn(connection: Connection) -> bool:
    """Return whether the statements of a connection are one transaction, which they begin and commit."""
    return bool(connection.get_execution_options().get(_TURN_OPTION))


@contextmanager
def _connected(engine: Engine) -> Iterator[Connection]:
    with translated_errors(url=engine.url):
        connection = engine.connect()
    with connection:
        yield connection


@contextmanager
def _alone(connection: Connection, *, write: bool = False, in_turn: bool = False) -> Iterator[None]:
    if connection.dialect.name == "postgresql":
        connection.execution_options(**{_ALONE_OPTION: True, _TURN_OPTION: in_turn})
        yield
        if in_turn:
            _end_turn(connection)
    else:
        connection.execution_options(**{_WRITE_OPTION: write})
        with connection.begin():
            yield


def _end_turn(connection: Connection) -> None:
    """Commit a turn that wrote nothing: after a rollback the driver prepares all statements again."""
    driver: Any = connection.connection.driver_connection
    if driver.info.transaction_status:  # not idle: the statement that writes would have committed
        connection.exec_driver_sql("COMMIT")


def is_postgresql(engine: Engine) -> bool:
    """Return whether one statement may do everything at once: a round trip costs something there."""
    return engine.dialect.name == "postgresql"


def clock(dialect_name: str) -> ColumnElement[datetime]:
    """Return the database's clock as an expression, of a column type that reads as UTC."""
    if dialect_name == "sqlite":
        # In the format in which SQLAlchemy stores datetimes there; SQLite has milliseconds.
        now = func.strftime("%Y-%m-%d %H:%M:%f", "now", type_=Text()).concat("000")
        return type_coerce(now, UtcDateTime())
    # clock_timestamp, not now(): the time of the statement, after any wait for a lock.
    return type_coerce(func.clock_timestamp(), UtcDateTime())


def in_order(column: ColumnElement[str], dialect_name: str) -> ColumnElement[str]:
    """Return names to sort and compare by: in the order of their code points, as Python sorts them.

    A database's own order may depend on a language.
    """
    return column if dialect_name == "sqlite" else collate(column, "C")


def behind(name: ColumnElement[str], after: str) -> ColumnElement[bool]:
    """Return whether a name, in order as `in_order` gives it, is behind `after`."""
    return name > after.partition("\0")[0]  # names have no such character, and PostgreSQL takes none


def contains(column: ColumnElement[bytes], part: bytes, dialect_name: str) -> ColumnElement[bool]:
    """Return whether the bytes of a column contain some bytes, as an expression."""
    searched = func.instr if dialect_name == "sqlite" else func.pg_catalog.position
    return searched(column, part, type_=Integer()) > 0


def part_behind(
    column: ColumnElement[bytes], mark: bytes, length: int, dialect_name: str
) -> ColumnElement[bytes]:
    """Return the bytes of a column behind the first occurrence of a mark, as an expression."""
    searched = func.instr if dialect_name == "sqlite" else func.pg_catalog.position
    start = searched(column, bindparam(None, mark, type_=LargeBinary()), type_=Integer()) + len(mark)
    return func.substr(column, start, length, type_=LargeBinary())


def is_one_of(what: ColumnElement[str], name: str, dialect_name: str) -> ColumnElement[bool]:
    """Return whether a text is in a parameter that `prepared.listed` made, as an expression."""
    if dialect_name == "sqlite":
        return what.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))
    return what == func.any(bindparam(name, type_=ARRAY(Text())))


def waits() -> ColumnElement[int]:
    """Return how many locks a statement of PostgreSQL waits for, which another session may hold alone.

    Its parameters are `space` and `lines`. The locks end with the statement's transaction.
    """
    line = func.unnest(bindparam("lines", type_=ARRAY(Integer()))).column_valued("line")
    lock = func.pg_advisory_xact_lock_shared(bindparam("space", type_=Integer()), line)
    return select(func.count(lock)).scalar_subquery()


def next_registration(dialect_name: str) -> ColumnElement[int]:
    """Return the number of the next round to be registered, as an expression."""
    if dialect_name == "sqlite":
        # The number that SQLite itself would give the row. The write lock is held, so no other row gets it.
        given = select(func.max(column("seq", Integer))).where(column("name") == rounds.name)
        last = select(func.max(rounds.c.registration))
        numbers = (given.select_from(table("sqlite_sequence")), last)
        return func.max(*(func.coalesce(number.scalar_subquery(), 0) for number in numbers)) + 1
    return func.nextval(f"{rounds.name}_registration_seq", type_=BigInteger())


def database_time(connection: Connection) -> datetime:
    """Return the database's clock, UTC."""
    moment: datetime = connection.execute(select(clock(connection.dialect.name))).scalar_one()
    return moment


def insert_if_absent(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; return whether it was inserted."""
    return connection.execute(_if_absent(connection.dialect.name, table), values).first() is not None


@functools.cache
def _if_absent(dialect_name: str, table: Table) -> Executable:
    statement: Executable = insert_unless_taken(dialect_name, table).returning(*table.primary_key.columns)
    return statement


def insert_unless_taken(dialect_name: str, table: Table) -> Any:
    """Return a statement that inserts a row unless one with its key exists.

    Only the dialect of this database is imported: that of PostgreSQL takes long.
    """
    return import_module(f"sqlalchemy.dialects.{dialect_name}").insert(table).on_conflict_do_nothing()


def _note_use(_dbapi_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info[_LAST_USE] = time.monotonic()


def _ping_unused(dbapi_connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Ask a connection that was idle for a while whether it still lives; the pool replaces a dead one.

    Asking every time would cost a round trip for each of ours.
    """
    if time.monotonic() - record.info.get(_LAST_USE, math.inf) < PING_AFTER_SECONDS:
        return
    try:
        is_own = sessions.is_own(dbapi_connection, record)
    except Exception as error:
        raise DisconnectionError("the connection did not survive being idle") from error
    if not is_own:
        raise DisconnectionError("the connection lost its session while it was idle")


def _leave_foreign_session(context: ExceptionContext) -> None:
    """Have a connection replaced whose statement met a session that is not its own."""
    if sessions.is_foreign(context.original_exception):
        context.is_disconnect = True


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
    prepared.run(connection, "BEGIN IMMEDIATE" if write else "BEGIN", {})


def _begin_postgresql(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_ALONE_OPTION):
        return
    # Never READ WRITE: a database whose default is read-only must stay so for the ledger too.
    reads = options.get(_READ_OPTION)
    sessions.begin(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if reads else "BEGIN")


@contextmanager
def translated_errors(fact: str | None = None, *, url: URL | None = None) -> Iterator[None]:
    """Raise the ledger's errors in place of the driver's, naming the database at `url`. `fact`: what a
    statement in here may make true."""
    try:
        yield
    except PoolTimeout as error:
        raise TryAgain("no connection to the database came free; ask the same again") from error
    except DBAPIError as error:
        if sessions.is_foreign(error.orig):
            raise sessions.shared() from error
        if _is_contention(error):
            raise StayedLocked("the database was busy for too long; ask the same again") from error
        reason = " ".join(str(error.orig).split())
        if fact is not None and error.connection_invalidated:
            raise AnswerLost(fact, reason) from error
        said = reason if url is None else reason_for(url, reason)
        sqlstate = getattr(error.orig, "sqlstate", None)
        if is_ruined(reason, sqlstate):
            raise Ruined(f"the database cannot be used: {said}. Restore the ledger from a backup") from error
        if _is_out_of_use(error):
            raise Unavailable(f"the database cannot be used: {said}") from error
        if is_no_database(reason):
            raise SchemaError(f"there is no ledger in {said}") from error
        if sqlstate == _POSTGRESQL_UNTRANSLATABLE:
            expected = "characters that its encoding has; a database with encoding UTF8 has all of them"
            message = f"a text cannot be stored in the database, {said}: expected {expected}"
            raise InvalidValue(field="text", value=None, expected=expected, message=message) from error
        raise


def _is_out_of_use(error: DBAPIError) -> bool:
    # Not every connection that ends is an operational error: one that was idle in a transaction is not.
    ended = error.connection_invalidated or isinstance(error, OperationalError)
    return ended or getattr(error.orig, "sqlstate", None) in _POSTGRESQL_OUT_OF_USE


def _is_contention(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) in _POSTGRESQL_CONTENTION:
        return True
    return isinstance(error, OperationalError) and any(text in str(error.orig) for text in _SQLITE_CONTENTION)
