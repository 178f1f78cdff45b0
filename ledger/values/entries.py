"""What one entry of a cohort's chain is: its body, its canonical bytes and its digest."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from shuffle_ledger.accounting import Certificate, ShuffledRound
from shuffle_ledger.ledger.errors import Damaged, LedgerError
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.requests import epsilon_left

BODY_VERSION = 1
FIRST_SEQUENCE = 1
GENESIS_DIGEST = bytes(canonical.DIGEST_BYTES)
_ENTRY_DOMAIN = "shuffle-ledger/entry/1"
_KIND_DOMAIN = "shuffle-ledger/accounted-round/1"
_LOSS_KEY_DOMAIN = "shuffle-ledger/privacy-loss-key/1"
_LOSS_DOMAIN = "shuffle-ledger/privacy-loss/1"
_SEQUENCE_BYTES = 8
_ROUNDS_REMEMBERED_MAX = 8192


class EntryKind(StrEnum):
    """What an entry says."""

    OPENED = "opened"
    ADMITTED = "admitted"
    REFUSED = "refused"
    SETTLED = "settled"
    VOIDED = "voided"
    BUDGET_CHANGED = "budget_changed"
    CORRECTED = "corrected"  # what a released round truly was
    INCIDENT = "incident"  # a release that nothing admitted
    CLOSED = "closed"  # the cohort admits nothing any more, for it is not needed
    FROZEN = "frozen"  # what followed was lost when the database was put back: nothing is decided any more


CORRECTED_OR_INCIDENT = (EntryKind.CORRECTED, EntryKind.INCIDENT)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """A certified interval around the epsilon of everything a cohort holds, at the budget's delta."""

    epsilon_upper: float  # decides; infinite when no finite bound holds
    epsilon_lower: float
    delta: float
    rounds: int
    discretization: float  # how much of the interval's width each cause explains, in units of epsilon
    truncation: float
    round_off: float
    method: str

    @classmethod
    def nothing(cls, delta: float) -> Spending:
        """Return what an empty cohort has spent."""
        zero = {"discretization": 0.0, "truncation": 0.0, "round_off": 0.0}
        return cls(
            epsilon_upper=0.0, epsilon_lower=0.0, delta=delta, rounds=0, method="nothing admitted", **zero
        )

    def unknown_after(self, sequence: int) -> Spending:
        """Return what is known of a chain that may have lost what came after an entry: no upper bound."""
        return replace(
            self,
            epsilon_upper=math.inf,
            discretization=0.0,
            truncation=0.0,
            round_off=0.0,
            method=f"unknown: entries after {sequence} may have been lost",
        )

    @classmethod
    def from_certificate(cls, certificate: Certificate, *, delta: float) -> Spending:
        """Return the numbers of a certificate.

        Raises:
            LedgerError: they cannot be a bound (not a number, negative, or upside down). Such a
                certificate decides nothing: unknown is an error, never an admission.
        """
        upper, lower = certificate.epsilon_upper, certificate.epsilon_lower
        if not 0.0 <= lower <= upper:
            raise LedgerError(f"the accountant certified epsilon in [{lower}, {upper}], which bounds nothing")
        return cls(
            epsilon_upper=float(upper),
            epsilon_lower=float(lower),
            delta=delta,
            rounds=certificate.rounds,
            discretization=float(certificate.error.discretization),
            truncation=float(certificate.error.truncation),
            round_off=float(certificate.error.round_off),
            method=certificate.method,
        )

    @property
    def epsilon_upper_or_none(self) -> float | None:
        """The upper bound, or None when it is infinite."""
        return self.epsilon_upper if math.isfinite(self.epsilon_upper) else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields, for a body."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class EntryBody:
    """What an entry states. Every body carries the spending after it, so the head alone tells the state."""

    cohort: str
    sequence: int
    kind: EntryKind
    round_id: str | None  # None for entries about the cohort itself
    actor: str  # who registered, settled, voided, corrected or opened
    recorded_at: datetime  # the database's clock, UTC
    numerical_policy: str  # which numerical rules produced the numbers
    epsilon_budget: float
    delta_budget: float
    spent: Spending  # after this entry
    details: Mapping[str, Any] = field(default_factory=dict)  # what belongs to the kind alone

    @property
    def epsilon_remaining(self) -> float:
        """What of the budget is left after this entry, never negative."""
        return epsilon_left(self.epsilon_budget, self.spent.epsilon_upper)

    @property
    def used_share(self) -> float:
        """The spent share of the budget to the nearest double, to order lists by; 0 if there is no budget."""
        return 0.0 if math.isinf(self.epsilon_budget) else self.spent.epsilon_upper / self.epsilon_budget

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: these are stored, hashed and never made again."""
        content = dict(vars(self))
        content["version"] = BODY_VERSION
        content["recorded_at"] = canonical.spelled_moment(self.recorded_at)
        content["spent"] = self.spent.to_mapping()
        return canonical.encode(content)

    @classmethod
    def from_bytes(cls, data: bytes, *, strict: bool = True) -> EntryBody:
        """Return the body whose canonical bytes are `data`; raises Damaged when there is none.

        Unless `strict`, bytes that are not canonical are accepted: the caller compares `to_bytes` with them.
        """
        content = canonical.decode(data) if strict else canonical.skim(data)
        version = content.pop("version", None) if isinstance(content, dict) else None
        if type(version) is not int or version != BODY_VERSION:  # 1.0 is other bytes, and true is no number
            raise Damaged("an entry body of an unknown version")
        try:
            content["kind"] = EntryKind(content["kind"])
            content["recorded_at"] = datetime.fromisoformat(content["recorded_at"])
            content["spent"] = Spending(**content["spent"])
            return cls(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"an entry body with wrong fields: {error}") from error


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One stored entry, exactly as the database returned it; `verification` judges it."""

    cohort: str
    sequence: int
    kind: str  # this and `round_id` repeat the body, for the database's constraints and indexes
    round_id: str | None
    body: bytes
    previous_digest: bytes
    digest: bytes

    @classmethod
    def following(cls, previous_digest: bytes, body: EntryBody) -> LedgerEntry:
        """Return the entry that puts a body behind the entry with the previous digest."""
        data = body.to_bytes()
        return cls(
            cohort=body.cohort,
            sequence=body.sequence,
            kind=str(body.kind),
            round_id=body.round_id,
            body=data,
            previous_digest=previous_digest,
            digest=entry_digest(
                cohort=body.cohort, sequence=body.sequence, previous_digest=previous_digest, body=data
            ),
        )

    def content(self, *, strict: bool = True) -> EntryBody:
        """Return the body as a value, as `EntryBody.from_bytes`; raises Damaged."""
        return EntryBody.from_bytes(self.body, strict=strict)


def entry_digest(*, cohort: str, sequence: int, previous_digest: bytes, body: bytes) -> bytes:
    """Return the digest that binds a body to its place in its cohort's chain."""
    place = sequence.to_bytes(_SEQUENCE_BYTES, "big")
    return canonical.framed_digest(_ENTRY_DOMAIN, cohort.encode("utf-8"), place, previous_digest, body)


@functools.lru_cache(maxsize=_ROUNDS_REMEMBERED_MAX)
def round_bytes(accounted: ShuffledRound) -> bytes:
    """Return the canonical bytes of a round's parameters."""
    return canonical.encode(accounted.to_mapping())


def round_digest(data: bytes) -> bytes:
    """Return the digest under which the canonical bytes of an accounted round are held."""
    return canonical.framed_digest(_KIND_DOMAIN, data)


@functools.lru_cache(maxsize=_ROUNDS_REMEMBERED_MAX)
def loss_key(data: bytes, numerical_policy: str) -> bytes:
    """Return the digest of an accounted round's canonical bytes and a numerical policy."""
    return canonical.framed_digest(_LOSS_KEY_DOMAIN, data, numerical_policy.encode("utf-8"))


def loss_digest(blob: bytes) -> bytes:
    """Return the digest of a stored privacy loss itself."""
    return canonical.framed_digest(_LOSS_DOMAIN, blob)
