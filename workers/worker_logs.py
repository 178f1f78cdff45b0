"""Has workers write their logs as the settings say, in place of Celery's own lines."""

from __future__ import annotations

import logging
import sys

from celery.signals import setup_logging

from shuffle_ledger.ledger.logs import handler_for
from shuffle_ledger.ledger.settings import Settings


def write_logs(**_: object) -> None:
    """Writes messages from level INFO on to standard error. Celery calls this instead of its setup of
    logs."""
    root = logging.getLogger()
    root.addHandler(handler_for(Settings().log_format, sys.stderr))
    root.setLevel(logging.INFO)
    # It writes the address of every request, and addresses of webhooks may hold their receivers' secrets.
    logging.getLogger("httpx").setLevel(logging.WARNING)


setup_logging.connect(write_logs)
