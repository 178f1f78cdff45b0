"""Checks messages before Celery reads them: only what this package's own processes send reaches a task.

Celery's main process trusts a message's headers and body, and ends with an error where they are others'; the
broker then gives the same message to the next worker. So every other message is refused, and only headers
with a meaning here are passed on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from kombu import compression

from shuffle_ledger.ledger import telemetry
from shuffle_ledger.ledger.request_ids import MESSAGE_HEADER
from shuffle_ledger.workers.celery_app import ADMIT_ROUND, UPKEEP

CONTENT_TYPE: Final = "application/json"
ENCODING: Final = "utf-8"
BODY_BYTES_MAX: Final = 64 << 10  # a round's identifier has at most 200 characters
TEXT_LENGTH_MAX: Final = 1000  # of an identifier in a header, and of a round's
_TRACE_HEADERS_MAX: Final = 16

Headers = dict[str, Any]


def accepted_headers(message: Any) -> Headers:
    """Return the headers of a message of ours that Celery may read.

    Args:
        message: as Kombu delivers it.

    Raises:
        ValueError: the message is not one that this package sends; the text says why.
    """
    headers = message.headers
    if not isinstance(headers, dict):
        raise ValueError("its headers are no mapping")
    found = {name: headers[name] for name in _HEADERS if headers.get(name) is not None}
    for name, is_right in _HEADERS.items():
        if name in found and not is_right(found[name]):
            raise ValueError(f"its header {name!r} is not what is sent here")
    missing = sorted({"id", "task"} - found.keys())
    if missing:
        raise ValueError(f"it lacks the header {missing[0]!r}")
    task = found["task"]
    if task not in _ARGUMENTS:
        raise ValueError("it names a task that there is not")
    _check_body(message, task)
    return found


def refuse_compressed() -> None:
    """Have Kombu refuse compressed bodies: none is sent here, and a small one can fill the memory."""
    for content_type in compression.encoders():
        compression.register(None, _refuse, content_type)


def _refuse(_body: bytes) -> bytes:
    raise ValueError("a compressed body")


def _check_body(message: Any, task: str) -> None:
    if (message.content_type, str(message.content_encoding).lower()) != (CONTENT_TYPE, ENCODING):
        raise ValueError(f"its body is not declared as {CONTENT_TYPE} in {ENCODING}")
    body = message.body
    if not isinstance(body, (bytes, str)) or len(body) > BODY_BYTES_MAX:
        raise ValueError(f"its body is larger than {BODY_BYTES_MAX} bytes, or none")
    try:
        content = json.loads(body if isinstance(body, str) else body.decode(ENCODING))
    except (ValueError, RecursionError):
        raise ValueError("its body is not JSON in UTF-8") from None
    if not isinstance(content, list) or len(content) != 3:
        raise ValueError("its body is not arguments, named arguments and options")
    arguments, named, options = content
    if named != {} or not isinstance(options, dict) or any(options.values()):
        raise ValueError("it has named arguments, or asks for more than its task")
    if not isinstance(arguments, list) or not _ARGUMENTS[task](arguments):
        raise ValueError("its arguments are not those of its task")


def _is_text(found: object) -> bool:
    return isinstance(found, str) and 0 < len(found) <= TEXT_LENGTH_MAX and "\0" not in found


def _is_time(found: object) -> bool:
    """Return whether this is a moment with its offset, and none at the ends of the calendar."""
    try:
        moment = datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return False
    return moment is not None and moment.tzinfo is not None and 1970 <= moment.year < 9000


def _is_trace(found: object) -> bool:
    if not isinstance(found, Mapping) or len(found) > _TRACE_HEADERS_MAX:
        return False
    return all(isinstance(each, str) for pair in found.items() for each in pair)


def _is_round(arguments: list[Any]) -> bool:
    return len(arguments) == 1 and _is_text(arguments[0])


# Headers that a message of ours may have. Celery's others are left out: it takes its defaults for them.
_HEADERS: Mapping[str, Callable[[object], bool]] = {
    "id": _is_text,
    "task": _is_text,
    "expires": _is_time,
    "root_id": _is_text,
    "parent_id": _is_text,
    MESSAGE_HEADER: _is_text,
    telemetry.MESSAGE_HEADER: _is_trace,
}
_ARGUMENTS: Mapping[str, Callable[[list[Any]], bool]] = {
    ADMIT_ROUND: _is_round,
    **dict.fromkeys(UPKEEP, lambda arguments: not arguments),
}
