"""Rows of webhooks: subscriptions, and the lock under which one process at a time delivers to one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, insert, or_, select, update

from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.tables import webhooks

SUBSCRIPTIONS_MAX = 1000
ATTEMPTS_MAX = 12  # of one message: about 2 hours, then its subscription is paused


@dataclass(frozen=True, kw_only=True)
class StoredWebhook:
    """One row of the subscriptions."""

    subscription_id: str
    url: str
    filters: bytes
    secret_digest: bytes
    created_by: str
    created_at: datetime
    cursor: str | None = None
    attempts: int = 0
    next_attempt_at: datetime | None = None
    failing_since: datetime | None = None
    last_error: str | None = None
    locked_until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class WebhookCounts:
    """What an operator has to know of webhooks."""

    paused: int  # subscriptions whose message failed too often
    failing: int  # those, and subscriptions whose attempts have failed for longer than was asked for


def insert_webhook(connection: Connection, webhook: StoredWebhook) -> None:
    """Insert a subscription."""
    connection.execute(insert(webhooks).values(**vars(webhook)))


def webhook_rows(connection: Connection) -> list[StoredWebhook]:
    """Return the subscriptions in the order they were made."""
    query = select(webhooks).order_by(webhooks.c.created_at, webhooks.c.subscription_id)
    return [StoredWebhook(**row._mapping) for row in connection.execute(query.limit(SUBSCRIPTIONS_MAX))]


def delete_webhook(connection: Connection, subscription_id: str) -> bool:
    """Delete a subscription; return whether there was one."""
    this = webhooks.c.subscription_id == subscription_id
    return connection.execute(delete(webhooks).where(this)).rowcount == 1


def resume(connection: Connection, subscription_id: str) -> bool:
    """Have a subscription be due, with all its attempts; return whether there is one."""
    this = webhooks.c.subscription_id == subscription_id
    values = {"attempts": 0, "next_attempt_at": None}
    return connection.execute(update(webhooks).where(this).values(**values)).rowcount == 1


def due(engine: Engine) -> list[str]:
    """Return the identifiers of the subscriptions that may get a message now, the one that was locked longest
    ago first."""
    with engines.reading(engine) as connection:
        free = _is_free(engines.database_time(connection))
        order = (webhooks.c.locked_until.asc().nulls_first(), webhooks.c.created_at)
        query = select(webhooks.c.subscription_id).where(free).order_by(*order)
        return list(connection.execute(query).scalars())


def lock(engine: Engine, subscription_id: str, *, seconds: float) -> StoredWebhook | None:
    """Lock a subscription for some seconds; None if it is not due, or locked.

    Guarantee: by the database's clock, two processes never hold the same subscription at once. The end of a
    lock names its holder, for each is later than those before it.
    """
    with engines.writing(engine) as connection:
        now = engines.database_time(connection)
        this = and_(webhooks.c.subscription_id == subscription_id, _is_free(now))
        values = {"locked_until": now + timedelta(seconds=seconds)}
        if connection.execute(update(webhooks).where(this).values(**values)).rowcount != 1:
            return None
        found = select(webhooks).where(webhooks.c.subscription_id == subscription_id)
        return StoredWebhook(**connection.execute(found).one()._mapping)


def change_locked(
    engine: Engine, webhook: StoredWebhook, *, seconds: float, **values: object
) -> StoredWebhook | None:
    """Change a subscription, and let its lock last some seconds from now; None, and no change, if the lock is
    another process's by now."""
    with engines.writing(engine) as connection:
        until = engines.database_time(connection) + timedelta(seconds=seconds)
        held = webhooks.c.locked_until == webhook.locked_until
        this = and_(webhooks.c.subscription_id == webhook.subscription_id, held)
        changed = {**values, "locked_until": until}
        if connection.execute(update(webhooks).where(this).values(**changed)).rowcount != 1:
            return None
        return StoredWebhook(**{**vars(webhook), **changed})


def webhook_counts(engine: Engine, *, failing_seconds: float) -> WebhookCounts:
    """Count subscriptions that are paused, and those that are or have failed for longer than this."""
    with engines.reading(engine) as connection:
        before = engines.database_time(connection) - timedelta(seconds=failing_seconds)
        paused = webhooks.c.attempts >= ATTEMPTS_MAX
        failing = or_(paused, webhooks.c.failing_since <= before)
        counts = select(func.count().filter(paused), func.count().filter(failing)).select_from(webhooks)
        found = connection.execute(counts).one()
        return WebhookCounts(paused=found[0], failing=found[1])


def _is_free(now: datetime) -> ColumnElement[bool]:
    unlocked = or_(webhooks.c.locked_until.is_(None), webhooks.c.locked_until <= now)
    is_due = or_(webhooks.c.next_attempt_at.is_(None), webhooks.c.next_attempt_at <= now)
    return and_(unlocked, is_due, webhooks.c.attempts < ATTEMPTS_MAX)
