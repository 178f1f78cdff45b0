"""The tables of the theory: theorems, the functions that compute them, and tests that tried to break them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "theory").glob("*.md"))
_ROW = re.compile(r"^\| \[([A-Z]\d+)\] \| (.*) \| (.*) \|$", re.MULTILINE)
_HEADING = re.compile(r"^### ([A-Z]\d+)\. ", re.MULTILINE)
_CITED = re.compile(r"(docs/theory/[a-z-]+\.md),?\s+((?:[A-Z]\d+(?:,\s+|\s+and\s+|\s+to\s+)?)+)")


def _module(name: str) -> ModuleType:
    """The module of a dotted name, below the accountant or the package."""
    room = (
        "shuffle_ledger.accounting"
        if (ROOT / "accounting" / name.partition(".")[0]).exists()
        else "shuffle_ledger"
    )
    return importlib.import_module(f"{room}.{name.rpartition('.')[0]}")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_statement_has_functions_that_cite_it_and_tests(page: Path) -> None:
    text = page.read_text("utf-8")
    rows = _ROW.findall(text)
    assert [name for name, _, _ in rows] == _HEADING.findall(text)
    for name, functions, tests in rows:
        for function in re.findall(r"`([^`]+)`", functions):
            module = _module(function)
            assert hasattr(module, function.rpartition(".")[2]), function
            assert name in _cited(inspect.getsource(module), page), (function, name)
        for place, test in re.findall(r"`([^`]+)::([^`]+)`", tests):
            found = importlib.import_module(f"tests.{place.removesuffix('.py').replace('/', '.')}")
            assert hasattr(found, test), (place, test)
        assert "`" in functions, name
        assert "::" in tests, name


def _cited(source: str, page: Path) -> set[str]:
    """The statements of a page that a source cites."""
    return {
        one
        for path, names in _CITED.findall(source)
        if path == str(page.relative_to(ROOT))
        for one in _listed(names)
    }


def _listed(names: str) -> list[str]:
    """The names of `C1, C3 to C5`."""
    found = re.sub(
        r"([A-Z])(\d+)\s+to\s+[A-Z](\d+)",
        lambda run: " ".join(f"{run[1]}{number}" for number in range(int(run[2]), int(run[3]) + 1)),
        names,
    )
    return re.findall(r"[A-Z]\d+", found)


def test_every_citation_is_of_a_statement() -> None:
    for room in ("accounting", "ledger", "cli", "workers", "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text("utf-8")
            for page in set(re.findall(r"docs/theory/[a-z-]+\.md", source)):
                stated = set(_HEADING.findall((ROOT / page).read_text("utf-8")))
                assert _cited(source, ROOT / page) <= stated, (path, page)


@pytest.mark.parametrize("page", [*PAGES, DOCS / "adaptivity.md"], ids=lambda path: path.stem)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_[a-z_0-9]+\.py\b", page.read_text("utf-8"))) <= there
