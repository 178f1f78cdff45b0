"""Statements that are run often: given to the driver itself. PostgreSQL has them prepared.

SQLAlchemy's own work around a statement takes as long as the database's.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import Boolean, Connection, Select
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.ledger.storage import sessions
from shuffle_ledger.ledger.storage.tables import UtcDateTime


@dataclass(frozen=True, kw_only=True)
class _Spoken:
    text: str
    constants: Mapping[str, Any]
    read: Mapping[str, Callable[[Any], Any]]  # how columns are read that the driver returns otherwise


def one_or_none(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> Any:
    """Return the only row of a query, None if there is none. Its columns are attributes.

    Raises:
        DBAPIError: as a connection's own methods do.
    """
    found = every(connection, query, values)
    return found[0] if found else None


def every(
    connection: Connection, query: Select[Any], values: Mapping[str, Any], *, before: Sequence[str] = ()
) -> Sequence[Any]:
    """Return all rows of a query. Their columns are attributes; raises as `one_or_none`.

    `before`: statements of PostgreSQL that are run before it, in the same round trip.
    """
    spoken = _spoken(query, connection.dialect)
    fetched = functools.partial(_fetched, before=before)
    found = _heard(connection, spoken.text, {**spoken.constants, **values}, fetched)
    return [
        row._replace(**{name: read(getattr(row, name)) for name, read in spoken.read.items()})
        for row in found
    ]


def listed(connection: Connection, values: Sequence[str | int]) -> str:
    """Return a list as a parameter that `engine.is_one_of` looks into, or as an array of PostgreSQL."""
    return array(values) if connection.dialect.name == "postgresql" else json.dumps(values)


def moment(value: datetime) -> str:
    """Return a moment as SQLite has it: UTC, without its zone."""
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def array(values: Iterable[str | bytes | int | float | datetime | None]) -> str:
    """Return an array as PostgreSQL spells it, which takes the driver longer."""
    return "{" + ",".join(map(_spelled, values)) + "}"


def _spelled(value: str | bytes | float | datetime | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    return f'"{value.isoformat()}"' if isinstance(value, datetime) else str(value)


def run(connection: Connection, text: str, values: Mapping[str, Any], *, behind: Sequence[str] = ()) -> Any:
    """Run one statement in the database's own words and return its first row, None if there is none.

    `behind`: statements of PostgreSQL that are run in the same round trip, unless it fails.

    Raises:
        DBAPIError: as a connection's own methods do.
    """
    found = _heard(connection, text, values, functools.partial(_fetched, behind=behind))
    return found[0] if found else None


def change(connection: Connection, text: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Run one statement of SQLite for each of some rows, and return how many rows it changed; raises as
    `run`.
    """
    changed: int = _heard(connection, text, rows, _changed)
    return changed


def _heard(connection: Connection, text: str, values: Any, ask: Callable[[Any, str, Any], Any]) -> Any:
    driver: Any = connection.connection.driver_connection
    # SQLAlchemy's event listeners are called for these statements too.
    heard = connection.dispatch
    try:
        with closing(_cursor(driver)) as cursor:
            event = (connection, cursor, text, values, None, ask is _changed)
            if heard.before_cursor_execute:
                heard.before_cursor_execute(*event)
            found = ask(cursor, text, values)
            if heard.after_cursor_execute:
                heard.after_cursor_execute(*event)
            return found
    except connection.dialect.loaded_dbapi.Error as error:
        raise _as_sqlalchemy_says(connection, driver, error) from error


def _cursor(driver: Any) -> Any:
    if isinstance(driver, sqlite3.Connection):
        return driver.cursor()
    from psycopg.rows import namedtuple_row  # noqa: PLC0415 - SQLite needs no driver of PostgreSQL

    return driver.cursor(row_factory=namedtuple_row)


def _fetched(
    cursor: Any, text: str, values: Any, *, before: Sequence[str] = (), behind: Sequence[str] = ()
) -> list[Any]:
    if not isinstance(cursor, sqlite3.Cursor):
        # The end of a pipeline waits for all its statements and raises the first error among them.
        with cursor.connection.pipeline() if before or behind else nullcontext():
            for each in before:
                cursor.connection.execute(each)
            cursor.execute(text, values, prepare=True)
            for each in behind:
                cursor.connection.execute(each)
        fetched: list[Any] = cursor.fetchall()
        return fetched
    row = _row(tuple(column[0] for column in cursor.execute(text, values).description or ()))
    return [row(*found) for found in cursor]


def _changed(cursor: Any, text: str, rows: Sequence[Mapping[str, Any]]) -> int:
    count: int = cursor.executemany(text, rows).rowcount
    return count


@functools.cache
def _row(names: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple("Row", names)


def _as_sqlalchemy_says(connection: Connection, driver: Any, error: Any) -> DBAPIError:
    dialect = connection.dialect
    is_gone = dialect.is_disconnect(error, driver, None) or sessions.is_foreign(error)
    if is_gone:
        connection.invalidate(error)
    root = dialect.loaded_dbapi.Error
    found = DBAPIError.instance("", None, error, root, connection_invalidated=is_gone, dialect=dialect)
    return cast(DBAPIError, found)


@functools.cache
def _spoken(query: Select[Any], dialect: Any) -> _Spoken:
    named = dialect if dialect.name == "postgresql" else type(dialect)(paramstyle="named")
    compiled = query.compile(dialect=named)
    given = {name for name, bound in compiled.binds.items() if bound.required}
    kinds = {
        column.name: column.type.dialect_impl(dialect).result_processor(dialect, None)
        for column in query.selected_columns
        if isinstance(column.type, UtcDateTime | Boolean)
    }
    return _Spoken(
        text=str(compiled),
        constants={name: value for name, value in compiled.params.items() if name not in given},
        read={name: read for name, read in kinds.items() if read is not None},
    )
