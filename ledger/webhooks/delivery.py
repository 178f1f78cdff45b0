"""Delivery: each subscription gets its messages one after the other, at least once.

A process claims a subscription in the database, sends the next message, and moves the subscription on when
the message was taken. A message that fails is tried again later, a bounded number of times; then it is kept
as a dead letter, and the next one is sent.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from shuffle_ledger.ledger.decisions.outcomes import cohorts_of
from shuffle_ledger.ledger.errors import Conflict, Damaged, LedgerError, TryAgain, Unavailable
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage import rows as ledger_rows
from shuffle_ledger.ledger.storage import webhooks as rows
from shuffle_ledger.ledger.storage.census import broken_chains
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.webhooks import DEAD, WAITING, StoredLetter, StoredWebhook
from shuffle_ledger.ledger.verification.verifier import without_names
from shuffle_ledger.ledger.webhooks import sending
from shuffle_ledger.ledger.webhooks.notices import Notice, entry_kinds, notices_of
from shuffle_ledger.ledger.webhooks.subscriptions import Filters, NoticeKind, secret_of

ATTEMPTS_MAX = 12  # of one message: about 2 hours, then it is a dead letter
BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS = 5.0, 3600.0
CLAIM_SECONDS = 120.0  # longer than an attempt and a slow look-up of the address take
TURN_SECONDS = 5.0  # of one subscription, then the others have theirs
PAGE_EVENTS = 100
PAGES_MAX = 100  # of the feed for one message; the next pass goes on
STATES_MAX = 1000  # stuck rounds, and broken chains, that are looked at

Send = Callable[..., str | None]

_log = logging.getLogger(__name__)

_WELL = {"trying": None, "attempts": 0, "next_attempt_at": None, "failing_since": None, "last_error": None}


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What one pass did."""

    sent: int
    failed: int  # messages that were not taken, and subscriptions for which none could be made
    given_up: int


@dataclass(frozen=True, kw_only=True)
class _Message:
    """The next message of a subscription, and how the subscription stands when it is done with it."""

    webhook_id: str
    kind: str
    subject: str
    body: bytes
    letter: bool = False  # it waits in the database; else it comes from the feed
    behind: Mapping[str, object] = field(default_factory=dict)  # columns of the subscription


def deliver(
    store: Store, key: str | None, *, enough: Callable[[], bool] = lambda: False, send: Send = sending.send
) -> Delivered:
    """Send what is due to every subscription that no other process delivers to, until `enough()`.

    They have turns of a few seconds, the one whose turn is longest ago first: a slow receiver with much to
    get does not keep the others waiting.

    Args:
        store: the ledger.
        key: what secrets are derived from; None: nothing is sent, and the subscriptions say why.
        enough: whether to begin no further message.
        send: sends one message, as `sending.send`.
    """
    counts = {"sent": 0, "failed": 0, "given_up": 0}
    done: list[str] = []
    while not enough():
        claim = secrets.token_hex(16)
        claimed = rows.claim_due(store.engine, claim, seconds=CLAIM_SECONDS, but=done)
        if claimed is None:
            break
        ends = time.monotonic() + TURN_SECONDS
        try:
            for what in _turn(store, key, claimed, send):
                counts[what] += 1
                if enough() or time.monotonic() >= ends:
                    break
            else:
                done.append(claimed.subscription_id)  # nothing more is due
        except (TryAgain, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 - an entry with wrong fields, say; it must not hold up the others
            _log.exception("webhook %s: no message could be made", claimed.subscription_id)
            _fail(store, claimed, f"{type(error).__name__}: {error}")
            counts["failed"] += 1
            done.append(claimed.subscription_id)
        finally:
            rows.release(store.engine, claimed)
    return Delivered(**counts)


def backoff_seconds(attempts: int, *, chance: float | None = None) -> float:
    """Return the pause after a number of failed attempts: doubled each time up to an hour, with jitter.

    `chance`, from 0 to 1, stands in for the random number that takes up to half of it away.
    """
    longest = min(BACKOFF_FIRST_SECONDS * 2.0 ** (attempts - 1), BACKOFF_MAX_SECONDS)
    part = random.random() if chance is None else chance  # noqa: S311 - jitter, no secret
    return longest * (1 - part / 2)


def _turn(store: Store, key: str | None, webhook: StoredWebhook, send: Send) -> Iterator[str]:
    """Yield what became of each message of a claimed subscription, until one fails or there is none."""
    secret = None if key is None else secret_of(key, webhook.subscription_id)
    if secret is None or not hmac.compare_digest(hashlib.sha256(secret).digest(), webhook.secret_digest):
        wrong = "not set here" if key is None else "another one than when the webhook was added"
        _fail(store, webhook, f"SHUFFLE_LEDGER_WEBHOOK_KEY is {wrong}")
        yield "failed"
        return
    filters = Filters.from_bytes(webhook.filters)
    _note_states(store, webhook, filters)
    current: StoredWebhook | None = webhook
    while current is not None:
        try:
            message = _next(store, current, filters)
        except (TryAgain, Unavailable):
            raise
        except LedgerError as error:  # a damaged entry, or a database that was put back to an earlier state
            advice = " Remove this webhook, and add it again." if isinstance(error, Conflict) else ""
            _fail(store, current, f"{error}{advice}")
            yield "failed"
            return
        if message is None:
            if current.failing_since is not None:  # by what is over now, and was not a message's
                with engine.writing(store.engine) as connection:
                    rows.change_claimed(connection, current, _WELL)
            return
        if not rows.keep_claim(store.engine, current, seconds=CLAIM_SECONDS):
            return
        error_text = send(webhook.url, secret, webhook_id=message.webhook_id, body=message.body)
        what, current = _after(store, current, message, error_text)
        yield what


def _after(
    store: Store, webhook: StoredWebhook, message: _Message, error: str | None
) -> tuple[str, StoredWebhook | None]:
    """Record how a message was taken: with an error, or None. Return what became of it, and the subscription
    as it goes on; None if it does not go on now."""
    if error is None:
        return "sent", _done(store, webhook, message)
    _log.warning("webhook %s: message %s failed: %s", webhook.subscription_id, message.webhook_id, error)
    attempts = 1 + (webhook.attempts if webhook.trying == message.webhook_id else 0)
    if attempts < ATTEMPTS_MAX:
        _fail(store, webhook, error, attempts=attempts, trying=message.webhook_id)
        return "failed", None
    return "given_up", _give_up(store, webhook, message, error)


def _next(store: Store, webhook: StoredWebhook, filters: Filters) -> _Message | None:
    """Return the next message: one that waits, else one of the feed; None if there is none now."""
    with engine.reading(store.engine) as connection:
        letter = rows.first_waiting(connection, webhook.subscription_id)
        ledger_id = ledger_rows.ledger_id(connection)
    if letter is not None:
        return _Message(
            webhook_id=letter.webhook_id,
            kind=letter.kind,
            subject=letter.subject,
            body=letter.body,
            letter=True,
        )
    kinds = entry_kinds(filters)
    cursor, done = webhook.cursor, webhook.done_of_next
    for _ in range(PAGES_MAX if kinds else 0):
        page = events_after(store, after=cursor, limit=PAGE_EVENTS, cohorts=filters.cohorts, kinds=kinds)
        for event in page.events:
            notices = notices_of(store, event, filters)
            if done < len(notices):
                behind = {"cursor": cursor, "done_of_next": done + 1}
                if done + 1 == len(notices):
                    behind = {"cursor": event.cursor, "done_of_next": 0}
                webhook_id = f"{webhook.subscription_id}.{event.cursor}.{notices[done].kind}"
                return _of_notice(notices[done], webhook_id, ledger_id, behind=behind)
            cursor, done = event.cursor, 0
        cursor = page.after
        if not page.more:
            break
    if cursor != webhook.cursor:
        with engine.writing(store.engine) as connection:
            rows.change_claimed(connection, webhook, {"cursor": cursor, "done_of_next": 0})
    return None


def _of_notice(notice: Notice, webhook_id: str, ledger_id: str, *, behind: Mapping[str, object]) -> _Message:
    return _Message(
        webhook_id=webhook_id,
        kind=notice.kind,
        subject=notice.subject,
        body=notice.body(webhook_id=webhook_id, ledger_id=ledger_id),
        behind=behind,
    )


def _done(store: Store, webhook: StoredWebhook, message: _Message) -> StoredWebhook | None:
    """Move a subscription on behind a message that was taken; None if its claim was lost meanwhile."""
    with engine.writing(store.engine) as connection:
        moved = rows.change_claimed(connection, webhook, {**_WELL, **message.behind})
        if moved is not None and message.letter:
            rows.delete_letter(connection, message.webhook_id)
        return moved


def _fail(
    store: Store, webhook: StoredWebhook, error: str, *, attempts: int = 0, trying: str | None = None
) -> None:
    """Have a message tried again later."""
    with engine.writing(store.engine) as connection:
        now = engine.database_time(connection)
        values = {
            "trying": trying,
            "attempts": attempts,
            "next_attempt_at": now + timedelta(seconds=backoff_seconds(attempts or 1)),
            "failing_since": webhook.failing_since or now,
            "last_error": rows.shortened_error(error),
        }
        rows.change_claimed(connection, webhook, values)


def _give_up(store: Store, webhook: StoredWebhook, message: _Message, error: str) -> StoredWebhook | None:
    """Keep a message as a dead letter, and move its subscription on, in one transaction."""
    with engine.writing(store.engine) as connection:
        values = {**message.behind, "trying": None, "attempts": 0, "last_error": rows.shortened_error(error)}
        moved = rows.change_claimed(connection, webhook, values)
        if moved is not None:
            letter = _letter(connection, webhook, message, status=DEAD, error=error)
            rows.insert_letters(connection, [letter])
    _log.error("webhook %s: message %s is a dead letter", webhook.subscription_id, message.webhook_id)
    return moved


def _letter(
    connection: Connection, webhook: StoredWebhook, message: _Message, *, status: str, error: str | None
) -> StoredLetter:
    return StoredLetter(
        webhook_id=message.webhook_id,
        subscription_id=webhook.subscription_id,
        kind=message.kind,
        subject=message.subject,
        body=message.body,
        status=status,
        written_at=engine.database_time(connection),
        last_error=None if error is None else rows.shortened_error(error),
    )


def _note_states(store: Store, webhook: StoredWebhook, filters: Filters) -> None:
    """Write a message for each stuck round and broken chain that began; forget those that ended."""
    with engine.reading(store.engine) as connection:
        at, known = engine.database_time(connection), rows.known_states(connection, webhook.subscription_id)
    lasting = {
        **(_stuck(store, filters, at) if NoticeKind.STUCK in filters.kinds else {}),
        **(_broken(store, filters) if NoticeKind.BROKEN in filters.kinds else {}),
    }
    began, ended = lasting.keys() - known, known - lasting.keys()
    if not began and not ended:
        return
    with engine.writing(store.engine) as connection:
        ledger_id = ledger_rows.ledger_id(connection)
        for kind, subject in sorted(ended):
            rows.delete_state(connection, webhook.subscription_id, kind, subject)
        for kind, subject in sorted(began):
            if rows.insert_state(connection, webhook.subscription_id, kind, subject):
                webhook_id = f"{webhook.subscription_id}.{secrets.token_hex(8)}.{kind}"
                message = _of_notice(lasting[kind, subject], webhook_id, ledger_id, behind={})
                letter = _letter(connection, webhook, message, status=WAITING, error=None)
                rows.insert_letters(connection, [letter])


def _stuck(store: Store, filters: Filters, at: datetime) -> dict[tuple[str, str], Notice]:
    found = {}
    for each in store.stuck(limit=STATES_MAX):
        try:
            cohorts = cohorts_of(each)
        except Damaged:  # whose it is, too, is not known for certain: told to who sees every cohort
            if filters.cohorts is not None:
                continue
            cohorts = (each.cohort,)
        if all(map(filters.sees, cohorts)):
            data: dict[str, Any] = {"round_id": each.round_id, "cohorts": list(cohorts)}
            data |= {"attempts": each.attempts, "last_error": each.last_error}
            notice = Notice(kind=NoticeKind.STUCK, subject=each.round_id, at=at, data=data)
            found[str(NoticeKind.STUCK), each.round_id] = notice
    return found


def _broken(store: Store, filters: Filters) -> dict[tuple[str, str], Notice]:
    found = {}
    with engine.reading(store.engine) as connection:
        broken = broken_chains(connection, limit=STATES_MAX)
    for each in broken:
        if filters.sees(each.cohort):
            problem = each.problem if filters.cohorts is None else without_names(each.problem or "")
            data = {"cohort": each.cohort, "problem": problem}
            notice = Notice(kind=NoticeKind.BROKEN, subject=each.cohort, at=each.verified_at, data=data)
            found[str(NoticeKind.BROKEN), each.cohort] = notice
    return found
