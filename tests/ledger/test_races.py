"""Many at once on the last sliver of a budget, and several on the very same round."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shuffle_ledger.accounting import Accountant, RoundLoss, ShuffledRound, slot_for
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions import admit, register
from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import rows
from shuffle_ledger.ledger.storage.engine import POOL_SIZE
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted
from shuffle_ledger.workers import dispatch
from tests.ledger.clerk import Clerk, krr

CONTENDER = Path(__file__).parent / "programs" / "contender.py"
PROCESSES = 6
ROUNDS_EACH = 2
THREADS = 6
WAIT_SECONDS_MAX = 60
BOTH = ("phones", "tablets")
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


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


@ON_POSTGRESQL  # SQLite has no claims, and is written by one program
def test_a_new_kind_is_computed_once_whoever_asks_for_it(phones: Store, database_url: str) -> None:
    together, kind = threading.Barrier(THREADS), slot_for(krr(1_000))

    def ask(store: Store) -> bytes:
        together.wait()
        return loss_cache.digest_of(store, Slow(), kind)

    Slow.computed.clear()
    with ExitStack() as stack, ThreadPoolExecutor(THREADS) as pool:
        stores = [stack.enter_context(Store.connect(database_url)) for _ in range(THREADS)]
        digests = set(pool.map(ask, stores))
    assert len(digests) == 1
    assert Slow.computed == [kind]


@ON_POSTGRESQL
def test_many_threads_with_new_kinds_do_not_wait_for_connections(phones: Store) -> None:
    many = POOL_SIZE + 10 + THREADS  # more than the pool has connections, overflow included
    kinds = [slot_for(krr(1000 + 50 * number)) for number in range(many)]
    with ThreadPoolExecutor(many) as pool:
        digests = list(pool.map(lambda kind: loss_cache.digest_of(phones, Slow(), kind), kinds))
    assert len(digests) == many


@pytest.mark.slow
@ON_SQLITE  # fifty on PostgreSQL: test_attacks.py
def test_processes_on_the_last_sliver_admit_exactly_what_fits(clerk: Clerk, database_url: str) -> None:
    clerk.open("phones", "alone", population=10**6, delta=1e-9)
    fits = clerk.fill(krr(1_000), "alone")
    assert 0 < fits < PROCESSES * ROUNDS_EACH
    processes: list[subprocess.Popen[str]] = []
    for number in range(PROCESSES):
        names = [f"round-{number}-{each} of many" for each in range(ROUNDS_EACH)]
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
        said = [process.communicate(timeout=WAIT_SECONDS_MAX)[0].splitlines() for process in processes]
    finally:
        overdue.cancel()
        kill_all(processes)
    assert [process.returncode for process in processes] == [0] * PROCESSES
    counts = Counter(line.split()[0] for lines in said for line in lines)
    refused = PROCESSES * ROUNDS_EACH - fits
    assert counts == {"Admitted": fits, "Refused": refused}
    assert clerk.store.count_entries("phones") == {"opened": 1, "admitted": fits, "refused": refused}
    clerk.audit()


@pytest.mark.slow
def test_the_same_round_decided_by_many_at_once_is_decided_once(clerk: Clerk) -> None:
    clerk.open()
    request = clerk.request(krr(1_000), name="wanted")
    start = threading.Barrier(THREADS)

    def contend(_: int) -> object:
        own = Clerk(clerk.store, Accountant())
        start.wait(WAIT_SECONDS_MAX)
        register(own.store, request, actor="tester")
        outcome = admit(own.store, own.accountant, "wanted")
        start.wait(WAIT_SECONDS_MAX)
        return outcome, own.settle("wanted", 900)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(contend, range(THREADS)))
    assert len({str(answer) for answer in answers}) == 1
    assert clerk.store.count_entries("phones") == {"opened": 1, "admitted": 1, "settled": 1}
    clerk.check()


# What another process does between two statements of this one.


@pytest.fixture
def pending(clerk: Clerk) -> Clerk:
    """Return a ledger with the pending round "r" of two cohorts."""
    clerk.open(*BOTH, epsilon=2.0)
    register(clerk.store, clerk.request(krr(5_000, 1.0), *BOTH, name="r"), actor="ada")
    return clerk


@pytest.fixture
def other(database_url: str, clerk: Clerk) -> Iterator[Clerk]:
    """Yield the same ledger as another process has it."""
    with Store.connect(database_url) as found:
        yield Clerk(found, clerk.accountant)


@pytest.mark.parametrize("is_voided", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_decision_between_two_statements_of_a_read_is_seen(
    pending: Clerk, other: Clerk, monkeypatch: pytest.MonkeyPatch, when: str, is_voided: bool
) -> None:
    """On PostgreSQL each statement has its own snapshot: another process decides before or after the rows of
    the round are read."""
    read: Callable[..., object] = rows.round_rows
    others: list[object] = []

    def meanwhile(*given: object) -> object:
        found = None if when == "before" else read(*given)
        if not others:
            others.append(None)
            others[0] = admit(other.store, other.accountant, "r")
            if is_voided:
                other.void("r")
        return read(*given) if found is None else found

    monkeypatch.setattr(rows, "round_rows", meanwhile)
    if is_voided:
        with pytest.raises(NotCollectable):
            admit(pending.store, pending.accountant, "r")
    else:
        answer = admit(pending.store, pending.accountant, "r")
        assert isinstance(answer, Admitted)
        assert [answer] == others
    assert pending.store.round("r").attempts == 0
    monkeypatch.undo()
    for name in BOTH:
        assert pending.kinds(name) == ["opened", "admitted", *(["voided"] if is_voided else [])]
        assert sum(pending.store.view(name).held.values()) == (0 if is_voided else 1)
    pending.check()


TELLINGS: dict[str, Callable[[Clerk], Any]] = {
    "settle": lambda clerk: clerk.settle("r", 4_000),
    "void": lambda clerk: clerk.void("r"),
    "correct": lambda clerk: clerk.correct("r", reports=4_000),
}


@pytest.mark.parametrize("telling", TELLINGS)
def test_what_another_process_recorded_meanwhile_is_the_answer(
    pending: Clerk, other: Clerk, monkeypatch: pytest.MonkeyPatch, telling: str
) -> None:
    admit(pending.store, pending.accountant, "r")
    read, recorded = pending.store.round_in, list[Any]()

    def read_late(cohort: str, round_id: str) -> Any:
        if cohort == BOTH[1] and not recorded:
            recorded.append(TELLINGS[telling](other))
        return read(cohort, round_id)

    monkeypatch.setattr(pending.store, "round_in", read_late)
    answer = TELLINGS[telling](pending)
    assert recorded == [answer]
    pending.check()


@ON_SQLITE
def test_a_lost_race_against_an_admission_and_a_void_admits_nothing(
    pending: Clerk, other: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, raced = pending.store.append_to_all, list[object]()

    def beaten(views: Any, drafts: Any) -> Any:
        if not raced:
            raced.append(admit(other.store, other.accountant, "r"))
            other.void("r")
        return append(views, drafts)

    monkeypatch.setattr(pending.store, "append_to_all", beaten)
    with pytest.raises(NotCollectable, match="voided"):
        admit(pending.store, pending.accountant, "r")
    assert pending.store.round("r").attempts == 0


@ON_SQLITE
def test_a_client_that_waits_for_workers_learns_that_the_round_was_voided(
    pending: Clerk, other: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def published(_app: object, round_id: str) -> bool:
        admit(other.store, other.accountant, round_id)
        other.void(round_id)
        return True

    monkeypatch.setattr(dispatch, "publish", published)
    with pytest.raises(NotCollectable, match="voided"):
        dispatch.decide(pending.store, pending.accountant, Settings(broker_url="memory://"), "r")
