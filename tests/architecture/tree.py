"""Prints the tree of packages and modules, and the layers between them: `make map`."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = ("accounting", "ledger", "workers", "cli", "migrations")


def first_sentence(file: Path) -> str:
    """Return the first paragraph of a module's docstring, on one line, without the full stop."""
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8")))
    if not docstring:
        raise ValueError(f"{file} has no docstring")
    return " ".join(docstring.split("\n\n")[0].split()).removesuffix(".")


def tree() -> str:
    """Return every room, package and module with the first sentence of its docstring."""
    lines: list[str] = []

    def walk(folder: Path, depth: int) -> None:
        lines.append(f"{'  ' * depth}- **{folder.name}/** {first_sentence(folder / '__init__.py')}")
        modules = [] if folder.name == "versions" else sorted(folder.glob("[!_]*.py"))
        lines.extend(f"{'  ' * (depth + 1)}- `{file.name}` {first_sentence(file)}" for file in modules)
        for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
            walk(inner, depth + 1)

    for room in ROOMS:
        walk(ROOT / room, 0)
    return "\n".join(lines)


def layers() -> str:
    """Return the layers that import-linter enforces, the upper ones first."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines: list[str] = []
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            names = [layer.removeprefix("shuffle_ledger.") for layer in contract["layers"]]
            lines.append(f"{contract['name']}:")
            lines += [f"    {name}" for name in names]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{tree()}\n\n{layers()}\n")
