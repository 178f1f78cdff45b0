"""The access log: one line for each answer, without query strings, headers or bodies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Scope

from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.logs import FIELDS
from shuffle_ledger.ledger.security_log import EventLimit

NAME = "shuffle_ledger.access"
PATH_LENGTH_MAX = 300  # characters; longer ones are cut
STRANGERS_BURST = 20  # lines at once about requests without a token; then one every ten seconds
QUIET = frozenset({"/healthz", "/readyz", "/v1/healthz", "/v1/readyz"})  # asked all the time, by machines

_log = logging.getLogger(NAME)


class AccessLog:
    """Writes the lines. Clients without a token or a session get a bounded number of them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._of_strangers = EventLimit(burst=STRANGERS_BURST, clock=clock)

    def record(self, scope: Scope, *, status: int | None, seconds: float) -> None:
        """Write what was asked, by whom, how it was answered and after how long.

        `status` None: the client left before there was an answer. Good answers about health are left out.
        """
        path = _printable(scope)
        if path in QUIET and status is not None and status < 500:
            return
        token = scope.get("state", {}).get("token")
        left_out = self._of_strangers.take("stranger") if token is None else 0
        if left_out is None:
            return
        fields = _fields(scope, token, path=path, status=status, seconds=seconds)
        if left_out:
            fields["left_out"] = left_out
        level = logging.WARNING if status is not None and status >= 500 else logging.INFO
        _log.log(level, "answered" if status is not None else "not answered", extra={FIELDS: fields})


def _fields(
    scope: Scope, token: AccessToken | None, *, path: str, status: int | None, seconds: float
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "method": scope["method"] if len(scope["method"]) <= 16 else "-",
        "path": path,
        "route": getattr(scope.get("route"), "path", None),
        "status": status,
        "milliseconds": int(10_000 * seconds) / 10,
        "client": str(scope["client"][0]) if scope.get("client") else None,
        "name": token.name if token is not None else None,
        "token_id": token.token_id if token is not None else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _printable(scope: Scope) -> str:
    """Return the path as it came, percent-encoded; nothing in it ends a line or drives a terminal."""
    raw = scope.get("raw_path") or str(scope["path"]).encode("utf-8", "backslashreplace")
    text = raw.split(b"?", 1)[0].decode("latin-1")
    return "".join(c if "!" <= c <= "~" else f"%{ord(c) & 0xFF:02X}" for c in text[:PATH_LENGTH_MAX])
