"""Words the errors of requests that do not fit their schema: plain sentences in place of Pydantic's."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import InvalidParameter, exact_text
from shuffle_ledger.ledger.gone_names import gone_sentence
from shuffle_ledger.ledger.questions.fields import PATTERNS, UNKNOWN_FIELD

_PARTS = ("body", "query", "path", "header")  # of a request, in Pydantic's places
_KEY = "[key]"  # in Pydantic's places: not the value at a name, but the name itself

Context = Mapping[str, Any]  # the limits of the field that was not kept, by Pydantic's names


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One field that is wrong."""

    field: str
    value: object  # None: missing
    expected: str
    message: str | None = None  # None: "field: got value, expected ..."


def _counted(number: object, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# The values that a field takes, by the kind of Pydantic's error. A test makes the schemas give every kind.
EXPECTED: Mapping[str, Callable[[Context], str]] = {
    "bool_type": lambda _: "true or false",
    "dataclass_type": lambda _: "an object",
    "dict_type": lambda _: "an object",
    "enum": lambda limits: f"one of {limits['expected']}",
    "finite_number": lambda _: "a finite number",
    "float_type": lambda _: "a number",
    "greater_than": lambda limits: f"a number above {_number(limits['gt'])}",
    "greater_than_equal": lambda limits: f"a number of at least {_number(limits['ge'])}",
    "int_parsing": lambda _: "a whole number",
    "int_parsing_size": lambda _: "a whole number, and a smaller one",
    "int_type": lambda _: "a whole number",
    "less_than": lambda limits: f"a number below {_number(limits['lt'])}",
    "less_than_equal": lambda limits: f"a number of at most {_number(limits['le'])}",
    "literal_error": lambda limits: f"one of {limits['expected']}",
    "missing": lambda _: "a value: the field is needed",
    "string_pattern_mismatch": lambda limits: PATTERNS.get(limits["pattern"], "a text of another form"),
    "string_too_long": lambda limits: f"at most {_counted(limits['max_length'], 'character')}",
    "string_too_short": lambda limits: f"at least {_counted(limits['min_length'], 'character')}",
    "string_type": lambda _: "a text",
    "tuple_type": lambda _: "a list",
    "too_long": lambda limits: f"at most {_counted(limits['max_length'], 'item')}",
    "too_short": lambda limits: f"at least {_counted(limits['min_length'], 'item')}",
    "value_error": lambda limits: str(limits["error"]),
}


#: Kinds of errors about a number that a body wrote as something else.
TYPES_OF_NUMBERS = ("int_type", "float_type")


def wrong_field(error: Mapping[str, Any]) -> Wrong:
    """Return what one of Pydantic's errors says, with the field as the caller writes it."""
    limits: Context = error.get("ctx", {})
    place = [str(part) for part in error["loc"] if part not in (*_PARTS, _KEY)]
    field, kind = ".".join(place) or str(error["loc"][0]), str(error["type"])
    if kind == UNKNOWN_FIELD:
        return _unknown(limits, place)
    cause = limits.get("error")
    if isinstance(cause, InvalidParameter):
        return _of_parameter(cause, field)
    expected = EXPECTED[kind](limits) if kind in EXPECTED else str(error["msg"])
    gone = gone_sentence(f"{field} {error.get('input')}") if kind == "literal_error" else None
    if kind == "missing":
        needed = "is missing" if place else "is missing: send a JSON object"
        return Wrong(field=field, value=None, expected=expected, message=f"{field}: {needed}")
    value = error.get("input")
    if value is None or value == "":
        said = "is null" if value is None else "is empty"
        return Wrong(
            field=field, value=value, expected=expected, message=f"{field}: {said}, expected {expected}"
        )
    return Wrong(field=field, value=value, expected=expected, message=gone)


def _unknown(limits: Context, place: list[str]) -> Wrong:
    name, known = str(limits["name"]), str(limits["known"]).split(", ")
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    if holder := limits["inside"]:
        meant = f"; {name} is a field of the objects in {holder}"
    inside = f" in {'.'.join(place)}" if place else ""
    expected = f"one of {', '.join(known)}"
    return Wrong(
        field=".".join((*place, name)),
        value=limits["value"],
        expected=expected,
        message=f"field {name!r}{inside} is gone: {limits['instead']}"
        if limits["instead"]
        else f"unknown field {name!r}{inside}; expected {expected}{meant}",
    )


def _of_parameter(cause: InvalidParameter, field: str) -> Wrong:
    """Return what the accountant says of a value inside a field."""
    inner = "" if cause.field.split(" ")[0] in field.split(".") else f".{cause.field}"
    usual = InvalidParameter(cause.field, cause.value, cause.expected)
    message = None if str(cause) == str(usual) else f"{field}: {cause}"
    return Wrong(field=field + inner, value=cause.value, expected=cause.expected, message=message)


def _number(limit: object) -> str:
    return exact_text(limit) if isinstance(limit, float) else f"{limit}"
