"""A collector of OpenTelemetry on this machine, which keeps what it is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.ports import answering

SECONDS_MAX = 60.0


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span, as it was received."""

    service: str
    name: str
    trace: bytes
    own: bytes  # its identifier
    above: bytes  # that of the span above it; empty for the first of a trace
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """What came so far."""

    url: str
    raw: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which processes export to it, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def await_spans(self, found: Callable[[list[Span]], Any]) -> Any:
        """Return what `found` makes of the spans as soon as it is true."""
        ends = time.monotonic() + SECONDS_MAX
        while not (answer := found(list(self.spans))):
            assert time.monotonic() < ends, [(span.service, span.name) for span in self.spans]
            time.sleep(0.05)
        return answer

    def take(self, path: str, body: bytes) -> None:
        """Keep a message."""
        self.raw.append(body)
        assert path == "/v1/traces"
        message: Any = ExportTraceServiceRequest.FromString(body)
        for sent in message.resource_spans:
            service = _plain(sent.resource.attributes)["service.name"]
            for each in (span for scope in sent.scope_spans for span in scope.spans):
                self.spans.append(
                    Span(
                        service=service,
                        name=each.name,
                        trace=each.trace_id,
                        own=each.span_id,
                        above=each.parent_span_id,
                        attributes=_plain(each.attributes),
                        failed=each.status.code == 2,
                    )
                )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with answering(Handler) as port:
        found = Collector(url=f"http://127.0.0.1:{port}")
        yield found
