"""The JSON form of every answer, and the way back: one spelling for terminals, the API and its client."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from shuffle_ledger import accounting
from shuffle_ledger.accounting import AccountingError
from shuffle_ledger.ledger.errors import InvalidValue, LedgerError
from shuffle_ledger.ledger.values.field_marks import is_left_out
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Corrected,
    Incident,
    Pending,
    Refused,
    RoundRecord,
    RoundRequest,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.values.windows import Window

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Decision: TypeAlias = Admitted | Refused | Pending | Settled | Voided | Corrected | Incident
DECISIONS: Mapping[str, type[Decision]] = {
    "admitted": Admitted,
    "refused": Refused,
    "pending": Pending,
    "settled": Settled,
    "voided": Voided,
    "corrected": Corrected,
    "incident": Incident,
}
Value = TypeVar("Value")
_OF_NO_BUDGET = ("delta_budget", "epsilon_spent_lower")  # finite where epsilon_budget is infinite
_NEVER = object()  # no field has this value
_AS_IT_IS = (bool, int, str)  # values of these classes are JSON already


class NotADocument(LedgerError):
    """A JSON value that is not what `document_of` makes of the type asked for."""


def document_of(value: object) -> Json:
    """Return `value` as strict JSON: dataclasses by field, rounds in canonical form, bytes in hexadecimal
    digits, infinity as null.

    Raises:
        TypeError: for a value that has no JSON form here; NaN is one, since unknown is an error.
    """
    if value is None or isinstance(value, _AS_IT_IS):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    kind: Any = type(value)
    if _has_own_form(kind):
        value = kind.to_mapping(value)
    elif (fields := _fields_of(value)) is not None:
        value = fields
    if isinstance(value, Mapping):
        return {str(key): document_of(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [document_of(item) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")


def json_parts(value: object, *, depth: int) -> Iterator[bytes]:
    """Yield the JSON text of `document_of(value)`, UTF-8, in parts: of a large value, the document and its
    text are never in memory as a whole.

    Args:
        value: what to write.
        depth: how many levels of dataclasses and tuples to divide into fields and items.

    Raises:
        TypeError: as `document_of`.
    """
    if depth and isinstance(value, tuple):
        yield b"["
        for place, item in enumerate(value):
            yield b", " if place else b""
            yield from json_parts(item, depth=depth - 1)
        yield b"]"
    elif depth and (fields := _fields_of(value)) is not None:
        yield b"{"
        for place, (name, item) in enumerate(fields.items()):
            yield f"{', ' if place else ''}{json.dumps(name)}: ".encode()
            yield from json_parts(item, depth=depth - 1)
        yield b"}"
    else:
        yield json.dumps(document_of(value), allow_nan=False, ensure_ascii=False).encode("utf-8")


def _fields_of(value: object) -> dict[str, object] | None:
    """Return a value's fields by name if its document is made of these, else None."""
    kind: Any = type(value)
    fields = _stated_fields(kind)
    if fields is None:
        return None
    found = {name: item for name, left_out in fields if (item := getattr(value, name)) is not left_out}
    if found.get("epsilon_budget") == math.inf:  # there is no budget, and no other number of it
        found |= {name: None for name in _OF_NO_BUDGET if name in found}
    return found


@functools.cache
def _has_own_form(kind: type) -> bool:
    """Return whether a class's documents are its mappings: of rounds and windows. Others import no rounds."""
    rounds = accounting.ShuffledRound if kind.__module__.startswith("shuffle_ledger.accounting.") else Window
    return issubclass(kind, rounds | Window)


@functools.cache
def _stated_fields(kind: type) -> tuple[tuple[str, object], ...] | None:
    """Return the fields of a class whose documents are made of these, else None: the name of each, and the
    value with which it is left out."""
    if not dataclasses.is_dataclass(kind) or _has_own_form(kind):
        return None
    return tuple(
        (field.name, field.default if is_left_out(field) else _NEVER) for field in dataclasses.fields(kind)
    )


def number(value: float) -> float | None:
    """Return a float as JSON has it: infinity is null; raises TypeError for NaN."""
    if math.isnan(value):
        raise TypeError("no JSON form for NaN")
    return float(value) if math.isfinite(value) else None


def decision_document(decision: Decision) -> dict[str, Json]:
    """Return the decision's fields after its `outcome`: one of the names of `DECISIONS`."""
    return {"outcome": type(decision).__name__.lower(), **fields_document(decision)}


def fields_document(value: object) -> dict[str, Json]:
    """Return a dataclass as `document_of`: to be extended."""
    return {name: document_of(item) for name, item in (_fields_of(value) or {}).items()}


def record_document(record: RoundRecord) -> dict[str, Json]:
    """Return a round's history: what was asked, the decision, how it was closed, what was told later."""
    request = {name: document_of(getattr(record.request, name)) for name in field_types(RoundRequest)}
    return {
        "round_id": request.pop("round_id"),
        "cohort": request.pop("cohort"),
        "state": record.state,
        **request,
        "registered_by": record.registered_by,
        "registered_at": document_of(record.registered_at),
        "decision": None if record.outcome is None else decision_document(record.outcome),
        "closing": None if record.closing is None else decision_document(record.closing),
        "corrections": [decision_document(each) for each in record.corrections],
        "incident": None if record.incident is None else decision_document(record.incident),
        "attempts": record.attempts,
        "last_error": record.last_error,
    }


def record_of_document(document: object) -> RoundRecord:
    """Return the history of a round that `record_document` states; raises NotADocument."""
    try:
        content = dict(_expect(isinstance(document, Mapping), document, RoundRecord))
        closing = None if content["closing"] is None else decision_of(content["closing"])
        outcome = None if content["decision"] is None else decision_of(content["decision"])
        request = value_of(RoundRequest, content)
        restated = [decision_of(each) for each in content.get("corrections", ())]
        corrections = tuple(each for each in restated if isinstance(each, Corrected))
        incident = decision_of(content["incident"]) if content.get("incident") else None
        charged = [each for each in (outcome, closing, incident, *corrections) if hasattr(each, "accounted")]
        last = max(charged, key=lambda each: getattr(each, "sequence", 0), default=None)
        accounted = (
            None if isinstance(closing, Voided) and incident is None else getattr(last, "accounted", None)
        )
        fields = {name: content[name] for name in field_types(RoundRecord) if name in content}
    except (KeyError, AccountingError, LedgerError) as error:
        raise NotADocument(f"not the history of a round: {error}") from error
    fields |= {"registered_at": _read(datetime, content["registered_at"])}
    fields |= {"request": request, "outcome": outcome, "closing": closing, "accounted": accounted}
    return RoundRecord(**{**fields, "corrections": corrections, "incident": incident})


def decision_of(document: object) -> Decision:
    """Return the decision a document states; raises NotADocument."""
    outcome = document.get("outcome") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(outcome, str) or outcome not in DECISIONS:
        raise NotADocument(f"no outcome: {document!r:.200}")
    fields = {name: item for name, item in document.items() if name != "outcome"}
    return value_of(DECISIONS[outcome], fields)


def value_of(kind: type[Value], document: object) -> Value:
    """Return the value of type `kind` whose document this is; fields a newer side added are left out.

    Where `kind` says a bare float, null is infinity: the inverse of `document_of`.

    Raises:
        NotADocument: it is the document of no such value.
    """
    value: Value = _read(kind, document)
    return value


@functools.cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _read(kind: Any, document: Any) -> Any:
    if kind is Any or kind is object:
        return document
    if get_origin(kind) is not None:
        return _read_compound(get_origin(kind), get_args(kind), document)
    if isinstance(kind, type):
        return _read_plain(kind, document)
    raise NotADocument(f"expected {kind}, got {document!r:.200}")


def _read_compound(origin: Any, arguments: tuple[Any, ...], document: Any) -> Any:
    if origin in (Union, types.UnionType):
        return _read_union(arguments, document)
    if origin is Literal:
        return _expect(document in arguments, document, arguments)
    if issubclass(origin, Mapping) and isinstance(document, Mapping):
        return {name: _read(arguments[1], item) for name, item in document.items()}
    if issubclass(origin, Sequence) and isinstance(document, list):
        items = [_read(arguments[0], item) for item in document]
        return items if origin is list else tuple(items)
    raise NotADocument(f"expected {origin}, got {document!r:.200}")


def _read_union(kinds: Sequence[Any], document: Any) -> Any:
    if type(None) in kinds and document is None:
        return None
    for kind in kinds:
        try:
            return _read(kind, document)
        except NotADocument:
            continue
    raise NotADocument(f"expected one of {kinds}, got {document!r:.200}")


def _read_plain(kind: Any, document: Any) -> Any:
    try:
        if kind is float:
            return _read_float(document)
        if _has_own_form(kind):
            return kind.from_mapping(_expect(isinstance(document, Mapping), document, kind))
        if dataclasses.is_dataclass(kind):
            return _read_fields(kind, _expect(isinstance(document, Mapping), document, kind))
        if issubclass(kind, Enum):
            return kind(document)
        if kind in (datetime, date, bytes):
            reader: Any = kind  # mypy knows of types with no common reading
            return bytes.fromhex(document) if kind is bytes else reader.fromisoformat(document)
    except (AccountingError, InvalidValue, ValueError, TypeError) as error:
        raise NotADocument(f"expected {kind.__name__}: {error}") from error
    exact = isinstance(document, kind) and isinstance(document, bool) == (kind is bool)
    return _expect(exact, document, kind)


def _read_float(document: Any) -> float:
    if document is None:
        return math.inf
    return float(
        _expect(isinstance(document, int | float) and not isinstance(document, bool), document, float)
    )


def _read_fields(kind: Any, document: Mapping[str, Any]) -> Any:
    known = {name: hint for name, hint in field_types(kind).items() if name in document}
    return kind(**{name: _read(hint, document[name]) for name, hint in known.items()})


def _expect(fulfilled: bool, document: Any, kind: Any) -> Any:  # noqa: FBT001 - reads like assert
    if not fulfilled:
        raise NotADocument(f"expected {kind}, got {document!r:.200}")
    return document
