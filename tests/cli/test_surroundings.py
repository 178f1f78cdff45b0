"""Encodings, closed pipes, full disks and drawing back ends never hide a recorded decision."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

PROGRAM = Path(sys.executable).with_name("shuffle-ledger")
FITS = ("--randomizer", "krr(k=4, epsilon0=1)", "--reports", "5000")
EXCEEDS = ("--randomizer", "generic(epsilon0=16)", "--reports", "5000")
NOTEBOOK = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
ENCODINGS = [
    ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "summer"),
]


def program(
    *arguments: str, environment: dict[str, str] | None = None, **settings: Any
) -> subprocess.CompletedProcess[bytes]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHUFFLE_LEDGER_")}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    done: Any = subprocess.run(
        [PROGRAM, *arguments], env=inherited | (environment or {}), timeout=60, check=False, **settings
    )
    return done  # type: ignore[no-any-return]  # bytes, for no text is asked for


@pytest.fixture
def opened(directory: Path, run: Run) -> Path:
    budget = ("--population", "10000", "--epsilon", "1", "--delta", "1e-6")
    assert run("cohort", "open", "phones", *budget).code == 0
    return directory


@pytest.mark.system
@pytest.mark.parametrize(("environment", "name"), ENCODINGS)
def test_every_encoding_shows_the_whole_answer(opened: Path, environment: dict[str, str], name: str) -> None:
    order = ("round", "register", "phones", "--id", name, *FITS)
    register = program(*order, cwd=opened, environment=environment)
    assert (register.returncode, register.stderr) == (0, b"")
    assert b"admitted" in register.stdout
    assert b"accounted" in register.stdout
    budget = program("budget", "phones", cwd=opened, environment=environment)
    assert (budget.returncode, budget.stderr) == (0, b"")
    assert budget.stdout.splitlines()[-1].startswith(b"head")
    assert budget.stdout.index(b"still fits") < budget.stdout.index(b"spent")


@pytest.mark.system
@pytest.mark.parametrize(("round_", "code"), [(EXCEEDS, 3)])
def test_the_exit_code_tells_a_decision_that_cannot_be_written(
    opened: Path, round_: tuple[str, ...], code: int
) -> None:
    def register(name: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
        return program("round", "register", "phones", "--id", name, *round_, cwd=opened, **streams)

    reading, writing = os.pipe()
    os.close(reading)
    closed = register("closed", stdout=writing)
    os.close(writing)
    with Path("/dev/full").open("wb") as full:
        written = register("full", stdout=full)
        neither = register("neither", stdout=full, stderr=full)
    nothing = register("nothing", preexec_fn=lambda: os.close(1), stdout=None)
    assert [each.returncode for each in (closed, written, neither, nothing)] == [code] * 4
    outcome = b'"outcome": "admitted"' if code == 0 else b'"outcome": "refused"'
    assert outcome in closed.stderr
    assert outcome in written.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("backend", "order", "begins"),
    [
        (NOTEBOOK, ("amplify", *FITS, "--delta", "1e-6", "--plot", "drawn.svg"), b"<?xml"),
        (
            {"MPLBACKEND": "none of them"},
            ("audit", "statement", "phones", "--format", "pdf", "-o", "drawn.pdf"),
            b"%PDF",
        ),
    ],
)
def test_pictures_are_drawn_whatever_a_notebook_set(
    opened: Path, backend: dict[str, str], order: tuple[str, ...], begins: bytes
) -> None:
    done = program(*order, cwd=opened, environment=backend)
    assert done.returncode == 0, done.stderr
    (drawn,) = opened.glob("drawn.*")
    assert drawn.read_bytes().startswith(begins)
