"""The time of `GET budget` over HTTP beside a route of bare FastAPI, on the same kind of server."""

from __future__ import annotations

import itertools
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.decisions import admit, open_cohort, register
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Outcome, RoundRequest
from tests.benchmarks.case import Case, Work

REQUESTS = 500
ROUNDS = 50


def serving(app: FastAPI, headers: dict[str, str]) -> httpx.Client:
    """A client, with one connection, of a server of an application in this process."""
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return httpx.Client(
        base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", headers=headers, timeout=60.0
    )


def served(
    app: FastAPI, path: str, headers: dict[str, str], *, first: Callable[[], None] = lambda: None
) -> Work:
    """Requests one after the other, on one connection; `first`, not measured, happens before each."""
    client = serving(app, headers)

    def work() -> str:
        seconds = []
        for _ in range(REQUESTS):
            first()
            began = time.perf_counter()
            answer = client.get(path)
            seconds.append(time.perf_counter() - began)
            if answer.status_code != 200:
                raise RuntimeError(answer.text)
        quantiles = [1000 * value for value in statistics.quantiles(seconds, n=100)]
        return f"p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms"

    work()
    return work


def bare() -> Work:
    """A route that answers a constant."""
    app = FastAPI()

    @app.get("/")
    async def constant() -> dict[str, float]:
        return {"epsilon_remaining": 1.0}

    return served(app, "/", {})


def ledger(path: str, *, moving: bool = False) -> Work:
    """The real application, on SQLite, with a cohort of fifty rounds, and one more each time if `moving`."""
    url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'bench.db'}"
    initialise(url)
    store, accountant = Store.connect(url), Accountant(precision=4e-3)
    open_cohort(
        store, name="bench", population=10**9, epsilon=50.0, delta=1e-9, policy="adaptive", actor="bench"
    )
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=8, epsilon0=1)"), reports=10**8)
    numbers = itertools.count()

    def one_more() -> None:
        request = RoundRequest(round_id=f"round-{next(numbers)}", cohort="bench", round=shuffled)
        register(store, request, actor="bench")
        admit(store, accountant, request.round_id)

    for _ in range(ROUNDS):
        one_more()
    token = issue(store, name="bench", role="reader", actor="bench").token

    def decide(given: Accountant, round_id: str) -> Outcome:
        return admit(store, given, round_id)

    app = create_app(Settings(database_url=url, broker_url=None), store, Dispatch(decide=decide))
    headers = {"Authorization": f"Bearer {token}"}
    return served(app, path, headers, first=one_more) if moving else served(app, path, headers)


def cases() -> Iterable[Case]:
    """Each of 500 requests, after 500 that are not measured."""
    group = "500 requests on one connection"
    yield Case(name="a route of bare FastAPI", prepare=bare, group=group, repeats=3)
    yield Case(name="GET budget", prepare=lambda: ledger("/v1/cohorts/bench/budget"), group=group, repeats=3)
    yield Case(
        name="GET budget, after another round each time",
        prepare=lambda: ledger("/v1/cohorts/bench/budget", moving=True),
        group=group,
        repeats=1,
    )
    yield Case(name="GET healthz", prepare=lambda: ledger("/v1/healthz"), group=group, repeats=3)
