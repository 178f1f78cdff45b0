"""`kill -9` at any moment of an import, again and again: nothing lost, doubled or reordered."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.verification.verifier import verify

IMPORTER = Path(__file__).parent / "programs" / "importer.py"
ROUNDS = 24
KILLS = 4
LINES_BEFORE_A_KILL_MAX = 16
RUN_SECONDS_MAX = 60


def run(database_url: str, *, lines_max: int | None, pause_seconds: float = 0.0) -> Iterator[str]:
    """Yield what an importer says; kill it a moment after it said `lines_max` lines."""
    command = [sys.executable, str(IMPORTER), database_url, str(ROUNDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        overdue = threading.Timer(RUN_SECONDS_MAX, process.kill)
        overdue.start()
        try:
            for count, line in enumerate(process.stdout, start=1):
                yield line.strip()
                if count == lines_max:
                    time.sleep(pause_seconds)  # not to wait for anything: to hit every place in between
                    process.kill()
        finally:
            overdue.cancel()
            process.kill()
    if lines_max is None:
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_import_survives_being_killed(phones: Store, database_url: str) -> None:
    chance = random.Random(database_url)  # noqa: S311 - where to kill need not be a secret
    said: list[str] = []
    for _ in range(KILLS):
        lines_max = chance.randint(1, LINES_BEFORE_A_KILL_MAX)
        said += run(database_url, lines_max=lines_max, pause_seconds=chance.uniform(0, 0.08))
    last = list(run(database_url, lines_max=None))
    entries = list(phones.entries_of("phones"))[1:]
    assert [entry.round_id for entry in entries] == [f"round-{number}" for number in range(ROUNDS)]
    kinds = [entry.kind for entry in entries]
    assert {"admitted", "refused"} == set(kinds)
    expected = [f"{kind.capitalize()} {number} {number + 2}" for number, kind in enumerate(kinds)]
    assert [line for line in last if not line.startswith("registered")] == expected
    assert {line for line in said if not line.startswith("registered")} <= set(expected)
    assert phones.pending(limit=1) == []
    assert verify(phones, Accountant()).ok
