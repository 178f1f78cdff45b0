"""Privacy losses of an import's rounds, computed ahead on every core while the rounds are decided in order.

They are stored many at a time, so that rounds of new kinds are decided together. Nothing depends on it but
the time: a loss that did not come is computed where it is needed, and is the same.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from shuffle_ledger.accounting import Accountant, RoundLoss, ShuffledRound, charged_as, slot_for
from shuffle_ledger.cli.backends.loss_process import loss_bytes, prepare_process
from shuffle_ledger.cli.backends.session import Session
from shuffle_ledger.ledger.decisions import prepare_together
from shuffle_ledger.ledger.loss_cache import recall, store_known
from shuffle_ledger.ledger.values import RoundRequest

AHEAD_MAX = 1000  # kinds of rounds; fewer than an accountant remembers
AHEAD_MIN = 100  # fewer missing kinds are not worth two processes' starts, a third of a second of each
PROCESSES_MAX = 16

Prepare = Callable[[Sequence[RoundRequest]], None]
_Coming = dict[ShuffledRound, Future[bytes]]


@contextmanager
def losses_ahead(session: Session, rounds: Sequence[ShuffledRound], *, processes: int) -> Iterator[Prepare]:
    """Yields a function to call before some rounds are registered: it waits until the accountant knows their
    losses, stores them, and computes what else a quick decision needs."""
    slots = list(dict.fromkeys(_charged(each) for each in rounds))[:AHEAD_MAX]
    recall(session.store, session.accountant, slots)
    missing = [slot for slot in slots if not session.accountant.knows(slot)]
    processes = min(processes, PROCESSES_MAX)
    if processes < 2 or len(missing) < AHEAD_MIN:
        yield functools.partial(_prepare, session, {})
        return
    # Spawned, not forked: this process has threads and an open database.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawning, initializer=prepare_process) as pool:
        with _without_interrupts():
            coming = {slot: pool.submit(loss_bytes, slot, session.accountant.precision) for slot in missing}
        try:
            yield functools.partial(_prepare, session, coming)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Starts processes that Ctrl-C does not reach, not even while they start: they get this thread's mask.

    Where it is pressed meanwhile, this process is interrupted at the end of the block.
    """
    resource_tracker.ensure_running()  # which would change the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _charged(described: ShuffledRound) -> ShuffledRound:
    return charged_as(slot_for(described))[0]


def _prepare(session: Session, coming: _Coming, requests: Sequence[RoundRequest]) -> None:
    store, accountant = session.store, session.accountant
    slots = list(dict.fromkeys(_charged(request.round) for request in requests))
    recall(store, accountant, [slot for slot in slots if slot not in coming])
    new = [slot for slot in slots if not accountant.knows(slot)]
    for slot in new:
        _learn(accountant, slot, coming)
    if known := [slot for slot in new if accountant.knows(slot)]:
        store_known(store, accountant, known)
        prepare_together(store, accountant, requests)


def _learn(accountant: Accountant, slot: ShuffledRound, coming: _Coming) -> None:
    future = coming.pop(slot, None)
    # Whatever goes wrong here is met again, and counted with its round, when the round is decided.
    with suppress(Exception):
        if future is None:
            accountant.privacy_loss(slot)
        elif future.exception() is None:
            accountant.adopt(slot, RoundLoss.from_bytes(future.result()))
