"""The findings and the report of a bundle's verification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime

from shuffle_ledger.ledger.values.saved_heads import Signature
from shuffle_ledger.ledger.values.windows import Period
from shuffle_ledger.ledger.verification.number_checks import Subject

FINDINGS_MAX = 200  # the first ones matter


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as a bundle promises."""

    member: str | None  # the file in the bundle; None: the archive itself
    cohort: str | None
    sequence: int | None  # of the entry
    what: str


@dataclass(frozen=True, kw_only=True)
class SecondOpinion:
    """The same number by another method."""

    method: str
    epsilon_upper: float
    epsilon_lower: float
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class NumberCheck:
    """A number of an entry beside what its parameters give."""

    sequence: int
    round_id: str | None
    subject: Subject
    stated_upper: float
    stated_lower: float
    computed_upper: float
    computed_lower: float
    agrees: bool  # both may be true: the intervals share a point, or the reading is not below
    second: SecondOpinion | None


@dataclass(frozen=True, kw_only=True)
class CohortFound:
    """What verification found in one cohort of a bundle."""

    cohort: str
    ok: bool
    entries: int
    head_sequence: int
    head_digest: str  # hexadecimal
    epsilon_budget: float | None  # None: no entry could be read
    delta_budget: float | None
    epsilon_spent_upper: float | None  # as the last entry states
    epsilon_spent_lower: float | None
    promise_kept: bool | None  # by its own numbers, at every entry; None: changed, or entries were lost
    rounds_admitted: int
    rounds_refused: int
    kinds: int  # of rounds, in the numbers that were computed again
    kinds_confirmed: int  # by a second method
    kinds_without: tuple[str, ...]  # that no second method answers for, by name
    numbers_stated: int
    numbers: tuple[NumberCheck, ...]
    period: Period | None = None  # of a cohort's window, whose promise this is; None: of the life, or a quota

    def promise_in_words(self, on: date) -> str:
        """Return what can be said of the promise on a day, in UTC, given its chain here."""
        if self.epsilon_budget == math.inf:
            return "see its periods"
        if self.promise_kept and self.period is not None and on < self.period.first:
            return "not begun"
        return {True: "kept so far", False: "broken", None: "cannot be said"}[self.promise_kept]


@dataclass(frozen=True, kw_only=True)
class ReleaserFound:
    """A key that signed receipts in a bundle."""

    releaser: str
    public_key: str  # as a JSON web key has it: compare it with the one that you know
    receipts: int
    reports: int


@dataclass(frozen=True, kw_only=True)
class BundleReport:
    """What verification found in a bundle."""

    ok: bool
    vouched: bool  # the given key signed the heads, or heads kept elsewhere are in every chain
    sha256: str  # of the bundle
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]  # sound, and worth knowing
    signature: Signature
    public_key: str | None  # hexadecimal
    ledger_id: str | None
    created_at: datetime | None  # of the checkpoint
    software: str | None  # that made the checkpoint
    verified_with: str  # this software, and its numerical policy
    compared_with: int  # heads that were kept elsewhere and concern these cohorts
    not_in_bundle: tuple[str, ...]  # cohorts whose heads are signed and whose chains are not here
    cohorts: tuple[CohortFound, ...]
    releasers: tuple[ReleaserFound, ...] = ()  # whose signatures hold


class Findings:
    """Collects findings."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.notes: list[Finding] = []

    def add(
        self, what: str, *, member: str | None = None, cohort: str | None = None, sequence: int | None = None
    ) -> None:
        """Note a finding, unless it was noted or there are too many."""
        found = Finding(member=member, cohort=cohort, sequence=sequence, what=what)
        if len(self.listed) < FINDINGS_MAX and found not in self.listed:
            self.listed.append(found)

    def note(self, what: str, *, member: str, cohort: str, sequence: int) -> None:
        """Adds a note about something sound and worth knowing, up to a limit."""
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(Finding(member=member, cohort=cohort, sequence=sequence, what=what))

    def concern(self, cohort: str) -> bool:
        """Whether anything was found about a cohort, or about the bundle as a whole."""
        return any(each.cohort in (cohort, None) for each in self.listed)
