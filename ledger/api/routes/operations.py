"""Routes for operators: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from shuffle_ledger.ledger.api.dependencies import Asked, Watcher, in_thread, refuse_limited
from shuffle_ledger.ledger.api.description import ANSWERS, answers
from shuffle_ledger.ledger.api.metrics import CONTENT_TYPE, Metrics
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.health import health, health_document

router = APIRouter(tags=["operations"])


@router.get("/v1/healthz", responses=answers(200, ANSWERS.health, "The server is alive.", open_to_all=True))
@router.get("/healthz", include_in_schema=False)
async def healthz() -> JSONResponse:
    """Say that the server is alive. Needs no token."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/v1/readyz",
    responses={
        **answers(200, ANSWERS.health, "The server can answer.", open_to_all=True),
        503: {
            "description": "It cannot, for now.",
            "content": {"application/json": {"schema": ANSWERS.health}},
        },
    },
)
@router.get("/readyz", include_in_schema=False)
async def readyz(service: Asked) -> JSONResponse:
    """Say whether this server takes requests: its database has the right schema, and it is not ending.

    A broker that cannot be reached changes nothing here: rounds are registered and read without it, and a
    load balancer would otherwise send requests to no server at all. `health` has an alarm for the broker.
    """
    if service.is_ending:
        return JSONResponse({"status": "ending"}, 503)
    try:
        await in_thread(service.store.check)
    except LedgerError:
        return JSONResponse({"status": "unavailable"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/v1/health", responses=answers(200, ANSWERS.operation, "How it is."))
async def health_(token: Watcher, service: Asked) -> JSONResponse:
    """Read what waits, what is stuck and what verification found, in every cohort."""
    refuse_limited(token)
    found = await in_thread(service.dispatch.health or partial(health, service.store))
    return JSONResponse(health_document(found))


def metrics_router(metrics: Metrics) -> APIRouter:
    """Return the route of the metrics."""
    found = APIRouter(tags=["operations"])

    @found.get("/v1/metrics", responses=answers(200, None, "Prometheus' text format."))
    @found.get("/metrics", include_in_schema=False)
    async def show_metrics(token: Watcher) -> Response:
        """Read the metrics, for Prometheus. A token limited to some cohorts may not: they are about all."""
        refuse_limited(token)
        return Response(await in_thread(metrics.text), media_type=CONTENT_TYPE)

    return found
