"""Windows over HTTP: budgets of days, and what tokens with limits see of periods."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from tests.api.conftest import Server
from tests.api.test_pages import _login

WEEK = Window(unit="week", epsilon=0.06, delta=1e-7)
KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=50_000)


def request(name: str, **changes: Any) -> RoundRequest:
    values: dict[str, Any] = {"round_id": name, "cohort": "tablets", "round": KRR, **changes}
    return RoundRequest(**values)


def test_the_history_of_a_cohort_without_a_life_has_no_column_of_what_its_life_spent(
    server: Server, client: LedgerClient
) -> None:
    client.open_cohort(
        name="tablets", population=100_000, epsilon=None, delta=None, policy="adaptive", windows=[WEEK]
    )
    browser = _login(server)
    for name, has_life in (("tablets", False), ("phones", True)):
        history = browser.get(f"/cohorts/{name}").text.split('id="history"')[1]
        assert ("ε spent, at most" in history) is has_life
        (row,) = re.findall(r"<tr class=.*?</tr>", history, re.S)  # the opening
        assert row.count("<td") == history.count("<th>") + history.count('<th class="number">')


def test_a_list_names_no_window_of_a_cohort_that_the_token_does_not_see(
    server: Server, client: LedgerClient
) -> None:
    """The message of a round that a window refused named it, and with it the cohort."""
    few = Window(unit="week", epsilon=0.001, delta=1e-7)
    more: dict[str, Any] = {"population": 100_000, "epsilon": 1.0, "delta": 1e-6, "policy": "adaptive"}
    client.open_cohort(name="tablets", **more)
    client.open_cohort(name="watches", windows=[few], **more)
    answer = client.register(request("both", audience=("tablets", "watches")))
    assert isinstance(answer, Refused)
    server.issue("own", "reader", cohorts=["tablets"])
    for bearer, names in (("admin", True), ("own", False)):
        shown = server.ask("GET", "/v1/rounds?cohort=tablets", bearer=bearer)
        assert ("watches" in shown.text) is names
        (listed,) = shown.json()["rounds"]
        assert listed["message"].startswith("Refused by ")


def test_a_token_that_is_limited_to_a_cohort_sees_its_periods(server: Server, client: LedgerClient) -> None:
    opened: dict[str, Any] = {
        "population": 100_000,
        "epsilon": 1.0,
        "delta": 1e-6,
        "policy": "adaptive",
        "windows": [WEEK],
    }
    for name in ("tablets", "tab"):
        client.open_cohort(name=name, **opened)
    limited = LedgerClient(server.url, server.issue("own", "registrar", cohorts=["tablets"]))
    assert isinstance(limited.register(request("one")), Admitted)
    period = f"tablets@{datetime.now(UTC).date():%G-W%V}"
    assert limited.cohort(period).name == period
    auditor = LedgerClient(server.url, server.issue("eye", "auditor", cohorts=["tablets"]))
    seen = {event.cohort for event in auditor.events()}
    assert seen == {"tablets", period}
    assert {event.cohort for event in client.events(cohort="tablets")} == seen
    foreign = LedgerClient(server.url, server.issue("other", "registrar", cohorts=["tab"]))
    with pytest.raises(NotFound):
        foreign.cohort(period)
    with pytest.raises(NotFound):
        foreign.round("one")


def test_a_page_draws_the_spending_of_the_budget_with_the_least_left(
    server: Server, client: LedgerClient
) -> None:
    life: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6}
    client.open_cohort(name="tablets", population=100_000, policy="adaptive", windows=[WEEK], **life)
    person = _login(server)
    drawn = "of the budget with the least left"
    assert drawn not in person.get("/cohorts/tablets").text
    assert isinstance(client.register(request("one")), Admitted)
    period = f"{datetime.now(UTC).date():%G-W%V}"
    page = person.get("/cohorts/tablets").text
    assert f'{drawn}: <a href="/cohorts/tablets%40{period}">{period}</a>' in page
    assert f"of {WEEK.epsilon}" in re.search('Epsilon spent over days of collection[^<"]*', page)[0]  # type: ignore[index]  # there is one
    assert drawn not in person.get(f"/cohorts/tablets@{period}").text
