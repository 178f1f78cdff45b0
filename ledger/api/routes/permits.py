"""Routes of permits: issue them, publish their keys and those revoked, and take receipts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from shuffle_ledger.ledger.api.dependencies import Asked, Registrar, RoundId, Service, in_thread, seen_round
from shuffle_ledger.ledger.api.description import ANSWERS, LIST_OF_REVOKED, answers
from shuffle_ledger.ledger.api.schemas.requests import IssuePermit, SettleByReceipt
from shuffle_ledger.ledger.api.schemas.strict_body import StrictRoute
from shuffle_ledger.ledger.permits import PermitKeys, issue_permit, revoked_permits
from shuffle_ledger.ledger.receipts import settle_by_receipt
from shuffle_ledger.ledger.values.documents import decision_document, document_of

# Anyone may ask, so the database is not asked each time; caches may keep an answer for as long.
CACHED_SECONDS = 10
_CACHED = {"Cache-Control": f"public, max-age={CACHED_SECONDS}"}

router = APIRouter(tags=["permits"], route_class=StrictRoute)


def _keys(service: Service) -> PermitKeys:
    return PermitKeys.of(service.settings, service.store.ledger_id())


@router.post("/v1/rounds/{round_id}/permit", responses=answers(200, ANSWERS.permit, "The permit."))
async def issue_(round_id: RoundId, body: IssuePermit, token: Registrar, service: Asked) -> JSONResponse:
    """Get the permit of an admitted round, for the gate that releases its reports. Asked again, it is the
    same."""

    def issued() -> JSONResponse:
        name, store = seen_round(service.store, token, round_id), service.store
        found = issue_permit(store, _keys(service), name, actor=token.name, releaser=body.releaser)
        return JSONResponse(document_of(found))

    return await in_thread(issued)


@router.post("/v1/receipts", responses=answers(200, ANSWERS.by_receipt, "Recorded, now or before."))
async def settle_by_receipt_(body: SettleByReceipt, token: Registrar, service: Asked) -> JSONResponse:
    """Settle a round with the number of reports that the releaser signed. A release that nothing here admits
    is recorded as an incident."""
    told: dict[str, Any] = {"actor": token.name, "reaches": token.sees}
    answer = await service.deciding.run(
        lambda accountant: settle_by_receipt(service.store, accountant, _keys(service), body.receipt, **told)
    )
    return JSONResponse(decision_document(answer))


@router.get("/v1/permits/keys", responses=answers(200, ANSWERS.permit_keys, "A JWK set.", open_to_all=True))
@router.get("/.well-known/jwks.json", include_in_schema=False)
async def keys_(service: Asked) -> Response:
    """Read the public keys of permits, retired ones included. Needs no token."""
    return await _recent(service, "keys", lambda: JSONResponse(_keys(service).published))


@router.get("/v1/permits/revoked", responses=LIST_OF_REVOKED)
async def revoked_(service: Asked) -> Response:
    """Read the signed list of permits that count no more, by the events that admitted. Needs no token."""

    def made() -> Response:
        token = revoked_permits(service.store, _keys(service))
        return Response(token, media_type="application/jwt")

    return await _recent(service, "revoked", made)


async def _recent(service: Service, name: str, made: Callable[[], Response]) -> Response:
    """Return the answer of a moment ago, or make it."""
    known, now = service.published.get(name), time.monotonic()
    if known is None or now - known[0] >= CACHED_SECONDS:
        known = service.published[name] = (now, await in_thread(made))
    return Response(known[1].body, media_type=known[1].media_type, headers=_CACHED)
