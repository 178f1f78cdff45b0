"""The rooms and their one direction: the contracts hold, and they notice when somebody breaks them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("accounting", "cli", "ledger", "migrations", "workers")
LINTER = Path(sys.executable).with_name("lint-imports")
# What `accounting` may use: numbers and ways to write them down. No clock, file, environment, log or chance.
PURE = {
    "__future__",
    "abc",
    "ast",
    "bisect",
    "cmath",
    "collections",
    "copy",
    "dataclasses",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "itertools",
    "math",
    "numbers",
    "numpy",
    "operator",
    "re",
    "scipy",
    "struct",
    "types",
    "typing",
    "zlib",
}
IMPURE_NUMPY = {"random", "load", "save", "fromfile", "memmap", "loadtxt", "savetxt"}


def _lint(directory: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(directory)}
    command: list[str | Path] = [LINTER, "--config", directory / "pyproject.toml", "--no-cache"]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_every_import_contract_holds() -> None:
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("accounting/errors.py", "import ledger.errors"),
        ("accounting/errors.py", "import os"),
        ("accounting/errors.py", "import sqlalchemy"),
        ("ledger/errors.py", "import workers.dispatch"),
        ("ledger/errors.py", "import rich"),
        ("workers/dispatch.py", "import cli.present"),
        ("cli/present.py", "import celery"),
        ("migrations/env.py", "import ledger.store"),
        ("ledger/admission.py", "import ledger.api.app"),
        ("ledger/client.py", "import fastapi"),
        ("workers/tasks.py", "import prometheus_client"),
    ],
)
def test_a_broken_boundary_is_noticed(tmp_path: Path, file: str, line: str) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    assert _lint(tmp_path).returncode == 1


def test_accounting_imports_nothing_impure() -> None:
    for file in sorted((ROOT / "accounting").rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: a relative import"
                names = [node.module or ""]
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
            ):
                assert node.attr not in IMPURE_NUMPY, f"{file}:{node.lineno}: np.{node.attr}"
            for name in names:
                assert name.split(".")[0] in PURE | {"accounting"}, f"{file}: imports {name}"
