"""Questions about rounds: price, register, list, show, close, correct; and incidents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from typing import Annotated, Any, Self, get_type_hints

from pydantic import Field

from shuffle_ledger import accounting
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.questions.cohorts import COHORTS_MAX, Future, OpenCohort, _asked
from shuffle_ledger.ledger.questions.fields import (
    Audience,
    Body,
    CohortName,
    Count,
    Day,
    Explained,
    Flag,
    Limit,
    Moment,
    Name,
    NewName,
    Restating,
    RoundId,
    config,
)
from shuffle_ledger.ledger.questions.kinds import ROUND_FIELDS, RoundParameters
from shuffle_ledger.ledger.values.audiences import checked_audience
from shuffle_ledger.ledger.values.requests import (
    POLICY_PLAN,
    Cohort,
    ReleaseTimes,
    RoundRequest,
    RoundState,
    cohort_from_opening,
    opening_of,
    request_of,
)
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.texts import checked_text

REHEARSED_MAX = 1000  # rounds of one rehearsal over HTTP
_KRR: dict[str, Any] = {"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000}


@dataclass(frozen=True, kw_only=True)
class OfCohorts(RoundParameters):
    """A round of one cohort or of an audience."""

    cohort: Annotated[
        Name | None, Field(description="The round's cohort; left out if it has an audience.")
    ] = None
    audience: Annotated[
        Audience | None,
        Field(
            description="The round's cohorts: their names, or a selector over labels such as"
            " `device=phone,country=de`, which means those that have all of them now. The round is admitted"
            " if and only if every one of them admits it, with one number of reports over all."
        ),
    ] = None
    collected_on: Annotated[
        Day | None,
        Field(
            description="The day of collection, UTC, or the first one. Of a cohort with windows it says which"
            " of their periods are charged, and defaults to today."
        ),
    ] = None
    collected_until: Annotated[Day | None, Field(description="The last day, if there are several.")] = None

    @classmethod
    def asking(cls, request: RoundRequest) -> Self:
        """Return the question about a round of some cohorts, for the caller's team."""
        named = {"audience": request.audience} if request.audience else {"cohort": request.cohort}
        shared = vars(request).keys() & cls.__dataclass_fields__.keys() - {"cohort", "audience"}
        return cls.of(request.round, **named, **{name: getattr(request, name) for name in shared})

    def named(self) -> str | Sequence[str]:
        """Return the cohorts as they are given; raises InvalidValue for none, or in both ways."""
        if (self.cohort is None) == (self.audience is None):
            expected = "a cohort, or an audience in its place"
            raise InvalidValue(field="cohort", value=self.cohort, expected=expected)
        return [self.cohort] if self.cohort is not None else self.audience or []

    def request_for(self, audience: Sequence[str], *, round_id: str, **more: Any) -> RoundRequest:
        """Return what is to be priced or registered; raises InvalidParameter, InvalidValue."""
        more |= {"collected_on": self.collected_on, "collected_until": self.collected_until}
        return request_of(audience, self.described(), round_id=round_id, **more)


@dataclass(frozen=True, kw_only=True)
class QuoteForAll(OfCohorts):
    """A round to price, of one cohort or several; nothing is stored and nothing is promised."""

    # So that the body of a registration is the body of its quote.
    round_id: Annotated[
        NewName | None, Field(description="Does not matter: the price is that of a new round.")
    ] = None
    use_case: Annotated[Name | None, Field(description="Does not matter.")] = None
    accept_warnings: Annotated[Flag, Field(description="Does not matter.")] = False

    __pydantic_config__ = config(audience=["nz-phone"], **_KRR)


@dataclass(frozen=True, kw_only=True)
class RehearseRounds(Body):
    """New rounds to decide, one after the other; nothing is stored and nothing is promised."""

    rounds: Annotated[
        tuple[QuoteForAll, ...],
        Field(min_length=1, max_length=REHEARSED_MAX, description="The rounds, in their order."),
    ]
    opening: Annotated[
        tuple[OpenCohort, ...],
        Field(
            max_length=COHORTS_MAX,
            description="Cohorts that would be opened before them, without `plan` and `approximate_share`;"
            " one that is open stays as it is.",
        ),
    ] = ()

    __pydantic_config__ = config(rounds=[{"cohort": "nz-phone", **_KRR}])

    @classmethod
    def of(cls, requests: Sequence[RoundRequest], *, opening: Sequence[Cohort] = ()) -> Self:
        """Return the question about rounds of the caller's team, and about cohorts without plans."""
        opened = tuple(OpenCohort.of(**opening_of(each)) for each in opening)
        return cls(rounds=tuple(map(QuoteForAll.asking, requests)), opening=opened)

    def opened(self) -> list[Cohort]:
        """Return the cohorts that would be opened; raises InvalidValue."""
        for each in self.opening:
            if each.policy == POLICY_PLAN or each.plan is not None or each.approximate_share is not None:
                expected = "cohorts without plan and approximate_share"
                raise InvalidValue(field="opening", value=each.name, expected=expected)
        return [cohort_from_opening(**each.opening()) for each in self.opening]


@dataclass(frozen=True, kw_only=True)
class RegisterRound(OfCohorts):
    """A round to register under an identifier you choose. Repeating the request repeats the answer."""

    round_id: NewName
    use_case: Name | None = None
    accept_warnings: Annotated[
        Flag,
        Field(
            description="Whether the first round of the cohort may be a sample of a kind of which declared"
            " slots would admit more than 1.25 times as many. Left out, it is not registered."
        ),
    ] = False

    __pydantic_config__ = config(
        round_id="health-2025-W02",
        cohort="nz-phone",
        **_KRR,
        use_case="health-types",
        collected_on="2025-01-06",
    )

    def request(self, audience: Sequence[str], *, team: str | None) -> RoundRequest:
        """Return what is to be registered; raises InvalidParameter, InvalidValue."""
        return self.request_for(audience, round_id=self.round_id, use_case=self.use_case, team=team)


@dataclass(frozen=True, kw_only=True)
class ForecastForAll(Future):
    """A question about rounds of several cohorts. Nothing is stored, reserved or promised."""

    audience: Annotated[
        Audience, Field(description="The rounds' cohorts: their names, or a selector over labels.")
    ]
    round: Annotated[RoundParameters, Field(description="The kind of rounds, of all cohorts together.")] = (
        field()
    )

    __pydantic_config__ = config(audience=["nz-phone"], round=_KRR, every="week", until="2025-12-31")

    @classmethod
    def of(cls, audience: Sequence[str], wanted: ForecastWanted) -> Self:
        """Return the question, for the caller's team; a missing day is that of the answer. Raises
        InvalidValue."""
        wanted.described()
        return cls(audience=checked_audience(audience), **_asked(wanted))  # type: ignore[arg-type]  # as `ForecastWanted` has them


@dataclass(frozen=True, kw_only=True)
class ResolveAudience(Body):
    """A list of names, or a selector over labels."""

    select: Annotated[str, Field(min_length=1, max_length=4000, description="Names or a selector.")] = field(
        kw_only=False
    )
    round_id: Annotated[
        str | None, Field(max_length=200, description="As registered: if it is, the cohorts of that time.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ListRounds(Body):
    """Which rounds to list."""

    cohort: Annotated[str | None, Field(max_length=200, description="Only of this cohort.")] = None
    outcome: Annotated[RoundState | None, Field(description="Only rounds in this state now.")] = None
    since: Annotated[Moment | None, Field(description="Only registered then or later.")] = None
    after: Annotated[
        str | None, Field(max_length=200, description="Go on behind this round: `after` of the last page.")
    ] = None
    limit: Limit = 100


@dataclass(frozen=True)
class OfRound(Body):
    """One round."""

    round_id: RoundId


@dataclass(frozen=True, kw_only=True)
class SettleRound(Restating):
    """How many reports were really shuffled, counted as at registration: before the honest fraction is taken;
    with participation the users."""

    round_id: RoundId = field(kw_only=False)
    reports: Count

    __pydantic_config__ = config(reports=29000)


@dataclass(frozen=True, kw_only=True)
class VoidRound(Restating, Explained):
    """Your attestation that nothing of the round was or will be released, and why."""

    round_id: RoundId = field(kw_only=False)

    __pydantic_config__ = config(reason="the collection was cancelled before devices reported")


UNSAID: Any = object()  # of a field of a correction: as it was declared
_NONE_IS_SAID = ("sampled_from", "participation")  # null means that there was none


def _unsaid() -> Any:
    return UNSAID


_Changes: Any = make_dataclass(
    "_Changes",
    [
        (name, kind | None, field(default_factory=_unsaid))
        for name, kind in get_type_hints(RoundParameters, include_extras=True).items()
        if name in ROUND_FIELDS
    ],
    bases=(Body,),
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class CorrectRound(_Changes, Restating, Explained):  # type: ignore[misc]  # made of the fields of a round
    """The true parameters of a released round: the fields that differ from those declared, and the reason.
    Null for `sampled_from` or `participation` means that there was none; for other fields it means no
    change."""

    round_id: RoundId

    __pydantic_config__ = config(reports=21000, reason="a shard was counted twice")

    @classmethod
    def of(cls, round_id: str, changes: Mapping[str, object], *, reason: str, dry_run: bool = False) -> Self:
        """Return the question that tells what was otherwise; raises InvalidValue."""
        for name, value in changes.items():
            if name not in ROUND_FIELDS:
                raise InvalidValue(field=name, value=value, expected=f"only {', '.join(ROUND_FIELDS)}")
        return cls(round_id=round_id, reason=reason, dry_run=dry_run, **changes)

    def changes(self) -> dict[str, object]:
        """Return the fields of the round that were otherwise."""
        said = {name: getattr(self, name) for name in ROUND_FIELDS if getattr(self, name) is not UNSAID}
        return {name: value for name, value in said.items() if value is not None or name in _NONE_IS_SAID}


@dataclass(frozen=True, kw_only=True)
class RecordIncident(Restating, Explained):
    """A release that nothing admitted. `round` is null where nothing is known of it: then everything counts
    as revealed."""

    cohort: CohortName
    round_id: Name
    round: RoundParameters | None
    released_after: Moment | None = None
    released_before: Moment | None = None
    collected_on: Annotated[
        Day | None, Field(description="The first day of its collection, UTC; a cohort with windows needs it.")
    ] = None
    collected_until: Annotated[Day | None, Field(description="The last day, if there are several.")] = None

    __pydantic_config__ = config(
        round_id="export-2025-01-06",
        round=_KRR,
        released_after="2025-01-06T12:00:00Z",
        reason="a script exported a batch that was never registered",
    )

    @classmethod
    def of(
        cls,
        cohort: str,
        *,
        round_id: str,
        described: accounting.ShuffledRound | None,
        reason: str,
        released: ReleaseTimes | None = None,
        collected_on: date | None = None,
        collected_until: date | None = None,
        dry_run: bool = False,
    ) -> Self:
        """Return the question that records a release; None as `described`: nothing is known of it."""
        times: Mapping[str, datetime | None] = vars(released or ReleaseTimes())
        return cls(
            cohort=cohort,
            round_id=checked_text("round_id", round_id),
            round=None if described is None else RoundParameters.of(described),
            **{f"released_{name}": moment for name, moment in times.items()},
            collected_on=collected_on,
            collected_until=collected_until,
            reason=reason,
            dry_run=dry_run,
        )

    def released(self) -> ReleaseTimes:
        """Return when it was released; raises InvalidValue where the times contradict each other."""
        return ReleaseTimes(after=self.released_after, before=self.released_before)
