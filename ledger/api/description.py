"""The OpenAPI description: made of the table of operations and of the values themselves."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from fastapi import FastAPI
from pydantic import TypeAdapter

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answers.quotes import Fits
from shuffle_ledger.ledger.api.problems import MEDIA_TYPE, PROBLEMS, kind_of
from shuffle_ledger.ledger.api.routes import PREFER_LENGTH_MAX
from shuffle_ledger.ledger.errors import Difference, UnacceptedWarning
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.operations import OPERATIONS, Operation, Unfinished
from shuffle_ledger.ledger.values.documents import field_types
from shuffle_ledger.ledger.values.field_marks import is_finite, is_left_out
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    CohortStatus,
    Corrected,
    Incident,
    Outcome,
    Pending,
    Refused,
    RoundRecord,
    RoundRequest,
    RoundState,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.values.windows import Window

Schema = dict[str, Any]

_RECORDED = ("state", "registered_at", "attempts", "last_error")
_SIMPLE: Mapping[type, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    bytes: {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    ShuffledRound: {"$ref": "#/components/schemas/ShuffledRound"},
    Window: {"$ref": "#/components/schemas/WindowBudget"},
}


def schema_of(kind: Any, *, finite: bool = False) -> Schema:
    """Return the JSON schema of `values.documents.document_of` for values of a type."""
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if kind is float:  # infinity is null
        return {"type": "number"} if finite else {"type": ["number", "null"]}
    if get_origin(kind) is not None:
        return _schema_of_compound(get_origin(kind), get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [item.value for item in kind]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _reference_to(kind)
    return {}


# The classes whose values occur in answers, by the names of their schemas.
_NAMED: dict[str, type] = {}


def _reference_to(kind: type) -> Schema:
    """Return a reference to the schema of a class, which generators of clients make one class of."""
    if _NAMED.setdefault(kind.__name__, kind) is not kind:
        raise AssertionError(f"two classes of answers are named {kind.__name__}")
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _schema_of_compound(origin: Any, arguments: Sequence[Any]) -> Schema:
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        if set(arguments) == {float, type(None)}:
            return {"type": ["number", "null"]}
        return {"anyOf": [{"type": "null"} if part is type(None) else schema_of(part) for part in arguments]}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    return {"type": "array", "items": schema_of(arguments[0])}


def _schema_of_fields(kind: Any, **more: Schema) -> Schema:
    optional = {each.name for each in dataclasses.fields(kind) if is_left_out(each)}
    finite = {each.name for each in dataclasses.fields(kind) if is_finite(each)}
    fields = {
        name: _schema_of_optional(hint) if name in optional else schema_of(hint, finite=name in finite)
        for name, hint in field_types(kind).items()
    }
    properties = {**more, **fields}
    lines = (kind.__doc__ or "").strip().splitlines()
    return {
        "type": "object",
        "title": kind.__name__,
        "description": lines[0] if lines else "",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _schema_of_optional(hint: Any) -> Schema:
    """Return the schema of a field that is left out where it would be null."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    return schema_of(parts[0] if parts else hint)


def _decision(kind: type) -> Schema:
    return _schema_of_fields(kind, outcome={"const": kind.__name__.lower()})


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_OF_PLANS = ("epsilon_upper", "epsilon_budget", "delta_budget")
_PROBLEM: Schema = {
    "type": "object",
    "description": "An error, as in RFC 9457. `field`, `value` and `expected` say which value was wrong;"
    " of type `not_collectable`, `round_id`, `state` and `cohort_status` say how the round stands; of type"
    " `conflict`, `differences` say in which fields a request differs from what is stored; of type"
    " `unaccepted_warnings`, `warnings` say what is unusual about `cohort`, or about its round `round_id`; of"
    " type `beyond_budget`, `epsilon_upper` is more than `epsilon_budget`.",
    "properties": {
        "type": {"enum": [kind.uri for kind in PROBLEMS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "request_id": {"type": "string", "description": "As in `X-Request-Id`, and in the server's log."},
        "field": {"type": "string"},
        "value": {"type": ["string", "null"]},
        "expected": {"type": "string"},
        "round_id": {"type": "string"},
        "state": {"enum": list(get_args(RoundState))},
        "cohort_status": {"enum": list(get_args(CohortStatus))},
        "differences": {"type": "array", "items": schema_of(Difference)},
        "cohort": {"type": "string"},
        "warnings": {"type": "array", "items": schema_of(UnacceptedWarning)},
        **{name: schema_of(float) for name in _OF_PLANS},
    },
    "required": ["type", "title", "status", "detail"],
}
_REFUSAL: Schema = {
    "allOf": [
        _ref("Problem"),
        {
            "type": "object",
            "properties": {
                "fits": {"anyOf": [_ref("Fits"), {"type": "null"}]},
                **_decision(Refused)["properties"],
            },
            "required": ["fits", *_decision(Refused)["required"]],
        },
    ],
    "description": "The round's outcome: refused, what was spent, asked and allowed, and what would fit.",
}
_HEAD_LIST: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "cohort": {"type": "string"},
            "sequence": {"type": "integer"},
            "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        },
        "required": ["cohort", "sequence", "digest"],
    },
}
_HEADS: Schema = {
    "type": "object",
    "properties": {
        "format": {"type": "string"},
        "heads": _HEAD_LIST,
        "after": {"type": ["string", "null"], "description": "Of a page: go on behind this name."},
    },
    "required": ["format", "heads"],
}
_RECORD_FIELDS: Schema = {
    **{name: {"type": "string"} for name in ("round_id", "cohort", "registered_by")},
    **{name: schema_of(hint) for name, hint in field_types(RoundRecord).items() if name in _RECORDED},
    **{name: schema_of(hint) for name, hint in field_types(RoundRequest).items()},
    "audience": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The cohorts of a round of several; empty if it is of `cohort` alone.",
    },
    "windows": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Periods that it is charged to.",
    },
    "quotas": {"type": "array", "items": {"type": "string"}, "description": "Quotas of its team, likewise."},
    "decision": {"anyOf": [_ref("Admitted"), _ref("RefusedDecision"), {"type": "null"}]},
    "closing": {"anyOf": [_ref("Settled"), _ref("Voided"), {"type": "null"}]},
    "corrections": {"type": "array", "items": _ref("Corrected")},
    "incident": {"anyOf": [_ref("Incident"), {"type": "null"}]},
}
_RECORD: Schema = {
    "type": "object",
    "title": "RoundRecord",
    "description": "A registered round and all that has happened to it.",
    "properties": _RECORD_FIELDS,
    "required": list(_RECORD_FIELDS),
}
_OPEN: Mapping[str, Schema] = {
    "Fits": _schema_of_fields(Fits),
    "Heads": _HEADS,
    "Health": _schema_of_fields(Health, healthy={"type": "boolean"}),
    "PermitKeys": {
        "type": "object",
        "description": "A JWK set (RFC 7517), with the ledger and the issuer that permits name.",
        "properties": {
            "ledger": {"type": "string"},
            "issuer": {"type": "string"},
            "keys": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
            "signing": {"type": ["string", "null"]},
        },
        "required": ["ledger", "issuer", "keys", "signing"],
    },
    "RoundRecord": _RECORD,
    **{kind.__name__: _decision(kind) for kind in (Admitted, Pending, Settled, Voided, Corrected, Incident)},
    "Refused": _REFUSAL,
    "RefusedDecision": _decision(Refused),
    "Problem": _PROBLEM,
}
_ALWAYS = frozenset({401, 403, 405, 413, 415, 422, 429, 500, 503})  # which any request may be answered with
_PROBLEM_CONTENT = {MEDIA_TYPE: {"schema": _ref("Problem")}}
_REFS = "#/components/schemas/{model}"
_LOCATION: Schema = {"schema": {"type": "string"}, "description": "Where it is, or will be."}
_PREFER: Schema = {
    "name": "prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": PREFER_LENGTH_MAX},
    "description": "`wait=N`: wait up to N seconds for the outcome.",
}
_MAKING = "It is not made yet: ask the same again."
_UNDECIDED = "Registered, and not decided yet."
_REFUSED = (
    "Refused by the budget (`outcome` is there); admitted before and not to be collected any more (`state` is"
    " there); or a conflict or contradiction."
)
# Operations that name what others take, with where its name is: the field of the others' paths, and ours.
_NAMES = {
    operations.OPEN_COHORT: ("cohort", "$request.body#/name"),
    operations.REGISTER_ROUND: ("round_id", "$request.body#/round_id"),
    operations.RETRY_ROUND: ("round_id", "$request.path.round_id"),
}


_RANDOMIZER: Schema = {
    "type": "object",
    "description": "A kind, and the parameters of that kind by their names.",
    "properties": {"kind": {"type": "string"}},
    "required": ["kind"],
    "additionalProperties": True,
}


def _shuffled_round(asked: Schema) -> Schema:
    """Return the schema of a round in answers: its randomizer in full, and analyses that no request names."""
    about = "A round, with every field that it was described by."
    answered = {"randomizer": _RANDOMIZER, "analysis": {"type": ["string", "null"]}}
    properties = {**asked["properties"], **answered}
    kept = {name: value for name, value in asked.items() if name != "examples"}
    return {**kept, "title": "ShuffledRound", "description": about, "properties": properties}


def _questions() -> Mapping[str, Schema]:
    """Return the schemas of all questions, and of what is in them, by the names of their classes."""
    kinds = sorted({each.question for each in OPERATIONS}, key=lambda kind: kind.__name__)
    asked = [(kind.__name__, "validation", TypeAdapter(kind)) for kind in kinds]
    _, found = TypeAdapter.json_schemas(asked, ref_template=_REFS)  # type: ignore[arg-type]  # the literal's type
    schemas: Mapping[str, Schema] = found["$defs"]
    return schemas


def _body(schema: Schema, operation: Operation[..., Any]) -> Schema:
    """Return the schema of a question without the fields that are in its path or its query."""
    mine = {name for name, place in operation.places.items() if place == "body"}
    properties = {name: each for name, each in schema["properties"].items() if name in mine}
    required = [name for name in schema.get("required", ()) if name in mine]
    rest = {name: each for name, each in schema.items() if name != "required"}
    return {**rest, "properties": properties, **({"required": required} if required else {})}


def _parameters(operation: Operation[..., Any], schema: Schema) -> list[Schema]:
    found = [
        {
            "name": name,
            "in": place,
            "required": name in schema.get("required", ()),
            "schema": schema["properties"][name],
            "description": schema["properties"][name].get("description", ""),
        }
        for name, place in operation.places.items()
        if place != "body"
    ]
    return [*found, _PREFER] if operation.waits else found


def _responses(operation: Operation[..., Any]) -> Mapping[str, Schema]:
    content: Schema = {"application/json": {"schema": _answer(operation)}}
    if operation.kind in (str, bytes):
        text: Schema = {"type": "string"} if operation.kind is str else {"type": "string", "format": "binary"}
        content = {operation.media: {"schema": text}}
    found: dict[int, Schema] = {operation.status: {"description": _said(operation), "content": content}}
    if operation is operations.READY:
        found[503] = {"description": "It cannot, for now.", "content": content}
    if operation.permission is not None or operation.errors:
        found |= _problems(operation)
    if operation.unfinished:
        progress = {"application/json": {"schema": schema_of(Unfinished)}}
        found[202] = {"description": _MAKING, "content": progress}
    decided = operation.kind == Outcome | Pending
    if decided:
        refused = {MEDIA_TYPE: {"schema": {"anyOf": [_ref("Refused"), _ref("Problem")]}}}
        found[202] = {"description": _UNDECIDED, "content": {"application/json": {"schema": _ref("Pending")}}}
        found[409] = {"description": _REFUSED, "content": refused}
        for status in (201, 202, 409):
            found[status]["headers"] = {"Location": _LOCATION}
    if operation in _NAMES:
        field, place = _NAMES[operation]
        others = [each.name for each in OPERATIONS if each.needs == {field} and each is not operation]
        links = {name: {"operationId": name, "parameters": {field: place}} for name in others}
        for status in (201, 202, 409) if decided else (operation.status,):
            found[status]["links"] = links
    return {str(status): found[status] for status in sorted(found)}


def _said(operation: Operation[..., Any]) -> str:
    """Return what an answer is, in a sentence: as its class says it, or its schema's."""
    kind = Admitted if operation.kind == Outcome | Pending else operation.kind
    parts = get_args(kind) if get_origin(kind) in (list, tuple) else ()
    of = parts[0] if parts else kind
    line = (of.__doc__ or "").strip().partition("\n")[0] if dataclasses.is_dataclass(of) else "The answer."
    return f"Each: {line[:1].lower()}{line[1:]}" if parts else line


def _problems(operation: Operation[..., Any]) -> dict[int, Schema]:
    """Return the responses to failures: those of its row, and those that any operation may have."""
    own = {kind_of(error) for error in operation.errors}
    always = _ALWAYS if operation.permission is not None else _ALWAYS - {401, 403}
    kinds = [kind for kind in PROBLEMS if kind in own or kind.status in always]
    texts: dict[int, list[str]] = {}
    for kind in kinds:
        texts.setdefault(kind.status, []).append(kind.title)
    return {
        status: {"description": "; ".join(titles) + ".", "content": _PROBLEM_CONTENT}
        for status, titles in texts.items()
    }


def _answer(operation: Operation[..., Any]) -> Schema:
    if operation.schema is not None:
        return _ref(operation.schema)
    return _ref("Admitted") if operation.kind == Outcome | Pending else schema_of(operation.kind)


def _with_nested(components: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return components with those that they refer to, each titled by its name."""
    found = dict(components)
    while missing := [name for name in _NAMED if name not in found]:
        found |= {name: _schema_of_fields(_NAMED[name]) for name in missing}
    return {name: {**schema, "title": name} for name, schema in found.items()}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application, made once."""
    if app.openapi_schema is None:
        questions, paths = dict(_questions()), dict[str, Any]()
        for operation in OPERATIONS:
            schema = questions[operation.question.__name__]
            described = {
                "tags": [operation.tag],
                "summary": operation.function.strip("_").replace("_", " ").capitalize(),
                "description": operation.about,
                "operationId": operation.name,
                "responses": _responses(operation),
                "security": [] if operation.permission is None else [{"token": []}],
            }
            if parameters := _parameters(operation, schema):
                described["parameters"] = parameters
            if operation.has_body:
                of_body = _ref(operation.question.__name__)
                described["requestBody"] = {
                    "content": {"application/json": {"schema": of_body}},
                    "required": True,
                }
            paths.setdefault(operation.path, {})[operation.method.lower()] = described
        for operation in OPERATIONS:
            name = operation.question.__name__
            if operation.has_body:
                questions[name] = _body(questions[name], operation)
            else:
                questions.pop(name, None)
        questions["ShuffledRound"] = _shuffled_round(questions["RoundParameters"])
        app.openapi_schema = {
            "openapi": "3.1.0",
            "info": {"title": app.title, "description": app.description, "version": app.version},
            "paths": paths,
            "components": {
                "schemas": questions | _with_nested(_OPEN),
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer", "description": "A token: `sl_ID_SECRET`."}
                },
            },
        }
        if app.state.service.root_path:
            app.openapi_schema["servers"] = [{"url": app.state.service.root_path}]
    return app.openapi_schema
