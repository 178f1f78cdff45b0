"""Threads with an accountant: a bounded line of requests waits for each, and none of these holds a thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.errors import TryAgain

LINE_MAX = 512

Answer = TypeVar("Answer")


class AccountantThread:
    """One accountant, one thread at a time, and a line of bounded length in front of it.

    A waiting request waits in the event loop, so health checks never wait for a computation.
    """

    def __init__(self, accountant: Accountant, *, line_max: int = LINE_MAX) -> None:
        self._accountant = accountant
        self._limiter = anyio.CapacityLimiter(1)
        self._line_max = line_max
        self._waiting = 0
        self._quick = 0

    @property
    def waiting(self) -> int:
        """How many requests are in line, the one being served included."""
        return self._waiting

    @property
    def is_quick(self) -> bool:
        """Whether nothing in line may take long."""
        return self._quick == self._waiting

    async def run(self, work: Callable[[Accountant], Answer], *, quick: bool = False) -> Answer:
        """Return what `work` makes of the accountant; raises TryAgain when the line is full.

        `quick` promises that it computes nothing.
        """
        if self._waiting >= self._line_max:
            raise TryAgain("the server is busy with other computations; ask the same again")
        self._waiting += 1
        self._quick += quick
        try:
            return await anyio.to_thread.run_sync(partial(work, self._accountant), limiter=self._limiter)
        finally:
            self._waiting -= 1
            self._quick -= quick
