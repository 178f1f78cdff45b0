"""The fields of questions: their types, their bounds, and what the published description says of them.

Whatever fits these types fits the ledger's values, but for contradictions. The names and bounds are the
ledger's own; the types repeat them so that the description is true.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    AfterValidator,
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

from shuffle_ledger import accounting
from shuffle_ledger.accounting import MAXIMUM_ROUNDS, InvalidParameter
from shuffle_ledger.ledger import questions
from shuffle_ledger.ledger.answers.entries import CURSOR_PATTERN, PAGE_MAX
from shuffle_ledger.ledger.gone_names import replacement
from shuffle_ledger.ledger.values.audiences import AUDIENCE_MAX, LABELS_MAX
from shuffle_ledger.ledger.values.days import DAY_EXPECTED, MOMENT_EXPECTED, NotADay, day_from, moment_from
from shuffle_ledger.ledger.values.quotas import TEAM_LENGTH_MAX
from shuffle_ledger.ledger.values.requests import ADDRESSABLE, REASON_LENGTH_MAX, UNADDRESSABLE
from shuffle_ledger.ledger.values.texts import NAME_LENGTH_MAX, POPULATION_MAX, checked_text

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
        return questions.randomizers.RANDOMIZER_SCHEMA


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
        return accounting.parse_randomizer(written)
    except InvalidParameter:
        if questions.randomizers.is_described_in_full(written):
            raise
        return written  # `RoundParameters.described` refuses it again, as values that contradict each other


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
UNKNOWN_FIELD = "unknown_field"  # kind of the error about a field that a question does not have

_NAME = {"minLength": 1, "maxLength": NAME_LENGTH_MAX}


def _text(length_max: int) -> Any:
    """Return a strict text whose outer characters are no blanks."""
    return StringConstraints(
        strict=True, min_length=1, max_length=length_max, pattern=_text_pattern(length_max)
    )


Text = Annotated[str, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, _text(NAME_LENGTH_MAX)]
NewName = Annotated[
    Name, AfterValidator(_addressable), Field(json_schema_extra={"pattern": _new_name_pattern()})
]
# Of a path: a name that cannot be one is that of nothing, and is answered so.
CohortName = Annotated[str, Field(description="A cohort's name.", json_schema_extra=dict(_NAME))]
RoundId = Annotated[str, Field(description="A round's identifier.", json_schema_extra=dict(_NAME))]
TeamName = Annotated[
    str,
    Field(description="A team's name.", json_schema_extra={"minLength": 1, "maxLength": TEAM_LENGTH_MAX}),
]
Reason = Annotated[str, _text(REASON_LENGTH_MAX)]
Epsilon = Annotated[float, Field(strict=True, ge=1e-9, le=1e9, allow_inf_nan=False)]
Delta = Annotated[float, Field(strict=True, ge=1e-60, lt=1, allow_inf_nan=False)]
LocalDelta = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=POPULATION_MAX), BeforeValidator(whole)]
Repeated = Annotated[int, Field(strict=True, ge=1, le=MAXIMUM_ROUNDS), BeforeValidator(whole)]
SequenceNumber = Annotated[int, Field(strict=True, ge=1, le=10**15), BeforeValidator(whole)]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX, description="How many at most.")]  # of a query, which is text
Day = Annotated[
    date,
    BeforeValidator(_calendar_date),
    Field(json_schema_extra={"pattern": "^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"}),
]
Moment = Annotated[datetime, BeforeValidator(_moment), Field(json_schema_extra={"pattern": _MOMENT})]
Digest = Annotated[str, Field(strict=True, pattern=DIGEST_PATTERN)]
Document = Annotated[dict[str, Any], Field(strict=True)]
Analysis = Annotated[
    Literal["clone", "clone-identical", "tight", "blanket", "exact", "binary-response", "strong-adversary"],
    Field(
        description="The bound. `clone`, the default where a part of the randomizer is generic, holds in any"
        " secret order, also if devices react to earlier messages, and earns no credit for participation. The"
        " others want one randomizer on all devices, fixed before the round."
    ),
]
Randomizer = Annotated[Any, BeforeValidator(_randomizer), _RandomizerField]
Label = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=60, pattern=_LABEL)]
# Pydantic publishes the pattern of keys, and not that there are no others.
_NO_OTHER_KEYS: dict[str, Any] = {"additionalProperties": False}
Labels = Annotated[dict[Label, Label], Field(max_length=LABELS_MAX, json_schema_extra=_NO_OTHER_KEYS)]
Selector = Annotated[str, StringConstraints(strict=True, min_length=3, max_length=4000, pattern=_SELECTOR)]


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


Audience = Annotated[
    Annotated[tuple[Name, ...], Field(min_length=1, max_length=AUDIENCE_MAX)] | Selector,
    one_of_two("a list of names, or a selector over labels such as device=phone"),
]


def config(schema: Mapping[str, Any] | None = None, /, **example: Any) -> ConfigDict:
    """Return the configuration of a question whose body this is an example of.

    `schema`: what its schema says besides.
    """
    more = {**(schema or {}), **({"examples": [example]} if example else {})}
    return ConfigDict(extra="forbid", arbitrary_types_allowed=True, json_schema_extra=more or None)


class Body:
    """The base of all questions and of what is in them: unknown fields are errors."""

    __pydantic_config__ = config()

    def check(self) -> None:
        """Raise InvalidValue, in the ledger's own words, for what it would refuse: before it is sent."""

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, written: object) -> object:
        """Raise for the first unknown field, naming those there are: Pydantic's error names none."""
        return check_known(cls, written) if isinstance(written, dict) else written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nothing(Body):
    """A question without fields."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restating(Body):
    """A question that records what turned out otherwise."""

    dry_run: Annotated[Flag, Field(description="Answer what would be recorded, and record nothing.")] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explained(Body):
    """A question that says why."""

    reason: Reason

    def check(self) -> None:
        """See `Body`."""
        checked_text("reason", self.reason, length_max=REASON_LENGTH_MAX)


def check_known(kind: type, written: dict[str, Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a question as they are written; raises PydanticCustomError for an unknown one.

    `but`: fields of the question that are not written here, for they are in its path or its query.
    """
    known = [field.name for field in dataclasses.fields(kind) if field.name not in but]
    for name, value in written.items():
        if name not in known:
            about = {
                "name": name,
                "value": value,
                "known": ", ".join(known),
                "inside": _holder_of(kind, name),
                "instead": replacement(name) or replacement(f"{kind.__name__}.{name}"),
            }
            raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", about)
    return written


def _holder_of(kind: type, name: str) -> str | None:
    """Return the field of a question whose objects have a field of that name; None if there is none."""
    if not dataclasses.is_dataclass(kind):
        return None
    annotations = get_type_hints(kind)
    parts = {field.name: _dataclasses_in(annotations[field.name]) for field in dataclasses.fields(kind)}
    return next(
        (holder for holder, found in parts.items() for part in found if name in _names_of(part)), None
    )


def _dataclasses_in(annotation: object) -> list[type]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return [annotation]
    return [found for part in get_args(annotation) for found in _dataclasses_in(part)]


def _names_of(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
