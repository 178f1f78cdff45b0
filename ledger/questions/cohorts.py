"""Questions about cohorts: open, list, show, change, and what their budgets still allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, Unpack, cast

from pydantic import BeforeValidator, Field

from shuffle_ledger import accounting
from shuffle_ledger.ledger.answers.quotes import BATCH_MAX
from shuffle_ledger.ledger.questions.fields import (
    Body,
    CohortName,
    Count,
    Day,
    Delta,
    Epsilon,
    Explained,
    Flag,
    Labels,
    Limit,
    NewName,
    TeamName,
    config,
    whole,
)
from shuffle_ledger.ledger.questions.kinds import PlannedRound, RoundParameters, counted
from shuffle_ledger.ledger.values.requests import (
    POLICIES,
    POLICY_ADAPTIVE,
    ROUNDS_PER_USER_MAX,
    Opening,
    checked_epsilon,
    cohort_from_opening,
)
from shuffle_ledger.ledger.values.schedules import FIT_MAX, ForecastWanted
from shuffle_ledger.ledger.values.windows import BUCKETS, SLIDING_MAX, UNITS, WINDOWS_MAX, Window

PLAN_MAX = 1000  # kinds
COHORTS_MAX = 1000


@dataclass(frozen=True, kw_only=True)
class WindowBudget(Body):
    """A budget `per` unit of the calendar, or for every run of `rolling` buckets. Days are those of UTC."""

    per: Annotated[Literal[UNITS] | None, Field(description="The unit; weeks begin on Monday.")] = None  # type: ignore[valid-type]  # the ledger's own list
    calendar: Annotated[Literal[UNITS] | None, Field(description="The same as `per`.")] = None  # type: ignore[valid-type]  # the ledger's own list
    rolling: Annotated[int, Field(strict=True, ge=2, le=SLIDING_MAX), BeforeValidator(whole)] | None = None
    bucket: Literal[BUCKETS] | None = None  # type: ignore[valid-type]  # the ledger's own list
    epsilon: Epsilon
    delta: Delta
    local_budget: Annotated[
        Epsilon | None,
        Field(description="A limit on the sum of epsilon0 over a user's rounds in each period."),
    ] = None

    __pydantic_config__ = config({"dependentRequired": {"rolling": ["bucket"], "bucket": ["rolling"]}})

    def window(self) -> Window:
        """Return the window; raises InvalidValue."""
        return Window.from_mapping({name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class OpenCohort(Body):
    """A cohort to open. Opening it again with the same content changes nothing."""

    name: NewName
    population: Count
    epsilon: Annotated[
        Epsilon | None,
        Field(description="Of the cohort's life; left out with delta, only budgets of windows limit it."),
    ] = None
    delta: Delta | None = None
    policy: Literal[POLICIES] = POLICY_ADAPTIVE  # type: ignore[valid-type]  # the ledger's own list

    plan: Annotated[tuple[PlannedRound, ...], Field(min_length=1, max_length=PLAN_MAX)] | None = None
    approximate_share: Annotated[
        Annotated[float, Field(strict=True, gt=0, le=accounting.LARGEST_APPROXIMATE_SHARE)] | None,
        Field(
            description="The part of delta that policy adaptive sets aside for rounds that are only"
            " approximately private, half of it for local deltas; of the cohort's windows and quotas too. It"
            " never changes; left out, it is 1/64."
        ),
    ] = None
    labels: Annotated[
        Labels, Field(description="What selectors of audiences ask for. They never change.")
    ] = field(default_factory=dict)
    windows: Annotated[
        tuple[WindowBudget, ...],
        Field(
            max_length=WINDOWS_MAX,
            description="Budgets that begin anew with every calendar unit, or that slide, beside that of the"
            " cohort's life. A round is admitted only if all of them allow it. They never change.",
        ),
    ] = ()
    ceiling: Annotated[
        Epsilon | None,
        Field(
            description="The most that epsilon may be raised to. The promise is that of the ceiling. It never"
            " changes; left out, there is no such limit, and the promise is raised with epsilon."
        ),
    ] = None
    local_budget: Annotated[
        Epsilon | None,
        Field(description="A limit on the sum of epsilon0 over a user's rounds. It never changes."),
    ] = None
    rounds_per_user: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=ROUNDS_PER_USER_MAX), BeforeValidator(whole)] | None,
        Field(
            description="How many rounds one device takes part in at most, whatever its data are; policy"
            " adaptive then counts only so many. It never changes."
        ),
    ] = None
    accept_warnings: Annotated[
        Flag,
        Field(
            description="Whether unusual values are meant: an epsilon above 10, a delta of at least 1 divided"
            " by the population, fewer than 100 users. Left out, they are refused."
        ),
    ] = False

    __pydantic_config__ = config(name="nz-phone", population=310000, epsilon=1.5, delta=1e-7)

    @classmethod
    def of(
        cls,
        *,
        plan: Mapping[accounting.ShuffledRound, int] | None = None,
        approximate_share: float | None = None,
        accept_warnings: bool = False,
        **opening: Unpack[Opening],
    ) -> Self:
        """Return the question that opens a cohort; see `Opening`. Raises InvalidValue."""
        given: dict[str, Any] = {**opening, "labels": dict(cohort_from_opening(**opening).labels)}
        given["windows"] = tuple(WindowBudget(**each.to_mapping()) for each in opening.get("windows", ()))
        given |= {"approximate_share": approximate_share, "accept_warnings": accept_warnings}
        if plan is not None:
            given["plan"] = tuple(PlannedRound.of(each, count=count) for each, count in plan.items())
        return cls(**given)

    def opening(self) -> Opening:
        """Return what the cohort is opened with; raises InvalidValue."""
        given = {name: value for name, value in vars(self).items() if name in Opening.__annotations__}
        return cast(Opening, {**given, "windows": [each.window() for each in self.windows]})

    def planned(self) -> dict[accounting.ShuffledRound, int] | None:
        """Return how often each kind of round is planned; raises InvalidParameter."""
        return counted(self.plan or ()) or None


@dataclass(frozen=True, kw_only=True)
class ListCohorts(Body):
    """Which cohorts to list."""

    after: Annotated[str, Field(max_length=200, description="Only names behind this one.")] = ""
    limit: Limit = COHORTS_MAX


@dataclass(frozen=True)
class OfCohort(Body):
    """One cohort."""

    cohort: CohortName


@dataclass(frozen=True)
class ShowBudget(OfCohort):
    """The budgets of one cohort, for a round that is collected on a day."""

    on: Annotated[Day | None, Field(description="The day of collection, UTC; left out, it is today.")] = (
        field(default=None, kw_only=True)
    )


@dataclass(frozen=True, kw_only=True)
class ChangeBudget(Explained):
    """The budget's epsilon from now on, and why; delta never changes."""

    cohort: CohortName = field(kw_only=False)
    epsilon: Epsilon

    __pydantic_config__ = config(epsilon=2.0, reason="the board agreed to a longer study")

    def check(self) -> None:
        """See `Body`."""
        super().check()
        checked_epsilon(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class CloseCohort(Explained):
    """Why the cohort is closed, for ever."""

    cohort: CohortName = field(kw_only=False)

    __pydantic_config__ = config(reason="the product was withdrawn")


@dataclass(frozen=True, kw_only=True)
class SetQuota(ChangeBudget):
    """The epsilon that a team's rounds may use from now on, and why; delta is the cohort's."""

    team: TeamName

    __pydantic_config__ = config(epsilon=0.5, reason="half of the budget is the search team's")


@dataclass(frozen=True, kw_only=True)
class QuoteRounds(Body):
    """Rounds to price, one after the other; nothing is stored and nothing is promised."""

    cohort: CohortName
    rounds: Annotated[tuple[RoundParameters, ...], Field(min_length=1, max_length=BATCH_MAX)]
    fits: Annotated[Flag, Field(description="Also say what would fit in place of the first round.")] = False

    __pydantic_config__ = config(rounds=[{"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000}])

    @classmethod
    def of(cls, cohort: str, rounds: Sequence[accounting.ShuffledRound], *, fits: bool = False) -> Self:
        """Return the question about rounds; `fits` also asks what would fit instead."""
        return cls(cohort=cohort, rounds=tuple(map(RoundParameters.of, rounds)), fits=fits)


@dataclass(frozen=True, kw_only=True)
class Future(Body):
    """A question about the future. Nothing is stored, reserved or promised."""

    round: Annotated[
        RoundParameters | None,
        Field(description="The kind of rounds. Left out: each kind that the cohort has had, or its plan."),
    ] = None
    fit: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=FIT_MAX), BeforeValidator(whole)] | None,
        Field(description="Also say with which largest `epsilon0` so many more rounds fit; needs `round`."),
    ] = None
    every: Annotated[
        Literal["day", "week", "month"] | None,
        Field(description="One round in each of these periods: the answer says on which day that ends."),
    ] = None
    until: Annotated[
        Day | None, Field(description="The last day of the schedule: the answer says whether it is reached.")
    ] = None
    first_on: Annotated[
        Day | None, Field(description="The day of the schedule's first round; left out: today, UTC.")
    ] = None

    def wanted(self) -> ForecastWanted:
        """Return the question; raises InvalidValue, InvalidParameter where it contradicts itself."""
        described = None if self.round is None else self.round.described()
        return ForecastWanted(
            round=described, fit=self.fit, every=self.every, until=self.until, first_on=self.first_on
        )


def _asked(wanted: ForecastWanted) -> dict[str, object]:
    """Return the fields of `Future`."""
    described = None if wanted.round is None else RoundParameters.of(wanted.round)
    return {**vars(wanted), "round": described}


@dataclass(frozen=True, kw_only=True)
class ForecastRounds(Future):
    """A question about a cohort's future. Nothing is stored, reserved or promised."""

    cohort: CohortName

    __pydantic_config__ = config(
        round={"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000},
        every="week",
        until="2025-12-31",
        first_on="2025-01-06",
    )

    @classmethod
    def of(cls, cohort: str, wanted: ForecastWanted) -> Self:
        """Return the question; a missing day is the day of the answer."""
        return cls(cohort=cohort, **_asked(wanted))  # type: ignore[arg-type]  # as `ForecastWanted` has them
