"""Traces by OpenTelemetry, if its own variables name a collector; else nothing.

Imports `errors`.
"""

from shuffle_ledger.ledger.telemetry.hooks import (
    MESSAGE_HEADER,
    begin,
    check,
    decided,
    describe_request,
    end,
    exported,
    fastapi_settings,
    span,
)

__all__ = [
    "MESSAGE_HEADER",
    "begin",
    "check",
    "decided",
    "describe_request",
    "end",
    "exported",
    "fastapi_settings",
    "span",
]
