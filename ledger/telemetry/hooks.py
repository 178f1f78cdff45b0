"""Hooks for the spans of a trace. They do nothing, and import nothing, before `begin`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from shuffle_ledger.ledger.errors import InvalidValue

if TYPE_CHECKING:
    from shuffle_ledger.ledger.telemetry.exporting import Exporting

Process = Literal["server", "worker"]
MESSAGE_HEADER = "shuffle_ledger_trace"  # of messages to workers: where the trace comes from
_PROTOCOL = "http/protobuf"
_running: list[Exporting] = []  # one at most


def check() -> None:
    """Check the variables of OpenTelemetry, and that its libraries are there if they are needed.

    Raises:
        InvalidValue: a variable asks for what this program cannot do.
        ModuleNotFoundError: a collector is named, and the extra `otel` is not installed.
    """
    if _is_wanted():
        from shuffle_ledger.ledger.telemetry import exporting  # noqa: F401, PLC0415 - an extra


def begin(process: Process) -> None:
    """Begin to export what the environment asks for. Call it after a fork. Raises as `check`."""
    if not _is_wanted() or _running:
        return
    from shuffle_ledger.ledger.telemetry.exporting import Exporting  # noqa: PLC0415 - an extra

    _running.append(Exporting(process))


def end() -> None:
    """Send what is left, and export no more."""
    while _running:
        _running.pop().end()


@contextmanager
def exported(process: Process) -> Iterator[None]:
    """Export until the end of the block. Raises as `check`."""
    begin(process)
    try:
        yield
    finally:
        end()


@contextmanager
def span(
    name: str, kind: Literal["producer", "consumer"], *, came_with: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """Run the block in a span, below the one that sent the headers `came_with` or else the current one.

    Yields the headers for a message, so that its receiver's span belongs to the same trace; empty if nothing
    is exported.
    """
    if not _running:
        yield {}
        return
    with _running[-1].span(name, kind, came_with or {}) as headers:
        yield headers


def decided(outcome: str) -> None:
    """Give the current span the outcome of a registration or a decision."""
    if _running:
        _running[-1].decided(outcome)


def describe_request(request_id: str) -> None:
    """Give the current span the identifier of the request that it is part of."""
    if _running:
        _running[-1].describe_request(request_id)


def fastapi_settings() -> dict[str, Any]:
    """Return the argument `telemetry` of FastAPI, which traces requests itself."""
    settings = {"logs": False, "metrics": False, "operation_spans": False, "auto_configure": False}
    return {**settings, **(_running[-1].provider() if _running else {"tracing": False})}


def _is_wanted() -> bool:
    """Return whether a collector of traces is named; raises InvalidValue."""
    if (_given("OTEL_SDK_DISABLED") or "").lower() == "true":
        return False
    exporter = _given("OTEL_TRACES_EXPORTER") or "otlp"
    endpoint = _given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint is None or exporter == "none":
        return False
    if exporter != "otlp":
        raise InvalidValue(field="OTEL_TRACES_EXPORTER", value=exporter, expected="otlp or none")
    protocol = _given("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        raise InvalidValue(field="OTEL_EXPORTER_OTLP_PROTOCOL", value=protocol, expected=_PROTOCOL)
    if urlsplit(endpoint).scheme not in ("http", "https"):  # it may hold a password: not shown
        expected = "an address that begins with http:// or https://"
        raise InvalidValue(field="OTEL_EXPORTER_OTLP_ENDPOINT", value="(hidden)", expected=expected)
    return True


def _given(*names: str) -> str | None:
    """Return the first variable that has a value: an empty one counts as unset, says OpenTelemetry."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)
