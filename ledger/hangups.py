"""SIGHUP, which a closed terminal sends: it ends a process as gently as SIGTERM does."""

from __future__ import annotations

import signal
from types import FrameType

_HANGUP = getattr(signal, "SIGHUP", None)  # not on every system
# As the process was started. Read here, before a library sets a handler.
_IS_IGNORED = _HANGUP is not None and signal.getsignal(_HANGUP) is signal.SIG_IGN


def end_at_hangup() -> None:
    """Have SIGHUP do what SIGTERM does, unless the process was started to ignore it, as by `nohup`."""
    if _HANGUP is not None:
        signal.signal(_HANGUP, signal.SIG_IGN if _IS_IGNORED else _end)


def ignore_hangup() -> None:
    """Ignore SIGHUP: for children, which their parent ends."""
    if _HANGUP is not None:
        signal.signal(_HANGUP, signal.SIG_IGN)


def _end(_signal: int, _frame: FrameType | None) -> None:
    ignore_hangup()  # a shell and the system may both send one, and a second SIGTERM is less gentle
    signal.raise_signal(signal.SIGTERM)
