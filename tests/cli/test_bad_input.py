"""Bad values name the field, the value and what was expected, exit with 2, and leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

AMPLIFY = {"--randomizer": "krr(k=2, epsilon0=0.5)", "--reports": "1000", "--delta": "1e-6"}
OPEN = {"--population": "1000", "--epsilon": "1", "--delta": "1e-6"}
ROUND_VALUES = [
    ("--reports", "0", "reports"),
    ("--reports", "1000000000001", "reports"),
    ("--reports", "nan", "reports"),
    ("--reports", "1_000", "reports"),
    ("--reports", "٣", "reports"),
    ("--reports", "9" * 5000, "reports"),
    ("--randomizer", "krr(k=1, epsilon0=1)", "k"),
    ("--randomizer", "krr(k=2, epsilon0=nan)", None),
    ("--randomizer", f"krr(k=2, epsilon0={'9' * 350})", "epsilon0"),
    ("--randomizer", "__import__('os').system('true')", None),
    ("--randomizer", "", None),
    ("--honest-fraction", "1.1", "honest_fraction"),
    ("--honest-fraction", "nan", "honest_fraction"),
    ("--sampled-from", "10", "sampled_from"),
    ("--analysis", "magic", "analysis"),
]
DELTAS = ["0", "1", "nan", "-inf", "abc"]


def _flat(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


@pytest.mark.parametrize(("option", "value", "field"), ROUND_VALUES, ids=lambda value: str(value)[:24])
def test_a_bad_round_is_named(run: Run, option: str, value: str, field: str | None) -> None:
    answer = run("amplify", *_flat(AMPLIFY | {option: value}), "--json")
    assert answer.code == 2
    error = answer.json["error"]
    assert error["kind"] == "bad_value"
    assert error["expected"]
    assert len(error["message"]) < 500
    if field is not None:
        assert error["field"] == field


@pytest.mark.parametrize("delta", DELTAS)
def test_a_bad_delta_is_named(phones: Run, delta: str) -> None:
    for order in (
        ["amplify", *_flat(AMPLIFY | {"--delta": delta})],
        ["cohort", "open", "other", *_flat(OPEN | {"--delta": delta})],
    ):
        answer = phones(*order, "--json")
        assert answer.code == 2
        assert answer.json["error"]["field"] == "delta"


@pytest.mark.parametrize("name", ["DATABASE_URL", "BROKER_URL", "CHECKPOINT"])
def test_an_empty_setting_is_not_taken_for_none(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rounds would wait for workers that are not there, or be written to another ledger."""
    monkeypatch.setenv(f"SHUFFLE_LEDGER_{name}", "")
    answer = run("cohort", "list", "--json")
    assert answer.code == 2
    assert answer.json["error"]["field"] == f"SHUFFLE_LEDGER_{name}"
    assert "unset" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("randomizer", "said"),
    [
        ("foo()", "known are generic"),
        ("declared(epsilon=1)", "has an epsilon0"),
        ("krr()", "krr needs a value for k"),
    ],
)
def test_what_cannot_be_calibrated_says_why(run: Run, randomizer: str, said: str) -> None:
    target = ("--epsilon", "1", "--delta", "1e-6")
    answer = run("calibrate", "--randomizer", randomizer, "--reports", "9", *target, "--json")
    assert answer.code == 2
    assert said in answer.json["error"]["message"]


def test_a_value_in_json_is_the_value_that_was_given(run: Run) -> None:
    answer = run("amplify", *_flat(AMPLIFY), "--delta", "abc", "--json")
    assert answer.json["error"]["value"] == "abc"
    answer = run("amplify", *_flat(AMPLIFY), "--delta", "1e-6", "--renyi", "inf", "--json")
    assert answer.json["error"]["field"] == "renyi"


def test_a_randomizer_that_stands_without_quotes_is_told_from_other_columns(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rounds.csv"
    file.write_text("randomizer,reports\nkrr(k=10, epsilon0=1),1000\n")
    answer = run("compose", str(file), "--delta", "1e-6", "--json")
    assert answer.code == 2
    assert "double quotes" in answer.json["error"]["message"]


def test_counts_are_limited_line_by_line_and_altogether(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rounds.csv"
    for counts, line in (([10**9], 2), ([6 * 10**6, 6 * 10**6], 3)):
        rows = "".join(f'"krr(k=10, epsilon0=1)",1000,{count}\n' for count in counts)
        file.write_text("randomizer,reports,count\n" + rows)
        answer = run("compose", str(file), "--delta", "1e-6", "--json")
        assert answer.code == 2
        assert answer.json["error"]["field"] == "count"
        assert answer.json["error"]["line"] == line


@pytest.mark.slow
def test_a_randomizer_may_be_given_in_the_form_of_answers(run: Run, tmp_path: Path) -> None:
    asked = ("--reports", "1000", "--delta", "1e-6", "--json")
    call = run("amplify", "--randomizer", "krr(k=10, epsilon0=1.15)", *asked).json
    written = json.dumps(call["round"]["randomizer"])
    assert run("amplify", "--randomizer", written, *asked).json == call
    doubled = '{"kind": "krr", "k": 10, "k": 11, "epsilon0": 1.15}'
    assert run("amplify", "--randomizer", doubled, *asked).code == 2


def test_a_moment_that_there_is_not_in_utc_is_a_bad_value(phones: Run) -> None:
    for moment in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        assert phones("round", "list", "phones", "--since", moment).code == 2
