"""Quotas, ceilings and local budgets over HTTP: the token says the team, and two tokens raise a budget."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import access
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.decisions import quotas_of, round_record
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotAllowed, NotFound
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


@pytest.fixture
def client(server: Server) -> LedgerClient:
    return LedgerClient(server.url, server.tokens["admin"], retry_seconds=5)


@pytest.mark.slow
def test_an_opening_says_the_part_of_delta_for_approximate_rounds(
    server: Server, client: LedgerClient
) -> None:
    opened = client.open_cohort(**OPENED, approximate_share=0.5)
    assert client.open_cohort(**OPENED, approximate_share=0.5) == opened
    accounts = client.budget("tablets").delta_accounts
    assert accounts is not None
    assert accounts.slack_share == accounts.certain_loss_share == pytest.approx(0.25e-6)
    with pytest.raises(Conflict, match="another share of delta"):
        client.open_cohort(**OPENED)
    with pytest.raises(InvalidValue, match="--policy adaptive decides without a promise"):
        client.open_cohort(**{**OPENED, "name": "new", "policy": "fixed"})
    headers = {"Authorization": f"Bearer {server.tokens['admin']}"}
    for wrong in (0, 0.95, "much"):
        body = {**OPENED, "name": "new", "approximate_share": wrong}
        answer = httpx.post(f"{server.url}/v1/cohorts", json=body, headers=headers)
        assert answer.status_code == 422
        assert "approximate_share" in answer.text


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


def test_what_quotas_do_not_allow_is_said(server: Server, client: LedgerClient) -> None:
    client.open_cohort(**OPENED)
    with pytest.raises(InvalidValue, match="the cohort's own budget"):
        client.set_quota("tablets", team="ads", epsilon=2.0, reason="more")
    with pytest.raises(NotFound):
        client.set_quota("nowhere", team="ads", epsilon=0.1, reason="more")
    header = {"Authorization": f"Bearer {server.tokens['admin']}"}
    answer = httpx.put(
        f"{server.url}/v1/cohorts/tablets/quotas/a%40b", headers=header, json={"epsilon": 0.1, "reason": "x"}
    )
    assert (answer.status_code, answer.json()["field"]) == (409, "team")
    other = client_of(server, "other", "admin", cohorts=["phones"])
    with pytest.raises(NotFound):
        other.quotas("tablets")


def test_an_admin_raises_a_budget_up_to_its_ceiling(server: Server, client: LedgerClient) -> None:
    opened = client.open_cohort(**OPENED, ceiling=2.0, local_budget=50.0)
    assert (opened.ceiling, opened.local_budget) == (2.0, 50.0)
    registrar = LedgerClient(server.url, server.tokens["registrar"], retry_seconds=5)
    with pytest.raises(NotAllowed):
        registrar.change_budget("tablets", epsilon=1.5, reason="more")
    with pytest.raises(InvalidValue, match="the ceiling"):
        client.change_budget("tablets", epsilon=2.5, reason="more")
    assert client.change_budget("tablets", epsilon=1.5, reason="more").epsilon_budget == 1.5
    assert client.verify().ok


@pytest.mark.parametrize("team", ["web search", "maps/eu", "a:" + " b" * 29])
def test_every_name_of_a_team_is_an_address(server: Server, client: LedgerClient, team: str) -> None:
    client.open_cohort(**OPENED)
    reading = client.set_quota("tablets", team=team, epsilon=0.05, reason="agreed")
    assert client.quotas("tablets") == quotas_of(server.store, "tablets") == (reading,)
    assert (reading.team, reading.budget) == (team, f"tablets@team={team}")
    assert client.budget(reading.budget).epsilon_budget == 0.05


@pytest.mark.slow
def test_what_fits_instead_knows_that_a_voided_round_used_the_local_budget(
    server: Server, client: LedgerClient
) -> None:
    client.open_cohort(**OPENED, local_budget=5.0)
    body = {"cohort": "tablets", "randomizer": "krr(k=10, epsilon0=6)", "reports": 50_000}
    fitting = {**body, "randomizer": "krr(k=10, epsilon0=4)"}
    before = server.ask("POST", "/v1/rounds", json={**body, "round_id": "before"}).json()
    assert 4.9 < before["fits"]["epsilon0"] <= 5.0
    assert (
        server.ask("POST", "/v1/rounds", json={**fitting, "round_id": "one"}).json()["outcome"] == "admitted"
    )
    client.void("one", reason="cancelled")
    after = server.ask("POST", "/v1/rounds", json={**body, "round_id": "after"}).json()
    assert after["fits"]["epsilon0"] <= 1.0
