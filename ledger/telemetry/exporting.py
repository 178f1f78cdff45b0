"""What one process exports by OTLP over HTTP. The only module that imports OpenTelemetry, an extra.

No span holds a secret: no query string of an address, no parameter of a statement, no message of an error.
The log has the errors, under the same request identifier.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext

from shuffle_ledger.ledger.telemetry.hooks import DURATION_BUCKETS

NAME = "shuffle_ledger"
STATEMENT_LENGTH_MAX = 2000  # characters of a statement; longer ones are cut
END_MILLISECONDS_MAX = 5000  # for what is left when the process ends
_KINDS = {"producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}
_MEANINGS = {
    "registration": "Time from a registration's arrival at a server to its answer.",
    "decision": "Time that a worker took to decide a round.",
}


class Exporting:
    """The providers of one process, and the spans of its statements, until `end`."""

    def __init__(self, process: str, signals: frozenset[str]) -> None:
        """Start the threads that export `signals`, some of TRACES and METRICS."""
        own = {"service.name": f"shuffle-ledger-{process}", "service.version": version("shuffle-ledger")}
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        self._signals = signals
        # Ended by `end` alone: a worker's processes leave without the usual exit of Python.
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        if "TRACES" in signals:
            self._tracers.add_span_processor(_WithoutQueries())
            self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if "METRICS" in signals else []
        self._meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracers.get_tracer(NAME, version("shuffle-ledger"))
        meter = self._meters.get_meter(NAME, version("shuffle-ledger"))
        self._durations = {
            step: meter.create_histogram(
                f"{NAME}.{step}.duration",
                unit="s",
                description=meaning,
                explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
            )
            for step, meaning in _MEANINGS.items()
        }
        self._thread = threading.local()  # `span`: of the statement that this thread waits for
        self._listeners = (
            ("before_cursor_execute", self._statement_begins),
            ("after_cursor_execute", self._statement_ends),
            ("handle_error", self._statement_raised),
        )
        for name, listener in self._listeners:
            event.listen(Engine, name, listener)

    def end(self) -> None:
        """Send what is left, within a few seconds, and stop the threads."""
        for name, listener in self._listeners:
            event.remove(Engine, name, listener)
        self._tracers.force_flush(END_MILLISECONDS_MAX)
        self._tracers.shutdown()
        self._meters.shutdown(END_MILLISECONDS_MAX)

    def providers(self) -> dict[str, Any]:
        """Return what FastAPI needs to trace and measure requests."""
        return {
            "tracing": "TRACES" in self._signals,
            "tracer_provider": self._tracers,
            "metrics": "METRICS" in self._signals,
            "meter_provider": self._meters,
        }

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

    def decided(self, step: str, outcome: str, seconds: float) -> None:
        """See `hooks.decided`."""
        self._durations[step].record(seconds, {"outcome": outcome})
        trace.get_current_span().set_attribute(f"{NAME}.outcome", outcome)

    def describe_request(self, request_id: str) -> None:
        """See `hooks.describe_request`."""
        trace.get_current_span().set_attribute(f"{NAME}.request_id", request_id)

    def statement_failed(self, error: BaseException) -> None:
        """See `hooks.statement_failed`."""
        found = self._take()
        if found is not None:
            _mark_failed(found, error)
            found.end()

    def _statement_begins(self, connection: Connection, _cursor: object, text: str, *_: object) -> None:
        self._take()
        # Only within a request or a task: the server also reads figures for its metrics, for example.
        if trace.get_current_span().get_span_context().is_valid:
            attributes = {
                "db.system.name": connection.dialect.name,
                "db.query.text": text[:STATEMENT_LENGTH_MAX],
            }
            name = text.split(None, 1)[0]
            self._thread.span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def _statement_ends(self, *_: object) -> None:
        found = self._take()
        if found is not None:
            found.end()

    def _statement_raised(self, context: ExceptionContext) -> None:
        self.statement_failed(context.original_exception)

    def _take(self) -> trace.Span | None:
        found: trace.Span | None = self._thread.__dict__.pop("span", None)
        return found


class _WithoutQueries(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Hide the query string: that of a sign-in holds a code."""
        if span.attributes is not None and "url.query" in span.attributes:
            span.set_attribute("url.query", "***")


def _mark_failed(span: trace.Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)
