"""Problem documents in plain words: their exact texts, and that no text of a library gets out."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError

from shuffle_ledger.ledger.api.invalid_requests import EXPECTED, wrong_field
from shuffle_ledger.ledger.api.routes import read
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.errors import Difference, InvalidValue, OtherContent
from shuffle_ledger.ledger.operations import OPERATIONS
from shuffle_ledger.ledger.questions.fields import UNKNOWN_FIELD, Body
from shuffle_ledger.ledger.values.requests import RoundRequest
from tests.api.conftest import ROUND, Server

NAMES = "1 to 200 printable characters, none of the outer ones blank"
OPENING = {"name": "x", "population": 100_000, "epsilon": 1, "delta": 1e-6}
REGISTERED = {"round_id": "r", "cohort": "phones", **ROUND}
WORDS_OF_LIBRARIES = (
    "input", "should", "validat", "permitted", "required", "valid ", "parse", "pydantic", "dictionary",
    "string", "none_", "extra ", "field required",
)  # fmt: skip


MISSPELT = (
    "unknown field 'reprots' in rounds.0; expected one of randomizer, reports, sampled_from, participation,"
    " honest_fraction, delta0, analysis, reports_per_user; did you mean reports?"
)
FIELDS = "name, population, epsilon, delta, policy, plan, approximate_share, labels, windows"
LABELLED = "Latin letters, digits, blanks and _ . : / -, with a letter or digit at both ends"


YEARS = "expected a date from 1000-01-01 to 2999-12-31"
FEBRUARY = "expected a date as YYYY-MM-DD: February 2026 has 28 days"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("round_id", "", "round_id: is empty, expected at least 1 character"),
        ("round_id", " a", f"round_id: got  a, expected {NAMES}"),
        ("round_id", None, "round_id: is null, expected a text"),
        ("round_id", 7, "round_id: got 7, expected a text"),
        ("reports", "9", 'reports: got "9", expected a whole number'),
        ("reports", 9.5, "reports: got 9.5, expected a whole number"),
        ("reports", 0, "reports: got 0, expected a number of at least 1"),
        ("reports", True, "reports: got "),
        ("randomizer", "krr(k=1, epsilon0=1)", "randomizer.k: got 1"),
        ("participation", 0, "participation: got 0, expected a number above 0"),
        ("delta0", 1, "delta0: got 1, expected a number below 1"),
        ("honest_fraction", 2, "honest_fraction: got 2, expected a number of at most 1"),
        (
            "analysis",
            "loose",
            "analysis: got loose, expected one of 'clone', 'clone-identical', 'tight', 'blanket', 'exact',",
        ),
        ("collected_on", "1.2.2025", "collected_on: got 1.2.2025, expected a date as YYYY-MM-DD"),
        ("collected_on", "9999-12-31", f"collected_on: got 9999-12-31, {YEARS}"),
        ("collected_on", "0001-01-01", f"collected_on: got 0001-01-01, {YEARS}"),
        ("collected_on", "2026-02-29", f"collected_on: got 2026-02-29, {FEBRUARY}"),
        (
            "collected_on",
            "2026-13-01",
            "collected_on: got 2026-13-01, expected a date as YYYY-MM-DD: a month",
        ),
        (
            "randomizer",
            "krr(k=9, eps0=3)",
            "randomizer: krr has no parameter eps0; it takes k and epsilon0; did you mean",
        ),
    ],
)
def test_a_field_of_a_round_that_does_not_fit_says_why(
    untouched: Server, field: str, value: Any, said: str
) -> None:
    answer = untouched.ask("POST", "/v1/rounds", json={**REGISTERED, field: value})
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert answer.json()["type"] == "urn:shuffle-ledger:problem:bad_value"
    assert answer.json()["detail"].startswith(said)
    assert answer.json()["field"].split(".")[0] == field
    assert answer.json()["expected"]


@pytest.mark.parametrize(
    "changes",
    [{"reports": 100_001}, {"sampled_from": 500}, {"analysis": "clone"}, {"delta0": 0.1}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_contradicts_the_rest_of_a_round_is_a_conflict(
    untouched: Server, changes: dict[str, Any]
) -> None:
    answer = untouched.ask("POST", "/v1/rounds", json={**REGISTERED, **changes})
    assert (answer.status_code, answer.json()["field"]) == (409, *changes)


def test_a_field_of_an_inner_object_is_said_to_be_one(untouched: Server) -> None:
    answer = untouched.ask("POST", "/v1/cohorts", json={**OPENING, "per": "week"})
    assert answer.json()["detail"].endswith("; per is a field of the objects in windows")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("rounds", {"cohort": "phones", **ROUND}, "round_id: is missing"),
        ("cohorts/phones/quote", {"rounds": [{**ROUND, "reprots": 1}]}, MISSPELT),
        ("cohorts/phones/quote", {"rounds": []}, "rounds: got [], expected at least 1 item"),
        ("cohorts", [], "body: got [], expected an object"),
        ("cohorts", None, "body: is missing: send a JSON object"),
        ("cohorts", {**OPENING, "x": 1}, f"unknown field 'x'; expected one of {FIELDS}"),
        ("cohorts", {**OPENING, "plan": {}}, "plan: got {}, expected a list"),
        ("cohorts", {**OPENING, "labels": 3}, "labels: got 3, expected an object"),
        ("cohorts", {**OPENING, "labels": {"a": "?"}}, f"labels.a: got ?, expected {LABELLED}"),
        ("statements", {"as_of": "2026-02-29T12:00:00Z"}, f"as_of: got 2026-02-29T12:00:00Z, {FEBRUARY}"),
        (
            "statements",
            {"as_of": "2026-02-28T25:00:00Z"},
            "as_of: got 2026-02-28T25:00:00Z, expected a time with",
        ),
        ("statements", {"as_of": "now"}, "as_of: got now, expected a time with its zone, as 2025-01-06T12"),
    ],
)
def test_a_body_that_does_not_fit_says_why(untouched: Server, path: str, body: Any, said: str) -> None:
    answer = untouched.ask("POST", f"/v1/{path}", **({} if body is None else {"json": body}))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:shuffle-ledger:problem:bad_value")
    assert answer.json()["detail"].startswith(said)
    assert set(answer.json()) >= {"field", "value", "expected"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "limit: got 0, expected a number of at least 1"),
        ("limit=x", "limit: got x, expected a whole number"),
        ("outcome=lost", "outcome: got lost, expected one of 'pending', 'admitted', 'refused', 'settled'"),
        ("since=today", "since: got today, expected a time with its zone, as 2025-01-06T12:00:00Z"),
        ("cohort=" + "x" * 201, "cohort: got " + "x" * 197 + "..., expected at most 200 characters"),
    ],
)
def test_a_query_that_does_not_fit_says_why(untouched: Server, query: str, said: str) -> None:
    answer = untouched.ask("GET", f"/v1/rounds?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(said)


def _questions() -> list[type[Body]]:
    return sorted({each.question for each in OPERATIONS if each.has_body}, key=str)


def _errors(kind: type[Body], body: Any) -> list[dict[str, Any]]:
    try:
        read(kind, body)
    except RequestValidationError as error:
        return list(error.errors())
    return []


def _bad_values() -> list[Any]:
    plain: list[Any] = [None, "", " a", "x" * 5000, -1, 0, 1.5, 10**20, float("inf"), True, b"x"]
    inner = [[value] for value in plain] + [{"a": value} for value in plain] + [{"?": "a"}, {1: 2}]
    return [*plain, [], {}, *inner, ["a"] * 20_000, {f"a{each}": "b" for each in range(2000)}]


@pytest.mark.parametrize("kind", _questions(), ids=lambda kind: kind.__name__)
def test_no_schema_says_anything_in_the_words_of_a_library(kind: type[Body]) -> None:
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # of a dataclass
    bodies: list[Any] = [{name: value} for name in names for value in _bad_values()]
    for body in [*bodies, {}, [], None, "x", {"unknown": 1}]:
        for each in _errors(kind, body):
            assert each["type"] in EXPECTED or each["type"] == UNKNOWN_FIELD, each["type"]
            wrong = wrong_field(each)
            said = (wrong.message or wrong.expected).lower()
            if each["type"] != "value_error":  # whose words are ours
                assert not [word for word in WORDS_OF_LIBRARIES if word in said], said


def test_every_kind_of_error_is_one_that_a_schema_gives() -> None:
    """A row that no schema needs is deleted; the kinds about addresses are listed here."""
    given = {"enum", "int_parsing", "int_parsing_size"}  # of the query of a request
    for kind, value in itertools.product(_questions(), _bad_values()):
        for body in [{field.name: value} for field in dataclasses.fields(kind)] + [value]:  # type: ignore[arg-type]  # as above
            given |= {each["type"] for each in _errors(kind, body)}
    assert set(EXPECTED) <= given, set(EXPECTED) - given


def test_other_content_names_what_differs(server: Server) -> None:
    server.register("r", use_case="emoji")
    answer = server.register("r", reports=2000, randomizer="krr(k=3, epsilon0=0.5)").json()
    assert answer["detail"] == (
        "round 'r' was registered with other content: use_case: stored emoji, given nothing;"
        " randomizer: stored krr(epsilon0=0.5, k=2), given krr(epsilon0=0.5, k=3);"
        " reports: stored 1000, given 2000; analysis: stored exact, given blanket"
    )
    assert answer["differences"] == [
        {"field": "use_case", "stored": "emoji", "given": None},
        {
            "field": "randomizer",
            "stored": {"kind": "krr", "epsilon0": 0.5, "k": 2},
            "given": {"kind": "krr", "epsilon0": 0.5, "k": 3},
        },
        {"field": "reports", "stored": 1000, "given": 2000},
        {"field": "analysis", "stored": "exact", "given": "blanket"},
    ]
    opening = {"name": "phones", "population": 90_000, "epsilon": 1, "delta": 1e-6}
    answer = server.ask("POST", "/v1/cohorts", json=opening).json()
    assert answer["detail"] == (
        "cohort 'phones' exists with other parameters: population: stored 100000, given 90000;"
        " rounds of it were decided or recorded, so it is not opened again"
    )
    assert answer["differences"] == [{"field": "population", "stored": 100_000, "given": 90_000}]


def test_the_client_raises_what_differs(server: Server) -> None:
    server.register("r")
    request = RoundRequest.from_bytes(server.store.round("r").content)
    with LedgerClient(server.url, server.tokens["registrar"]) as client:
        other = RoundRequest(round_id="r", cohort="phones", round=request.round, use_case="emoji")
        with pytest.raises(OtherContent) as caught:
            client.register(other)
        assert caught.value.differences == (Difference(field="use_case", stored=None, given="emoji"),)
        assert str(caught.value) == (
            "round 'r' was registered with other content: use_case: stored nothing, given emoji"
        )
    with LedgerClient(server.url, server.tokens["admin"]) as client, pytest.raises(InvalidValue) as refused:
        client.open_cohort(name="p", population=10**6, epsilon=1.0, delta=1e-8, policy="plan")
    assert str(refused.value) == "policy plan needs the field plan: the rounds of the plan"


def test_what_is_stored_is_not_shown_to_a_token_that_may_not_read_it(server: Server) -> None:
    server.register("theirs", cohort="secret", use_case="confidential", reports=777)
    server.issue("limited", "registrar", cohorts=["phones"])
    body = {"round_id": "theirs", "cohort": "phones", **ROUND}
    answer = server.ask("POST", "/v1/rounds", bearer="limited", json=body)
    assert answer.status_code == 409
    assert "differences" not in answer.json()
    assert not [word for word in ("secret", "confidential", "777") if word in answer.text]
    path, told = "/v1/cohorts/phones/incidents", {"round": None, "reason": "an export", "round_id": "theirs"}
    answer = server.ask("POST", path, bearer="limited", json=told)
    assert answer.status_code == 409
    assert not [word for word in ("secret", "confidential", "777") if word in answer.text]


@pytest.mark.parametrize(
    ("method", "path", "bearer", "said"),
    [
        ("POST", "rounds", "reader", "reader may not register rounds; role registrar or admin may"),
        ("GET", "heads", "registrar", "registrar may not read entries; role auditor or admin may"),
        ("POST", "cohorts", "registrar", "registrar may not open cohorts or change budgets; role admin may"),
        ("GET", "metrics", "registrar", "registrar may not read metrics; role auditor, reader or admin may"),
    ],
)
def test_a_role_that_is_too_small_is_told_which_is_not(
    untouched: Server, method: str, path: str, bearer: str, said: str
) -> None:
    json = {"rounds": REGISTERED, "cohorts": OPENING}.get(path)
    prefix = "" if path == "metrics" else "/v1"
    answer = untouched.ask(method, f"{prefix}/{path}", bearer=bearer, json=json)
    assert (answer.status_code, answer.json()["detail"]) == (403, f"a token with role {said}")


def test_an_error_of_another_library_is_not_swallowed() -> None:
    with pytest.raises(KeyError):
        wrong_field({"loc": ("body", "x")})
    assert issubclass(RequestValidationError, Exception)
