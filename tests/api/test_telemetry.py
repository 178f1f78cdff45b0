"""Traces of a server: a span for each request, and no secret in any."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shuffle_ledger.ledger import telemetry
from shuffle_ledger.ledger.errors import InvalidValue
from tests.api.conftest import Server
from tests.collector import Collector, collecting

SECRET = "hunter2-of-the-query"  # noqa: S105 - to look for


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Yield a collector to which this process exports until the test ends the export."""
    with collecting() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        telemetry.begin("server")
        try:
            yield found
        finally:
            telemetry.end()


def test_a_request_is_a_trace_with_its_identifier(collector: Collector, serve: Callable[..., Server]) -> None:
    server = serve()
    assert server.register("a", headers={"X-Request-Id": "job-7"}).status_code == 201
    server.http.get("/healthz")
    telemetry.end()
    # Nothing else: not a health check, not what the server does by itself.
    first, *others = (span for span in collector.spans if span.above == b"")
    assert (first.name, others) == ("POST /v1/rounds", [])
    assert (first.service, first.above) == ("shuffle-ledger-server", b"")
    assert first.attributes["shuffle_ledger.request_id"] == "job-7"
    assert first.attributes["shuffle_ledger.outcome"] == "admitted"
    assert {span.trace for span in collector.spans} == {first.trace}


def test_no_secret_is_in_what_is_exported(collector: Collector, serve: Callable[..., Server]) -> None:
    server = serve()
    reason = "a-parameter-of-a-statement"
    server.http.get(f"/login?token={SECRET}")
    server.http.get(f"/v1/cohorts?token={SECRET}", headers={"Authorization": "Bearer sl_aa_" + SECRET})
    server.register("a")
    voided = server.ask("POST", "/v1/rounds/a/void", json={"reason": reason})
    assert voided.status_code == 200, voided.text
    telemetry.end()
    assert len(collector.spans) >= 4
    queries = [span.attributes.get("url.query") for span in collector.spans]
    assert queries.count("***") == 2
    sent = b"".join(collector.raw)
    for secret in (SECRET, reason, *(token.rpartition("_")[2] for token in server.tokens.values())):
        assert secret.encode() not in sent, secret


def test_what_fails_is_a_failed_span_without_the_error_s_text(collector: Collector) -> None:
    with pytest.raises(ValueError, match=SECRET), telemetry.span("outside", "consumer"):
        raise ValueError(SECRET)
    telemetry.end()
    (failed,) = collector.spans
    assert (failed.failed, failed.attributes["error.type"]) == (True, "ValueError")
    assert SECRET.encode() not in b"".join(collector.raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
    ],
)
def test_what_it_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidValue, match=name):
        telemetry.check()


def test_it_is_off_unless_a_collector_is_named(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Server]
) -> None:
    with collecting() as collector:
        for name, value in (collector.environment | {"OTEL_SDK_DISABLED": "true"}).items():
            monkeypatch.setenv(name, value)
        with telemetry.exported("server"):
            assert serve().register("a").status_code == 201
        monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        with telemetry.exported("server"), telemetry.span("a", "producer") as headers:
            assert headers == {}
    assert collector.raw == []
