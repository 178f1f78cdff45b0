"""Has workers write their logs as the settings say, in place of Celery's own lines, and export telemetry."""

from __future__ import annotations

import logging
import sys

from celery.signals import setup_logging, worker_process_init, worker_process_shutdown

from shuffle_ledger.ledger import telemetry
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


def begin_telemetry(**_: object) -> None:
    """Begins to export traces and metrics: after the fork, which no thread of an exporter survives."""
    telemetry.begin("worker")


def end_telemetry(**_: object) -> None:
    """Sends what is left."""
    telemetry.end()


setup_logging.connect(write_logs)
worker_process_init.connect(begin_telemetry)
worker_process_shutdown.connect(end_telemetry)
