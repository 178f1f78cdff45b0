"""The values people exchange with the ledger: cohorts, requests, and every possible answer.

All are frozen and keyword-only; what people type is validated here, once, in the constructor.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, Required, TypeAlias, TypedDict, TypeVar, Unpack, cast

from shuffle_ledger import accounting
from shuffle_ledger.accounting import exact_text, upper_text
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.errors import Damaged, InvalidValue
from shuffle_ledger.ledger.gone_names import gone_sentence
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.audiences import (
    checked_audience,
    checked_labels,
)
from shuffle_ledger.ledger.values.days import microseconds_of
from shuffle_ledger.ledger.values.field_marks import LEFT_OUT
from shuffle_ledger.ledger.values.quotas import Quota, checked_team
from shuffle_ledger.ledger.values.round_parameters import read_round
from shuffle_ledger.ledger.values.texts import POPULATION_MAX, checked_text
from shuffle_ledger.ledger.values.windows import Period, Window, checked_windows, periods_of

UNADDRESSABLE = frozenset({".", ".."})  # as segments of an address they mean this place, and the one above
ADDRESSABLE = "a name other than . and .., which no address can contain"
REASON_LENGTH_MAX = 2000
ROUNDS_PER_USER_MAX = 10**6  # that a cohort may be opened with
POLICY_ADAPTIVE = "adaptive"
POLICY_PLAN = "plan"
POLICIES = (POLICY_ADAPTIVE, POLICY_PLAN)  # the default one first
NOTHING_LATER = "The actor attests that no entry was written after the checkpoint was made."
VOID_ATTESTATION = (
    "The actor attests that nothing computed from the reports of this round was released or kept."
)
# What entries and rows have of a cohort only where there is some.
DECLARED = (*("labels", "windows", "period", "quota", "ceiling", "local_budget", "rounds_per_user"),)
COLLECTION_FIELDS: Final = ("collected_on", "collected_until")  # of a request: the first and the last day
_REQUEST_VERSION = 1
_SLIDING = re.compile(r"@[^@+]*[+](?=[^@+]*$)")  # in the name of a sliding period: the day on which it begins
_REQUEST_DOMAIN = "shuffle-ledger/round-request/1"

CohortStatus: TypeAlias = Literal["open", "closed", "overspent", "frozen"]
_LEAST_OPEN: Final = ("frozen", "overspent", "closed", "open")
RoundState: TypeAlias = Literal["pending", "admitted", "refused", "settled", "voided", "incident"]


class RefusalReason(StrEnum):
    """Why a round was refused; the codes are stable. A round that fits several has the first of them."""

    COHORT_FROZEN = "cohort_frozen"  # entries were lost: what the cohort has spent is unknown
    COHORT_OVERSPENT = "cohort_overspent"  # the budget did not cover what was released or promised
    COHORT_CLOSED = "cohort_closed"  # it is not needed any more
    COLLECTION_OVER = "collection_over"  # the days that its windows were asked for had passed
    DELTA_ACCOUNT_EXHAUSTED = "delta_account_exhausted"  # filters would hold, but for an account of delta
    UNBOUNDED_LOSS = "unbounded_loss"  # no finite epsilon holds at the budget's delta
    BUDGET_EXCEEDED = "budget_exceeded"  # the total would be larger than the budget
    LOCAL_BUDGET_EXCEEDED = "local_budget_exceeded"  # the sum of epsilon0 would be larger than its limit
    NO_FREE_SLOT = "no_free_slot"  # the cohort has a plan, and nothing free in it dominates the round
    REFUSED_ELSEWHERE = "refused_elsewhere"  # another budget of the round refused it


_REASONS_IN_WORDS: Final[Mapping[str, str]] = {
    RefusalReason.COHORT_FROZEN: "the cohort is frozen, because entries of it were lost",
    RefusalReason.COHORT_OVERSPENT: "the budget is overspent",
    RefusalReason.COHORT_CLOSED: "the cohort is closed",
    RefusalReason.COLLECTION_OVER: "the days of its collection are over",
    RefusalReason.DELTA_ACCOUNT_EXHAUSTED: "too little of delta is left for approximate rounds",
    RefusalReason.UNBOUNDED_LOSS: "no finite epsilon bounds the total",
    RefusalReason.BUDGET_EXCEEDED: "the budget would be exceeded",
    RefusalReason.LOCAL_BUDGET_EXCEEDED: "the limit on the sum of epsilon0 would be exceeded",
    RefusalReason.NO_FREE_SLOT: "no free slot of the plan covers it",
    RefusalReason.REFUSED_ELSEWHERE: "another budget of the round refused it",
}


def refusal_in_words(reason: str) -> str:
    """Return the code of a refusal's reason as people read it; one of a later version without underscores."""
    return _REASONS_IN_WORDS.get(reason, reason.replace("_", " "))


class PromiseSource(Protocol):
    """What of a cohort says what its budget promises."""

    @property
    def quota(self) -> Quota | None:
        """The quota that it is, if it is one."""

    @property
    def ceiling(self) -> float | None:
        """What its budget may be raised to."""


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """A fixed group of users with a privacy budget of its life, with budgets of periods, or with both.

    Without a budget of its life, epsilon is infinite and delta 1, which every release is within.
    """

    name: str
    population: int  # users; no round may have more reports
    epsilon_budget: float
    delta_budget: float
    policy: str  # how rounds may be chosen; see POLICIES
    status: CohortStatus = "open"
    opened_at: datetime | None = None  # the database's clock, UTC; None before it is stored
    labels: Mapping[str, str] = field(
        default_factory=dict, hash=False
    )  # what selectors ask for; never change
    windows: tuple[Window, ...] = ()  # budgets that begin anew, beside its own; never change
    period: Period | None = None  # of another cohort's window, whose budget and chain this is
    quota: Quota | None = None  # of a team in another cohort, whose budget and chain this is
    ceiling: float | None = None  # the most that epsilon may be raised to; never changes
    local_budget: float | None = None  # of the sum of epsilon0 over a user's rounds; never changes
    rounds_per_user: int | None = None  # that one user takes part in at most, as is attested; never changes

    def __post_init__(self) -> None:
        """Raise InvalidValue for anything that is not a possible cohort."""
        object.__setattr__(self, "name", checked_text("name", self.name))
        object.__setattr__(self, "population", _whole("population", self.population, POPULATION_MAX))
        if self.has_life:
            object.__setattr__(self, "epsilon_budget", _real("epsilon", self.epsilon_budget, math.inf))
            object.__setattr__(self, "delta_budget", _real("delta", self.delta_budget, 1.0))
        else:
            object.__setattr__(self, "delta_budget", 1.0)
        if self.policy not in POLICIES:
            expected, gone = "one of: " + ", ".join(POLICIES), gone_sentence(f"policy {self.policy}")
            raise InvalidValue(field="policy", value=self.policy, expected=expected, message=gone)
        object.__setattr__(self, "labels", checked_labels(self.labels))
        object.__setattr__(self, "windows", checked_windows(self.windows, cohort=self.name))
        if self.ceiling is not None:
            object.__setattr__(self, "ceiling", _real("ceiling", self.ceiling, math.inf))
            if self.has_life:
                self._check_ceiling(self.ceiling)
        if self.local_budget is not None:
            object.__setattr__(self, "local_budget", _real("local_budget", self.local_budget, math.inf))
        if self.rounds_per_user is not None:
            _whole("rounds_per_user", self.rounds_per_user, ROUNDS_PER_USER_MAX)
            if self.policy != POLICY_ADAPTIVE:
                expected = f"none for policy {self.policy}: only filters count the rounds of one user"
                raise InvalidValue(field="rounds_per_user", value=self.rounds_per_user, expected=expected)
        if not self.has_life:
            self._check_without_life()

    def _check_without_life(self) -> None:
        if not self.windows or self.period is not None or self.quota is not None:
            expected = "a number, or budgets of periods in its place (--per): nothing would limit its rounds"
            raise InvalidValue(field="epsilon", value=None, expected=expected)
        of_life = {
            "policy": None if self.policy == POLICY_ADAPTIVE else self.policy,
            "ceiling": self.ceiling,
            "local_budget": self.local_budget,
            "rounds_per_user": self.rounds_per_user,
        }
        for name, value in of_life.items():
            if value is not None:
                expected = "none without a budget of the cohort's life (--life)"
                raise InvalidValue(field=name, value=value, expected=expected)

    def _check_ceiling(self, ceiling: float) -> None:
        if ceiling < self.epsilon_budget:
            expected = f"at least epsilon, {exact_text(self.epsilon_budget)}"
            raise InvalidValue(field="ceiling", value=ceiling, expected=expected)

    @property
    def has_life(self) -> bool:
        """Whether it has a budget of its life; else only budgets of periods limit and promise anything."""
        return self.epsilon_budget != math.inf

    @property
    def parent(self) -> str | None:
        """The cohort whose window's period, or whose team's quota, this is; None: it is a cohort itself."""
        part = self.period or self.quota
        return None if part is None else part.cohort

    def periods(self, request: RoundRequest) -> list[Period]:
        """Return the periods of the cohort's windows that a round is collected in.

        Raises:
            InvalidValue: the round does not say when it is collected, or that is longer than a window.
        """
        if not self.windows:
            return []
        if request.days is None:
            expected = f"the first day of collection, for cohort {self.name!r} has windows"
            raise InvalidValue(field="collected_on", value=None, expected=expected)
        return periods_of(self.windows, self.name, *request.days)

    def remaining(self, epsilon_spent_upper: float) -> float:
        """Return what of the epsilon budget is left, never negative."""
        return epsilon_left(self.epsilon_budget, epsilon_spent_upper)


class Opening(TypedDict, total=False):
    """The arguments with which every command, client, server and program opens a cohort.

    Only epsilon changes later. Its `labels`, such as `device=phone`, are what selectors of audiences ask for.
    Its `windows` are budgets that begin anew with every period: a round is admitted only if the cohort's
    own budget and those of all periods that it is collected in allow it. With a `ceiling`, epsilon is raised
    no further than that, and the promise is that of the ceiling. With a
    `local_budget`, no user's rounds have a larger sum of epsilon0. With `rounds_per_user`, devices take part
    in no more admitted rounds: filters count no more of them, and incidents beside them. Without
    epsilon and delta there is no budget of the cohort's life, and windows alone refuse and promise.
    """

    name: Required[str]
    population: Required[int]
    epsilon: float | None
    delta: float | None
    policy: Required[str]
    labels: Mapping[str, str] | None
    windows: Sequence[Window]
    ceiling: float | None
    local_budget: float | None
    rounds_per_user: int | None


def cohort_from_opening(**opening: Unpack[Opening]) -> Cohort:
    """Return a cohort as it would be opened.

    Raises:
        InvalidValue: a value cannot be one; names the field.
        TypeError: an argument is missing, or there is no such argument.
    """
    unknown = opening.keys() - Opening.__annotations__.keys()
    if unknown:
        raise TypeError(f"a cohort is not opened with {', '.join(sorted(unknown))}")
    declared: dict[str, Any] = {
        name: value for name, value in opening.items() if name not in ("epsilon", "delta")
    }
    epsilon, delta = opening.get("epsilon"), opening.get("delta")
    if (epsilon is None) != (delta is None):
        missing = "epsilon" if epsilon is None else "delta"
        expected = "a number: a budget has both epsilon and delta"
        raise InvalidValue(field=missing, value=None, expected=expected)
    budget: dict[str, Any] = {"epsilon_budget": math.inf, "delta_budget": 1.0}
    if epsilon is not None:
        if epsilon == math.inf:
            raise InvalidValue(field="epsilon", value=epsilon, expected="a finite number above 0")
        budget = {"epsilon_budget": epsilon, "delta_budget": delta}
    declared |= {"labels": opening.get("labels") or {}, "windows": tuple(opening.get("windows", ()))}
    return Cohort(**budget, **declared)


def opening_of(cohort: Cohort) -> Opening:
    """Return the arguments with which a cohort is opened: the inverse of `cohort_from_opening`."""
    found = {name: getattr(cohort, name) for name in Opening.__annotations__.keys() - {"epsilon", "delta"}}
    if cohort.has_life:
        found |= {"epsilon": cohort.epsilon_budget, "delta": cohort.delta_budget}
    return cast(Opening, found)


def openness(status: CohortStatus) -> int:
    """Return the place of a status in the order frozen, overspent, closed, open: the first permits least."""
    return _LEAST_OPEN.index(status)


def worst_status(*statuses: CohortStatus) -> CohortStatus:
    """Return the status that permits least."""
    return min(statuses, key=openness)


def promised_epsilon(declared: PromiseSource, budget: float) -> float:
    """Return the epsilon that must hold, or a promise is broken.

    Of a cohort with a ceiling that is the ceiling, at whatever budget rounds are refused; of a quota and of a
    cohort without a budget of its life, infinity.

    Args:
        declared: the cohort.
        budget: the epsilon in force.
    """
    if declared.quota is not None:
        return math.inf
    return budget if declared.ceiling is None else declared.ceiling


def declared_from(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a first entry's details declare, as fields of `Cohort`."""
    return {
        "labels": dict(details.get("labels", {})),
        "windows": tuple(map(Window.from_mapping, details.get("windows", ()))),
        "period": Period.from_mapping(details["period"]) if "period" in details else None,
        "quota": Quota.from_mapping(details["quota"]) if "quota" in details else None,
        "ceiling": details.get("ceiling"),
        "local_budget": details.get("local_budget"),
        "rounds_per_user": details.get("rounds_per_user"),
    }


def declared_details(cohort: Cohort) -> dict[str, Any]:
    """Return what a cohort declares as a first entry has it: only what there is."""
    given = {
        "labels": dict(cohort.labels),
        "windows": [window.to_mapping() for window in cohort.windows],
        "period": cohort.period and cohort.period.to_mapping(),
        "quota": cohort.quota and cohort.quota.to_mapping(),
        "ceiling": cohort.ceiling,
        "local_budget": cohort.local_budget,
        "rounds_per_user": cohort.rounds_per_user,
    }
    return {name: each for name, each in given.items() if each}


def one_randomizer(described: accounting.ShuffledRound) -> accounting.ShuffledRound:
    """Return a round; raises InvalidValue if its devices run several randomizers: how many reports each group
    has would be part of what is settled."""
    if described.randomizer.kind == "mixed":
        expected = "one randomizer for the whole round: mixed fleets are for calculators, such as amplify"
        raise InvalidValue(field="randomizer", value=described.randomizer.describe(), expected=expected)
    return described


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """A round as somebody declares it. Two requests are the same when their canonical bytes are; see also
    `repeats`."""

    round_id: str
    cohort: str  # the first one, where the round has an audience
    round: accounting.ShuffledRound  # the parameters as declared, before they are put on the accounting grid
    collected_on: date | None = None
    collected_until: date | None = None  # the last day of collection, if there are several
    use_case: str | None = None
    audience: tuple[str, ...] = ()  # all cohorts in order, if there are several; one alone has no audience
    # The chains of all periods that it is collected in, in order; see `decisions.windows.with_windows`.
    windows: tuple[str, ...] = ()
    team: str | None = None  # whose round it is
    # The chains of the team's quotas in its cohorts, in order; see `decisions.quotas.with_budgets`.
    quotas: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InvalidValue for an identifier, date or use case that cannot be stored."""
        object.__setattr__(self, "round_id", checked_text("round_id", self.round_id))
        object.__setattr__(self, "cohort", checked_text("cohort", self.cohort))
        if not isinstance(self.round, accounting.ShuffledRound):
            raise InvalidValue(field="round", value=self.round, expected="a ShuffledRound")
        one_randomizer(self.round)
        if self.collected_on is not None and type(self.collected_on) is not date:
            raise InvalidValue(field="collected_on", value=self.collected_on, expected="a date or nothing")
        self._check_days()
        if self.use_case is not None:
            object.__setattr__(self, "use_case", checked_text("use_case", self.use_case))
        if self.team is not None:
            checked_team(self.team)
        if self.audience:
            self._check_audience()

    def _check_days(self) -> None:
        if self.collected_until is None:
            return
        if type(self.collected_until) is not date or self.collected_on is None:
            expected = "a date, together with collected_on; or nothing"
            raise InvalidValue(field="collected_until", value=self.collected_until, expected=expected)
        if self.collected_until <= self.collected_on:
            expected = f"a day after {self.collected_on.isoformat()}, on which the collection begins"
            raise InvalidValue(
                field="collected_until", value=self.collected_until.isoformat(), expected=expected
            )

    def _check_audience(self) -> None:
        names = checked_audience(self.audience)
        if len(names) == 1 or names[0] != self.cohort or names != self.audience:
            expected = "several names in order, the first the round's cohort; one cohort is no audience"
            raise InvalidValue(field="audience", value=list(self.audience), expected=expected)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the cohorts whose users may report, in order."""
        return self.audience or (self.cohort,)

    @property
    def cohorts(self) -> tuple[str, ...]:
        """The names of all chains that the round is charged to, in order: of cohorts, periods and quotas."""
        beside = (*self.windows, *self.quotas)
        return tuple(sorted((*self.members, *beside))) if beside else self.members

    @property
    def days(self) -> tuple[date, date] | None:
        """The first and the last day of collection; None if they are not given."""
        if self.collected_on is None:
            return None
        return self.collected_on, self.collected_until or self.collected_on

    def to_bytes(self) -> bytes:
        """Return the canonical bytes that the identifier is bound to."""
        return canonical.encode(self.to_mapping())

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields, for an entry's details: what the canonical bytes spell."""
        return {**self.beside_round(), "round": self.round.to_mapping()}

    def beside_round(self) -> dict[str, Any]:
        """Return the fields of `to_mapping` without the round's parameters."""
        return {
            "version": _REQUEST_VERSION,
            "round_id": self.round_id,
            "cohort": self.cohort,
            "collected_on": self.collected_on.isoformat() if self.collected_on else None,
            "use_case": self.use_case,
            **({"audience": list(self.audience)} if self.audience else {}),
            **({"collected_until": self.collected_until.isoformat()} if self.collected_until else {}),
            **({"windows": list(self.windows)} if self.windows else {}),
            **({"team": self.team} if self.team else {}),
            **({"quotas": list(self.quotas)} if self.quotas else {}),
        }

    def repeats(self, content: bytes) -> bool:
        """Whether `content`, canonical bytes that an identifier is bound to, are this request's.

        The periods of windows follow from the cohorts and the days; without days, those of the registration
        are meant. The team is that of the registration.
        """
        if content == self.to_bytes():
            return True
        return content == self.placed_as(RoundRequest.from_bytes(content)).to_bytes()

    def placed_as(self, registered: RoundRequest) -> RoundRequest:
        """Return the request of the team of a registration, in its quotas and periods, and on its days if it
        has none. A request of another team stays one: two teams do not collect by one admission."""
        changes: dict[str, Any] = {}
        if None in (self.team, registered.team) or self.team == registered.team:
            changes = {"team": registered.team, "quotas": registered.quotas}
        if registered.windows and not self.windows:
            changes["windows"] = registered.windows
            if self.collected_on is None:
                changes |= {name: getattr(registered, name) for name in COLLECTION_FIELDS}
        return dataclasses.replace(self, **changes)

    @staticmethod
    def from_bytes(data: bytes) -> RoundRequest:
        """Return the request whose canonical bytes are `data`; raises Damaged when there is none."""
        return _request_of(canonical.decode(data))

    @staticmethod
    def from_mapping(content: object) -> RoundRequest:
        """Return the request that a decoded part of an entry spells; raises Damaged when there is none."""
        return _request_of(content)


def _request_of(content: object) -> RoundRequest:
    version = content.get("version") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or type(version) is not int or version != _REQUEST_VERSION:
        raise Damaged("a round request of an unknown version")
    try:
        return RoundRequest(
            round_id=content["round_id"],
            cohort=content["cohort"],
            round=read_round(content["round"]),
            collected_on=_day(content["collected_on"]),
            use_case=content["use_case"],
            audience=tuple(content.get("audience", ())),
            collected_until=_day(content.get("collected_until")),
            windows=tuple(content.get("windows", ())),
            team=content.get("team"),
            quotas=tuple(content.get("quotas", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"a round request with wrong fields: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Pending:
    """The round is registered and not yet decided."""

    round_id: str
    cohort: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """What an entry about a round of several cohorts left of the budget of one of them."""

    cohort: str
    sequence: int  # of the entry in its chain
    epsilon_spent_upper: float
    epsilon_remaining: float
    overspent: bool = False


@dataclass(frozen=True, kw_only=True)
class RefusedBy:
    """A cohort that refused a round of several, and its numbers."""

    cohort: str
    reason: RefusalReason
    epsilon_spent_upper: float  # without the round
    epsilon_requested_upper: float | None  # with it; None: no finite bound, or not computed
    epsilon_budget: float
    delta_budget: float

    @property
    def described(self) -> str:
        """The reason in words, with the numbers of a budget; upper bounds are rounded up."""
        reason, asked = refusal_in_words(self.reason), self.epsilon_requested_upper
        if math.isinf(self.epsilon_budget):
            return reason  # the cohort has no budget of its life
        wanted = "" if asked is None else f", with the round {upper_text(asked)}"
        spent, budget = upper_text(self.epsilon_spent_upper), exact_text(self.epsilon_budget)
        return f"{reason}: spent {spent}{wanted}, of {budget}"


_OneOfSeveral = TypeVar("_OneOfSeveral", bound=Member | RefusedBy)


def most_spent(members: Sequence[_OneOfSeveral]) -> list[_OneOfSeveral]:
    """Return a round's budgets in order; of a sliding window, only the period of which most is spent."""
    most: dict[str, _OneOfSeveral] = {}
    for each in sorted(members, key=lambda each: -each.epsilon_spent_upper):
        most.setdefault(_SLIDING.sub("@+", each.cohort), each)
    return [each for each in members if each in most.values()]


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The round may be released: its reservation is part of what the cohort has spent."""

    round_id: str
    cohort: str
    sequence: int  # of the entry that says so
    # With this round; of a cohort without a budget of its life: of the promise that has the least left.
    epsilon_spent_upper: float
    epsilon_spent_lower: float
    epsilon_remaining: float  # the least of the budgets that promise, as in every answer about a round
    accounted: accounting.ShuffledRound  # what is charged: the declared round's slot
    audience: tuple[Member, ...] = ()  # of a round of several cohorts: the numbers of each


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The round must not be released; it costs nothing. This is its outcome for ever."""

    round_id: str
    cohort: str
    sequence: int
    reason: RefusalReason
    message: str
    epsilon_spent_upper: float  # without this round
    epsilon_requested_upper: float | None  # the total with it; None: no finite bound, or not computed
    epsilon_budget: float  # of a cohort without a budget of its life: of the promise that has the least left
    delta_budget: float
    epsilon_remaining: float  # the least of the budgets that promise
    refused_by: tuple[RefusedBy, ...] = ()  # of a round of several cohorts: those that did not admit it


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A released round is closed with the number of reports that were really shuffled."""

    round_id: str
    cohort: str
    sequence: int
    reports: int
    accounted: accounting.ShuffledRound  # what is charged from now on
    overspent: bool  # the budget, or the plan, does not cover the truth; the cohort admits nothing any more
    epsilon_spent_upper: float
    epsilon_spent_lower: float
    epsilon_remaining: float
    audience: tuple[Member, ...] = ()  # of a round of several cohorts: the numbers of each
    dry_run: bool = field(default=False, metadata=LEFT_OUT)  # it would be recorded; nothing was written


@dataclass(frozen=True, kw_only=True)
class Voided:
    """A round that released nothing gave back what its cohort's policy lets it; locally it still counts."""

    round_id: str
    cohort: str
    sequence: int
    reason: str
    attestation: str
    epsilon_spent_upper: float
    epsilon_spent_lower: float
    epsilon_remaining: float
    audience: tuple[Member, ...] = ()  # of a round of several cohorts: the numbers of each
    dry_run: bool = field(default=False, metadata=LEFT_OUT)  # it would be recorded; nothing was written


@dataclass(frozen=True, kw_only=True)
class SlotsHelp:
    """How many rounds of one kind alone a new budget takes, without slots and with declared ones."""

    rounds_without: int  # one more is refused
    rounds_with: int  # a lower bound on the number that slots beside the filters admit

    @property
    def described(self) -> str:
        """By how much slots would help, with both numbers, as a clause."""
        return (
            f"alone, {self.rounds_without:,} such rounds fit; if --plan (over HTTP: plan) had declared them,"
            f" at least {self.rounds_with:,} would"
        )


@dataclass(frozen=True, kw_only=True)
class Quote:
    """The answer that a round would get now; nothing is stored or promised."""

    cohort: str
    would_be: Literal["admitted", "refused"]
    reason: RefusalReason | None  # None when it would be admitted
    message: str | None
    accounted: accounting.ShuffledRound
    epsilon_spent_upper: float  # now
    epsilon_requested_upper: float | None  # with the round; None: no finite bound, or not computed
    epsilon_requested_lower: float | None
    epsilon_remaining: float  # after the round if it would be admitted, else now; the least that is promised
    epsilon_budget: float
    delta_budget: float
    # Likewise; None: the cohort has no accounts of delta.
    delta_accounts: accounting.AccountsReading | None = None
    audience: tuple[str, ...] = ()  # of several budgets, windows included: all; `cohort` has these numbers
    refused_by: tuple[RefusedBy, ...] = ()  # of a round of several cohorts: those that would not admit it
    slots_would_help: SlotsHelp | None = None  # of a new cohort: slots would admit far more


@dataclass(frozen=True, kw_only=True)
class ReleaseTimes:
    """When something was released, as the actor attests: later than `after`, and before `before`."""

    after: datetime | None = None  # None: it is not attested
    before: datetime | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValue for times without a zone, or in the wrong order."""
        given: dict[str, object] = {"released_after": self.after, "released_before": self.before}
        for name, moment in given.items():
            if moment is not None and (not isinstance(moment, datetime) or moment.utcoffset() is None):
                raise InvalidValue(field=name, value=moment, expected="a time with its zone, or nothing")
        if self.after is not None and self.before is not None and self.after >= self.before:
            expected = f"a time later than {self.after.isoformat()}, after which it was released"
            raise InvalidValue(field="released_before", value=self.before.isoformat(), expected=expected)

    def to_mapping(self) -> dict[str, str | None]:
        """Return the times as entries spell them."""
        moments = {"after": self.after, "before": self.before}
        return {
            name: None if moment is None else canonical.spelled_moment(moment)
            for name, moment in moments.items()
        }

    def is_after_opening(self, opened_at: datetime | None) -> bool:
        """Return whether they attest a release later than an opening; None: it is not known when that was."""
        return machine.is_after_opening(microseconds_of(self.after), microseconds_of(opened_at))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, str | None]) -> ReleaseTimes:
        """Return the times that a mapping spells; raises ValueError, KeyError, InvalidValue."""
        if set(mapping) != {"after", "before"}:
            raise KeyError("after, before")
        return cls(
            **{name: None if text is None else datetime.fromisoformat(text) for name, text in mapping.items()}
        )


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A correction of a released round, and its effect on the cohort's budget."""

    round_id: str
    cohort: str
    sequence: int
    round: accounting.ShuffledRound  # the round as it truly was
    reason: str
    accounted: accounting.ShuffledRound  # what is charged from now on
    changed: bool  # what is charged is not what was charged before
    overspent: bool  # the budget, or the plan, does not cover the truth; the cohort admits nothing any more
    epsilon_spent_upper: float
    epsilon_spent_lower: float
    epsilon_remaining: float
    audience: tuple[Member, ...] = ()  # of a round of several cohorts: the numbers of each
    dry_run: bool = field(default=False, metadata=LEFT_OUT)  # it would be recorded; nothing was written


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A release that nothing admitted, and what it made of the cohort's budget."""

    round_id: str
    cohort: str
    sequence: int
    # The round that was released; None: unknown, so that it counts as data in the clear.
    round: accounting.ShuffledRound | None
    released: ReleaseTimes
    reason: str
    accounted: accounting.ShuffledRound  # what is charged
    overspent: bool
    chosen_after: bool  # its cohort was opened when its output may have been known
    epsilon_spent_upper: float
    epsilon_spent_lower: float
    epsilon_remaining: float
    audience: tuple[Member, ...] = ()  # of a round of several cohorts: the numbers of each
    dry_run: bool = field(default=False, metadata=LEFT_OUT)  # it would be recorded; nothing was written

    @property
    def unprotected_because(self) -> str | None:
        """Why the release is charged as the unprotected data, as a phrase; None: it is not."""
        if self.round is None:
            return "it is unknown what was released"
        if self.chosen_after:
            return "no time after the opening of the cohort is attested for the release"
        return None


Outcome: TypeAlias = Admitted | Refused


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """A registered round and all that has happened to it."""

    request: RoundRequest
    registered_by: str
    registered_at: datetime
    state: RoundState
    outcome: Outcome | None  # None while pending, and of an incident that no decision preceded
    closing: Settled | Voided | None
    accounted: accounting.ShuffledRound | None  # what is or was charged; None while pending
    attempts: int  # failed attempts to decide
    last_error: str | None
    corrections: tuple[Corrected, ...] = ()  # in order
    incident: Incident | None = None  # released although nothing admitted it

    @property
    def restatements(self) -> tuple[Incident | Corrected | Settled, ...]:
        """Corrections and settlement of the release that counts, in order; an incident begins a new one."""
        restated: list[Incident | Corrected | Settled] = [*self.corrections]
        if isinstance(self.closing, Settled) and self.incident is None:
            restated.append(self.closing)
        if self.incident is not None:
            restated = [self.incident, *(one for one in restated if one.sequence > self.incident.sequence)]
        return tuple(sorted(restated, key=lambda one: one.sequence))


def _day(text: str | None) -> date | None:
    return date.fromisoformat(text) if text else None


def checked_new_name(field: str, value: object) -> str:
    """Return a name for what does not exist yet: as `checked_text`, and neither `.` nor `..`.

    Programs that resolve addresses remove these two segments, so no address leads to what has such a name.

    Raises:
        InvalidValue: the name is not one of these.
    """
    text = checked_text(field, value)
    if text in UNADDRESSABLE:
        raise InvalidValue(field=field, value=value, expected=ADDRESSABLE)
    return text


def epsilon_left(epsilon_budget: float, epsilon_spent_upper: float) -> float:
    """Return what of an epsilon budget is left, never negative; at most the exact difference."""
    if math.isinf(epsilon_budget):
        return math.inf  # there is no budget
    left = epsilon_budget - epsilon_spent_upper
    if left <= 0.0:
        return 0.0
    # The sum is rounded once, so its sign is that of the exact one.
    is_more = math.fsum((epsilon_budget, -epsilon_spent_upper, -left)) < 0.0
    return math.nextafter(left, 0.0) if is_more else left


def checked_reports(
    value: object, *, field: str, population: int, cohorts: int = 1, per_user: int = 1
) -> int:
    """Return `value` if it is a whole number from 1 to the cohorts' population, times the reports of each
    user; else raise InvalidValue."""
    owner = "the cohort's population, " if cohorts == 1 else f"the population of its {cohorts} cohorts, "
    times = "" if per_user == 1 else f"{per_user} times "
    return _whole(field, value, per_user * population, times + owner)


def checked_epsilon(value: object) -> float:
    """Return `value` if it can be a budget's epsilon; else raise InvalidValue."""
    return _real("epsilon", value, math.inf)


def _whole(field: str, value: object, largest: int, largest_name: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InvalidValue(
            field=field, value=value, expected=f"a whole number from 1 to {largest_name}{largest}"
        )
    return value


def _real(field: str, value: Any, below: float) -> float:
    # Written so that NaN, which compares false with everything, is refused.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < below:
        return float(value)
    limit = (
        "a finite number above 0" if math.isinf(below) else f"a number above 0 and below {exact_text(below)}"
    )
    raise InvalidValue(field=field, value=value, expected=limit)


def request_digest(content: bytes) -> bytes:
    """Return the digest under which a request's canonical bytes are stored."""
    return canonical.framed_digest(_REQUEST_DOMAIN, content)


def request_of(
    audience: Sequence[str],
    described: accounting.ShuffledRound,
    *,
    round_id: str,
    **more: Any,
) -> RoundRequest:
    """Return the request of a round of some cohorts.

    Args:
        audience: their names; a single one makes the request that names this cohort alone.
        described: the round. A sample of each cohort by itself counts as one of the largest rate.
        round_id: its identifier.
        more: further fields of `RoundRequest`.

    Raises:
        InvalidValue, InvalidParameter: the parts contradict each other.
    """
    names = checked_audience(audience)
    several = names if len(names) > 1 else ()
    return RoundRequest(round_id=round_id, cohort=names[0], audience=several, round=described, **more)
