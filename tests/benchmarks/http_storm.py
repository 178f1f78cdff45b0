"""Clients register rounds over HTTP while servers and workers are killed and started again.

`python -m tests.benchmarks.http_storm --registrations 10000 --clients 32` runs the large one; a test runs a
small one. It needs PostgreSQL and a broker: SHUFFLE_LEDGER_TEST_POSTGRES_URL and _BROKER_URL.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.decisions import open_cohort
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    POLICY_ADAPTIVE,
    Admitted,
    Cohort,
    Pending,
    Refused,
    RoundRequest,
)
from shuffle_ledger.ledger.verification.verifier import verify
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.queues import queue_names
from tests.ports import free_port

PROGRAM = Path(sys.executable).with_name("shuffle-ledger")
SERVERS = WORKERS = 2
COHORTS = ("north", "south", "east", "west")
KINDS = ("krr(k=8, epsilon0=1)", "generic(epsilon0=2)")
REPORTS = 100_000
PATIENCE_SECONDS = 600.0
PRECISION = 4e-3
DELTA = 1e-9
BUDGET_STEPS = 8  # of bisection
REFUSED_MIN = 0.1  # of all identifiers: a storm without refusals proves little


@dataclass
class Report:
    """The result of a storm."""

    registrations: int
    seconds: float
    kills: int
    outcomes: Mapping[str, int]
    latencies: list[float]
    wrong: list[str] = field(default_factory=list)  # every broken promise, in words

    def __str__(self) -> str:
        quantiles = statistics.quantiles(self.latencies, n=100)
        return (
            f"{self.registrations} registrations in {self.seconds:.0f} s"
            f" ({self.registrations / self.seconds:.0f}/s), {self.kills} kills;"
            f" {dict(self.outcomes)}; latency p50 {quantiles[49]:.3f} s, p99 {quantiles[98]:.3f} s;"
            f" broken promises: {self.wrong or 'none'}"
        )


class Process:
    """One server or worker that may be killed, with everything it started, and started again."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._arguments = arguments
        self._environment = environment
        self._log = log
        self.start()

    def start(self) -> None:
        """Starts it in a new process group."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [PROGRAM, *self._arguments],
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the whole group at once: nothing gets to clean up."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def storm(
    *,
    registrations: int,
    clients: int,
    calm_seconds: float,
    kills_max: int = 10**6,
    seed: int = 1,
) -> Report:
    """Registers `registrations` rounds from `clients` clients; a process is killed every `calm_seconds`, and
    started again, up to `kills_max` times."""
    epsilon = budget_for(registrations)
    with new_database() as url, tempfile.TemporaryDirectory() as folder:
        environment = environment_of(url)
        with Store.connect(url) as store:
            for name in COHORTS:
                open_cohort(
                    store,
                    name=name,
                    population=10**6,
                    epsilon=epsilon,
                    delta=DELTA,
                    policy=POLICY_ADAPTIVE,
                    actor="storm",
                )
            token = issue(store, name="storm", role="registrar", actor="storm").token
        ports = [free_port() for _ in range(SERVERS)]
        logs = Path(folder)
        processes = [
            Process(["serve", "--port", str(port)], environment, logs / f"server-{port}") for port in ports
        ]
        processes += [
            Process(["worker", "--no-sweep"], environment, logs / f"worker-{number}")
            for number in range(WORKERS)
        ]
        try:
            began = time.monotonic()
            answers, latencies, kills = _registered(
                processes, ports, token, registrations, clients, calm_seconds, kills_max, seed
            )
            seconds = time.monotonic() - began
        finally:
            for process in processes:
                process.kill()
            forget_queues(environment)
        with Store.connect(url) as store:
            wrong = _broken_promises(store, answers)
        outcomes = Counter(type(answer).__name__.lower() for answer in answers.values())
        wrong += [
            f"{outcomes[each]} {each}, which is not a real part"
            for each in ("admitted", "refused")
            if outcomes[each] < REFUSED_MIN * registrations
        ]
        return Report(
            registrations=registrations,
            seconds=seconds,
            kills=kills,
            outcomes=outcomes,
            latencies=latencies,
            wrong=wrong,
        )


def _registered(
    processes: list[Process],
    ports: list[int],
    token: str,
    registrations: int,
    clients: int,
    calm_seconds: float,
    kills_max: int,
    seed: int,
) -> tuple[dict[str, Admitted | Refused | Pending], list[float], int]:
    chance, over, kills = random.Random(seed), threading.Event(), [0]  # noqa: S311 - reproducible, not secret

    def kill_again_and_again() -> None:
        while kills[0] < kills_max and not over.wait(calm_seconds * (0.5 + chance.random())):
            victim = chance.choice(processes)
            victim.kill()
            victim.start()
            kills[0] += 1

    answers: dict[str, Admitted | Refused | Pending] = {}
    latencies: list[float] = []

    def one_client(number: int) -> None:
        url = f"http://127.0.0.1:{ports[number % len(ports)]}"
        with LedgerClient(url, token, retry_seconds=PATIENCE_SECONDS, timeout_seconds=40) as client:
            for index in range(number, registrations, clients):
                request = _request(index)
                started = time.monotonic()
                answers[request.round_id] = client.register(request, wait_seconds=PATIENCE_SECONDS)
                latencies.append(time.monotonic() - started)

    killer = threading.Thread(target=kill_again_and_again)
    killer.start()
    try:
        with ThreadPoolExecutor(clients) as pool:
            for done in [pool.submit(one_client, number) for number in range(clients)]:
                done.result()
    finally:
        over.set()
        killer.join()
    return answers, latencies, kills[0]


def _request(index: int) -> RoundRequest:
    shuffled = ShuffledRound(randomizer=parse_randomizer(KINDS[index % len(KINDS)]), reports=REPORTS)
    cohort = COHORTS[index // len(KINDS) % len(COHORTS)]
    return RoundRequest(round_id=f"storm-{index}", cohort=cohort, round=shuffled)


def budget_for(registrations: int) -> float:
    """Return a budget that about two thirds of the rounds of a cohort fill."""
    each = registrations // len(COHORTS) // len(KINDS)
    kinds = [ShuffledRound(randomizer=parse_randomizer(kind), reports=REPORTS) for kind in KINDS]
    held = {slot_for(kind): max(1, 2 * each // 3) for kind in kinds}
    accountant = Accountant(precision=PRECISION)
    composed = accountant.certify(held, delta=DELTA).epsilon_upper
    return _filtered(accountant, held, above=composed)


def _filtered(accountant: Accountant, held: Mapping[ShuffledRound, int], *, above: float) -> float:
    """Return the budget at which filters made for it hold just these rounds; they depend on the budget."""

    def holds(epsilon: float) -> bool:
        opened = BudgetPolicy.opened(
            Cohort(
                name="filters",
                population=REPORTS,
                epsilon_budget=epsilon,
                delta_budget=DELTA,
                policy=POLICY_ADAPTIVE,
            )
        )
        if opened.filters is None:
            raise AssertionError("policy adaptive has filters")
        empty = machine.new_state(opened.machine_rules, opened.limits)
        costs = [cost_of(accountant.charge(kind, opened.filters) * count) for kind, count in held.items()]
        after = machine.after(empty, costs, 1)
        return opened.spending(after, rounds=len(costs)).epsilon_upper <= epsilon

    low, high = above, 4.0 * above
    for _ in range(BUDGET_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _broken_promises(store: Store, answers: Mapping[str, Admitted | Refused | Pending]) -> list[str]:
    wrong = []
    decided: Counter[str] = Counter()
    for name in COHORTS:
        for entry in store.entries_of(name):
            if entry.kind in ("admitted", "refused"):
                decided[str(entry.round_id)] += 1
        found = budget(store, Accountant(precision=PRECISION), name)
        if not found.epsilon_spent_upper <= found.epsilon_budget:
            wrong.append(f"{name}: overspent")
        if not verify(store, Accountant(precision=PRECISION), name).ok:
            wrong.append(f"{name}: does not verify")
    wrong += [f"{name}: {count} outcomes" for name, count in decided.items() if count != 1]
    if set(decided) != set(answers):
        wrong.append("the rounds decided are not the rounds answered")
    wrong += [
        f"{name}: answered otherwise"
        for name in answers
        if round_record(store, name).outcome != answers[name]
    ]
    return wrong


def environment_of(url: str) -> dict[str, str]:
    return os.environ | {
        "SHUFFLE_LEDGER_DATABASE_URL": url,
        "SHUFFLE_LEDGER_BROKER_URL": os.environ["SHUFFLE_LEDGER_TEST_BROKER_URL"],
        "SHUFFLE_LEDGER_QUEUE": f"shuffle-ledger-storm-{uuid.uuid4().hex}",
    }


def forget_queues(environment: Mapping[str, str]) -> None:
    settings = Settings(
        broker_url=environment["SHUFFLE_LEDGER_BROKER_URL"], queue=environment["SHUFFLE_LEDGER_QUEUE"]
    )
    with create_app(settings).connection_for_write() as connection:
        for name in vars(queue_names(settings.queue)).values():
            with connection.channel() as channel:
                channel.queue_delete(name)


@contextmanager
def new_database() -> Iterator[str]:
    server = make_url(os.environ["SHUFFLE_LEDGER_TEST_POSTGRES_URL"]).set(drivername="postgresql")
    address, name = server.render_as_string(hide_password=False), f"shuffle_ledger_test_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = server.set(drivername="postgresql+psycopg", database=name).render_as_string(hide_password=False)
    try:
        initialise(url)
        yield url
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def main() -> None:
    """Run a storm and print what it left behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registrations", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--calm-seconds", type=float, default=5.0)
    given = parser.parse_args()
    report = storm(
        registrations=given.registrations,
        clients=given.clients,
        calm_seconds=given.calm_seconds,
    )
    print(report, flush=True)
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
