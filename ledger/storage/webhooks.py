"""Rows of webhooks: subscriptions, claims on them, and messages that wait or were given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, and_, delete, func, insert, or_, select, update

from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.database import ERROR_LENGTH_MAX
from shuffle_ledger.ledger.storage.tables import webhook_letters, webhook_states, webhooks

SUBSCRIPTIONS_MAX = 1000
DEAD_LISTED_MAX = 100  # of one subscription
WAITING, DEAD = "waiting", "dead"


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
    done_of_next: int = 0
    trying: str | None = None
    attempts: int = 0
    next_attempt_at: datetime | None = None
    failing_since: datetime | None = None
    last_error: str | None = None
    claim: str | None = None
    claimed_until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class StoredLetter:
    """A message that waits, or that was given up."""

    webhook_id: str
    subscription_id: str
    kind: str
    subject: str
    body: bytes
    status: str
    written_at: datetime
    last_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class WebhookCounts:
    """What an operator has to know of webhooks."""

    dead: int  # messages that were given up
    failing: int  # subscriptions whose attempts have failed for longer than was asked for


def insert_webhook(connection: Connection, webhook: StoredWebhook) -> None:
    """Insert a subscription."""
    connection.execute(insert(webhooks).values(**vars(webhook)))


def webhook_rows(connection: Connection) -> list[StoredWebhook]:
    """Return the subscriptions in the order they were made."""
    query = select(webhooks).order_by(webhooks.c.created_at, webhooks.c.subscription_id)
    return [StoredWebhook(**row._mapping) for row in connection.execute(query.limit(SUBSCRIPTIONS_MAX))]


def webhook_row(connection: Connection, subscription_id: str) -> StoredWebhook | None:
    """Return a subscription, None if there is none."""
    query = select(webhooks).where(webhooks.c.subscription_id == subscription_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else StoredWebhook(**row._mapping)


def delete_webhook(connection: Connection, subscription_id: str) -> bool:
    """Delete a subscription with its messages; return whether there was one."""
    for table in (webhook_letters, webhook_states):
        connection.execute(delete(table).where(table.c.subscription_id == subscription_id))
    gone = connection.execute(delete(webhooks).where(webhooks.c.subscription_id == subscription_id))
    return gone.rowcount == 1


def claim_due(engine: Engine, claim: str, *, seconds: float, but: Collection[str]) -> StoredWebhook | None:
    """Claim a subscription, but for some, that is due and that no other process delivers to: the one that was
    released longest ago.

    Guarantee: by the database's clock, two processes never hold the same subscription at once.
    """
    with engines.writing(engine) as connection:
        now = engines.database_time(connection)
        free = _is_free(now)
        query = select(webhooks.c.subscription_id).where(free, webhooks.c.subscription_id.not_in(but))
        order = (webhooks.c.claimed_until.asc().nulls_first(), webhooks.c.created_at)
        for subscription_id in connection.execute(query.order_by(*order)).scalars().all():
            this = and_(webhooks.c.subscription_id == subscription_id, free)
            values = {"claim": claim, "claimed_until": now + timedelta(seconds=seconds)}
            if connection.execute(update(webhooks).where(this).values(**values)).rowcount == 1:
                return webhook_row(connection, subscription_id)
    return None


def keep_claim(engine: Engine, webhook: StoredWebhook, *, seconds: float) -> bool:
    """Make a claim last from now; return whether it was still held."""
    with engines.writing(engine) as connection:
        until = engines.database_time(connection) + timedelta(seconds=seconds)
        return _changed(connection, webhook, {"claimed_until": until})


def release(engine: Engine, webhook: StoredWebhook) -> None:
    """End a claim, if it is still held."""
    with engines.writing(engine) as connection:
        now = engines.database_time(connection)
        _changed(connection, webhook, {"claim": None, "claimed_until": now})


def change_claimed(
    connection: Connection, webhook: StoredWebhook, values: Mapping[str, object]
) -> StoredWebhook | None:
    """Change a claimed subscription; None, and no change, if the claim is another process's by now."""
    if not _changed(connection, webhook, values):
        return None
    return webhook_row(connection, webhook.subscription_id)


def insert_letters(connection: Connection, letters: Sequence[StoredLetter]) -> None:
    """Insert messages, or replace those that have the same identifiers."""
    for letter in letters:
        delete_letter(connection, letter.webhook_id)
        connection.execute(insert(webhook_letters).values(**vars(letter)))


def delete_letter(connection: Connection, webhook_id: str) -> None:
    """Delete a message, if it is there."""
    connection.execute(delete(webhook_letters).where(webhook_letters.c.webhook_id == webhook_id))


def first_waiting(connection: Connection, subscription_id: str) -> StoredLetter | None:
    """Return the message that waits longest; None if none waits."""
    of = and_(webhook_letters.c.subscription_id == subscription_id, webhook_letters.c.status == WAITING)
    order = (webhook_letters.c.written_at, webhook_letters.c.webhook_id)
    row = connection.execute(select(webhook_letters).where(of).order_by(*order).limit(1)).one_or_none()
    return None if row is None else StoredLetter(**row._mapping)


def dead_letters(connection: Connection, subscription_id: str) -> list[StoredLetter]:
    """Return the first messages of a subscription that were given up, in order."""
    of = and_(webhook_letters.c.subscription_id == subscription_id, webhook_letters.c.status == DEAD)
    order = (webhook_letters.c.written_at, webhook_letters.c.webhook_id)
    query = select(webhook_letters).where(of).order_by(*order).limit(DEAD_LISTED_MAX)
    return [StoredLetter(**row._mapping) for row in connection.execute(query)]


def revive(connection: Connection, name: str) -> int:
    """Let messages that were given up wait again: that of an identifier, or all of a subscription."""
    named = or_(webhook_letters.c.webhook_id == name, webhook_letters.c.subscription_id == name)
    dead = and_(named, webhook_letters.c.status == DEAD)
    of = select(webhook_letters.c.subscription_id).where(dead)
    connection.execute(
        update(webhooks).where(webhooks.c.subscription_id.in_(of)).values(next_attempt_at=None, attempts=0)
    )
    return connection.execute(update(webhook_letters).where(dead).values(status=WAITING)).rowcount


def known_states(connection: Connection, subscription_id: str) -> set[tuple[str, str]]:
    """Return the kinds and subjects of lasting states that a subscription has been told of."""
    query = select(webhook_states.c.kind, webhook_states.c.subject)
    found = connection.execute(query.where(webhook_states.c.subscription_id == subscription_id))
    return {(row.kind, row.subject) for row in found}


def insert_state(connection: Connection, subscription_id: str, kind: str, subject: str) -> bool:
    """Insert a lasting state; return whether it was not there yet."""
    values: dict[str, Any] = {"subscription_id": subscription_id, "kind": kind, "subject": subject}
    return engines.insert_if_absent(connection, webhook_states, values)


def delete_state(connection: Connection, subscription_id: str, kind: str, subject: str) -> None:
    """Delete a lasting state that ended."""
    this = and_(
        webhook_states.c.subscription_id == subscription_id,
        webhook_states.c.kind == kind,
        webhook_states.c.subject == subject,
    )
    connection.execute(delete(webhook_states).where(this))


def webhook_counts(engine: Engine, *, failing_seconds: float) -> WebhookCounts:
    """Count messages that were given up, and subscriptions that have failed for longer than this."""
    with engines.reading(engine) as connection:
        before = engines.database_time(connection) - timedelta(seconds=failing_seconds)
        dead = select(func.count()).select_from(webhook_letters).where(webhook_letters.c.status == DEAD)
        failing = select(func.count()).select_from(webhooks).where(webhooks.c.failing_since <= before)
        return WebhookCounts(
            dead=int(connection.execute(dead).scalar_one()),
            failing=int(connection.execute(failing).scalar_one()),
        )


def shortened_error(error: str) -> str:
    """Return an error as it is stored."""
    return error[:ERROR_LENGTH_MAX]


def _is_free(now: datetime) -> Any:
    unclaimed = or_(webhooks.c.claimed_until.is_(None), webhooks.c.claimed_until <= now)
    due = or_(webhooks.c.next_attempt_at.is_(None), webhooks.c.next_attempt_at <= now)
    return and_(unclaimed, due)


def _changed(connection: Connection, webhook: StoredWebhook, values: Mapping[str, object]) -> bool:
    this = and_(webhooks.c.subscription_id == webhook.subscription_id, webhooks.c.claim == webhook.claim)
    return connection.execute(update(webhooks).where(this).values(**values)).rowcount == 1
