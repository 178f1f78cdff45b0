"""Over HTTP, unusual cohorts, and first rounds that want declared slots, need `accept_warnings`; the client
and the command line say so as well."""

from __future__ import annotations

from typing import Any

import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.errors import UnacceptedWarnings
from shuffle_ledger.ledger.values.requests import RoundRequest
from tests.api.conftest import Server

UNUSUAL: dict[str, Any] = {"name": "x", "population": 99, "epsilon": 10.5, "delta": 1e-6}
FIELDS = ["population", "epsilon", "windows"]
WINDOWS = [{"calendar": "week", "epsilon": 1, "delta": 0.5}]


def test_a_server_lists_every_warning_until_they_are_accepted(server: Server) -> None:
    body = {**UNUSUAL, "windows": WINDOWS}
    for refused in (body, {**body, "accept_warnings": False}):
        answer = server.ask("POST", "/v1/cohorts", json=refused)
        said = answer.json()
        assert (answer.status_code, said["type"]) == (409, "urn:shuffle-ledger:problem:unaccepted_warnings")
        assert (said["cohort"], [each["field"] for each in said["warnings"]]) == ("x", FIELDS)
        assert all(each["message"] in said["detail"] for each in said["warnings"])
        assert said["detail"].endswith(". If that is meant, ask again with accept_warnings: true")
    assert server.ask("GET", "/v1/cohorts/x").status_code == 404
    assert server.ask("POST", "/v1/cohorts", json={**body, "accept_warnings": True}).status_code == 201
    assert server.ask("POST", "/v1/cohorts", json=body).status_code == 201  # it exists
    other = server.ask("POST", "/v1/cohorts", json={**body, "epsilon": 11})  # it would be opened again
    assert other.json()["type"].endswith(":unaccepted_warnings")
    assert server.ask("POST", "/v1/cohorts", json={**body, "accept_warnings": "yes"}).status_code == 422


def test_the_client_raises_the_warnings_and_takes_an_argument(server: Server) -> None:
    with LedgerClient(server.url, server.tokens["admin"]) as client:
        with pytest.raises(UnacceptedWarnings) as caught:
            client.open_cohort(**UNUSUAL, policy="adaptive")
        assert [each.field for each in caught.value.warnings] == FIELDS[:2]
        assert "10.5, is above 10" in str(caught.value)
        opened = client.open_cohort(**UNUSUAL, policy="adaptive", accept_warnings=True)
        assert client.open_cohort(**UNUSUAL, policy="adaptive") == opened
        other = {**UNUSUAL, "epsilon": 11.0, "policy": "adaptive"}
        with pytest.raises(UnacceptedWarnings):
            client.open_cohort(**other)
        assert client.open_cohort(**other, accept_warnings=True).epsilon_budget == 11.0


SAMPLE: dict[str, Any] = {"randomizer": "krr(k=4, epsilon0=4)", "reports": 100, "sampled_from": 10000}


@pytest.mark.slow
def test_the_first_small_sample_wants_slots_or_a_word(server: Server) -> None:
    """Slots cannot be declared after the first decision, so the question comes before it."""
    cohort = {"name": "phones", "population": 100_000, "epsilon": 1, "delta": 1e-6}
    assert server.ask("POST", "/v1/cohorts", json=cohort).status_code == 201
    body = {**SAMPLE, "cohort": "phones", "round_id": "a"}
    helped = server.ask("POST", "/v1/quote", json={**body, "accept_warnings": True}).json()[
        "slots_would_help"
    ]
    refused = server.ask("POST", "/v1/rounds", json=body)
    said = refused.json()
    assert (refused.status_code, said["type"]) == (409, "urn:shuffle-ledger:problem:unaccepted_warnings")
    assert (said["cohort"], said["round_id"]) == ("phones", "a")
    assert [each["field"] for each in said["warnings"]] == ["plan"]
    assert f"at least {helped['rounds_with']:,} would" in said["detail"]
    assert server.ask("GET", "/v1/rounds/a").status_code == 404, "nothing was registered"
    sample = ShuffledRound(
        randomizer=parse_randomizer("krr(k=4, epsilon0=4)"), reports=100, sampled_from=10000
    )
    with LedgerClient(server.url, server.tokens["admin"]) as client:
        with pytest.raises(UnacceptedWarnings) as caught:
            client.register(RoundRequest(round_id="a", cohort="phones", round=sample))
        assert (caught.value.cohort, caught.value.round_id) == ("phones", "a")
    assert server.ask("POST", "/v1/rounds", json={**body, "accept_warnings": True}).status_code == 201
    assert server.ask("POST", "/v1/rounds", json=body).status_code == 201, "it is registered"
    assert server.ask("POST", "/v1/rounds", json={**body, "round_id": "b"}).status_code == 201, "too late"
