"""Statements as files from a cohort's page, and what the pages say of verification and of urgency."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.commands.audit_statement import statement_files_here
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.api.pages import statement_files
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.verification.verifier import verify
from tests.api.conftest import Server
from tests.api.test_pages import _login
from tests.ledger.desk import disarmed


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    def never(_accountant: Accountant, _round_id: str) -> Any:
        raise AssertionError("nothing is decided")

    return serve(Dispatch(decide=never, statement_files=statement_files_here()))


@pytest.mark.slow
def test_an_auditor_gets_statements_as_files_and_a_reader_does_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        statement_files, "WAIT_SECONDS", 60.0
    )  # a busy machine takes longer than a browser waits
    auditor = _login(server, "auditor")
    assert "statement.pdf" in auditor.get("/cohorts/phones").text
    begins = {"html": b"<!doctype html>", "pdf": b"%PDF-", "json": b'{"made_at"'}
    for form, first in begins.items():
        found = auditor.get(f"/cohorts/phones/statement.{form}")
        assert found.status_code == 200
        assert found.content.lower().startswith(first.lower())
        assert f"statement-phones.{form}" in found.headers["Content-Disposition"]
    assert json.loads(found.content)["cohorts"][0]["verdict"] == "kept"
    reader = _login(server)
    assert "statement.pdf" not in reader.get("/cohorts/phones").text
    assert reader.get("/cohorts/phones/statement.pdf").status_code == 403
    assert auditor.get("/cohorts/nobody/statement.pdf").status_code == 404
    assert auditor.get("/cohorts/phones/statement.docx").status_code in (404, 422)
    server.issue("own", "auditor", cohorts=["phones"])
    assert _login(server, "own").get("/cohorts/secret/statement.json").status_code == 404


def test_a_long_one_is_waited_for_by_the_browser(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_files, "WAIT_SECONDS", 0.05)
    may_end = threading.Event()

    def slowly(_statement: object) -> bytes:
        assert may_end.wait(30)
        return b"<!doctype html>"

    server = serve(
        Dispatch(decide=lambda *_: pytest.fail("nothing is decided"), statement_files={"html": slowly})
    )
    auditor = _login(server, "auditor")
    waiting = auditor.get("/cohorts/phones/statement.html")
    assert waiting.status_code == 202
    assert "is being made" in waiting.text
    _, _, again = waiting.headers["Refresh"].partition("url=")
    assert auditor.get(again).status_code == 202
    server.issue("own", "auditor", cohorts=["secret"])
    assert _login(server, "own").get(again).status_code == 404
    may_end.set()
    found = _until(auditor, again)
    assert found.content == b"<!doctype html>"


def _until(person: httpx.Client, path: str) -> httpx.Response:
    for _ in range(200):
        found = person.get(path)
        if found.status_code != 202:
            return found
    raise AssertionError("it is never finished")


def test_pages_say_when_a_cohort_was_verified_and_what_was_found(server: Server, store: Store) -> None:
    reader = _login(server)
    assert "never on a schedule" in reader.get("/cohorts/phones").text
    with disarmed(store) as connection:
        opened = connection.execute(text("SELECT name, opened_at FROM cohorts")).all()
        connection.execute(
            text("UPDATE cohorts SET opened_at = :at"),
            {"at": f"{datetime.now(UTC) - timedelta(days=8):%Y-%m-%d %H:%M:%S.%f}"},
        )
    assert reader.get("/").text.count(">unverified<") == 2
    with disarmed(store) as connection:
        connection.execute(
            text("UPDATE cohorts SET opened_at = :at, population = population + 1 WHERE name = :name"),
            [{"name": name, "at": at} for name, at in opened],
        )
    verify_oldest(store, Accountant(), enough=lambda: False)
    page = reader.get("/cohorts/phones").text
    assert "found a fault" in page, "the population differs from the chain's"
    assert ">unverified<" not in reader.get("/").text


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE cohorts SET opened_at = 'not a time' WHERE name = 'phones'",
        "UPDATE cohorts SET windows = x'7878' WHERE name = 'phones'",
    ],
)
def test_a_cohort_whose_row_was_changed_by_hand_is_a_finding(
    server: Server, store: Store, change: str
) -> None:
    reader = _login(server)
    with disarmed(store) as connection:
        connection.execute(text(change))
    answer = server.ask("GET", "/v1/cohorts/phones")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:shuffle-ledger:problem:damaged")
    page = reader.get("/cohorts/phones")
    assert (page.status_code, "audit verify" in page.text) == (500, True)
    assert server.ask("GET", "/v1/cohorts/secret").status_code == 200
    found = verify(store, Accountant())
    assert [each.cohort for each in found.cohorts if not each.ok] == ["phones"]
