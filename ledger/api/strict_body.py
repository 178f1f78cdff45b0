"""Reads request bodies: strict JSON in a request that says so, or a clear answer."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request

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


async def strict_body(request: Request) -> Any:
    """Return the value of a request's body, None of an empty one; raises a 415, or a 422."""
    text = await request.body()
    if not text:
        return None
    check_media_type(request, MEDIA_TYPE)
    try:
        return read_json(text)
    except NotStrictJson as problem:
        raise HTTPException(422, str(problem)) from None
