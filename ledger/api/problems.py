"""Errors as `application/problem+json` (RFC 9457): which is which type and status, decided here alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from shuffle_ledger.accounting import InvalidParameter
from shuffle_ledger.ledger import request_ids, security_log
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.api.invalid_requests import TYPES_OF_NUMBERS, wrong_field
from shuffle_ledger.ledger.errors import (
    COMPARED_MAX,
    AnswerLost,
    BeyondBudget,
    LedgerError,
    NoCohort,
    NotAllowed,
    NotCollectable,
    OtherContent,
    UnacceptedWarnings,
)
from shuffle_ledger.ledger.reports.urgency import urgent
from shuffle_ledger.ledger.security_log import SecurityEvent
from shuffle_ledger.ledger.values.documents import Json, document_of

TYPE_PREFIX = "urn:shuffle-ledger:problem:"
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
_SHOWN_MAX = 200
# Everything that a request did before it failed stays: a round may be registered, and undecided.
_DAMAGED = "Stored data was damaged or changed: `shuffle-ledger audit verify` says what, and where."
_FAILED = "The server failed, and wrote down why. What was recorded stays: ask the same again to learn it."
_UNAVAILABLE = "The database cannot be used now. Ask the same again: for a round, with the same identifier."
_BEYOND = ("epsilon_upper", "epsilon_budget", "delta_budget")
_PRESENT = ("round_id", "state", "cohort_status")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProblemType:
    """A stable kind of problem.

    `kind` is the same word as in the command line's errors, but for these: there, `not_collectable` is a
    `conflict` with a `state`, `contradiction` is `bad_value`, `beyond_budget` is `refused`, and
    `issuer_unavailable` is `unavailable`.
    """

    kind: str
    status: int
    title: str
    retry: bool = False  # the same request may succeed later

    @property
    def uri(self) -> str:
        """The type's stable name."""
        return TYPE_PREFIX + self.kind


UNAUTHORIZED = ProblemType(kind="unauthorized", status=401, title="A valid token is needed")
FORBIDDEN = ProblemType(kind="forbidden", status=403, title="The token does not allow this")
NOT_FOUND = ProblemType(kind="not_found", status=404, title="There is no such thing")
NOT_OFFERED = ProblemType(kind="method_not_allowed", status=405, title="This method is not offered here")
CONFLICT = ProblemType(kind="conflict", status=409, title="The present state does not allow this")
NOT_COLLECTABLE = ProblemType(kind="not_collectable", status=409, title="The round must not be collected")
REFUSED = ProblemType(kind="refused", status=409, title="The round was refused")
CONTRADICTION = ProblemType(
    kind="contradiction", status=409, title="Values that contradict each other or the cohort"
)
UNACCEPTED_WARNINGS = ProblemType(
    kind="unaccepted_warnings", status=409, title="Unusual values that were not said to be meant"
)
BEYOND_BUDGET = ProblemType(kind="beyond_budget", status=409, title="The plan costs more than the budget")
OTHER_TYPE = ProblemType(
    kind="unsupported_media_type", status=415, title="The body has another type than what is read here"
)
NOT_EXTENDED = ProblemType(kind="not_extended", status=409, title="Kept heads that the ledger does not have")
TOO_LARGE = ProblemType(kind="too_large", status=413, title="The request is too large")
BAD_SIGNATURE = ProblemType(kind="bad_signature", status=409, title="A signature that does not fit")
BAD_VALUE = ProblemType(kind="bad_value", status=422, title="A value that cannot be one")
TOO_MANY_FAILURES = ProblemType(
    kind="too_many_failures", status=429, title="Too many wrong tokens, or identifiers of others", retry=True
)
FAILED = ProblemType(kind="failed", status=500, title="The server failed")
DAMAGED = ProblemType(kind="damaged", status=500, title="Stored data was damaged or changed")
STUCK = ProblemType(kind="stuck", status=500, title="The round could not be decided")
BUSY = ProblemType(kind="busy", status=503, title="The ledger is busy", retry=True)
BEHIND = ProblemType(kind="behind_checkpoint", status=503, title="The ledger is behind its checkpoint")
UNAVAILABLE = ProblemType(
    kind="unavailable", status=503, title="The database cannot be used, or its answer was lost", retry=True
)
UNSAFE_SESSION = ProblemType(
    kind="unsafe_session", status=503, title="The database's sessions are not as the ledger needs them"
)
CLOCK_OFF = ProblemType(
    kind="clock_off", status=503, title="The database's clock is wrong, or was when a cohort was last written"
)
ISSUER_UNAVAILABLE = ProblemType(
    kind="issuer_unavailable", status=503, title="The token's issuer cannot be asked", retry=True
)

PROBLEMS = tuple(kind for kind in list(globals().values()) if isinstance(kind, ProblemType))
_BY_KIND = {each.kind: each for each in PROBLEMS}


def kind_of(error: type[Exception]) -> ProblemType:
    """Return the kind of problem that an error is answered with: its own, or that of the next base.

    Values are checked against the schema first, which is BAD_VALUE; what the accountant or the ledger still
    refuses contradicts another value or the cohort.
    """
    if issubclass(error, InvalidParameter):
        return CONTRADICTION
    kinds = (_BY_KIND.get(vars(each).get("kind", "")) for each in error.__mro__)
    return next((kind for kind in kinds if kind is not None), FAILED)


_BY_STATUS = {
    401: UNAUTHORIZED,
    403: FORBIDDEN,
    404: NOT_FOUND,
    405: NOT_OFFERED,
    413: TOO_LARGE,
    415: OTHER_TYPE,
    429: TOO_MANY_FAILURES,
}


def problem(
    kind: ProblemType,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Json] | None = None,
) -> JSONResponse:
    """Return a problem document as a response; `members` are the fields that belong to its type."""
    content: dict[str, Json] = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
    }
    request_id = request_ids.current()
    if request_id is not None:
        content["request_id"] = request_id
    sent = {"Cache-Control": "no-store", **(headers or {})}
    if kind is UNAUTHORIZED:
        sent["WWW-Authenticate"] = 'Bearer realm="shuffle-ledger"'
    if kind.retry:
        sent.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return JSONResponse({**content, **(members or {})}, kind.status, sent, MEDIA_TYPE)


def problem_of(error: Exception) -> JSONResponse:
    """Return the response for an error; what is not listed says nothing about itself outside the log."""
    kind = kind_of(type(error))
    if kind is FAILED:
        _log.error("request failed", exc_info=error)
        return problem(FAILED, _FAILED)
    if kind is DAMAGED:
        _log.error("what is stored was damaged: %s", error)
        return problem(DAMAGED, _DAMAGED)  # not what was read: it may name others' cohorts
    if kind in (UNAVAILABLE, UNSAFE_SESSION):
        _log.error("database unavailable: %s", error)
    if kind is UNAVAILABLE:
        # Not what the driver said: that names hosts and users.
        lost = str(AnswerLost(error.fact)) if isinstance(error, AnswerLost) else ""
        return problem(UNAVAILABLE, lost[:1].upper() + lost[1:] or _UNAVAILABLE)
    members: dict[str, Json] = {}
    if kind is CONTRADICTION:
        field, value, expected = (getattr(error, name, None) for name in ("field", "value", "expected"))
        shown = None if value is None else _shown(value)
        members = {"field": str(field), "value": shown, "expected": str(expected)}
    if isinstance(error, BeyondBudget):
        members = {name: document_of(getattr(error, name)) for name in _BEYOND}
    if isinstance(error, NotCollectable):
        members = {name: document_of(getattr(error, name)) for name in _PRESENT}
    if isinstance(error, UnacceptedWarnings):
        members = {"cohort": error.cohort, "warnings": [document_of(one) for one in error.warnings]}
        members |= {} if error.round_id is None else {"round_id": error.round_id}
    if isinstance(error, OtherContent):
        members = {"differences": [document_of(one) for one in error.differences]}
    return problem(kind, str(error), members=members)


async def on_error(request: Request, error: Exception) -> JSONResponse:
    """Answer any error that a route raised."""
    if isinstance(error, NotAllowed):
        token: AccessToken | None = request.scope.get("state", {}).get("token")
        security_log.record(
            SecurityEvent.NOT_ALLOWED,
            token_id=token.token_id if token else None,
            name=token.name if token else None,
            role=token.role if token else None,
            method=request.method,
            route=getattr(request.scope.get("route"), "path", None),
            why=str(error),
        )
    if isinstance(error, NoCohort):
        error = await _with_name_meant(request, error)
    return problem_of(error)


async def _with_name_meant(request: Request, error: NoCohort) -> NoCohort:
    """Return the error with a similar name among the cohorts that the token sees: the answer about a cohort
    that it does not see is the same as if there were none."""
    token: AccessToken | None = request.scope.get("state", {}).get("token")
    if token is None:
        return error
    with suppress(LedgerError):  # the answer comes without it
        asked = partial(urgent, request.app.state.service.store, token, datetime.now(UTC).date())
        found = await run_in_threadpool(asked, after="", limit=COMPARED_MAX)
        return await run_in_threadpool(error.among, found.names)
    return error


async def on_invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request that does not fit the schema: the first field that is wrong, and why."""
    if not isinstance(error, RequestValidationError):
        raise error
    first: Mapping[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        return _unreadable()
    wrong = wrong_field(first)
    shown = None if wrong.value is None else _shown(wrong.value)
    members: dict[str, Json] = {"field": wrong.field, "value": shown, "expected": wrong.expected}
    is_text = str(first["type"]) in TYPES_OF_NUMBERS and isinstance(wrong.value, str | bool)
    written = json.dumps(shown, ensure_ascii=False) if is_text else shown
    detail = wrong.message or f"{wrong.field}: got {written}, expected {wrong.expected}"
    return problem(BAD_VALUE, detail, members=members)


async def on_http(request: Request, error: Exception) -> JSONResponse:
    """Answer what the framework itself refuses: unknown addresses and methods, unreadable bodies."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 400:
        return _unreadable()
    if error.status_code == 405:
        return problem(NOT_OFFERED, NOT_OFFERED.title + ".", headers={"Allow": _methods_at(request)})
    if error.status_code == 415:
        return problem(OTHER_TYPE, error.detail, headers=error.headers)
    if error.status_code == 422:
        return _unreadable(error.detail)
    kind = _BY_STATUS.get(error.status_code, FAILED)
    detail = "There is nothing at this address." if kind is NOT_FOUND else kind.title + "."
    return problem(kind, detail, headers=error.headers)


def _unreadable(why: str = "") -> JSONResponse:
    expected = "one strict JSON value in UTF-8" + (f" ({why})" if why else "")
    members: dict[str, Json] = {"field": "body", "value": "", "expected": expected}
    return problem(BAD_VALUE, f"body: expected {expected}", members=members)


def _methods_at(request: Request) -> str:
    """Return every method of an address; the framework names those of its first route alone."""
    found: set[str] = set()
    for route in request.app.state.offered:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= set(route.methods or ())
    if "GET" in found:
        found.add("HEAD")
    return ", ".join(sorted(found))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
