"""The path below which a proxy offers the server: removed from requests, whether or not the proxy did so."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from shuffle_ledger.ledger.errors import InvalidValue

_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
# The first segments of our own paths: behind a proxy that removes its path they would be ambiguous.
_OWN = frozenset({"v1", "cohorts", "login", "logout", "style.css", "metrics", "healthz", "readyz"})


def checked_root_path(text: str) -> str:
    """Return a path such as `/ledger`, without a slash at its end; empty for the root of the host.

    Raises:
        InvalidValue: not a path of plain segments, or its first segment is one of our own.
    """
    path = text.rstrip("/")
    if path and (_PATH.fullmatch(path) is None or path.split("/")[1] in _OWN):
        own = ", ".join(sorted(_OWN))
        expected = (
            f"a path such as /ledger, of letters, digits and -._~, whose first segment is none of {own}"
        )
        raise InvalidValue(field="root_path", value=text, expected=expected)
    return path


class RootPath:
    """ASGI middleware: removes the root path where a request has it."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            # As the client sent it: an encoded slash is part of a name.
            raw = scope.get("raw_path") or scope["path"].encode("utf-8")
            if raw == self._root_path.encode() or raw.startswith(f"{self._root_path}/".encode()):
                length = len(self._root_path)
                scope = {**scope, "path": scope["path"][length:] or "/", "raw_path": raw[length:] or b"/"}
        await self._app(scope, receive, send)
