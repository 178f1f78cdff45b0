"""An initialised ledger per test, and the program as a function."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shuffle_ledger.cli.main import main

ROUND = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "1000")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one strict JSON value on standard output; anything beside it is an error."""
        assert self.stdout.count("\n") == 1, self.stdout
        return json.loads(self.stdout, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


Run = Callable[..., Answer]


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, without a ledger, and without anybody's settings."""
    for name in ("DATABASE_URL", "BROKER_URL", "ACTOR", "PRECISION"):
        monkeypatch.delenv(f"SHUFFLE_LEDGER_{name}", raising=False)
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def directory(empty_directory: Path, sqlite_template: Path) -> Path:
    """Return the working directory, with an initialised ledger in the default place."""
    shutil.copy(sqlite_template, empty_directory / "shuffle-ledger.db")
    return empty_directory


@pytest.fixture
def run(empty_directory: Path) -> Run:
    """Return a function that runs one command."""

    def call(*arguments: str) -> Answer:
        result = CliRunner().invoke(main, arguments)
        return Answer(code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    return call


@pytest.fixture
def phones(directory: Path, run: Run) -> Run:
    """Return `run`, with a cohort "phones": 100,000 users, epsilon 1 at delta 1e-6."""
    opened = run("cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-6")
    assert opened.code == 0, opened.stderr
    return run


def changed(directory: Path, change: str) -> None:
    """Change entries of the ledger in a directory behind its back."""
    with closing(sqlite3.connect(directory / "shuffle-ledger.db")) as database, database:
        triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE entries SET " + change)  # noqa: S608 - our own words
