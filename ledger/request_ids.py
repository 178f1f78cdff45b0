"""The identifier of the request that this thread or task works for, from HTTP to a worker."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

HEADER = "x-request-id"  # of HTTP requests and answers, in lower case
MESSAGE_HEADER = "shuffle_ledger_request_id"  # of messages to workers
_FORM = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_current: ContextVar[str | None] = ContextVar("shuffle_ledger_request_id", default=None)


def current() -> str | None:
    """Return the identifier of the request that is worked for; None outside of any."""
    return _current.get()


def accepted(text: str | None) -> str:
    """Return a caller's identifier if it has 1 to 64 letters, digits and `._:-`; else a new one."""
    return text if text is not None and _FORM.fullmatch(text) else secrets.token_hex(16)


@contextmanager
def bound(request_id: str | None) -> Iterator[None]:
    """Work for a request until the end of the block, in this thread or task and those it starts."""
    token = _current.set(request_id)
    try:
        yield
    finally:
        _current.reset(token)
