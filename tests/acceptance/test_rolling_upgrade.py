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

from shuffle_ledger.accounting import NUMERICAL_POLICY
from tests.acceptance.conftest import answers
from tests.commands import command
from tests.history import MISSING, REPOSITORY, before_the_last_migration, git
from tests.ports import free_port
from tests.workers.conftest import WAIT_SECONDS_MAX, awaited

pytestmark = pytest.mark.system

ROUND = {"randomizer": "krr(k=10, epsilon0=2)", "reports": 1000}
ROUNDS = 24  # more than the plan has slots
PLAN = 'randomizer,reports,count\n"krr(k=10, epsilon0=2)",1000,6\n'
POLICY = ("-c", "from shuffle_ledger.accounting import NUMERICAL_POLICY; print(NUMERICAL_POLICY)")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of the version before the last migration."""
    commit = before_the_last_migration()
    assert commit is not None, MISSING  # without it this test is not chosen: tests/conftest.py
    folder = tmp_path_factory.mktemp("previous")
    archive = folder / "source.tar"
    git("archive", "--output", str(archive), commit)
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

    def before(self, packages: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of the previous version to its end, which must have this exit code."""
        program = () if words[0] == "-c" else ("-m", "shuffle_ledger")
        done = subprocess.run(
            [sys.executable, *program, *words],
            env=self._environment(packages),
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    def now(self, *words: str) -> str:
        """Run a command of this version, which must succeed; return the JSON value it printed."""
        done = command(*words, folder=self._folder, settings=self._settings)
        assert done.exit_code == 0, (words, done.output)
        return done.stdout

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
    upgrade.before(previous, "init")
    budget = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
    # Not of policy adaptive: this version does not read the menu of filters that the previous one wrote.
    plan = tmp_path / "plan.csv"
    plan.write_text(PLAN, "utf-8")
    upgrade.before(previous, "cohort", "open", "phones", *budget, "--policy", "plan", "--plan", str(plan))
    made = upgrade.before(previous, "token", "create", "t", "--role", "admin", "--json")
    token = json.loads(made.stdout)["token"]
    with upgrade.server(previous, token) as old:
        assert register([old], 0) == [201]
        upgrade.now("init")
        assert "newer than this code" in upgrade.before(previous, "health", code=1).stderr
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
    upgrade.now("audit", "verify", "--numbers", "all")
    upgrade.now("audit", "statement", "phones", "--bundle", "bundle.zip")
    (tmp_path / "heads.json").write_text(upgrade.now("audit", "heads"), "utf-8")
    verifying = ("audit", "verify", "bundle.zip", "--against", "heads.json", "--numbers", "all")
    upgrade.now(*verifying)
    # The previous version verifies the chain, too, or says that it does not know the newer numbers.
    same_numbers = upgrade.before(previous, *POLICY).stdout.strip() == NUMERICAL_POLICY
    checked = upgrade.before(previous, *verifying, code=0 if same_numbers else 6)
    assert same_numbers or "no version known here has numerical policy" in checked.stdout
