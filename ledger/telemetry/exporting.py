"""What one process exports by OTLP over HTTP. The only module that imports OpenTelemetry, an extra.

No span holds a secret: no query string of an address, no message of an error.
The log has the errors, under the same request identifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

NAME = "shuffle_ledger"
END_MILLISECONDS_MAX = 5000  # for what is left when the process ends
_KINDS = {"producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}


class Exporting:
    """The provider of one process's spans, until `end`."""

    def __init__(self, process: str) -> None:
        """Start the thread that exports spans."""
        own = {"service.name": f"shuffle-ledger-{process}", "service.version": version("shuffle-ledger")}
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        # Ended by `end` alone: a worker's processes leave without the usual exit of Python.
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(_WithoutQueries())
        self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._tracers.get_tracer(NAME, version("shuffle-ledger"))

    def end(self) -> None:
        """Send what is left, within a few seconds, and stop the thread."""
        self._tracers.force_flush(END_MILLISECONDS_MAX)
        self._tracers.shutdown()

    def provider(self) -> dict[str, Any]:
        """Return what FastAPI needs to trace requests."""
        return {"tracing": True, "tracer_provider": self._tracers}

    @contextmanager
    def span(self, name: str, kind: str, came_with: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """See `hooks.span`."""
        with self._tracer.start_as_current_span(
            name,
            context=propagate.extract(came_with) if came_with else None,
            kind=_KINDS[kind],
            record_exception=False,
            set_status_on_exception=False,
        ) as found:
            headers: dict[str, str] = {}
            propagate.inject(headers)
            try:
                yield headers
            except Exception as error:
                _mark_failed(found, error)
                raise

    def decided(self, outcome: str) -> None:
        """See `hooks.decided`."""
        trace.get_current_span().set_attribute(f"{NAME}.outcome", outcome)

    def describe_request(self, request_id: str) -> None:
        """See `hooks.describe_request`."""
        trace.get_current_span().set_attribute(f"{NAME}.request_id", request_id)


class _WithoutQueries(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Hide the query string: clients may put a token there."""
        if span.attributes is not None and "url.query" in span.attributes:
            span.set_attribute("url.query", "***")


def _mark_failed(span: trace.Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)
