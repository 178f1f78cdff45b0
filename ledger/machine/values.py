"""The machine's values: costs, charges, totals, levels, rules, states and postings, all of exact integers.

Each number is a count of a fixed unit. Numbers of one unit are added and compared, never mixed with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

#: Unit of variances (Gaussian charges, limits, reserves) and of divergences (Renyi, largest loss).
LOSS_UNIT: Final = Fraction(1, 10**30)
#: Unit of certain loss and slack: probabilities, of which budgets may have as little as 1e-60.
DELTA_UNIT: Final = Fraction(1, 2**256)
#: Unit of local epsilon and of the epsilons of levels: decimal, so that ten times 0.1 is 1.
EPSILON_UNIT: Final = Fraction(1, 10**30)
#: The charge without a bound. It is above every limit, and exact: what it was added to can be restored.
UNBOUNDED: Final = 2**320
#: Largest number of rounds that a forecast counts.
ROUNDS_MAX: Final = 10**6


class InvalidStep(ValueError):
    """The caller asked the machine for a step that its promises exclude, or gave it a malformed value."""

    def __init__(self, what: str, expected: str) -> None:
        super().__init__(f"{what}; expected: {expected}")


class BudgetKind(StrEnum):
    """The purposes of budgets."""

    LIFE = "life"  # of a cohort
    PERIOD = "period"  # of a cohort's window
    QUOTA = "quota"  # of a team in a cohort; promises nothing
    RECORD = "record"  # of a cohort without a budget of its life: limits nothing, and promises nothing


class PostingKind(StrEnum):
    """What an event did to a budget."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    RESTATED = "restated"
    BUDGET_CHANGED = "budget_changed"


class Cause(StrEnum):
    """Why a release is restated."""

    SETTLE = "settle"  # the number of reports is known; closes the round
    CORRECT = "correct"  # the round was described wrongly
    INCIDENT = "incident"  # a release that nothing admitted, or that was voided
    VOID = "void"  # nothing was released, and nothing will be; closes the round


class Described(StrEnum):
    """The descriptions of a release that a restatement may give."""

    STATED = "stated"  # by a cost for each budget
    UNKNOWN = "unknown"  # charged as unrandomized
    NOTHING = "nothing"  # nothing was released


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one round to one budget, as the accountant states it, rounded up.

    A round with m reports of each user may be charged as some number m' of equal parts. All numbers but
    `local` are those of one part.

    Attributes:
        local: local epsilon of all m reports of a user, in `EPSILON_UNIT`.
        certain: probability that a part reveals everything, in `DELTA_UNIT`.
        slack: total variation distance to the round that the filters charge, in `DELTA_UNIT`.
        gaussian: variance for each reserve of the budget, in `LOSS_UNIT`.
        divergences: for each order of the budget, in `LOSS_UNIT`.
        fits: kinds of the budget's slots that one part fits, in the order in which it claims them.
        parts: m'.
    """

    local: int = 0
    certain: int = 0
    slack: int = 0
    gaussian: tuple[int, ...] = ()
    divergences: tuple[int, ...] = ()
    fits: tuple[int, ...] = ()
    parts: int = 1

    def __post_init__(self) -> None:
        """Raises InvalidStep for a number that is no charge."""
        numbers = (self.local, self.certain, self.slack, *self.gaussian, *self.divergences)
        if not all(_is_count(number) and number <= UNBOUNDED for number in numbers):
            raise InvalidStep(f"cost {numbers}", "whole numbers of units from 0 to UNBOUNDED")
        if not _is_count(self.parts) or self.parts < 1:
            raise InvalidStep(f"parts {self.parts}", "a whole number from 1 on")
        if len(self.fits) != len(set(self.fits)) or not all(map(_is_count, self.fits)):
            raise InvalidStep(f"fits {self.fits}", "positions of kinds of slots, each once")


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The part of one round in a budget's totals.

    Attributes:
        local, certain, slack, gaussian, divergences: as of `Cost`, of all parts together.
        sliding: the variance in the sliding total.
        reserve: position of the reserve at which `sliding` was taken.
        late: the part of `sliding` that restatements added.
        kind: the kind of slots in which the round stands; None: in none.
        units: number of these slots, m'; 0 if the budget has no slots or the round was voided.
        claimed: the kind that the round claimed at its admission; None: it claimed none.
        is_corrected: a restatement raised a Gaussian coordinate; a void then returns none of them.
        is_incident: nothing admitted the round.
        is_counted: whether it is among the rounds of a budget with `rounds_per_user`.
    """

    local: int = 0
    certain: int = 0
    slack: int = 0
    gaussian: tuple[int, ...] = ()
    divergences: tuple[int, ...] = ()
    sliding: int = 0
    reserve: int = 0
    late: int = 0
    kind: int | None = None
    units: int = 0
    claimed: int | None = None
    is_corrected: bool = False
    is_incident: bool = False
    is_counted: bool = False


@dataclass(frozen=True, kw_only=True)
class Total:
    """The sum of what a budget holds. With `rounds_per_user`, the largest charge in place of all sums but
    `local`.

    Attributes:
        local, certain, slack, gaussian, divergences: as of `Charge`.
        sliding: all variance ever charged to the sliding total.
        returned: the part of `sliding` that voids gave back.
        late: the part of `sliding` that restatements added.
        claims: slots that rounds stand in, kind by kind.
        unplaced: units of rounds that stand in no slot.
        rounds, incidents: how many rounds are counted, and how many of them nothing admitted; 0 unless the
            budget has `rounds_per_user`.
    """

    local: int = 0
    certain: int = 0
    slack: int = 0
    gaussian: tuple[int, ...] = ()
    divergences: tuple[int, ...] = ()
    sliding: int = 0
    returned: int = 0
    late: int = 0
    claims: tuple[int, ...] = ()
    unplaced: int = 0
    rounds: int = 0
    incidents: int = 0


@dataclass(frozen=True, kw_only=True)
class Level:
    """An epsilon with the limits that the accountant computed for it, rounded down.

    Attributes:
        epsilon: in `EPSILON_UNIT`.
        gaussian: the largest variance V(epsilon, share); 0 without filters.
        divergences: the largest total for each order.
    """

    epsilon: int
    gaussian: int = 0
    divergences: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises InvalidStep for a number that is no limit."""
        _check_limits(self.epsilon, self.gaussian, *self.divergences)

    def is_within(self, other: Level) -> bool:
        """Returns whether no limit is above that of another level."""
        return (
            self.epsilon <= other.epsilon
            and self.gaussian <= other.gaussian
            and len(self.divergences) == len(other.divergences)
            and all(mine <= its for mine, its in zip(self.divergences, other.divergences, strict=True))
        )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits in force.

    Attributes:
        refuse: the level that decides.
        promise: the level that is promised; a quota's promises nothing.
        certain: largest certain loss.
        slack: largest slack, at the price of the largest epsilon ever promised.
        sliding: limit of the sliding total, V of the largest level ever promised; None: there is none.
        local: largest local epsilon; None: there is no limit.
    """

    refuse: Level
    promise: Level
    certain: int = 0
    slack: int = 0
    sliding: int | None = None
    local: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidStep if what decides is above what is promised."""
        _check_limits(self.certain, self.slack, self.sliding or 0, self.local or 0)
        if not self.refuse.is_within(self.promise):
            raise InvalidStep("refuse_at is above promise_at", "each limit at most that of promise_at")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that a budget's opening fixes for ever.

    Attributes:
        name: of the budget.
        cohort: whose.
        kind: life, period or quota; or record, which has neither filters nor slots.
        delta: of the budget, in `DELTA_UNIT`.
        shares: parts of it: for the Gaussian filter, each order, certain loss and slack, if there are
            filters; then for slots, if there are any. Together at most `delta`.
        opened_at: the time of the opening in force, as a count of any unit: incidents are compared with it.
            Of a period, that of its cohort. None: not known, so that no release is attested to be later.
        reserves: variances, rising from 0; empty: no Gaussian and Renyi filters (slots alone).
        orders: names of the Renyi orders, and of the largest loss, which is one of infinite order.
        slots: declared slots, kind by kind; empty: none.
        slots_epsilon: certified epsilon of all slots together at their share of delta, rounded up.
        rounds_per_user: in how many admitted rounds a user takes part at most; None: in all.
    """

    name: str
    cohort: str
    delta: int
    shares: tuple[int, ...]
    kind: BudgetKind = BudgetKind.LIFE
    opened_at: int | None = None
    reserves: tuple[int, ...] = (0,)
    orders: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    slots_epsilon: int = UNBOUNDED
    rounds_per_user: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidStep for rules that no budget may have."""
        _check_limits(*self.reserves, *self.slots, self.delta, *self.shares)
        needed = (3 + len(self.orders) if self.reserves else 0) + bool(self.slots)
        if len(self.shares) != needed or sum(self.shares) > self.delta:
            raise InvalidStep(f"shares {self.shares}", f"{needed} shares, together at most {self.delta}")
        if self.reserves and (self.reserves[0] != 0 or list(self.reserves) != sorted(set(self.reserves))):
            raise InvalidStep(f"reserves {self.reserves}", "variances that rise from 0")
        if not self.reserves and (self.orders or bool(self.slots) is self.is_record):
            raise InvalidStep("a budget without reserves", "no Renyi orders, and slots unless it is a record")
        if self.is_record and (self.reserves or self.rounds_per_user is not None):
            raise InvalidStep("a record with limits", "no filters, and no rounds_per_user")
        if self.rounds_per_user is not None and (self.rounds_per_user < 1 or self.slots):
            raise InvalidStep("rounds_per_user", "a whole number from 1 on, in a budget without slots")

    @property
    def promises(self) -> bool:
        """Returns whether the budget promises anything to users."""
        return self.kind not in (BudgetKind.QUOTA, BudgetKind.RECORD)

    @property
    def is_record(self) -> bool:
        """Returns whether it is no budget: it takes every round while its history is whole."""
        return self.kind is BudgetKind.RECORD


@dataclass(frozen=True, kw_only=True)
class State:
    """A budget after its last posting: all that the next decision needs.

    Attributes:
        rules, limits, total: now.
        is_used: a round was decided or restated: the budget cannot be opened again.
        is_overspent: what was promised is broken, for ever.
        is_frozen: nothing is admitted any more: it was closed, or part of its history is lost.
    """

    rules: Rules
    limits: Limits
    total: Total
    is_used: bool = False
    is_overspent: bool = False
    is_frozen: bool = False


@dataclass(frozen=True, kw_only=True)
class Posting:
    """What an event does to one budget.

    Attributes:
        budget: its name.
        kind: what happened.
        charge: what the total contains of the round afterwards; of a refusal, what it would contain.
        total: afterwards.
        reasons: why this budget refuses, the first one first; empty in a refusal by other budgets only.
        is_overspent: the status afterwards.
        limits: of a change.
    """

    budget: str
    kind: PostingKind
    total: Total
    charge: Charge | None = None
    reasons: tuple[str, ...] = ()
    is_overspent: bool = False
    limits: Limits | None = None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The answer to a request: all budgets admit it, or none is charged."""

    is_admitted: bool
    refused_by: tuple[str, ...]
    postings: tuple[Posting, ...]


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """A change that is not made, and why."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A round that is asked for: the cohorts whose reports it takes."""

    audience: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Round:
    """The record of a round before it is restated.

    Attributes:
        charges: what each budget's totals contain of it; empty if it was refused or never asked for.
        is_closed: it was settled, voided or recorded as an incident.
        is_voided: its last record says that nothing was released.
        released_after: the time after which its release is attested to have happened, for an incident.
    """

    charges: Mapping[str, Charge]
    is_closed: bool = False
    is_voided: bool = False
    released_after: int | None = None


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _check_limits(*numbers: int) -> None:
    if not all(_is_count(number) and number < UNBOUNDED for number in numbers):
        raise InvalidStep(f"limits {numbers}", "whole numbers of units from 0, below UNBOUNDED")
