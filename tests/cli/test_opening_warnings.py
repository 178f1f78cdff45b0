"""Unusual cohorts are opened only by somebody who says that they are meant; usual ones as ever."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
import pytest

from shuffle_ledger.cli.commands import cohort as commands
from shuffle_ledger.ledger.values import Cohort, Window, opening_warnings
from tests.cli.conftest import Run

USUAL = {"--population": "100000", "--epsilon": "1", "--delta": "1e-6"}
SMALL = (
    "the population of 99 is below 100: a report has few others to hide among, and no later round may have"
    " more reports"
)
LARGE = "the epsilon, 10.5, is above 10: outputs may tell a user's data almost surely"
LOOSE = (
    "the delta, 1e-05, is not below 1 divided by the population of 100,000: to publish the data of one user"
    " in the clear would be within it"
)
MEANT = "If that is meant, say --yes"


def _open(name: str = "x", *more: str, **changes: str) -> tuple[str, ...]:
    options = USUAL | {f"--{option}": value for option, value in changes.items()}
    return ("cohort", "open", name, *itertools.chain.from_iterable(options.items()), *more)


@pytest.mark.parametrize(
    ("changes", "said", "fields"),
    [
        ({"population": "99"}, SMALL, ["population"]),
        ({"epsilon": "10.5", "delta": "1e-5"}, f"{LARGE}; {LOOSE}", ["epsilon", "delta"]),
    ],
)
def test_an_unusual_cohort_needs_yes(
    directory: Path, run: Run, changes: dict[str, str], said: str, fields: list[str]
) -> None:
    assert directory.exists()
    refused = run(*_open(**changes))
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == f"shuffle-ledger: cohort 'x' was not opened: {said}. {MEANT}\n"
    error = run(*_open(**changes), "--json").json["error"]
    assert (error["kind"], [each["field"] for each in error["warnings"]]) == ("unaccepted_warnings", fields)
    assert run("cohort", "list", "--json").json == []
    assert run(*_open(**changes), "--yes").code == 0
    assert run(*_open(**changes)).code == 0  # it exists, and asks nothing
    other = _open(**{**changes, "epsilon": "12"})  # it would be opened again
    assert MEANT in run(*other).stderr
    assert run(*other, "--yes", "--json").json["epsilon_budget"] == 12


def test_windows_are_judged_too() -> None:
    def cohort(**window: Any) -> Cohort:
        budget = {"epsilon": 1.0, "delta": 1e-8} | window
        windows = (Window(unit="week", epsilon=1.0, delta=1e-8), Window(unit="day", sliding=7, **budget))
        return Cohort(
            name="x",
            population=10**5,
            epsilon_budget=1.0,
            delta_budget=1e-6,
            policy="adaptive",
            windows=windows,
        )

    assert opening_warnings(cohort()) == ()
    (large,) = opening_warnings(cohort(epsilon=11.0))
    assert (large.field, "of each run of 7 consecutive UTC days, 11," in large.message) == (
        "windows",
        True,
    )
    (loose,) = opening_warnings(cohort(delta=1e-5))
    assert loose.field == "windows"
    assert (
        "the delta of each run of 7 consecutive UTC days, 1e-05, is not below 1 divided by" in loose.message
    )


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_import_opens_unusual_cohorts_only_with_yes(
    directory: Path, run: Run, dry: tuple[str, ...]
) -> None:
    (directory / "rounds.csv").write_text(
        'round_id,cohort,randomizer,reports\na,x,"krr(k=2, epsilon0=1)",50\n'
    )
    lines = "cohort,population,epsilon,delta\nw,100000,1,1e-6\nx,99,1,1e-6\nz,100000,10.5,1e-6\n"
    (directory / "cohorts.csv").write_text(lines)
    order = ("round", "import", "rounds.csv", "--cohorts", "cohorts.csv", *dry)
    refused = run(*order)
    assert refused.code == 2
    assert f"cohorts.csv, line 3: cohort 'x' was not opened: {SMALL}. {MEANT}" in refused.stderr
    assert f"cohorts.csv, line 4: cohort 'z' was not opened: {LARGE}. {MEANT}" in refused.stderr
    assert run("cohort", "list", "--json").json == []
    assert run(*order, "--yes").code == 0
    if not dry:
        assert run(*order).code == 0  # again: nothing is opened, so nothing is asked


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 2)])
def test_a_terminal_is_asked(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch, code: int, *, answer: bool
) -> None:
    asked: list[str] = []

    def confirm(text: str, *, err: bool) -> bool:
        asked.append(text)
        assert err
        return answer

    monkeypatch.setattr(commands, "at_terminal", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    found = run(*_open(population="99"))
    assert (found.code, asked) == (code, ["Is that meant? Open it"])
    assert found.stderr.startswith(f"shuffle-ledger: cohort 'x' was not opened: {SMALL}")
    assert len(run("cohort", "list", "--json").json) == (1 if answer else 0)
    assert run(*_open("y", population="99"), "--json").code == 2  # a script is not asked
    assert len(asked) == 1
    assert directory.exists()
