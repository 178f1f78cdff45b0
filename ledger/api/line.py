"""The line of rounds that wait for a quick decision: those that wait together are decided in one commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.decisions.batches import admit_each
from shuffle_ledger.ledger.storage import Store
from shuffle_ledger.ledger.values import Outcome, RoundRequest

Answer = Outcome | None | Exception

TOGETHER_MAX = 16  # rounds in one commit: with more of them, a round costs little less


@dataclass(kw_only=True, eq=False)
class _WaitingRound:
    request: RoundRequest
    actor: str
    answer: Answer = None


class DecisionLine:
    """Rounds in the order in which they came, decided on one thread."""

    def __init__(self, store: Store, thread: AccountantThread) -> None:
        self._store, self._thread = store, thread
        self._line: list[_WaitingRound] = []
        self._lock = threading.Lock()  # of the list: it grows in the event loop, and shrinks on the thread

    async def admit_at_once(self, request: RoundRequest, *, actor: str) -> Outcome | None:
        """Return what `decisions.admit_at_once` returns, and raise what it raises, or TryAgain if the line is
        full.
        """
        mine = _WaitingRound(request=request, actor=actor)
        with self._lock:
            self._line.append(mine)
        try:
            # The thread works for one after the other: this round is decided now, or was before.
            await self._thread.run(self._decide, quick=True)
        finally:
            with self._lock:
                if mine in self._line:
                    self._line.remove(mine)
        if isinstance(mine.answer, Exception):
            raise mine.answer
        return mine.answer

    def _decide(self, accountant: Accountant) -> None:
        with self._lock:
            some, self._line = self._line[:TOGETHER_MAX], self._line[TOGETHER_MAX:]
        try:
            asked = [(each.request, each.actor) for each in some]
            answers: Sequence[Answer] = admit_each(self._store, accountant, asked)
        except Exception as error:  # noqa: BLE001 - raised again for every waiting request
            answers = [error] * len(some)
        for each, answer in zip(some, answers, strict=True):
            each.answer = answer
