"""Entries as an outsider gets them, in pages of one chain and of the feed of all chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAGE_MAX = 1000  # entries of one page
CURSOR_PATTERN = r"^[1-9][0-9]{0,18}-[0-9a-f]{16}$"


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


@dataclass(frozen=True, kw_only=True)
class Event(PublishedEntry):
    """An entry in the feed."""

    cursor: str  # the feed goes on behind it


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """Consecutive events of the feed that were asked for."""

    events: tuple[Event, ...]
    after: str | None  # the cursor to go on after; None: the ledger has no entry yet
    more: bool  # there may be more now; false: this was the end of the feed
