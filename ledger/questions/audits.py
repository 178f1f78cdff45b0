"""Questions of auditors: chains, their heads, their verification, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Field

from shuffle_ledger.ledger.answers.entries import CURSOR_PATTERN, PAGE_MAX
from shuffle_ledger.ledger.answers.heads import Head
from shuffle_ledger.ledger.questions.fields import (
    Body,
    CohortName,
    Digest,
    Document,
    Limit,
    Name,
    SequenceNumber,
    config,
    one_of_two,
)
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, check_signature, read_checkpoint
from shuffle_ledger.ledger.values.days import MOMENT_EXPECTED, check_day_of
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.saved_heads import SavedHeads, document_of_heads, saved_heads
from shuffle_ledger.ledger.values.texts import checked_text

if TYPE_CHECKING:
    from shuffle_ledger.ledger.evidence.statement_request import StatementWanted
    from shuffle_ledger.ledger.verification.number_checks import Numbers

KEPT_MAX = COHORTS_MAX = 1000


def _of_a_day(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(MOMENT_EXPECTED)
    check_day_of(value)
    return value


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value  # a parameter that occurs once


AnyMoment = Annotated[AwareDatetime, BeforeValidator(_of_a_day)]
Cohorts = Annotated[tuple[Name, ...] | None, Field(min_length=1, max_length=COHORTS_MAX)]


@dataclass(frozen=True, kw_only=True)
class ListEntries(Body):
    """Which entries of a chain to list."""

    cohort: CohortName
    after: Annotated[int, Field(ge=0, lt=1 << 62, description="Only entries behind this sequence.")] = 0
    limit: Limit = 100


@dataclass(frozen=True, kw_only=True)
class ListEvents(Body):
    """Which entries of all chains to list."""

    after: Annotated[
        str | None,
        Field(pattern=CURSOR_PATTERN, description="Go on behind this cursor, of an event or of a page."),
    ] = None
    limit: Limit = 100
    cohort: Annotated[
        str | None, Field(max_length=200, description="Only of this cohort and its windows.")
    ] = None
    kind: Annotated[
        tuple[EntryKind, ...],
        BeforeValidator(_several),
        Field(description="Only of this kind; may be repeated."),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ListHeads(Body):
    """Which heads to list: of one moment, or a page of them."""

    after: Annotated[
        str | None, Field(max_length=200, description="Only chains of names behind this one.")
    ] = None
    limit: Annotated[
        int | None, Field(ge=1, le=PAGE_MAX, description="How many at most; left out: 1000 behind `after`.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class VerifyCohort(Body):
    """Whose chain to replay."""

    cohort: CohortName


@dataclass(frozen=True, kw_only=True)
class VerifyChains(Body):
    """Which chains to replay, how many of their numbers to compute again, and what to compare them with."""

    cohort: Name | None = None
    numbers: Literal["sampled", "all"] = "sampled"
    against: Annotated[
        Document | None, Field(description="A checkpoint, or what `GET /v1/heads` answered.")
    ] = None
    public_key: Annotated[Digest | None, Field(description="The key that must have signed it.")] = None

    __pydantic_config__ = config(cohort="nz-phone", numbers="all")

    @classmethod
    def of(cls, cohort: str | None, *, against: SavedHeads | None, numbers: Numbers) -> Self:
        """Return the question; raises InvalidValue."""
        named = None if cohort is None else checked_text("cohort", cohort)
        kept: dict[str, Any] = {}
        if against is not None:
            kept["against"], trusted = document_of_heads(against)
            kept["public_key"] = trusted.hex() if trusted else None
        return cls(cohort=named, numbers=numbers, **kept)

    @property
    def cohorts(self) -> tuple[str, ...] | None:
        """The cohorts that it is about; None: all."""
        return None if self.cohort is None else (self.cohort,)

    def saved(self) -> SavedHeads | None:
        """Return what to compare with; raises InvalidValue, BadSignature."""
        trusted = bytes.fromhex(self.public_key) if self.public_key else None
        return None if self.against is None else saved_heads(self.against, trusted)


@dataclass(frozen=True, kw_only=True)
class LedgerStanding(Body):
    """The checkpoint that a new one is to follow, if there is one."""

    follows: Document | None = None

    __pydantic_config__ = config(follows=None)

    @classmethod
    def of(cls, *, follows: Checkpoint | None = None) -> Self:
        """Return the question."""
        return cls(follows=None if follows is None else follows.to_json())

    def earlier(self) -> Checkpoint | None:
        """Return the checkpoint; raises InvalidValue, BadSignature."""
        return _checkpoint(self.follows)


@dataclass(frozen=True, kw_only=True)
class KeptHead(Body):
    """The last entry of a chain, as kept outside of the ledger."""

    cohort: Name
    sequence: SequenceNumber
    digest: Digest


@dataclass(frozen=True, kw_only=True)
class MakeStatement(Body):
    """Which cohorts to state, as of when, and what changed since an entry or since heads that were kept."""

    cohorts: Cohorts = None
    as_of: Annotated[
        AnyMoment | SequenceNumber | None,
        Field(description="A moment with its zone, or an entry."),
        one_of_two("a time with its zone, as 2025-01-06T12:00:00Z, or an entry's sequence"),
    ] = None
    since: SequenceNumber | None = None
    kept: Annotated[tuple[KeptHead, ...], Field(max_length=KEPT_MAX)] = ()

    __pydantic_config__ = config(cohorts=["nz-phone"])

    @classmethod
    def of(cls, wanted: StatementWanted) -> Self:
        """Return the question."""
        kept = (KeptHead(cohort=name, **vars(head)) for name, head in wanted.kept)
        as_of: datetime | int | None = wanted.as_of
        return cls(cohorts=wanted.cohorts, as_of=as_of, since=wanted.since, kept=tuple(kept))

    def wanted(self, cohorts: Sequence[str] | None) -> StatementWanted:
        """Return the question, about cohorts by the names they are stored under."""
        from shuffle_ledger.ledger.evidence.statement_request import StatementWanted  # noqa: PLC0415 - few need it

        heads = tuple((each.cohort, Head(sequence=each.sequence, digest=each.digest)) for each in self.kept)
        names = None if cohorts is None else tuple(cohorts)
        return StatementWanted(cohorts=names, as_of=self.as_of, since=self.since, kept=heads)


@dataclass(frozen=True, kw_only=True)
class MakeBundle(Body):
    """Whose chains to put into the bundle, with which signed heads."""

    cohorts: Cohorts = None
    checkpoint: Annotated[Document | None, Field(description="Signed heads of a moment ago.")] = None

    __pydantic_config__ = config(cohorts=["nz-phone"])

    @classmethod
    def of(cls, cohorts: Sequence[str] | None, *, checkpoint: Checkpoint | None = None) -> Self:
        """Return the question."""
        signed = None if checkpoint is None else checkpoint.to_json()
        return cls(cohorts=None if cohorts is None else tuple(cohorts), checkpoint=signed)

    def signed(self) -> Checkpoint | None:
        """Return the checkpoint; raises InvalidValue, BadSignature."""
        return _checkpoint(self.checkpoint)


def _checkpoint(data: Mapping[str, Any] | None) -> Checkpoint | None:
    if data is None:
        return None
    checkpoint = read_checkpoint(data)
    check_signature(checkpoint, None)
    return checkpoint
