"""The first line of a process that runs until it is stopped: in the form of its log."""

from __future__ import annotations

import logging
import sys

from shuffle_ledger.cli.rendering.present import present
from shuffle_ledger.ledger.logs import FIELDS, Form, JsonLines
from shuffle_ledger.ledger.values import Json


def present_start(document: dict[str, Json], sentence: str, *, form: Form, as_json: bool) -> None:
    """Writes to standard output that a process has started.

    Args:
        document: what `--json` writes; else fields of the line, where the log is JSON.
        sentence: the same for people.
        form: of the log.
        as_json: whether `--json` was given.
    """
    if as_json or form != "json":
        present(document, lambda: sentence, as_json=as_json)
        return
    record = logging.makeLogRecord(
        {"name": "shuffle_ledger", "levelno": logging.INFO, "levelname": "INFO", "msg": sentence}
    )
    setattr(record, FIELDS, document)
    sys.stdout.write(JsonLines().format(record) + "\n")
    sys.stdout.flush()
