"""The application: routes, the gate in front of them, and what happens when it starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accounting import Accountant
from ledger.api import cohorts, description, operations, problems, rounds
from ledger.api.desk import Desk
from ledger.api.gate import Gate
from ledger.api.limits import FailureLimit
from ledger.api.metrics import Metrics
from ledger.api.service import Dispatch, Service
from ledger.api.sessions import Sessions
from ledger.config import Settings
from ledger.store import Store

THREADS_MAX = 12  # for the database; with three desks, no more than it gives connections
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
) -> FastAPI:
    """Return the application on an open store; `dispatch` says how rounds get decided."""
    sessions = Sessions(settings.session_key.get_secret_value() if settings.session_key else None)
    service = Service(
        settings=settings,
        store=store,
        dispatch=dispatch,
        sessions=sessions,
        deciding=Desk(Accountant(precision=settings.precision)),
        pricing=Desk(Accountant(precision=settings.precision)),
        reading=Desk(Accountant(precision=settings.precision)),
    )
    metrics = Metrics()
    app = FastAPI(
        title="shuffle-ledger",
        version=version("shuffle-ledger"),
        description=_ABOUT,
        docs_url=None,  # its pages load scripts from other hosts
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        lifespan=_lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.openapi = lambda: description.describe(app)  # type: ignore[method-assign]  # FastAPI's documented way
    routers = (cohorts.router, rounds.router, operations.router, operations.metrics_router(metrics))
    for router in routers:
        app.include_router(router)
    app.state.offered = [route for router in routers for route in router.routes]
    app.add_exception_handler(RequestValidationError, problems.on_invalid)
    app.add_exception_handler(HTTPException, problems.on_http)
    app.add_exception_handler(Exception, problems.on_error)
    for expected in problems.EXPECTED:
        app.add_exception_handler(expected, problems.on_error)
    failures = FailureLimit(burst=settings.authentication_failures, clock=clock)
    app.add_middleware(Gate, store=store, failures=failures, sessions=sessions)
    app.add_middleware(_Observed, metrics=metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX
    service: Service = app.state.service
    left_over = asyncio.create_task(service.decide_left_over())
    yield
    left_over.cancel()


class _Observed:
    """ASGI middleware, the outermost: measures every answer, and adds what every answer carries."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "-")  # as declared: names must not become labels
            seconds = time.perf_counter() - began
            method = scope["method"] if scope["method"] in _METHODS else "-"
            self._metrics.observe(method=method, route=route, status=status, seconds=seconds)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
