"""Statements and verifications in the background: the same answers, for tokens that see their cohorts, within
limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api import jobs
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.errors import DoesNotExtend, NotFound
from shuffle_ledger.ledger.evidence import StatementWanted
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted as Wanted
from shuffle_ledger.ledger.reports.budgets import Head
from shuffle_ledger.ledger.verification import verifier
from shuffle_ledger.ledger.verification.verifier import verify
from tests.api.conftest import Server

AT_ONCE = {"Prefer": "wait=0"}


@pytest.fixture
def held(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Yield an event before which no statement goes on after its first step."""
    going_on, made = threading.Event(), Wanted.made

    def slowly(self: Wanted, *given: Any, progress: Any, **more: Any) -> Any:
        progress("phones: reading entries", 1, 2)
        assert going_on.wait(30)
        return made(self, *given, progress=progress, **more)

    monkeypatch.setattr(Wanted, "made", slowly)
    yield going_on
    going_on.set()


def begin(server: Server, *, bearer: str = "auditor", **body: Any) -> Any:
    return server.ask("POST", "/v1/statements", bearer=bearer, json=body, headers=AT_ONCE)


@pytest.mark.slow
def test_a_long_statement_is_made_in_the_background_and_kept(server: Server, held: threading.Event) -> None:
    server.register("a")
    began = begin(server, cohorts=["phones"])
    assert began.status_code == 202
    place = began.headers["Location"]
    assert place == f"/v1/statements/{began.json()['statement_id']}"
    assert begin(server, cohorts=["phones"]).headers["Location"] == place  # it is not made twice
    while (found := server.ask("GET", place, bearer="auditor", headers=AT_ONCE)).json()["step"] is None:
        pass
    assert (found.status_code, found.headers["Location"]) == (202, place)
    assert found.json() | {"statement_id": ""} == {
        "statement_id": "",
        "state": "making",
        "step": "phones: reading entries",
        "done": 1,
        "of": 2,
    }
    held.set()
    kept = server.ask("GET", place, bearer="auditor")
    assert kept.status_code == 200
    assert server.ask("GET", place, bearer="admin").content == kept.content
    now = server.ask("POST", "/v1/statements", bearer="auditor", json={"cohorts": ["phones"]})
    assert now.status_code == 200
    assert now.json() | {"made_at": ""} == kept.json() | {"made_at": ""}


def test_a_statement_is_for_those_who_may_read_its_cohorts(server: Server, held: threading.Event) -> None:
    for name, cohorts in (("of phones", ["phones"]), ("of secret", ["secret"])):
        server.issue(name, "auditor", cohorts=cohorts)
    place = begin(server, cohorts=["phones"]).headers["Location"]
    everything = begin(server).headers["Location"]
    held.set()
    assert server.ask("GET", place, bearer="of phones").status_code == 200
    absent = server.ask("GET", f"/v1/statements/{'0' * 32}", bearer="of secret")
    theirs = server.ask("GET", place, bearer="of secret")
    assert theirs.status_code == absent.status_code == 404
    assert theirs.json()["detail"].replace(place.rsplit("/", 1)[1], "0" * 32) == absent.json()["detail"]
    assert server.ask("GET", everything, bearer="of phones").status_code == 404
    assert server.ask("GET", everything, bearer="auditor").status_code == 200
    assert server.ask("GET", place, bearer="reader").status_code == 403


def test_statements_are_bounded_in_number_size_and_time(
    server: Server, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "UNFINISHED_MAX", 2)
    first, second = (begin(server, cohorts=["phones"], as_of=number) for number in (None, 1))
    assert begin(server, cohorts=["secret"]).status_code == 503
    held.set()
    for each in (first, second):
        assert server.ask("GET", each.headers["Location"], bearer="auditor").status_code == 200
    monkeypatch.setattr(jobs, "KEPT_MAX", 1)
    assert server.ask("GET", first.headers["Location"], bearer="auditor").status_code == 404
    assert server.ask("GET", second.headers["Location"], bearer="auditor").status_code == 200
    monkeypatch.setattr(jobs, "KEPT_SECONDS", 0.0)
    assert server.ask("GET", second.headers["Location"], bearer="auditor").status_code == 404
    monkeypatch.setattr(jobs, "KEPT_SECONDS", 60.0)
    monkeypatch.setattr(jobs, "DOCUMENT_BYTES_MAX", 100)
    short = server.ask("POST", "/v1/statements", bearer="auditor", json={"cohorts": ["phones"]})
    assert short.status_code == 200  # one that is not kept may have any size
    held.clear()
    large = begin(server, cohorts=["phones"])
    held.set()
    refused = server.ask("GET", large.headers["Location"], bearer="auditor")
    assert (refused.status_code, refused.json()["field"]) == (409, "cohorts")


@pytest.mark.slow
def test_the_client_waits_for_a_long_statement_and_asks_again_after_a_restart(
    server: Server, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shuffle_ledger.ledger.api.served.WAIT_SECONDS", 0.0)
    steps: list[tuple[str, int, int]] = []

    def told(step: str, done: int, of: int) -> None:
        if not steps:
            server.app.state.service.jobs._jobs.clear()  # as a restart does
        steps.append((step, done, of))
        held.set()

    with LedgerClient(server.url, server.tokens["auditor"]) as client:
        found = client.statement(StatementWanted(cohorts=("phones",)), progress=told)
    assert [each.cohort for each in found.cohorts] == ["phones"]
    assert steps[0] == ("phones: reading entries", 1, 2)


def test_a_kept_head_of_a_part_of_a_cohort_is_compared_too(server: Server) -> None:
    quota = {"epsilon": 0.5, "reason": "agreed"}
    assert server.ask("PUT", "/v1/cohorts/phones/quotas/ads", json=quota).status_code == 200
    name, asked = "phones@team=ads", partial(server.ask, "POST", "/v1/statements", bearer="auditor")
    (head,) = (each for each in heads_of(server) if each["cohort"] == name)
    assert asked(json={"kept": [head]}).status_code == 200
    for forged, said in (
        ({"digest": "0" * 64}, "another one in its place"),
        ({"sequence": 2}, "its chain ends before it"),
    ):
        told = asked(json={"kept": [head | forged]})
        assert (told.status_code, said in told.json()["detail"]) == (409, True)
    longer = {"cohort": "phones", "sequence": 9, "digest": "0" * 64}
    for body in ({}, {"cohorts": ["phones"]}):
        told = asked(json={**body, "kept": [longer]})
        assert (told.status_code, told.json()["type"].rpartition(":")[2]) == (409, "not_extended")


@pytest.fixture
def replaying(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Yield an event before which no verification goes on after its first word."""
    going_on = threading.Event()

    def slowly(*given: Any, progress: Any, **more: Any) -> Any:
        progress("phones: 0 entries replayed", 0, 1)
        assert going_on.wait(30)
        return verify(*given, progress=progress, **more)

    monkeypatch.setattr(verifier, "verify", slowly)
    yield going_on
    going_on.set()


@pytest.mark.parametrize("path", ["/v1/verification", "/v1/cohorts/phones/verification"])
@pytest.mark.slow
def test_a_long_verification_goes_on_in_the_background(
    server: Server, replaying: threading.Event, path: str
) -> None:
    server.register("a")
    body = {"json": {"cohort": "phones"}} if path == "/v1/verification" else {}
    began = server.ask("POST", path, bearer="auditor", headers=AT_ONCE, **body)
    assert began.status_code == 202
    place = began.headers["Location"]
    assert place == f"/v1/verifications/{began.json()['verification_id']}"
    assert server.ask("POST", path, bearer="auditor", headers=AT_ONCE, **body).headers["Location"] == place
    while (found := server.ask("GET", place, bearer="auditor", headers=AT_ONCE)).json()["step"] is None:
        pass
    assert found.json() | {"verification_id": ""} == {
        "verification_id": "",
        "state": "making",
        "step": "phones: 0 entries replayed",
        "done": 0,
        "of": 1,
    }
    for name, cohorts in (("of phones", ["phones"]), ("of secret", ["secret"])):
        server.issue(name, "auditor", cohorts=cohorts)
    replaying.set()
    kept = server.ask("GET", place, bearer="of phones")
    assert (kept.status_code, kept.json()["ok"]) == (200, True)
    assert server.ask("GET", place, bearer="of secret").status_code == 404
    assert server.ask("GET", place, bearer="reader").status_code == 403
    elsewhere = place.replace("verifications", "statements")
    assert server.ask("GET", elsewhere, bearer="auditor").status_code == 404
    now = server.ask("POST", path, bearer="auditor", **body)
    assert (now.status_code, now.json()) == (200, kept.json())


@pytest.mark.slow
def test_the_client_waits_for_a_long_verification_and_asks_again_after_a_restart(
    server: Server, replaying: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shuffle_ledger.ledger.api.served.WAIT_SECONDS", 0.0)
    steps: list[tuple[str, int, int]] = []

    def told(step: str, done: int, of: int) -> None:
        if not steps:
            server.app.state.service.jobs._jobs.clear()  # as a restart does
        steps.append((step, done, of))
        replaying.set()

    with LedgerClient(server.url, server.tokens["auditor"]) as client:
        found = client.verify("phones", progress=told)
        assert (found.ok, [each.cohort for each in found.cohorts]) == (True, ["phones"])
        with pytest.raises(NotFound, match="absent"):
            client.verify("absent")
    assert steps[0] == ("phones: 0 entries replayed", 0, 1)


def test_a_replay_says_how_far_it_is(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "TELL_EVERY", 1)
    server.register("a")
    told: list[tuple[str, int, int]] = []
    verify(server.store, Accountant(), progress=lambda *word: told.append(word))
    assert told == [
        ("phones: 0 entries replayed", 0, 2),
        ("phones: 1 entries replayed", 0, 2),
        ("secret: 0 entries replayed", 1, 2),
    ]


def heads_of(server: Server) -> list[dict[str, Any]]:
    heads = server.ask("GET", "/v1/heads", bearer="auditor").json()["heads"]
    return [{name: head[name] for name in ("cohort", "sequence", "digest")} for head in heads]


def test_a_kept_head_of_a_cohort_that_vanished_is_no_statement(server: Server) -> None:
    server.register("a")
    kept = heads_of(server)
    vanished = {"cohort": "gone", "sequence": 7, "digest": "0" * 64}
    asked = partial(server.ask, "POST", "/v1/statements", bearer="auditor")
    assert asked(json={"kept": kept}).status_code == 200
    told = asked(json={"kept": [*kept, vanished]})
    assert (told.status_code, told.json()["type"]) == (409, "urn:shuffle-ledger:problem:not_extended")
    assert "entry 7 of cohort 'gone'" in told.json()["detail"]
    assert asked(json={"cohorts": ["phones"], "kept": [*kept, vanished]}).status_code == 200
    with LedgerClient(server.url, server.tokens["auditor"]) as client:
        wanted = StatementWanted(cohorts=None, kept=(("gone", Head(sequence=7, digest="0" * 64)),))
        with pytest.raises(DoesNotExtend, match="no such cohort"):
            client.statement(wanted)
