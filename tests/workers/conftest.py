"""Ledgers, brokers and worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import open_cohort, register
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.queues import queue_names

REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS_MAX = 120.0
SERVERS = {"rabbitmq": "SHUFFLE_LEDGER_TEST_BROKER_URL", "redis": "SHUFFLE_LEDGER_TEST_REDIS_URL"}

Await = Callable[[Callable[[], Any]], Any]
Running = Callable[..., Any]


def open_phones(url: str) -> str:
    """Initialise a database and open the cohort "phones" there; return its URL."""
    initialise(url)
    with Store.connect(url) as store:
        open_cohort(
            store, name="phones", population=10**6, epsilon=1.0, delta=1e-9, policy="adaptive", actor="tester"
        )
    return url


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """Return the URL of a ledger with the cohort "phones"."""
    return open_phones(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
def postgresql_url(new_postgresql_ledger: Callable[[], str]) -> str:
    """Return the URL of one on PostgreSQL."""
    return open_phones(new_postgresql_ledger())


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Yield the ledger of `database_url`."""
    with Store.connect(database_url) as opened:
        yield opened


@pytest.fixture
def request_round(store: Store) -> Callable[[str], RoundRequest]:
    """Return a function that registers rounds."""
    return lambda name: register_round(store, name)


def register_round(store: Store, name: str, *, epsilon0: float = 2.0) -> RoundRequest:
    """Register a round of "phones"."""
    randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0})
    shuffled = ShuffledRound(randomizer=randomizer, reports=2_000)
    request = RoundRequest(round_id=name, cohort="phones", round=shuffled)
    register(store, request, actor="tester")
    return request


def settings_at(server: str, database_url: str) -> Settings:
    """Returns settings for separate queues at a real broker; skips the test if there is none."""
    url = os.environ.get(SERVERS[server])
    if url is None:
        pytest.skip(f"{SERVERS[server]} is not set: this was not run on a real broker")
    queue = f"shuffle-ledger-test-{uuid.uuid4().hex}"
    # What Redis keeps of unacknowledged messages has one name for all queues, if not this.
    options = {"global_keyprefix": f"{queue}:"} if server == "redis" else {}
    return Settings(
        database_url=database_url,
        broker_url=url,
        broker_transport_options=options,
        queue=queue,
        decision_timeout_seconds=WAIT_SECONDS_MAX,
    )


def remove_queues(settings: Settings) -> None:
    """Remove from a real broker what a test left there."""
    if str(settings.broker_url).startswith("redis"):
        client = redis.Redis.from_url(str(settings.broker_url))
        for key in client.scan_iter(f"{settings.queue}:*"):
            client.delete(key)
        client.close()
        return
    names = queue_names(settings.queue)
    with create_app(settings).connection_for_write() as connection:
        for name in vars(names).values():
            connection.default_channel.queue_delete(name)
        for name in (settings.queue, names.dead):
            connection.default_channel.exchange_delete(name)


@contextmanager
def running(
    settings: Settings, log: Path, *command: object, more: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program of this package, with its children, in a new process group; ends it gently."""
    environment = environment_of(settings) | (more or {})
    words = [*map(str, command)]
    with (
        log.open("ab") as said,
        subprocess.Popen(words, env=environment, stdout=said, stderr=said, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS_MAX / 4)
            except subprocess.TimeoutExpired:
                kill_group(process)


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a program of ours."""
    return os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "SHUFFLE_LEDGER_DATABASE_URL": settings.database_url,
        "SHUFFLE_LEDGER_BROKER_URL": str(settings.broker_url),
        "SHUFFLE_LEDGER_BROKER_TRANSPORT_OPTIONS": json.dumps(settings.broker_transport_options),
        "SHUFFLE_LEDGER_QUEUE": settings.queue,
    }


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children with SIGKILL."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT_SECONDS_MAX)


def awaited(condition: Callable[[], Any], log: Path) -> Any:
    """Return what `condition` returns as soon as it is true; fail with the log when it never is."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain; the worker said: {log.read_text('utf-8')[-4000:]}")
        time.sleep(0.05)
    return found
