"""Questions to a ledger with a long history, beside the same questions to one with a thousandth of it.

`small`: 100 cohorts, 1,000 entries in the largest. `large`: 100,000 cohorts, a million entries in the
largest. Every cohort is a copy of a real one. SHUFFLE_LEDGER_BENCH_OTHERS says how often each other cohort
repeats its nine rounds. By default that is once: the large ledger then has 2 million entries, takes 6 GB of
disk, and is written in two minutes. In the table of docs/benchmarks.md it is 21 times: 20 million entries, 53
GB, half an hour. *seconds* is the median of one question, after some that are not measured: a server has read
all heads by then. *times* is the ratio of the large ledger to the small one. On the PostgreSQL of
SHUFFLE_LEDGER_TEST_POSTGRES_URL.
"""

from __future__ import annotations

import atexit
import itertools
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.checkpoints.schedule import ScheduledCheckpoints
from shuffle_ledger.ledger.decisions import admit
from shuffle_ledger.ledger.health import VERIFIED_AT_ONCE, health
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.census import verified_before
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.benchmarks.case import Case, Work
from tests.benchmarks.http_speed import serving
from tests.benchmarks.synthetic_history import (
    KINDS,
    Size,
    cohort_name,
    database_url,
    drop,
    plain_url,
    round_name,
    write_history,
)

OTHERS = int(os.environ.get("SHUFFLE_LEDGER_BENCH_OTHERS", "1"))
SIZES = {
    "small": Size(cohorts=100, repeats=111, others=OTHERS),
    "large": Size(cohorts=100_000, repeats=111_111, others=OTHERS),
}
REPEATS = 200
FIRST, FIRST_SECONDS = 10, 3.0  # that are not measured: this many, or until so long is over
PAGE = 100

Once = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A ledger that is asked."""

    size: Size
    store: Store

    @property
    def late(self) -> str:
        """The name of a cohort behind nine tenths of all."""
        return cohort_name(self.size.cohorts * 9 // 10)


def _url(kind: str) -> str:
    return database_url(f"shuffle_ledger_bench_history_{kind}")


def _exists(url: str) -> bool:
    try:
        psycopg.connect(plain_url(url)).close()
    except psycopg.OperationalError:
        return False
    return True


def asking(kind: str, question: Callable[[Ledger], Once]) -> Work:
    """Ask one question once; the ledger is written by the first case that needs it."""
    url = _url(kind)
    if not _exists(url):
        write_history(url, SIZES[kind])
    once = question(Ledger(size=SIZES[kind], store=Store.connect(url)))
    ends = time.perf_counter() + FIRST_SECONDS
    for _ in range(FIRST):
        once()
        if time.perf_counter() > ends:
            break
    seconds: list[float] = []

    def work() -> str:
        began = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - began)
        p95 = statistics.quantiles(seconds, n=20)[18] if len(seconds) > 1 else seconds[0]
        return f"median {statistics.median(seconds) * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms"

    return work


def admissions(ledger: Ledger, *, largest: bool) -> Once:
    """Rounds of known kinds, in the largest cohort or in another one."""
    cohort = cohort_name(0 if largest else ledger.size.cohorts // 2)
    accountant = Accountant(precision=4e-3)
    kinds = itertools.cycle(KINDS)

    def once() -> object:
        request = RoundRequest(round_id=uuid.uuid4().hex, cohort=cohort, round=next(kinds))
        return decisions.register_and_admit(ledger.store, accountant, request, actor="bench")

    return once


def requests(ledger: Ledger, path: Callable[[Ledger], str]) -> Once:
    """Requests to a server of the ledger."""
    token = issue(ledger.store, name=f"bench-{uuid.uuid4().hex}", role="admin", actor="bench").token
    settings = Settings(database_url=ledger.store.engine.url.render_as_string(False), broker_url=None)
    dispatch = Dispatch(decide=partial(admit, ledger.store))
    client = serving(create_app(settings, ledger.store, dispatch), {})
    address = path(ledger)
    if address.startswith("/v1/") or address == "/metrics":
        client.headers["Authorization"] = f"Bearer {token}"
    else:  # a page for people
        client.post("/login", data={"token": token})

    def once() -> object:
        answer = client.get(address)
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
        return answer

    return once


def late_events(ledger: Ledger) -> str:
    """The address of a page of the feed near its end."""
    with psycopg.connect(plain_url(ledger.store.engine.url.render_as_string(False))) as connection:
        query = "SELECT position, encode(digest, 'hex') FROM entries WHERE cohort = %s AND sequence = 2"
        found = connection.execute(query, (ledger.late,)).fetchone()
    position, digest = found or (0, "")
    return f"/v1/events?limit={PAGE}&after={position}-{digest[:16]}"


def checkpoints(ledger: Ledger) -> Once:
    """Passes of the schedule that signs the heads of all chains."""
    schedule = ScheduledCheckpoints(directory=Path(tempfile.mkdtemp()), every_seconds=300.0)
    return partial(schedule.write, ledger.store, SigningKey.generate())


def verifications_due(ledger: Ledger) -> Once:
    """The choice of the cohorts that are verified next."""
    return lambda: verified_before(ledger.store.engine, ledger.store.now(), limit=VERIFIED_AT_ONCE)


def dropping(kind: str) -> Work:
    """The last case: the ledger is dropped with its process."""
    atexit.register(drop, _url(kind))
    with psycopg.connect(plain_url(_url(kind))) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return lambda: f"{SIZES[kind].entries:,} entries, {(found[0] if found else 0) / 1e6:,.0f} MB"


def _largest(ledger: Ledger, path: str) -> str:
    return path.format(cohort=cohort_name(0), after=ledger.size.largest * 9 // 10)


QUESTIONS: dict[str, Callable[[Ledger], Once]] = {
    "an admission": partial(admissions, largest=False),
    "an admission to the largest cohort": partial(admissions, largest=True),
    "a budget": partial(requests, path=lambda its: f"/v1/cohorts/{its.late}/budget"),
    "the largest cohort's budget": partial(
        requests, path=lambda its: _largest(its, "/v1/cohorts/{cohort}/budget")
    ),
    "cohorts, first page": partial(requests, path=lambda _: f"/v1/cohorts?limit={PAGE // 10}"),
    "cohorts, late page": partial(
        requests, path=lambda its: f"/v1/cohorts?limit={PAGE // 10}&after={its.late}"
    ),
    "entries of the largest cohort, late page": partial(
        requests,
        path=lambda its: _largest(its, f"/v1/cohorts/{{cohort}}/entries?limit={PAGE}&after={{after}}"),
    ),
    "rounds, late page": partial(
        requests, path=lambda its: f"/v1/rounds?limit={PAGE}&after={round_name(its.late, 2)}"
    ),
    "rounds of the largest cohort, late page": partial(
        requests,
        path=lambda its: (
            f"/v1/rounds?limit={PAGE}&cohort={cohort_name(0)}"
            f"&after={round_name(cohort_name(0), its.size.largest * 9 // 10)}"
        ),
    ),
    "voided rounds of the largest cohort, which has none": partial(
        requests, path=lambda _: f"/v1/rounds?cohort={cohort_name(0)}&outcome=voided"
    ),
    "events, late page": partial(requests, path=late_events),
    "heads, late page": partial(requests, path=lambda its: f"/v1/heads?limit={PAGE // 10}&after={its.late}"),
    "overview, first page": partial(requests, path=lambda _: "/"),
    "overview, late page": partial(
        requests, path=lambda its: f"/?after={cohort_name(max(0, its.size.cohorts * 9 // 10 - PAGE))}"
    ),
    "a cohort's page": partial(requests, path=lambda its: f"/cohorts/{its.late}"),
    "the largest cohort's page": partial(requests, path=lambda its: _largest(its, "/cohorts/{cohort}")),
    "readyz": partial(requests, path=lambda _: "/readyz"),
    "metrics": partial(requests, path=lambda _: "/metrics"),
    "health": lambda its: partial(health, its.store),
    "cohorts to verify next": verifications_due,
    "a checkpoint": checkpoints,
}


def cases() -> Iterator[Case]:
    """Every question to the small ledger, then to the large one."""
    for name, question in QUESTIONS.items():
        for kind in SIZES:
            yield Case(
                name=f"{name}, {kind}",
                prepare=partial(asking, kind, question),
                group=name,
                repeats=REPEATS,
            )
    for kind in SIZES:
        yield Case(name=f"size of the {kind} ledger", prepare=partial(dropping, kind), repeats=1)
