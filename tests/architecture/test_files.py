"""What every file owes: functions that fit on a screen, a lock that is one, no address of an index; and of
tests: no patch of a private name."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import DATABASE_PREFIX

ROOT = Path(__file__).parents[2]
SOURCES = ("accounting", "cli", "ledger", "migrations", "workers", "tests", ".ci")
FUNCTION_LINES_MAX = 70
# Calls that replace the attribute, or the item, that their first arguments name.
PATCHING = {"setattr", "delattr", "__setattr__", "setitem", "delitem", "patch", "object"}
LOCKS = ("runtime.txt", "demo.txt", "dev.txt", "bench.txt")
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


def test_no_database_of_a_test_is_in_the_checkout() -> None:
    for file in _project_files():
        assert not file.name.startswith(DATABASE_PREFIX), f"a test made {file}, or took its name for a file"


@pytest.mark.slow
def test_functions_fit_on_a_screen() -> None:
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    assert lines <= FUNCTION_LINES_MAX, f"{file}:{node.lineno}: {node.name} has {lines} lines"


@pytest.mark.slow
def test_no_test_patches_a_private_name() -> None:
    """A private name is no promise: a patch of it holds on to how the code is written."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        lines = _private_patches(file.read_text("utf-8"))
        assert not lines, f"{file}: lines {lines} patch a name that begins with an underscore"


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "_LIMIT", 1)',
        'monkeypatch.setattr("shuffle_ledger.ledger._rooms.LIMIT", 1)',
        'monkeypatch.setattr(f"{ROOM}.module._LIMIT", 1)',
        'monkeypatch.setattr(store._guard, "checked_at", 0)',
        "monkeypatch.setitem(module._known, name, 1)",
        'monkeypatch.delattr(Store, "_views")',
        'object.__setattr__(value, "_number", 1)',
        '@patch("shuffle_ledger.ledger.access._clock")\ndef f(): ...',
        'mock.patch.object(module, attribute="_clock")',
        "module._LIMIT = 1",
        "store._guard._checked_at -= 60",
        "self._store._cursor = None",
        "module._known[name], other = 1, 2",
        "del module._LIMIT",
    ],
)
def test_a_patch_of_a_private_name_is_noticed(line: str) -> None:
    assert _private_patches(f"import os\n{line}") == [2]


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "LIMIT", module._LIMIT)',
        'monkeypatch.setattr("shuffle_ledger.ledger.access.LIMIT", module._LIMIT)',
        'monkeypatch.setattr(Guard, "__call__", other)',
        'monkeypatch.setitem(known, "_name", 1)',
        "self._store, _limit = store, module._LIMIT",
        "kinds[type(outcome).__name__] += 1",
    ],
)
def test_what_else_a_test_does_is_no_patch_of_a_private_name(line: str) -> None:
    assert not _private_patches(line)


def test_no_test_of_rules_alone_is_for_postgresql_alone() -> None:
    """Such a test would never run."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        program = file.read_text("utf-8")
        if "\npytestmark = pytest.mark.policies\n" in program:
            assert '["postgresql"]' not in program, file


def _private_patches(program: str) -> list[int]:
    """The lines of a program that replace a private attribute, or item, of any object but `self`."""
    return sorted(
        {
            node.lineno
            for node in ast.walk(ast.parse(program))
            if isinstance(node, ast.expr)
            and any(name.startswith("_") and not name.endswith("__") for name in _replaced(node))
        }
    )


def _replaced(node: ast.expr) -> list[str]:
    """The name of the attribute that an assignment or a call replaces, and those that lead to it."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return _names(node)
    if not isinstance(node, ast.Call):
        return []
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if called not in PATCHING or not given:
        return []
    # An attribute's name is a text: the second one, unless the first one says all. A key may be anything.
    has_name = len(given) > 1 and not called.endswith("item") and not _text(given[0])
    return _names(given[0]) + (_text(given[1]) if has_name else [])


def _names(node: ast.expr) -> list[str]:
    """The names in "a.b", or of the attributes in `a.b[c].d()`, except one of `self`; the last one first."""
    names = _text(node)
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        names += [node.attr] if isinstance(node, ast.Attribute) else []
        node = node.func if isinstance(node, ast.Call) else node.value
    return names[:-1] if isinstance(node, ast.Name) and node.id == "self" else names


def _text(node: ast.expr) -> list[str]:
    """The names in a text, also where it is put together; none in anything else."""
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
        return "".join(parts).split(".")
    return node.value.split(".") if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _without_comment(text: str) -> Iterator[str]:
    """Yield the module constants that have no comment: on their line, or above them in the same block."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        listed = node.targets if isinstance(node, ast.Assign) else [node.target]
        targets = [one for each in listed for one in (each.elts if isinstance(each, ast.Tuple) else [each])]
        names = [each.id for each in targets if isinstance(each, ast.Name) and each.id.strip("_").isupper()]
        block = itertools.takewhile(str.strip, reversed(lines[: node.lineno - 1]))
        its_own = lines[node.lineno - 1 : node.end_lineno]
        if not any(line.startswith("#") for line in block) and not any("#" in line for line in its_own):
            yield from names


def test_every_constant_of_the_accountant_says_what_it_is() -> None:
    """Its unit or its effect: most are limits and thresholds that no name explains."""
    for file in sorted((ROOT / "accounting").rglob("*.py")):
        assert list(_without_comment(file.read_text("utf-8"))) == [], file
    found = _without_comment("# what it is\nA = 1\n\nB: int = 2\n_C, D = 3, 4\nE = 5  # seconds\n\nf = 6\n")
    assert list(found) == ["B", "_C", "D"]


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
    runtime, demo, dev = (_pinned(lock) for lock in LOCKS[:3])
    extras = project["project"]["optional-dependencies"]
    needed = [*project["project"]["dependencies"], *itertools.chain(*extras.values())]
    declared = {_name(line) for line in needed} - {"shuffle-ledger"}  # `all` names our own extras
    assert len(declared) > 15
    assert declared <= set(runtime)
    groups = project["dependency-groups"]
    tools = [line for line in groups["dev"] if isinstance(line, str)] + groups["build"]
    assert {_name(line) for line in tools} <= set(dev)
    shown = [*project["project"]["dependencies"], *extras["plot"], *extras["server"], *groups["build"]]
    assert {_name(line) for line in shown} <= set(demo)
    assert {name: dev.get(name) for name in runtime | demo} == runtime | demo, "the locks differ"


def _pinned(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text("utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z]+\])?==(\S+)", text, flags=re.MULTILINE))


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert found is not None
    return found.group().lower().replace("_", "-")
