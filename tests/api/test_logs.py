"""Request identifiers and logs: from HTTP to every line and back, bounded, one line each, without secrets."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shuffle_ledger.ledger import logs, request_ids
from shuffle_ledger.ledger.api.access_log import STRANGERS_BURST
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.values.requests import Outcome
from tests.api.conftest import Server

OWN = re.compile(r"[0-9a-f]{32}")
SECRET = "f" * 64


@pytest.fixture(params=["json", "console"])
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Yield what is written to the log, as JSON and for people."""
    stream, root = io.StringIO(), logging.getLogger("shuffle_ledger")
    handler, level = logs.handler_for(request.param, stream), root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def awaited_lines(written: io.StringIO, count: int) -> list[str]:
    """Wait for this number of lines in the log: the last one is written after its answer."""
    deadline = time.monotonic() + 10
    while len(lines := written.getvalue().splitlines()) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return lines


def test_every_answer_carries_the_callers_identifier_or_a_new_one(server: Server) -> None:
    given = {"X-Request-Id": "job-7.retry:2"}
    assert server.ask("GET", "/v1/cohorts", headers=given).headers["x-request-id"] == "job-7.retry:2"
    assert server.http.get("/healthz", headers=given).headers["x-request-id"] == "job-7.retry:2"
    for bad in ("", "a b", "x" * 65, "ä".encode(), "a;b"):
        answer = server.ask("GET", "/v1/cohorts", headers={"X-Request-Id": bad})
        assert OWN.fullmatch(answer.headers["x-request-id"])
    first, second = (server.http.get("/healthz").headers["x-request-id"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("path", "token", "status"), [("/v1/rounds/none", "admin", 404), ("/v1/cohorts", None, 401)]
)
def test_problem_documents_name_the_request(
    server: Server, path: str, token: str | None, status: int
) -> None:
    headers = {"X-Request-Id": "mine"}
    answer = (
        server.http.get(path, headers=headers)
        if token is None
        else server.ask("GET", path, bearer=token, headers=headers)
    )
    assert (answer.status_code, answer.json()["request_id"]) == (status, "mine")


def test_a_failure_is_logged_with_the_request_and_without_secrets(
    serve: Callable[..., Server], written: io.StringIO
) -> None:
    def failing(*_: Any) -> Outcome:
        raise RuntimeError(
            f"no route to postgresql+psycopg://ledger:hunter2@db/x, token sl_{'a' * 16}_{SECRET},"
            f" Cookie: session={SECRET}"
        )

    server = serve(Dispatch(decide=failing))
    answer = server.register("a", headers={"X-Request-Id": "broken-1"})
    assert (answer.status_code, answer.json()["request_id"]) == (500, "broken-1")
    text = written.getvalue()
    assert "no route to postgresql+psycopg://ledger:***@db/x" in text
    for secret in ("hunter2", SECRET, *server.tokens.values()):
        assert secret not in text
    assert "Traceback" in text
    first = next(line for line in text.splitlines() if "request failed" in line)
    assert "broken-1" in first


def test_the_access_log_says_who_asked_what_in_one_line(server: Server, written: io.StringIO) -> None:
    headers = {"X-Request-Id": "r1"}
    server.ask("GET", "/v1/cohorts/phones%0Aforged%1b[31m?secret=hunter2", bearer="reader", headers=headers)
    server.http.get("/readyz")
    server.ask("GET", "/v1/rounds/none", bearer="reader")
    lines = awaited_lines(written, 2)
    assert len(lines) == 2  # and none for a good answer about health
    assert "hunter2" not in lines[0]
    assert "phones%0Aforged%1b%5B31m" in lines[0] or "phones%0Aforged%1b[31m" in lines[0]
    if lines[0].startswith("{"):
        found = json.loads(lines[0])
        wanted = {"method": "GET", "status": 404, "name": "reader", "client": "127.0.0.1", "request_id": "r1"}
        assert wanted.items() <= found.items()
        assert found["route"] == "/v1/cohorts/{cohort}"
        assert found["milliseconds"] >= 0
    else:
        assert " status=404 " in lines[0]
        assert " name=reader " in lines[0]
        assert lines[0].endswith(" request_id=r1")


def test_requests_without_a_token_cannot_fill_the_disk(server: Server, written: io.StringIO) -> None:
    for _ in range(STRANGERS_BURST + 30):
        server.http.get("/v1/cohorts")
    server.ask("GET", "/v1/cohorts")
    lines = awaited_lines(written, STRANGERS_BURST + 1)
    assert len(lines) == STRANGERS_BURST + 1
    assert "admin" in lines[-1]


def test_the_access_log_can_be_left_out(serve: Callable[..., Server], written: io.StringIO) -> None:
    serve(access_log=False).ask("GET", "/v1/cohorts")
    assert written.getvalue() == ""


def test_the_identifier_reaches_who_queues_the_round(serve: Callable[..., Server]) -> None:
    seen: list[str | None] = []

    def publish(_round_id: str) -> bool:
        seen.append(request_ids.current())
        return True

    def never(*_: Any) -> Outcome:
        raise AssertionError("a worker decides")

    server = serve(Dispatch(decide=never, publish=publish))
    assert server.register("a", headers={"X-Request-Id": "from-here"}).status_code == 202
    assert seen == ["from-here"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Authorization: Bearer eyJ.S3.S3", "Authorization: ***"),
        ("authorization: Basic S3= for a", "authorization: *** for a"),
        ("{'Authorization': 'Bearer S3', 'host': 'a'}", "{'Authorization': *** 'host': 'a'}"),
        ("Cookie: a=S3; shuffle_ledger_session=S3\nnext", "Cookie: ***\nnext"),
        ("Set-Cookie: shuffle_ledger_session=S3; HttpOnly", "Set-Cookie: ***"),
        ("sent eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJS3.S3-S3_S3 twice", "sent *** twice"),
        ("whsec_S3+/S3== is new", "whsec_*** is new"),
        ("SHUFFLE_LEDGER_SESSION_KEY=S3,S3;S3 set", "SHUFFLE_LEDGER_SESSION_KEY=*** set"),
        ("client_secret=S3 id_token: S3 PGPASSWORD=S3", "client_secret=*** id_token: *** PGPASSWORD=***"),
        ('{"webhook_key": "S3 S3", "port": 1}', '{"webhook_key": ***, "port": 1}'),
        (r'"{\"password\": \"S3\", \"port\": 1}"', r'"{\"password\": ***, \"port\": 1}"'),
        ("to postgresql://u:S3/S3@host/db failed", "to postgresql://u:***@host/db failed"),
        ("amqp://u:S3@S3@host//", "amqp://u:***@host//"),
        (f"sl_{'a' * 16}_{'b' * 64}", f"sl_{'a' * 16}_***"),
    ],
)
def test_secrets_do_not_reach_the_log(line: str, shown: str) -> None:
    assert logs.without_secrets(line) == shown
    assert "S3" not in shown


@pytest.mark.parametrize(
    "line",
    [
        "round_id=a cohort=phones token_id=0123456789abcdef name=etl role=registrar request_id=r1",
        "GET http://127.0.0.1:8000/cohorts/phones@2026-W01 status=200 milliseconds=3",
        "postgresql+psycopg://ledger@db:5432/ledger: no route to host",
        "idempotency_key=job-7 public_key=00ff routing_key=rounds",
        'duplicate key value violates unique constraint "rounds_round_id_key" DETAIL: Key (round_id)=(a)',
        '{"event": "wrong_token", "address": "203.0.113.5", "wait_seconds": 2}',
        "SHUFFLE_LEDGER_WEBHOOK_KEY is not set here; the secret of webhook 1f was shown once",
        "eyJ is how they begin; keys of the issuer: 3",
    ],
)
def test_ordinary_lines_stay_readable(line: str) -> None:
    assert logs.without_secrets(line) == line


def test_a_long_line_is_searched_quickly() -> None:
    for part in ("://:", "a_key", "eyJ.", "cookie", "password'", "whsec_"):
        began = time.process_time()
        logs.without_secrets(part * 20_000)
        assert time.process_time() - began < 1.0, part
