"""The installed program itself, as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROUND

BUDGET = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
PROGRAM = Path(sys.executable).with_name("shuffle-ledger")


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SHUFFLE_LEDGER_")
    }
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_installed_program_keeps_a_ledger(tmp_path: Path) -> None:
    assert _run(tmp_path, "init").returncode == 0
    assert (tmp_path / "shuffle-ledger.db").exists()
    missing = _run(tmp_path, "budget", "watches", "--json")
    assert missing.returncode == 4
    assert json.loads(missing.stdout)["error"]["kind"] == "not_found"


@pytest.mark.parametrize("asked", [None, "2"])
def test_linear_algebra_has_one_thread_unless_more_are_asked_for(asked: str | None) -> None:
    code = """
import shuffle_ledger.cli.main, os, numpy
numpy.ones((999, 999)) @ numpy.ones((999, 999))
print(os.environ["OPENBLAS_NUM_THREADS"], len(os.listdir("/proc/self/task")))
"""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {} if asked is None else {"OPENBLAS_NUM_THREADS": asked}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    variable, threads = map(int, shown.stdout.split())
    assert variable == int(asked or 1)
    assert (threads == 1) == (asked is None)


@pytest.mark.system
def test_a_worker_started_here_decides_what_is_queued(tmp_path: Path, sqlite_template: Path) -> None:
    shutil.copy(sqlite_template, tmp_path / "shuffle-ledger.db")
    folders = {
        "data_folder_in": "q",
        "data_folder_out": "q",
        "processed_folder": "done",
        "control_folder": "c",
    }
    for name in set(folders.values()):
        (tmp_path / name).mkdir()
    places = {option: str(tmp_path / name) for option, name in folders.items()}
    environment = os.environ | {"SHUFFLE_LEDGER_BROKER_TRANSPORT_OPTIONS": json.dumps(places)}
    url = f"sqlite:///{tmp_path / 'shuffle-ledger.db'}"
    order: list[str | Path] = [
        PROGRAM,
        "worker",
        "--json",
        "--no-sweep",
        "--broker-url",
        "filesystem://",
        "--database-url",
        url,
    ]
    assert _run(tmp_path, "cohort", "open", "phones", *BUDGET).returncode == 0
    # Its log goes to a file: an unread pipe would stop it in the end.
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(order, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        register: list[str | Path] = [
            PROGRAM,
            "round",
            "register",
            "phones",
            "--id",
            "first",
            *ROUND,
            "--json",
        ]
        register += ["--broker-url", "filesystem://", "--database-url", url]
        done = subprocess.run(
            register, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert done.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(done.stdout)["outcome"] == "admitted"
    assert process.returncode == 0
    assert json.loads(output) == {"started": True, "concurrency": 1, "sweep": False}
