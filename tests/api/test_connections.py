"""Slow clients: a server process with few files answers all the others, and its log stays short."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from shuffle_ledger.ledger.api import connections
from shuffle_ledger.ledger.api.connections import (
    BURSTS,
    CONNECTIONS_MAX,
    RESERVED_FILES,
    Awaited,
    DrainingServer,
    OncePerWhile,
    config_for,
    limits_for,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.storage.store import Store
from tests.api.conftest import LIMITS, Server
from tests.ports import free_port

FILES_MAX = 300
CLIENTS = 400
LOG_BYTES_MAX = 10_000
ANSWER_SECONDS_MAX = 10.0
LIMITED = 'ulimit -n "$1" && shift && exec "$@"'
HALVES = {
    "nothing": b"",
    "half a line": b"GET /heal",
    "half the headers": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-",
    "half a body of a stranger": b"POST /v1/rounds HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{",
    "half a login": b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=",
}


@contextmanager
def limited_server(store: Store, log: Path, *, files_max: int) -> Iterator[str]:
    """Run `serve` with a limit on its open files; yield its address as soon as it answers."""
    port = free_port()
    command = [sys.executable, "-m", "shuffle_ledger", "serve", "--port", str(port)]
    environment = os.environ | {"SHUFFLE_LEDGER_DATABASE_URL": str(store.engine.url)}
    environment.pop("SHUFFLE_LEDGER_BROKER_URL", None)
    with (
        log.open("wb") as written,
        subprocess.Popen(
            ["sh", "-c", LIMITED, "sh", str(files_max), *command],
            env=environment,
            stdout=written,
            stderr=written,
        ) as process,
    ):
        try:
            url, gives_up = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while not _answers(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < gives_up, log.read_text()
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _connected(stack: ExitStack, url: str, said: bytes) -> socket.socket:
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    found = stack.enter_context(socket.create_connection(address, timeout=ANSWER_SECONDS_MAX))
    found.sendall(said)
    return found


@pytest.mark.system
def test_slow_clients_beyond_the_files_of_a_server_stop_nothing(sqlite_store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with limited_server(sqlite_store, log, files_max=FILES_MAX) as url, ExitStack() as stack:

        def connect(number: int) -> None:
            with suppress(ConnectionError):  # the server dropped it already, for a newer one
                _connected(stack, url, [*HALVES.values()][number % len(HALVES)])

        with ThreadPoolExecutor(16) as threads:  # a client that the backlog has no room for waits a second
            list(threads.map(connect, range(CLIENTS)))
        began = time.monotonic()
        for path in ("/healthz", "/readyz"):  # readyz asks the database
            assert httpx.get(f"{url}{path}", timeout=ANSWER_SECONDS_MAX).json() == {"status": "ok"}
        assert time.monotonic() - began < ANSWER_SECONDS_MAX
        pages = httpx.Client(base_url=url, timeout=ANSWER_SECONDS_MAX)
        assert all(pages.get("/login").status_code == 200 for _ in range(20))
        pages.close()
    text = log.read_text()
    assert len(text) < LOG_BYTES_MAX, text[:LOG_BYTES_MAX]
    assert text.count("connections are in use") == 1
    assert "wrong_token" not in text  # half a login is none
    assert "Too many open files" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("files_max", [140, 300, 1024, 1 << 20])
def test_limits_leave_files_for_the_database(files_max: int) -> None:
    found = limits_for(files_max, files_open=20)
    assert found.connections + BURSTS * found.backlog + RESERVED_FILES + 20 <= files_max
    assert 16 <= found.connections <= CONNECTIONS_MAX
    assert found.connections >= min(files_max // 6, CONNECTIONS_MAX)


def test_a_limit_that_leaves_no_connections_says_what_it_needs() -> None:
    with pytest.raises(InvalidValue, match="at least 132"):
        limits_for(131, files_open=20)
    assert limits_for(132, files_open=20).connections == 16


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server's patience short."""
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    for awaited in Awaited:
        monkeypatch.setitem(connections.PATIENCE_SECONDS, awaited, 0.4)


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
def test_the_server_ends_a_request_that_does_not_end(server: Server) -> None:
    with ExitStack() as stack:
        opened = {name: _connected(stack, server.url, half) for name, half in HALVES.items()}
        began = time.monotonic()
        while opened and time.monotonic() - began < 3:
            for name, connection in list(opened.items()):
                try:
                    connection.sendall(b"a")  # one byte more does not buy more time
                except ConnectionError:
                    del opened[name]
            time.sleep(0.05)
        assert not opened


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
def test_the_server_ends_a_connection_that_does_not_read(server: Server) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(ANSWER_SECONDS_MAX)
        deaf.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        request = b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n"
        began, ended = time.monotonic(), False
        while not ended and time.monotonic() - began < ANSWER_SECONDS_MAX:
            try:
                deaf.sendall(request * 10)
            except ConnectionError:
                ended = True
        assert ended
        assert server.http.get("/healthz").status_code == 200


@pytest.mark.usefixtures("impatient")
def test_a_client_that_is_served_may_take_long(server: Server) -> None:
    """The clock of a connection runs only while the server waits for its client."""
    began = time.monotonic()
    with httpx.Client(base_url=server.url) as steady:
        while time.monotonic() - began < 1.5:
            assert steady.get("/healthz").status_code == 200
            time.sleep(0.1)


def test_the_same_warning_is_logged_once_in_a_while() -> None:
    now = [0.0]
    limit = OncePerWhile(seconds=60, clock=lambda: now[0])

    def passed(message: str, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("x", level, "", 0, message, ("7",), None)
        return record.getMessage() if limit.filter(record) else None

    assert passed("full %s") == "full 7"
    assert [passed("full %s") for _ in range(1000)] == [None] * 1000
    assert passed("other %s") == "other 7"
    assert passed("full %s", logging.INFO) == "full 7"
    now[0] = 61
    assert passed("full %s") == "full 7 (and 1000 more of these)"
    for number in range(10_000):
        passed(f"{number} %s")
    assert len(limit._kinds) <= connections.REPEATS_KNOWN_MAX


def test_a_server_that_is_asked_to_stop_answers_until_others_took_its_place(
    serve: Callable[..., Server],
) -> None:
    running = serve(drain_seconds=60.0)
    now = 0.0
    config = config_for(running.app, LIMITS, host="127.0.0.1", port=0, trusted_proxies="")
    draining = DrainingServer(config, running.app, clock=lambda: now)
    assert running.http.get("/readyz").status_code == 200
    draining.handle_exit(signal.SIGTERM, None)
    answer = running.http.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "ending"})
    assert answer.headers["connection"] == "close"  # its next request finds another server
    assert running.http.get("/healthz").status_code == 200
    assert running.register("late").status_code == 201
    assert not asyncio.run(draining.on_tick(1))
    now = 61.0
    assert asyncio.run(draining.on_tick(2))


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_an_impatient_stop_is_obeyed(serve: Callable[..., Server], signals: list[signal.Signals]) -> None:
    running = serve(drain_seconds=60.0)
    config = config_for(running.app, LIMITS, host="127.0.0.1", port=0, trusted_proxies="")
    draining = DrainingServer(config, running.app)
    for each in signals:
        draining.handle_exit(each, None)
    assert asyncio.run(draining.on_tick(1))
