"""The security log: every event of its kinds, no secret, and never more lines than a disk can take."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.access import revoke
from shuffle_ledger.ledger.api.auth.sessions import COOKIE
from shuffle_ledger.ledger.security_log import BURST, REFILL_SECONDS, EventLimit, SecurityEvent
from shuffle_ledger.ledger.storage.store import Store
from tests.api.conftest import Server

Events = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Events:
    """Return a function that returns the events since it was asked last."""
    monkeypatch.setattr(security_log, "process_limit", EventLimit())
    caplog.set_level("INFO", logger=security_log.NAME)

    def found() -> list[dict[str, Any]]:
        texts = [each.getMessage() for each in caplog.records if each.name == security_log.NAME]
        caplog.clear()
        return [json.loads(text) for text in texts]

    return found


def _named(found: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in found]


def _form_secret(page: httpx.Response) -> str:
    match = re.search(r'name="form_secret" value="([0-9a-f]{64})"', page.text)
    assert match
    return match.group(1)


@pytest.mark.slow
def test_every_event_is_written_with_its_facts_and_without_any_secret(
    serve: Callable[..., Server], events: Events
) -> None:
    server = serve(authentication_failures=3)
    token = server.issue("ann", "reader", cohorts=["phones"])
    _, token_id, secret = token.split("_")
    created = [each for each in events() if each["name"] == "ann"]
    assert [(each["event"], each["token_id"], each["role"], each["actor"]) for each in created] == [
        ("token_created", token_id, "reader", "tester")
    ]
    said = list(map(json.dumps, created))

    person = httpx.Client(base_url=server.url)
    assert person.post("/login", data={"token": token}).status_code == 303
    cookie = person.cookies[COOKIE]
    home = person.get("/")
    assert person.post("/logout", data={"form_secret": _form_secret(home)}).status_code == 303
    assert httpx.get(server.url, headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 303
    person.close()
    found = events()
    assert _named(found) == ["logged_in", "logged_out", "ended_session_used"]
    assert all(each["token_id"] == token_id for each in found)
    assert all(each["address"] == "127.0.0.1" for each in found[:2])
    said += map(json.dumps, found)

    assert server.ask("POST", "/v1/rounds/x/settle", bearer="ann", json={"reports": 1}).status_code == 403
    assert server.ask("GET", "/v1/metrics", bearer="ann").status_code == 403
    found = events()
    assert _named(found) == ["not_allowed"] * 2
    assert [each["route"] for each in found] == ["/v1/rounds/{round_id}/settle", "/v1/metrics"]
    assert [each["name"] for each in found] == ["ann"] * 2
    assert "may not register" in found[0]["why"]
    said += map(json.dumps, found)

    wrong = f"sl_{token_id}_{'0' * 64}"
    for _ in range(2):
        server.http.get("/v1/cohorts", headers={"Authorization": f"Bearer {wrong}"})
    server.http.post("/login", data={"token": wrong})
    for _ in range(5):  # locked out: refused without a look at the token, and without a line
        server.http.get("/v1/cohorts", headers={"Authorization": f"Bearer {token}"})
    found = events()
    assert _named(found) == ["wrong_token"] * 3 + ["locked_out"]
    assert all(each["address"] == "127.0.0.1" for each in found)
    assert found[-1]["wait_seconds"] >= 1
    said += map(json.dumps, found)

    revoke(server.store, token_id, actor="operator")
    found = events()
    assert [(each["event"], each["token_id"], each["actor"]) for each in found] == [
        ("token_revoked", token_id, "operator")
    ]
    said += map(json.dumps, found)
    for line in said:
        for text in (secret, "0" * 64, "sl_", *cookie.split(".")[2:]):
            assert text not in line, line


def test_a_flood_of_one_event_is_counted_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limit = EventLimit(clock=lambda: now[0])
    taken = [limit.take(SecurityEvent.WRONG_TOKEN) for _ in range(10_000)]
    assert taken == [0] * BURST + [None] * (10_000 - BURST)
    assert limit.take(SecurityEvent.LOGGED_IN) == 0  # others are written
    now[0] = REFILL_SECONDS
    assert limit.take(SecurityEvent.WRONG_TOKEN) == 10_000 - BURST
    assert limit.take(SecurityEvent.WRONG_TOKEN) is None
    now[0] += 86_400
    day = sum(limit.take(SecurityEvent.WRONG_TOKEN) is not None for _ in range(100_000))
    assert day == BURST


def test_what_clients_send_cannot_write_lines_of_its_own(events: Events) -> None:
    security_log.record(
        SecurityEvent.WRONG_TOKEN, address='1.2.3.4\n{"event": "logged_in"}' + "é" * 1000, wait=None
    )
    (found,) = events()
    assert set(found) == {"at", "event", "address"}
    assert len(found["address"]) == security_log.FIELD_LENGTH_MAX


def test_commands_that_change_tokens_write_events_to_standard_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_log, "process_limit", EventLimit())  # earlier tests may have used it up
    database = ["--database-url", str(store.engine.url), "--actor", "operator", "--json"]
    done = CliRunner().invoke(main, ["token", "create", "ann", "--role", "reader", *database])
    assert done.exit_code == 0, done.output
    token = json.loads(done.stdout)["token"]
    event = json.loads(done.stderr)
    assert (event["event"], event["actor"], event["name"]) == ("token_created", "operator", "ann")
    assert token.split("_", 2)[2] not in done.stderr
    done = CliRunner().invoke(main, ["token", "revoke", token.split("_")[1], *database])
    event = json.loads(done.stderr)
    assert (event["event"], event["actor"]) == ("token_revoked", "operator")
    assert logging.getLogger(security_log.NAME).handlers == []
