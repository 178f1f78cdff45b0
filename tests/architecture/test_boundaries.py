"""The rooms, their floors and their one direction: the contracts hold, and they notice a broken one."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.tree import layers, tree

ROOT = Path(__file__).parents[2]
ROOMS = ("accounting", "cli", "ledger", "migrations", "workers")
LINTER = Path(sys.executable).with_name("lint-imports")
# What one module imports when it is asked to, to speak to another library; and what imports NumPy, SciPy and
# public names when they are first used.
OTHERS = {
    ("conversions.py", "dp_accounting.pld"),
    ("questions.py", "matplotlib"),
    ("later.py", "importlib"),
    ("__init__.py", "shuffle_ledger.names"),
}
# What `accounting` may use: numbers and ways to write them down. No clock, file, environment, log or chance.
PURE = {
    "__future__",
    "abc",
    "ast",
    "bisect",
    "cmath",
    "collections",
    "contextlib",
    "contextvars",
    "copy",
    "dataclasses",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "html",
    "itertools",
    "json",
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
# One import for each contract, or each half of it, that a change could break.
PLANTED = {
    "accounting/errors.py": ("import os", "import sqlalchemy", "import shuffle_ledger.ledger.errors"),
    "accounting/numeric/arrays.py": ("import shuffle_ledger.accounting.pld.composition",),
    "accounting/amplification/decomposition.py": (
        "import shuffle_ledger.accounting.amplification.blanket.divergence",
    ),
    "ledger/errors.py": ("import shuffle_ledger.workers.dispatch", "import rich"),
    "ledger/machine/filters.py": ("import os", "import numpy", "import shuffle_ledger.ledger.values"),
    "ledger/answers/budgets.py": ("import shuffle_ledger.ledger.storage.rows",),
    "ledger/storage/tables.py": ("import shuffle_ledger.ledger.decisions.admission",),
    "ledger/client/client.py": ("import fastapi", "import prometheus_client"),
    "ledger/telemetry/hooks.py": ("import opentelemetry",),
    "ledger/decisions/admission.py": ("import shuffle_ledger.accounting.pld.composition",),
    "workers/dispatch.py": ("import shuffle_ledger.ledger.storage.store",),
    "workers/queues.py": ("import shuffle_ledger.workers.tasks",),
    "workers/tasks.py": ("import shuffle_ledger.ledger.api.app",),
    "cli/failures.py": ("import shuffle_ledger.cli.main", "import celery"),
    "shuffle_ledger/gate.py": ("import numpy", "import shuffle_ledger.ledger.permits"),
    "migrations/env.py": ("import shuffle_ledger.ledger.storage.store",),
}


def _lint(directory: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(directory)}
    command: list[str | Path] = [LINTER, "--config", directory / "pyproject.toml", "--no-cache"]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_every_contract_notices_an_import_that_breaks_it(tmp_path: Path) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "shuffle_ledger", tmp_path / "shuffle_ledger", symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, lines in PLANTED.items():
        with (tmp_path / file).open("a") as source:
            source.write("\n" + "\n".join(lines) + "\n")
    said = _lint(tmp_path).stdout
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    for contract in contracts:
        assert f"{contract['name']} BROKEN" in said, contract["name"]
    for file, lines in PLANTED.items():
        inside = file.removeprefix("shuffle_ledger/").removesuffix(".py")
        importer = "shuffle_ledger." + inside.replace("/", ".")
        for line in lines:
            assert f"{importer} -> {line.removeprefix('import ')}" in " ".join(said.split()), (file, line)


@pytest.mark.slow
def test_the_map_shows_every_module_and_every_layer() -> None:
    assert "**machine/**" in tree()  # raises for a module without a docstring
    assert "one direction: cli -> workers -> ledger -> accounting" in layers()


@pytest.mark.slow
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
                drawn = {alias.name for alias in node.names}
                if names == ["numpy.random"]:  # a type: the caller gives the generator
                    assert (file.parent.name, drawn) == ("mechanisms", {"Generator"}), file
                assert names != ["numpy"] or not drawn & IMPURE_NUMPY, file
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
            ):
                assert node.attr not in IMPURE_NUMPY, f"{file}:{node.lineno}: np.{node.attr}"
            for name in names:
                assert not (isinstance(node, ast.Import) and name.startswith("numpy.random")), file
                own = name.startswith("shuffle_ledger.accounting")
                assert own or name.split(".")[0] in PURE or (file.name, name) in OTHERS, (
                    f"{file}: imports {name}"
                )


def test_the_machine_is_exact_and_pure() -> None:
    """No floating point, clock, chance or division in what decides: only integers and days."""
    allowed = {"__future__", "collections.abc", "dataclasses", "datetime", "enum", "fractions", "typing"}
    files = sorted((ROOT / "ledger" / "machine").glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            where = f"{file}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= allowed, where
            elif isinstance(node, ast.ImportFrom):
                own = (node.module or "").startswith("shuffle_ledger.ledger.machine")
                assert own or node.module in allowed, where
            elif isinstance(node, ast.Constant):
                assert not isinstance(node.value, float | complex), where
            elif isinstance(node, ast.BinOp | ast.AugAssign):
                assert not isinstance(node.op, ast.Div), where
            elif isinstance(node, ast.Attribute):
                assert node.attr not in {"now", "today", "utcnow"}, where
            elif isinstance(node, ast.Name):
                assert node.id not in {"float", "open", "print"}, where
