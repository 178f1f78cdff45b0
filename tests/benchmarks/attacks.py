"""Attacks on the ledger's promises, counted: `python -m tests.benchmarks.attacks [--write]`.

Repeats what the tests do, more often, and says how often and what broke. It needs PostgreSQL and RabbitMQ:
SHUFFLE_LEDGER_TEST_POSTGRES_URL and _BROKER_URL. `--write` puts the table into docs/attacks.md.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import open_cohort, register, register_and_admit
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.dispatch import publish, sweep
from tests.benchmarks.http_storm import new_database, storm
from tests.workers.conftest import awaited, open_phones, remove_queues, running, settings_at

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "attacks.md"
BEGIN, END = "<!-- attacks: written by tests.benchmarks.attacks -->", "<!-- end of attacks -->"
PROGRAMS = ROOT / "tests" / "ledger" / "programs"
SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
UNREACHABLE = "amqp://guest:guest@127.0.0.1:1//"
PROCESSES, SEEDS = 50, 4
DELIVERED = 200
DATABASES = ("SQLite", "PostgreSQL")
ROUND = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=1_000)
# Attacks that are tests: node ids and descriptions.
SUITES = {
    "12 sequences (PostgreSQL: 4) of 25 operations against a model": ("tests/ledger/test_state_machine.py"),
    "connections cut at every statement, and before an answer": "tests/ledger/test_attacks.py -k lost",
    "imports killed at random moments, and started again": "tests/ledger/test_crashes.py",
    "clocks an hour fast and slow: of the database, of servers, workers and the scheduler": (
        "tests/ledger/test_attacks.py tests/acceptance -k clock or stored_time"
    ),
    "workers killed while they compute, poisoned, given one task twice at once": (
        "tests/acceptance/test_killed_workers.py"
    ),
    "restored databases, copies with an entry missing, changed, or forged with fitting digests": (
        "tests/ledger/test_restores.py tests/ledger/test_recovery.py"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack, the number of tries, and the number of broken promises."""

    what: str
    how_often: str
    broken: int

    def __str__(self) -> str:
        """A row of the table."""
        return f"| {self.what} | {self.how_often} | {self.broken} |"


@contextmanager
def ledger_on(kind: str) -> Iterator[str]:
    """Yield the URL of a new ledger."""
    if kind == "PostgreSQL":
        with new_database() as url:
            yield url
        return
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/ledger.db"
        initialise(url)
        yield url


def run(program: str, *arguments: object) -> list[str]:
    """Return the lines that a program of the tests says."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def crowds(kind: str) -> Attack:
    """Let crowds of processes rush at the last sliver of budgets."""
    accountant, broken, admitted = Accountant(), 0, 0
    accounted = slot_for(ROUND)
    with ledger_on(kind) as url, Store.connect(url) as store:
        for seed in range(SEEDS):
            most = random.Random(seed).randint(0, 20)  # noqa: S311 - how much fits need not be a secret
            costs = [
                accountant.certify({accounted: most + more}, delta=1e-9).epsilon_upper for more in (0, 1)
            ]
            cohort, epsilon = f"cohort-{seed}", max((costs[0] + costs[1]) / 2, 1e-6)
            opening: dict[str, Any] = {"population": 10**6, "epsilon": epsilon, "delta": 1e-9}
            for name in (cohort, f"{cohort} too"):
                open_cohort(store, name=name, policy="adaptive", actor="crowd", **opening)
            fits = fitting_one_by_one(store, accountant, f"{cohort} too")
            said = Counter(run("crowd.py", url, cohort, "in-two-steps", PROCESSES, seed))
            expected = {"Admitted": fits, "Refused budget_exceeded": PROCESSES - fits}
            broken += said != Counter({answer: count for answer, count in expected.items() if count})
            admitted += fits
        broken += not verify(store, accountant, numbers="all").ok
    return Attack(
        what=f"{PROCESSES} processes at once on the last sliver of a budget, {kind}",
        how_often=f"{SEEDS} budgets, {SEEDS * PROCESSES} processes, {admitted} admitted, as many as fit",
        broken=broken,
    )


def fitting_one_by_one(store: Store, accountant: Accountant, cohort: str) -> int:
    """Return how many of the crowd's rounds a cohort without other writers admits."""
    for number in range(PROCESSES):
        request = RoundRequest(round_id=f"{cohort}-{number}", cohort=cohort, round=ROUND)
        if not isinstance(register_and_admit(store, accountant, request, actor="crowd")[0], Admitted):
            return number
    return PROCESSES


def deaths(kind: str) -> Attack:
    """Kill a process at every step of every writing transaction; the program checks what each leaves."""
    died, broken = 0, 0
    for way in ("in-two-steps", "at-once", "together"):
        with ledger_on(kind) as url:
            *said, last = run("doomed.py", url, way)
        died += len(said) // 2
        broken += last != "survived"
    return Attack(
        what=f"SIGKILL at every step of every writing transaction, {kind}",
        how_often=f"{died} deaths",
        broken=broken,
    )


def deliveries() -> Attack:
    """Register rounds while the broker is down; deliver each of them twice when it is back."""
    with new_database() as url, tempfile.TemporaryDirectory() as directory:
        settings = settings_at("rabbitmq", open_phones(url))
        down = create_app(settings.model_copy(update={"broker_url": UNREACHABLE}))
        app, log, broken = create_app(settings), Path(directory) / "log", 0
        names = [f"round-{number}" for number in range(DELIVERED)]
        with Store.connect(url) as store:
            for name in names:
                register(store, RoundRequest(round_id=name, cohort="phones", round=ROUND), actor="attacker")
            broken += publish(down, names[0]) or sweep(store, down, older_than_seconds=0) != 0
            try:
                with running(settings, log, SCRIPT, "worker", "--no-sweep", "--concurrency", "2"):
                    broken += sweep(store, app, older_than_seconds=0) != DELIVERED
                    broken += not all(publish(app, name) for name in names)
                    awaited(lambda: store.count_pending("phones") == 0, log)
            finally:
                remove_queues(settings)
            decided = Counter(entry.round_id for entry in store.entries_of("phones"))
            broken += sum(decided[name] != 1 for name in names)
            broken += not verify(store, Accountant(), numbers="all").ok
    return Attack(
        what="rounds registered while the broker was down, then each delivered twice to two workers",
        how_often=f"{DELIVERED} rounds, {2 * DELIVERED} deliveries",
        broken=int(broken),
    )


def storms() -> Attack:
    """Register rounds over HTTP while servers and workers are killed."""
    report = storm(registrations=400, clients=8, calm_seconds=2.0)
    return Attack(
        what="servers and workers killed at random under registrations over HTTP, RabbitMQ, PostgreSQL",
        how_often=f"{report.registrations} registrations, {report.kills} kills",
        broken=len(report.wrong),
    )


def suite(what: str, nodes: str) -> Attack:
    """Run tests, and count them."""
    files, _, chosen = nodes.partition(" -k ")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        *files.split(),
    ]
    command += ["-k", chosen] if chosen else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return Attack(
        what=what,
        how_often=f"{counts.get('passed', 0)} tests",
        broken=sum(count for word, count in counts.items() if word != "passed") or int(done.returncode != 0),
    )


def attacks() -> Iterator[Callable[[], Attack]]:
    """Yield every attack."""
    for kind in DATABASES:
        yield functools.partial(crowds, kind)
        yield functools.partial(deaths, kind)
    yield deliveries
    yield storms
    for what, nodes in SUITES.items():
        yield functools.partial(suite, what, nodes)


def main() -> None:
    """Attack, print, and write if asked; fails when a promise broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.attacks", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/attacks.md")
    writing = parser.parse_args().write
    began, done = time.monotonic(), []
    for attack in attacks():
        done.append(attack())
        print(done[-1], flush=True)
        if writing:
            write(done)
    print(f"{time.monotonic() - began:.0f} seconds", flush=True)
    sys.exit(any(attack.broken for attack in done))


def write(done: list[Attack]) -> None:
    """Put the table into the page."""
    text = PAGE.read_text("utf-8")
    table = ["| what was tried | how often | promises broken |", "|---|---|---|", *map(str, done)]
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(table) + f"\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
