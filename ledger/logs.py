"""Log lines of servers and workers: for people or as JSON, with the request's identifier, no secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TextIO

from shuffle_ledger.ledger import request_ids, security_log

Form = Literal["console", "json"]
FIELDS = "fields"  # the name under `extra` of a record's own fields
_OWN = ("shuffle_ledger", "uvicorn")  # whose information is written; of other libraries only warnings
# What separates a name from its value, also in JSON and in JSON within a text; and the value.
_IS, _VALUE = r"""([\\'"]*\s*[=:]\s*)""", r"""(?:\\?"[^"]*"|'[^']*'|\S+)"""
# Cookies, credentials and tokens wherever they are, passwords inside of addresses, and what follows names of
# secrets. A number and a slash behind a host are its port. Other names end in _key, too, and hold no secret.
_SECRETS = (
    (re.compile(r"(?im)\b((?:set-)?cookie)" + _IS + r".+$"), r"\1\2***"),
    (re.compile(rf"(?i)\b(authorization){_IS}['\"]?(?:(?:basic|bearer)\s+)?{_VALUE}"), r"\1\2***"),
    (re.compile(r"sl_([0-9a-f]+)_[0-9a-f]+", re.ASCII), r"sl_\1_***"),
    (re.compile(r"\bwhsec_[\w+/=-]+", re.ASCII), "whsec_***"),
    (re.compile(r"\beyJ(?:[\w-]{10,}|[\w-]*\.)[\w.-]*", re.ASCII), "***"),
    (re.compile(r"(://[^\s:/@'\"]*):(?!\d{1,5}/)[^\s'\"]{1,256}@"), r"\1:***@"),  # bounds the search
    (
        re.compile(
            r"(?i)\b(\w*(?:password|secret)|\w+_token|\w+(?<!public)(?<!routing)(?<!idempotency)_key)"
            + _IS
            + _VALUE
        ),
        r"\1\2***",
    ),
)


def without_secrets(text: str) -> str:
    """Return a text with tokens, passwords and cookies replaced by `***`."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class JsonLines(logging.Formatter):
    """Writes one JSON object a line: `at`, `level`, `logger`, `message`, `request_id`, fields, `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        request_id = request_ids.current()
        if request_id is not None:
            line["request_id"] = request_id
        for name, value in _fields(record).items():
            line[name] = without_secrets(value) if isinstance(value, str) else value
        if record.exc_info:
            line["error"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


class ConsoleLines(logging.Formatter):
    """Writes a line for people, and a traceback on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        words = [_at(record), record.levelname, f"{record.name}:", record.getMessage()]
        fields = dict(_fields(record))
        request_id = request_ids.current()
        if request_id is not None:
            fields["request_id"] = request_id
        words += [f"{name}={value}" for name, value in fields.items()]
        lines = [" ".join(words)]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return without_secrets("\n".join(lines))


def handler_for(form: Form, stream: TextIO) -> logging.Handler:
    """Return a handler for everything but the security log, which has its own lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else ConsoleLines())
    handler.addFilter(lambda record: record.name != security_log.NAME)
    return handler


@contextmanager
def written_to_stderr(form: Form) -> Iterator[None]:
    """Write the logs of a server to standard error until the end of the block."""
    root = logging.getLogger()
    handler = handler_for(form, sys.stderr)
    levels = {name: logging.getLogger(name).level for name in _OWN}
    root.addHandler(handler)
    for name in _OWN:
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found = getattr(record, FIELDS, {})
    return found if isinstance(found, Mapping) else {}
