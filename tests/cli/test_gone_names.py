"""Names that are gone: each is refused with the sentence that says what replaces it."""

from __future__ import annotations

import pytest

from shuffle_ledger.ledger.gone_names import GONE
from tests.cli.conftest import Run

# An order for each command that is gone.
COMMANDS = {
    "reserve": ("reserve", "--help"),
    "reserve release": ("reserve", "release", "phones", "--epsilon", "2", "--reason", "why"),
    "reserve approve": ("reserve", "approve", "phones", "--epsilon", "2"),
}
# An order for each option, and for each value of an option, that is gone.
OPTIONS = {
    "round import --sheet": ("round", "import", "rounds.csv", "--sheet", "first"),
    "audit statement --format csv": ("audit", "statement", "phones", "--format", "csv"),
}
SETTINGS = [name for name in GONE if name.startswith("SHUFFLE_LEDGER_")]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_gone_is_refused_with_what_replaces_it(
    phones: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "anything")
    answer = phones("cohort", "list", "--json")
    assert answer.code == 2
    assert answer.json["error"]["message"] == f"setting {name} is gone: {GONE[name]}"
    assert "anything" not in answer.stdout


@pytest.mark.parametrize("name", COMMANDS | OPTIONS)
def test_a_command_or_option_that_is_gone_is_refused_with_what_replaces_it(run: Run, name: str) -> None:
    answer = run(*(COMMANDS | OPTIONS)[name])
    assert answer.code == 2
    assert answer.stderr.rstrip().endswith(GONE[name])


def test_every_name_that_is_gone_is_tried() -> None:
    assert {*SETTINGS, *COMMANDS, *OPTIONS} == set(GONE)
