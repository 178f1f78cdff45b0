"""`--reports-per-user`, and the column of that name, wherever a round can be written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

TWICE = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "1000", "--reports-per-user", "2")
HALF = ("--randomizer", "krr(k=2, epsilon0=0.5)", "--reports", "500")


def test_calculators_charge_the_rounds(phones: Run, directory: Path) -> None:
    found = phones("amplify", *TWICE, "--delta", "1e-6", "--json").json
    (directory / "rounds.csv").write_text('randomizer,reports,count\n"krr(k=2, epsilon0=0.5)",500,2\n')
    both = phones("compose", "rounds.csv", "--delta", "1e-6", "--json").json
    assert found["epsilon_upper"] == both["epsilon_upper"]
    assert (found["rounds"], both["rounds"]) == (1, 2)
    assert found["attack_known"] is False
    (directory / "rounds.csv").write_text(
        'randomizer,reports,reports_per_user\n"krr(k=2, epsilon0=0.5)",1000,2\n'
    )
    assert (
        phones("compose", "rounds.csv", "--delta", "1e-6", "--json").json["epsilon_upper"]
        == (both["epsilon_upper"])
    )
    shown = phones("amplify", *TWICE, "--delta", "1e-6", "--compare").stdout
    assert "2 rounds of 500 reports" in shown
    assert "at most 2; those beyond are not counted" in shown
    calibrated = phones(
        "calibrate", "--randomizer", "krr(k=2)", "--reports", "1000", "--reports-per-user", "2",
        "--epsilon", "1", "--delta", "1e-6", "--precision", "0.01", "--json",
    )  # fmt: skip
    assert calibrated.json["round"]["reports_per_user"] == 2


def test_a_round_is_registered_corrected_and_exported(phones: Run, directory: Path) -> None:
    quoted = phones("round", "quote", "phones", *TWICE, "--json").json
    done = phones("round", "register", "phones", "--id", "a", *TWICE, "--json")
    assert (done.code, done.json["accounted"]["reports_per_user"]) == (0, 2)
    assert quoted["epsilon_requested_upper"] == done.json["epsilon_spent_upper"]
    assert "krr(epsilon0=0.5, k=2), 1,000 reports, at most 2 reports of each user" in (
        " ".join(phones("round", "show", "a").stdout.split())
    )
    single = phones("round", "register", "phones", "--id", "b", *HALF, "--json")
    assert "reports_per_user" not in single.json["accounted"]
    corrected = phones("round", "correct", "a", "--reports-per-user", "3", "--reason", "a log", "--json")
    assert corrected.json["round"]["reports_per_user"] == 3
    listed = list(csv.DictReader(io.StringIO(phones("round", "list", "phones", "--csv").stdout)))
    assert [row["reports_per_user"] for row in listed] == ["2", ""]
    forecast = phones("forecast", "phones", *TWICE, "--json")
    assert forecast.json["kinds"][0]["round"]["reports_per_user"] == 2


@pytest.mark.slow
def test_a_file_imports_and_plans_them(phones: Run, directory: Path) -> None:
    (directory / "rounds.csv").write_text(
        "round_id,cohort,randomizer,reports,reports_per_user\n"
        'a,phones,"krr(k=2, epsilon0=0.5)",1000,2\n'
        'b,phones,"krr(k=2, epsilon0=0.5)",1000,\n'
    )
    answer = phones("round", "import", "rounds.csv", "--json")
    assert (answer.code, answer.json["rounds_admitted"]) == (0, 2)
    assert phones("round", "show", "a", "--json").json["round"]["reports_per_user"] == 2
    (directory / "wrong.csv").write_text(
        'round_id,cohort,randomizer,reports,reports_per_user\nc,phones,"krr(k=2, epsilon0=0.5)",1000,NaN\n'
    )
    wrong = phones("round", "import", "wrong.csv", "--json")
    assert (wrong.code, wrong.json["error"]["field"]) == (2, "reports_per_user")
    slot = {"randomizer": "krr(k=2, epsilon0=0.5)", "reports": 1000, "reports_per_user": 2, "count": 3}
    (directory / "plan.jsonl").write_text(json.dumps(slot))
    planned = phones("cohort", "plan", "plan.jsonl", "--epsilon", "1", "--delta", "1e-6", "--json")
    assert planned.code == 0, planned.stderr
