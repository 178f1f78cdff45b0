"""Traces and metrics by OpenTelemetry, if its own variables name a collector; else nothing.

Imports `errors`.
"""

from shuffle_ledger.ledger.telemetry.hooks import (
    DURATION_BUCKETS,
    MESSAGE_HEADER,
    begin,
    check,
    decided,
    describe_request,
    end,
    exported,
    fastapi_settings,
    span,
    statement_failed,
)

__all__ = [
    "DURATION_BUCKETS",
    "MESSAGE_HEADER",
    "begin",
    "check",
    "decided",
    "describe_request",
    "end",
    "exported",
    "fastapi_settings",
    "span",
    "statement_failed",
]
