"""Calculators over HTTP: the command line's own answers, computed once, with limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.api.served import QUESTION_MAX
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import TryAgain
from shuffle_ledger.ledger.questions.calculators import KINDS_MAX
from tests.api.conftest import Server

KRR = {"randomizer": "krr(k=4, epsilon0=1)", "reports": 500}
ROUNDS: list[dict[str, Any]] = [
    {"randomizer": {"kind": "krr", "k": 4, "epsilon0": 1.0}, "reports": 500, "honest_fraction": 0.5},
    {"randomizer": "generic(epsilon0=2)", "reports": 400, "delta0": 1e-9, "sampled_from": 800},
    {"randomizer": "oue(epsilon0=1, domain=8)", "reports": 300, "participation": 0.5},
    {
        "randomizer": "krr(k=4, epsilon0=1)",
        "reports": 600,
        "reports_per_user": 3,
    },
    {"randomizer": "declared(epsilon=0.1, delta=1e-9)", "reports": 60},
]


def printed(*words: str) -> Any:
    """Return what a command prints with --json."""
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def options(question: dict[str, Any]) -> list[str]:
    """Return the options that ask the same of the command line."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in question.items()}
    return [part for name, text in texts.items() for part in ("--" + name.replace("_", "-"), text)]


@pytest.mark.slow
def test_amplify_answers_what_the_command_line_prints(server: Server) -> None:
    for described in ROUNDS:
        for target in ({"delta": 1e-6}, {"epsilon": 0.3}):
            question = {**described, **target}
            answer = server.ask("POST", "/v1/amplify", bearer="reader", json=question)
            assert answer.status_code == 200, answer.text
            assert answer.json() == printed("amplify", *options(question))


@pytest.mark.slow
def test_compose_answers_what_the_command_line_prints(server: Server, tmp_path: Path) -> None:
    rounds = [{**each, "count": 1 + place % 3} for place, each in enumerate(ROUNDS)]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    for target in ({"delta": 1e-5}, {"epsilon": 2.0}):
        answer = server.ask("POST", "/v1/compose", json={"rounds": rounds, **target})
        assert answer.status_code == 200, answer.text
        assert answer.json() == printed("compose", str(tmp_path / "rounds.jsonl"), *options(target))


@pytest.mark.slow
@pytest.mark.parametrize(
    "question",
    [
        {"randomizer": {"kind": "krr", "k": 4}, "reports": 500, "rounds": 3, "policy": "plan"},
        {"randomizer": "mixed((30, krr(k=3, epsilon0=2)))", "reports": 30},
    ],
)
def test_calibrate_answers_what_the_command_line_prints(server: Server, question: dict[str, Any]) -> None:
    asked = {**question, "epsilon": 0.8, "delta": 1e-3}
    answer = server.ask("POST", "/v1/calibrate", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json() == printed("calibrate", *options(asked))


@pytest.mark.parametrize(
    ("path", "question", "status", "detail"),
    [
        ("amplify", KRR, 409, "expected a delta or an epsilon, not both"),
        (
            "amplify",
            {**KRR, "delta": 1e-6, "epsilon": 1},
            409,
            "delta: got 1e-06, expected a delta or an epsilon, not both",
        ),
        ("amplify", {**KRR, "delta": 1}, 422, "delta: got 1, expected"),
        ("amplify", {**KRR, "delta": 1e-6, "cohort": "phones"}, 422, "unknown field 'cohort'"),
        ("amplify", {**KRR, "delta": 1e-6, "analysis": "tight"}, 409, "analysis"),
        ("compose", {"rounds": [], "delta": 1e-6}, 422, "rounds: got []"),
        ("compose", {"rounds": [KRR] * (KINDS_MAX + 1), "delta": 1e-6}, 422, "at most 200 items"),
        ("compose", {"rounds": [{**KRR, "count": 10**7}] * 2, "delta": 1e-6}, 409, "at most 10000000 rounds"),
        ("calibrate", {**KRR, "epsilon": 1, "delta": 1e-6}, 409, "which is left out"),
        (
            "calibrate",
            {"randomizer": "nothing()", "reports": 1, "epsilon": 1, "delta": 0.1},
            409,
            "known are",
        ),
        ("calibrate", {"randomizer": "krr(k=4)", "reports": 9, "epsilon": 1}, 422, "delta"),
        (
            "calibrate",
            {"randomizer": 5, "reports": 9, "epsilon": 1, "delta": 0.1},
            422,
            "randomizer: got 5, expected a call such as krr(k=10), or its JSON form",
        ),
    ],
)
def test_bad_questions_get_their_reason(
    untouched: Server, path: str, question: dict[str, Any], status: int, detail: str
) -> None:
    answer = untouched.ask("POST", f"/v1/{path}", json=question)
    assert answer.status_code == status, answer.text
    assert detail in answer.json()["detail"]


def test_a_question_that_is_too_large_is_refused_before_it_is_computed(untouched: Server) -> None:
    parts = ", ".join(["krr(k=4, epsilon0=1)"] * 4000)
    question = {"randomizer": f"joint({parts})", "reports": 10, "epsilon": 1, "delta": 1e-6}
    answer = untouched.ask("POST", "/v1/calibrate", json=question)
    assert answer.status_code == 413
    assert f"at most {QUESTION_MAX} characters" in answer.json()["detail"]
    assert answer.json()["type"].endswith(":too_large")


def test_the_same_question_is_computed_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    certify = Accountant.certify

    def counting(self: Accountant, *given: Any, **named: Any) -> Any:
        computed.append(given)
        return certify(self, *given, **named)

    monkeypatch.setattr(Accountant, "certify", counting)
    ways = [KRR, {**KRR, "randomizer": {"epsilon0": 1, "kind": "krr", "k": 4}}, {**KRR, "honest_fraction": 1}]
    answers = [server.ask("POST", "/v1/amplify", json={**way, "delta": 1e-6}) for way in ways]
    assert len({answer.text for answer in answers}) == 1
    assert len(computed) == 1


def test_rounds_that_are_accounted_alike_have_their_own_attacks(server: Server) -> None:
    gaussian = {"randomizer": "local_gaussian(sigma=4, delta0=1e-9)", "reports": 500, "delta": 1e-6}
    first = server.ask("POST", "/v1/amplify", json=gaussian).json()
    alike = {**first["round"], "delta": 1e-6}
    second = server.ask("POST", "/v1/amplify", json=alike).json()
    again = server.ask("POST", "/v1/amplify", json=gaussian).json()
    assert first["round"] == second["round"]
    assert first["round"]["randomizer"]["kind"] == "generic"
    assert (first["attack_known"], second["attack_known"], again["attack_known"]) == (False, True, False)
    assert first["attack_epsilon_lower"] is None
    assert second["attack_epsilon_lower"] > 0


def test_a_long_computation_is_left_running_and_answers_later(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(decision_timeout_seconds=0.2)
    go, certify = threading.Event(), Accountant.certify

    def slow(self: Accountant, *given: Any, **named: Any) -> Any:
        assert go.wait(30)
        return certify(self, *given, **named)

    monkeypatch.setattr(Accountant, "certify", slow)
    question = {**KRR, "delta": 1e-6}
    answer = server.ask("POST", "/v1/amplify", json=question)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (503, "busy")
    assert "still being computed" in answer.json()["detail"]
    assert answer.headers["Retry-After"]
    go.set()
    described = ShuffledRound(randomizer=parse_randomizer(KRR["randomizer"]), reports=500)
    with LedgerClient(server.url, server.tokens["reader"], retry_seconds=20) as client:
        assert client.amplify(described, delta=1e-6).rounds == 1


def test_the_line_is_bounded(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(decision_timeout_seconds=0.05)
    go = threading.Event()

    def waiting(self: Accountant, *given: Any, **named: Any) -> Any:
        go.wait(30)
        raise TryAgain("not now")

    monkeypatch.setattr(Accountant, "certify", waiting)
    try:
        said = [
            server.ask("POST", "/v1/amplify", json={**KRR, "reports": 100 + place, "delta": 1e-6}).json()
            for place in range(34)
        ]
    finally:
        go.set()
    assert "still being computed" in said[0]["detail"]
    assert "busy with other computations" in said[33]["detail"]
