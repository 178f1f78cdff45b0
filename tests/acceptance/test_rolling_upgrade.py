"""Servers of the previous schema's version and of this one decide on one database, during an upgrade.

The previous version is built as a wheel from the commit before the last migration was added.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shuffle_ledger.ledger.storage.tables import SCHEMA_REVISION
from tests.acceptance.conftest import answers
from tests.benchmarks.http_storm import free_port
from tests.workers.conftest import REPOSITORY, WAIT_SECONDS_MAX, awaited

pytestmark = pytest.mark.system

ROUND = {"randomizer": "krr(k=10, epsilon0=2)", "reports": 1000}
ROUNDS = 24  # more than the budget admits
POLICY = ("-c", "from shuffle_ledger.accounting import NUMERICAL_POLICY; print(NUMERICAL_POLICY)")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _has_last_migration(commit: str) -> bool:
    listed = _git("ls-tree", "--name-only", commit, "migrations/versions/")
    return f"/{SCHEMA_REVISION}_" in listed


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of the version before the last migration."""
    changes = _git("rev-list", "--first-parent", "HEAD", "--", "migrations/versions").split()
    commit = next((f"{each}^1" for each in changes if not _has_last_migration(f"{each}^1")), None)
    if commit is None or not _git("rev-parse", "--verify", "--quiet", commit):
        pytest.skip(
            "the history before the last migration is missing: an archive or a shallow clone has none"
        )
    folder = tmp_path_factory.mktemp("previous")
    archive = folder / "source.tar"
    _git("archive", "--output", str(archive), commit)
    source = folder / "source"
    source.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        source,
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder / "packages")
    return folder / "packages"


class Upgrade:
    """One database, and the commands of either version."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._settings = {"SHUFFLE_LEDGER_DATABASE_URL": database_url, "SHUFFLE_LEDGER_DRAIN_SECONDS": "0"}
        self._folder = folder
        self.log = folder / "log"

    def _environment(self, packages: Path) -> dict[str, str]:
        return os.environ | self._settings | {"PYTHONPATH": str(packages)}

    def command(self, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a version to its end."""
        program = () if words[0] == "-c" else ("-m", "shuffle_ledger")
        return subprocess.run(
            [sys.executable, *program, *words],
            env=self._environment(packages),
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )

    def done(self, packages: Path, *words: str) -> str:
        """Run a command of a version, which must succeed; return what it printed."""
        done = self.command(packages, *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    @contextmanager
    def server(self, packages: Path, token: str) -> Iterator[httpx.Client]:
        """Run a server of a version; yield a client of it as soon as it answers."""
        url = f"http://127.0.0.1:{free_port()}"
        words = [sys.executable, "-m", "shuffle_ledger", "serve", "--port", url.rpartition(":")[2]]
        with (
            self.log.open("ab") as said,
            subprocess.Popen(
                words, env=self._environment(packages), cwd=self._folder, stdout=said, stderr=said
            ) as process,
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client,
        ):
            try:
                awaited(lambda: answers(url), self.log)
                yield client
            finally:
                process.terminate()


def register(clients: Sequence[httpx.Client], number: int) -> list[int]:
    """Register a round with each of the servers, which must agree; return the answers."""
    body = {"round_id": f"round {number}", "cohort": "phones", **ROUND}
    first, *others = clients if number % 2 else clients[::-1]
    return [client.post("/v1/rounds", json=body).status_code for client in (first, *others)]


def test_the_previous_version_goes_on_while_this_one_takes_over(
    previous: Path, new_postgresql_database: Callable[[], str], tmp_path: Path
) -> None:
    upgrade = Upgrade(new_postgresql_database(), tmp_path)
    upgrade.done(previous, "init")
    budget = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
    upgrade.done(previous, "cohort", "open", "phones", *budget)
    token = json.loads(upgrade.done(previous, "token", "create", "t", "--role", "admin", "--json"))["token"]
    with upgrade.server(previous, token) as old:
        assert register([old], 0) == [201]
        upgrade.done(REPOSITORY, "init")
        refused = upgrade.command(previous, "health")
        assert refused.returncode == 1
        assert "newer than this code" in refused.stderr
        with upgrade.server(REPOSITORY, token) as new, ThreadPoolExecutor(4) as threads:
            said = list(threads.map(lambda number: register([old, new], number), range(1, ROUNDS)))
            spent: list[Any] = [each.get("/v1/cohorts/phones/budget").json() for each in (old, new)]
    # Whichever version decided, the other one gives the same answer.
    assert all(len(set(each)) == 1 for each in said), said
    admitted = 1 + sum(each == [201, 201] for each in said)
    assert {status for each in said for status in each} == {201, 409}
    for each in spent:
        assert each["rounds_admitted"] == admitted
        assert each["epsilon_spent_upper"] <= 1
    upgrade.done(REPOSITORY, "audit", "verify", "--numbers", "all")
    upgrade.done(REPOSITORY, "audit", "statement", "phones", "--bundle", "bundle.zip")
    (tmp_path / "heads.json").write_text(upgrade.done(REPOSITORY, "audit", "heads", "--json"), "utf-8")
    verifying = ("audit", "verify", "bundle.zip", "--against", "heads.json", "--numbers", "all")
    upgrade.done(REPOSITORY, *verifying)
    # The previous version verifies the chain, too, or says that it does not know the newer numbers.
    checked = upgrade.command(previous, *verifying)
    same_numbers = upgrade.done(previous, *POLICY) == upgrade.done(REPOSITORY, *POLICY)
    assert checked.returncode == (0 if same_numbers else 6), checked.stdout
    assert same_numbers or "no version known here has numerical policy" in checked.stdout
