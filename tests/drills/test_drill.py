"""The drill of the operations page, as `make drill` runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workers.conftest import REPOSITORY


@pytest.mark.system
def test_a_database_that_is_put_back_spends_nothing_twice() -> None:
    command = [sys.executable, "-m", "tests.drills"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was spent twice" in done.stdout
