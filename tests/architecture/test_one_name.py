"""The one name that an installation adds: `shuffle_ledger`, with the public names of the library and the
client."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import shuffle_ledger as sl
from shuffle_ledger import accounting
from shuffle_ledger.ledger import answers, questions, values

ROOT = Path(__file__).parents[2]
# Vague names that stay, by the beginnings of paths: a field of statements and a code, whose names in JSON are
# promised.
VAGUE = {
    "told": ("ledger/evidence/statement", "cli/rendering/statements/"),
    "REFUSED_ELSEWHERE": ("ledger/", "cli/backends/"),
}


def test_every_public_name_is_there_typed_and_imported_on_demand() -> None:
    for name in sl.__all__:
        assert getattr(sl, name) is not None, name
    assert set(sl.__all__) <= set(dir(sl))
    tree = ast.parse((ROOT / "shuffle_ledger/__init__.py").read_text("utf-8"))
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shuffle_ledger")
        for alias in node.names
    }
    assert typed == set(sl.__all__) - {"__version__"}
    assert (ROOT / "shuffle_ledger/py.typed").exists()


@pytest.mark.parametrize("package", [accounting, answers, questions, values], ids=lambda one: one.__name__)
def test_what_a_package_imports_when_it_is_used_is_what_types_say(package: ModuleType) -> None:
    """Three lists name it: imports for types, places for the import, and `__all__`."""
    typed = set()
    for node in ast.walk(ast.parse(Path(str(package.__file__)).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.__name__):
            home = import_module(node.module or "")
            for name in (alias.name for alias in node.names):
                assert getattr(package, name) is getattr(home, name), name
                typed.add(name)
    assert typed <= set(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None, name


@pytest.mark.slow
def test_a_folder_full_of_our_rooms_names_does_not_matter(tmp_path: Path) -> None:
    for name in ("accounting", "ledger", "cli", "workers", "migrations"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('the wrong module')\n")
    done = subprocess.run(
        [sys.executable, "-m", "shuffle_ledger", "budget", "phones", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert '"error"' in done.stdout, done.stderr
    assert "wrong module" not in done.stderr


def test_importing_the_name_imports_neither_scipy_nor_the_ledger() -> None:
    program = "import sys, shuffle_ledger; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"numpy", "scipy", "sqlalchemy", "httpx", "click"} & set(done.stdout.split())


def _definitions(*rooms: str) -> list[tuple[str, str, ast.AST]]:
    """Return each module, class and function of some rooms: its file, its name, and its node."""
    found: list[tuple[str, str, ast.AST]] = []
    for room in rooms:
        for file in sorted((ROOT / room).rglob("*.py")):
            tree, place = ast.parse(file.read_text("utf-8")), str(file.relative_to(ROOT))
            named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            nodes = [node for node in ast.walk(tree) if isinstance(node, named)]
            found += [(place, file.stem, tree), *((place, node.name, node) for node in nodes)]
    return found


def test_a_class_name_of_the_ledger_means_one_thing() -> None:
    """Neither another room of the ledger nor the accountant has a class of that name."""
    places: dict[str, list[str]] = {}
    for place, name, node in _definitions("ledger", "accounting"):
        if isinstance(node, ast.ClassDef):
            places.setdefault(name.lstrip("_"), []).append(place)
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if found[0].startswith("ledger/")} == {}


def _identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield each name that code gives or uses: of definitions, variables, attributes, arguments, imports."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.rpartition(".")[2]


@pytest.mark.slow
def test_names_say_what_they_name() -> None:
    """These words say nothing to a reader who does not know the code. `late` is a term of
    docs/adaptivity.md, section 3: the variance that restatements added."""
    vague = {"told", "truth", "course", "elsewhere", "whose", "books", "desk", "papers", "glimpses"}
    found = {
        (place, name)
        for place, _, node in _definitions("accounting", "ledger", "workers", "cli")
        if isinstance(node, ast.Module)
        for name in (Path(place).stem, *_identifiers(node))
        if vague & set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    }
    assert {(place, name) for place, name in found if not place.startswith(VAGUE.get(name, ()))} == set()
