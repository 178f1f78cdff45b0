"""Names that are gone: each is refused with the sentence that says what replaces it."""

from __future__ import annotations

import pytest
from fastapi.exceptions import RequestValidationError

from shuffle_ledger.ledger.api.invalid_requests import wrong_field
from shuffle_ledger.ledger.api.routes import read
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.gone_names import GONE
from shuffle_ledger.ledger.questions.audits import VerifyChains
from shuffle_ledger.ledger.questions.cohorts import OpenCohort
from shuffle_ledger.ledger.questions.fields import Body
from shuffle_ledger.ledger.questions.rounds import CorrectRound, RegisterRound
from shuffle_ledger.ledger.values import Cohort
from tests.cli.conftest import Run

TARGET = ("--epsilon", "1", "--delta", "1e-6")
ROUND = ("--randomizer", "krr(k=4)", "--reports", "1000")
# An order for each command that is gone.
COMMANDS = {
    "reserve": ("reserve", "--help"),
    "reserve release": ("reserve", "release", "phones", "--epsilon", "2", "--reason", "why"),
    "reserve approve": ("reserve", "approve", "phones", "--epsilon", "2"),
}
# An order for each option, and for each value of an option, that is gone.
OPTIONS = {
    "--stratum": ("round", "register", "--id", "a", "--stratum", "phones=10/100"),
    "--stratified": ("round", "quote", "--stratified", "phones=10/100"),
    "round correct --also-cohort": ("round", "correct", "a", "--also-cohort", "tablets"),
    "round correct --collected-on": ("round", "correct", "a", "--collected-on", "2026-01-05"),
    "round correct --collected-until": ("round", "correct", "a", "--collected-until", "2026-01-05"),
    "cohort open --windows-only": ("cohort", "open", "phones", "--windows-only"),
    "--interaction": ("amplify", *ROUND, "--interaction", "identical"),
    "calibrate --policy fixed": ("calibrate", *ROUND, *TARGET, "--policy", "fixed"),
    "webhook add --kind broken": ("webhook", "add", "https://receiver.example/", "--kind", "broken"),
    "webhook add --kind stuck": ("webhook", "add", "https://receiver.example/", "--kind", "stuck"),
    "round import --sheet": ("round", "import", "rounds.csv", "--sheet", "first"),
    "audit verify --since-verified": ("audit", "verify", "--since-verified"),
    "audit statement --format csv": ("audit", "statement", "phones", "--format", "csv"),
}
# A body for each field that is gone.
FIELDS: dict[str, tuple[type[Body], dict[str, object]]] = {
    "stratified": (RegisterRound, {"stratified": {"phones": [10, 100]}}),
    "interaction": (RegisterRound, {"interaction": "identical"}),
    "windows_only": (OpenCohort, {"windows_only": True}),
    "also_cohorts": (CorrectRound, {"also_cohorts": ["tablets"]}),
    "VerifyChains.entries": (VerifyChains, {"entries": "new"}),
    "CorrectRound.collected_on": (CorrectRound, {"collected_on": "2026-01-05"}),
    "CorrectRound.collected_until": (CorrectRound, {"collected_until": "2026-01-05"}),
}
SETTINGS = [name for name in GONE if name.startswith("SHUFFLE_LEDGER_")]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_gone_is_refused_with_what_replaces_it(
    phones: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "anything")
    answer = phones("cohort", "list", "--json")
    assert answer.code == 2
    assert answer.json["error"]["message"] == f"setting {name} is gone: {GONE[name]}"
    assert "anything" not in answer.stdout


@pytest.mark.parametrize("name", COMMANDS | OPTIONS)
def test_a_command_or_option_that_is_gone_is_refused_with_what_replaces_it(run: Run, name: str) -> None:
    answer = run(*(COMMANDS | OPTIONS)[name])
    assert answer.code == 2
    assert answer.stderr.rstrip().endswith(GONE[name])


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_gone_is_refused_with_what_replaces_it(name: str) -> None:
    kind, body = FIELDS[name]
    with pytest.raises(RequestValidationError) as refused:
        read(kind, body)
    assert str(wrong_field(refused.value.errors()[0]).message).endswith(f" is gone: {GONE[name]}")


def test_a_policy_that_is_gone_is_refused_over_http_and_by_the_library() -> None:
    opening: dict[str, object] = {"name": "a", "population": 9, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(RequestValidationError) as refused:
        read(OpenCohort, {**opening, "policy": "fixed"})
    sentence = f"policy fixed is gone: {GONE['policy fixed']}"
    assert wrong_field(refused.value.errors()[0]).message == sentence
    with pytest.raises(InvalidValue) as invalid:
        Cohort(name="a", population=9, epsilon_budget=1.0, delta_budget=1e-6, policy="fixed")
    assert (str(invalid.value), invalid.value.field) == (sentence, "policy")


def test_every_name_that_is_gone_is_tried() -> None:
    assert {*SETTINGS, *COMMANDS, *OPTIONS, *FIELDS, "policy fixed"} == set(GONE)
