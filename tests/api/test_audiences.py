"""Rounds of several cohorts over HTTP: who is named, and what tokens with limits may ask."""

from __future__ import annotations

from typing import Any

import pytest

from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import NotAllowed, NotFound
from tests.api.conftest import ROUND, Server

NAMES = ("tablets", "watches")


@pytest.fixture
def client(client: LedgerClient) -> LedgerClient:
    """Open two cohorts with labels."""
    for name in NAMES:
        opened: dict[str, Any] = {"population": 1000, "epsilon": 1.0, "delta": 1e-6, "policy": "adaptive"}
        client.open_cohort(
            name=name, **opened, labels={"worn": "no" if name == "tablets" else "yes", "size": "s"}
        )
    return client


def register(server: Server, bearer: str = "registrar", **body: Any) -> Any:
    return server.ask("POST", "/v1/rounds", bearer=bearer, json={"round_id": "a", **ROUND, **body})


def test_one_of_cohort_and_audience_is_given(server: Server, client: LedgerClient) -> None:
    assert register(server, audience="size=s").status_code == 201
    assert register(server, audience=["watches", "tablets"]).json()["audience"]
    assert register(server, audience=["phones"], round_id="b").status_code == 201
    assert server.ask("GET", "/v1/rounds/b").json()["audience"] == []
    both: dict[str, Any] = {"cohort": "phones", "audience": ["tablets"]}
    for body in ({}, both):
        contradicts = register(server, "registrar", round_id="c", **body)
        assert (contradicts.status_code, contradicts.json()["field"]) == (409, "cohort")
    assert register(server, round_id="c", audience="size=xl").status_code == 404
    assert register(server, round_id="c", audience=["tablets", "nobody"]).status_code == 404
    assert register(server, cohort="tablets").status_code == 409
    quoted = server.ask("POST", "/v1/quote", json={"audience": list(NAMES), **ROUND})
    assert quoted.json()["would_be"] == "admitted"


def test_a_token_with_limits_sees_rounds_of_its_cohorts_alone(server: Server, client: LedgerClient) -> None:
    server.issue("narrow", "registrar", cohorts=["tablets"])
    server.issue("wide", "registrar", cohorts=list(NAMES))
    assert register(server, "narrow", audience=list(NAMES)).status_code == 404
    assert register(server, "wide", audience="size=s").status_code == 403
    assert register(server, "wide", audience=list(NAMES)).status_code == 201
    for path in ("/v1/rounds/a",):
        assert server.ask("GET", path, bearer="wide").status_code == 200
        assert server.ask("GET", path, bearer="narrow").status_code == 404
    void = {"json": {"reason": "never sent"}}
    assert server.ask("POST", "/v1/rounds/a/void", bearer="narrow", **void).status_code == 404
    taken = register(server, "narrow", cohort="tablets")
    assert (taken.status_code, "cannot be used" in taken.json()["detail"]) == (409, True)
    limited = LedgerClient(server.url, server.tokens["narrow"], retry_seconds=5)
    with pytest.raises(NotAllowed):
        limited.audience("size=s")
    with pytest.raises(NotFound):
        limited.audience("tablets,watches")
    assert server.ask("POST", "/v1/rounds/a/void", bearer="wide", **void).status_code == 200


def test_a_list_shows_an_audience_only_to_a_token_that_sees_all_of_it(
    server: Server, client: LedgerClient
) -> None:
    assert client.cohorts()
    assert register(server, audience=list(NAMES)).status_code == 201
    for name in NAMES:
        server.issue(f"of {name}", "registrar", cohorts=[name])
        for bearer, audience in (("registrar", list(NAMES)), (f"of {name}", [])):
            answer = server.ask("GET", f"/v1/rounds?cohort={name}", bearer=bearer)
            assert [each["audience"] for each in answer.json()["rounds"]] == [audience]
            hidden = [other for other in NAMES if other not in answer.text]
            assert hidden == ([] if audience else [other for other in NAMES if other != name])


def test_a_text_of_names_has_commas_or_bars_between(server: Server) -> None:
    for text in ("phones,secret", "phones|secret", "phones, secret"):
        named = server.ask("GET", "/v1/audience", params={"select": text})
        assert named.json() == {"audience": ["phones", "secret"]}
        quoted = server.ask("POST", "/v1/quote", json={"audience": text, **ROUND})
        assert quoted.json()["audience"] == ["phones", "secret"]


def test_a_quote_takes_the_body_of_a_registration(server: Server) -> None:
    body = {"round_id": "r", "use_case": "emoji", "cohort": "phones", **ROUND}
    quoted = server.ask("POST", "/v1/quote", json=body)
    assert (quoted.status_code, quoted.json()["would_be"]) == (200, "admitted")
    assert server.ask("POST", "/v1/rounds", json=body).status_code == 201
    again = server.ask("POST", "/v1/quote", json=body)  # as of a new round
    assert (again.status_code, again.json()["would_be"]) == (200, "admitted")
