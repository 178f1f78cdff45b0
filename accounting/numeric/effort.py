"""How much was computed: a count by which a computation decides to be less precise instead of late.

No bound depends on it. It counts array elements, not seconds, so that equal questions get equal answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

#: About the most elements of the profiles for one round's privacy loss: some seconds. More: closer bounds of
#: the slowest rounds, and more time for them.
MOST_EFFORT = 6e8


@dataclass
class Effort:
    """The work since it was made, in array elements, about 1e-8 s each."""

    spent: float = 0.0


# The count that is running, for the whole depth of a call; None if there is none.
_running: ContextVar[Effort | None] = ContextVar("running effort", default=None)


@contextmanager
def counted() -> Iterator[Effort]:
    """Counts what is computed inside. An outer count includes it."""
    outer, own = _running.get(), Effort()
    token = _running.set(own)
    try:
        yield own
    finally:
        _running.reset(token)
        if outer is not None:
            outer.spent += own.spent


def spend(elements: float) -> None:
    """Adds array elements to the running count, if there is one."""
    effort = _running.get()
    if effort is not None:
        effort.spent += elements
