"""The commands that pages for users show, and what these say they print."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from shuffle_ledger.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / "docs" / name for name in ("five-minutes.md", "policies.md", "ten-minutes.md"))
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
        name, *arguments = shlex.split(command)
        if name == "shuffle-ledger" and arguments != ["demo"]:
            code = following.split("\n")[1] if following.startswith("echo $?") else "0"
            yield Shown(arguments, printed, int(code))


def normal(text: str) -> tuple[str, list[float]]:
    """The text with its numbers taken out, and the numbers."""
    for pattern, instead in ((MOMENT, "MOMENT"), (DIGEST, "DIGEST"), (WIDTHS, r"\1")):
        text = pattern.sub(instead, text)
    numbers = [float(one.replace(",", "")) for one in NUMBER.findall(text)]
    return "\n".join(line.rstrip() for line in NUMBER.sub("#", text).strip().splitlines()), numbers


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, content in FILE.findall(page.read_text("utf-8")):
        (tmp_path / file).write_text(content)
    for name in [name for name in os.environ if name.startswith("SHUFFLE_LEDGER_")]:
        monkeypatch.delenv(name)
    commands = list(shown(page))
    assert len(commands) > 4
    for arguments, expected, code in commands:
        done = CliRunner(env={"COLUMNS": COLUMNS}).invoke(main, arguments)
        assert done.exit_code == code, (arguments, done.output)
        if not expected:
            continue
        (text, numbers), (said, given) = normal(expected), normal(done.stdout)
        assert said == text, arguments
        for one, other in zip(given, numbers, strict=True):
            assert math.isclose(one, other, rel_tol=1e-5), (arguments, one, other)
