"""Puts a Python process's clock off by as many seconds as its environment says. Python imports this first."""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import Any

OFF_SECONDS = float(os.environ.get("SHIFTED_CLOCK_SECONDS", "0"))
_OFF = dt.timedelta(seconds=OFF_SECONDS)
_REAL = dt.datetime
_time, _time_ns = time.time, time.time_ns


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _REAL)


class Shifted(_REAL, metaclass=_Kind):
    """The datetime that the process sees: `now` is wrong."""

    __slots__ = ()  # as large as the real one

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        """Return the wrong moment."""
        return _REAL.now(tz) + _OFF

    @classmethod
    def utcnow(cls) -> Any:
        """Return the wrong moment, without a zone."""
        return _REAL.now(dt.UTC).replace(tzinfo=None) + _OFF


if OFF_SECONDS:
    time.time = lambda: _time() + OFF_SECONDS
    time.time_ns = lambda: _time_ns() + int(OFF_SECONDS * 1e9)
    dt.datetime = Shifted  # type: ignore[misc]  # this is the point
