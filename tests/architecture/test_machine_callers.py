"""The machine decides only if the product asks it: a rule that tests alone call has a second home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from shuffle_ledger.ledger import machine

ROOT = Path(__file__).parents[2]
MACHINE = "shuffle_ledger.ledger.machine"


def _asked_in(file: Path) -> Iterator[str]:
    """Yield the machine's names that a module of the product imports, or reads of the imported machine."""
    tree = ast.parse(file.read_text("utf-8"))
    is_imported = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == MACHINE:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "shuffle_ledger.ledger":
            is_imported = is_imported or any(alias.name == "machine" for alias in node.names)
    for node in ast.walk(tree) if is_imported else ():
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "machine"
        ):
            yield node.attr


def test_the_product_asks_for_every_public_name_of_the_machine() -> None:
    inside = ROOT / "ledger" / "machine"
    files = [file for room in ("ledger", "workers", "cli") for file in (ROOT / room).rglob("*.py")]
    asked = {name for file in files if inside not in file.parents for name in _asked_in(file)}
    assert len(machine.__all__) == len(set(machine.__all__))
    assert sorted(set(machine.__all__) - asked) == []
