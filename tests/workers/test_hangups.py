"""SIGHUP, as from a closed terminal: every process that runs until it is stopped ends as SIGTERM ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Refused
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.dispatch import broker_state, decide, publish
from tests.ports import free_port
from tests.workers.conftest import awaited, register_round, remove_queues, running, settings_at
from tests.workers.test_worker import SCRIPT, UNREACHABLE

pytestmark = pytest.mark.system
ENDS_SECONDS_MAX = 30.0


@pytest.fixture(autouse=True)
def hangups() -> Iterator[None]:
    """Let programs get SIGHUP also where these tests run under `nohup`, which a program inherits."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def broker(database_url: str) -> Iterator[Settings]:
    """Yield settings for queues at RabbitMQ."""
    found = settings_at("rabbitmq", database_url)
    yield found
    remove_queues(found)


def test_a_worker_finishes_what_it_decides(store: Store, broker: Settings, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number in range(20):
        register_round(store, f"round-{number}", epsilon0=1.0 + number / 8)
    with running(broker, log, SCRIPT, "worker") as process:
        awaited(lambda: (state := broker_state(broker)) and state.workers, log)
        for number in range(20):
            assert publish(create_app(broker), f"round-{number}")
        awaited(lambda: "received" in log.read_text("utf-8"), log)  # and is being decided
        os.kill(process.pid, signal.SIGHUP)
        os.killpg(process.pid, signal.SIGHUP)  # as a closed terminal does
        assert process.wait(ENDS_SECONDS_MAX) == 0
    said = log.read_text("utf-8")
    assert "Warm shutdown" in said
    for wrong in ("Restarting", "Traceback", "prematurely"):
        assert wrong not in said
    with running(broker, log, SCRIPT, "worker", "--no-sweep"):  # what was not begun is still queued
        assert isinstance(decide(store, Accountant(), broker, "round-19"), (Admitted, Refused))


def test_a_scheduler_ends(broker: Settings, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(broker, log, SCRIPT, "scheduler") as process:
        awaited(lambda: "succeeded" in log.read_text("utf-8"), log)
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(ENDS_SECONDS_MAX) == 0
    assert "Restarting" not in log.read_text("utf-8")


def test_a_worker_that_waits_for_its_broker_ends(database_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    nowhere = Settings(database_url=database_url, broker_url=UNREACHABLE)
    with running(nowhere, log, SCRIPT, "worker") as process:
        awaited(lambda: "Trying again" in log.read_text("utf-8"), log)
        os.kill(process.pid, signal.SIGHUP)
        assert process.wait(ENDS_SECONDS_MAX) == 0
    assert "Restarting" not in log.read_text("utf-8")


def test_a_server_drains(database_url: str, tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    settings = Settings(database_url=database_url, broker_url=UNREACHABLE)
    command = (SCRIPT, "serve", "--port", port)
    with running(settings, log, *command, more={"SHUFFLE_LEDGER_DRAIN_SECONDS": "2"}) as process:
        awaited(lambda: _status(port, "healthz") == 200, log)
        os.kill(process.pid, signal.SIGHUP)
        began = time.monotonic()
        awaited(lambda: _status(port, "readyz") == 503, log)
        os.kill(process.pid, signal.SIGHUP)
        assert _status(port, "healthz") == 200
        process.wait(ENDS_SECONDS_MAX)
        assert time.monotonic() - began > 1.5
    assert "Asked to stop" in log.read_text("utf-8")


def test_nohup_keeps_a_process(broker: Settings, tmp_path: Path) -> None:
    worker, server = tmp_path / "worker", tmp_path / "server"
    with (
        running(broker, worker, "nohup", SCRIPT, "worker") as first,
        running(broker, server, "nohup", SCRIPT, "serve", "--port", free_port()) as second,
    ):
        awaited(lambda: "received" in worker.read_text("utf-8"), worker)
        awaited(lambda: "Application startup complete" in server.read_text("utf-8"), server)
        for process in (first, second):
            os.killpg(process.pid, signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(2.0)
        assert second.poll() is None


def _status(port: int, route: str) -> int | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/{route}", timeout=5).status_code
    except httpx.TransportError:
        return None
