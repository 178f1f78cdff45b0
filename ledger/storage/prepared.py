"""Statements that are spoken often: on PostgreSQL given to the driver, which has them prepared.

SQLAlchemy's own work around a statement takes as long as the database's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.ledger.storage import sessions
from shuffle_ledger.ledger.storage.tables import UtcDateTime


@dataclass(frozen=True, kw_only=True)
class _Spoken:
    text: str
    constants: Mapping[str, Any]
    moments: tuple[str, ...]  # columns that are read as UTC


def one_or_none(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> Any:
    """Return the only row of a query, None if there is none. Its columns are attributes.

    Raises:
        DBAPIError: as a connection's own methods do.
    """
    found = every(connection, query, values)
    return found[0] if found else None


def every(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> Sequence[Any]:
    """Return all rows of a query. Their columns are attributes; raises as `one_or_none`."""
    if connection.dialect.name != "postgresql":
        return connection.execute(query, values).all()
    spoken = _spoken(query, connection.dialect)
    found = _fetched(connection, spoken.text, {**spoken.constants, **values})
    if not spoken.moments:
        return found
    read = UtcDateTime().process_result_value
    return [
        row._replace(**{name: read(getattr(row, name), None) for name in spoken.moments}) for row in found
    ]


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


def run(connection: Connection, text: str, values: Mapping[str, Any]) -> Any:
    """Run one statement in PostgreSQL's own words and return its first row, None if there is none.

    Raises:
        DBAPIError: as a connection's own methods do.
    """
    found = _fetched(connection, text, values)
    return found[0] if found else None


def _fetched(connection: Connection, text: str, values: Mapping[str, Any]) -> list[Any]:
    from psycopg.rows import namedtuple_row  # noqa: PLC0415 - SQLite needs no driver of PostgreSQL

    driver: Any = connection.connection.driver_connection
    # SQLAlchemy's event listeners are called for these statements too.
    heard = connection.dispatch
    try:
        with driver.cursor(row_factory=namedtuple_row) as cursor:
            told = (connection, cursor, text, values, None, False)
            if heard.before_cursor_execute:
                heard.before_cursor_execute(*told)
            found: list[Any] = cursor.execute(text, values, prepare=True).fetchall()
            if heard.after_cursor_execute:
                heard.after_cursor_execute(*told)
            return found
    except connection.dialect.loaded_dbapi.Error as error:
        raise _as_sqlalchemy_says(connection, driver, error) from error


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
    compiled = query.compile(dialect=dialect)
    given = {name for name, bound in compiled.binds.items() if bound.required}
    return _Spoken(
        text=str(compiled),
        constants={name: value for name, value in compiled.params.items() if name not in given},
        moments=tuple(
            column.name for column in query.selected_columns if isinstance(column.type, UtcDateTime)
        ),
    )
