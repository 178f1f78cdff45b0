"""A real Prometheus scrapes two servers with our rules: an alarm fires with its cause, and ends with it."""

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

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.backends.database import health_of
from shuffle_ledger.cli.backends.session import Session
from shuffle_ledger.ledger.api import figures
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from tests.api.conftest import NO_AUTHORITIES, Server, running
from tests.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
SECONDS_MAX = 60.0


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
def test_an_alarm_fires_with_its_cause_and_ends_with_it(
    serve: Callable[..., Server],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    prometheus: Callable[..., Prometheus],
) -> None:
    """Every alarm has a series by its first word, and a rule that promtool tries."""
    monkeypatch.setattr(figures, "STALE_TIMES", 0.0)  # each scrape reads them again
    acknowledged: dict[str, int] = {}

    def alarmed() -> Any:
        settings = Settings(broker_url=None, acknowledged=acknowledged)
        return health_of(Session(settings=settings, store=store, accountant=Accountant()))

    dispatch = Dispatch(decide=lambda *_: pytest.fail("nothing is decided"), health=alarmed)
    server = serve(dispatch)
    second = running(create_app(Settings(broker_url=None), store, dispatch))
    other = second.__enter__()
    addresses = [url.removeprefix("http://") for url in (server.url, other)]
    watcher = prometheus(addresses, server.tokens["reader"])
    watcher.waits_for(set())
    leak = {"round_id": "leak", "round": None, "reason": "a bug"}
    assert server.ask("POST", "/v1/cohorts/phones/incidents", json=leak).status_code == 200
    watcher.waits_for({"Overspent"})
    acknowledged["phones"] = store.view("phones").head_sequence
    watcher.waits_for(set())
    second.__exit__(None, None, None)
    watcher.waits_for({"ServerDown"}, servers=1)
