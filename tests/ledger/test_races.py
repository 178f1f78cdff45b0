"""Many at once on the last sliver of a budget, and many on the very same round."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from shuffle_ledger.accounting import Accountant, RoundLoss, ShuffledRound, slot_for
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions import admit, register, settle
from shuffle_ledger.ledger.storage.engine import POOL_SIZE
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify

CONTENDER = Path(__file__).parent / "programs" / "contender.py"
PROCESSES = 6
ROUNDS_EACH = 2
THREADS = 6
WAIT_SECONDS_MAX = 60

MakeRequest = Callable[..., RoundRequest]


def kill_all(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


class Slow(Accountant):
    """An accountant that takes a while for each kind that it does not know, and says which it computed."""

    computed: ClassVar[list[ShuffledRound]] = []

    def privacy_loss(self, accounted: ShuffledRound) -> RoundLoss:
        if not self.knows(accounted):
            self.computed.append(accounted)
            time.sleep(0.3)
        return super().privacy_loss(accounted)


def test_a_new_kind_is_computed_once_whoever_asks_for_it(
    phones: Store, database_url: str, make_request: MakeRequest
) -> None:
    accounted = slot_for(make_request().round)
    together = threading.Barrier(THREADS)

    def ask(store: Store) -> bytes:
        together.wait()
        return loss_cache.digest_of(store, Slow(), accounted)

    Slow.computed.clear()
    with ExitStack() as stack, ThreadPoolExecutor(THREADS) as pool:
        stores = [stack.enter_context(Store.connect(database_url)) for _ in range(THREADS)]
        digests = set(pool.map(ask, stores))
    assert len(digests) == 1
    if not database_url.startswith("sqlite"):  # which has no claims, and is written by one program
        assert Slow.computed == [accounted]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_many_threads_with_new_kinds_do_not_wait_for_connections(
    phones: Store, make_request: MakeRequest
) -> None:
    many = POOL_SIZE + 10 + THREADS  # more than the pool has connections, overflow included
    kinds = [slot_for(replace(make_request().round, reports=1000 + 50 * number)) for number in range(many)]
    with ThreadPoolExecutor(many) as pool:
        digests = list(pool.map(lambda kind: loss_cache.digest_of(phones, Slow(), kind), kinds))
    assert len(digests) == many


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # fifty on PostgreSQL: test_attacks.py
def test_processes_on_the_last_sliver_admit_exactly_what_fits(
    phones: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    accounted = slot_for(make_request().round)
    fits = 0
    while accountant.certify({accounted: fits + 1}, delta=1e-9).epsilon_upper <= 1.0:
        fits += 1
    assert 0 < fits < PROCESSES * ROUNDS_EACH
    processes: list[subprocess.Popen[str]] = []
    for number in range(PROCESSES):
        names = [f"round-{number}-{each}" for each in range(ROUNDS_EACH)]
        command = [sys.executable, str(CONTENDER), database_url, *names]
        processes.append(subprocess.Popen(command, stdin=-1, stdout=-1, text=True))
    overdue = threading.Timer(WAIT_SECONDS_MAX, kill_all, [processes])
    overdue.start()
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=WAIT_SECONDS_MAX)[0].split() for process in processes]
    finally:
        overdue.cancel()
        kill_all(processes)
    assert [process.returncode for process in processes] == [0] * PROCESSES
    counts = Counter(word for words in said for word in words[::2])
    assert counts == {"Admitted": fits, "Refused": PROCESSES * ROUNDS_EACH - fits}
    assert phones.count_entries("phones") == {
        "opened": 1,
        "admitted": fits,
        "refused": PROCESSES * ROUNDS_EACH - fits,
    }
    assert verify(phones, accountant, numbers="all").ok


@pytest.mark.slow
def test_the_same_round_decided_by_many_at_once_is_decided_once(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    request = make_request("wanted")
    accountant.certify({slot_for(request.round): 1}, delta=1e-9)
    start = threading.Barrier(THREADS)

    def contend(_: int) -> object:
        own = Accountant()
        start.wait(WAIT_SECONDS_MAX)
        register(phones, request, actor="tester")
        outcome = admit(phones, own, "wanted")
        start.wait(WAIT_SECONDS_MAX)
        return outcome, settle(phones, own, "wanted", reports=900, actor="tester")

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(contend, range(THREADS)))
    assert len({str(answer) for answer in answers}) == 1
    assert phones.count_entries("phones") == {"opened": 1, "admitted": 1, "settled": 1}
    assert verify(phones, accountant, numbers="all").ok
