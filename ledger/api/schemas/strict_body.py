"""Request bodies: strict JSON, or a clear answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from shuffle_ledger.ledger.values.strict_json import NotStrictJson, read_json


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
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict
