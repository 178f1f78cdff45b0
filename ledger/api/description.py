"""The OpenAPI description: schemas made from the values themselves, so that it cannot say something else."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from shuffle_ledger.accounting import ErrorBudget, FrequencyError, ShuffledRound
from shuffle_ledger.ledger.api.auth.middleware import OPEN_PATHS
from shuffle_ledger.ledger.api.jobs import StatementProgress, VerificationProgress
from shuffle_ledger.ledger.api.problems import MEDIA_TYPE, PROBLEMS
from shuffle_ledger.ledger.decisions.quotas import QuotaReading
from shuffle_ledger.ledger.decisions.quoting import BatchQuote, Fits
from shuffle_ledger.ledger.errors import Difference, OpeningWarning
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.permits import IssuedPermit
from shuffle_ledger.ledger.reports.budgets import BudgetStatement
from shuffle_ledger.ledger.reports.events import EventPage
from shuffle_ledger.ledger.reports.forecasts import Forecast
from shuffle_ledger.ledger.reports.joint_forecasts import JointForecast
from shuffle_ledger.ledger.reports.listing import ShownCohort
from shuffle_ledger.ledger.reports.published_entries import PublishedPage
from shuffle_ledger.ledger.reports.round_lists import RoundPage
from shuffle_ledger.ledger.values.documents import field_types
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Cohort,
    CohortStatus,
    Corrected,
    Incident,
    Pending,
    Quote,
    Refused,
    RoundRecord,
    RoundState,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.values.windows import BUCKETS, UNITS, Window
from shuffle_ledger.ledger.verification.verifier import VerificationReport

Schema = dict[str, Any]

_FINITE = frozenset({"epsilon_budget", "delta_budget", "epsilon_remaining", "epsilon0"})
_ROUND: Schema = {
    "type": "object",
    "title": "ShuffledRound",
    "properties": {
        "randomizer": {
            "type": "object",
            "description": "A kind, and the parameters of that kind by their names.",
            "properties": {"kind": {"type": "string"}},
            "required": ["kind"],
            "additionalProperties": True,
        },
        "reports": {"type": "integer"},
        "sampled_from": {"type": ["integer", "null"]},
        "participation": {"type": ["number", "null"]},
        "honest_fraction": {"type": "number"},
        "delta0": {"type": "number"},
        "analysis": {"type": ["string", "null"]},
        "reports_per_user": {
            "type": "integer",
            "description": "The most reports of one user; absent where it is 1.",
        },
    },
    "required": ["randomizer", "reports"],
}
_WINDOW: Schema = {
    "type": "object",
    "title": "Window",
    "description": "A budget of every `calendar` unit, or of every run of `rolling` buckets.",
    "properties": {
        "calendar": {"enum": list(UNITS)},
        "rolling": {"type": "integer", "description": "How many buckets in a row share the budget."},
        "bucket": {"enum": list(BUCKETS)},
        "epsilon": {"type": "number"},
        "delta": {"type": "number"},
        "local_budget": {
            "type": "number",
            "description": "Of each period, for the sum of epsilon0 over a user's rounds, if there is one.",
        },
    },
    "required": ["epsilon", "delta"],
    "dependentRequired": {"rolling": ["bucket"], "bucket": ["rolling"]},
}
_RECORDED = ("state", "registered_at", "attempts", "last_error")
_SIMPLE: Mapping[type, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    ShuffledRound: {"$ref": "#/components/schemas/ShuffledRound"},
    Window: {"$ref": "#/components/schemas/Window"},
}


def schema_of(kind: Any, *, name: str = "") -> Schema:
    """Return the JSON schema of `values.documents.document_of` for values of a type."""
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if kind is float:  # infinity is null
        return {"type": "number"} if name in _FINITE else {"type": ["number", "null"]}
    if get_origin(kind) is not None:
        return _schema_of_compound(get_origin(kind), get_args(kind), name)
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


def _schema_of_compound(origin: Any, arguments: Sequence[Any], name: str) -> Schema:
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        parts = [{"type": "null"} if part is type(None) else schema_of(part, name=name) for part in arguments]
        return {"anyOf": parts}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    return {"type": "array", "items": schema_of(arguments[0])}


def _schema_of_fields(kind: Any, **more: Schema) -> Schema:
    fields = {name: schema_of(hint, name=name) for name, hint in field_types(kind).items()}
    properties = {**more, **fields}
    lines = (kind.__doc__ or "").strip().splitlines()
    return {
        "type": "object",
        "title": kind.__name__,
        "description": lines[0] if lines else "",
        "properties": properties,
        "required": list(properties),
    }


def _decision(kind: type) -> Schema:
    return _schema_of_fields(kind, outcome={"const": kind.__name__.lower()})


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


class ANSWERS:
    """References to the schemas of answers."""

    cohort = _ref("Cohort")
    shown_cohort = _ref("ShownCohort")
    cohorts: Schema = {"type": "array", "items": _ref("Cohort")}  # noqa: RUF012 - read only
    budget = _ref("BudgetStatement")
    quota = _ref("QuotaReading")
    quotas: Schema = {"type": "array", "items": _ref("QuotaReading")}  # noqa: RUF012 - never changed
    quote = _ref("BatchQuote")
    one_quote = _ref("Quote")
    audience = _ref("Audience")
    forecast = _ref("Forecast")
    joint_forecast = _ref("JointForecast")
    amplification = _ref("Amplification")
    composition = _ref("Composition")
    calibration = _ref("CalibratedRounds")
    entries = _ref("EntryPage")
    events = _ref("EventPage")
    verification = _ref("VerificationReport")
    verification_progress = _ref("VerificationProgress")
    heads = _ref("Heads")
    statement = _ref("Statement")
    statement_progress = _ref("StatementProgress")
    standing = _ref("Standing")
    operation = _ref("OperationalHealth")
    record = _ref("RoundRecord")
    rounds = _ref("RoundPage")
    admitted = _ref("Admitted")
    pending = _ref("Pending")
    permit = _ref("IssuedPermit")
    permit_keys = _ref("PermitKeys")
    by_receipt: Schema = {"anyOf": [_ref("Settled"), _ref("Incident")]}  # noqa: RUF012 - never changed
    settled = _ref("Settled")
    voided = _ref("Voided")
    corrected = _ref("Corrected")
    incident = _ref("Incident")
    health = _ref("Health")


_OF_PLANS = ("epsilon_upper", "epsilon_budget", "delta_budget")
_PROBLEM: Schema = {
    "type": "object",
    "description": "An error, as in RFC 9457. `field`, `value` and `expected` say which value was wrong;"
    " of type `not_collectable`, `round_id`, `state` and `cohort_status` say how the round stands; of type"
    " `conflict`, `differences` say in which fields a request differs from what is stored; of type"
    " `unaccepted_warnings`, `warnings` say what is unusual about `cohort`; of type `beyond_budget`,"
    " `epsilon_upper` is more than `epsilon_budget`.",
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
        "warnings": {"type": "array", "items": schema_of(OpeningWarning)},
        **{name: schema_of(float, name=name) for name in _OF_PLANS},
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
_STANDING: Schema = {
    "type": "object",
    "description": "Which ledger this is, and where all its chains end, at one moment of its clock.",
    "properties": {
        "ledger_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        "at": schema_of(datetime),
        "heads": _HEAD_LIST,
    },
    "required": ["ledger_id", "at", "heads"],
}
_HEALTHY: Mapping[str, Schema] = {"healthy": {"type": "boolean"}}
_RECORD_FIELDS: Schema = {
    **{name: {"type": "string"} for name in ("round_id", "cohort", "registered_by")},
    **{name: schema_of(hint) for name, hint in field_types(RoundRecord).items() if name in _RECORDED},
    "round": _ref("ShuffledRound"),
    "collected_on": schema_of(date | None),
    "collected_until": schema_of(date | None),
    "use_case": schema_of(str | None),
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
    "team": schema_of(str | None),
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
_BOUND: Schema = {"type": ["number", "null"]}
_INTERVAL: Schema = {
    **{f"{of}{side}": _BOUND for of in ("epsilon", "delta") for side in ("_upper", "_lower")},
    "epsilon": {"type": "number", "description": "As given; the answer then bounds delta."},
    "delta": {"type": "number", "description": "As given; the answer then bounds epsilon."},
    "rounds": {"type": "integer"},
    "error": schema_of(ErrorBudget),
    "precise": {"type": "boolean", "description": "Whether the interval is as narrow as wanted."},
    "method": {"type": "string"},
}
_INTERVAL_ALWAYS = ["rounds", "error", "precise", "method"]
_AMPLIFIED: Schema = {
    "attack_epsilon_lower": _BOUND,
    "attack_delta_lower": _BOUND,
    "attack_known": {"type": "boolean"},
    "analysis": {"type": "string"},
    "round": _ref("ShuffledRound"),
    "one_third_honest": {
        "type": "object",
        "description": "Of protocols with common noise: the bounds if a third of the users is honest.",
        "properties": {
            "honest_reports": {"type": "integer"},
            "epsilon_upper": _BOUND,
            "delta_upper": _BOUND,
        },
        "required": ["honest_reports", "epsilon_upper", "delta_upper"],
    },
}
_CALIBRATED: Schema = {
    "parameter": {"enum": ["epsilon0", "p", "bits", "noise"]},
    "value": {"type": "number", "description": "The parameter; it certainly meets the target."},
    "value_beyond": {
        "type": ["number", "null"],
        "description": "The nearest value with less noise that was tried and is not certain to meet it.",
    },
    "epsilon0": _BOUND,
    "epsilon0_beyond": _BOUND,
    "policy": {"type": "string"},
    "cohort": {"type": "null"},
    "epsilon_decided_upper": {"type": "number", "description": "At most the target."},
    "epsilon_upper": _BOUND,
    "epsilon_lower": _BOUND,
    "delta": {"type": "number"},
    **{name: _INTERVAL[name] for name in _INTERVAL_ALWAYS},
    "expected_l2_error": _BOUND,
    "frequency_error": {"anyOf": [schema_of(FrequencyError), {"type": "null"}]},
    "analysis": {"type": "string"},
    "round": _ref("ShuffledRound"),
    "accounted": _ref("ShuffledRound"),
}


def _calculated(title: str, properties: Schema, required: Sequence[str]) -> Schema:
    about = "The answer that the command of the same name prints with --json."
    return {
        "type": "object",
        "title": title,
        "description": about,
        "properties": properties,
        "required": list(required),
    }


_COMPONENTS: Mapping[str, Schema] = {
    "Amplification": _calculated(
        "Amplification", {**_INTERVAL, **_AMPLIFIED}, [*_INTERVAL_ALWAYS, "attack_known", "analysis", "round"]
    ),
    "Composition": _calculated(
        "Composition",
        {**_INTERVAL, "analyses": {"type": "array", "items": {"type": "string"}}},
        [*_INTERVAL_ALWAYS, "analyses"],
    ),
    "CalibratedRounds": _calculated("CalibratedRounds", _CALIBRATED, list(_CALIBRATED)),
    "Cohort": _schema_of_fields(Cohort),
    "ShownCohort": _schema_of_fields(ShownCohort),
    "BudgetStatement": _schema_of_fields(BudgetStatement),
    "BatchQuote": _schema_of_fields(BatchQuote),
    "QuotaReading": _schema_of_fields(QuotaReading),
    "Quote": _schema_of_fields(Quote),
    "Forecast": _schema_of_fields(Forecast),
    "JointForecast": _schema_of_fields(JointForecast),
    "Fits": _schema_of_fields(Fits),
    "EntryPage": _schema_of_fields(PublishedPage),
    "EventPage": _schema_of_fields(EventPage),
    "VerificationReport": _schema_of_fields(VerificationReport),
    "Audience": {
        "type": "object",
        "properties": {"audience": {"type": "array", "items": {"type": "string"}}},
        "required": ["audience"],
    },
    "Heads": _HEADS,
    "Standing": _STANDING,
    "Statement": _schema_of_fields(Statement),
    "StatementProgress": _schema_of_fields(StatementProgress),
    "VerificationProgress": _schema_of_fields(VerificationProgress),
    "OperationalHealth": _schema_of_fields(Health, **_HEALTHY),
    "IssuedPermit": _schema_of_fields(IssuedPermit),
    "PermitKeys": {
        "type": "object",
        "description": "A JWK set (RFC 7517), with the ledger and the issuer that permits name.",
        "properties": {
            "ledger": {"type": "string"},
            "issuer": {"type": "string"},
            "keys": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
        },
        "required": ["ledger", "issuer", "keys"],
    },
    "RoundRecord": _RECORD,
    "RoundPage": _schema_of_fields(RoundPage),
    "ShuffledRound": _ROUND,
    "Window": _WINDOW,
    "Admitted": _decision(Admitted),
    "Pending": _decision(Pending),
    "Settled": _decision(Settled),
    "Voided": _decision(Voided),
    "Corrected": _decision(Corrected),
    "Incident": _decision(Incident),
    "Refused": _REFUSAL,
    "RefusedDecision": _decision(Refused),
    "Health": {
        "type": "object",
        "properties": {"status": {"enum": ["ok", "unavailable"]}},
        "required": ["status"],
    },
    "Problem": _PROBLEM,
}


def _with_nested(components: Mapping[str, Schema]) -> Mapping[str, Schema]:
    """Return components with those that they refer to, each titled by its name."""
    found = dict(components)
    while missing := [name for name in _NAMED if name not in found]:
        found |= {name: _schema_of_fields(_NAMED[name]) for name in missing}
    return {name: {**schema, "title": name} for name, schema in found.items()}


COMPONENTS: Mapping[str, Schema] = _with_nested(_COMPONENTS)

Responses = dict[int | str, dict[str, Any]]
_PROBLEM_CONTENT = {MEDIA_TYPE: {"schema": _ref("Problem")}}


def answers(status: int, schema: Schema | None, description: str, *, open_to_all: bool = False) -> Responses:
    """Return the documented responses of a route: its answer, and the problems any route may have."""
    media, content = ("application/json", schema) if schema else ("text/plain", {"type": "string"})
    own: Responses = {status: {"description": description, "content": {media: {"schema": content}}}}
    return own if open_to_all else {**own, **_PROBLEM_RESPONSES}


BUNDLE_TYPE = "application/zip"


def _links(parameter: str, of: str, operations: Sequence[str]) -> dict[str, Any]:
    """Return links to operations that take what the request named."""
    return {name: {"operationId": name, "parameters": {parameter: of}} for name in operations}


_PROBLEM_RESPONSES: Responses = {
    status: {
        "description": "; ".join(kind.title for kind in PROBLEMS if kind.status == status) + ".",
        "content": _PROBLEM_CONTENT,
    }
    for status in sorted({kind.status for kind in PROBLEMS})
}
_LOCATION: Schema = {"schema": {"type": "string"}, "description": "Where the round is."}
REGISTERED: Responses = {
    **answers(201, ANSWERS.admitted, "Admitted: permits one release of this round."),
    202: {
        "description": "Registered, and not decided yet.",
        "content": {"application/json": {"schema": ANSWERS.pending}},
    },
    409: {
        "description": "Refused by the budget (`outcome` is there); admitted before and not to be collected"
        " any more (`state` is there); or a conflict or contradiction.",
        "content": {MEDIA_TYPE: {"schema": {"anyOf": [_ref("Refused"), _ref("Problem")]}}},
    },
}
BUNDLED: Responses = {
    **answers(200, None, "The bundle."),
    200: {
        "description": "The bundle.",
        "content": {BUNDLE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    },
}

LIST_OF_REVOKED: Responses = {
    **answers(200, None, "A signed token."),
    200: {"description": "A signed token.", "content": {"application/jwt": {"schema": {"type": "string"}}}},
}


def _in_background(progress: Schema) -> Responses:
    return {
        202: {
            "description": "It is made in the background.",
            "content": {"application/json": {"schema": progress}},
            "headers": {"Location": {"schema": {"type": "string"}, "description": "Where it will be."}},
        }
    }


STATED: Responses = {
    **answers(200, ANSWERS.statement, "The statement."),
    **_in_background(ANSWERS.statement_progress),
}
VERIFIED: Responses = {
    **answers(200, ANSWERS.verification, "The findings."),
    **_in_background(ANSWERS.verification_progress),
}
RETRIED: Responses = {**REGISTERED}
_OF_A_ROUND = ("rounds_show", "rounds_settle", "rounds_void", "rounds_correct")
for _named, _at in ((REGISTERED, "$request.body#/round_id"), (RETRIED, "$request.path.round_id")):
    for _status in (201, 202, 409):
        _more = {"headers": {"Location": _LOCATION}, "links": _links("round_id", _at, _OF_A_ROUND)}
        _named[_status] = {**_named[_status], **_more}
OPENED: Responses = answers(201, ANSWERS.cohort, "Opened, now or before.")
_OF_A_COHORT = (
    "cohorts_show",
    "cohorts_show_budget",
    "cohorts_quote",
    "cohorts_forecast",
    "auditing_entries",
)
OPENED[201]["links"] = _links("cohort", "$request.body#/name", _OF_A_COHORT)


def operation_id(route: APIRoute) -> str:
    """Return the stable name of an operation, as links use it: its tag and its function."""
    return f"{(route.tags or ['ledger'])[0]}_{route.name.strip('_')}"


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application, made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        components = document.setdefault("components", {}).setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        components.update({name: dict(schema) for name, schema in COMPONENTS.items()})
        document["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "A token: `sl_ID_SECRET`."}
        }
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path in OPEN_PATHS else [{"token": []}]
        if app.state.service.root_path:
            document["servers"] = [{"url": app.state.service.root_path}]
        app.openapi_schema = document
    return app.openapi_schema
