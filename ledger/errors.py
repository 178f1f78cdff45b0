"""Everything the ledger raises; expected outcomes (a refusal, say) are returned instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from shuffle_ledger.accounting import exact_text, given_text, upper_text

COMPARED_MAX = 10_000  # names with which a wrong one is compared: milliseconds


KINDS: dict[str, type[LedgerError]] = {}  # by its own stable word


class LedgerError(Exception):
    """Root of all errors raised by `ledger`."""

    kind: ClassVar[str] = "failed"  # a word for programs: in problem documents, and where commands fail

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            cls.kind, KINDS[kind] = kind, cls


class NotFound(LedgerError, kind="not_found"):
    """Nothing has this name: no cohort, round, quota, token or webhook."""


class NoCohort(NotFound):
    """No cohort has this name."""

    def __init__(self, cohort: str, meant: str | None = None) -> None:
        """Keep the name that was given; `meant` is a similar one that the reader may see."""
        super().__init__(f"no cohort {cohort!r}" + (f"; did you mean {meant!r}?" if meant else ""))
        self.cohort = cohort

    def among(self, names: Iterable[str]) -> NoCohort:
        """Return the same error with the name that was meant, of those that the reader may see: of the first
        `COMPARED_MAX`."""
        close = difflib.get_close_matches(self.cohort, islice(names, COMPARED_MAX), n=1)
        return NoCohort(self.cohort, close[0] if close else None)


class Conflict(LedgerError, kind="conflict"):
    """The present state forbids this: an identifier has other content, or it is too late, or not yet time."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A field in which a request differs from what is stored under its identifier; values are JSON's."""

    field: str
    stored: object  # None: nothing
    given: object


class OtherContent(Conflict):
    """The same identifier with different content: which fields differ, for readers of what is stored."""

    def __init__(self, message: str, *, differences: Sequence[Difference]) -> None:
        """Keep the fields that differ beside the sentence."""
        super().__init__(message)
        self.differences = tuple(differences)


class NotCollectable(Conflict, kind="not_collectable"):
    """The answer to a repeated request for a round that must not be collected: its admission permits no
    release any more, or it was released although nothing admitted it."""

    def __init__(self, message: str, *, round_id: str, state: str, cohort_status: str) -> None:
        """Keep the round's present state and its cohort's status beside the sentence."""
        super().__init__(message)
        self.round_id = round_id
        self.state = state  # a `values.requests.RoundState`
        self.cohort_status = cohort_status  # a `values.requests.CohortStatus`


class InvalidValue(LedgerError, ValueError, kind="contradiction"):
    """A value that cannot be stored. The message names the field, the given value and the accepted values."""

    def __init__(self, *, field: str, value: object, expected: str, message: str | None = None) -> None:
        """Compose the sentence "field: got value, expected ...", unless `message` says it in other words."""
        super().__init__(message or f"{field}: {given_text(value)}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class Unauthorized(LedgerError, kind="unauthorized"):
    """The server does not know the token: it is none, expired or revoked."""


class NotAllowed(LedgerError, kind="forbidden"):
    """The token's role does not include this, or its scope does not."""


class BeyondBudget(LedgerError, kind="beyond_budget"):
    """A plan that costs more than the budget it is to be kept in; nothing was opened."""

    def __init__(self, epsilon_upper: float, *, epsilon: float, delta: float) -> None:
        super().__init__(
            f"plan: all its rounds together cost up to epsilon {upper_text(epsilon_upper)}"
            f" at delta {exact_text(delta)}, expected at most the budget of {exact_text(epsilon)}"
        )
        self.epsilon_upper = epsilon_upper
        self.epsilon_budget = epsilon
        self.delta_budget = delta


@dataclass(frozen=True, kw_only=True)
class UnacceptedWarning:
    """One thing that is unusual about a cohort that is to be opened, or a round that is to be registered."""

    field: str  # as requests write it
    message: str


class UnacceptedWarnings(LedgerError, kind="unaccepted_warnings"):
    """A cohort or a round that is unusual, and the caller did not say that it is meant; nothing was
    written."""

    def __init__(
        self, cohort: str, warnings: Sequence[UnacceptedWarning], *, round_id: str | None = None
    ) -> None:
        """Compose the sentence that names every warning, and how to accept them.

        Args:
            cohort: the cohort that was not opened, or that the round is of.
            warnings: what is unusual.
            round_id: the round that was not registered; None: the cohort was not opened.
        """
        reasons = "; ".join(each.message for each in warnings)
        refused = f"cohort {cohort!r} was not opened"
        if round_id is not None:
            refused = f"round {round_id!r} was not registered"
        self.reasons = f"{refused}: {reasons}"
        super().__init__(f"{self.reasons}. If that is meant, ask again with accept_warnings: true")
        self.cohort = cohort
        self.round_id = round_id
        self.warnings = tuple(warnings)


class TryAgain(LedgerError, kind="busy"):
    """Others were faster every time, or the database stayed locked. What failed so changed nothing; what the
    same request did before, as registering the round to be decided, stays."""


class StayedLocked(TryAgain):
    """Others held a lock of the database for too long."""


class Unavailable(LedgerError, kind="unavailable"):
    """The database cannot be reached or cannot write: what the same request did before stays."""


class AnswerLost(Unavailable):
    """The connection ended before the answer came: the request may have been carried out, or not."""

    def __init__(self, fact: str, reason: str | None = None, *, source: str = "the database") -> None:
        """Take what may be true, as a clause, what the connection ended with, and the other end's name."""
        shown = f" ({reason})" if reason else ""
        super().__init__(
            f"the answer of {source} was lost{shown}; whether {fact} is not known."
            " Ask the same again: for a round, with the same identifier."
        )
        self.fact = fact


class IssuerUnavailable(Unavailable, kind="issuer_unavailable"):
    """The issuer of OpenID Connect does not answer, so its tokens cannot be checked now."""


class UnsafeSession(Unavailable, kind="unsafe_session"):
    """The database's session is not as the ledger needs it: settings do not hold, or connections share it."""


class ClockOff(Unavailable, kind="clock_off"):
    """The database's clock is implausibly far from this machine's, or behind a moment that was recorded.
    Nothing is written until somebody has set it right; asking again does not help."""


class Ruined(Unavailable, kind="ruined"):
    """The database's file is damaged, or tables of the ledger are missing: asking again does not help."""


class SchemaError(LedgerError):
    """The database was not initialised, is older, or is newer than this code."""


class Damaged(LedgerError, kind="damaged"):
    """Stored bytes do not decode, or do not have the digest they were stored under."""


class BehindCheckpoint(LedgerError, kind="behind_checkpoint"):
    """The ledger lacks entries that its checkpoint has seen: nothing is written, quoted or stated until they
    are back, or their loss is accepted."""


class BadSignature(LedgerError, kind="bad_signature"):
    """A signature that does not match the signed content, or is not by the trusted key."""


class DoesNotExtend(LedgerError, kind="not_extended"):
    """Heads that were kept elsewhere, which the evidence asked for does not extend."""


class RoundStuck(LedgerError, kind="stuck"):
    """A round failed as often as is allowed; no worker tries it again until an operator retries it."""


class LostRace(LedgerError):
    """The cohort's state that was read is too old: another writer appended first, for example.

    Internal: the appending loop reads and decides again.
    """
