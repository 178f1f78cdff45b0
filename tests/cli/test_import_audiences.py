"""Rounds of several cohorts, and of several days, in files: every way that a file spells them."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

BUDGET = ("--epsilon", "1", "--delta", "1e-6")
KRR = '"krr(k=2, epsilon0=0.5)"'


@pytest.fixture
def countries(directory: Path, run: Run) -> Run:
    assert directory.exists()
    for name, more in (("de", ("--label", "device=phone")), ("nz", ("--label", "device=phone")), ("us", ())):
        assert run("cohort", "open", name, "--population", "10000", *BUDGET, *more).code == 0
    return run


def _import(run: Run, text: str, *more: str, name: str = "rounds.csv", code: int = 0) -> Any:
    Path(name).write_text(text)
    answer = run("round", "import", name, *more, "--json")
    assert answer.code == code, answer.stderr
    return answer.json


@pytest.mark.parametrize(
    "audience", ['"nz, de"', "device=phone", "nz | de"], ids=lambda each: each.strip('"')
)
def test_an_audience_means_the_same_in_a_file_as_in_its_option(countries: Run, audience: str) -> None:
    text = f"round_id,audience,randomizer,reports\na,{audience},{KRR},15000\n"
    rehearsed = _import(countries, text, "--dry-run")
    done = _import(countries, text)
    assert rehearsed == {**done, "dry_run": True}
    assert (done["rounds"], done["rounds_admitted"]) == (1, 1)
    assert set(done["cohorts"]) == {"de", "nz"}
    options = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "15000")
    again = countries("round", "register", "--audience", "de,nz", "--id", "a", *options, "--json")
    assert again.code == 0, again.stderr
    assert [each["cohort"] for each in again.json["audience"]] == ["de", "nz"]
    assert _import(countries, text)["rounds_known"] == 1
    assert _import(countries, text, "--dry-run")["rounds_known"] == 1


def test_json_lines_have_a_list_or_a_text(countries: Run) -> None:
    krr = {"randomizer": "krr(k=2, epsilon0=0.5)", "reports": 9000}
    rounds = [
        {"round_id": "a", "audience": ["nz", "de"], **krr},
        {"round_id": "b", "audience": "device=phone", **krr},
        {"round_id": "c", "cohort": "us", **krr},
    ]
    text = "\n".join(map(json.dumps, rounds))
    done = _import(countries, text, name="rounds.jsonl")
    assert (done["rounds"], done["rounds_admitted"]) == (3, 3)
    counts = {name: each["admitted"] for name, each in done["cohorts"].items()}
    assert counts == {"de": 2, "nz": 2, "us": 1}


def test_an_audience_that_is_none_is_named_with_its_line(countries: Run) -> None:
    for columns, cells, code, said in (
        ("audience,cohort", "de|nz,de", 2, "got 'de|nz', expected it left out where cohort is given"),
        ("audience,cohort", ",", 2, "cohort: is empty, expected a text"),
        ("audience", "de|gone", 4, "no cohort 'gone'; open it, or name it in --cohorts"),
        ("audience", "device=tablet", 4, "no cohort has the labels 'device=tablet'"),
        ("audience", "de||nz", 2, "audience: is empty, expected 1 to 200 printable characters"),
        ("collected_until,cohort", "2025-01-06,de", 2, "expected a date, together with collected_on"),
    ):
        text = f"round_id,{columns},randomizer,reports\na,{cells},{KRR},15000\n"
        error = _import(countries, text, code=code)["error"]
        assert said in error["message"]
        assert "line 2" in error["message"]
    text = f"round_id,audience,randomizer,reports\na,de|nz,{KRR},20001\n"
    assert _import(countries, text, code=2)["error"]["field"] == "reports"


def test_a_rehearsal_gives_the_reason_of_the_import_where_another_cohort_refuses(countries: Run) -> None:
    assert countries("cohort", "budget", "nz", "--epsilon", "0.001", "--reason", "a promise").code == 0
    text = f"round_id,audience,randomizer,reports\na,de|nz,{KRR},15000\nb,nz,{KRR},9000\n"
    written = []
    for more in (("--dry-run",), (), ("--dry-run",)):
        _import(countries, text, *more, "--refused-out", "refused.csv")
        written.append(Path("refused.csv").read_text())
    assert written[0] == written[1] == written[2]
    reasons = [line["reason"] for line in csv.DictReader(io.StringIO(written[0]))]
    assert reasons == ["refused_elsewhere", "budget_exceeded"]


def test_cohorts_of_an_audience_may_be_opened_by_the_import(countries: Run) -> None:
    Path("cohorts.csv").write_text("cohort,population,epsilon,delta\nx,10000,1,1e-6\ny,10000,1,1e-6\n")
    text = f"round_id,audience,randomizer,reports\na,x|y,{KRR},15000\n"
    opened = ("--cohorts", "cohorts.csv")
    assert _import(countries, text, *opened, "--dry-run")["rounds_admitted"] == 1
    mixed = text.replace("x|y", "de|x")
    rehearsed = _import(countries, mixed, *opened, "--dry-run")
    assert rehearsed["rounds_admitted"] == 1
    assert _import(countries, mixed, *opened) == {**rehearsed, "dry_run": False}


def test_several_days_are_read_and_listed_so_that_the_list_can_be_imported(countries: Run) -> None:
    first, last = "2999-01-05", "2999-01-06"
    text = "round_id,cohort,audience,randomizer,reports,collected_on,collected_until\n"
    text += f"a,de,,{KRR},9000,{first},{last}\nb,,de|nz,{KRR},15000,{first},\n"
    assert _import(countries, text)["rounds_admitted"] == 2
    listed = countries("round", "list", "de", "--json").json
    assert [each["collected_until"] for each in listed] == [last, None]
    assert [each["audience"] for each in listed] == [[], ["de", "nz"]]
    exported = countries("round", "list", "de", "--csv").stdout
    assert _import(countries, exported, "--ignore-extra")["rounds_known"] == 2


def test_the_last_day_decides_which_periods_are_charged(countries: Run) -> None:
    today = datetime.now(UTC).date()
    monday = today + timedelta(days=7 - today.weekday())  # of next week
    window = ("--window", "calendar=week,epsilon=1,delta=1e-8")
    assert countries("cohort", "open", "weekly", "--population", "10000", *BUDGET, *window).code == 0
    text = "round_id,cohort,randomizer,reports,collected_on,collected_until\n"
    text += f"a,weekly,{KRR},9000,{monday},{monday + timedelta(days=7)}\n"
    assert _import(countries, text, "--dry-run")["rounds_admitted"] == 1
    assert _import(countries, text)["rounds_admitted"] == 1
    weeks = [f"weekly@{day:%G-W%V}" for day in (monday, monday + timedelta(days=7))]
    for week in weeks:
        assert countries("budget", week, "--json").json["rounds_admitted"] == 1
    assert _import(countries, text)["rounds_known"] == 1
    other = text.replace(str(monday + timedelta(days=7)), str(monday + timedelta(days=1)))
    said = _import(countries, other, code=5)["error"]["message"]
    assert "collected_until: stored" in said
