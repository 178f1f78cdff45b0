"""An exceeded budget alarms: by exit codes, in `health`, in verification, in budgets and statements."""

from __future__ import annotations

from tests.cli.conftest import ROUND, Run

WEEK = ("round", "register", "phones", "--id", "week1", *ROUND, "--json")


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


def test_lowering_a_budget_below_what_is_spent_exits_like_a_refusal(phones: Run) -> None:
    phones(*WEEK)
    lowered = phones("cohort", "budget", "phones", "--epsilon", "1e-6", "--reason", "why not", "--json")
    assert (lowered.code, lowered.json["status"]) == (3, "overspent")
    assert "OVERSPENT" in lowered.stderr
