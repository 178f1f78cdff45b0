"""The tables of the theory: theorems, the functions that compute them, and tests that tried to break them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs" / "theory").glob("*.md")), ROOT / "docs" / "adaptivity.md"]
_NAME = r"(?:[A-Z]|Theorem |Lemma )\d+"
_ROW = re.compile(rf"^\| \[?({_NAME})\]? \| (.*) \| (.*) \|$", re.MULTILINE)
_STATED = re.compile(rf"^(?:### ({_NAME})\. |\*\*({_NAME})\*\*)", re.MULTILINE)
_LIST = rf"{_NAME}(?:(?:,| and| to)\s+{_NAME})*"
_CITED = re.compile(rf"(docs/(?:theory/[a-z-]+|adaptivity)\.md),\s+({_LIST})")


def _stated(page: Path) -> list[str]:
    return [one or other for one, other in _STATED.findall(page.read_text("utf-8"))]


def _module(name: str) -> ModuleType:
    """The module of a dotted name, below the accountant or the package."""
    is_accounting = (ROOT / "accounting" / name.partition(".")[0]).exists()
    room = "shuffle_ledger.accounting" if is_accounting else "shuffle_ledger"
    return importlib.import_module(f"{room}.{name.rpartition('.')[0]}")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_statement_has_functions_that_cite_it_and_tests(page: Path) -> None:
    rows = _ROW.findall(page.read_text("utf-8"))
    assert [name for name, _, _ in rows] == _stated(page)
    for name, functions, tests in rows:
        assert "`" in functions, name
        assert "::" in tests, name
        for function in re.findall(r"`([^`]+)`", functions):
            module = _module(function)
            assert hasattr(module, function.rpartition(".")[2]), function
            assert name in _cited(inspect.getsource(module), page), (function, name)
        for place, test in re.findall(r"`([^`]+)\.py::([^`]+)`", tests):
            assert hasattr(importlib.import_module(f"tests.{place.replace('/', '.')}"), test), (place, test)


def _cited(source: str, page: Path) -> set[str]:
    """The statements of a page that a source cites."""
    lists = [names for path, names in _CITED.findall(source) if path == str(page.relative_to(ROOT))]
    return {name for names in lists for name in _listed(names)}


def _listed(names: str) -> list[str]:
    """The names in a list such as `C1, C3 to C5`."""

    def run(found: re.Match[str]) -> str:
        return " ".join(f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1))

    return re.findall(_NAME, re.sub(r"([A-Z])(\d+)\s+to\s+[A-Z](\d+)", run, names))


@pytest.mark.slow
def test_every_citation_is_of_a_statement() -> None:
    for room in ("accounting", "ledger", "cli", "workers", "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text("utf-8")
            for page in PAGES:
                assert _cited(source, page) <= set(_stated(page)), (path, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_[a-z_0-9]+\.py\b", page.read_text("utf-8"))) <= there
