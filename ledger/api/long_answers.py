"""Answers that take long, statements and verifications: equal questions wait for the same work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.errors import TryAgain
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.operations import Unfinished

WAIT_SECONDS: Final = 25.0  # for an answer before its caller is to ask again; proxies wait for a minute
UNFINISHED_MAX: Final = 8  # in line or under way
KEPT_SECONDS: Final = 600.0  # from when an answer was made, for a caller who has not come back
KEPT_BYTES_MAX: Final = 64 << 20  # of all of them, but the last one may be larger

Work = Callable[[Accountant, Progress], bytes]


class LongAnswers:
    """The answers that a server makes, or has made and not given yet. For one event loop.

    They are in memory: after a restart the same question has the answer made anew, from the same ledger.
    """

    def __init__(self, thread: AccountantThread, clock: Callable[[], float] = time.monotonic) -> None:
        """Work on a thread."""
        self._thread = thread
        self._clock = clock
        self._known: dict[Hashable, _LongAnswer] = {}

    async def get(self, question: Hashable, work: Work, *, wait_seconds: float) -> bytes | Unfinished:
        """Return the answer, made once for all who ask at one time, or how far it is.

        Args:
            question: all that determines the answer, which the caller may have.
            work: makes it.
            wait_seconds: after which it is unfinished.

        Raises:
            TryAgain: `UNFINISHED_MAX` others are not finished.
        """
        self._tidy()
        mine = self._known.get(question)
        if mine is None:
            if sum(not each.task.done() for each in self._known.values()) >= UNFINISHED_MAX:
                line = f"{UNFINISHED_MAX} statements and verifications are in line before this one"
                raise TryAgain(f"{line}: ask again later")
            mine = self._known[question] = _LongAnswer(self._thread, work, self._clock)
        done, _ = await asyncio.wait({mine.task}, timeout=wait_seconds)
        if not done:
            return mine.progress
        if self._known.get(question) is mine:  # it is given now: the next caller gets a new one
            del self._known[question]
        return mine.task.result()

    def _tidy(self) -> None:
        """Drop answers that were made too long ago, or that are too large with those made after them."""
        made = [(each.made_at, question) for question, each in self._known.items() if each.task.done()]
        size = 0
        for at, question in sorted(made, key=lambda each: each[0], reverse=True):
            is_last, size = size == 0, size + self._known[question].size
            if self._clock() - at > KEPT_SECONDS or (size > KEPT_BYTES_MAX and not is_last):
                del self._known[question]


class _LongAnswer:
    def __init__(self, thread: AccountantThread, work: Work, clock: Callable[[], float]) -> None:
        self.progress = Unfinished(state="waiting", step=None, done=None, of=None)
        self.size = 0
        self.made_at = 0.0
        self.task = asyncio.ensure_future(self._made(thread, work, clock))

    async def _made(self, thread: AccountantThread, work: Work, clock: Callable[[], float]) -> bytes:
        try:
            found = await thread.run(lambda accountant: work(accountant, self._tell))
            self.size = len(found)
            return found
        finally:
            self.made_at = clock()

    def _tell(self, step: str, done: int, of: int) -> None:
        self.progress = Unfinished(state="making", step=step, done=done, of=of)
