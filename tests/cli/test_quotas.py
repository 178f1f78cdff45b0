"""Quotas, ceilings and local budgets on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

KRR = ("--randomizer", "krr(k=10, epsilon0=2)", "--reports", "50000")
BUDGET = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")


@pytest.fixture
def tablets(phones: Run) -> Run:
    """Return `run`, with a cohort that has a ceiling, a local budget and a quota."""
    assert phones("cohort", "open", "tablets", *BUDGET, "--ceiling", "2", "--local-budget", "30").code == 0
    said = ("--team", "ads", "--epsilon", "0.05", "--reason", "agreed")
    assert phones("cohort", "quota", "tablets", *said).code == 0
    return phones


@pytest.mark.slow
def test_a_team_is_charged_shown_and_refused(tablets: Run) -> None:
    asked = ("round", "register", "tablets", *KRR, "--team", "ads")
    first = tablets(*asked, "--id", "one", "--json").json
    assert [member["cohort"] for member in first["audience"]] == ["tablets", "tablets@team=ads"]
    assert tablets("round", "show", "one", "--json").json["team"] == "ads"
    codes = [tablets(*asked, "--id", f"more-{number}").code for number in range(12)]
    assert set(codes) == {0, 3}
    quoted = tablets("round", "quote", "tablets", *KRR, "--team", "ads")
    assert "Refused by the quota of team ads in tablets: it would be" in " ".join(quoted.stdout.split())
    assert tablets("round", "quote", "tablets", *KRR, "--check").code == 0
    listed = tablets("cohort", "quota", "tablets")
    assert "share of the budget" in listed.stdout
    (reading,) = tablets("cohort", "quota", "tablets", "--json").json
    assert (reading["team"], reading["rounds"]) == ("ads", codes.count(0) + 1)
    assert "still fit" in tablets("forecast", "tablets@team=ads").stdout
    assert "the quota of" in tablets("cohort", "show", "tablets@team=ads").stdout
    assert "tablets@team=ads" not in tablets("cohort", "list").stdout
    assert tablets("audit", "verify").code == 0


@pytest.mark.slow
def test_an_import_is_of_a_team(tablets: Run, tmp_path: Path) -> None:
    tablets("cohort", "quota", "tablets", "--team", "ads", "--epsilon", "0.3", "--reason", "more")
    file = tmp_path / "rounds.csv"
    lines = [f'r{number},tablets,"krr(k=10, epsilon0=2)",50000' for number in range(3)]
    file.write_text("\n".join(["round_id,cohort,randomizer,reports", *lines]) + "\n")
    asked = ("round", "import", str(file), "--team", "ads", "--json")
    rehearsed = tablets(*asked, "--dry-run").json
    done = tablets(*asked).json
    assert done["rounds_admitted"] == rehearsed["rounds_admitted"] == 3
    assert tablets(*asked).json["rounds_known"] == 3
    assert tablets("round", "import", str(file), "--json").json["rounds_known"] == 3
    (reading,) = tablets("cohort", "quota", "tablets", "--json").json
    assert reading["rounds"] == 3


@pytest.mark.slow
def test_a_budget_is_raised_up_to_its_ceiling(tablets: Run) -> None:
    raised = ("cohort", "budget", "tablets", "--reason", "more", "--epsilon")
    assert tablets(*raised, "1.5").code == 0
    assert tablets(*raised, "3").code == 2
    text = " ".join(tablets("audit", "statement", "tablets", "--format", "html").stdout.split())
    assert "It may be raised up to the promised 2, for any reason." in text


@pytest.mark.slow
def test_a_limited_number_of_rounds_is_stated(phones: Run, tmp_path: Path) -> None:
    assert phones("cohort", "open", "study", *BUDGET, "--rounds-per-user", "2").code == 0
    assert "2, at most, by a rule that" in " ".join(phones("cohort", "show", "study").stdout.split())
    for number in range(4):
        assert phones("round", "register", "study", *KRR, "--id", f"s{number}").code == 0
    assert phones("audit", "verify").code == 0
    assert phones("audit", "statement", "study", "-o", str(tmp_path / "study.html")).code == 0
    assert "A limited number of rounds" in (tmp_path / "study.html").read_text("utf-8")
    plan = tmp_path / "plan.csv"
    plan.write_text('randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",1000,1\n', "utf-8")
    planned = ("--policy", "plan", "--plan", str(plan))
    wrong = phones("cohort", "open", "other", *BUDGET, "--rounds-per-user", "2", *planned)
    assert wrong.code == 2
    assert "only filters count the rounds of one user" in " ".join(wrong.stderr.split())
