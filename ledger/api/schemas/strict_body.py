"""Reads request bodies: strict JSON in a request that says so, or a clear answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from shuffle_ledger.ledger.values.strict_json import NotStrictJson, read_json

MEDIA_TYPE = "application/json"


def check_media_type(request: Request, expected: str) -> None:
    """Raise a 415 unless a request says that its body is of a media type; parameters do not matter."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != expected:
        shown = ascii(given[:100]) if given else "nothing"
        raise HTTPException(
            415, f"Content-Type: got {shown}, expected {expected}", headers={"Accept": expected}
        )


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return read_json(await self.body())
        except NotStrictJson as problem:
            raise HTTPException(422, str(problem)) from None


class StrictRoute(APIRoute):
    """A route whose body is read by `values.strict_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See FastAPI: the documented place to give routes a request class."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            asked = _StrictRequest(request.scope, request.receive)
            if await asked.body():
                check_media_type(asked, MEDIA_TYPE)
            return await handle(asked)

        return strict
