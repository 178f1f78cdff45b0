"""What every file owes: functions that fit on a screen, a lock that is one, no address of an index."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("accounting", "cli", "ledger", "migrations", "workers", "tests", ".ci")
FUNCTION_LINES_MAX = 70
LOCKS = ("runtime.txt", "dev.txt", "bench.txt")
# Put together here, so that this file does not hold what it looks for.
HOSTS = [
    ".".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("anaconda", "org"))
]
MACHINE_PATHS = [
    "/" + "/".join(parts) + "/" for parts in (("work", "main"), ("work", "shared"), ("farm",), ("root",))
]


def _project_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    files = _project_files()
    assert len(files) > 50
    for file in files:
        content = file.read_bytes().decode("utf-8", errors="replace")
        for text in [*HOSTS, *MACHINE_PATHS]:
            assert text not in content, f"{file} names {text}"


@pytest.mark.slow
def test_functions_fit_on_a_screen() -> None:
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    assert lines <= FUNCTION_LINES_MAX, f"{file}:{node.lineno}: {node.name} has {lines} lines"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_everything_by_hash_and_names_no_location(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text("utf-8")
    assert "://" not in text
    blocks = [block for block in re.split(r"\n(?=\S)", text) if not block.lstrip().startswith("#")]
    for block in blocks:
        assert re.match(r"[a-z0-9-]+(\[[a-z]+\])?==[^ ]+ ", block), block[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block[:80]


def test_the_lock_holds_every_dependency_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    runtime, dev = (_pinned(lock) for lock in LOCKS[:2])
    extras = project["project"]["optional-dependencies"]
    needed = [*project["project"]["dependencies"], *itertools.chain(*extras.values())]
    declared = {_name(line) for line in needed} - {"shuffle-ledger"}  # `all` names our own extras
    assert len(declared) > 15
    assert declared <= set(runtime)
    assert {_name(line) for line in project["dependency-groups"]["dev"]} <= set(dev)
    assert {name: dev.get(name) for name in runtime} == runtime, "the two locks differ"


def _pinned(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text("utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z]+\])?==(\S+)", text, flags=re.MULTILINE))


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert found is not None
    return found.group().lower().replace("_", "-")
