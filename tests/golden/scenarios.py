"""Scenarios: files of steps, each followed by its answer, which is masked where runs and machines differ."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shuffle_ledger import __version__
from shuffle_ledger.cli.main import main

ANSWERS = Path(__file__).parent / "answers"
LEDGER = "shuffle-ledger.db"
ANSWER = "  "  # how a line of an answer begins; a line of a file begins with "| ", and a remark with "#"
METHODS = ("GET", "POST", "PUT", "DELETE")
NEAR, AHEAD = 7, 60  # days from today that are not told apart, and days from a Monday that have names
REPEATED_LINES = 4  # an answer of more lines is written once
LINE = 100  # characters of JSON that stay on one line
DIGITS = 6  # of a number in JSON that are kept
RELATIVE = 1e-5  # numbers closer than this are the same: the last digit depends on the machine
NUMBER = re.compile(r"(?<![\w.-])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
HEADERS = ("location", "retry-after", "www-authenticate")
# What differs from run to run: first what contains the others.
MASKS = (
    (re.compile(r"\bsl_[A-Za-z0-9_-]{8,}"), "TOKEN"),
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=]+"), "SECRET"),
    (re.compile(r"-?0x[01]\.[0-9a-f]+p[+-]?\d+"), "HEXADECIMAL"),
    (re.compile(r"\b[0-9a-f]{40,}\b"), "DIGEST"),
    (
        re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b"),
        "IDENTITY",
    ),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00| UTC)?"), "MOMENT"),
    (re.compile(r"shuffle-ledger-numerics-\d+"), "NUMERICS"),
    (re.compile(r"\b\d{15,}(?:/\d+)?\b"), "EXACT"),
)
COLUMNS = re.compile(r"(?<=\S) {2,}")  # a column's width depends on what is masked in it
# Fields of JSON whose values no machine shares, for a width depends on the order of a sum; and those whose
# content is evidence, which has tests of its format.
WIDTHS = ("discretization", "truncation", "round_off")
MASKED = {"token_id": "IDENTITY", "id": "IDENTITY", "canonical": "EVIDENCE", "body": "EVIDENCE"} | {
    name: "WIDTH" for width in WIDTHS for name in (width, f"epsilon_error_{width}")
}


@dataclass
class Ledger:
    """A ledger in a folder, which commands and requests reach as users do; tokens by their names."""

    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)
    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    answers: dict[str, str] = field(default_factory=dict)

    def command(self, words: str) -> str:
        """Run a command and return what it left behind."""
        done = CliRunner().invoke(main, shlex.split(self._dated(words)))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        said = [self.masked(done.stdout), *(f"stderr: {line}" for line in _lines(self.masked(done.stderr)))]
        return "\n".join(part for part in (*said, f"exit {done.exit_code}") if part.strip())

    def requests(self, lines: list[str]) -> list[str]:
        """Serve the ledger, ask everything in order, and return the answers."""
        answers: list[str] = []

        def ask(app: FastAPI, _listener: object, **_where: Any) -> None:
            with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as client:
                answers.extend(self._request(client, line) for line in lines)

        api = "shuffle_ledger.ledger.api"
        with mock.patch(f"{api}.run_server", ask), mock.patch(f"{api}.listener_on", mock.MagicMock()):
            done = CliRunner().invoke(main, ["serve", "--json"])
        assert done.exit_code == 0, done.output
        return answers

    def _request(self, client: TestClient, line: str) -> str:
        method, path, bearer, *body = line.split(" ", 3)
        path = self._dated(path)
        headers = {"X-Request-Id": "golden", "Accept": "application/json"}
        if bearer != "nobody":
            headers["Authorization"] = f"Bearer {self.tokens[bearer]}"
        if body:
            headers["Content-Type"] = "application/json"
        answer = client.request(method, path, headers=headers, content=self._dated(*body))
        kept = [f"{name}: {answer.headers[name]}" for name in HEADERS if name in answer.headers]
        kind = answer.headers.get("content-type", "nothing").partition(";")[0]
        return self.masked("\n".join((f"{answer.status_code} {kind}", *kept, answer.text)))

    def once(self, step: str, answer: str) -> str:
        """Return a step's answer, or the name of the step that had the same long answer before."""
        if answer.count("\n") < REPEATED_LINES:
            return answer
        if answer in self.answers:
            return f"as answered to {self.answers[answer]}"
        self.answers[answer] = step
        return answer

    def masked(self, text: str) -> str:
        """Return a text with JSON laid out and what differs from run to run replaced by its kind."""
        text = "\n".join(self._laid_out(line) for line in _lines(text.replace(str(self.folder), "FOLDER")))
        return self._without_what_differs(text)

    def _without_what_differs(self, text: str) -> str:
        for pattern, kind in MASKS:
            text = pattern.sub(kind, text)
        for found, kind in self._days().items():
            text = text.replace(found, kind)
        return text.replace(__version__, "VERSION")

    def _dated(self, text: str = "") -> str:
        """Return the words of a step with their days, which are counted from a Monday soon, and their NOW."""
        for day, name in reversed(self._days().items()):
            text = text.replace(name, day)
        return text.replace("NOW", datetime.now(UTC).isoformat())

    def _days(self) -> dict[str, str]:
        """Return the names of days and weeks: today's week looks the same on each of its days."""
        monday = self.today + timedelta(days=14 - self.today.weekday())
        named = {f"{self.today + timedelta(days=off)}": "NEARBY" for off in range(-NEAR, NEAR + 1)}
        named |= {f"{monday + timedelta(days=off)}": f"MONDAY+{off}" for off in range(AHEAD)}
        weeks = {off: monday + timedelta(weeks=off) for off in range(-3, AHEAD // 7)}
        return named | {f"{first:%G-W%V}": f"WEEK{off:+}" for off, first in weeks.items()}

    def _laid_out(self, line: str) -> str:
        try:
            value = json.loads(line) if line.startswith(("{", "[")) else None
        except ValueError:
            value = None
        if value is None:
            return COLUMNS.sub("  ", line)
        if isinstance(value, dict) and "token" in value and "name" in value:
            self.tokens[value["name"]] = value["token"]
        return _indented(self._rounded(value), "")

    def _rounded(self, value: Any) -> Any:
        """Return a JSON value with few digits of its numbers, and without what differs from run to run."""
        match value:
            case str():
                return self._without_what_differs(value)
            case float():
                return float(f"{value:.{DIGITS}g}")
            case list():
                return [self._rounded(one) for one in value]
            case dict():
                masked = {name: MASKED[name] for name in value if name in MASKED and value[name] is not None}
                return {name: masked.get(name) or self._rounded(one) for name, one in value.items()}
        return value


def _indented(value: Any, before: str) -> str:
    """Return JSON with a line for each field that would not fit into one with its siblings."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(before) + len(short) <= LINE:
        return short
    deeper = f"{before} "
    if isinstance(value, list):
        parts, (opening, closing) = [_indented(one, deeper) for one in value], "[]"
    else:
        parts = [f"{json.dumps(name)}: {_indented(one, deeper)}" for name, one in value.items()]
        opening, closing = "{}"
    return f"{opening}\n" + ",\n".join(f"{deeper}{part}" for part in parts) + f"\n{before}{closing}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def names() -> list[str]:
    """Return the names of all scenarios."""
    return sorted(file.stem for file in ANSWERS.glob("*.txt"))


def kept(name: str) -> str:
    """Return a scenario with the answers that were written."""
    return (ANSWERS / f"{name}.txt").read_text("utf-8")


def played(scenario: str, folder: Path) -> str:
    """Return a scenario with the answers that its steps get now, of a ledger in an empty folder."""
    ledger, blocks = Ledger(folder), _blocks(scenario)
    with _alone_in(folder):
        return "".join(part for block in blocks for part in _answered(ledger, block))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Enter a folder, without anybody's settings."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("SHUFFLE_LEDGER_")}
    settings = others | {"COLUMNS": "160", "SHUFFLE_LEDGER_ACTOR": "ann", "NO_COLOR": "1"}
    logging.disable()  # where lines of logs go depends on what else runs in the process
    try:
        with contextlib.chdir(folder), mock.patch.dict(os.environ, settings, clear=True):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _blocks(scenario: str) -> list[list[str]]:
    """Return the steps without answers: requests behind each other together, each file with its lines."""
    blocks: list[list[str]] = []
    for line in _lines(scenario):
        before = blocks[-1][0].partition(" ")[0] if blocks else ""
        if not line or line.startswith(ANSWER):
            continue
        together = line.startswith("|") or (line.partition(" ")[0] in METHODS and before in METHODS)
        if together:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _answered(ledger: Ledger, block: list[str]) -> Iterator[str]:
    kind, _, rest = block[0].partition(" ")
    steps: dict[str, Callable[[], str]] = {
        "$": lambda: ledger.command(f"{rest} --json"),
        "-": lambda: ledger.command(f"{rest} --json").splitlines()[-1],
        "%": lambda: ledger.command(rest),
        "sql": lambda: _tampered(ledger.folder / LEDGER, rest),
        "file": lambda: _written(ledger.folder / rest, block[1:]),
    }
    if kind.startswith("#"):
        answers = [""]
    elif kind in METHODS:
        answers = ledger.requests(block)
    else:
        answers = [steps[kind]()]
    if kind == "file":
        yield "\n".join(block) + "\n"
        return
    for step, answer in zip(block, answers, strict=True):
        lines = [line for line in _lines(ledger.once(step, answer)) if line]
        yield f"{step}\n" + "".join(f"{ANSWER}{line}\n" for line in lines)


def _written(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line.removeprefix('| ')}\n" for line in lines), "utf-8")
    return ""


def _tampered(path: Path, statements: str) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return ""


def same_but_for_round_off(expected: str, found: str) -> str:
    """Return what was found, with the lines that differ by round-off alone as they were expected."""
    was, now = expected.splitlines(), found.splitlines()
    if len(was) != len(now):
        return found
    return "\n".join(old if _close(old, new) else new for old, new in zip(was, now, strict=True)) + "\n"


def _close(old: str, new: str) -> bool:
    pairs = zip(_numbers(old), _numbers(new), strict=False)
    near = all(abs(one - other) <= RELATIVE * max(abs(one), abs(other)) for one, other in pairs)
    return near and NUMBER.sub("#", old) == NUMBER.sub("#", new)


def _numbers(line: str) -> list[float]:
    return [float(one.replace(",", "")) for one in NUMBER.findall(line)]
