"""Has workers write their logs as the settings say, in place of Celery's own lines, export telemetry, and end
at SIGHUP."""

from __future__ import annotations

import logging
import sys

from celery import bootsteps
from celery.signals import setup_logging, worker_process_init, worker_process_shutdown

from shuffle_ledger.ledger import hangups, telemetry
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


class EndAtHangup(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery publishes no types
    """Has the main process end at SIGHUP: Celery's own handler would start another program in its place."""

    def start(self, _parent: object) -> None:
        """Do so: after Celery set its handlers, and before it waits for a broker."""
        hangups.end_at_hangup()


def begin_telemetry(**_: object) -> None:
    """Begins to export traces and metrics: after the fork, which no thread of an exporter survives."""
    telemetry.begin("worker")


def end_telemetry(**_: object) -> None:
    """Sends what is left."""
    telemetry.end()


def ignore_hangup(**_: object) -> None:
    """Has a child that decides a round finish it, when the terminal of all of them is closed."""
    hangups.ignore_hangup()


setup_logging.connect(write_logs)
worker_process_init.connect(ignore_hangup)
worker_process_init.connect(begin_telemetry)
worker_process_shutdown.connect(end_telemetry)
