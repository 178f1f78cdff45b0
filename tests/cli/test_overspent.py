"""An exceeded budget alarms: by exit codes, in `health`, in verification, in budgets and statements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shuffle_ledger.accounting import upper_text
from tests.cli.conftest import ROUND, Run

WEEK = ("round", "register", "phones", "--id", "week1", *ROUND, "--json")


@pytest.mark.slow
def test_an_overspent_cohort_alarms(phones: Run) -> None:
    large = ("--randomizer", "krr(k=2, epsilon0=3)", "--reports", "90000")
    assert phones("round", "register", "phones", "--id", "large", *large).code == 0
    phones(*WEEK)
    settled = phones("round", "settle", "large", "--reports", "1", "--json")
    assert settled.code == 3
    assert settled.json["overspent"] is True
    assert "OVERSPENT" in settled.stderr
    week = phones(*WEEK)
    assert (week.code, week.json["error"]["state"], week.json["error"]["cohort_status"]) == (
        5,
        "admitted",
        "overspent",
    )
    found = phones("health", "--json")
    assert found.code == 1
    assert found.json["cohorts_overspent"] == 1
    assert found.json["alarms"][0].startswith("OVERSPENT phones")
    said = phones("audit", "verify")
    assert said.code == 0
    assert said.stdout.splitlines()[0].startswith("OVERSPENT: phones")
    assert not said.stdout.startswith("Everything holds.")
    assert phones("audit", "verify", "--json").json["cohorts"][0]["status"] == "overspent"
    assert phones("budget", "phones").stdout.splitlines()[0].startswith("OVERSPENT: phones")
    page = phones("audit", "statement", "phones", "--format", "html").stdout
    assert page.index("OVERSPENT: phones") < page.index("<h1>")
    assert phones("round", "void", "week1", "--reason", "never collected").code == 0


@pytest.mark.slow
def test_a_cohort_that_spent_less_than_its_budget_is_not_said_to_have_spent_more(
    directory: Path, run: Run
) -> None:
    """A round that was settled outside of its plan breaks the promise far below the budget."""
    assert run("init").code == 0
    kind = ("--randomizer", "krr(k=8, epsilon0=1)", "--reports", "50000")
    Path("plan.csv").write_text('randomizer,reports,count\n"krr(k=8, epsilon0=1)",50000,1\n', "utf-8")
    budget = ("--population", "100000", "--epsilon", "1", "--delta", "1e-9", "--ceiling", "2")
    assert run("cohort", "open", "planned", *budget, "--policy", "plan", "--plan", "plan.csv").code == 0
    assert run("round", "register", "planned", "--id", "one", *kind).code == 0
    settled = run("round", "settle", "one", "--reports", "40000", "--json")
    assert (settled.code, settled.json["overspent"]) == (3, True)
    assert run("budget", "planned", "--json").json["epsilon_spent_upper"] < 1
    said = [
        settled.stderr,
        run("health").stdout,
        run("audit", "verify").stdout,
        run("audit", "statement", "planned", "--format", "html").stdout,
        run("round", "quote", "planned", *kind).stdout,
    ]
    for one in (" ".join(text.split()) for text in said):
        assert "not cover what was released or promised" in one
        assert not re.search("exceeded|[Mm]ore was spent than|cost more than the budget", one), one


def test_a_promise_is_never_said_to_be_smaller_than_what_was_spent(phones: Run) -> None:
    """Without a ceiling the budget is the promise, which statements repeat: it stays above what is held."""
    phones(*WEEK)
    spent = phones("budget", "phones", "--json").json["epsilon_spent_upper"]
    lower = ("cohort", "budget", "phones", "--reason", "why not", "--json", "--epsilon")
    said = phones(*lower, "1e-6")
    assert (said.code, said.json["error"]["kind"]) == (5, "conflict")
    assert f"at most {upper_text(spent)}" in said.json["error"]["message"]
    assert phones("budget", "phones", "--json").json["epsilon_budget"] > spent
    assert phones(*lower, str(1.01 * spent)).code == 0
    statement = phones("audit", "statement", "phones", "--format", "json").json["cohorts"][0]
    assert (statement["verdict"], statement["status"]) == ("kept", "open")
    assert spent <= statement["promise"]["epsilon_budget"]
    assert phones("audit", "verify").code == 0


@pytest.mark.slow
def test_corrections_and_incidents_answer_alike_and_say_when_the_promise_broke(phones: Run) -> None:
    assert phones(*WEEK).code == 0
    told = ("round", "correct", "week1", "--reports", "900", "--reason", "a log", "--json")
    first = phones(*told)
    assert (first.code, first.json["outcome"], first.json["changed"]) == (0, "corrected", True)
    assert phones(*told).json == first.json
    assert phones("round", "correct", "week1", "--reason", "none").code == 2
    leak = ("incident", "record", "phones", "--id", "leak", "--reason", "a script", "--json")
    assert phones(*leak).code == 2
    assert phones(*leak, "--unknown", "--reports", "3").code == 2
    found = phones(*leak, "--unknown")
    assert (found.code, found.json["outcome"], found.json["round"]) == (3, "incident", None)
    assert found.json["overspent"] is True
    assert "OVERSPENT" in found.stderr
    assert phones(*leak, "--unknown").json == found.json
    assert phones(*leak, *ROUND).code == 5
    assert phones("round", "show", "leak", "--json").json["state"] == "incident"
    assert re.search("declared +nothing: it is unknown", phones("round", "show", "leak").stdout)
    for end in (("settle", "leak", "--reports", "5"), ("void", "leak", "--reason", "none")):
        ended = phones("round", *end)
        assert (ended.code, "is an incident, which nothing admitted" in ended.stderr) == (5, True)
    (cohort,) = phones("audit", "statement", "phones", "--format", "json").json["cohorts"]
    assert [each["kind"] for each in cohort["told"]] == ["corrected", "incident"]
    assert cohort["breach"]["sequence"] == found.json["sequence"]
    assert cohort["breach"]["kept_at_epsilon_upper"] is None
    page = " ".join(phones("audit", "statement", "phones", "--format", "html").stdout.split())
    assert f"Not kept since entry {found.json['sequence']}" in page
    assert "was kept after every entry" not in page
    assert phones("audit", "verify").code == 0
