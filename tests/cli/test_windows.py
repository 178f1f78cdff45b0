"""Windows on the command line: declared, charged, shown, and refused with the numbers of the window."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from shuffle_ledger.ledger.values.windows import Window
from tests.cli.conftest import Run

KRR = ("--randomizer", "krr(k=10, epsilon0=2)", "--reports", "50000")
BUDGET = ("--population", "100000", "--epsilon", "1", "--delta", "1e-6")
WEEK = ("--window", "calendar=week,epsilon=0.06,delta=1e-7")


@pytest.fixture
def tablets(phones: Run) -> Run:
    """Return `run`, with a cohort that has a budget for each week."""
    opened = phones("cohort", "open", "tablets", *BUDGET, *WEEK, "--json")
    assert (opened.code, opened.json["windows"]) == (
        0,
        [{"calendar": "week", "epsilon": 0.06, "delta": 1e-7}],
    )
    return phones


@pytest.mark.slow
def test_a_week_is_charged_shown_and_forecast(tablets: Run) -> None:
    today = datetime.now(UTC).date()
    week = f"tablets@{today:%G-W%V}"
    quoted = tablets("round", "quote", "tablets", *KRR, "--json")
    assert (quoted.code, quoted.json["would_be"]) == (0, "admitted")
    registered = tablets("round", "register", "tablets", "--id", "one", *KRR, "--json")
    assert [member["cohort"] for member in registered.json["audience"]] == ["tablets", week]
    shown = tablets("round", "show", "one", "--json").json
    assert (shown["collected_on"], shown["windows"]) == (today.isoformat(), [week])
    budget = tablets("budget", "tablets")
    assert "renews on" in budget.stdout
    assert "which must fit into all of them" in budget.stdout
    left = tablets("budget", "tablets", "--json").json["fits"][0]["rounds_at_least"]
    forecast = tablets("forecast", "tablets", *KRR)
    assert "The budget for each UTC calendar week would be used up." in forecast.stdout
    for number in range(left):
        assert tablets("round", "register", "tablets", "--id", f"more-{number}", *KRR).code == 0
    refused = tablets("round", "register", "tablets", "--id", "beyond", *KRR)
    assert refused.code == 3
    assert f"refused by {week}" in refused.stdout
    next_week = (today + timedelta(days=7)).isoformat()
    later = ("round", "register", "tablets", "--id", "later", *KRR, "--collected-on", next_week)
    assert tablets(*later).code == 0
    assert week not in tablets("cohort", "list").stdout
    assert "a period of" in tablets("cohort", "show", week).stdout
    assert tablets("audit", "verify").code == 0


def test_a_period_that_is_over_or_too_far_ahead_is_said_to_be(tablets: Run) -> None:
    last_year = datetime.now(UTC).year - 1
    said = " ".join(tablets("budget", "tablets", "--on", f"{last_year}-11-30").stdout.split())
    assert "used 0 %, over" in said
    assert f"still fits nothing: {last_year}-11-30 is over: record it with `incident record`." in said
    assert "remaining nothing: the period is over" in said
    assert "; ended on " in said
    assert not re.search("used up|renews on|ask round quote", said)
    ahead = " ".join(tablets("budget", "tablets", "--on", f"{last_year + 5}-11-30").stdout.split())
    assert f"still fits nothing: {last_year + 5}-11-30 is too far ahead: " in ahead
    assert "used 0 %, open" in ahead


def test_bad_windows_and_days_are_refused_with_what_was_expected(tablets: Run) -> None:
    bad = tablets("cohort", "open", "other", *BUDGET, "--window", "calendar=fortnight,epsilon=1,delta=1e-6")
    assert bad.code == 2
    assert "per (day, week, month, quarter or year" in " ".join(bad.stderr.split())
    bad = tablets("cohort", "open", "other", "--per", "yr", "--epsilon", "1", "--delta", "1e-6")
    assert (bad.code, bad.stderr) == (
        2,
        "shuffle-ledger: per: got 'yr', expected day, week, month, quarter or year\n",
    )
    past = ("round", "register", "tablets", "--id", "past", *KRR, "--collected-on", "2026-01-01")
    assert tablets(*past).code == 2
    backwards = ("--collected-on", "2026-03-02", "--collected-until", "2026-03-01")
    assert tablets(*past[:-2], *backwards).code == 2
    assert tablets("round", "show", "past").code == 4
    told = ("incident", "record", "tablets", "--id", "leak", *KRR, "--reason", "a script")
    assert tablets(*told).code == 2
    after = ("--released-after", datetime.now(UTC).isoformat())
    assert tablets(*told, "--collected-on", "2026-01-01", *after).code == 0
    assert tablets("audit", "verify").code == 0


@pytest.mark.slow
def test_only_its_windows_may_limit_a_cohort(phones: Run) -> None:
    alone = phones("cohort", "open", "tablets", "--population", "100000")
    assert (alone.code, "nothing would limit its rounds" in alone.stderr) == (2, True)
    gone = phones("cohort", "open", "tablets", "--population", "100000", "--windows-only", *WEEK)
    assert (gone.code, "--per week" in gone.stderr) == (2, True)
    per_week = ("--per", "week", "--epsilon", "0.5", "--delta", "1e-9")
    assert phones("cohort", "open", "tablets", "--population", "100000", *per_week).code == 0
    assert "each period has its own budget" in phones("cohort", "show", "tablets").stdout
    assert phones("round", "register", "tablets", "--id", "one", *KRR).code == 0
    found = phones("budget", "tablets", "--json").json
    assert [(one["kind"], one["epsilon_budget"]) for one in found["promises"]] == [("week", 0.5)]
    assert (found["epsilon_budget"], found["delta_budget"]) == (0.5, 1e-9)
    told = " ".join(phones("audit", "statement", "tablets").stdout.split())
    assert "Nothing is promised of the cohort’s whole life" in told
    assert phones("audit", "verify").code == 0


@pytest.mark.parametrize(
    ("groups", "windows", "life"),
    [
        ("--epsilon 3 --delta 1e-8 --per=day --epsilon=0.1 --delta=1e-10", {"day": (0.1, 1e-10)}, 3.0),
        (
            "--rolling 7d --delta 1e-9 --epsilon 1 --life --epsilon 2 --delta 1e-9",
            {"7 days": (1.0, 1e-9)},
            2.0,
        ),
        (
            "--window rolling=4w,epsilon=1,delta=1e-9 --per quarter --epsilon 2 --delta 1e-9",
            {"4 weeks": (1.0, 1e-9), "quarter": (2.0, 1e-9)},
            None,
        ),
    ],
)
def test_budgets_are_given_in_groups_of_options(
    phones: Run, groups: str, windows: dict[str, tuple[float, float]], life: float | None
) -> None:
    opened = phones("cohort", "open", "study", "--population", "100000", *groups.split(), "--json").json
    found = {each.kind: (each.epsilon, each.delta) for each in map(Window.from_mapping, opened["windows"])}
    assert (found, opened["epsilon_budget"]) == (windows, life)


def test_a_group_that_is_no_budget_is_refused(phones: Run) -> None:
    for groups, said in (
        ("--per year --epsilon 1", "--delta is missing behind --per year"),
        ("--per year --delta 1e-9 --epsilon 1 --epsilon 2", "--epsilon stands twice for --per year"),
        ("--per fortnight --epsilon 1 --delta 1e-9", "expected day, week, month, quarter or year"),
        ("--rolling 7 --epsilon 1 --delta 1e-9", "7d, 13w, 12m"),
        ("--life --per day --epsilon 1 --delta 1e-9", "--epsilon is missing behind --life"),
        ("--epsilon 1", "--delta is missing"),
        ("--epsilon 1 --delta 1e-9 --life --epsilon 1 --delta 1e-9", "a cohort has one life"),
    ):
        refused = phones("cohort", "open", "study", "--population", "100000", *groups.split())
        assert refused.code == 2
        assert said in " ".join(refused.stderr.split())
