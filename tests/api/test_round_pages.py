"""Pages about rounds: registering from a quote, previews of what changes, approvals, and history."""

from __future__ import annotations

import csv
import io
import itertools
import re
from typing import Any

import httpx
import pytest

from shuffle_ledger.ledger.decisions import open_cohort, round_record, set_quota
from shuffle_ledger.ledger.values.requests import Settled, Voided
from tests.api.conftest import Server
from tests.api.test_pages import FORM, _login, _secret

HERE = "/rounds/one"


@pytest.fixture
def person(server: Server) -> httpx.Client:
    """Return a registrar's browser, after a round was registered from its quote."""
    found = _login(server, "registrar")
    page = found.get("/cohorts/phones")
    quoted = found.post("/cohorts/phones/quote", data={**FORM, "form_secret": _secret(page)})
    assert 'action="/cohorts/phones/register"' in quoted.text
    sent = {**FORM, "round_id": "one", "use_case": "emoji", "form_secret": _secret(page)}
    answer = found.post("/cohorts/phones/register", data=sent)
    assert (answer.status_code, answer.headers["Location"]) == (303, HERE)
    return found


def send(person: httpx.Client, act: str, **fields: str) -> httpx.Response:
    page = person.get(HERE)
    return person.post(f"{HERE}/{act}", data={**fields, "form_secret": _secret(page)})


@pytest.mark.slow
def test_a_round_is_previewed_and_then_settled(server: Server, person: httpx.Client) -> None:
    before = server.store.view("phones")
    shown = send(person, "settle", reports="400")
    assert shown.status_code == 200
    assert "Yes, settle this round" in shown.text
    assert server.store.view("phones").head_sequence == before.head_sequence, "nothing is written yet"
    then = re.search(r"<td>phones</td>.*?</td><td class=\"number\">([0-9.e-]+)", shown.text)
    assert then
    told = send(person, "settle", reports="400", confirmed="yes")
    assert (told.status_code, told.headers["Location"]) == (303, HERE)
    after = server.store.view("phones")
    assert after.spent.epsilon_upper > before.spent.epsilon_upper
    assert float(then.group(1)) == pytest.approx(after.spent.epsilon_upper, rel=1e-3)
    assert float(then.group(1)) >= after.spent.epsilon_upper
    closing = round_record(server.store, "one").closing
    assert isinstance(closing, Settled)
    assert closing.reports == 400
    page = person.get(HERE).text
    assert "settled with 400 reports" in page
    assert "Yes, " not in page
    again = send(person, "settle", reports="300", confirmed="yes")
    assert again.status_code == 409
    assert "only an admitted round can be settled" in again.text


@pytest.mark.slow
def test_a_round_is_voided_and_nothing_more_may_be_told(server: Server, person: httpx.Client) -> None:
    shown = send(person, "void", reason="cancelled")
    assert "You attest that nothing computed from the reports" in shown.text
    assert send(person, "void", reason="cancelled", confirmed="yes").status_code == 303
    assert isinstance(round_record(server.store, "one").closing, Voided)
    assert "This round is closed: nothing is left to record." in person.get(HERE).text


@pytest.mark.slow
def test_a_correction_that_breaks_the_promise_says_so_before(server: Server, person: httpx.Client) -> None:
    server.register("two", randomizer="krr(k=2, epsilon0=1)", reports=500)
    shown = send(person, "correct", reports="2", reason="a shard was lost")
    assert "breaks its promise" in shown.text
    assert server.store.cohort("phones").status == "open"
    assert send(person, "correct", reports="2", reason="a shard was lost", confirmed="yes").status_code == 303
    assert server.store.cohort("phones").status == "overspent"
    assert "a shard was lost" in person.get(HERE).text


BAD_FIELDS = (
    ("settle", {"reports": "many"}, "whole number"),
    ("settle", {"reports": "0"}, "population"),
    ("settle", {"reports": "9" * 15}, "population"),
    ("void", {"reason": ""}, "reason"),
    ("correct", {"reports": "400", "reason": ""}, "reason"),
)


@pytest.mark.slow
def test_bad_fields_are_said_and_nothing_is_written(server: Server, person: httpx.Client) -> None:
    for (act, fields, said), more in itertools.product(BAD_FIELDS, ({}, {"confirmed": "yes"})):
        answer = send(person, act, **fields, **more)
        assert answer.status_code == 409, (act, fields, more)
        assert said in answer.text
        assert server.store.view("phones").head_sequence == 2


@pytest.mark.slow
def test_only_those_who_may_and_only_this_sites_forms(server: Server, person: httpx.Client) -> None:
    reader = _login(server)
    page = reader.get(HERE)
    assert "Only a registrar or an admin can settle" in page.text
    assert "See what it would change" not in page.text
    sent = {"reports": "400", "confirmed": "yes", "form_secret": _secret(page)}
    assert reader.post(f"{HERE}/settle", data=sent).status_code == 403
    register = {**FORM, "round_id": "two", "form_secret": _secret(page)}
    assert reader.post("/cohorts/phones/register", data=register).status_code == 403
    assert person.post(f"{HERE}/settle", data={"reports": "400", "confirmed": "yes"}).status_code == 403
    assert send(person, "explode").status_code == 404
    server.issue("limited", "registrar", cohorts=["secret"])
    other = _login(server, "limited")
    assert other.get(HERE).status_code == 404
    sent["form_secret"] = _secret(other.get("/"))
    assert other.post(f"{HERE}/settle", data=sent).status_code == 404
    assert round_record(server.store, "one").closing is None


@pytest.mark.slow
def test_a_round_that_cannot_be_registered_says_why(server: Server, person: httpx.Client) -> None:
    secret = _secret(person.get("/cohorts/phones"))
    for changes, said in (
        ({"round_id": ""}, "round_id"),
        ({"round_id": "one", "reports": "600"}, "other content"),
        ({"round_id": "two", "reports": "x"}, "whole number"),
    ):
        answer = person.post("/cohorts/phones/register", data={**FORM, "form_secret": secret, **changes})
        assert answer.status_code == 409
        assert said in answer.text
    repeated = {**FORM, "round_id": "one", "use_case": "emoji", "form_secret": secret}
    assert person.post("/cohorts/phones/register", data=repeated).status_code == 303


def test_an_identifier_of_a_cohort_that_is_not_seen_tells_nothing(server: Server) -> None:
    body = {"round_id": "theirs", "cohort": "secret", "randomizer": "krr(k=2, epsilon0=2)", "reports": 777}
    assert server.ask("POST", "/v1/rounds", bearer="admin", json=body).status_code == 201
    server.issue("limited", "registrar", cohorts=["phones"])
    person = _login(server, "limited")
    sent = {**FORM, "round_id": "theirs", "form_secret": _secret(person.get("/cohorts/phones"))}
    answer = person.post("/cohorts/phones/register", data=sent)
    assert answer.status_code == 409
    assert "this identifier cannot be used" in answer.text
    for stored in ("secret", "777", "epsilon0=2"):
        assert stored not in answer.text.replace("form_secret", "")


@pytest.mark.slow
def test_history_is_filtered_paged_and_exported(
    server: Server, person: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shuffle_ledger.ledger.api.pages import routes

    server.register("=cmd()", use_case="emoji")
    send(person, "settle", reports="400", confirmed="yes")
    refused = person.get("/cohorts/phones?kind=settled").text
    assert refused.count('<tr class="settled">') == 1
    assert '<tr class="admitted">' not in refused
    monkeypatch.setattr(routes, "ENTRIES_LISTED", 2)
    first = person.get("/cohorts/phones").text
    assert first.count("<tr class=") == 2
    older = re.search(r'href="(/cohorts/phones\?before=[0-9]+#history)"', first)
    assert older
    assert person.get(older.group(1)).text.count("<tr class=") == 2
    exported = person.get("/cohorts/phones/history.csv")
    rows = list(csv.DictReader(io.StringIO(exported.text)))
    assert [row["kind"] for row in rows] == ["opened", "admitted", "admitted", "settled"]
    assert [row["round_id"] for row in rows[1:]] == ["one", "'=cmd()", "one"]
    assert float(rows[-1]["epsilon_spent_upper"]) == server.store.view("phones").spent.epsilon_upper
    assert person.get("/cohorts/absent/history.csv").status_code == 404


def test_a_cohorts_page_shows_its_ceiling_and_its_quotas(server: Server) -> None:
    opened: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}
    open_cohort(server.store, name="study", actor="tester", ceiling=2.0, **opened)
    said: dict[str, Any] = {"reason": "agreed", "actor": "tester"}
    set_quota(server.store, "study", team="ads", epsilon=0.5, **said)
    reader = _login(server)
    page = reader.get("/cohorts/study")
    assert "promised is ε 2; the budget may be raised up to it" in page.text
    assert "Quotas of teams" in page.text
    assert "/cohorts/study%40team%3Dads" in page.text
    assert reader.get("/cohorts/study%40team%3Dads").status_code == 200
