"""The imports of the program: very few for help and completion, and a missing extra is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest

from shuffle_ledger.cli.catalogue import COMMANDS, GROUPS, CatalogueGroup
from shuffle_ledger.cli.failures import EXTRAS, ExitCode, failure_of, require
from shuffle_ledger.cli.main import main
from tests.cli.conftest import ROUND, Run

ROOT = Path(__file__).parents[2]
HEAVY = {
    "alembic", "celery", "cryptography", "fastapi", "httpx", "jinja2", "kombu", "matplotlib", "numpy",
    "opentelemetry", "prometheus_client", "psycopg", "pydantic", "redis", "rich",
    "scipy", "sqlalchemy", "typst", "uvicorn",
}  # fmt: skip
# Runs commands, one after the other, and writes their exit codes and all modules to standard error.
RUN = """
import json, os, sys
from shuffle_ledger.cli.main import main
sys.argv[0] = "shuffle-ledger"
stderr, codes = os.dup(2), []
for order in json.loads(sys.argv.pop()):
    try:
        main(order)
    except SystemExit as ended:
        codes.append(ended.code)
os.write(stderr, json.dumps({"codes": codes, "modules": [n for n, m in sys.modules.items() if m]}).encode())
"""
# Takes the named modules away, as if their distributions were not installed.
WITHOUT = """
import importlib.abc, os, sys
class Away(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if {name.partition(".")[0], name} & set(os.environ["AWAY"].split()):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Away())
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What commands left behind that ran in one process."""

    codes: list[int]
    modules: set[str]
    stdout: str
    stderr: str

    @property
    def libraries(self) -> set[str]:
        """The names of packages without what is within them."""
        return {name.partition(".")[0] for name in self.modules}


def program(
    directory: Path,
    *orders: Sequence[str],
    away: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run commands, all in one new process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHUFFLE_LEDGER_")}
    done = subprocess.run(
        [sys.executable, "-c", (WITHOUT if away else "") + RUN, json.dumps(orders)],
        cwd=directory,
        env=inherited | {"AWAY": " ".join(away)} | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, _, left = done.stderr.rpartition('{"codes"')
    found = json.loads('{"codes"' + left)
    return Ended(codes=found["codes"], modules=set(found["modules"]), stdout=done.stdout, stderr=said)


def test_help_and_mistakes_import_no_library_but_click(tmp_path: Path) -> None:
    done = program(tmp_path, ["--help"], ["--version"], ["round", "--help"], [], ["no-such-command"])
    assert done.codes == [0, 0, 0, 2, 2]
    assert not HEAVY & done.libraries
    assert sum(name.startswith("shuffle_ledger") for name in done.modules) <= 11


@pytest.mark.parametrize("given", ["logfire-plugin", None])
def test_no_plugin_of_pydantic_is_looked_for_unless_the_environment_says_so(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    if given is not None:
        monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", given)
    made = "from shuffle_ledger.cli import surroundings; surroundings.prepare()"
    code = f"import os; {made}; print(os.environ['PYDANTIC_DISABLE_PLUGINS'])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == (given or "__all__")


def test_no_search_for_garbage_ends_theprogram() -> None:
    last = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))"  # what is first ends last
    )
    code = f"{last}; from shuffle_ledger.cli.main import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout.splitlines()[-1]) > 1000


@pytest.mark.parametrize(("words", "found"), [("round re", {"register", "retry"})])
def test_completion_of_commands_imports_no_library_but_click(
    tmp_path: Path, words: str, found: set[str]
) -> None:
    asked = {
        "_SHUFFLE_LEDGER_COMPLETE": "bash_complete",
        "COMP_WORDS": f"shuffle-ledger {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = program(tmp_path, [], environment=asked)
    assert found <= {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert not HEAVY & done.libraries


@pytest.mark.slow
def test_a_budget_imports_what_it_needs(phones: Run, directory: Path) -> None:
    assert phones("round", "register", "phones", "--id", "first", *ROUND).code == 0
    done = program(directory, ["budget", "phones", "--json"])
    assert json.loads(done.stdout)["rounds_admitted"] == 1
    assert HEAVY & done.libraries == {"numpy", "pydantic", "rich", "scipy", "sqlalchemy"}
    for name in ("stats", "signal", "optimize", "interpolate", "sparse"):
        assert f"scipy.{name}" not in done.modules
    for name in ("evidence", "verification", "health", "client", "api"):
        assert f"shuffle_ledger.ledger.{name}" not in done.modules


@pytest.mark.parametrize("command", [["budget", "phones"]], ids="-".join)
def test_a_command_that_asks_a_server_imports_no_engine(tmp_path: Path, command: list[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:  # answers 404
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        asked = {"SHUFFLE_LEDGER_SERVER": address, "SHUFFLE_LEDGER_TOKEN": "sl_1_secret"}
        done = program(tmp_path, command, environment=asked)
        server.shutdown()
    assert "httpx" in done.libraries
    assert not {"alembic", "numpy", "scipy", "sqlalchemy"} & done.libraries
    assert not {"shuffle_ledger.ledger.storage", "shuffle_ledger.ledger.decisions"} & done.modules


def test_a_list_of_cohorts_waits_for_no_library_that_computes_signs_or_retries(
    phones: Run, directory: Path
) -> None:
    assert phones("cohort", "show", "phones").code == 0
    done = program(directory, ["cohort", "list"])
    assert done.codes == [0]
    assert not {"cryptography", "multiprocessing.pool", "numpy", "scipy", "tenacity"} & done.modules
    assert "sqlalchemy.dialects.sqlite" in done.modules
    assert "sqlalchemy.dialects.postgresql" not in done.modules


def test_a_client_imports_no_database_and_nothing_that_decides() -> None:
    code = "import sys, shuffle_ledger.ledger.client; print(*sys.modules)"
    run = [sys.executable, "-c", code]
    modules = set(subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
    assert not {"numpy", "scipy", "sqlalchemy"} & modules
    for name in ("decisions", "policies", "reports", "storage"):
        assert f"shuffle_ledger.ledger.{name}" not in modules


def test_a_process_that_computes_losses_imports_nothing_of_the_ledger() -> None:
    code = "import sys, shuffle_ledger.cli.backends.loss_process; print(*sys.modules)"
    run = [sys.executable, "-c", code]
    modules = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
    assert "shuffle_ledger.accounting" in modules
    assert not [name for name in modules if name == "sqlalchemy" or name.startswith("shuffle_ledger.ledger")]


@pytest.mark.slow
def test_the_help_of_a_command_needs_no_extra(tmp_path: Path) -> None:
    commands = [path.split() for path in COMMANDS]
    done = program(tmp_path, *[[*path, "--help"] for path in commands], away=EXTRAS)
    assert done.codes == [0] * len(commands), done.stderr
    assert "sqlalchemy" not in program(tmp_path, ["amplify", "--help"]).libraries


def _paths(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        yield above + name, command
        if isinstance(command, CatalogueGroup):
            yield from _paths(command, f"{above}{name} ")


@pytest.mark.slow
def test_the_catalogue_holds_every_command() -> None:
    found = {path: command for path, command in _paths(main) if path not in GROUPS}
    assert list(found) == list(COMMANDS)
    listed = set(COMMANDS.values())
    for file in (ROOT / "cli/commands").glob("*.py"):
        declared = re.findall(r"^@click\.command\(.*?^def (\w+)\(", file.read_text("utf-8"), re.M | re.S)
        assert {f"{file.stem}:{name}" for name in declared} <= listed, file


OPEN = ("cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-6")
# By extra: its libraries, and a command that needs them.
MISSING: dict[str, tuple[str, list[str]]] = {
    "client": ("httpx", [*OPEN, "--server", "http://127.0.0.1:9"]),
    "html": ("jinja2", ["audit", "statement", "phones", "-o", "phones.html"]),
    "pdf": ("typst", ["audit", "statement", "phones", "--format", "pdf", "-o", "phones.pdf"]),
    "plot": ("matplotlib", ["amplify", *ROUND, "--delta", "1e-6", "--plot", "a.png"]),
    "postgresql": ("psycopg", [*OPEN, "--database-url", "postgresql://u@127.0.0.1:9/d"]),
    "server": ("fastapi", ["serve"]),
    "worker": ("celery", ["worker", "--broker-url", "redis://127.0.0.1:9"]),
}


@pytest.mark.slow
def test_a_missing_extra_is_named_in_one_sentence(directory: Path) -> None:
    orders = [[*order, "--json"] for _, order in MISSING.values()]
    done = program(directory, *orders, away=EXTRAS, environment={"SHUFFLE_LEDGER_TOKEN": "sl_a_b"})
    assert done.codes == [1] * len(MISSING), done.stderr
    sentences = [
        f"this needs {module}, which is not installed: pip install 'shuffle-ledger[{extra}]'"
        for extra, (module, _) in MISSING.items()
    ]
    errors = [json.loads(line)["error"] for line in done.stdout.splitlines()]
    assert errors == [{"kind": "missing_extra", "message": sentence} for sentence in sentences]
    assert done.stderr == "".join(f"shuffle-ledger: {sentence}\n" for sentence in sentences)


@pytest.mark.parametrize("module", sorted(EXTRAS))
def test_every_library_of_an_extra_is_imported_under_that_name(module: str) -> None:
    missing = failure_of(ModuleNotFoundError("it is missing", name=f"{module}.within"))
    assert (missing.code, missing.kind) == (ExitCode.FAILED, "missing_extra")
    assert f"'shuffle-ledger[{EXTRAS[module]}]'" in missing.message
    require(module)


def test_every_extra_is_declared_and_all_is_all_of_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = dict(project["optional-dependencies"])
    (everything,) = extras.pop("all")
    assert everything == f"shuffle-ledger[{','.join(sorted(extras))}]"
    assert set(EXTRAS.values()) == set(extras) == {*MISSING, "oidc", "otel"}


@pytest.mark.slow
def test_a_ledger_on_sqlite_needs_no_extra(tmp_path: Path) -> None:
    orders: list[Sequence[str]] = [
        ["init"],
        OPEN,
        ["round", "register", "phones", "--id", "first", *ROUND],
        ["round", "show", "first"],
        ["audit", "verify"],
        ["audit", "statement", "phones", "--format", "json"],
        ["health"],
    ]
    done = program(tmp_path, *orders, away=EXTRAS)
    assert done.codes == [0] * len(orders), done.stderr
