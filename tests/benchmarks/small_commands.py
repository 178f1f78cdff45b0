"""The processor time of small commands of the program, on SQLite and behind a server.

*answer* is the least of five runs, user and system time together, with compiled modules. The wall clock also
has the start of those processes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.decisions import admit
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from tests.benchmarks.case import Case, Work
from tests.benchmarks.http_speed import serving

RUNS = 5
PROGRAM = Path(sys.executable).with_name("shuffle-ledger")
ROUND = ("--randomizer", "krr(k=10, epsilon0=1)", "--reports", "50000")
BUDGET = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "--help": ("--help",),
    "cohort list": ("cohort", "list"),
    "budget": ("budget", "phones"),
    "round quote, of a known kind": ("round", "quote", "phones", "--id", "next", *ROUND),
}


def command(*arguments: str, behind_server: bool) -> Work:
    """One command on a ledger with one cohort and one round; the server of this process has its own time."""
    url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'bench.db'}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    asking = kept | {"SHUFFLE_LEDGER_DATABASE_URL": url}

    def run(*order: str) -> bytes:
        return subprocess.run([PROGRAM, *order], env=asking, check=True, capture_output=True).stdout

    run("init")
    run("cohort", "open", "phones", *BUDGET)
    run("round", "register", "phones", "--id", "first", *ROUND)
    if behind_server:
        token = json.loads(run("token", "create", "bench", "--role", "admin", "--json"))["token"]
        store = Store.connect(url)
        dispatch = Dispatch(decide=lambda accountant, round_id: admit(store, accountant, round_id))
        client = serving(create_app(Settings(database_url=url), store, dispatch), {})
        asking = kept | {"SHUFFLE_LEDGER_SERVER": str(client.base_url), "SHUFFLE_LEDGER_TOKEN": token}

    def processor_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    processor_seconds()  # compiles what is not compiled yet
    return lambda: f"{min(processor_seconds() for _ in range(RUNS)):.2f} s of a processor"


def cases() -> Iterable[Case]:
    """Every command on a database, then behind a server."""
    for where, behind_server in {"on SQLite": False, "behind a server": True}.items():
        for name, order in COMMANDS.items():
            prepare = partial(command, *order, behind_server=behind_server)
            yield Case(name=f"{name}, {where}", prepare=prepare, repeats=1)
