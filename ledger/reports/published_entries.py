"""Entries as an outsider gets them: readable, with the exact bytes that their digests are made of."""

from __future__ import annotations

from shuffle_ledger.ledger.answers.entries import PublishedEntry, PublishedPage
from shuffle_ledger.ledger.reports.listing import EntryPage
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import LedgerEntry


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
