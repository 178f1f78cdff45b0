"""A text that names cohorts means the same at every door, and no new cohort has a name that it cannot say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage import Store
from shuffle_ledger.ledger.values import Cohort
from tests.cli.conftest import ROUND, Run

OPENING = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
LEDGER = "sqlite:///shuffle-ledger.db"
OLD = ("a|b", "a,b", "x=y")


@pytest.fixture
def letters(run: Run, directory: Path) -> Run:
    """Return `run`, with the cohorts "a" and "b", and those that an earlier release let in."""
    assert directory.exists()
    for name in ("a", "b"):
        assert run("cohort", "open", name, *OPENING, "--label", f"letter={name}").code == 0
    with Store.connect(LEDGER) as store:
        for name in OLD:
            cohort = Cohort(
                name=name, population=10_000, epsilon_budget=1.0, delta_budget=1e-6, policy="adaptive"
            )
            rules = registry.policy_for(cohort).opening()
            store.open_cohort(cohort, actor="tester", numerical_policy=NUMERICAL_POLICY, rules=rules)
    return run


def rounds_of(name: str) -> list[str]:
    with Store.connect(LEDGER) as store:
        return [each.round_id for each in store.rounds_of(name)]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a,b", " a | b "])
def test_a_text_of_names_means_the_same_in_options_and_in_every_file(letters: Run, text: str) -> None:
    assert letters("round", "register", "--audience", text, "--id", "option", *ROUND).code == 0
    Path("r.csv").write_text(
        f'round_id,audience,randomizer,reports\ncsv,"{text}","krr(k=2, epsilon0=0.5)",1000\n'
    )
    line = {"round_id": "jsonl", "audience": text, "randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000}
    Path("r.jsonl").write_text(json.dumps(line) + "\n")
    for file in ("r.csv", "r.jsonl"):
        answer = letters("round", "import", file)
        assert answer.code == 0, answer.stderr
    quoted = letters("round", "quote", "--audience", text, *ROUND, "--json").json
    assert quoted["audience"] == ["a", "b"]
    assert rounds_of("a") == rounds_of("b") == ["option", "csv", "jsonl"]
    assert [rounds_of(name) for name in OLD] == [[], [], []]


@pytest.mark.slow
def test_cohorts_that_have_such_names_are_named_alone_and_verified(letters: Run) -> None:
    rows = "".join(f'"old-{name}","{name}","krr(k=2, epsilon0=0.5)",1000\n' for name in OLD)
    Path("r.csv").write_text("round_id,cohort,randomizer,reports\n" + rows)
    Path("c.csv").write_text(
        "cohort,population,epsilon,delta\n" + "".join(f'"{name}",10000,1,1e-6\n' for name in OLD)
    )
    answer = letters("round", "import", "r.csv", "--cohorts", "c.csv")
    assert answer.code == 0, answer.stderr
    for name in OLD:
        assert letters("round", "register", name, "--id", f"new-{name}", *ROUND).code == 0
        assert rounds_of(name) == [f"old-{name}", f"new-{name}"]
        assert letters("budget", name).code == 0
        opened = letters("cohort", "open", name, "--population", "10000", "--epsilon", "1", "--delta", "1e-6")
        assert opened.code == 0, opened.stderr  # as it is
    assert letters("audit", "verify").code == 0


@pytest.mark.parametrize("name", ["c|d", "c=d"])
def test_no_cohort_is_opened_under_such_a_name(letters: Run, name: str) -> None:
    answer = letters("cohort", "open", name, *OPENING, "--json")
    assert (answer.code, answer.json["error"]["field"]) == (2, "name")
    assert "a name without , | and =" in answer.stderr + answer.json["error"]["message"]
    Path("r.csv").write_text(
        f'round_id,cohort,randomizer,reports\nx,"{name}","krr(k=2, epsilon0=0.5)",1000\n'
    )
    Path("c.csv").write_text(f'cohort,population,epsilon,delta\n"{name}",10000,1,1e-6\n')
    for more in ((), ("--dry-run",)):
        imported = letters("round", "import", "r.csv", "--cohorts", "c.csv", *more)
        assert imported.code == 2
        assert "c.csv, line 2" in imported.stderr
        assert "a name without , | and =" in imported.stderr
    assert letters("cohort", "open", "e", *OPENING, "--label", "kind=c|d").code == 2
    with Store.connect(LEDGER) as store:
        assert [cohort.name for cohort in store.cohorts()] == sorted((*OLD, "a", "b"))
