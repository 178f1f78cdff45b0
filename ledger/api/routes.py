"""The routes under `/v1`: one for each row of `ledger.operations`, made of the row."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.answering.calls import Call
from shuffle_ledger.ledger.api.dependencies import Needs, call_of, service_of, wait_of
from shuffle_ledger.ledger.api.served import SERVED, ServedAsk
from shuffle_ledger.ledger.api.strict_body import strict_body
from shuffle_ledger.ledger.operations import OPERATIONS, Operation
from shuffle_ledger.ledger.questions.fields import Body, check_known

PREFER_LENGTH_MAX = 200


def router() -> APIRouter:
    """Return the routes of all operations."""
    found = APIRouter(include_in_schema=False)
    for operation in OPERATIONS:
        for path in operation.paths:
            found.add_api_route(
                path,
                _endpoint(operation),
                methods=[operation.method],
                name=operation.name,
                response_model=None,
            )
    return found


def _endpoint(operation: Operation[..., Any]) -> Callable[[Request], Awaitable[Response]]:
    needs = None if operation.permission is None else Needs(operation.permission)

    async def answered(request: Request) -> Response:
        service = service_of(request)
        if needs is None:
            call = Call(store=service.store, settings=service.settings, actor="", team=None)
        else:
            token: AccessToken = needs(request)
            call = call_of(service, token)
        asked, waited = await question_of(operation, request), _waited(operation, request)
        ask = ServedAsk(operation=operation, service=service, call=call, request=request, waited=waited)
        own = SERVED.get(operation.name)
        answer = await (ask.answered(asked) if own is None else own(ask, asked))
        return answer if isinstance(answer, Response) else ask.response(answer)

    return answered


async def question_of(operation: Operation[..., Any], request: Request) -> Any:
    """Return the question that a request asks; raises RequestValidationError, or a 415 or 422."""
    asked: dict[str, Any] = {name: unquote(value) for name, value in request.path_params.items()}
    for name, place in operation.places.items():
        if place == "query" and (given := request.query_params.getlist(name)):
            asked[name] = given if len(given) > 1 else given[0]
    body = await strict_body(request)
    if operation.has_body and body is None:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "input": None}])
    outside_body = [name for name, place in operation.places.items() if place != "body"]
    return read(operation.question, body if operation.has_body else {}, asked, outside_body)


def read(kind: type[Body], body: Any, asked: dict[str, Any] | None = None, outside_body: Any = ()) -> Any:
    """Return the question of some type that a body, and what is `asked` elsewhere, state; raises
    RequestValidationError."""
    try:
        if isinstance(body, dict):
            body = {**check_known(kind, body, but=outside_body), **(asked or {})}
        return _adapter(kind).validate_python(body)  # type: ignore[arg-type]  # a class has a hash
    except PydanticCustomError as error:
        found = {"type": error.type, "loc": ("body",), "input": body, "ctx": error.context}
        raise RequestValidationError([found]) from error
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors]) from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _waited(operation: Operation[..., Any], request: Request) -> float | None:
    prefer = request.headers.get("prefer") if operation.waits else None
    if prefer is not None and len(prefer) > PREFER_LENGTH_MAX:
        limits = {"max_length": PREFER_LENGTH_MAX}
        raise RequestValidationError(
            [{"type": "string_too_long", "loc": ("header", "prefer"), "input": prefer, "ctx": limits}]
        )
    return wait_of(prefer)
