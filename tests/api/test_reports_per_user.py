"""Several reports of a user on the pages: their condition, and quotes of them."""

from __future__ import annotations

import re

import httpx
import pytest

from shuffle_ledger.ledger.evidence.conditions import OF_SEVERAL_REPORTS
from tests.api.conftest import Server


@pytest.mark.slow
def test_a_page_says_on_which_condition_and_quotes(server: Server) -> None:
    person = httpx.Client(base_url=server.url, timeout=60)
    assert person.post("/login", data={"token": server.tokens["reader"]}).status_code == 303
    assert OF_SEVERAL_REPORTS.holds_when not in person.get("/cohorts/phones").text
    assert server.register("a", reports=4_000, reports_per_user=2).status_code == 201
    page = person.get("/cohorts/phones").text
    assert OF_SEVERAL_REPORTS.holds_when in page
    assert "at most 2 reports of each user" in page
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
