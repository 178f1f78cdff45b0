"""A server per test, on a real socket, with a ledger of two cohorts and a token of every kind."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.answers.cohorts import ListedCohort
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.connections import ConnectionLimits, config_for
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.decisions import open_cohort
from shuffle_ledger.ledger.reports.promises import listed_cohorts
from shuffle_ledger.ledger.reports.round_lists import RoundFilter, list_rounds
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Outcome, Pending
from shuffle_ledger.workers.dispatch import decide
from tests.api.published import check_answer

ROUND: dict[str, Any] = {"randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000}
START_SECONDS_MAX = 30.0
LIMITS = ConnectionLimits(connections=100, backlog=100)
# As other applications of a host may set them, also against the standards.
OTHERS_COOKIES = 'prefs={"a":1}; x=a b; flag; =; y="open; é=ü'
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # a client's own would read a file of them each time


@dataclass
class Server:
    """A running application, its ledger, and tokens to come with."""

    app: FastAPI
    url: str
    http: httpx.Client
    store: Store
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, *, bearer: str = "admin", **more: Any) -> httpx.Response:
        """Return the answer to a request of the bearer of one of `tokens`."""
        named = {"X-Request-Id": "test"}  # so that answers can be compared
        headers = named | {"Authorization": f"Bearer {self.tokens[bearer]}"} | more.pop("headers", {})
        return self.http.request(method, path, headers=headers, **more)

    def issue(self, name: str, role: str, **more: Any) -> str:
        """Issue a token, remember it under its name, and return it."""
        self.tokens[name] = issue(self.store, name=name, role=role, actor="tester", **more).token
        return self.tokens[name]

    def register(
        self, round_id: str, *, headers: dict[str, str] | None = None, **changes: Any
    ) -> httpx.Response:
        """Register a round, of "phones" unless changed."""
        body = {"round_id": round_id, "cohort": "phones", **ROUND, **changes}
        return self.ask("POST", "/v1/rounds", bearer="registrar", json=body, headers=headers or {})


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Path:
    """Return a SQLite file to copy, with the cohorts "phones" and "secret"."""
    file = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("furnished")))
    with contextmanager(opened)(f"sqlite:///{file}"):
        return file


@pytest.fixture
def sqlite_store(tmp_path: Path, furnished: Path) -> Iterator[Store]:
    """Yield a ledger with the cohorts "phones" and "secret"."""
    with Store.connect(f"sqlite:///{shutil.copy(furnished, tmp_path)}") as store:
        yield store


@pytest.fixture
def postgresql_store(new_postgresql_ledger: Callable[[], str]) -> Iterator[Store]:
    """Yield the same on PostgreSQL."""
    yield from opened(new_postgresql_ledger())


@pytest.fixture(params=["sqlite_store", "postgresql_store"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """Return a ledger on each database."""
    store: Store = request.getfixturevalue(request.param)
    return store


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    """Return the ledger of most tests."""
    return sqlite_store


def listed(store: Store) -> list[ListedCohort]:
    """Return all cohorts as a client lists them today."""
    return listed_cohorts(store, store.cohorts(parts=False), datetime.now(UTC).date())


def opened(url: str) -> Iterator[Store]:
    """Yield the ledger at an address, with the cohorts "phones" and "secret"."""
    with Store.connect(url) as store:
        for name in ("phones", "secret"):
            open_cohort(
                store,
                name=name,
                population=100_000,
                epsilon=1.0,
                delta=1e-6,
                policy="adaptive",
                actor="tester",
            )
        yield store


class _PromptServer(uvicorn.Server):
    """A server that ends within hundredths of a second: each test waits for that."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)  # which pauses for a tenth of a second, whatever is open
            return
        for server in self.servers:
            server.close()
        await self.lifespan.shutdown()


@contextmanager
def running(app: FastAPI, trusted_proxies: str = "") -> Iterator[str]:
    """Run an application on a free port of this machine; yield its address."""
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:  # else asyncio leaves Nagle on
        listening.bind(("127.0.0.1", 0))
        config = config_for(app, LIMITS, host="127.0.0.1", port=0, trusted_proxies=trusted_proxies)
        config.timeout_graceful_shutdown = 5
        server = _PromptServer(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        gives_up = time.monotonic() + START_SECONDS_MAX
        while not server.started:
            assert thread.is_alive(), "the server ended while it started"
            assert time.monotonic() < gives_up, "the server did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Starter:
    """Starts servers of one ledger, and ends them together."""

    def __init__(self, store: Store) -> None:
        self._store, self._stopping = store, ExitStack()

    def __call__(
        self,
        dispatch: Dispatch | None = None,
        clock: Callable[[], float] = time.monotonic,
        trusted_proxies: str = "",
        root_path: str = "",
        opened_as: Store | None = None,
        **changes: Any,
    ) -> Server:
        """Start a server; `dispatch`, and settings, may be given.

        `opened_as`: the same ledger as the server opens it.
        """
        store = self._store
        settings = Settings(broker_url=None, authentication_failures=10**6).model_copy(update=changes)

        def decide_here(accountant: Accountant, round_id: str) -> Outcome | Pending:
            return decide(store, accountant, settings, round_id)

        dispatch = dispatch or Dispatch(decide=decide_here)
        app = create_app(settings, opened_as or store, dispatch, clock=clock, root_path=root_path)
        url = self._stopping.enter_context(running(app, trusted_proxies))
        hooks = {"response": [check_answer]}  # whatever a test asks about
        http = httpx.Client(base_url=url, timeout=60, verify=NO_AUTHORITIES, event_hooks=hooks)
        self._stopping.enter_context(http)
        server = Server(app=app, url=url, http=http, store=store)
        for role in ("admin", "registrar", "reader", "auditor"):
            server.issue(role, role)
        return server

    def stop(self) -> None:
        """End all servers, the last one first."""
        self._stopping.close()


@pytest.fixture
def serve(store: Store) -> Iterator[Callable[..., Server]]:
    """Yield a function that starts a server on the ledger."""
    starter = Starter(store)
    yield starter
    starter.stop()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """Return a server that decides in its own process."""
    return serve()


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, furnished: Path) -> Iterator[Server]:
    """Yield a server for questions that its ledger refuses, to all tests of a module; none leaves a trace."""
    file = shutil.copy(furnished, tmp_path_factory.mktemp("untouched"))
    with Store.connect(f"sqlite:///{file}") as store:
        starter, before = Starter(store), store.standing().heads
        yield starter()
        starter.stop()
        assert store.standing().heads == before
        assert list(list_rounds(store, RoundFilter()).rounds) == []


@pytest.fixture
def client(server: Server) -> LedgerClient:
    """Return the client of an administrator."""
    return LedgerClient(server.url, server.tokens["admin"], retry_seconds=5)
