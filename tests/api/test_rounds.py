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
from shuffle_ledger.ledger.decisions import admit, open_cohort, quote, register
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
def test_floats_survive_the_trip(server: Server) -> None:
    server.register("first", randomizer={"kind": "krr", "k": 2, "epsilon0": 0.1 + 0.2})
    found = budget(server.store, Accountant(), "phones")
    shown = server.ask("GET", "/v1/cohorts/phones/budget", bearer="reader").json()
    assert shown == document_of(found)
    assert shown["epsilon_spent_upper"].hex() == found.epsilon_spent_upper.hex()
    record = server.ask("GET", "/v1/rounds/first", bearer="reader").json()
    assert record["round"]["randomizer"]["epsilon0"].hex() == (0.1 + 0.2).hex()


@pytest.mark.slow
def test_a_budget_read_again_is_the_one_there_is_now(server: Server) -> None:
    """The server remembers what it said of a head; whatever happens, it says what is true."""

    def said() -> dict[str, Any]:
        for _ in range(2):
            shown: dict[str, Any] = server.ask("GET", "/v1/cohorts/phones/budget", bearer="reader").json()
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
def test_a_refusal_says_what_was_spent_asked_allowed_and_would_fit(server: Server) -> None:
    server.register("first")
    refused = server.register("large", **TOO_MUCH)
    said = refused.json()
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert said["type"] == "urn:shuffle-ledger:problem:refused"
    assert (said["outcome"], said["reason"], said["cohort"]) == ("refused", "budget_exceeded", "phones")
    spent = budget(server.store, Accountant(), "phones").epsilon_spent_upper
    assert said["epsilon_spent_upper"] == spent
    assert said["epsilon_requested_upper"] > said["epsilon_budget"] == 1.0
    assert said["fits"]["rounds"] == 0
    fitting = said["fits"]["epsilon0"]
    assert 0 < fitting < 8
    for epsilon0, verdict in ((fitting, "admitted"), (fitting * 1.1, "refused")):
        changed = ShuffledRound.from_mapping(
            {"randomizer": {"kind": "generic", "epsilon0": epsilon0}, "reports": 100}
        )
        request = RoundRequest(round_id="x", cohort="phones", round=changed)
        assert quote(server.store, Accountant(), request).would_be == verdict


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


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"reports": 0}, 422, "reports"),
        ({"reports": 1.5}, 422, "reports"),
        ({"reports": "5"}, 422, "reports"),
        ({"reports": True}, 422, "reports"),
        ({"randomizer": "krr(k=1, epsilon0=1)"}, 422, "randomizer.k"),
        ({"randomizer": {"kind": "krr", "epsilon0": 1}}, 422, "randomizer"),
        ({"randomizer": "rot13(epsilon0=1)"}, 422, "randomizer"),
        ({"randomizer": "krr(k=2, epsilon0=1e999)"}, 422, "randomizer.epsilon0"),
        ({"honest_fraction": 0}, 422, "honest_fraction"),
        ({"surprise": 1}, 422, "surprise"),
        ({"round_id": ""}, 422, "round_id"),
        ({"round_id": "a\u0000b"}, 422, "round_id"),
        ({"collected_on": "2025-02-30"}, 422, "collected_on"),
        ({"collected_on": 5}, 422, "collected_on"),
        ({"reports": 100_001}, 409, "reports"),
        ({"sampled_from": 500}, 409, "sampled_from"),
        ({"analysis": "clone"}, 409, "analysis"),
        ({"delta0": 0.1}, 409, "delta0"),
    ],
)
def test_a_bad_value_names_its_field_and_registers_nothing(
    server: Server, changes: dict[str, Any], status: int, field: str
) -> None:
    answer = server.register(changes.pop("round_id", "bad"), **changes)
    said = answer.json()
    assert answer.status_code == status, said
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert said["field"] == field
    assert said["expected"]
    assert field in said["detail"]
    assert list(server.store.rounds_of("phones")) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"reports": NaN}',
        b'{"round_id": "\\ud800"}',
        b"\xff",
        b'{"a":' * 5000,
        b"[" * 100_000,
        b'{"reports": ' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_not_a_request_is_told_so(server: Server, body: bytes) -> None:
    answer = server.ask("POST", "/v1/rounds", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
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
        ("reports", "Infinity", "Infinity is not JSON"),
        ("delta0", "-Infinity", "-Infinity is not JSON"),
        ("honest_fraction", "1e999", "1e999 is too large"),
        ("randomizer", LARGE % "1e999", "1e999 is too large"),
        ("randomizer", LARGE % ("1" + "0" * 400), "epsilon0"),
        ("honest_fraction", "1" + "0" * 400, "honest_fraction"),
        ("reports", "1" + "0" * 400, "reports"),
        ("reports", "1" + "0" * 5000, "thousands of digits"),
        ("randomizer", "[" * 30_000 + "1" + "]" * 30_000, "too deeply"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_body_that_readers_could_take_for_something_else_is_refused(
    server: Server, field: str, written: str, said: str, encoding: str
) -> None:
    good = {"round_id": "a", "cohort": "phones", **ROUND}
    fields = {name: json.dumps(value) for name, value in good.items()} | {field: written}
    body = "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
    content, headers = body.encode(encoding), {"Content-Type": "application/json"}
    answer = server.ask("POST", "/v1/rounds", content=content, headers=headers)
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (said if encoding == "utf-8" else "not UTF-8") in answer.json()["detail"]
    assert list(server.store.rounds_of("phones")) == []


def test_a_body_that_is_too_large_is_not_read(server: Server) -> None:
    def endless() -> Any:
        for _ in range(2000):
            yield b" " * 1024

    for content in (b" " * (2 << 20), endless()):
        headers = {"Content-Type": "application/json"}
        answer = server.ask("POST", "/v1/rounds", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:shuffle-ledger:problem:too_large"


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=-1", f"after={2**70}"])
def test_pages_have_a_limit(server: Server, query: str) -> None:
    assert server.ask("GET", f"/v1/cohorts/phones/entries?{query}").status_code == 422


@pytest.mark.parametrize("name", ["%00", "%20", "absent", "a%2Fb", "%ff", "%F0%9F%8E%89" * 100, ".."])
def test_names_of_nothing_are_not_found(server: Server, name: str) -> None:
    path = name.replace(".", "%2E")
    for address in (f"/v1/cohorts/{path}", f"/v1/cohorts/{path}/budget", f"/v1/rounds/{path}"):
        answer = server.ask("GET", address)
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
