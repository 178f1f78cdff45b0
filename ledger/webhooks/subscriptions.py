"""Subscriptions of webhooks: their addresses, the events that they get, and their secrets.

A secret is derived from `SHUFFLE_LEDGER_WEBHOOK_KEY` and the subscription's random identifier. The database
keeps its SHA-256 only, so a copy of the database signs nothing, and another key is noticed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from shuffle_ledger.accounting import exact_text
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.reports.events import end_of_feed
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage import webhooks as rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.webhooks import ATTEMPTS_MAX, SUBSCRIPTIONS_MAX, StoredWebhook
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.values.web_addresses import is_safe_url

THRESHOLD = 0.8  # share of a budget from which it is nearly exhausted
NAMES_MAX = 1000
_ID_BYTES = 8
_SECRET_DOMAIN = b"shuffle-ledger/webhook/1:"
_SECRET_PREFIX = "whsec_"  # noqa: S105 - as Standard Webhooks marks secrets


class NoticeKind(StrEnum):
    """The kinds of events that a subscription may get."""

    REFUSED = "refused"
    NEARLY_EXHAUSTED = "nearly_exhausted"
    EXHAUSTED = "exhausted"
    OVERSPENT = "overspent"
    FROZEN = "frozen"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The choice of events that a subscription gets."""

    kinds: tuple[NoticeKind, ...]
    cohorts: tuple[str, ...] | None  # with the periods of their windows; None: every cohort
    threshold: float  # share of a budget from which it is nearly exhausted
    thresholds: Mapping[str, float]  # in place of that one, by cohort

    @classmethod
    def from_bytes(cls, data: bytes) -> Filters:
        """Return the filters that `to_bytes` wrote."""
        content = canonical.decode(data)
        cohorts = content["cohorts"]
        return cls(
            kinds=tuple(NoticeKind(kind) for kind in content["kinds"]),
            cohorts=None if cohorts is None else tuple(cohorts),
            threshold=content["threshold"],
            thresholds=content["thresholds"],
        )

    def to_bytes(self) -> bytes:
        """Return the filters as they are stored."""
        content = {**vars(self), "kinds": [str(kind) for kind in self.kinds]}
        content["cohorts"] = None if self.cohorts is None else list(self.cohorts)
        return canonical.encode(content)

    def threshold_of(self, cohort: str) -> float:
        """Return the share from which a cohort's budget is nearly exhausted."""
        parent = self.thresholds.get(_parent(cohort), self.threshold)
        return self.thresholds.get(cohort, parent)


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A subscription as operators see it: all but the secret."""

    subscription_id: str
    url: str
    kinds: tuple[NoticeKind, ...]
    cohorts: tuple[str, ...] | None
    threshold: float
    thresholds: Mapping[str, float]
    created_by: str
    created_at: datetime
    attempts: int  # failed ones, of the message that is tried now
    paused: bool  # it failed too often: nothing is sent until the subscription is resumed
    next_attempt_at: datetime | None
    failing_since: datetime | None
    last_error: str | None


@dataclass(frozen=True, kw_only=True)
class NewSubscription:
    """A subscription with its secret, which is shown now and never again."""

    secret: str  # `whsec_` and base64
    subscription: Subscription


def subscribe(
    store: Store,
    key: str,
    *,
    url: str,
    actor: str,
    kinds: Collection[str] = (),
    cohorts: Collection[str] | None = None,
    threshold: float = THRESHOLD,
    thresholds: Mapping[str, float] | None = None,
    from_start: bool = False,
) -> NewSubscription:
    """Subscribe an address to events from now on; `from_start`: from the first entry of the ledger.

    Raises:
        InvalidValue: an address, kind, cohort or share that cannot be one.
        Conflict: there are as many subscriptions as may be.
    """
    filters = Filters(
        kinds=_checked_kinds(kinds),
        cohorts=None if cohorts is None else _checked_names(cohorts),
        threshold=_checked_share(threshold),
        thresholds={
            checked_text("cohort", name): _checked_share(share) for name, share in (thresholds or {}).items()
        },
    )
    subscription_id = secrets.token_hex(_ID_BYTES)
    secret = secret_of(key, subscription_id)
    cursor = None if from_start else end_of_feed(store)
    with engine.writing(store.engine) as connection:
        if len(rows.webhook_rows(connection)) >= SUBSCRIPTIONS_MAX:
            raise Conflict(f"there are {SUBSCRIPTIONS_MAX} subscriptions: remove one first")
        stored = StoredWebhook(
            subscription_id=subscription_id,
            url=checked_url(url),
            filters=filters.to_bytes(),
            secret_digest=hashlib.sha256(secret).digest(),
            created_by=checked_text("actor", actor),
            created_at=engine.database_time(connection),
            cursor=cursor,
        )
        rows.insert_webhook(connection, stored)
    written = _SECRET_PREFIX + base64.b64encode(secret).decode("ascii")
    return NewSubscription(secret=written, subscription=_public(stored))


def list_subscriptions(store: Store) -> list[Subscription]:
    """Return all subscriptions, in the order they were made."""
    with engine.reading(store.engine) as connection:
        return [_public(each) for each in rows.webhook_rows(connection)]


def unsubscribe(store: Store, subscription_id: str) -> None:
    """Remove a subscription; raises NotFound."""
    with engine.writing(store.engine) as connection:
        if not rows.delete_webhook(connection, subscription_id):
            raise NotFound(f"no webhook {subscription_id!r}")


def resume(store: Store, subscription_id: str) -> None:
    """Have a subscription go on from its cursor, with the next delivery and all attempts; raises NotFound."""
    with engine.writing(store.engine) as connection:
        if not rows.resume(connection, subscription_id):
            raise NotFound(f"no webhook {subscription_id!r}")


def secret_of(key: str, subscription_id: str) -> bytes:
    """Return the secret of a subscription, 32 bytes."""
    return hmac.new(key.encode("utf-8"), _SECRET_DOMAIN + subscription_id.encode(), hashlib.sha256).digest()


def checked_url(url: str) -> str:
    """Return an address that messages may be sent to.

    Raises:
        InvalidValue: it is not of HTTPS (HTTP on this machine only), or has a user or a fragment.
    """
    if not is_safe_url(url):
        expected = "an https:// address (http:// on this machine only) without a user and a fragment"
        raise InvalidValue(field="url", value=url, expected=expected)
    return url


def _checked_kinds(kinds: Collection[str]) -> tuple[NoticeKind, ...]:
    for kind in kinds:
        if kind not in set(NoticeKind):
            raise InvalidValue(field="kind", value=kind, expected="one of " + ", ".join(NoticeKind))
    return tuple(kind for kind in NoticeKind if not kinds or kind in kinds)


def _checked_names(cohorts: Collection[str]) -> tuple[str, ...]:
    names = tuple(sorted({checked_text("cohort", name) for name in cohorts}))
    if not 1 <= len(names) <= NAMES_MAX:
        raise InvalidValue(field="cohort", value=names, expected=f"1 to {NAMES_MAX} names of cohorts")
    return names


def _checked_share(share: float) -> float:
    if not 0 < share < 1:
        expected = f"a share of the budget between 0 and 1, such as {exact_text(THRESHOLD)}"
        raise InvalidValue(field="threshold", value=share, expected=expected)
    return float(share)


def _parent(cohort: str) -> str:
    return cohort.rpartition("@")[0]


def _public(stored: StoredWebhook) -> Subscription:
    return Subscription(
        subscription_id=stored.subscription_id,
        url=stored.url,
        **vars(Filters.from_bytes(stored.filters)),
        created_by=stored.created_by,
        created_at=stored.created_at,
        attempts=stored.attempts,
        paused=stored.attempts >= ATTEMPTS_MAX,
        next_attempt_at=stored.next_attempt_at,
        failing_since=stored.failing_since,
        last_error=stored.last_error,
    )
