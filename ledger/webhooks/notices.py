"""Notices: which messages an entry of the feed is worth to a subscription, and their text (CloudEvents 1.0).

Each is a function of the entry, the one before it in its chain, and the subscription's filters. So the same
entry always gives the same notices, with the same identifiers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shuffle_ledger.ledger.answers.entries import Event
from shuffle_ledger.ledger.reports.listing import latest_entries
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.webhooks.subscriptions import Filters, NoticeKind

TYPE_PREFIX = "shuffle-ledger."
SOURCE_PREFIX = "urn:shuffle-ledger:"
# Entries that may say something; the feed leaves out the others.
SPENDING = (
    EntryKind.ADMITTED,
    EntryKind.SETTLED,
    EntryKind.CORRECTED,
    EntryKind.INCIDENT,
    EntryKind.BUDGET_CHANGED,
)
_OF_KIND: Mapping[NoticeKind, tuple[EntryKind, ...]] = {
    NoticeKind.REFUSED: (EntryKind.REFUSED,),
    NoticeKind.NEARLY_EXHAUSTED: SPENDING,
    NoticeKind.EXHAUSTED: SPENDING,
    NoticeKind.OVERSPENT: SPENDING[1:],
    NoticeKind.FROZEN: (EntryKind.FROZEN,),
    NoticeKind.CLOSED: (EntryKind.CLOSED,),
}
_WITH_REASON = (EntryKind.REFUSED, EntryKind.CLOSED)
# Entries that give one notice, whatever they say.
_SAID_ALONE: Mapping[EntryKind, NoticeKind] = {of[0]: kind for kind, of in _OF_KIND.items() if len(of) == 1}


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One event, as a subscription gets it."""

    kind: NoticeKind
    subject: str  # the cohort
    at: datetime
    data: Mapping[str, Any]  # JSON; an infinite bound is null

    def body(self, *, webhook_id: str, ledger_id: str) -> bytes:
        """Return the message: a CloudEvent in structured mode."""
        content = {
            "specversion": "1.0",
            "id": webhook_id,
            "source": SOURCE_PREFIX + ledger_id,
            "type": TYPE_PREFIX + self.kind,
            "subject": self.subject,
            "time": canonical.spelled_moment(self.at),
            "datacontenttype": "application/json",
            "data": self.data,
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")


def entry_kinds(filters: Filters) -> tuple[str, ...]:
    """Return the kinds of entries that may give a notice to a subscription."""
    found = {kind for notice in filters.kinds for kind in _OF_KIND[notice]}
    return tuple(str(kind) for kind in EntryKind if kind in found)


def notices_of(store: Store, event: Event, filters: Filters) -> list[Notice]:
    """Return the notices of an entry, in the order of `NoticeKind`."""
    body = EntryBody.from_bytes(event.canonical.encode("utf-8"))
    found = set(_kinds_of(store, body, filters))
    data = {
        "cohort": body.cohort,
        "sequence": body.sequence,
        "digest": event.digest,
        "entry": str(body.kind),
        "round_id": body.round_id,
        "actor": body.actor,
        "reason": str(body.details["reason"]) if body.kind in _WITH_REASON else None,
        "epsilon_budget": body.epsilon_budget,
        "delta_budget": body.delta_budget,
        "epsilon_spent_upper": body.spent.epsilon_upper_or_none,
    }
    more = {NoticeKind.NEARLY_EXHAUSTED: {"threshold": filters.threshold_of(body.cohort)}}
    return [
        Notice(kind=kind, subject=body.cohort, at=body.recorded_at, data={**data, **more.get(kind, {})})
        for kind in NoticeKind
        if kind in found and kind in filters.kinds
    ]


def _kinds_of(store: Store, body: EntryBody, filters: Filters) -> Iterator[NoticeKind]:
    if body.kind in _SAID_ALONE:
        yield _SAID_ALONE[body.kind]
    elif body.kind in SPENDING:
        if _overspends(body):
            yield NoticeKind.OVERSPENT
        before, now = _share(_previous(store, body)), _share(body)
        reached = {NoticeKind.NEARLY_EXHAUSTED: filters.threshold_of(body.cohort), NoticeKind.EXHAUSTED: 1.0}
        crossed = [kind for kind, share in reached.items() if before < share <= now]
        yield from crossed


def _overspends(body: EntryBody) -> bool:
    """Return whether an entry says that its cohort is overspent; every later charge says so again."""
    return bool(body.details.get("overspent", False))


def _previous(store: Store, body: EntryBody) -> EntryBody | None:
    found = latest_entries(store, body.cohort, limit=1, before=body.sequence)
    return found[0].content() if found else None


def _share(body: EntryBody | None) -> float:
    """Return the share of the budget that may be spent after an entry."""
    if body is None:
        return 0.0
    if not body.epsilon_budget > 0:
        return math.inf
    return body.spent.epsilon_upper / body.epsilon_budget
