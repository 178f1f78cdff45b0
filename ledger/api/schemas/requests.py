"""What requests may say. Whatever fits these models fits `values.requests`, but for contradictions.

The names and bounds are the ledger's own; the schema repeats them so that the published description is true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from shuffle_ledger.accounting import (
    LARGEST_APPROXIMATE_SHARE,
    MAXIMUM_REPORTS_PER_USER,
    MAXIMUM_ROUNDS,
    InvalidParameter,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.ledger.api.schemas.randomizers import RANDOMIZER_SCHEMA, is_described_in_full
from shuffle_ledger.ledger.decisions.audiences import request_of
from shuffle_ledger.ledger.decisions.quoting import BATCH_MAX
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.gone_names import replacement
from shuffle_ledger.ledger.reports.events import CURSOR_PATTERN
from shuffle_ledger.ledger.reports.forecasts import FIT_MAX, ForecastWanted
from shuffle_ledger.ledger.values.audiences import AUDIENCE_MAX, LABELS_MAX
from shuffle_ledger.ledger.values.days import (
    DAY_EXPECTED,
    MOMENT_EXPECTED,
    NotADay,
    day_from,
    moment_from,
)
from shuffle_ledger.ledger.values.requests import (
    ADDRESSABLE,
    POLICIES,
    POLICY_ADAPTIVE,
    REASON_LENGTH_MAX,
    ROUNDS_PER_USER_MAX,
    UNADDRESSABLE,
    Cohort,
    Opening,
    ReleaseTimes,
    RoundRequest,
    cohort_from_opening,
)
from shuffle_ledger.ledger.values.texts import NAME_LENGTH_MAX, POPULATION_MAX
from shuffle_ledger.ledger.values.windows import BUCKETS, SLIDING_MAX, UNITS, WINDOWS_MAX, Window

PLAN_MAX = 1000  # kinds
# New names consist of printable characters of the larger scripts, each its own normal form C, and of inner
# blanks. The ledger itself takes every printable character; names that exist are found whatever they are.
CHARACTERS = (
    r"!-~\u00ae-\u033f\u03a3-\u052f\u061d-\u06dc\u08e3-\u0957\u0e01-\u0e3a\u0e3f-\u0e5b\u1000-\u10c5"
    r"\u10d0-\u1248\u1780-\u17dd\u1d00-\u1f15\u2190-\u2328\u3041-\u3096\u3099-\u30ff\u3131-\u318e"
    r"\u3220-\ua48c\uac00-\ud7a3\uff01-\uffbe"
)
_CLASS = CHARACTERS.encode("ascii").decode("unicode_escape")


def _text_pattern(length_max: int) -> str:
    return f"^[{_CLASS}]([ {_CLASS}]{{0,{length_max - 2}}}[{_CLASS}])?$"


def _new_name_pattern() -> str:
    """Return the pattern of names except `.` and `..`, without the look-ahead that not all engines know."""
    but_dot = _CLASS.replace("!-~", "!-\\-/-~")
    longer = f"[{_CLASS}][ {_CLASS}]{{1,{NAME_LENGTH_MAX - 2}}}[{_CLASS}]"
    return f"^([{but_dot}][{_CLASS}]?|[.][{but_dot}]|{longer})$"


def _addressable(value: str) -> str:
    if value in UNADDRESSABLE:
        raise ValueError(ADDRESSABLE)
    return value


_FIRST, _LAST = date(1000, 1, 1), date(2999, 12, 31)  # as the patterns of the description say


def _calendar_date(value: object) -> object:
    if isinstance(value, str):
        return day_from(value, first=_FIRST, last=_LAST)
    raise ValueError(DAY_EXPECTED)


_MOMENT = (
    r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})$"
)


def _moment(value: object) -> object:
    if isinstance(value, str):
        found = moment_from(value, first=_FIRST, last=_LAST)  # first: it knows what is wrong with the day
        if re.fullmatch(_MOMENT[1:-1], value):
            return found
    raise ValueError(MOMENT_EXPECTED)


class _RandomizerField:
    """A randomizer as a call or in its JSON form, with the schema that says so."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return RANDOMIZER_SCHEMA


def whole(value: object) -> object:
    """Return 30000.0 as 30000, for in JSON they are one number; everything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


def _randomizer(value: object) -> object:
    written = whole(value)
    try:
        return parse_randomizer(written)
    except InvalidParameter:
        if is_described_in_full(written):
            raise
        return written  # `RoundParameters.round` refuses it again, as values that contradict each other


_LABEL = r"^[a-zA-Z0-9]([a-zA-Z0-9 _.:/-]*[a-zA-Z0-9])?$"
_SELECTOR = r"^[a-zA-Z0-9]([a-zA-Z0-9 _.:/=,|-]*[a-zA-Z0-9])?$"
DIGEST_PATTERN = "^[0-9a-f]{64}$"
# The texts that a pattern takes, in words. The words leave out rare characters that the pattern lacks.
PATTERNS: Mapping[str, str] = {
    _text_pattern(
        NAME_LENGTH_MAX
    ): f"1 to {NAME_LENGTH_MAX} printable characters, none of the outer ones blank",
    _text_pattern(
        REASON_LENGTH_MAX
    ): f"1 to {REASON_LENGTH_MAX} printable characters, none of the outer ones blank",
    _LABEL: "Latin letters, digits, blanks and _ . : / -, with a letter or digit at both ends",
    _SELECTOR: "names with commas or | between, or labels: device=phone,country=de",
    DIGEST_PATTERN: "64 hexadecimal digits in small letters",
    CURSOR_PATTERN: "a cursor: `after` of the last page, or of an event",
}
UNKNOWN_FIELD = "unknown_field"  # kind of the error about a field that a body does not have

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=NAME_LENGTH_MAX, pattern=_text_pattern(NAME_LENGTH_MAX))
]
NewName = Annotated[
    Name, AfterValidator(_addressable), Field(json_schema_extra={"pattern": _new_name_pattern()})
]
Reason = Annotated[
    str,
    StringConstraints(min_length=1, max_length=REASON_LENGTH_MAX, pattern=_text_pattern(REASON_LENGTH_MAX)),
]
Epsilon = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=1e-60, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=POPULATION_MAX), BeforeValidator(whole)]
PerUser = Annotated[int, Field(ge=1, le=MAXIMUM_REPORTS_PER_USER), BeforeValidator(whole)]
Day = Annotated[
    date,
    BeforeValidator(_calendar_date),
    Field(json_schema_extra={"pattern": "^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"}),
]
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    Field(json_schema_extra={"pattern": _MOMENT}),
]
Randomizer = Annotated[Any, BeforeValidator(_randomizer), _RandomizerField]


def one_of_two(expected: str) -> WrapValidator:
    """Return a validator of a field of two kinds: it raises one error in place of one for each kind."""

    def read(value: object, either: ValidatorFunctionWrapHandler) -> object:
        try:
            return either(value)
        except ValidationError as error:
            causes = [each.get("ctx", {}).get("error") for each in error.errors()]
            said = [str(each) for each in causes if isinstance(each, NotADay)]
            # The answer names the fault of a day. A text that is no day may be meant as a moment.
            named = [each for each in said if each not in (DAY_EXPECTED, MOMENT_EXPECTED)]
            raise ValueError(named[0] if named else expected) from None

    return WrapValidator(read)


class Body(BaseModel):
    """The base of all request bodies: unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, written: object) -> object:
        """Raise for the first unknown field, naming those there are: Pydantic's error names none."""
        fields = written if isinstance(written, dict) else {}
        for name, value in fields.items():
            if name not in cls.model_fields:
                about = {
                    "name": name,
                    "value": value,
                    "known": ", ".join(cls.model_fields),
                    "instead": replacement(name) or replacement(f"{cls.__name__}.{name}"),
                }
                raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", about)
        return written


#: `clone` holds in any secret order; the other bounds of single reports want one randomizer on all devices.
Analysis = Annotated[
    Literal["clone", "clone-identical", "tight", "blanket", "exact", "strong-adversary"] | None,
    Field(
        description="The bound. `clone`, the default where a part of the randomizer is generic, holds in any"
        " secret order, also if devices react to earlier messages, and earns no credit for participation. The"
        " others want one randomizer on all devices, fixed before the round."
    ),
]


class ChangeBudget(Body):
    """The budget's epsilon from now on, and why; delta never changes."""

    epsilon: Epsilon
    reason: Reason

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"epsilon": 2.0, "reason": "the board agreed to a longer study"}]}
    )


class RoundParameters(Body):
    """A round as planned: the same fields as the command line's options and the columns of an import."""

    randomizer: Randomizer
    reports: Count
    sampled_from: Count | None = None
    participation: Share | None = None
    honest_fraction: Share = 1.0
    delta0: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    analysis: Analysis = None
    reports_per_user: Annotated[
        PerUser,
        Field(
            description="No user sends more reports to the round. Those beyond are dropped before `reports`"
            " are counted."
        ),
    ] = 1

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000}]}
    )
    _names: ClassVar[tuple[str, ...]] = (
        "randomizer",
        "reports",
        "sampled_from",
        "participation",
        "honest_fraction",
        "delta0",
        "analysis",
        "reports_per_user",
    )

    def round(self) -> ShuffledRound:
        """Return the round; raises InvalidParameter where values contradict each other."""
        return ShuffledRound(**{name: getattr(self, name) for name in self._names})


class PlannedRound(RoundParameters):
    """Rounds of one kind that policy plan reserves."""

    count: Annotated[int, Field(ge=1, le=MAXIMUM_ROUNDS), BeforeValidator(whole)] = 1


Label = Annotated[
    str,
    StringConstraints(min_length=1, max_length=60, pattern=_LABEL),
]
# Pydantic publishes the pattern of keys, and not that there are no others.
_NO_OTHER_KEYS: dict[str, Any] = {"additionalProperties": False}
Labels = Annotated[dict[Label, Label], Field(max_length=LABELS_MAX, json_schema_extra=_NO_OTHER_KEYS)]
Selector = Annotated[
    str,
    StringConstraints(min_length=3, max_length=4000, pattern=_SELECTOR),
]


class WindowBudget(Body):
    """A budget for every `calendar` unit, or for every run of `rolling` buckets. Days are those of UTC."""

    calendar: Annotated[Literal[UNITS] | None, Field(description="The unit; weeks begin on Monday.")] = None  # type: ignore[valid-type]  # the ledger's own list
    rolling: Annotated[int, Field(ge=2, le=SLIDING_MAX), BeforeValidator(whole)] | None = None
    bucket: Literal[BUCKETS] | None = None  # type: ignore[valid-type]  # the ledger's own list
    epsilon: Epsilon
    delta: Delta
    local_budget: Annotated[
        Epsilon | None,
        Field(description="A limit on the sum of epsilon0 over a user's rounds in each period."),
    ] = None


class OpenCohort(Body):
    """A cohort to open. Opening it again with the same content changes nothing."""

    name: NewName
    population: Count
    epsilon: Epsilon
    delta: Delta
    policy: Literal[POLICIES] = POLICY_ADAPTIVE  # type: ignore[valid-type]  # the ledger's own list

    plan: Annotated[list[PlannedRound], Field(min_length=1, max_length=PLAN_MAX)] | None = None
    approximate_share: Annotated[
        Annotated[float, Field(gt=0, le=LARGEST_APPROXIMATE_SHARE)] | None,
        Field(
            description="The part of delta that policy adaptive sets aside for rounds that are only"
            " approximately private, half of it for local deltas; of the cohort's windows and quotas too. It"
            " never changes; left out, it is 1/64."
        ),
    ] = None
    labels: Annotated[
        Labels, Field(description="What selectors of audiences ask for. They never change.")
    ] = {}
    windows: Annotated[
        list[WindowBudget],
        Field(
            max_length=WINDOWS_MAX,
            description="Budgets that begin anew with every calendar unit, or that slide, beside that of the"
            " cohort's life. A round is admitted only if all of them allow it. They never change.",
        ),
    ] = []
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
        Annotated[int, Field(ge=1, le=ROUNDS_PER_USER_MAX), BeforeValidator(whole)] | None,
        Field(
            description="How many rounds one device takes part in at most, whatever its data are; policy"
            " adaptive then counts only so many. It never changes."
        ),
    ] = None
    windows_only: Annotated[
        bool,
        Field(
            description="Whether the windows alone refuse rounds and promise anything: reports compare"
            " epsilon and delta with what the cohort's whole life has cost. It never changes."
        ),
    ] = False
    accept_warnings: Annotated[
        bool,
        Field(
            description="Whether unusual values are meant: an epsilon above 10, a delta of at least 1 divided"
            " by the population, fewer than 100 users. Left out, they are refused."
        ),
    ] = False

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "nz-phone", "population": 310000, "epsilon": 1.5, "delta": 1e-7}]
        }
    )

    def cohort(self) -> Cohort:
        """Return the cohort as it would be opened; raises InvalidValue."""
        return cohort_from_opening(**self.opening())

    def opening(self) -> Opening:
        """Return what the cohort is opened with; raises InvalidValue."""
        windows = [Window.from_mapping(each.model_dump(exclude_none=True)) for each in self.windows]
        given = self.model_dump(include=set(Opening.__annotations__))
        return cast(Opening, {**given, "windows": windows})

    def planned(self) -> dict[ShuffledRound, int] | None:
        """Return how often each kind of round is planned; raises InvalidParameter."""
        counts: dict[ShuffledRound, int] = {}
        for each in self.plan or ():
            shuffled = each.round()
            counts[shuffled] = counts.get(shuffled, 0) + each.count
        return counts or None


class OfCohorts(RoundParameters):
    """A round of one cohort or of an audience."""

    cohort: Annotated[
        Name | None, Field(description="The round's cohort; left out if it has an audience.")
    ] = None
    audience: Annotated[
        Annotated[list[Name], Field(min_length=1, max_length=AUDIENCE_MAX)] | Selector | None,
        Field(
            description="The round's cohorts: their names, or a selector over labels such as"
            " `device=phone,country=de`, which means those that have all of them now. The round is admitted"
            " if and only if every one of them admits it, with one number of reports over all."
        ),
        one_of_two("a list of names, or a selector over labels such as device=phone"),
    ] = None
    collected_on: Annotated[
        Day | None,
        Field(
            description="The day of collection, UTC, or the first one. Of a cohort with windows it says which"
            " of their periods are charged, and defaults to today."
        ),
    ] = None
    collected_until: Annotated[Day | None, Field(description="The last day, if there are several.")] = None

    def named(self) -> str | list[str]:
        """Return the cohorts as they are given; raises InvalidValue for none, or in both ways."""
        if (self.cohort is None) == (self.audience is None):
            expected = "a cohort, or an audience in its place"
            raise InvalidValue(field="cohort", value=self.cohort, expected=expected)
        return [self.cohort] if self.cohort is not None else self.audience or []

    def request_for(self, audience: Sequence[str], *, round_id: str, **more: Any) -> RoundRequest:
        """Return what is to be priced or registered; raises InvalidParameter, InvalidValue."""
        return request_of(
            audience,
            self.round(),
            round_id=round_id,
            collected_on=self.collected_on,
            collected_until=self.collected_until,
            **more,
        )


class QuoteForAll(OfCohorts):
    """A round to price, of one cohort or several; nothing is stored and nothing is promised."""

    # So that the body of a registration is the body of its quote.
    round_id: Annotated[
        NewName | None, Field(description="Does not matter: the price is that of a new round.")
    ] = None
    use_case: Annotated[Name | None, Field(description="Does not matter.")] = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"audience": ["nz-phone"], "randomizer": "krr(k=96, epsilon0=2)", "reports": 30000}]
        }
    )


class RegisterRound(OfCohorts):
    """A round to register under an identifier you choose. Repeating the request repeats the answer."""

    round_id: NewName
    use_case: Name | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "round_id": "health-2025-W02",
                    "cohort": "nz-phone",
                    "randomizer": "krr(k=96, epsilon0=2)",
                    "reports": 30000,
                    "use_case": "health-types",
                    "collected_on": "2025-01-06",
                }
            ]
        }
    )

    def request(self, audience: Sequence[str], *, team: str | None) -> RoundRequest:
        """Return what is to be registered; raises InvalidParameter, InvalidValue."""
        return self.request_for(audience, round_id=self.round_id, use_case=self.use_case, team=team)


class QuoteRounds(Body):
    """Rounds to price, one after the other; nothing is stored and nothing is promised."""

    rounds: Annotated[list[RoundParameters], Field(min_length=1, max_length=BATCH_MAX)]
    fits: Annotated[bool, Field(description="Also say what would fit in place of the first round.")] = False

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"rounds": [{"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000}]}]
        }
    )


class ForecastRounds(Body):
    """A question about a cohort's future. Nothing is stored, reserved or promised."""

    round: Annotated[
        RoundParameters | None,
        Field(description="The kind of rounds. Left out: each kind that the cohort has had, or its plan."),
    ] = None
    fit: Annotated[
        Annotated[int, Field(ge=1, le=FIT_MAX), BeforeValidator(whole)] | None,
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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "round": {"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000},
                    "every": "week",
                    "until": "2025-12-31",
                    "first_on": "2025-01-06",
                }
            ]
        }
    )

    def wanted(self) -> ForecastWanted:
        """Return the question; raises InvalidValue, InvalidParameter where it contradicts itself."""
        described = None if self.round is None else self.round.round()
        return ForecastWanted(
            round=described, fit=self.fit, every=self.every, until=self.until, first_on=self.first_on
        )


class ForecastForAll(ForecastRounds):
    """A question about rounds of several cohorts. Nothing is stored, reserved or promised."""

    audience: Annotated[
        Annotated[list[Name], Field(min_length=1, max_length=AUDIENCE_MAX)] | Selector,
        Field(description="The rounds' cohorts: their names, or a selector over labels."),
        one_of_two("a list of names, or a selector over labels such as device=phone"),
    ]
    round: Annotated[RoundParameters, Field(description="The kind of rounds, of all cohorts together.")]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "audience": ["nz-phone"],
                    "round": {"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000},
                    "every": "week",
                    "until": "2025-12-31",
                }
            ]
        }
    )


class SettleRound(Body):
    """How many reports were really shuffled, counted as at registration: before the honest fraction is taken;
    with participation the users."""

    reports: Count

    model_config = ConfigDict(json_schema_extra={"examples": [{"reports": 29000}]})


class IssuePermit(Body):
    """For whom a permit is."""

    releaser: Name | None = Field(default=None, description="The only gate that may use it; null: any.")

    model_config = ConfigDict(json_schema_extra={"examples": [{"releaser": "shuffler-eu"}]})


class SettleByReceipt(Body):
    """What a gate gave for a release: a signed token."""

    receipt: Annotated[str, StringConstraints(min_length=1, max_length=100_000)]

    model_config = ConfigDict(json_schema_extra={"examples": [{"receipt": "eyJhbGciOiJFZERTQSIs..."}]})


class VoidRound(Body):
    """Your attestation that nothing of the round was or will be released, and why."""

    reason: Reason

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "the collection was cancelled before devices reported"}]}
    )


class CorrectRound(Body):
    """The true parameters of a released round: the fields that differ from those declared, and the reason.
    Null for `sampled_from` or `participation` means that there was none; for other fields it means no
    change."""

    randomizer: Randomizer | None = None
    reports: Count | None = None
    sampled_from: Count | None = None
    participation: Share | None = None
    honest_fraction: Share | None = None
    delta0: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    analysis: Analysis = None
    reports_per_user: PerUser | None = None
    reason: Reason

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reports": 21000, "reason": "a shard was counted twice"}]}
    )

    def changes(self) -> dict[str, object]:
        """Return the fields of the round that were otherwise."""
        given = {name: getattr(self, name) for name in self.model_fields_set - {"reason"}}
        is_said = {"sampled_from", "participation"}
        return {name: value for name, value in given.items() if value is not None or name in is_said}


class RecordIncident(Body):
    """A release that nothing admitted. `round` is null where nothing is known of it: then everything counts
    as revealed."""

    round_id: Name
    round: RoundParameters | None
    released_after: Moment | None = None
    released_before: Moment | None = None
    collected_on: Annotated[
        Day | None, Field(description="The first day of its collection, UTC; a cohort with windows needs it.")
    ] = None
    collected_until: Annotated[Day | None, Field(description="The last day, if there are several.")] = None
    reason: Reason

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "round_id": "export-2025-01-06",
                    "round": {"randomizer": "krr(k=96, epsilon0=2)", "reports": 30000},
                    "released_after": "2025-01-06T12:00:00Z",
                    "reason": "a script exported a batch that was never registered",
                }
            ]
        }
    )

    def released(self) -> ReleaseTimes:
        """Return when it was released; raises InvalidValue where the times contradict each other."""
        return ReleaseTimes(after=self.released_after, before=self.released_before)
