"""The service as its operators run it: processes of our command, PostgreSQL, RabbitMQ, HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.settings import Settings
from tests.commands import command
from tests.ports import free_port
from tests.workers.conftest import (
    REPOSITORY,
    WAIT_SECONDS_MAX,
    awaited,
    environment_of,
    open_phones,
    remove_queues,
    running,
    settings_at,
)

SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
UNREACHABLE = "amqp://guest:guest@127.0.0.1:1//"
SHIFTED_CLOCK = Path(__file__).parent / "shifted_clock"


@pytest.fixture
def postgresql_url(new_postgresql_ledger: Callable[[], str]) -> str:
    """Return the URL of a ledger with the cohort "phones"."""
    return open_phones(new_postgresql_ledger())


@dataclass(frozen=True, kw_only=True)
class Service:
    """A ledger on PostgreSQL, and how to run its processes."""

    settings: Settings
    log: Path
    directory: Path

    def command(self, *words: str, more: dict[str, str] | None = None) -> Any:
        """Run one command; return the JSON value it printed. It must succeed."""
        settings = environment_of(self.settings) | (more or {})
        done = command(*words, folder=self.directory, settings=settings)
        assert done.exit_code == 0, (words, done.output)
        return json.loads(done.stdout)

    @contextmanager
    def process(
        self, *words: str, off_seconds: int = 0, more: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a process of the service, with a clock that is off, until the end of the block."""
        clock = {"PYTHONPATH": f"{SHIFTED_CLOCK}:{REPOSITORY}", "SHIFTED_CLOCK_SECONDS": str(off_seconds)}
        with running(self.settings, self.log, SCRIPT, *words, more=clock | (more or {})) as process:
            yield process

    @contextmanager
    def server(
        self, token: str, *, off_seconds: int = 0, more: dict[str, str] | None = None
    ) -> Iterator[tuple[LedgerClient, subprocess.Popen[bytes]]]:
        """Run a server; yield a client of it as soon as it answers."""
        url = f"http://127.0.0.1:{free_port()}"
        words = ("serve", "--port", url.rpartition(":")[2])
        with self.process(*words, off_seconds=off_seconds, more=more) as process:
            awaited(lambda: answers(url), self.log)
            with LedgerClient(url, token, retry_seconds=WAIT_SECONDS_MAX) as client:
                yield client, process


def answers(url: str) -> bool:
    """Return whether a server answers: it is ready for work only when its broker is there too."""
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def service(new_postgresql_database: Callable[[], str], tmp_path: Path) -> Iterator[Service]:
    """Yield a service with the cohort "phones", made by its own commands."""
    found = Service(
        settings=settings_at("rabbitmq", new_postgresql_database()),
        log=tmp_path / "log",
        directory=tmp_path,
    )
    found.command("init")
    cohort = ("phones", "--population", "1000000", "--epsilon", "1", "--delta", "1e-9")
    found.command("cohort", "open", *cohort)
    yield found
    remove_queues(found.settings)
