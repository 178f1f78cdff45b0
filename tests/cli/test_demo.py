"""The demo: tables, pictures, a summary; fresh each time, and nothing of anybody else's is touched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shuffle_ledger.cli.commands import demo as demo_command
from shuffle_ledger.cli.commands import demo_run
from shuffle_ledger.cli.commands.demo_run import DemoResult
from tests.cli.conftest import Run
from tests.docs.test_shell_blocks import normal
from tests.docs.test_shell_blocks import run as run_shown

ROOT = Path(__file__).parents[2]
ADMITTED_LEAST = 880  # of the year's 1,272 rounds
PNG = b"\x89PNG\r\n\x1a\n"
ROUNDS = """round_id,cohort,collected_on,use_case,randomizer,reports
a,phones,2025-01-06,emoji,"krr(k=2, epsilon0=0.5)",1000
b,phones,2025-01-13,emoji,"krr(k=2, epsilon0=8)",10
c,watches,2025-01-13,health,"krr(k=2, epsilon0=0.5)",1000
"""
COHORTS = "cohort,population,epsilon,delta\nphones,100000,1,1e-6\nwatches,50000,1,1e-6\n"


@pytest.fixture
def small_year(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the demo run on three rounds instead of a year."""
    rounds, cohorts = empty_directory / "rounds.csv", empty_directory / "cohorts.csv"
    rounds.write_text(ROUNDS)
    cohorts.write_text(COHORTS)

    def run_small(output: Path) -> DemoResult:
        return demo_run.run_demo(output, rounds=rounds, cohorts=cohorts)

    monkeypatch.setattr(demo_command, "run_demo", run_small)
    return empty_directory


@pytest.mark.slow
def test_the_demo_shows_every_cohort_and_draws_it(small_year: Path, run: Run) -> None:
    (small_year / "demo-output").mkdir()
    kept = small_year / "demo-output" / "mine.txt"
    kept.write_text("mine")
    first, second = run("demo", "--json"), run("demo", "--json")
    assert first.code == second.code == 0, first.stderr
    answer = second.json
    assert [cohort["budget"]["cohort"] for cohort in answer["cohorts"]] == ["phones", "watches"]
    assert answer["imported"]["rounds_known"] == 0, "the ledger was not fresh"
    assert (answer["imported"]["rounds_admitted"], answer["imported"]["rounds_refused"]) == (2, 1)
    assert answer["cohorts"][0]["use_cases"] == {"emoji": {"admitted": 1, "refused": 1}}
    for cohort in answer["cohorts"]:
        assert Path(cohort["picture"]).read_bytes().startswith(PNG)
    assert json.loads(Path(answer["summary"]).read_text()) == answer
    assert kept.read_text() == "mine"
    assert not (small_year / "shuffle-ledger.db").exists()


@pytest.mark.slow
def test_the_demo_tells_people(small_year: Path, run: Run) -> None:
    answer = run("demo", "--output", "elsewhere")
    assert answer.code == 0, answer.stderr
    for word in (
        "phones",
        "watches",
        "spent",
        "remaining",
        "admitted",
        "refused",
        "█",
        "elsewhere/phones.png",
    ):
        assert word in answer.stdout
    assert answer.stderr == ""


@pytest.mark.system
def test_the_year_of_the_demo_is_as_promised_and_as_printed(empty_directory: Path) -> None:
    """A change of the filters must not cost rounds unseen."""
    printed = run_shown(["demo"])
    summary = json.loads((empty_directory / "demo-output" / "summary.json").read_text())["imported"]
    admitted, rounds = summary["rounds_admitted"], summary["rounds"]
    assert (rounds, admitted + summary["rounds_refused"]) == (1_272, 1_272)
    assert admitted >= ADMITTED_LEAST
    page = (ROOT / "docs" / "five-minutes.md").read_text("utf-8")
    assert f"{rounds:,} rounds: {admitted} admitted, {rounds - admitted} refused." in page
    (shown,) = re.findall(r"^\$ shuffle-ledger demo\n\.\.\.\n(.*?)\n\n1,272", page, re.DOTALL | re.MULTILINE)
    cohorts = {part.split()[0]: part for part in printed.split("\n\n") if part.strip()}
    for part in shown.split("\n\n"):
        (text, numbers), (said, given) = normal(part), normal(cohorts[part.split()[0]])
        assert said == text
        assert given == pytest.approx(numbers, rel=1e-3)
