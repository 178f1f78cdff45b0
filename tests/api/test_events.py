"""The feed over HTTP: what a token sees of it, what a cursor is, and a client that resumes."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.values.documents import document_of
from tests.api.conftest import Server

DOCS = Path(__file__).parents[2] / "docs"


def read(server: Server, bearer: str = "auditor", **query: Any) -> Any:
    return server.ask("GET", "/v1/events", bearer=bearer, params=query).json()


def test_a_limited_token_reads_only_what_it_sees(server: Server) -> None:
    server.issue("limited", "auditor", cohorts=["phones"])
    server.register("a")
    assert {each["cohort"] for each in read(server, "limited")["events"]} == {"phones"}
    for name in ("secret", "nobody"):
        answer = server.ask("GET", "/v1/events", bearer="limited", params={"cohort": name})
        assert (answer.status_code, answer.json()["detail"]) == (404, f"no cohort {name!r}")
    assert server.ask("GET", "/v1/events", params={"cohort": "nobody"}).status_code == 404
    for wrong in ({"after": "5"}, {"kind": "settles"}, {"limit": 0}, {"limit": 1001}):
        assert server.ask("GET", "/v1/events", params=wrong).status_code == 422, wrong


def test_the_client_resumes_behind_the_last_event_that_was_handled(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shuffle_ledger.ledger.methods.PAGE_ROWS", 2)
    with LedgerClient(server.url, server.tokens["auditor"], retry_seconds=5) as client:
        server.register("a")
        whole = list(client.events())
        assert whole == list(events_after(server.store).events)
        following = client.events(after=whole[1].cursor, poll_seconds=0.01)
        assert list(islice(following, 1)) == whole[2:]
        for name in "bcd":
            server.register(name)
            assert next(following).round_id == name
        assert [each.round_id for each in client.events(cohort="phones", kinds=["admitted"])] == list("abcd")
        with pytest.raises(Conflict, match="Read the feed from its beginning"):
            list(client.events(after=f"900{whole[0].cursor}"))
        with pytest.raises(InvalidValue):
            list(client.events(after="nonsense"))
        with pytest.raises(NotFound):
            list(client.events(cohort="nobody"))


def test_the_recipe_of_the_documentation_forwards_every_event_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is started again."""
    text = (DOCS / "http.md").read_text("utf-8")
    recipe = text.partition("## The feed\n")[2].partition("```python\n")[2].partition("```")[0]
    assert "poll_seconds=5" in recipe
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHUFFLE_LEDGER_SERVER", server.url)
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", server.tokens["auditor"])
    for name in "ab":
        server.register(name)
        exec(recipe.replace("poll_seconds=5", "poll_seconds=None"), {})  # noqa: S102 - our own documentation
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    assert lines == [document_of(each) for each in events_after(server.store).events]


def test_a_wrong_name_gets_the_one_that_was_meant_of_the_cohorts_that_the_token_sees(server: Server) -> None:
    server.issue("limited", "registrar", cohorts=["phones"])

    def detail(name: str, bearer: str) -> str:
        return str(server.ask("GET", f"/v1/cohorts/{name}/budget", bearer=bearer).json()["detail"])

    assert detail("secrt", "admin") == "no cohort 'secrt'; did you mean 'secret'?"
    for bearer in ("admin", "limited"):
        assert detail("phnes", bearer) == "no cohort 'phnes'; did you mean 'phones'?"
    for name in ("secrt", "secret"):
        assert detail(name, "limited") == f"no cohort {name!r}"
