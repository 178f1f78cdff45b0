"""The client: the ledger's own values and errors through a server, whatever gets lost on the way."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.cli.failures import ExitCode
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.client.client import LedgerClient
from shuffle_ledger.ledger.client.transport import PROBLEM
from shuffle_ledger.ledger.decisions import quote, round_record
from shuffle_ledger.ledger.errors import (
    AnswerLost,
    BehindCheckpoint,
    ClockOff,
    Conflict,
    InvalidValue,
    NotAllowed,
    NotFound,
    RoundStuck,
    TryAgain,
    Unauthorized,
    Unavailable,
    UnsafeSession,
)
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.listing import shown_cohort
from shuffle_ledger.ledger.values.requests import Admitted, Pending, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.api.conftest import Server, listed
from tests.ledger.releases import after_opening

LARGE = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=8)"), reports=100)
SMALL = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.5)"), reports=1000)


def _request(round_id: str, shuffled: ShuffledRound = SMALL, **more: Any) -> RoundRequest:
    return RoundRequest(round_id=round_id, cohort="phones", round=shuffled, **more)


@pytest.mark.slow
def test_the_client_answers_what_the_ledger_answers(server: Server, client: LedgerClient) -> None:
    accountant = Accountant(precision=4e-3)  # the server's
    assert client.cohorts() == listed(server.store)
    assert client.cohort("phones") == shown_cohort(server.store, "phones")
    for round_id, shuffled in (("a/é ?", SMALL), ("a?b#c", SMALL), ("...", SMALL), ("large", LARGE)):
        answer = client.register(_request(round_id, shuffled, use_case="tests"))
        assert isinstance(answer, Refused if shuffled is LARGE else Admitted)
        record = round_record(server.store, round_id)
        assert answer == record.outcome
        assert client.round(round_id) == record
    assert client.settle("a?b#c", reports=900) == round_record(server.store, "a?b#c").closing
    assert client.void("...", reason="never sent") == round_record(server.store, "...").closing
    assert client.round("...") == round_record(server.store, "...")
    assert client.budget("phones") == budget(server.store, accountant, "phones")
    planned = client.quote("phones", [LARGE, SMALL], fits=True)
    assert planned.quotes[0] == quote(server.store, accountant, _request("x", LARGE))
    assert planned.fits is not None
    chain = list(client.entries("phones"))
    assert [each.digest for each in chain] == [
        each.digest.hex() for each in server.store.entries_of("phones")
    ]
    assert client.verify("phones").ok
    opened = client.open_cohort(name="new", population=900, epsilon=1.5, delta=1e-9, policy="adaptive")
    assert opened == server.store.cohort("new")


def test_a_list_of_rounds_has_nothing_that_the_token_does_not_see(server: Server) -> None:
    server.register("a")
    server.issue("limited", "registrar", cohorts=["secret", "not yet"])
    limited = LedgerClient(server.url, server.tokens["limited"], retry_seconds=5)
    assert list(limited.rounds()) == []
    with pytest.raises(NotFound):
        list(limited.rounds("phones"))
    # A cursor into a cohort that the token does not see is answered as if it did not exist.
    for after in ("a", "nothing"):
        answer = server.ask("GET", f"/v1/rounds?after={after}", bearer="limited")
        assert (answer.status_code, answer.json()["detail"]) == (404, f"no round {after!r}")


@pytest.mark.slow
def test_errors_are_the_ledgers_own(server: Server, client: LedgerClient) -> None:
    client.register(_request("a"))
    with pytest.raises(NotFound, match="no cohort 'nobody'"):
        client.budget("nobody")
    with pytest.raises(NotFound, match="no round 'nothing'"):
        client.round("nothing")
    with pytest.raises(Conflict):
        client.register(_request("a", LARGE))
    with pytest.raises(InvalidValue) as caught:
        client.settle("a", reports=100_001)
    assert (caught.value.field, caught.value.value) == ("reports", 100_001)
    with pytest.raises(NotAllowed):
        LedgerClient(server.url, server.tokens["reader"]).register(_request("b"))
    with pytest.raises(Unauthorized):
        LedgerClient(server.url, "sl_wrong").cohorts()
    with pytest.raises(Unavailable, match="cannot be reached"):
        LedgerClient("http://127.0.0.1:1", "sl_x", retry_seconds=0.1).cohorts()
    for url, token in (("ledger.example", "x"), (server.url, ""), (server.url, "a\nb"), (server.url, "é")):
        with pytest.raises(InvalidValue):
            LedgerClient(url, token)


def test_an_address_that_cannot_be_one_is_refused_at_once() -> None:
    for url in (
        *("http://[::1", "http://h:abc", "http://h:0", "http://a b", "http://h\n", "http://"),
        *("http://h" + "x" * 70_000, "ftp://h", "http://u:s3/cret@h", "https://s3cret@h"),
    ):
        with pytest.raises(InvalidValue, match=r"^server: .* expected an address such as https://") as caught:
            LedgerClient(url, "sl_x")
        assert "s3" not in "".join(traceback.format_exception(caught.value))
    words = ["cohort", "list", "--server", url]
    done = CliRunner().invoke(main, words, env={"SHUFFLE_LEDGER_TOKEN": "sl_x"})
    assert done.exit_code == ExitCode.BAD_VALUE
    assert "s3" not in done.output
    for url in ("http://[::1]:80/ledger/", "https://ledger.m\u00fcnchen", "http://h:65535", "http://h/@x"):
        LedgerClient(url, "sl_x").close()


class _Losing(httpx.BaseTransport):
    """Loses answers, after the server gave them: every other one, and in every way there is."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._inner.handle_request(request)
        answer.read()
        self.lost += 1
        match self.lost % 5:
            case 1:
                raise httpx.ReadError("the connection was lost")
            case 2:
                return httpx.Response(503, json={"type": "urn:shuffle-ledger:problem:busy", "detail": "busy"})
            case 3:
                return httpx.Response(502, text="<html>bad gateway</html>")
            case 4:
                raise httpx.ReadTimeout("no answer")
        return answer


@pytest.mark.slow
def test_lost_answers_are_asked_for_again_and_nothing_happens_twice(server: Server) -> None:
    losing = _Losing()
    client = LedgerClient(server.url, server.tokens["admin"], transport=losing, retry_seconds=60)
    answers = [client.register(_request(f"round {number}")) for number in range(3)]
    assert losing.lost == 15
    assert all(isinstance(answer, Admitted) for answer in answers)
    settled = client.settle("round 0", reports=900)
    client.void("round 1", reason="never sent")
    assert settled == round_record(server.store, "round 0").closing
    counted = server.store.count_entries("phones")
    assert (counted["admitted"], counted["settled"], counted["voided"]) == (3, 1, 1)
    assert verify(server.store, Accountant()).ok


def test_a_lost_answer_is_never_said_to_be_a_server_that_was_not_reached() -> None:
    """Also where later attempts do not reach it any more."""
    told: list[type[httpx.TransportError]] = [httpx.ReadTimeout, httpx.ConnectError]

    def fail(_: httpx.Request) -> httpx.Response:
        raise (told.pop(0) if len(told) > 1 else told[0])("so it goes")

    client = LedgerClient("http://ledger", "sl_x", transport=httpx.MockTransport(fail), retry_seconds=0.3)
    with pytest.raises(AnswerLost, match="whether the request was carried out is not known") as lost:
        client.register(_request("a"))
    assert "with the same identifier" in str(lost.value)
    with pytest.raises(Unavailable, match="cannot be reached") as unreached:
        client.register(_request("a"))
    assert not isinstance(unreached.value, AnswerLost)


def test_a_server_that_stays_busy_is_given_up_in_bounded_time(server: Server) -> None:
    busy = httpx.MockTransport(
        lambda _: httpx.Response(503, json={"type": "urn:shuffle-ledger:problem:busy", "detail": "busy"})
    )
    with pytest.raises(TryAgain):
        LedgerClient(server.url, "sl_x", transport=busy, retry_seconds=0.2).cohorts()


def test_what_asking_again_does_not_mend_is_told_at_once(server: Server) -> None:
    for kind, status, error in (
        ("behind_checkpoint", 503, BehindCheckpoint),
        ("unsafe_session", 503, UnsafeSession),
        ("clock_off", 503, ClockOff),
        ("stuck", 500, RoundStuck),
    ):
        asked: list[str] = []

        def answer(
            request: httpx.Request, kind: str = kind, status: int = status, asked: list[str] = asked
        ) -> httpx.Response:
            asked.append(request.method)
            return httpx.Response(status, json={"type": PROBLEM + kind, "detail": "why"})

        client = LedgerClient(server.url, "sl_x", transport=httpx.MockTransport(answer), retry_seconds=30)
        with pytest.raises(error, match="why"):
            client.void("a", reason="never sent")
        assert asked == ["POST"]


def test_the_token_is_sent_to_no_other_server(server: Server) -> None:
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(307, headers={"Location": "http://elsewhere.example/v1/cohorts"})

    with pytest.raises(Unavailable):
        LedgerClient(server.url, "sl_x", transport=httpx.MockTransport(redirect), retry_seconds=0.1).cohorts()
    assert "elsewhere.example" not in asked


def test_the_client_waits_for_a_worker_as_long_as_it_is_told(
    serve: Callable[..., Server],
) -> None:
    published = threading.Event()

    def publish(_round_id: str) -> bool:
        published.set()
        return True

    def never(_accountant: Accountant, round_id: str) -> Pending:
        raise AssertionError(round_id)

    server = serve(Dispatch(decide=never, publish=publish))
    client = LedgerClient(server.url, server.tokens["registrar"], wait_seconds=120.0)
    began = time.monotonic()
    assert client.register(_request("a"), wait_seconds=0.2) == Pending(round_id="a", cohort="phones")
    assert time.monotonic() - began < 60.0
    assert published.is_set()


@pytest.mark.slow
def test_the_client_tells_what_was_otherwise(server: Server, client: LedgerClient) -> None:
    client.register(_request("a"))
    corrected = client.correct("a", {"reports": 900}, reason="a log")
    assert corrected == round_record(server.store, "a").corrections[0]
    assert client.correct("a", {"reports": 900}, reason="a log") == corrected
    told: dict[str, Any] = {"described": SMALL, "reason": "a script"}
    told["released"] = after_opening(server.store.cohort("phones"))
    incident = client.record_incident("phones", round_id="x/1", **told)
    assert (incident.overspent, incident.chosen_after) == (False, False)
    assert client.record_incident("phones", round_id="x/1", **told) == incident
    for name in ("a", "x/1"):
        assert client.round(name) == round_record(server.store, name)
    with pytest.raises(Conflict):
        client.record_incident("phones", round_id="a", **told)
    with pytest.raises(NotFound):
        client.correct("nothing", {"reports": 900}, reason="a log")
    unknown = client.record_incident("phones", round_id="y", described=None, reason="a leak")
    assert unknown.overspent
    reader = LedgerClient(server.url, server.tokens["reader"], retry_seconds=5)
    with pytest.raises(NotAllowed):
        reader.correct("a", {"reports": 900}, reason="a log")
    with pytest.raises(NotAllowed):
        reader.record_incident("phones", round_id="z", **told)
    assert verify(server.store, Accountant(precision=4e-3)).ok
