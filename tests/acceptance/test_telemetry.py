"""One trace from a request through the broker to a worker's decision, by the real processes."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from sqlalchemy.engine import make_url

from shuffle_ledger.ledger.values.requests import Admitted
from tests.acceptance.conftest import Service
from tests.acceptance.test_service import request
from tests.collector import Span, collecting
from tests.workers.conftest import WAIT_SECONDS_MAX

pytestmark = pytest.mark.system

SERVER, WORKER = "shuffle-ledger-server", "shuffle-ledger-worker"
PASSWORD = "hunter2-of-the-database"  # noqa: S105 - to look for


def chain(spans: list[Span]) -> list[Span] | None:
    """Return the spans from the worker's decision up to the request, once all came."""
    by_own = {span.own: span for span in spans}
    for last in spans:
        if last.service == WORKER:
            found = [last]
            while found[-1].above in by_own:
                found.append(by_own[found[-1].above])
            if found[-1].above == b"":
                return found
    return None


def test_one_trace_leads_from_the_request_to_the_workers_decision(service: Service) -> None:
    token = service.command("token", "create", "device", "--role", "registrar")["token"]
    # The server of the tests asks for no password, and takes any.
    url = make_url(service.settings.database_url).set(password=PASSWORD)
    secret_url = {"SHUFFLE_LEDGER_DATABASE_URL": url.render_as_string(hide_password=False)}
    with collecting() as collector:
        more = collector.environment | secret_url
        with (
            service.process("worker", "--no-sweep", more=more),
            service.server(token, more=more) as (client, _),
        ):
            outcome = client.register(request("one"), wait_seconds=WAIT_SECONDS_MAX)
            assert isinstance(outcome, Admitted)
            found = collector.await_spans(chain)
        decided, published, asked = found
        assert [span.service for span in found] == [WORKER, SERVER, SERVER]
        assert asked.name == "POST /v1/rounds"
        assert published.name == "publish shuffle_ledger.admit_round"
        assert decided.name == "shuffle_ledger.admit_round"
        assert decided.attributes["shuffle_ledger.outcome"] == "admitted"
        same = "shuffle_ledger.request_id"
        assert decided.attributes[same] == asked.attributes[same]
        assert len({span.trace for span in found}) == 1
        sent = b"".join(collector.raw)
        for secret in (PASSWORD, quote(PASSWORD), token.rpartition("_")[2]):
            assert secret.encode() not in sent
