"""Small commands that ask a server: they load Click, Rich, an HTTP client and the types of one question."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.conftest import Server
from tests.cli.test_light import program

QUOTE = (
    "round",
    "quote",
    "phones",
    "--id",
    "next",
    "--randomizer",
    "krr(k=2, epsilon0=0.5)",
    "--reports",
    "1000",
)
# By command: the modules of the ledger that it may do without.
COMMANDS = {
    ("cohort", "list"): ("accounting.randomizers", "ledger.questions.rounds", "ledger.answers.forecasts"),
    ("budget", "phones"): ("accounting.accountant", "ledger.questions.rounds", "ledger.answers.forecasts"),
    QUOTE: ("accounting.accountant", "ledger.questions.audits", "ledger.answers.forecasts"),
}
LIBRARIES = {
    "alembic", "asyncio", "cryptography", "fastapi", "jwt", "numpy", "scipy", "sqlalchemy", "tenacity",
    "trio",
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_a_small_command_that_asks_a_server_loads_its_question_only(
    server: Server, tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert server.register("first").status_code == 201
    asked = {"SHUFFLE_LEDGER_SERVER": server.url, "SHUFFLE_LEDGER_TOKEN": server.tokens["admin"]}
    done = program(tmp_path, command, environment=asked)
    assert done.codes == [0], done.stderr
    assert "phones" in done.stdout
    assert not LIBRARIES & done.modules
    without = ("ledger.decisions", "ledger.policies", "ledger.reports", "ledger.storage", *COMMANDS[command])
    assert not {f"shuffle_ledger.{name}" for name in without} & done.modules
