"""Rows of access tokens and of ended sessions: beside `storage.rows`, the statements `access` needs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, insert, select, update

from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.tables import access_tokens, ended_sessions

LISTED_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class StoredToken:
    """One row of the access tokens."""

    token_id: str
    name: str
    secret_digest: bytes
    role: str
    cohorts: bytes | None
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    team: str | None = None


def insert_token(connection: Connection, token: StoredToken) -> None:
    """Insert a token."""
    connection.execute(insert(access_tokens).values(**vars(token)))


def token_row(connection: Connection, token_id: str) -> StoredToken | None:
    """Return a token, None if there is none."""
    row = connection.execute(select(access_tokens).where(access_tokens.c.token_id == token_id)).one_or_none()
    return None if row is None else _token_from(row)


def token_now(connection: Connection, token_id: str) -> tuple[StoredToken, datetime] | None:
    """Return a token and the database's clock, by one statement; None if there is no such token."""
    row = connection.execute(_token_now(connection.dialect.name), {"id": token_id}).one_or_none()
    if row is None:
        return None
    *values, now = row
    return StoredToken(**dict(zip(access_tokens.c.keys(), values, strict=True))), now


def token_rows(connection: Connection) -> list[StoredToken]:
    """Return the tokens in the order they were issued, revoked and expired ones included."""
    query = select(access_tokens).order_by(access_tokens.c.created_at, access_tokens.c.token_id)
    return [_token_from(row) for row in connection.execute(query.limit(LISTED_MAX))]


def mark_revoked(connection: Connection, token_id: str, moment: datetime) -> None:
    """Mark a token as revoked from `moment` on, unless it is revoked already."""
    unrevoked = and_(access_tokens.c.token_id == token_id, access_tokens.c.revoked_at.is_(None))
    connection.execute(update(access_tokens).where(unrevoked).values(revoked_at=moment))


def expire_by(connection: Connection, token_id: str, moment: datetime) -> None:
    """Make a token expire at `moment`, unless it expires before."""
    later = and_(access_tokens.c.token_id == token_id, access_tokens.c.expires_at > moment)
    connection.execute(update(access_tokens).where(later).values(expires_at=moment))


def insert_ended_session(connection: Connection, session_id: str, expires_at: datetime) -> bool:
    """Insert an ended session, and delete those that have expired; return whether it was not there yet."""
    expired = ended_sessions.c.expires_at <= engine.database_time(connection)
    connection.execute(delete(ended_sessions).where(expired))
    values = {"session_id": session_id, "expires_at": expires_at}
    return engine.insert_if_absent(connection, ended_sessions, values)


def is_ended_session(connection: Connection, session_id: str) -> bool:
    """Return whether a session was ended."""
    query = select(ended_sessions.c.session_id).where(ended_sessions.c.session_id == session_id)
    return connection.execute(query).first() is not None


@functools.cache
def _token_now(dialect_name: str) -> Select[Any]:
    query = select(*access_tokens.c, engine.clock(dialect_name).label("now"))
    return query.where(access_tokens.c.token_id == bindparam("id"))


def _token_from(row: Row[Any]) -> StoredToken:
    return StoredToken(**row._mapping)
