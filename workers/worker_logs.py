"""Has workers write their logs as the settings say, in place of Celery's own lines, export telemetry, and end
at SIGHUP."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

from celery import bootsteps
from celery.apps import worker as celery_worker
from celery.signals import celeryd_init, setup_logging, worker_process_init, worker_process_shutdown

from shuffle_ledger.ledger import hangups, telemetry
from shuffle_ledger.ledger.logs import handler_for
from shuffle_ledger.ledger.settings import Settings


def write_logs(**_: object) -> None:
    """Writes messages from level INFO on to standard error, before Celery writes anything."""
    root = logging.getLogger()
    root.addHandler(handler_for(Settings().log_format, sys.stderr))
    root.setLevel(logging.INFO)
    # It writes the address of every request, and addresses of webhooks may hold their receivers' secrets.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def log_the_rest(**_: object) -> None:
    """Has warnings, and what Celery says of signals, be lines of the log, too."""
    logging.captureWarnings(capture=True)
    celery_worker.safe_say = say


def say(message: str, *_: object) -> None:
    """Writes what Celery says of a signal: at once, for a handler of signals must not wait for locks."""
    fields = {"name": "celery.worker", "levelno": logging.INFO, "levelname": "INFO", "msg": message}
    line = handler_for(Settings().log_format, sys.stderr).format(logging.makeLogRecord(fields))
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def keep_logs(**_: object) -> None:
    """Leaves the logs as `write_logs` set them: if this is connected, Celery sets up no logs."""


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


celeryd_init.connect(write_logs)
celeryd_init.connect(log_the_rest)
setup_logging.connect(keep_logs)
worker_process_init.connect(ignore_hangup)
worker_process_init.connect(begin_telemetry)
worker_process_shutdown.connect(end_telemetry)
