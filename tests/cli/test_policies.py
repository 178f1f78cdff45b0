"""Policies on the command line: plans quoted and opened, budgets changed, assumptions said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

PLAN = 'randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",5000,3\n"krr(k=2, epsilon0=1)",20000,2\n'
SAMPLE = ("--randomizer", "krr(k=4, epsilon0=4)", "--reports", "100", "--sampled-from", "10000")
BUDGET = ("--epsilon", "1", "--delta", "1e-6")


@pytest.fixture
def plan(directory: Path) -> str:
    """Return the name of a file with a plan of five rounds."""
    (directory / "plan.csv").write_text(PLAN)
    return "plan.csv"


def opened(run: Run, *options: str) -> str:
    answer = run("cohort", "open", "phones", "--population", "100000", *BUDGET, *options)
    assert answer.code == 0, answer.stderr
    return str(answer.stdout)


def register(run: Run, name: str, randomizer: str, reports: int) -> int:
    options = ("--randomizer", randomizer, "--reports", str(reports))
    return run("round", "register", "phones", "--id", name, *options).code


@pytest.mark.slow
def test_a_plan_is_quoted_without_a_trace(run: Run, plan: str) -> None:
    answer = run("cohort", "plan", plan, *BUDGET, "--json").json
    composed = run("compose", plan, "--delta", "1e-6", "--json").json
    assert answer["fits"] is True
    assert (answer["rounds"], answer["kinds"]) == (5, 2)
    assert answer["epsilon_upper"] == pytest.approx(composed["epsilon_upper"], rel=1e-9)
    assert answer["largest_common_epsilon0"] > 1.0
    tight = run("cohort", "plan", plan, "--epsilon", "0.01", "--delta", "1e-6", "--json").json
    assert tight["fits"] is False
    assert 0 < tight["largest_common_epsilon0"] < 0.5
    assert run("cohort", "list", "--json").json == []
    shown = run("cohort", "plan", plan, *BUDGET).stdout
    for word in ("fits", "yes", "largest common epsilon0", "5 of 2 kinds"):
        assert word in shown


@pytest.mark.slow
def test_a_planned_cohort_shows_its_free_slots(run: Run, plan: str) -> None:
    opened(run, "--policy", "plan", "--plan", plan)
    assert register(run, "a", "krr(k=2, epsilon0=0.4)", 6000) == 0
    assert register(run, "b", "krr(k=2, epsilon0=2)", 20000) == 3
    budget = run("budget", "phones", "--json").json
    assert [(slot["count"], slot["claimed"]) for slot in budget["slots"]] == [(3, 1), (2, 0)]
    assert budget["epsilon_spent_upper"] < budget["epsilon_promised_upper"] <= 1.0
    assert budget["filters"] == []
    assert "plan" in budget["decided_by"]
    assert "2 of 3 free: krr(epsilon0=0.5, k=2)" in run("budget", "phones").stdout
    assert run("audit", "verify").code == 0


def test_a_plan_beyond_the_budget_is_refused(run: Run, plan: str) -> None:
    tight = ("--population", "100000", "--epsilon", "0.01", "--delta", "1e-6", "--policy", "plan")
    answer = run("cohort", "open", "phones", *tight, "--plan", plan, "--json")
    assert (answer.code, answer.json["error"]["kind"]) == (3, "refused")
    assert run("cohort", "open", "phones", *tight).code == 2, "a plan without a plan"
    assert run("cohort", "list", "--json").json == []


def test_what_a_policy_assumes_is_said_when_opening_and_in_the_budget(directory: Path, run: Run) -> None:
    answer, words = opened(run), "Earlier results may guide later rounds."
    assert words in " ".join(answer.split())
    assert words in run("budget", "phones", "--json").json["decided_by"]


def test_filters_stand_beside_the_composition(directory: Path, run: Run) -> None:
    opened(run)
    assert register(run, "a", "krr(k=2, epsilon0=0.5)", 10000) == 0
    budget = run("budget", "phones", "--json").json
    assert budget["epsilon_spent_upper"] == min(one["epsilon_upper"] for one in budget["filters"])
    assert budget["composition_epsilon_lower"] <= budget["composition_epsilon_upper"]
    assert budget["composition_epsilon_lower"] <= budget["epsilon_spent_upper"]
    text = run("budget", "phones").stdout
    for word in ("gaussian", "renyi of order", "largest loss", "valid only for rounds fixed in advance"):
        assert word in text


def test_a_budget_changes_by_an_entry(directory: Path, run: Run) -> None:
    opened(run)
    raised = run("cohort", "budget", "phones", "--epsilon", "2", "--reason", "a new contract", "--json")
    assert raised.code == 0, raised.stderr
    assert raised.json["epsilon_budget"] == 2.0
    assert run("budget", "phones", "--json").json["epsilon_budget"] == 2.0
    assert run("cohort", "budget", "phones", "--epsilon", "2", "--reason", "again").code == 2
    assert run("cohort", "budget", "nobody", "--epsilon", "2", "--reason", "why").code == 4
    assert run("audit", "verify").code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("directory")
def test_an_opening_says_the_part_of_delta_for_approximate_rounds(run: Run) -> None:
    for _ in range(2):  # the same again changes nothing
        opened(run, "--approximate-share", "0.5")
    accounts = run("budget", "phones", "--json").json["delta_accounts"]
    assert accounts["slack_share"] == pytest.approx(0.25e-6)
    assert accounts["certain_loss_share"] == pytest.approx(0.25e-6)
    other = run("cohort", "open", "phones", "--population", "100000", *BUDGET)
    assert other.code == 0, "nothing was decided, so it is opened again"
    for wrong in ("0", "0.95", "nan"):
        answer = run("cohort", "open", "new", "--population", "1000", *BUDGET, "--approximate-share", wrong)
        assert answer.code == 2, answer
        assert "approximate" in answer.stderr
    assert run("audit", "verify").code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("directory")
def test_the_first_small_sample_of_strong_reports_wants_slots_or_yes(run: Run) -> None:
    """Slots cannot be declared after the first decision, so the question comes before it."""
    opened(run)
    quoted = run("round", "quote", "phones", *SAMPLE, "--json").json["slots_would_help"]
    assert quoted["rounds_with"] > 1.25 * quoted["rounds_without"] > 0
    for words in (("round", "quote"), ("forecast",)):
        said = run(*words, "phones", *SAMPLE).stdout
        assert "declared slots" in said
        assert "--plan" in said
    register = ("round", "register", "phones", *SAMPLE, "--id")
    refused = run(*register, "a", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (2, "slots_would_help")
    assert f"{quoted['rounds_without']:,} such rounds fit" in refused.stderr
    assert "--plan FILE" in refused.stderr
    assert run("round", "show", "a").code == 4, "nothing was registered"
    assert run(*register, "a", "--yes").code == 0
    assert run(*register, "a").code == 0, "it is registered"
    assert run(*register, "b").code == 0, "it is too late for slots"


@pytest.mark.usefixtures("directory")
def test_the_first_sample_of_a_cohort_with_periods_is_collected_today(run: Run) -> None:
    year = ("--per", "year", "--epsilon", "1", "--delta", "1e-6")
    assert run("cohort", "open", "phones", "--population", "100000", *year).code == 0
    assert run("round", "register", "phones", *SAMPLE, "--id", "a").code == 0
    assert run("round", "show", "a", "--json").json["collected_on"] is not None
