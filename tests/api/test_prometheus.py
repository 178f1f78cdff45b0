"""A real Prometheus scrapes two servers with our rules: each alarm fires with its cause, and ends with it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import text

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.backends.database import health_of
from shuffle_ledger.cli.backends.session import Session
from shuffle_ledger.ledger import health
from shuffle_ledger.ledger.api import figures
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.checkpoints import ScheduledCheckpoints
from shuffle_ledger.ledger.decisions import admit, correct
from shuffle_ledger.ledger.files import shortage
from shuffle_ledger.ledger.health import retry, verify_oldest
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.api.conftest import NO_AUTHORITIES, Server, running
from tests.ledger.desk import disarmed
from tests.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
SECONDS_MAX = 60.0
LONG_AGO = "2020-01-01 00:00:00.000000"


class Causes:
    """What brings each alarm about, and what ends it; DEAD is left to the tests of the broker."""

    def __init__(self, server: Server, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.store, self.folder, self.monkeypatch = server, store, folder, monkeypatch
        self.settings = Settings(broker_url=None, checkpoint_directory=folder / "checkpoints")
        self.key = SigningKey.generate()
        self.checkpoint()

    def health(self) -> Any:
        return health_of(Session(settings=self.settings, store=self.store, accountant=Accountant()))

    def change(self, **changes: Any) -> None:
        self.settings = self.settings.model_copy(update=changes)

    def write(self, statement: str, **values: Any) -> None:
        with disarmed(self.store) as connection:
            connection.execute(text(statement), values)

    def acknowledge(self) -> None:
        self.change(acknowledged={"phones": self.store.view("phones").head_sequence})

    def checkpoint(self) -> None:
        schedule = ScheduledCheckpoints.of(self.settings)
        assert schedule is not None
        schedule.directory.mkdir(exist_ok=True)
        schedule.write(self.store, self.key)

    def verify(self) -> None:
        verify_oldest(self.store, Accountant(), enough=lambda: False)

    def register(self, name: str) -> None:
        # Of a kind for each name: one that is known is decided at once.
        answer = self.server.register(name, reports=100 * len(name))
        assert answer.status_code == 202

    def stick(self) -> None:
        self.register("stuck")
        for _ in range(5):
            self.store.record_failure("stuck", "out of memory")

    def free(self) -> None:
        retry(self.store, "stuck")
        admit(self.store, Accountant(), "stuck")

    def wait(self) -> None:
        self.register("waiting")
        self.write("UPDATE rounds SET registered_at = :at WHERE round_id = 'waiting'", at=LONG_AGO)

    def overspend(self) -> None:
        truth = {"randomizer": "krr(k=2, epsilon0=9)", "reports": 2}
        correct(self.store, Accountant(), "stuck", truth, reason="a lost disk", actor="tester")

    def break_chain(self) -> None:
        self.digest = self.store.view("secret").head_digest
        self.write("UPDATE heads SET digest = :digest WHERE cohort = 'secret'", digest=bytes(32))
        self.verify()

    def mend_chain(self) -> None:
        self.write("UPDATE heads SET digest = :digest WHERE cohort = 'secret'", digest=self.digest)
        self.verify()

    def each(self) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
        """Yield each alarm with what brings it about, and what ends it."""
        yield "Stuck", self.stick, self.free
        yield "Waiting", self.wait, lambda: admit(self.store, Accountant(), "waiting")
        yield "Overspent", self.overspend, self.acknowledge
        status = "UPDATE heads SET status = :status WHERE cohort = 'secret'"
        yield "Frozen", lambda: self.write(status, status="frozen"), lambda: self.write(status, status="open")
        self.verify()
        yield (
            "Unverified",
            lambda: self.write("UPDATE verifications SET verified_at = :at", at=LONG_AGO),
            self.verify,
        )
        yield "Broken", self.break_chain, self.mend_chain
        yield "Checkpoint", lambda: shutil.rmtree(self.folder / "checkpoints"), self.checkpoint
        full = lambda *_: "a disk is nearly full"  # noqa: E731
        yield (
            "Disk",
            lambda: self.monkeypatch.setattr(health, "shortage", full),
            lambda: self.monkeypatch.setattr(health, "shortage", shortage),
        )
        nobody = f"amqp://guest:guest@127.0.0.1:{free_port()}//"
        yield "Broker", lambda: self.change(broker_url=nobody), lambda: self.change(broker_url=None)


class Prometheus:
    """A running Prometheus with our rules, which fire as soon as their condition holds."""

    def __init__(self, folder: Path, targets: list[str], token: str) -> None:
        (folder / "token").write_text(token)
        rules = re.sub(r"for: \w+", "for: 0s", (DEPLOY / "alerts.yml").read_text("utf-8"))
        (folder / "alerts.yml").write_text(rules)
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "100ms", "evaluation_interval": "100ms"}
        scrape, _ = config["scrape_configs"]  # the other one is of a worker's own port
        config["scrape_configs"] = [scrape]
        scrape["authorization"]["credentials_file"] = str(folder / "token")
        scrape["static_configs"] = [{"targets": targets}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", "--log.level=error"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now, without ours in front."""
        try:
            found = httpx.get(f"{self.url}/api/v1/alerts", timeout=5, verify=NO_AUTHORITIES)
        except httpx.TransportError:
            return set()
        if found.status_code != 200:
            return set()
        listed = found.json()["data"]["alerts"]
        return {each["labels"]["alertname"].removeprefix("ShuffleLedger") for each in listed}

    def waits_for(self, alerts: set[str], *, servers: int = 2) -> None:
        """Wait until just these alerts fire, and this number of servers answers."""
        gives_up = time.monotonic() + SECONDS_MAX
        while (self.firing(), self.up()) != (alerts, servers):
            assert self.process.poll() is None, "Prometheus ended"
            assert time.monotonic() < gives_up, (alerts, self.firing(), self.up())
            time.sleep(0.05)

    def up(self) -> int:
        """Return how many servers answered their last scrapes."""
        try:
            found = httpx.get(f"{self.url}/api/v1/query", params={"query": "sum(up)"}, verify=NO_AUTHORITIES)
        except httpx.TransportError:
            return 0
        result = found.json()["data"]["result"] if found.status_code == 200 else []
        return int(result[0]["value"][1]) if result else 0


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Yield a function that starts a Prometheus; it ends with the test."""
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    started: list[Prometheus] = []

    def start(targets: list[str], token: str) -> Prometheus:
        started.append(Prometheus(tmp_path, targets, token))
        return started[-1]

    yield start
    for each in started:
        each.process.terminate()
        each.process.wait(30)


@pytest.mark.system
def test_each_alarm_fires_and_ends(
    serve: Callable[..., Server],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prometheus: Callable[..., Prometheus],
) -> None:
    causes: list[Causes] = []
    monkeypatch.setattr(figures, "STALE_TIMES", 0.0)  # each scrape reads them again

    def never(_accountant: Accountant, _round_id: str) -> Any:
        raise AssertionError("workers decide")

    dispatch = Dispatch(decide=never, publish=lambda _: True, health=lambda: causes[0].health())  # noqa: PLW0108 - made later
    server = serve(dispatch)
    causes.append(Causes(server, store, tmp_path, monkeypatch))
    settings = Settings(broker_url=None)
    second = running(create_app(settings, store, dispatch))
    other = second.__enter__()
    addresses = [url.removeprefix("http://") for url in (server.url, other)]
    watcher = prometheus(addresses, server.tokens["reader"])
    for name, begin, end in causes[0].each():
        watcher.waits_for(set())
        begin()
        watcher.waits_for({name})
        end()
    watcher.waits_for(set())
    second.__exit__(None, None, None)
    watcher.waits_for({"ServerDown"}, servers=1)
