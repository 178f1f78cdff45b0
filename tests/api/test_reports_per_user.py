"""Several reports of a user over HTTP: registered, corrected and shown by client, API and pages."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.evidence.conditions import OF_SEVERAL_REPORTS
from shuffle_ledger.ledger.reports.forecasts import ForecastWanted
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from tests.api.conftest import Server

TWICE = ShuffledRound(
    randomizer=parse_randomizer("krr(k=2, epsilon0=0.5)"), reports=4_000, reports_per_user=2
)


@pytest.mark.slow
def test_the_client_registers_forecasts_and_corrects(server: Server) -> None:
    client = LedgerClient(server.url, server.tokens["admin"], retry_seconds=5)
    request = RoundRequest(round_id="twice", cohort="phones", round=TWICE)
    admitted = client.register(request)
    assert isinstance(admitted, Admitted)
    assert admitted.accounted.reports_per_user == 2
    assert client.round("twice").request == request
    found = client.forecast("phones", ForecastWanted(round=TWICE)).kinds[0]
    assert found.round.reports_per_user == 2
    told = client.correct("twice", {"reports_per_user": 3}, reason="a log")
    assert told.round.reports_per_user == 3
    assert round_record(server.store, "twice").corrections[0] == told


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"reports_per_user": 0}, 422, "a number of at least 1"),
        ({"reports_per_user": 1001}, 422, "a number of at most 1000"),
        ({"reports_per_user": 2, "participation": 0.5}, 409, "leave it out and count the reports"),
        ({"reports_per_user": 2, "randomizer": "generic(epsilon0=1)"}, 409, "tight and clone-identical do"),
    ],
)
def test_a_refusal_says_what_is_expected(
    server: Server, changes: dict[str, Any], status: int, said: str
) -> None:
    answer = server.register("a", **changes)
    assert answer.status_code == status, answer.text
    assert said in answer.text


@pytest.mark.slow
def test_a_page_says_on_which_condition_and_quotes(server: Server) -> None:
    person = httpx.Client(base_url=server.url, timeout=60)
    assert person.post("/login", data={"token": server.tokens["reader"]}).status_code == 303
    assert OF_SEVERAL_REPORTS.holds_when not in person.get("/cohorts/phones").text
    assert server.register("a", reports=4_000, reports_per_user=2).status_code == 201
    page = person.get("/cohorts/phones").text
    assert OF_SEVERAL_REPORTS.holds_when in page
    assert "at most 2 of each user" in page
    secret = re.search(r'name="form_secret" value="([0-9a-f]{64})"', page)
    assert secret
    form = {"randomizer": "krr(k=2, epsilon0=0.5)", "reports": "4000", "form_secret": secret.group(1)}
    answers = [
        person.post("/cohorts/phones/quote", data=form | more).text
        for more in ({}, {"reports_per_user": "2"}, {"reports_per_user": "two"})
    ]
    spent = [
        re.findall(r'ε used, at most</td>(?:<td class="number">([0-9.e-]+)</td>){2}', answer)
        for answer in answers
    ]
    assert float(spent[0][-1]) < float(spent[1][-1])
    assert "reports_per_user: got" in answers[2]
