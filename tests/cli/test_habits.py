"""What people expect of any program: templates, names that were meant, a settings file, colours, watching."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shuffle_ledger.cli.failures import EXTRAS
from shuffle_ledger.cli.rendering.present import coloured, watched
from shuffle_ledger.ledger.settings import SETTINGS_FILE
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
WINDOW = ("--per", "year", "--epsilon", "1", "--delta", "1e-9")


def test_a_cohort_is_opened_like_another_one_but_for_its_options(directory: Path, run: Run) -> None:
    model = ("--population", "200000", *WINDOW, "--label", "device=phone", "--local-budget", "9")
    assert run("cohort", "open", "model", *model).code == 0
    like = run("cohort", "open", "twin", "--like", "model", "--json").json
    found = run("cohort", "show", "model", "--json").json
    differing = {"name", "opened_at", "openings", "slots", "closure"}
    assert {name: like[name] for name in found.keys() - differing} == {
        name: value for name, value in found.items() if name not in differing
    }
    other = run(
        "cohort", "open", "other", "--like", "model", "--population", "300000", "--epsilon", "2", "--delta",
        "1e-8", "--json",
    ).json  # fmt: skip
    assert (other["population"], other["epsilon_budget"], other["windows"]) == (300_000, 2.0, [])
    assert other["labels"] == {"device": "phone"}


@pytest.mark.parametrize(("name", "meant"), [("phnes", "'phones'"), ("tablets", None)])
def test_a_cohort_that_there_is_not_gets_the_name_that_was_meant(
    phones: Run, name: str, meant: str | None
) -> None:
    for command in (("budget", name), ("cohort", "show", name), ("round", "list", name)):
        answer = phones(*command)
        hint = f"; did you mean {meant}?" if meant else ""
        assert (answer.code, answer.stderr) == (4, f"shuffle-ledger: no cohort {name!r}{hint}\n")


def test_options_win_over_the_environment_which_wins_over_the_settings_file(
    phones: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def actor(*options: str) -> str:
        made = phones("token", "create", "x", "--role", "auditor", "--json", *options)
        return str(made.json["created_by"])

    (directory / SETTINGS_FILE).write_text('actor = "file"\nqueue = "q"\n', "utf-8")
    assert actor() == "file"
    monkeypatch.setenv("SHUFFLE_LEDGER_ACTOR", "environment")
    assert actor() == "environment"
    assert actor("--actor", "option") == "option"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            'databse_url = "x"',
            "databse_url: there is no such setting; did you mean database_url?",
        ),
        ("database_url = 3", "database_url: got 3, expected a setting that fits (a valid string)"),
        ('database_url = ""', "database_url is empty: give it a value, or unset it"),
        ("[other]\na = 1", "other: there is no such setting"),
        ("database_url", "Expected '='"),
        ('token = "\xff"', "'utf-8' codec"),
    ],
)
def test_a_wrong_settings_file_is_refused_by_name(
    phones: Run, directory: Path, content: str, said: str
) -> None:
    (directory / SETTINGS_FILE).write_bytes(content.encode("latin-1"))
    answer = phones("cohort", "list")
    assert answer.code == 2
    assert answer.stderr.startswith(f"shuffle-ledger: {SETTINGS_FILE}")
    assert said in answer.stderr


def test_watching_shows_again_until_it_is_interrupted(phones: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    answers = iter("abc")
    assert watched(lambda: next(answers), 2.0) == "c"
    assert waited == [2.0, 2.0, 2.0]
    assert watched(lambda: "once", None) == "once"
    waited.clear()
    budgets = phones("budget", "phones", "--watch", "5")
    assert (budgets.code, budgets.stdout.count("phones")) == (0, 3)
    for command in (("budget", "phones"), ("health",)):
        assert phones(*command, "--watch", "5", "--json").code == 2


@pytest.mark.parametrize(("system", "styled"), [("standard", True), (None, False)])
def test_outcomes_are_green_and_red_where_colours_are_wanted(system: str | None, *, styled: bool) -> None:
    console = Console(force_terminal=True, color_system=system, highlight=False)  # type: ignore[arg-type]  # a name or None
    with console.capture() as printed:
        console.print(coloured("Round a: admitted"), coloured("Round b: refused"))
    assert ("\x1b[32madmitted" in printed.get(), "\x1b[31mrefused" in printed.get()) == (styled, styled)


def test_every_library_beside_those_that_are_always_installed_is_of_an_extra() -> None:
    always = {
        "alembic", "click", "cryptography", "dp_accounting", "jwt", "markupsafe", "numpy", "pydantic",
        "pydantic_core", "rich", "scipy", "shuffle_ledger", "sqlalchemy", "tenacity",
    }  # fmt: skip
    rooms = ("accounting", "cli", "ledger", "workers", "migrations", "shuffle_ledger")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    text = "\n".join(file.read_text("utf-8") for file in files)
    named = set(re.findall(r"^ *(?:from (\w+)[\w.]* import |import (\w+)$)", text, re.M))
    found = {name for pair in named for name in pair if name}
    assert found - set(sys.stdlib_module_names) - always - EXTRAS.keys() == set()
