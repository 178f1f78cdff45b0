"""Replaying one cohort's chain: does each entry follow from those before it and from the tables?"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from shuffle_ledger.accounting import AccountingError, ShuffledRound, is_known_policy
from shuffle_ledger.ledger.errors import Damaged, LedgerError
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.entries import (
    FIRST_SEQUENCE,
    GENESIS_DIGEST,
    EntryBody,
    EntryKind,
    LedgerEntry,
)
from shuffle_ledger.ledger.values.saved_heads import SavedHead
from shuffle_ledger.ledger.verification.fold import Fold

PROBLEMS_MAX = 100  # per cohort; the first ones matter
# What applying an entry may raise that says something else than the ledger writes.
_NOT_FOLLOWING = (
    LedgerError,
    AccountingError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
# What follows one of these may hold less than what came before.
ALTERS = (EntryKind.SETTLED, EntryKind.VOIDED, EntryKind.CORRECTED, EntryKind.INCIDENT)
_COLUMNS: Final[Mapping[str, Any]] = {
    "cohort": str, "sequence": int, "kind": str, "round_id": (str, type(None)),
    "body": bytes, "previous_digest": bytes, "digest": bytes,
}  # fmt: skip
_values_of = operator.attrgetter(*_COLUMNS)
_ABOUT_ROUNDS = (EntryKind.ADMITTED, EntryKind.REFUSED, *ALTERS)


class EntrySource(Protocol):
    """Where a chain is read from: the ledger's database, or a bundle on another computer."""

    def entries_of(self, cohort: str, /) -> Iterator[LedgerEntry]:
        """Yield a cohort's entries in order."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is not as the ledger promises."""

    sequence: int | None  # the entry it is about; None when it is about the cohort or a table
    what: str


@dataclass(frozen=True, kw_only=True)
class ReplayedEntry:
    """The state after an entry, for the check of its numbers."""

    sequence: int
    body: EntryBody
    held: Mapping[ShuffledRound, int]  # as `of_one_user`
    candidate: Mapping[ShuffledRound, int] | None  # of a refused round: what was asked for
    promised: float  # the epsilon that must hold
    filtered: bool = False  # filters decided: what is spent is their reading, not the composition of `held`


def of_one_user(held: Mapping[ShuffledRound, int], most: int | None) -> dict[ShuffledRound, int]:
    """Return rounds that one user may have taken part in, of those that are held: those with fewest reports,
    up to `most`. None: all of them."""
    if most is None:
        return {kind: count for kind, count in held.items() if count > 0}
    found: dict[ShuffledRound, int] = {}
    left = most
    for kind in sorted(held, key=lambda kind: (kind.reports, -kind.randomizer.epsilon0)):
        count = min(held[kind], left)
        left -= max(count, 0)
        if count > 0:
            found[kind] = count
    return found


@dataclass
class Replay:
    """The state while reading a chain from its beginning. `steps` must be used up before the rest is read."""

    store: EntrySource
    cohort: str
    kept: Iterable[SavedHead] = ()  # elsewhere, which the chain must contain
    problems: list[Problem] = field(default_factory=list)
    entries: int = 0
    head_sequence: int = 0
    head_digest: bytes = GENESIS_DIGEST
    head_body: EntryBody | None = None
    kinds: Counter[str] = field(default_factory=Counter)  # how many entries there are of each
    readable: bool = True  # every body so far could be read and applied, so `fold` means something
    fold: Fold = field(default_factory=Fold)

    def blame(self, sequence: int | None, what: str) -> None:
        """Note a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(sequence=sequence, what=what))

    def steps(self, chain: Iterable[LedgerEntry] | None = None) -> Iterator[ReplayedEntry]:
        """Yield the state after every entry that could be read and applied.

        Args:
            chain: the entries behind the last one that was replayed; None: all that the source has.
        """
        for entry in self.store.entries_of(self.cohort) if chain is None else chain:
            if not _is_typed(entry):
                self.blame(None, f"the row of entry {entry.sequence!r} holds values of other types")
                self.readable, self.head_body = False, None
                continue
            self._check_link(entry)
            previous, self.head_body = self.head_body, None
            self.entries += 1
            self.kinds[entry.kind] += 1
            self.head_sequence, self.head_digest = entry.sequence, entry.digest
            self._compare_kept(entry)
            try:
                body = self.head_body = entry.content(strict=not self.readable)
            except Damaged as error:
                self.blame(entry.sequence, f"the body cannot be read: {error}")
                self.readable = False
                continue
            try:
                self._check_alone(entry, body, previous)
                if not self.readable:
                    continue
                again = self.fold.follow(body, previous)
                for what in self.fold.wrong:
                    self.blame(entry.sequence, what)
                self._compare(entry, again.to_bytes())
            except _NOT_FOLLOWING as error:
                for what in self.fold.wrong:
                    self.blame(entry.sequence, what)
                self.blame(entry.sequence, f"the entry does not follow from those before it: {error}")
                self.readable = False
                continue
            yield ReplayedEntry(
                sequence=entry.sequence,
                body=body,
                held=of_one_user(self.fold.held, self.fold.rounds_of_one_user()),
                candidate=self._candidate(),
                filtered=self.fold.filtered,
                promised=self.fold.promised_epsilon,
            )

    def miss_kept(self) -> None:
        """Blame the chain, read to its end, for the heads beyond it that were kept elsewhere."""
        for head in self.kept:
            if head.sequence > self.head_sequence:
                ends = f"the chain now ends at {self.head_sequence}"
                self.blame(head.sequence, f"it was saved as a head and is missing: {ends}")

    def _compare(self, entry: LedgerEntry, again: bytes) -> None:
        """Compare an entry with what it must be, byte for byte, and name what differs first."""
        if again == entry.body:
            return
        place, value, expected = "", canonical.decode(entry.body), canonical.decode(again)
        while isinstance(value, Mapping) and isinstance(expected, Mapping):
            names = sorted({*value, *expected})
            parts = ((name, value.get(name, ...), expected.get(name, ...)) for name in names)
            name, value, expected = next(
                each
                for each in parts
                if ... in each or canonical.encode(each[1]) != canonical.encode(each[2])
            )
            place = f"{place}.{name}".lstrip(".")
        self.blame(entry.sequence, f"{place} does not follow from the entries before it")

    def _candidate(self) -> Mapping[ShuffledRound, int] | None:
        """Return what would be held with the round that the last entry refuses, if compositions decide."""
        asked = self.fold.asked
        return None if asked is None or self.fold.filtered else self.fold.held + Counter({asked: 1})

    def _compare_kept(self, entry: LedgerEntry) -> None:
        here = [head for head in self.kept if head.sequence == entry.sequence]
        if any(head.digest != entry.digest.hex() for head in here):
            self.blame(entry.sequence, "it differs from the head that was saved: the chain was rewritten")

    def _check_signed(self, body: EntryBody) -> None:
        for head in self.kept:
            signed_at = head.signed_at if head.sequence == body.sequence else None
            if signed_at is not None and body.recorded_at > signed_at:
                recorded, signed = map(canonical.spelled_moment, (body.recorded_at, signed_at))
                what = f"it was recorded at {recorded}, after its head was signed, at {signed}"
                self.blame(body.sequence, what)

    def _check_link(self, entry: LedgerEntry) -> None:
        expected = self.head_sequence + 1
        if entry.sequence != expected:
            self.blame(entry.sequence, f"entries {expected} to {entry.sequence - 1} are missing before it")
        elif entry.previous_digest != self.head_digest:
            self.blame(entry.sequence, "it does not continue from the digest of the entry before it")
        digest = entries.entry_digest(
            cohort=entry.cohort,
            sequence=entry.sequence,
            previous_digest=entry.previous_digest,
            body=entry.body,
        )
        if digest != entry.digest:
            self.blame(entry.sequence, "its digest is not that of its content: the entry was changed")

    def _check_alone(self, entry: LedgerEntry, body: EntryBody, previous: EntryBody | None) -> None:
        """Check what an entry says beside its budget: its place, its author, its moment and its rules."""
        stated = (body.cohort, body.sequence, str(body.kind), body.round_id)
        if stated != (entry.cohort, entry.sequence, entry.kind, entry.round_id):
            self.blame(entry.sequence, "its columns (cohort, sequence, kind, round) differ from its body")
        if type(body.sequence) is not int:
            self.blame(entry.sequence, "its sequence is no whole number")
        if (body.round_id is not None) is not (body.kind in _ABOUT_ROUNDS):
            what = "it names a round where it is about the cohort, or none where it is about a round"
            self.blame(entry.sequence, what)
        if type(body.actor) is not str or not body.actor:
            self.blame(entry.sequence, "it does not name who acted")
        policy = body.numerical_policy
        if type(policy) is not str or not is_known_policy(policy):
            self.blame(entry.sequence, f"no version known here has numerical policy {policy!r}")
        self._check_signed(body)
        if body.sequence == FIRST_SEQUENCE and body.kind is not EntryKind.OPENED:
            self.blame(body.sequence, "a chain begins with the entry that opened the cohort")
        if previous is not None and body.recorded_at < previous.recorded_at:
            self.blame(body.sequence, "it was recorded before the entry before it: time goes backwards")


def _is_typed(entry: LedgerEntry) -> bool:
    """Whether a row's values have their columns' types: SQLite takes any value in any column."""
    return all(map(isinstance, _values_of(entry), _COLUMNS.values()))
