"""What auditors' requests may say; see `api.schemas.requests`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
)

from shuffle_ledger.ledger.api.schemas.requests import DIGEST_PATTERN, Body, Name, one_of_two, whole
from shuffle_ledger.ledger.checkpoints.saved_heads import SavedHeads, saved_heads
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted
from shuffle_ledger.ledger.reports.budgets import Head
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, check_signature, read_checkpoint
from shuffle_ledger.ledger.values.days import check_day_of

KEPT_MAX = COHORTS_MAX = 1000
SequenceNumber = Annotated[int, Field(ge=1, le=10**15), BeforeValidator(whole)]


def _of_a_day(value: object) -> object:
    if isinstance(value, str):
        check_day_of(value)
    return value


Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_of_a_day)]
Cohorts = Annotated[list[Name] | None, Field(min_length=1, max_length=COHORTS_MAX)]


class VerifyChains(Body):
    """Which chains to replay, how many of their numbers to compute again, and what to compare them with."""

    cohort: Name | None = None
    entries: Annotated[
        Literal["new", "all"],
        Field(
            description="`new`: only those behind the position that the scheduler verified and signed last,"
            " if the server trusts its key; `verified_before` says which. All with `against` or all numbers."
        ),
    ] = "all"
    numbers: Literal["sampled", "all"] = "sampled"
    against: Annotated[
        dict[str, Any] | None, Field(description="A checkpoint, or what `GET /v1/heads` answered.")
    ] = None
    public_key: Annotated[
        str | None, Field(pattern=DIGEST_PATTERN, description="The key that must have signed it.")
    ] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"cohort": "nz-phone", "numbers": "all"}]})

    def saved(self) -> SavedHeads | None:
        """Return what to compare with; raises InvalidValue, BadSignature."""
        trusted = bytes.fromhex(self.public_key) if self.public_key else None
        return None if self.against is None else saved_heads(self.against, trusted)


class LedgerStanding(Body):
    """The checkpoint that a new one is to follow, if there is one."""

    follows: dict[str, Any] | None = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"follows": None}]})

    def earlier(self) -> Checkpoint | None:
        """Return the checkpoint; raises InvalidValue, BadSignature."""
        return _checkpoint(self.follows)


class KeptHead(Body):
    """The last entry of a chain, as kept outside of the ledger."""

    cohort: Name
    sequence: SequenceNumber
    digest: Annotated[str, Field(pattern=DIGEST_PATTERN)]


class MakeStatement(Body):
    """Which cohorts to state, as of when, and what changed since an entry or since heads that were kept."""

    cohorts: Cohorts = None
    as_of: Annotated[
        Moment | SequenceNumber | None,
        Field(description="A moment with its zone, or an entry."),
        one_of_two("a time with its zone, as 2025-01-06T12:00:00Z, or an entry's sequence"),
    ] = None
    since: SequenceNumber | None = None
    kept: Annotated[list[KeptHead], Field(default_factory=list, max_length=KEPT_MAX)]

    model_config = ConfigDict(json_schema_extra={"examples": [{"cohorts": ["nz-phone"]}]})

    def wanted(self, cohorts: tuple[str, ...] | None) -> StatementWanted:
        """Return the question, about cohorts by the names they are stored under."""
        heads = tuple((each.cohort, Head(sequence=each.sequence, digest=each.digest)) for each in self.kept)
        return StatementWanted(cohorts=cohorts, as_of=self.as_of, since=self.since, kept=heads)


class MakeBundle(Body):
    """Whose chains to put into the bundle, with which signed heads."""

    cohorts: Cohorts = None
    checkpoint: Annotated[dict[str, Any] | None, Field(description="Signed heads of a moment ago.")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"cohorts": ["nz-phone"]}]})

    def signed(self) -> Checkpoint | None:
        """Return the checkpoint; raises InvalidValue, BadSignature."""
        return _checkpoint(self.checkpoint)


def _checkpoint(data: dict[str, Any] | None) -> Checkpoint | None:
    if data is None:
        return None
    checkpoint = read_checkpoint(data)
    check_signature(checkpoint, None)
    return checkpoint
