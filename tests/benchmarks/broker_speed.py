"""Rounds of known kinds where there is a broker: what an import decides, and what workers decide of a queue.

Kinds that are known are decided where they are registered; the queue is for those that have to be computed,
and for what was registered behind them. For the queue, rows are registered and messages sent beforehand.
Rates are those between a tenth and nine tenths of the entries, by the database's clock, and two workers
run. Needs SHUFFLE_LEDGER_TEST_POSTGRES_URL and SHUFFLE_LEDGER_TEST_BROKER_URL.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import open_cohort, register, register_and_admit
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.dispatch import publish
from tests.benchmarks.case import Case, Work
from tests.benchmarks.http_storm import (
    PRECISION,
    PROGRAM,
    Process,
    environment_of,
    forget_queues,
    new_database,
)
from tests.benchmarks.ledger_client import KINDS

ROUNDS = 2000
WORKERS = 2
SECONDS_MAX = 300.0

# Gets rounds decided: given the database's address, the environment and the rounds.
Decided = Callable[[str, Mapping[str, str], list[RoundRequest]], None]


def decisions(decided: Decided, cohorts: int) -> Work:
    """Decisions per second of rounds of some cohorts."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    url = stack.enter_context(new_database())
    environment = environment_of(url)
    stack.callback(forget_queues, environment)
    logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    numbers = itertools.count()
    names = [f"cohort-{number}" for number in range(cohorts)]

    def rounds(count: int) -> list[RoundRequest]:
        turns = itertools.cycle(itertools.product(KINDS, names))
        return [
            RoundRequest(round_id=f"round-{next(numbers)}", cohort=name, round=kind)
            for kind, name in itertools.islice(turns, count)
        ]

    with Store.connect(url) as store:
        for name in names:
            open_cohort(
                store, name=name, population=10**9, epsilon=50.0, delta=1e-9, policy="adaptive", actor="bench"
            )
        accountant = Accountant(precision=PRECISION)
        for request in rounds(len(KINDS) * cohorts):
            register_and_admit(store, accountant, request, actor="bench")

    def run() -> str:
        with Store.connect(url) as store, contextlib.ExitStack() as running:
            asked = rounds(ROUNDS)
            decided(url, environment, asked)
            for number in range(WORKERS):
                worker = Process(["worker", "--no-sweep"], environment, logs / f"worker-{number}")
                running.callback(worker.kill)
            return f"{_rate(store, names):.0f} decisions/s"

    return run


def imported(_url: str, environment: Mapping[str, str], rounds: list[RoundRequest]) -> None:
    """Have the command line import rounds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rounds.csv"
        lines = [
            f'{each.round_id},{each.cohort},"{each.round.randomizer.describe()}",{each.round.reports}'
            for each in rounds
        ]
        file.write_text("\n".join(["round_id,cohort,randomizer,reports", *lines]) + "\n", encoding="utf-8")
        subprocess.run([PROGRAM, "round", "import", file], env=environment, check=True, capture_output=True)


def queued(url: str, environment: Mapping[str, str], rounds: list[RoundRequest]) -> None:
    """Register rounds undecided, and queue their messages."""
    broker, queue = (environment[f"SHUFFLE_LEDGER_{name}"] for name in ("BROKER_URL", "QUEUE"))
    with Store.connect(url) as store, create_app(Settings(broker_url=broker, queue=queue)) as app:
        for request in rounds:
            register(store, request, actor="bench")
            if not publish(app, request.round_id):
                raise RuntimeError("the broker did not take a message")


def _rate(store: Store, cohorts: list[str]) -> float:
    ends = time.monotonic() + SECONDS_MAX
    while store.pending(limit=1):
        if time.monotonic() > ends:
            raise RuntimeError("the workers did not decide all rounds")
        time.sleep(0.1)  # a decision is a row, and no message tells of it
    moments = sorted(entry.content().recorded_at for name in cohorts for entry in store.entries_of(name))
    last = moments[-ROUNDS:]
    return 0.8 * ROUNDS / (last[-ROUNDS // 10] - last[ROUNDS // 10]).total_seconds()


def cases() -> Iterator[Case]:
    """An import, and a queue of one cohort or many."""
    if "SHUFFLE_LEDGER_TEST_BROKER_URL" not in os.environ:
        raise SystemExit("SHUFFLE_LEDGER_TEST_BROKER_URL does not say where a broker is")
    for name, decided in (("an import", imported), ("a queue", queued)):
        for cohorts in (100, 1):
            work = partial(decisions, decided, cohorts)
            yield Case(name=f"{name}, rounds of {cohorts} cohorts", prepare=work, repeats=1)
