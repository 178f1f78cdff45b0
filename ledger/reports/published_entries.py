"""Entries as an outsider gets them: readable, with the exact bytes that their digests are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shuffle_ledger.ledger.reports.listing import EntryPage
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import LedgerEntry


@dataclass(frozen=True, kw_only=True)
class PublishedEntry:
    """One entry of a chain. `digest` is SHA-256 as `docs/http.md` says, over `canonical` and its place."""

    cohort: str
    sequence: int
    kind: str
    round_id: str | None
    previous_digest: str  # hexadecimal
    digest: str  # hexadecimal
    canonical: str  # the body's canonical bytes, which are UTF-8
    body: Mapping[str, object]  # the same, to read


@dataclass(frozen=True, kw_only=True)
class PublishedPage:
    """Consecutive entries of one chain."""

    entries: tuple[PublishedEntry, ...]
    after: int | None  # go on after this sequence; None: this was the end


def page_of(page: EntryPage) -> PublishedPage:
    """Return a page as outsiders get it; raises Damaged for a body that is not canonical."""
    return PublishedPage(entries=tuple(published(entry) for entry in page.entries), after=page.after)


def published(entry: LedgerEntry) -> PublishedEntry:
    """Return an entry as outsiders get it; raises Damaged for a body that is not canonical."""
    return PublishedEntry(
        cohort=entry.cohort,
        sequence=entry.sequence,
        kind=entry.kind,
        round_id=entry.round_id,
        previous_digest=entry.previous_digest.hex(),
        digest=entry.digest.hex(),
        body=canonical.decode(entry.body),
        canonical=entry.body.decode("utf-8"),
    )
