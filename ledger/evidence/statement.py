"""The values of a statement: all facts about a cohort, and since when they hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias

from shuffle_ledger.accounting import AccountsReading, FilterReading, ShuffledRound
from shuffle_ledger.ledger.answers.budgets import Closure, FittingRounds
from shuffle_ledger.ledger.answers.heads import Head
from shuffle_ledger.ledger.evidence.conditions import Condition
from shuffle_ledger.ledger.receipts import StatedRelease
from shuffle_ledger.ledger.values.entries import EntryKind, Spending
from shuffle_ledger.ledger.values.requests import CohortStatus, RefusalReason
from shuffle_ledger.ledger.values.windows import Period, Window

STATEMENT_FORMAT = "shuffle-ledger-statement-1"

# "unknown": the chain is damaged, so nothing it says can be relied on, or entries of it were lost.
Verdict: TypeAlias = Literal["kept", "broken", "unknown", "no_promise"]
# Of a promise at a moment: "kept" only of a period that is over.
PromiseState: TypeAlias = Literal["kept", "so_far", "not_begun", "broken", "unknown"]


@dataclass(frozen=True, kw_only=True)
class EpsilonBounds:
    """A certified interval around an epsilon, at the budget's delta."""

    epsilon_upper: float  # infinite when no finite bound holds
    epsilon_lower: float

    @classmethod
    def of(cls, spending: Spending | Mapping[str, Any]) -> EpsilonBounds:
        """Return the interval of what is spent, or of how an entry spells it."""
        if isinstance(spending, Spending):
            return cls(epsilon_upper=spending.epsilon_upper, epsilon_lower=spending.epsilon_lower)
        return cls(epsilon_upper=spending["epsilon_upper"], epsilon_lower=spending["epsilon_lower"])


@dataclass(frozen=True, kw_only=True)
class CohortPromise:
    """The promise to the users of a cohort, and its meaning."""

    population: int
    privacy_unit: str
    neighbours: str
    epsilon_budget: float  # in force at the statement's head
    delta_budget: float
    policy: str
    policy_assumes: str
    opened_at: datetime
    opened_by: str
    openings: int = 1  # one more for each time that it was opened again; the last one is in force
    windows: tuple[Window, ...] = ()  # budgets that begin anew, each with its own promise and chain
    period: Period | None = None  # of another cohort's window, whose promise this is
    ceiling: float | None = None  # what the budget may be raised to, for any reason
    local_budget: float | None = None  # the limit on the sum of epsilon0
    rounds_per_user: int | None = None  # that one user takes part in at most, as is attested

    @property
    def has_life(self) -> bool:
        """Whether anything is promised of the cohort's whole life, and not of its periods alone."""
        return math.isfinite(self.epsilon_budget)

    @property
    def epsilon_guaranteed(self) -> float:
        """The epsilon that is promised to users: the ceiling, if there is one, and else the budget."""
        return self.epsilon_budget if self.ceiling is None else self.ceiling


@dataclass(frozen=True, kw_only=True)
class StatedClosing:
    """How a round was closed."""

    kind: Literal["settled", "voided"]
    sequence: int
    recorded_at: datetime
    actor: str
    reports: int | None  # really shuffled; None: voided
    accounted: ShuffledRound | None  # what is charged from then on; None: voided, nothing is
    alone: EpsilonBounds | None  # of what is charged from then on
    spent: EpsilonBounds  # by the cohort, after this entry
    overspent: bool
    reason: str | None  # of a voided round
    attestation: str | None


@dataclass(frozen=True, kw_only=True)
class StatedRound:
    """An admitted round: as declared, as accounted, as closed."""

    round_id: str
    use_case: str | None
    collected_on: date | None
    declared: ShuffledRound
    accounted: ShuffledRound  # the slot that was reserved
    sequence: int
    recorded_at: datetime
    actor: str
    numerical_policy: str
    method: str
    alone: EpsilonBounds  # of the round, if it were the only one
    spent: EpsilonBounds  # by the cohort, after this entry
    closing: StatedClosing | None
    audience: tuple[str, ...] = ()  # all cohorts, of a round of several
    release: StatedRelease | None = None  # None: a server of before does not say it


@dataclass(frozen=True, kw_only=True)
class StatedKind:
    """A kind of round, and how many rounds are charged as it.

    Admitted rounds count as they were told last, and incidents too; voided ones if they keep what they
    reserved.
    """

    round: ShuffledRound  # as it is charged
    rounds: int
    alone: EpsilonBounds  # of one of them, if it were the only round


@dataclass(frozen=True, kw_only=True)
class StatedRefusal:
    """A round that was refused; it must not have been released, and its refusal costs nothing."""

    round_id: str
    use_case: str | None
    collected_on: date | None
    declared: ShuffledRound
    sequence: int
    recorded_at: datetime
    actor: str
    reason: RefusalReason
    message: str
    requested: EpsilonBounds | None  # the total it asked for; None: it was not computed
    spent: EpsilonBounds
    audience: tuple[str, ...] = ()  # all cohorts, of a round of several


@dataclass(frozen=True, kw_only=True)
class StatedBudgetChange:
    """The budget was raised or lowered."""

    sequence: int
    recorded_at: datetime
    actor: str
    epsilon_before: float
    epsilon_after: float
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Overspend:
    """An entry after which more was spent than the budget in force; refusals, which spend nothing, aside."""

    sequence: int
    recorded_at: datetime
    round_id: str | None
    epsilon_spent_upper: float
    epsilon_budget: float


@dataclass(frozen=True, kw_only=True)
class StatedRestatement:
    """A correction of a released round, or an incident: a release without admission."""

    kind: Literal["corrected", "incident"]
    round_id: str
    sequence: int
    recorded_at: datetime
    actor: str
    round: ShuffledRound | None  # what was released; None: unknown
    accounted: ShuffledRound  # what is charged
    released_after: datetime | None  # of an incident, as attested
    released_before: datetime | None
    spent: EpsilonBounds  # by the cohort, after this entry
    overspent: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Breach:
    """Since when the promise is not kept, and why."""

    sequence: int
    recorded_at: datetime
    round_id: str | None
    reason: str
    # Had the budget been this large, the promise would have been kept on this course of events. None: no
    # budget is known of which that is true.
    kept_at_epsilon_upper: float | None


@dataclass(frozen=True, kw_only=True)
class StatedLoss:
    """The database was put back to an earlier state: what was spent after it is unknown."""

    sequence: int
    recorded_at: datetime
    actor: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One entry of the chain, with the running total after it."""

    sequence: int
    kind: EntryKind
    round_id: str | None
    actor: str
    recorded_at: datetime
    collected_on: date | None
    spent: EpsilonBounds
    epsilon_budget: float
    digest: str  # hexadecimal


@dataclass(frozen=True, kw_only=True)
class StatedProfilePoint:
    """One point of the privacy profile of everything that is held: epsilon at a delta."""

    delta: float
    epsilon_upper: float
    epsilon_lower: float


@dataclass(frozen=True, kw_only=True)
class Since:
    """What happened after an earlier entry, and whether it is the entry somebody kept the digest of."""

    earlier: Head
    recorded_at: datetime
    proven: bool  # a head that was kept elsewhere has this very sequence and digest
    entries: int
    rounds_admitted: int
    rounds_refused: int
    rounds_settled: int
    rounds_voided: int
    spent_then: EpsilonBounds
    spent_now: EpsilonBounds
    epsilon_budget_then: float


@dataclass(frozen=True, kw_only=True)
class CohortStatement:
    """Everything there is to say about one cohort, as of one entry of its chain."""

    cohort: str
    verdict: Verdict
    chain_problems: tuple[str, ...]
    promise: CohortPromise
    status: CohortStatus
    spent: EpsilonBounds
    epsilon_remaining: float
    discretization: float  # how much of the interval's width each cause explains
    truncation: float
    round_off: float
    method: str
    decided_by: str  # what the policy decides by, and what it assumes
    filters: tuple[FilterReading, ...]  # of policy adaptive; rounds go on while one is within the budget
    delta_accounts: AccountsReading | None  # what approximate rounds used of delta; None: no accounts of it
    numerical_policies: tuple[str, ...]  # under which the chain's numbers were computed
    composition: EpsilonBounds  # of all that is held, certified now, at the budget's delta
    local_epsilon_upper: float  # what a user may lose without the shuffler
    local_delta_upper: float
    interaction: str  # without the shuffler: sequentially interactive or fully interactive
    rounds: tuple[StatedRound, ...]
    refusals: tuple[StatedRefusal, ...]
    budget_changes: tuple[StatedBudgetChange, ...]
    overspends: tuple[Overspend, ...]
    lost: tuple[StatedLoss, ...]
    moments: tuple[Moment, ...]
    profile: tuple[StatedProfilePoint, ...]
    since: Since | None
    rounds_pending: int | None  # now; None: the statement is of an earlier moment
    told: tuple[StatedRestatement, ...] = ()  # afterwards, of releases
    breach: Breach | None = None  # None: none that the chain tells
    fits: tuple[FittingRounds, ...] | None = None  # what may still be admitted; None: likewise
    closure: Closure | None = None  # None: it was not closed; of a part as of an earlier entry, not stated
    charged: tuple[StatedKind, ...] | None = None  # None: a server of before does not say it
    as_of: datetime  # when the last entry was recorded
    head: Head
    head_now: Head  # the chain's, when the statement was made

    def state(self, made_at: datetime) -> PromiseState:
        """Return what can be said of the promise of the life or the period.

        Args:
            made_at: when the statement was made. One about an earlier entry says what held then.
        """
        on = (made_at if self.head == self.head_now else self.as_of).astimezone(UTC).date()
        period = self.promise.period
        first, last = (None, None) if period is None else (period.first, period.last)
        return state_of_promise(self.verdict, first, last, on)


@dataclass(frozen=True, kw_only=True)
class StatedPromise:
    """One promise of a cohort, of its life or of a period, and whether it was kept until the statement."""

    cohort: str  # as its statement names it: a period that is stated by itself, by the name of its chain
    period: str  # "life", or the label of a period
    first: date | None  # its days, in UTC; None: of the life
    last: date | None
    epsilon: float
    delta: float
    epsilon_spent_upper: float  # infinite if it is unknown
    state: PromiseState


def state_of_promise(verdict: Verdict, first: date | None, last: date | None, on: date) -> PromiseState:
    """Returns what can be said on a day of a promise, given what its chain says.

    Args:
        verdict: of the chain, which has a promise.
        first, last: days of its period; None: of the life, which is never over.
        on: the day of the statement, in UTC.
    """
    if verdict in ("broken", "unknown"):
        return verdict
    if first is not None and first > on:
        return "not_begun"
    return "kept" if last is not None and last < on else "so_far"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What an auditor reads."""

    made_at: datetime
    software: str
    numerical_policy: str  # under which this statement's own numbers were computed
    conditions: tuple[Condition, ...]
    cohorts: tuple[CohortStatement, ...]
    checkpoint: Mapping[str, Any] | None  # signed heads; None: not signed
    promises: tuple[StatedPromise, ...] = ()  # all, of several cohorts or of one with windows
    format: str = STATEMENT_FORMAT

    @property
    def broken(self) -> tuple[str, ...]:
        """The chains of lives and periods whose budgets did not cover what was released or promised."""
        stated = [
            each.cohort for each in self.cohorts if each.status == "overspent" or each.verdict == "broken"
        ]
        return tuple(dict.fromkeys([*stated, *self._promises_that_are("broken")]))

    @property
    def unknown(self) -> tuple[str, ...]:
        """The chains of lives and periods of which nothing can be said: damaged, or entries were lost."""
        stated = [each.cohort for each in self.cohorts if each.verdict == "unknown"]
        return tuple(dict.fromkeys([*stated, *self._promises_that_are("unknown")]))

    def _promises_that_are(self, state: PromiseState) -> list[str]:
        chains = {each.cohort for each in self.cohorts if each.promise.period is not None}
        return [
            each.cohort if each.first is None or each.cohort in chains else f"{each.cohort}@{each.period}"
            for each in self.promises
            if each.state == state
        ]
