"""Quotas over HTTP: the token says the team, and every name of a team is an address."""

from __future__ import annotations

from typing import Any

import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import access
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.decisions import quotas_of, round_record
from shuffle_ledger.ledger.errors import NotAllowed
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from tests.api.conftest import Server

KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=50_000)
OPENED: dict[str, Any] = {
    "name": "tablets",
    "population": 100_000,
    "epsilon": 1.0,
    "delta": 1e-6,
    "policy": "adaptive",
}


def client_of(server: Server, name: str, role: str, **more: Any) -> LedgerClient:
    issued = access.issue(server.store, name=name, role=role, actor="tester", **more)
    return LedgerClient(server.url, issued.token, retry_seconds=5)


@pytest.mark.slow
def test_the_token_says_whose_round_it_is(server: Server, client: LedgerClient) -> None:
    client.open_cohort(**OPENED, local_budget=50.0)
    reading = client.set_quota("tablets", team="ads", epsilon=0.05, reason="agreed")
    assert (reading.budget, reading.rounds) == ("tablets@team=ads", 0)
    assert client.set_quota("tablets", team="ads", epsilon=0.05, reason="agreed") == reading, "again is safe"
    ads = client_of(server, "ads-pipeline", "registrar", team="ads", cohorts=["tablets"])
    request = RoundRequest(round_id="one", cohort="tablets", round=KRR)
    answer = ads.register(request)
    assert isinstance(answer, Admitted)
    assert [member.cohort for member in answer.audience] == ["tablets", "tablets@team=ads"]
    assert ads.register(request) == client.register(request) == answer
    record = ads.round("one")
    assert (record.request.team, record.request.quotas) == ("ads", ("tablets@team=ads",))
    assert record == round_record(server.store, "one")
    assert ads.quotas("tablets") == client.quotas("tablets") == quotas_of(server.store, "tablets")
    assert ads.budget("tablets@team=ads").rounds_admitted == 1
    quoted = ads.quote("tablets", [KRR] * 40)
    assert 0 < quoted.rounds_admitted < client.quote("tablets", [KRR] * 20).rounds_admitted
    outcomes = [ads.register(RoundRequest(round_id=f"r{n}", cohort="tablets", round=KRR)) for n in range(12)]
    assert sum(isinstance(each, Admitted) for each in outcomes) == quoted.rounds_admitted
    refused = outcomes[-1]
    assert isinstance(refused, Refused)
    assert [each.cohort for each in refused.refused_by] == ["tablets@team=ads"]
    with pytest.raises(NotAllowed):
        ads.set_quota("tablets", team="ads", epsilon=1.0, reason="more")
    assert "tablets@team=ads" not in [cohort.name for cohort in client.cohorts()]
    assert client.verify().ok


@pytest.mark.parametrize("team", ["web search", "maps/eu", "a:" + " b" * 29])
def test_every_name_of_a_team_is_an_address(server: Server, client: LedgerClient, team: str) -> None:
    client.open_cohort(**OPENED)
    reading = client.set_quota("tablets", team=team, epsilon=0.05, reason="agreed")
    assert client.quotas("tablets") == quotas_of(server.store, "tablets") == (reading,)
    assert (reading.team, reading.budget) == (team, f"tablets@team={team}")
    assert client.budget(reading.budget).epsilon_budget == 0.05
