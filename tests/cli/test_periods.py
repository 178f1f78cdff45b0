"""A cohort that has a budget for each period and none for its life: its answers are about its periods."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Run, changed

KIND = ("--randomizer", "krr(epsilon0=2, k=10)", "--reports", "10000")
YEAR = datetime.now(UTC).year


@pytest.fixture
def phones(directory: object, run: Run) -> Run:
    """Return `run`, with a cohort: next year has a round, an incident broke this year's promise."""
    assert directory
    year = ("--per", "year", "--epsilon", "1", "--delta", "1e-6")
    assert run("cohort", "open", "phones", "--population", "100000", *year).code == 0
    register = ("round", "register", "phones", *KIND, "--id")
    assert run(*register, "next", "--collected-on", f"{YEAR + 1}-03-01").code == 0
    incident = ("incident", "record", "phones", "--id", "lost", "--unknown", "--reason", "a bug")
    assert run(*incident, "--collected-on", f"{datetime.now(UTC):%Y-%m-%d}").code == 3
    return run


@pytest.mark.slow
def test_a_broken_year_is_overspent_wherever_it_is_shown(phones: Run) -> None:
    said = phones("budget", "phones").stdout
    assert said.startswith(f"OVERSPENT: phones@{YEAR}: ")
    assert "more than 100 %, overspent" in said
    assert "adaptive, overspent" in said
    following = phones("budget", "phones", "--on", f"{YEAR + 1}-06-01").stdout
    assert following.startswith(f"phones@{YEAR + 1}: ")
    assert "in all periods" in following, "the counts below are of the whole cohort"
    assert phones("health", "--json").json["cohorts"] == 1, "periods are no cohorts"


@pytest.mark.slow
def test_the_evidence_of_a_cohort_has_its_periods(phones: Run) -> None:
    assert phones("audit", "statement", "phones", "-o", "s.json", "--bundle", "b.zip").code == 0
    found = phones("audit", "verify", "b.zip", "--allow-unpinned", "--json").json["cohorts"]
    kept = {each["cohort"]: each["promise_kept"] for each in found}
    assert kept == {"phones": True, f"phones@{YEAR}": False, f"phones@{YEAR + 1}": True}
    said = phones("audit", "verify", "b.zip", "--allow-unpinned").stdout
    assert f"OVERSPENT: phones@{YEAR}." in said
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("phones")}
    assert "see its periods" in lines["phones"]
    assert "broken" in lines[f"phones@{YEAR}"]
    assert "not begun" in lines[f"phones@{YEAR + 1}"]
    (period,) = (each["period"] for each in found if each["cohort"] == f"phones@{YEAR + 1}")
    assert (period["first"], period["last"]) == (f"{YEAR + 1}-01-01", f"{YEAR + 1}-12-31")


@pytest.mark.slow
def test_a_statement_alarms_of_periods_too(phones: Run, directory: Path) -> None:
    life = ("--population", "100", "--epsilon", "0.1", "--delta", "1e-6")
    assert phones("cohort", "open", "lived", *life).code == 0
    incident = ("incident", "record", "lived", "--id", "gone", "--unknown", "--reason", "a bug")
    assert phones(*incident).code == 3
    said = phones("audit", "statement", "--all")
    alarm = f"OVERSPENT: lived, phones@{YEAR}. "
    assert f"shuffle-ledger: {alarm}" in said.stderr
    assert alarm in said.stdout[: said.stdout.index("<h1>")]
    changed(directory, f"digest = zeroblob(32) WHERE sequence = 1 AND cohort = 'phones@{YEAR + 1}'")
    damaged = phones("audit", "statement", "--all")
    assert damaged.code == 6
    assert f"shuffle-ledger: phones@{YEAR + 1}: its record was changed or entries were lost" in damaged.stderr


@pytest.mark.slow
def test_a_year_of_weeks_is_planned_with_the_largest_epsilon0_that_fits_every_month(
    directory: object, run: Run
) -> None:
    assert directory
    month = ("--per", "month", "--epsilon", "0.3", "--delta", "1e-8")
    assert run("cohort", "open", "phones", "--population", "1000000", *month).code == 0
    weeks = ("--every", "week", "--from", f"{YEAR + 1}-01-01", "--until", f"{YEAR + 1}-12-31")
    described = ("--reports", "100000", "--randomizer")
    planned = run("forecast", "phones", *weeks, *described, "krr(epsilon0=4, k=10)", "--json").json["kinds"][
        0
    ]
    assert planned["rounds_at_least"] < planned["largest"]["rounds"]
    largest = planned["largest"]["epsilon0"]
    for factor, fits in ((1.0, True), (1.01, False)):
        randomizer = f"krr(epsilon0={factor * largest}, k=10)"
        (found,) = run("forecast", "phones", *weeks, *described, randomizer, "--json").json["kinds"]
        assert found["reaches_until"] is fits
