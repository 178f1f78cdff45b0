"""Registration over HTTP: one id, one answer; what a refusal says; what waits, and what does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.decisions import admit, open_cohort, register
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.documents import decision_document, document_of, record_document
from shuffle_ledger.ledger.values.requests import Outcome, Pending, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.api.conftest import ROUND, Server

TOO_MUCH: dict[str, Any] = {"randomizer": "generic(epsilon0=8)", "reports": 100}
WAIT_SECONDS_MAX = 60.0


def test_an_admitted_round_answers_with_the_ledgers_own_words(server: Server) -> None:
    answer = server.register("a/b é?#%", use_case="tests", collected_on="2025-01-06")
    assert answer.status_code == 201
    record = round_record(server.store, "a/b é?#%")
    assert record.outcome is not None
    assert answer.json() == decision_document(record.outcome)
    shown = server.ask("GET", answer.headers["Location"], bearer="reader")
    assert shown.json() == record_document(record)
    assert record.registered_by == "registrar"
    assert str(record.request.collected_on) == "2025-01-06"


@pytest.mark.slow
def test_a_budget_read_again_is_the_one_there_is_now(server: Server) -> None:
    """The server remembers what it said of a head; whatever happens, it says what is true."""

    def said() -> dict[str, Any]:
        shown: dict[str, Any] = server.ask("GET", "/v1/cohorts/phones/budget", bearer="reader").json()
        assert shown == server.ask("GET", "/v1/cohorts/phones/budget", bearer="reader").json()
        assert shown == document_of(budget(server.store, Accountant(precision=4e-3), "phones"))
        return shown

    heads = [said()["head"]]
    server.register("a")
    heads.append(said()["head"])
    waiting = RoundRequest(
        round_id="waits", cohort="phones", round=ShuffledRound.from_mapping({**ROUND, "reports": 700})
    )
    register(server.store, waiting, actor="tester")
    assert said()["rounds_pending"] == 1
    admit(server.store, Accountant(), "waits")
    assert said()["rounds_pending"] == 0
    server.register("large", **TOO_MUCH)
    server.ask("POST", "/v1/rounds/waits/void", bearer="registrar", json={"reason": "never sent"})
    assert said()["rounds_voided"] == 1
    server.ask("PUT", "/v1/cohorts/phones/budget", json={"epsilon": 0.9, "reason": "agreed"})
    assert said()["epsilon_budget"] == 0.9
    server.register("b", randomizer="krr(k=2, epsilon0=3)")
    server.ask("POST", "/v1/rounds/b/settle", bearer="registrar", json={"reports": 2})
    assert said()["status"] == "overspent"
    assert heads[0] != heads[1] != said()["head"]


@pytest.mark.slow
def test_a_quote_prices_a_batch_in_order_and_leaves_no_trace(server: Server) -> None:
    server.register("first")
    before = server.ask("GET", "/v1/cohorts/phones/budget").json()
    planned = [ROUND, TOO_MUCH, ROUND]
    answer = server.ask("POST", "/v1/cohorts/phones/quote", bearer="reader", json={"rounds": planned})
    quotes = answer.json()["quotes"]
    assert [each["would_be"] for each in quotes] == ["admitted", "refused", "admitted"]
    assert server.ask("GET", "/v1/cohorts/phones/budget").json() == before
    for number, each in enumerate((planned[0], planned[2])):
        server.register(f"now {number}", **each)
    after = server.ask("GET", "/v1/cohorts/phones/budget").json()
    assert quotes[2]["epsilon_requested_upper"] == after["epsilon_spent_upper"]
    assert answer.json()["epsilon_remaining"] == after["epsilon_remaining"]


def test_what_is_not_a_request_is_told_so(untouched: Server) -> None:
    for body in (
        *(b"", b"{", b"[]", b"null", b'{"reports": NaN}', b'{"round_id": "\\ud800"}', b"\xff"),
        *(b'{"a":' * 5000, b"[" * 100_000, b'{"reports": ' + b"9" * 10_000 + b"}"),
    ):
        sent: dict[str, Any] = {"content": body, "headers": {"Content-Type": "application/json"}}
        answer = untouched.ask("POST", "/v1/rounds", **sent)
        assert answer.status_code == 422, body[:50]
        assert answer.json()["type"] == "urn:shuffle-ledger:problem:bad_value"


SEEN_TWICE = '{"kind": "krr", "k": 2, "k": 3, "epsilon0": 1}'
LARGE = '{"kind": "krr", "k": 2, "epsilon0": %s}'


@pytest.mark.parametrize(
    ("field", "written", "said"),
    [
        ("reports", "9, 'x': 1", "enclosed in double quotes"),
        ("reports", '9, "reports": 9', "'reports' stands there twice"),
        ("randomizer", SEEN_TWICE, "'k' stands there twice"),
        ("honest_fraction", "NaN", "NaN is not JSON"),
        ("delta0", "-Infinity", "-Infinity is not JSON"),
        ("honest_fraction", "1e999", "1e999 is too large"),
        ("randomizer", LARGE % "1e999", "1e999 is too large"),
        ("randomizer", LARGE % ("1" + "0" * 400), "epsilon0"),
        ("honest_fraction", "1" + "0" * 400, "honest_fraction"),
        ("reports", "1" + "0" * 5000, "thousands of digits"),
        ("randomizer", "[" * 30_000 + "1" + "]" * 30_000, "too deeply"),
    ],
)
def test_a_body_that_readers_could_take_for_something_else_is_refused(
    untouched: Server, field: str, written: str, said: str
) -> None:
    good = {"round_id": "a", "cohort": "phones", **ROUND}
    fields = {name: json.dumps(value) for name, value in good.items()} | {field: written}
    body = "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
    for encoding, reason in (("utf-8", said), ("utf-16", "not UTF-8")):
        sent: dict[str, Any] = {
            "content": body.encode(encoding),
            "headers": {"Content-Type": "application/json"},
        }
        answer = untouched.ask("POST", "/v1/rounds", **sent)
        assert answer.status_code == 422
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert reason in answer.json()["detail"]


def test_a_body_that_is_too_large_is_not_read(untouched: Server) -> None:
    def endless() -> Any:
        for _ in range(2000):
            yield b" " * 1024

    for content in (b" " * (2 << 20), endless()):
        headers = {"Content-Type": "application/json"}
        answer = untouched.ask("POST", "/v1/rounds", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:shuffle-ledger:problem:too_large"


def test_pages_have_a_limit(untouched: Server) -> None:
    for query in ("limit=0", "limit=1001", "limit=x", "after=-1", f"after={2**70}"):
        assert untouched.ask("GET", f"/v1/cohorts/phones/entries?{query}").status_code == 422
    for query in ("limit=0", "limit=1001", "after=" + "x" * 201):
        assert untouched.ask("GET", f"/v1/heads?{query}").status_code == 422


def test_names_of_nothing_are_not_found(untouched: Server) -> None:
    for name in ("%00", "%20", "absent", "a%2Fb", "%ff", "%F0%9F%8E%89" * 100, "%2E%2E"):
        for address in (f"/v1/cohorts/{name}", f"/v1/cohorts/{name}/budget", f"/v1/rounds/{name}"):
            answer = untouched.ask("GET", address)
            assert answer.status_code == 404, address
            assert answer.json()["type"] == "urn:shuffle-ledger:problem:not_found"


def test_with_a_broker_the_answer_is_202_until_a_worker_decided(
    serve: Callable[..., Server], store: Store
) -> None:
    queued: list[str] = []

    def publish(round_id: str) -> bool:
        queued.append(round_id)
        return True

    def never(_accountant: Accountant, _round_id: str) -> Outcome | Pending:
        raise AssertionError("workers decide")

    server = serve(Dispatch(decide=never, publish=publish))
    first = server.register("a")
    assert first.status_code == 202
    assert first.json() == {"outcome": "pending", "round_id": "a", "cohort": "phones"}
    assert server.ask("GET", first.headers["Location"]).json()["state"] == "pending"
    assert server.register("a").content == first.content
    assert queued == ["a", "a"]
    worker = threading.Timer(0.3, lambda: admit(store, Accountant(), "a"))
    worker.start()
    waited = server.register("a", headers={"Prefer": "respond-async, wait=60"})
    worker.join()
    assert waited.status_code == 201
    assert waited.headers["Preference-Applied"] == "wait=60"
    assert server.register("a").content == waited.content  # decided: nothing is queued, no wait
    assert queued == ["a", "a", "a"]


def test_a_known_kind_does_not_wait_for_workers_whatever_waits(
    serve: Callable[..., Server], store: Store
) -> None:
    queued: list[str] = []

    def never(_accountant: Accountant, _round_id: str) -> Outcome | Pending:
        raise AssertionError("workers decide")

    def publish(round_id: str) -> bool:
        queued.append(round_id)
        return True

    def answered(name: str, **changes: Any) -> int:
        return server.register(name, cohort="study", **changes).status_code

    server = serve(Dispatch(decide=never, publish=publish))
    budget: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9}
    open_cohort(store, name="study", policy="adaptive", actor="tester", **budget)
    assert (answered("new"), answered("behind it")) == (202, 202)
    for name in queued:
        admit(store, Accountant(), name)
    assert answered("known") == 201
    assert (answered("other kind", reports=777), answered("beside it")) == (202, 201)
    assert queued == ["new", "behind it", "other kind"]
    bodies = [entry.content() for entry in store.entries_of("study")]
    assert [body.round_id for body in bodies] == [None, "new", "behind it", "known", "beside it"]


def test_a_broker_that_is_down_loses_nothing(serve: Callable[..., Server], store: Store) -> None:
    def decide(accountant: Accountant, round_id: str) -> Outcome:
        return admit(store, accountant, round_id)

    down = serve(Dispatch(decide=decide, publish=lambda _: False))
    assert down.register("a").status_code == 202
    assert down.http.get("/v1/readyz").status_code == 200  # else no server takes requests
    assert down.http.get("/v1/healthz").status_code == 200
    assert admit(store, Accountant(), "a").round_id == "a"
    assert down.register("a").status_code == 201


@pytest.mark.slow
def test_a_long_computation_blocks_neither_health_nor_readers(
    serve: Callable[..., Server], store: Store
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(accountant: Accountant, round_id: str) -> Outcome:
        begun.set()
        assert may_end.wait(WAIT_SECONDS_MAX)
        return admit(store, accountant, round_id)

    server = serve(Dispatch(decide=slow))
    with ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(server.register, f"round {number}") for number in range(30)]
        assert begun.wait(WAIT_SECONDS_MAX)
        for path in ("/v1/healthz", "/v1/readyz", "/v1/cohorts", "/v1/cohorts/phones/budget"):
            assert server.ask("GET", path).status_code == 200
        pending = server.register("impatient", headers={"Prefer": "wait=0"})
        assert pending.status_code == 202
        may_end.set()
        assert {each.result().status_code for each in waiting} == {201}
    gives_up = time.monotonic() + WAIT_SECONDS_MAX
    while server.ask("GET", pending.headers["Location"]).json()["state"] == "pending":
        assert time.monotonic() < gives_up
    assert server.register("impatient").status_code == 201


@pytest.mark.slow
def test_what_a_dead_server_left_undecided_is_decided_by_the_next(
    serve: Callable[..., Server], store: Store
) -> None:
    dying = serve(Dispatch(decide=lambda _accountant, round_id: Pending(round_id=round_id, cohort="phones")))
    assert dying.register("a").status_code == 202
    server = serve()
    gives_up = time.monotonic() + WAIT_SECONDS_MAX
    while server.ask("GET", "/v1/rounds/a").json()["state"] == "pending":
        assert time.monotonic() < gives_up


@pytest.mark.slow
def test_many_clients_with_few_ids_get_one_outcome_each(server: Server) -> None:
    large: dict[str, Any] = {"randomizer": "generic(epsilon0=2)", "reports": 300}

    def one(number: int) -> tuple[str, int, bytes]:
        round_id = f"round {number % 12}"
        answer = server.register(round_id, **large)
        document = answer.json()
        document.pop("fits", None)
        return round_id, answer.status_code, str(document).encode()

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(one, range(48)))
    assert len(answers) == 12
    found = budget(server.store, Accountant(), "phones")
    assert found.rounds_admitted + found.rounds_refused == 12
    assert found.rounds_refused > 0
    assert found.epsilon_spent_upper <= found.epsilon_budget
    assert verify(server.store, Accountant()).ok
