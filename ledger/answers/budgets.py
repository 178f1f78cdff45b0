"""The rest of budgets: of a cohort, of its periods and plans, and of teams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from shuffle_ledger import accounting
from shuffle_ledger.accounting import exact_text, lower_text, upper_text
from shuffle_ledger.ledger.answers.heads import Head
from shuffle_ledger.ledger.values.requests import CohortStatus, openness, worst_status
from shuffle_ledger.ledger.values.windows import Period, Window


@dataclass(frozen=True, kw_only=True)
class Closure:
    """The entry by which a cohort was closed, and its periods and quotas with it."""

    sequence: int  # in the cohort's own chain
    closed_at: datetime
    closed_by: str
    reason: str

    @property
    def described(self) -> str:
        """When, by whom and why, for people."""
        return f"{self.closed_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC by {self.closed_by}: {self.reason}"


def status_now(status: CohortStatus, *, is_closed: bool) -> CohortStatus:
    """Returns the status of a cohort or a part, given what its own chain says and whether the cohort was ever
    closed: the worst of both."""
    return worst_status(status, "closed") if is_closed else status


@dataclass(frozen=True, kw_only=True)
class PromiseReading:
    """One budget that promises something to a cohort's users, what is used of it, and when it renews."""

    budget: str  # the name of its chain
    period: str  # "life", or the label of the period: 2027, 2026-W48
    kind: str  # "life", or that of the window: year, 7 days
    first: date | None  # the days of the period, in UTC; None: of the whole life
    last: date | None
    # The first day of collection on which less of the budget is used: of a calendar unit, that after its last
    # day; of a run of days, the first day after a round that counts in it counts no more. None: never.
    renews: date | None
    status: CohortStatus
    epsilon_budget: float
    delta_budget: float
    epsilon_spent_upper: float  # certified at delta_budget; infinite when no finite bound holds
    epsilon_remaining: float

    @property
    def is_sliding(self) -> bool:
        """Whether the period is a run of days that overlaps others of its kind."""
        return "+" in self.period

    @property
    def name(self) -> str:
        """The period for people: life, 2027, 2026-W48, 7 days to 2026-11-28."""
        return f"{self.kind} to {self.last}" if self.is_sliding else self.period

    @property
    def left(self) -> str:
        """The rest for people, rounded down; of an unused budget, the budget as it was given."""
        is_unused = self.epsilon_spent_upper == 0 and self.epsilon_remaining == self.epsilon_budget
        return exact_text(self.epsilon_budget) if is_unused else lower_text(self.epsilon_remaining)

    @property
    def renewal(self) -> str:
        """The day on which it renews, for people: only a part of a run of days does, if any is used."""
        if self.renews is None:
            return "never renews"
        if not self.is_sliding:
            return f"renews on {self.renews.isoformat()}"
        return (
            f"part of it is free again on {self.renews.isoformat()}"
            if self.epsilon_spent_upper
            else "all of it is free"
        )

    @property
    def used_share(self) -> float:
        """Upper bound on the spent share of the budget; infinite where it admits nothing any more."""
        return self.epsilon_spent_upper / self.epsilon_budget if self.status == "open" else math.inf

    def is_over(self, today: date | None) -> bool:
        """Return whether the days of the period have passed; None: a server of before does not say today."""
        return today is not None and self.last is not None and self.last < today


def least_promise(promises: Sequence[PromiseReading]) -> PromiseReading:
    """Returns the promise that has the least left; of several with nothing left, the one with the worst
    status."""
    return min(promises, key=lambda one: (one.epsilon_remaining, openness(one.status)))


def worth_showing(promises: Sequence[PromiseReading]) -> tuple[PromiseReading, ...]:
    """Returns promises; of the sliding periods of each window, only the one with the least left."""
    least = {
        kind: least_promise([one for one in promises if one.kind == kind])
        for kind in dict.fromkeys(one.kind for one in promises)
    }
    return tuple(one for one in promises if not one.is_sliding or one is least[one.kind])


@dataclass(frozen=True, kw_only=True)
class SlotReading:
    """One kind of rounds in a plan."""

    round: accounting.ShuffledRound
    count: int
    claimed: int  # by rounds admitted and not voided


@dataclass(frozen=True, kw_only=True)
class FittingRounds:
    """How many more rounds of one kind fit, if nothing else is registered and no other budget refuses them.

    The other cohorts of a round, and the quota of its team, decide too.
    """

    round: accounting.ShuffledRound  # as the ledger accounts it
    rounds_at_least: int  # all of these are admitted; perhaps more are


@dataclass(frozen=True, kw_only=True)
class WindowReading:
    """A window of a cohort today: of a sliding one, the period that has least left."""

    window: Window
    period: Period
    status: CohortStatus
    epsilon_spent_upper: float  # certified at the window's delta
    epsilon_remaining: float


@dataclass(frozen=True, kw_only=True, repr=False)
class BudgetStatement:
    """A cohort's budgets and what is spent of them, as the last entries of their chains state.

    The numbers beside `promises` are those of the promise that has the least left, `budget`.
    """

    cohort: str
    population: int
    policy: str
    status: CohortStatus
    budget: str  # the name of the chain whose numbers follow
    epsilon_budget: float
    delta_budget: float
    epsilon_spent_upper: float  # certified at delta_budget; infinite when no finite bound holds
    epsilon_spent_lower: float
    epsilon_remaining: float
    epsilon_error_discretization: float  # how much of the interval's width each cause explains
    epsilon_error_truncation: float
    epsilon_error_round_off: float
    method: str
    decided_by: str  # what the policy decides by, and what it assumes
    slots: tuple[SlotReading, ...]  # of policy plan: what was declared, and what of it is taken
    epsilon_promised_upper: float | None  # of policy plan: what all of it costs
    # Of policy adaptive; rounds go on while one is within the budget.
    filters: tuple[accounting.FilterReading, ...]
    # What approximate rounds used of delta; None: no accounts of it.
    delta_accounts: accounting.AccountsReading | None
    # The exact composition of what is held: valid only for rounds fixed in advance.
    composition_epsilon_upper: float
    composition_epsilon_lower: float
    promises: tuple[PromiseReading, ...] = ()  # all that a round collected on `on` is charged to
    on: date | None = None  # the day of collection that `promises` and `windows` are of, in UTC
    booked: tuple[PromiseReading, ...] = ()  # of later periods that rounds are charged to already
    windows: tuple[WindowReading, ...] = ()  # budgets that begin anew, which must hold too
    fits: tuple[FittingRounds, ...] = ()  # what may still be admitted, of the most frequent kinds so far
    numerical_policy: str  # under which the last entry's numbers were computed
    local_epsilon_upper: float  # what a user may lose if the shuffler is compromised
    local_delta_upper: float
    local_budget: float | None = None  # the limit on local_epsilon_upper, if the cohort has one
    rounds_admitted: int  # ever; settled and voided ones included
    rounds_refused: int
    rounds_settled: int
    rounds_voided: int
    rounds_pending: int
    opened_at: datetime
    head: Head
    closure: Closure | None = None  # None: the cohort is not closed
    today: date | None = None  # by the database's clock, in UTC
    # Why no round that is collected on `on` can be registered today; None: one can.
    on_refused: str | None = None

    @property
    def least(self) -> PromiseReading | None:
        """The promise that has the least left; None: of a quota, which promises nothing."""
        return next((one for one in self.promises if one.budget == self.budget), None)

    @property
    def least_status(self) -> CohortStatus:
        """The worse status of the cohort and of the promise that has the least left."""
        return self.status if self.least is None else worst_status(self.status, self.least.status)

    @property
    def is_over(self) -> bool:
        """Whether the promise that has the least left is of days that have passed."""
        return self.least is not None and self.least.is_over(self.today)

    def __repr__(self) -> str:
        """Returns the spending, rounded up, and the rest of the budget, rounded down, in few digits."""
        return (
            f"<BudgetStatement of {self.cohort!r}, {self.least_status}: spent at most"
            f" {upper_text(self.epsilon_spent_upper)} of {exact_text(self.epsilon_budget)} at delta"
            f" {exact_text(self.delta_budget)}, left at least {lower_text(self.epsilon_remaining)}>"
        )


@dataclass(frozen=True, kw_only=True)
class QuotaReading:
    """A team's quota in a cohort, and what of it is used."""

    team: str
    budget: str  # the name of its chain: what `budget`, `forecast` and `round list` are asked about
    epsilon: float
    epsilon_used_upper: float  # what the team's rounds alone cost, at the cohort's delta
    epsilon_remaining: float
    rounds: int  # of the team, that are charged
    share: float  # about how much of the cohort's budget it is; shares add up, epsilons do not
