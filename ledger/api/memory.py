"""Keeps answers that take long, by what determines them; equal requests at one time share one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

REMEMBERED_MAX = 1024


class AnswerMemory(Generic[Answer]):
    """Computations by key. One that fails is forgotten; one whose asker left goes on. For one event loop."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[Hashable, asyncio.Task[Answer]] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        """Return whether the answer is remembered or being computed."""
        return key in self._tasks

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer, computed at most once; raises what `compute` raises."""
        if key not in self._tasks:

            async def computed() -> Answer:
                return await compute()

            task = asyncio.ensure_future(computed())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._forget_failure(key, done))
            while len(self._tasks) > REMEMBERED_MAX:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(key)
        return await asyncio.shield(self._tasks[key])

    def _forget_failure(self, key: Hashable, done: asyncio.Task[Answer]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._tasks.get(key) is done:
            del self._tasks[key]
