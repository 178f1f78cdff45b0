"""Statements and verifications that take long: equal questions share one answer, within limits, for
tokens that see their cohorts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api import long_answers
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.api.long_answers import LongAnswers
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.evidence import StatementWanted
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted as Wanted
from shuffle_ledger.ledger.operations import Unfinished
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


def ask(server: Server, *, bearer: str = "auditor", at_once: bool = True, **body: Any) -> Any:
    headers = AT_ONCE if at_once else {}
    return server.ask("POST", "/v1/statements", bearer=bearer, json=body, headers=headers)


@pytest.mark.slow
def test_the_same_question_waits_for_a_long_statement(server: Server, held: threading.Event) -> None:
    server.register("a")
    asked = ask(server, cohorts=["phones"])
    while asked.json()["step"] is None:
        asked = ask(server, cohorts=["phones"])
    assert asked.status_code == 202
    assert asked.headers["Retry-After"] == "1"
    making = {"state": "making", "step": "phones: reading entries", "done": 1, "of": 2}
    assert asked.json() == making
    assert ask(server, bearer="admin", cohorts=["phones"]).json() == making  # it is not made twice
    held.set()
    made = ask(server, at_once=False, cohorts=["phones"])
    assert made.status_code == 200
    server.register("b")
    after = ask(server, at_once=False, cohorts=["phones"])  # what was given is not given again
    assert after.json()["cohorts"][0]["head"]["sequence"] == made.json()["cohorts"][0]["head"]["sequence"] + 1


def test_a_statement_is_for_those_who_may_read_its_cohorts(server: Server, held: threading.Event) -> None:
    for name, cohorts in (("of phones", ["phones"]), ("of secret", ["secret"])):
        server.issue(name, "auditor", cohorts=cohorts)
    assert {ask(server, cohorts=["phones"]).status_code, ask(server).status_code} == {202}
    theirs = ask(server, bearer="of secret", cohorts=["phones"])
    absent = ask(server, bearer="of secret", cohorts=["absent"])
    assert theirs.status_code == absent.status_code == 404
    assert theirs.json()["detail"].replace("phones", "absent") == absent.json()["detail"]
    assert ask(server, bearer="reader", cohorts=["phones"]).status_code == 403
    assert ask(server, bearer="of phones").status_code == 403
    held.set()
    assert ask(server, bearer="of phones", at_once=False, cohorts=["phones"]).status_code == 200


def test_unfinished_answers_are_bounded_in_number(
    server: Server, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "UNFINISHED_MAX", 2)
    assert [ask(server, cohorts=["phones"], as_of=number).status_code for number in (None, 1)] == [202, 202]
    assert ask(server, cohorts=["secret"]).status_code == 503
    held.set()
    for number in (None, 1):
        found = ask(server, cohorts=["phones"], as_of=number, at_once=False)
        assert found.status_code == 200
    assert ask(server, cohorts=["secret"], at_once=False).status_code == 200


def test_answers_that_nobody_comes_back_for_are_bounded_in_size_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, made = 0.0, []

    async def played() -> None:
        nonlocal now
        answers = LongAnswers(AccountantThread(Accountant()), lambda: now)

        async def asked(name: str, wait_seconds: float) -> bytes | Unfinished:
            def work(*_: object) -> bytes:
                made.append(name)
                return b"x" * 60

            return await answers.get(name, work, wait_seconds=wait_seconds)

        async def abandoned(name: str) -> None:
            count = len(made)
            assert isinstance(await asked(name, 0.0), Unfinished)
            while len(made) == count:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)

        await abandoned("a")
        assert await asked("a", 9.0) == b"x" * 60
        assert made == ["a"], "it was kept for who asks the same again"
        await abandoned("a")
        now = long_answers.KEPT_SECONDS + 1
        await asked("a", 9.0)
        assert made == ["a"] * 3, "it was too old"
        monkeypatch.setattr(long_answers, "KEPT_BYTES_MAX", 100)
        for name in "ab":
            now += 1
            await abandoned(name)
        await asked("b", 9.0)
        await asked("a", 9.0)
        assert made == [*"aaaaba"], "the last one is kept, and the one before it was too large with it"

    asyncio.run(played())


@pytest.mark.slow
def test_the_client_waits_for_a_long_statement(
    server: Server, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shuffle_ledger.ledger.api.served.WAIT_SECONDS", 0.0)
    steps: list[tuple[str, int, int]] = []

    def told(step: str, done: int, of: int) -> None:
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


@pytest.mark.slow
def test_the_same_question_waits_for_a_long_verification(server: Server, replaying: threading.Event) -> None:
    server.register("a")
    ask_again = partial(server.ask, "POST", "/v1/verification", json={"cohort": "phones"})
    while (found := ask_again(bearer="auditor", headers=AT_ONCE)).json()["step"] is None:
        assert found.status_code == 202
    assert found.json() == {"state": "making", "step": "phones: 0 entries replayed", "done": 0, "of": 1}
    for name, cohorts in (("of phones", ["phones"]), ("of secret", ["secret"])):
        server.issue(name, "auditor", cohorts=cohorts)
    replaying.set()
    made = ask_again(bearer="of phones")
    assert (made.status_code, made.json()["ok"]) == (200, True)
    assert ask_again(bearer="of secret").status_code == 404
    assert ask_again(bearer="reader").status_code == 403
    now = ask_again(bearer="auditor")
    assert (now.status_code, now.json()) == (200, made.json())


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
