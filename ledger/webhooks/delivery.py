"""Delivery: each subscription gets the notices of the feed one after the other, at least once.

A process locks a subscription in the database, sends the notices of the entries behind its cursor, and moves
the cursor behind each entry whose notices were taken. A message that fails is tried again later, a bounded
number of times; then the subscription is paused until somebody resumes it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from shuffle_ledger.ledger.errors import Conflict, LedgerError, TryAgain, Unavailable
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage import rows as ledger_rows
from shuffle_ledger.ledger.storage import webhooks as rows
from shuffle_ledger.ledger.storage.database import ERROR_LENGTH_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.webhooks import ATTEMPTS_MAX, StoredWebhook
from shuffle_ledger.ledger.webhooks import sending
from shuffle_ledger.ledger.webhooks.notices import entry_kinds, notices_of
from shuffle_ledger.ledger.webhooks.subscriptions import Filters, secret_of

BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS = 5.0, 3600.0
LOCK_SECONDS = 120.0  # longer than the notices of an entry and slow look-ups of the address take
TURN_SECONDS = 5.0  # of one subscription, then the others have theirs
PAGE_EVENTS = 100

Send = Callable[..., str | None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What one pass did."""

    sent: int
    failed: int  # messages that were not taken, and subscriptions for which none could be made
    paused: int  # subscriptions whose message failed for the last time


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
    counts = Counter[str]()
    waiting = deque(rows.due(store.engine))
    while waiting and not enough():
        locked = rows.lock(store.engine, waiting[0], seconds=LOCK_SECONDS)
        if locked is not None and _Walk(store, locked, send, enough, counts).take(key):
            waiting.append(waiting[0])
        waiting.popleft()
    return Delivered(sent=counts["sent"], failed=counts["failed"], paused=counts["paused"])


def backoff_seconds(attempts: int, *, chance: float | None = None) -> float:
    """Return the pause after a number of failed attempts: doubled each time up to an hour, with jitter.

    `chance`, from 0 to 1, stands in for the random number that takes up to half of it away.
    """
    longest = min(BACKOFF_FIRST_SECONDS * 2.0 ** (attempts - 1), BACKOFF_MAX_SECONDS)
    part = random.random() if chance is None else chance  # noqa: S311 - jitter, no secret
    return longest * (1 - part / 2)


class _LockLostError(Exception):
    """Another process delivers to the subscription by now."""


class _Walk:
    """What one process does with a subscription that it has locked."""

    def __init__(
        self,
        store: Store,
        webhook: StoredWebhook,
        send: Send,
        enough: Callable[[], bool],
        counts: Counter[str],
    ) -> None:
        self._store = store
        self._webhook = webhook
        self._send = send
        self._enough = enough
        self._ends = time.monotonic() + TURN_SECONDS
        self._counts = counts

    def take(self, key: str | None) -> bool:
        """Send what is due, until a message fails or the turn is over, and unlock; return whether there may
        be more."""
        try:
            return self._send_due(key)
        except _LockLostError:
            return False
        except (TryAgain, Unavailable):
            raise
        except LedgerError as error:  # a damaged entry, or a database that was put back to an earlier state
            advice = " Remove this webhook, and add it again." if isinstance(error, Conflict) else ""
            return self._fail(f"{error}{advice}")
        except Exception as error:  # noqa: BLE001 - an entry with wrong fields, say; it must not hold up the others
            _log.exception("webhook %s: no message could be made", self._webhook.subscription_id)
            return self._fail(f"{type(error).__name__}: {error}")
        finally:
            rows.change_locked(self._store.engine, self._webhook, seconds=0)

    def _send_due(self, key: str | None) -> bool:
        webhook = self._webhook
        secret = None if key is None else secret_of(key, webhook.subscription_id)
        if secret is None or not hmac.compare_digest(hashlib.sha256(secret).digest(), webhook.secret_digest):
            wrong = "not set here" if key is None else "another one than when the webhook was added"
            return self._fail(f"SHUFFLE_LEDGER_WEBHOOK_KEY is {wrong}")
        filters = Filters.from_bytes(webhook.filters)
        kinds = entry_kinds(filters)
        with engine.reading(self._store.engine) as connection:
            ledger_id = ledger_rows.ledger_id(connection)
        while True:
            after = self._webhook.cursor
            page = events_after(
                self._store, after=after, limit=PAGE_EVENTS, cohorts=filters.cohorts, kinds=kinds
            )
            self._keep()
            for event in page.events:
                notices = notices_of(self._store, event, filters)
                for notice in notices:
                    webhook_id = f"{webhook.subscription_id}.{event.cursor}.{notice.kind}"
                    body = notice.body(webhook_id=webhook_id, ledger_id=ledger_id)
                    error = self._send(webhook.url, secret, webhook_id=webhook_id, body=body)
                    if error is not None:
                        attempts = self._webhook.attempts + 1
                        return self._fail(f"message {webhook_id}: {error}", attempts=attempts)
                    self._counts["sent"] += 1
                if notices:
                    self._move(event.cursor)
                if self._is_over():
                    return True
            self._move(page.after)
            if not page.more or self._is_over():
                return page.more

    def _is_over(self) -> bool:
        return self._enough() or time.monotonic() >= self._ends

    def _move(self, cursor: str | None) -> None:
        """Move the cursor behind entries whose notices were taken: the subscription is well."""
        if cursor != self._webhook.cursor or self._webhook.failing_since is not None:
            self._keep(cursor=cursor, attempts=0, next_attempt_at=None, failing_since=None, last_error=None)

    def _fail(self, error: str, *, attempts: int | None = None) -> bool:
        """Have the message tried again later, or pause the subscription; return that nothing more is due now.

        `attempts`: how often the message has failed; None: as often as before, for none was sent.
        """
        counted = self._webhook.attempts if attempts is None else attempts
        with engine.reading(self._store.engine) as connection:
            now = engine.database_time(connection)
        try:
            self._keep(
                attempts=counted,
                next_attempt_at=now + timedelta(seconds=backoff_seconds(max(counted, 1))),
                failing_since=self._webhook.failing_since or now,
                last_error=error[:ERROR_LENGTH_MAX],
            )
        except _LockLostError:
            return False
        what = "paused" if counted >= ATTEMPTS_MAX else "failed"
        level = logging.ERROR if what == "paused" else logging.WARNING
        _log.log(level, "webhook %s %s: %s", self._webhook.subscription_id, what, error)
        self._counts[what] += 1
        return False

    def _keep(self, **values: object) -> None:
        """Change the subscription, and stay its holder from now on; raises `_LockLostError`."""
        kept = rows.change_locked(self._store.engine, self._webhook, seconds=LOCK_SECONDS, **values)
        if kept is None:
            raise _LockLostError
        self._webhook = kept
