"""The ledger: rounds of known kinds registered and decided, beside bare rows that the same driver inserts.

Every client is a separate process that has been running for a while: it has met every cohort once, and
others have written to most of them since. Clients that meet a cohort for the first time have a case of their
own. Both sides commit once: a round of a known kind is registered with its outcome, or many are, as imports
do it. Rates are of both, in turn, on the same machine, which clients and database share; p99 is of one commit
as its client sees it.
Processor time tells what either side costs where they do not share. On PostgreSQL where
SHUFFLE_LEDGER_TEST_POSTGRES_URL says there is one.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.store import Store
from tests.benchmarks.case import Case, Work
from tests.benchmarks.ledger_client import Operation, admitting, inserting

OPERATIONS = 2048  # rounds or rows of all clients together
TOGETHER = 32  # rounds in one commit
WARM = 3  # at least
MANY = 1000  # cohorts
HISTORIES = (10, 10_000)
AFTER_HISTORY = 100
LOGGED = 512  # commits whose bytes of log are counted
_LOGGED = """
WITH record AS MATERIALIZED (
    SELECT xid, record_length, block_ref
      FROM pg_get_wal_records_info(%s, %s)
)
SELECT coalesce(sum(record_length), 0) FROM record WHERE xid IN (
    SELECT each.xid FROM record AS each JOIN pg_database AS own ON own.datname = current_database()
     WHERE each.xid <> '0' AND each.block_ref ~ ('rel \\d+/' || own.oid || '/')
)
"""
_POSTGRES = "SHUFFLE_LEDGER_TEST_POSTGRES_URL"

_numbers = itertools.count()


def _new_database(kind: str) -> str:
    if kind == "sqlite":
        url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'bench.db'}"
    else:
        server = os.environ.get(_POSTGRES)
        if server is None:
            raise SystemExit(f"{_POSTGRES} does not say where PostgreSQL is")
        name = f"shuffle_ledger_bench_{uuid.uuid4().hex}"
        address = make_url(server).set(drivername="postgresql")
        with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        url = make_url(server).set(database=name).render_as_string(hide_password=False)
    schema.initialise(url)
    with Store.connect(url) as store, store.engine.begin() as connection:
        number = "INTEGER" if kind == "sqlite" else "BIGSERIAL"
        payload = "BLOB" if kind == "sqlite" else "BYTEA"
        connection.exec_driver_sql(f"CREATE TABLE bare (id {number} PRIMARY KEY, payload {payload})")
    return url


def _drop(url: str) -> None:
    if url.startswith("sqlite"):
        return
    parsed = make_url(url)
    address = parsed.set(drivername="postgresql", database="postgres")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {parsed.database} WITH (FORCE)".encode())


def _opened(store: Store, count: int, policy: str = "adaptive") -> list[str]:
    names = [f"cohort-{number}" for number in range(count)]
    for name in names:
        decisions.open_cohort(
            store, name=name, population=10**9, epsilon=50.0, delta=1e-9, policy=policy, actor="bench"
        )
    return names


def _clients(
    url: str, cohorts: list[str], clients: int, *, together: int, warm: int = WARM
) -> tuple[float, list[float]]:
    """Rounds per second of all clients, and the seconds each commit took; of bare rows with 0."""
    each = max(together, 1)
    processes = []
    for client in range(clients):
        # Each client begins at another cohort: they meet if there is one cohort, and rarely if there are
        # many.
        begin = client * len(cohorts) // clients
        order = {
            "url": url,
            "together": together,
            "cohorts": cohorts[begin:] + cohorts[:begin],
            "prefix": f"round-{next(_numbers)}",
            "warm": -(-warm // each),
            "count": max(OPERATIONS // clients // each, 1),
        }
        command = [sys.executable, "-m", "tests.benchmarks.ledger_client", json.dumps(order)]
        processes.append(subprocess.Popen(command, stdin=-1, stdout=-1, text=True))
    try:
        for process in processes:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RuntimeError("a client did not get ready")
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
    finally:
        for process in processes:
            process.kill()
    # From the first beginning to the last end: how long processes take to leave is not the database's doing.
    elapsed = max(moments[-1] for moments in answers) - min(moments[0] for moments in answers)
    seconds = [end - begin for moments in answers for begin, end in itertools.pairwise(moments)]
    return each * len(seconds) / elapsed, seconds


def throughput(kind: str, cohorts: int, clients: int, *, together: int = 1, known: bool = True) -> Work:
    """Admissions and bare rows per second, in turn; medians of all turns so far."""
    url = _new_database(kind)
    warm = max(WARM, cohorts) if known else WARM
    with Store.connect(url) as store:
        names = _opened(store, cohorts)
    with admitting(url, names, "first") as admit:
        for _ in names:  # a cohort's first round is another matter: it chooses the filters
            admit()
    rates: list[tuple[float, float]] = []
    latencies: list[float] = []

    def run() -> str:
        bare, _ = _clients(url, names, clients, together=0)
        rate, seconds = _clients(url, names, clients, together=together, warm=warm)
        rates.append((rate, bare))
        latencies.extend(seconds)
        rate, bare = (statistics.median(each) for each in zip(*rates, strict=True))
        p99 = statistics.quantiles(latencies, n=100)[98]
        ratio = statistics.median(one / other for one, other in rates)
        return f"{rate:.0f}/s, p99 {p99 * 1e3:.0f} ms; bare rows {bare:.0f}/s; ratio {ratio:.2f}"

    return _dropping(url, run)


def after_history(kind: str, history: int) -> Work:
    """One client's admissions to a cohort that has a history, beside bare rows."""
    url = _new_database(kind)
    with Store.connect(url) as store:
        names = _opened(store, 1)
    with admitting(url, names, "history") as admit:
        for _ in range(history):
            admit()

    def run() -> str:
        medians = []
        for operation in (inserting(url), admitting(url, names, f"round-{next(_numbers)}")):
            with operation as once:
                seconds = []
                for _ in range(AFTER_HISTORY):
                    began = time.perf_counter()
                    once()
                    seconds.append(time.perf_counter() - began)
                medians.append(statistics.median(seconds) * 1e3)
        return f"{medians[1]:.2f} ms each; a bare row {medians[0]:.2f} ms"

    return _dropping(url, run)


def processor_time(cohorts: int) -> Work:
    """What an admission and a bare row cost a client and its PostgreSQL backend."""
    url = _new_database("postgresql")
    with Store.connect(url) as store:
        names = _opened(store, cohorts)

    def spent(operation: Operation) -> tuple[float, float]:
        client, server = time.process_time(), _backends_seconds(url)
        for _ in range(OPERATIONS):
            operation()
        return time.process_time() - client, _backends_seconds(url) - server

    def run() -> str:
        with inserting(url) as insert:
            bare = spent(insert)
        with admitting(url, names, f"round-{next(_numbers)}") as admit:
            for _ in names:
                admit()
            full = spent(admit)
        client, server = (seconds / OPERATIONS * 1e3 for seconds in full)
        client_bare, server_bare = (seconds / OPERATIONS * 1e3 for seconds in bare)
        return (
            f"client {client:.2f} ms, database {server:.2f} ms; bare row {client_bare:.2f} and"
            f" {server_bare:.2f} ms; the database's ratio {server_bare / server:.2f}"
        )

    return _dropping(url, run)


def log_written(cohorts: int) -> Work:
    """Bytes that PostgreSQL writes to its log for an admission, and for a bare row; each is a commit.

    Counts whole transactions of this database alone, of which others may write beside it. The first commits
    after a checkpoint have whole pages in the log; these are not counted.
    """
    url = _new_database("postgresql")
    with Store.connect(url) as store:
        names = _opened(store, cohorts)

    def spent(operation: Operation) -> float:
        for _ in range(LOGGED):
            operation()
        begin = _logged(url)[0]
        for _ in range(LOGGED):
            operation()
        return _logged(url, begin)[1] / LOGGED

    def run() -> str:
        with inserting(url) as insert:
            bare = spent(insert)
        with admitting(url, names, f"round-{next(_numbers)}") as admit:
            full = spent(admit)
        return f"{full:,.0f} bytes of log for a commit; a bare row {bare:,.0f}; ratio {full / bare:.2f}"

    return _dropping(url, run)


def _logged(url: str, begin: str | None = None) -> tuple[str, int]:
    """The end of the log now, and the bytes since `begin` of transactions that wrote to this database."""
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        (end,) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
        found = connection.execute(_LOGGED, (begin, end)).fetchone() if begin else None
    return end, int(found[0]) if found else 0


def _backends_seconds(url: str) -> float:
    """Processor time that all of a database's sessions have taken so far."""
    parsed = make_url(url)
    address = parsed.set(drivername="postgresql", database="postgres")
    with psycopg.connect(address.render_as_string(hide_password=False)) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
        pids = [pid for (pid,) in connection.execute(query, (parsed.database,))]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def opening(kind: str) -> Work:
    """Cohorts opened one after another."""
    url = _new_database(kind)

    def run() -> str:
        began = time.perf_counter()
        with Store.connect(url) as store:
            _opened(store, MANY)
        return f"{MANY / (time.perf_counter() - began):.0f} cohorts/s"

    return _dropping(url, run)


def _dropping(url: str, run: Callable[[], str]) -> Work:
    # The process ends with its case, and takes the database along.
    atexit.register(_drop, url)
    return run


def cases() -> Iterator[Case]:
    """Throughput by clients and cohorts, processor time, log, length of the history, opening cohorts."""
    yield Case(
        name=f"postgresql, {MANY} cohorts, processor time", prepare=partial(processor_time, MANY), repeats=3
    )
    yield Case(
        name=f"postgresql, {MANY} cohorts, bytes of log", prepare=partial(log_written, MANY), repeats=3
    )
    yield Case(
        name=f"postgresql, {MANY} cohorts, 4 clients that meet them",
        prepare=partial(throughput, "postgresql", MANY, 4, known=False),
        repeats=3,
    )
    for kind, counts in (("postgresql", (1, 4, 16)), ("sqlite", (1, 4))):
        for together, cohorts, clients in itertools.product((1, TOGETHER), (1, MANY), counts):
            what = f", {together} rounds together" if together > 1 else ""
            yield Case(
                name=f"{kind}, {cohorts} cohorts, {clients} clients{what}",
                prepare=partial(throughput, kind, cohorts, clients, together=together),
                repeats=3 if kind == "postgresql" else 1,
            )
        for history in HISTORIES:
            yield Case(
                name=f"{kind}, {AFTER_HISTORY} admissions, history of {history}",
                prepare=partial(after_history, kind, history),
                repeats=3,
            )
        yield Case(name=f"{kind}, {MANY} cohorts opened", prepare=partial(opening, kind), repeats=1)
