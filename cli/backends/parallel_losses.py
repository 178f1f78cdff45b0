"""Privacy losses of an import's rounds, computed ahead on every core while the rounds are decided in order.

Nothing depends on it but the time: a loss that did not come is computed where it is needed, and is the same.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

from shuffle_ledger.accounting import Accountant, RoundLoss, ShuffledRound, charged_as, slot_for
from shuffle_ledger.cli.backends.session import Session
from shuffle_ledger.ledger.loss_cache import recall

AHEAD_MAX = 1000  # kinds of rounds; fewer than an accountant remembers
AHEAD_MIN = 100  # fewer missing kinds are not worth two processes' starts, a second of each
PROCESSES_MAX = 16

Await = Callable[[ShuffledRound], None]


@contextmanager
def losses_ahead(session: Session, rounds: Sequence[ShuffledRound], *, processes: int) -> Iterator[Await]:
    """Yields a function to call before a round is decided: it waits until the accountant knows its loss."""
    slots = list(dict.fromkeys(_charged(each) for each in rounds))[:AHEAD_MAX]
    recall(session.store, session.accountant, slots)
    missing = [slot for slot in slots if not session.accountant.knows(slot)]
    processes = min(processes, PROCESSES_MAX)
    if processes < 2 or len(missing) < AHEAD_MIN:
        yield lambda _: None
        return
    # Spawned, not forked: this process has threads and an open database.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawning, initializer=_prepare_process) as pool:
        coming = {slot: pool.submit(_loss_bytes, slot, session.accountant.precision) for slot in missing}
        try:
            yield lambda described: _adopt(session.accountant, _charged(described), coming)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _charged(described: ShuffledRound) -> ShuffledRound:
    return charged_as(slot_for(described))[0]


def _adopt(accountant: Accountant, slot: ShuffledRound, coming: dict[ShuffledRound, Future[bytes]]) -> None:
    future = coming.pop(slot, None)
    # Whatever went wrong there is met again, and counted with its round, when the round is decided.
    if future is not None and future.exception() is None:
        accountant.adopt(slot, RoundLoss.from_bytes(future.result()))


def _loss_bytes(slot: ShuffledRound, precision: float) -> bytes:
    return Accountant(precision=precision).privacy_loss(slot).to_bytes()


def _prepare_process() -> None:
    """Leaves Ctrl-C to the parent, and ends this process when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
