"""Policies on the command line: shares of delta for approximate rounds, and what slots would add."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

SAMPLE = ("--randomizer", "krr(k=4, epsilon0=4)", "--reports", "100", "--sampled-from", "10000")
BUDGET = ("--epsilon", "1", "--delta", "1e-6")


def opened(run: Run, *options: str) -> str:
    answer = run("cohort", "open", "phones", "--population", "100000", *BUDGET, *options)
    assert answer.code == 0, answer.stderr
    return str(answer.stdout)


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
