"""The application: routes, the gate in front of them, and what happens when it starts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, cast

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shuffle_ledger.accounting import Accountant, InvalidParameter
from shuffle_ledger.ledger import request_ids, telemetry
from shuffle_ledger.ledger.access import tokens_named_as_subjects
from shuffle_ledger.ledger.api import description, problems
from shuffle_ledger.ledger.api.access_log import QUIET, AccessLog
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.api.auth.middleware import API_PREFIX, Door, Gate
from shuffle_ledger.ledger.api.auth.oidc_settings import OidcSettings
from shuffle_ledger.ledger.api.auth.rate_limits import FailureLimit
from shuffle_ledger.ledger.api.auth.sessions import Sessions
from shuffle_ledger.ledger.api.dependencies import Dispatch, Service
from shuffle_ledger.ledger.api.long_answers import LongAnswers
from shuffle_ledger.ledger.api.metrics import Metrics
from shuffle_ledger.ledger.api.overview import Overview
from shuffle_ledger.ledger.api.pages import rounds, routes, statement_files
from shuffle_ledger.ledger.api.recent import RecentBudgets
from shuffle_ledger.ledger.api.root_path import RootPath, checked_root_path
from shuffle_ledger.ledger.api.routes import router
from shuffle_ledger.ledger.errors import Conflict, LedgerError
from shuffle_ledger.ledger.permits import PermitKeys
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

    from shuffle_ledger.ledger.api.auth.issuer import OpenIdConnect

Handler = Callable[[Request, Exception], Awaitable[Response]]

THREADS_MAX = 11  # for the database; with those of four accountants, no more than it gives connections
CALCULATIONS_MAX = 32  # of calculators, in line; others are asked to come again
_ABOUT = (
    "Privacy budgets of shuffled telemetry: what may be collected is decided here, before it is. The values "
    "and the words are those of the command line. Floats round-trip; a bound that is infinite is null. "
    "Identifiers are yours, so that every request may be repeated."
)


def create_app(
    settings: Settings,
    store: Store,
    dispatch: Dispatch,
    *,
    clock: Callable[[], float] = time.monotonic,
    root_path: str = "",
) -> FastAPI:
    """Return the application on an open store.

    Args:
        settings: of the server.
        store: the open ledger.
        dispatch: how rounds get decided.
        clock: seconds that never go back.
        root_path: the path below which a proxy offers the server, such as `/ledger`.

    Raises:
        InvalidValue: `root_path` is not one, or settings (OpenID Connect, permits) are missing or wrong.
        ModuleNotFoundError: they name an issuer, and the extra `oidc` is not installed.
        Conflict: likewise, and a valid token has a name that is now reserved for its subjects.
    """
    root_path = checked_root_path(root_path)
    PermitKeys.of(settings, "")  # a wrong file is found now, not when a round is released
    oidc = _oidc_of(settings, store, clock)
    door = Door(store, FailureLimit(burst=settings.authentication_failures, clock=clock), oidc)
    key = settings.session_key.get_secret_value() if settings.session_key else None
    sessions = Sessions(key)
    auditing = AccountantThread(Accountant(precision=settings.precision))
    service = Service(
        settings=settings,
        store=store,
        dispatch=dispatch,
        sessions=sessions,
        door=door,
        deciding=AccountantThread(Accountant(precision=settings.precision)),
        pricing=AccountantThread(Accountant(precision=settings.precision)),
        calculating=AccountantThread(Accountant(), line_max=CALCULATIONS_MAX),
        reading=AccountantThread(Accountant(precision=settings.precision)),
        budgets=RecentBudgets(store),
        auditing=auditing,
        long_answers=LongAnswers(auditing, clock),
        overview=Overview(store),
        root_path=root_path,
    )
    metrics = Metrics(service)
    service.observe_decision = metrics.observe_decision
    app = FastAPI(
        title="shuffle-ledger",
        version=version("shuffle-ledger"),
        description=_ABOUT,
        docs_url=None,  # its pages load scripts from other hosts
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        lifespan=_lifespan,
        redirect_slashes=False,
        telemetry=_traced(root_path),
    )
    app.state.service = service
    app.state.metrics = metrics
    app.openapi = lambda: description.describe(app)  # type: ignore[method-assign]  # FastAPI's documented way
    _offer(app)
    _answer_errors(app)
    app.add_middleware(Gate, store=store, door=door, sessions=sessions, root_path=root_path)
    app.add_middleware(_Observed, service=service, metrics=metrics, on_failure=_readable(problems.on_error))
    if root_path:
        app.add_middleware(RootPath, root_path=root_path)
    return app


def _traced(root_path: str) -> TelemetryConfig:
    """Return what FastAPI exports: nothing by default, and never a span for a health check."""
    settings = cast("TelemetryConfig", telemetry.fastapi_settings())
    return {**settings, "exclude": lambda scope: scope["path"].removeprefix(root_path) in QUIET}


def _answer_errors(app: FastAPI) -> None:
    """Add the answers to errors."""
    handlers: dict[type[Exception], Handler] = {
        RequestValidationError: problems.on_invalid,
        HTTPException: problems.on_http,
        **dict.fromkeys((LedgerError, InvalidParameter, Exception), problems.on_error),
    }
    for expected, handler in handlers.items():
        app.add_exception_handler(expected, _readable(handler))


def _oidc_of(settings: Settings, store: Store, clock: Callable[[], float]) -> OpenIdConnect | None:
    checked = OidcSettings.of(settings)
    if checked is None:
        return None
    from shuffle_ledger.ledger.api.auth.issuer import OpenIdConnect  # noqa: PLC0415 - an extra

    taken = tokens_named_as_subjects(store)
    if taken:
        raise Conflict(f"tokens {', '.join(taken)} have names of the issuer's subjects: revoke them first")
    return OpenIdConnect(checked, clock=clock)


def _offer(app: FastAPI) -> None:
    """Add all routes."""
    routers = (router(), routes.router, rounds.router, statement_files.router)
    for each in routers:
        app.include_router(each)
    app.state.offered = [route for each in routers for route in each.routes]


def _readable(handler: Handler) -> Handler:
    """Return a handler that shows people a page where programs get a problem document."""

    async def handled(request: Request, error: Exception) -> Response:
        answer = await handler(request, error)
        path: str = request.scope["path"]
        if path.startswith(API_PREFIX) or path in ("/metrics", "/healthz", "/readyz"):
            return answer
        said = json.loads(bytes(answer.body))
        return routes.page(
            "error.html.jinja", request, status=said["status"], title=said["title"], detail=said["detail"]
        )

    return handled


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX
    service: Service = app.state.service
    left_over = asyncio.create_task(service.decide_left_over())
    yield
    left_over.cancel()
    app.state.metrics.close()


class _Observed:
    """ASGI middleware, the outermost: measures every answer, and adds what every answer carries."""

    def __init__(self, app: ASGIApp, *, service: Service, metrics: Metrics, on_failure: Handler) -> None:
        self._app = app
        self._on_failure = on_failure  # here, where the answer is measured and the request still has its name
        self._service = service
        self._access_log = AccessLog() if service.settings.access_log else None
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with request_ids.bound(request_ids.accepted(Headers(scope=scope).get(request_ids.HEADER))):
            telemetry.describe_request(str(request_ids.current()))
            await self._answered(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status: int | None = None  # as long as nothing was answered
        request_id = (request_ids.HEADER.encode(), str(request_ids.current()).encode())
        method = scope["method"] if scope["method"] in _METHODS else "-"
        if method == "HEAD":  # answered as GET is; the server sends the headers of that alone
            scope = {**scope, "method": "GET"}
        secure = _SECURE if scope["scheme"] == "https" else ()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ending = _ENDING if self._service.is_ending else ()
                message["headers"] = [*message["headers"], *_HEADERS, request_id, *secure, *ending]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if status is not None:
                raise  # half an answer is out: the server closes the connection
            answer = await self._on_failure(Request(scope, receive), error)
            await answer(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "-")  # as declared: names must not become labels
            seconds = time.perf_counter() - began
            if status is not None:
                self._metrics.observe(method=method, route=route, status=status, seconds=seconds)
            if self._access_log is not None:
                self._access_log.record(scope, status=status, seconds=seconds)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_ENDING = ((b"connection", b"close"),)  # a client that connects again is sent to another server
# Only where the request came by TLS: a browser that reached the server by HTTP must not be locked out of it.
_SECURE = ((b"strict-transport-security", b"max-age=31536000"),)
