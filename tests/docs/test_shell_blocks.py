"""The commands and the code that pages for users show: they run, and print what the pages say they print."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.storage import Store

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = tuple(DOCS / name for name in ("five-minutes.md", "policies.md", "randomizers.md", "ten-minutes.md"))
# Their commands need a ledger that was there before, and its evidence.
PREPARED = (DOCS / "auditors.md", DOCS / "operations.md")
ELSEWHERE = {"http.md", "permits.md"}  # tests/api/test_http_page.py, tests/docs/test_permits.py
NOT_RUN = "No test runs "  # how the sentence before a block begins that is not run here
PYTHON = (
    DOCS / "python.md",
    DOCS / "randomizers.md",
)  # other pages with code have tests of what they compute
PROGRAMS = re.compile(r"(?:shuffle-ledger|docker|curl|kubectl|systemctl|pip|make) ")
FILE = re.compile(r"`([a-z]+\.csv)`:\n\n```\n(.*?)```", re.DOTALL)  # a file that a page says to write
COLUMNS = "120"  # of what is printed into a pipe
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
# What differs from run to run, or from machine to machine.
MOMENT, DIGEST = re.compile(r"\d{4}-\d\d-\d\dT[\d:+]+"), re.compile(r"\b[0-9a-f]{40,}\b")
WIDTHS = re.compile(r"(width by cause +).*(?:\n {30,}.*)*")


class Shown(NamedTuple):
    """A command, what it prints (nothing where that is left out), and its exit code."""

    arguments: list[str]
    printed: str
    exit_code: int


def shown(page: Path) -> Iterator[Shown]:
    """The commands in order, except the demonstration, which has other tests."""
    blocks = re.findall(r"^```\n(\$ .*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    for part, following in itertools.pairwise([*parts, ""]):
        command, _, printed = part.partition("\n")
        name, *arguments = shlex.split(command, comments=True)
        if name == "shuffle-ledger" and arguments != ["demo"]:
            code = following.split("\n")[1] if following.startswith("echo $?") else "0"
            yield Shown(arguments, printed, int(code))


def normal(text: str) -> tuple[str, list[float]]:
    """The text with its numbers taken out, and the numbers."""
    for pattern, instead in ((MOMENT, "MOMENT"), (DIGEST, "DIGEST"), (WIDTHS, r"\1")):
        text = pattern.sub(instead, text)
    numbers = [float(one.replace(",", "")) for one in NUMBER.findall(text)]
    return "\n".join(line.rstrip() for line in NUMBER.sub("#", text).strip().splitlines()), numbers


def run(arguments: list[str], code: int = 0) -> str:
    """Run a command in this process; return what it printed, without what went to standard error."""
    done = CliRunner(env={"COLUMNS": COLUMNS}).invoke(main, arguments)
    assert done.exit_code == code, (arguments, done.output)
    return done.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, without a ledger and without anybody's settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SHUFFLE_LEDGER_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path, here: Path) -> None:
    for file, content in FILE.findall(page.read_text("utf-8")):
        (here / file).write_text(content)
    commands = list(shown(page))
    assert len(commands) > 4
    for arguments, expected, code in commands:
        printed = run(arguments, code)
        if not expected:
            continue
        (text, numbers), (said, given) = normal(expected), normal(printed)
        assert said == text, arguments
        for one, other in zip(given, numbers, strict=True):
            assert math.isclose(one, other, rel_tol=1e-5), (arguments, one, other)


@pytest.mark.slow
def test_the_commands_for_auditors_and_operators_run(here: Path) -> None:
    """The names of the pages are those of the files and the cohort here: COHORT, KEY, last-year.json."""
    for command in (
        "init",
        "cohort open COHORT --population 100000 --epsilon 1 --delta 1e-6",
        "round register COHORT --id first --randomizer 'krr(k=2, epsilon0=0.5)' --reports 1000",
        "audit keygen key.pem",
        "audit checkpoint --signing-key key.pem -o last-year.json",
        "round register COHORT --id second --randomizer 'krr(k=2, epsilon0=0.5)' --reports 1000",
        "audit statement COHORT --format json -o s.json --bundle evidence.zip --signing-key key.pem",
    ):
        printed = run(shlex.split(command))
        if "keygen" in command:
            (here / "KEY").write_text(printed.split()[-1])
    (here / "this-year.zip").write_bytes((here / "evidence.zip").read_bytes())
    commands = [each.arguments for page in PREPARED for each in shown(page)]
    assert len(commands) > 5
    for arguments in commands:
        run(arguments)


@pytest.mark.slow
def test_a_copy_of_a_ledger_in_use_has_everything(here: Path) -> None:
    (command,) = re.findall(
        r"^\$ (python3 -c .*)$", (DOCS / "operations.md").read_text("utf-8"), re.MULTILINE
    )
    run(["init"])
    run(["cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-9"])
    with Store.connect(f"sqlite:///{here}/shuffle-ledger.db") as in_use:
        assert [cohort.name for cohort in in_use.cohorts()] == ["phones"]
        run(["audit", "keygen", "key.pem"])
        run(["audit", "checkpoint", "--signing-key", "key.pem", "-o", "kept.json"])
        subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    printed = run(
        ["audit", "verify", "--database-url", "sqlite:///copy.db", "--against", "kept.json", "--json"]
    )
    assert json.loads(printed)["ok"] is True


@pytest.mark.slow
def test_python_code_of_pages_runs() -> None:
    for page in PYTHON:
        blocks = re.findall(
            r"^```python\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        assert blocks, page
        for code in blocks:
            exec(code, {})  # noqa: S102 - the page of this repository


def test_every_command_of_a_page_is_run_by_a_test_or_the_page_says_that_it_is_not() -> None:
    covered = {page.name for page in (*PAGES, *PREPARED)} | ELSEWHERE
    seen = 0
    for page in sorted(DOCS.glob("*.md")):
        for before, block in shell_blocks(page):
            seen += 1
            if before.startswith(NOT_RUN):
                continue
            assert not any(PROGRAMS.match(line) for line in block), (page.name, block)
            assert page.name in covered or not block[0].startswith("$ "), (page.name, block)
    assert seen > 20


def shell_blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The blocks of a page without a language, each with the line of text before it."""
    before, block, language = "", [""], None
    for line in page.read_text("utf-8").splitlines():
        if not line.startswith("```"):
            block.append(line)
            before = line if language is None and line else before
        elif language is None:
            block, language = [], line
        else:
            if language == "```" and block:
                yield before, block
            language = None
