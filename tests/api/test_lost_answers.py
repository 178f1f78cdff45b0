"""Answers while connections to the database are cut at random moments: what they say of the round is true."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import URL, Engine, event
from sqlalchemy.engine import make_url

from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.errors import AnswerLost, Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from tests.api.conftest import Server, opened

ROUNDS, TIMED, REPORTS = 40, 3, 50_000
SECONDS_MAX = 60.0
NOT_KNOWN = (
    "The answer of the database was lost; whether the round was registered is not known."
    " Ask the same again: for a round, with the same identifier."
)
AGAIN_SECONDS_MAX = 20.0
WORDS_OF_NO_CHANGE = ("nothing", "unchanged", "not changed", "no change", "not registered", "not recorded")


class Cuts:
    """A proxy in front of PostgreSQL that ends connections."""

    def __init__(self, database_url: str) -> None:
        self._url = make_url(database_url)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self.loses_answer_to: int | None = None  # a port: the next answer to it ends its connection instead
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The database, through this proxy."""
        host, port = self._listening.getsockname()
        through: URL = self._url.set(host=host, port=port, query={})
        return through.render_as_string(hide_password=False)

    def cut(self) -> None:
        """End all connections now, in both directions."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in (end for pair in pairs for end in pair):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = self._upstream()
                with self._lock:
                    self._pairs.append((client, server))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pass_on, args=(source, target, source is server), daemon=True
                    ).start()

    def _upstream(self) -> socket.socket:
        directory = str(self._url.query.get("host", ""))
        if not directory.startswith("/"):
            return socket.create_connection((self._url.host or "127.0.0.1", self._url.port or 5432))
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(f"{directory}/.s.PGSQL.{self._url.port or 5432}")
        return upstream

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and target.getpeername()[1] == self.loses_answer_to:
                    self.loses_answer_to = None
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def port_of(cursor: Any) -> int:
    """Return the port that a cursor's connection was made from."""
    with socket.socket(fileno=os.dup(cursor.connection.fileno())) as same:
        return int(same.getsockname()[1])


@pytest.fixture
def database_url(new_postgresql_database: Callable[[], str]) -> str:
    """Return a ledger on PostgreSQL."""
    url = new_postgresql_database()
    initialise(url)
    return url


@pytest.fixture
def cuts(database_url: str) -> Iterator[Cuts]:
    """Yield a proxy in front of it."""
    proxy = Cuts(database_url)
    yield proxy
    proxy.close()


@pytest.fixture
def store(cuts: Cuts) -> Iterator[Store]:
    """Yield the ledger as the server sees it, through the proxy."""
    yield from opened(cuts.url)


@contextmanager
def cutting(cuts: Cuts, *, answer_seconds: float, seed: int) -> Iterator[None]:
    """Cut all connections at random moments, as often as answers come, until the end."""
    done = threading.Event()
    chance = random.Random(seed)  # noqa: S311

    def run() -> None:
        while not done.wait(chance.uniform(0.2, 3.0) * answer_seconds):
            cuts.cut()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def is_registered(database_url: str, round_id: str) -> bool:
    """Ask the database itself."""
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection:
        query = "SELECT count(*) FROM rounds WHERE round_id = %s"
        return connection.execute(query, (round_id,)).fetchone() == (1,)


def asked_until_answered(server: Server, round_id: str) -> httpx.Response:
    """Ask for a round again and again, with the same identifier, as the problem documents say."""
    gives_up = time.monotonic() + AGAIN_SECONDS_MAX
    while True:
        answer = server.register(round_id, reports=REPORTS)
        if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > gives_up:
            return answer


@pytest.mark.slow
def test_no_answer_says_that_nothing_changed_while_a_round_appeared(
    serve: Callable[..., Server], cuts: Cuts, database_url: str
) -> None:
    server = serve()
    began = time.monotonic()
    for number in range(TIMED):
        server.register(f"timed-{number}", reports=REPORTS)
    ends = time.monotonic() + SECONDS_MAX
    failed = {}
    with cutting(cuts, answer_seconds=(time.monotonic() - began) / TIMED, seed=7):
        for number in range(ROUNDS):
            if time.monotonic() > ends:
                break
            answer = server.register(f"round-{number}", reports=REPORTS)
            if answer.status_code == HTTPStatus.CREATED:
                assert is_registered(database_url, f"round-{number}")
                continue
            failed[f"round-{number}"] = answer
    assert failed, "no answer was lost: the test tried nothing"
    for round_id, answer in failed.items():
        said = answer.json()
        assert (answer.status_code, said["type"]) == (503, "urn:shuffle-ledger:problem:unavailable"), said
        assert answer.headers["Retry-After"] == "1"
        assert "with the same identifier" in said["detail"]
        text = f"{said['title']} {said['detail']}".lower()
        assert not any(words in text for words in WORDS_OF_NO_CHANGE), said
        again = asked_until_answered(server, round_id)
        assert (again.status_code, again.json().get("outcome")) in ((201, "admitted"), (409, "refused")), (
            again.text
        )
        assert server.ask("GET", f"/v1/rounds/{round_id}").json()["state"] == again.json()["outcome"]


@pytest.mark.parametrize("keeps", [True, False], ids=["committed", "never-sent"])
def test_an_answer_that_is_lost_is_said_to_be_unknown(
    serve: Callable[..., Server], cuts: Cuts, database_url: str, store: Store, *, keeps: bool
) -> None:
    """The statement was committed, or never came: the sentence is the same, and true of both."""
    server = serve()
    assert server.register("before").status_code == HTTPStatus.CREATED
    armed = [True]

    def cut(*told: object) -> None:
        if armed[0] and "INTO rounds" in str(told[2]):
            armed[0] = False
            if keeps:
                committing.append(port_of(told[1]))  # not that of what was left over, decided meanwhile
            else:
                cuts.cut()

    def lose(_connection: object) -> None:
        if committing:
            cuts.loses_answer_to = committing.pop()

    committing: list[int] = []
    event.listen(store.engine, "before_cursor_execute", cut)
    event.listen(store.engine, "commit", lose)
    # Of a kind that is not known, so that its row is committed separately.
    answer = server.register("lost", reports=1200)
    assert not armed[0]
    assert answer.json() == {
        "type": "urn:shuffle-ledger:problem:unavailable",
        "title": "The database cannot be used, or its answer was lost",
        "status": 503,
        "detail": NOT_KNOWN,
        "request_id": "test",
    }
    assert is_registered(database_url, "lost") is keeps
    assert server.register("lost", reports=1200).json()["outcome"] == "admitted"


def test_the_command_says_that_it_is_not_known_and_that_it_may_be_run_again(
    cuts: Cuts, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.cohort("phones").name == "phones"
    monkeypatch.setenv("SHUFFLE_LEDGER_DATABASE_URL", cuts.url)
    order = ["round", "register", "phones", "--id", "lost", "--randomizer", "krr(k=2, epsilon0=0.5)"]
    order += ["--reports", "1000", "--json"]

    def lose(*told: object) -> None:
        cuts.loses_answer_to = port_of(told[1]) if "INTO rounds" in str(told[2]) else None

    event.listen(Engine, "before_cursor_execute", lose)
    try:
        told = CliRunner().invoke(main, order)
    finally:
        event.remove(Engine, "before_cursor_execute", lose)
    assert told.exit_code == 7
    said = json.loads(told.stdout)["error"]
    assert said["kind"] == "unavailable"
    assert said["message"].startswith("the answer of the database was lost (")
    assert said["message"].endswith(
        "; whether the round was registered is not known."
        " Ask the same again: for a round, with the same identifier."
    )
    again = CliRunner().invoke(main, order)
    assert (again.exit_code, json.loads(again.stdout)["outcome"]) == (0, "admitted")


def test_a_database_that_cannot_be_reached_is_no_lost_answer(cuts: Cuts, store: Store) -> None:
    store.engine.dispose()
    cuts.close()
    with pytest.raises(Unavailable) as refused, engines.writing(store.engine):
        raise AssertionError("there is no connection")
    assert not isinstance(refused.value, AnswerLost)
