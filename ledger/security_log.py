"""Writes security events: one line of JSON each, without secrets, and boundedly many.

An event has a name, a time and fields. Fields are identifiers, names and addresses. No field holds a token's
secret, a cookie or what a form says.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum, auto

from shuffle_ledger.ledger import request_ids

NAME = "shuffle_ledger.security"
BURST = 100  # events of one name that are written at once
REFILL_SECONDS = 10.0  # one more event of that name after this long; the others are counted
FIELD_LENGTH_MAX = 200  # characters; longer texts are cut

_log = logging.getLogger(NAME)


class SecurityEvent(StrEnum):
    """The names of the events."""

    WRONG_TOKEN = auto()  # unknown, malformed, expired or revoked
    LOCKED_OUT = auto()  # an address, or a token that tried identifiers of others, has to wait
    LOGGED_IN = auto()
    LOGGED_OUT = auto()
    ENDED_SESSION_USED = auto()  # a cookie was used after its session was ended: a copy of it
    NOT_ALLOWED = auto()  # a role or a limit to some cohorts, or a form of another site
    TOKEN_CREATED = auto()
    TOKEN_REVOKED = auto()
    TOKEN_ROTATED = auto()  # another one like it was created; the old one may end sooner


class EventLimit:
    """Counts events by name, and says which are written; any thread may ask."""

    def __init__(self, *, burst: int = BURST, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._written: dict[str, tuple[float, float]] = {}  # how many count still, and when that was so
        self._left_out: dict[str, int] = {}

    def take(self, event: str) -> int | None:
        """Return how many were left out before this one; None if this one is left out too."""
        with self._lock:
            number, moment = self._written.get(event, (0.0, 0.0))
            now = self._clock()
            number = max(0.0, number - (now - moment) / REFILL_SECONDS)
            if number > self._burst - 1:
                self._left_out[event] = self._left_out.get(event, 0) + 1
                return None
            self._written[event] = (number + 1, now)
            return self._left_out.pop(event, 0)


process_limit = EventLimit()  # what this process may still write


def record(event: SecurityEvent, **fields: str | int | None) -> None:
    """Write an event; fields without a value are left out."""
    left_out = process_limit.take(event)
    if left_out is None:
        return
    line: dict[str, str | int] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    for name, value in {"request_id": request_ids.current(), **fields}.items():
        if value is not None:
            line[name] = value[:FIELD_LENGTH_MAX] if isinstance(value, str) else value
    if left_out:
        line["left_out"] = left_out
    _log.info("%s", json.dumps(line))


@contextmanager
def written_to_stderr() -> Iterator[None]:
    """Write the events to standard error until the end of the block."""
    handler = logging.StreamHandler(sys.stderr)
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
