"""`worker` decides queued rounds; `scheduler` does the upkeep. Both become Celery workers."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.failures import BadValue, require
from shuffle_ledger.cli.options import broker_option, database_options, output_options
from shuffle_ledger.cli.rendering.started import present_start
from shuffle_ledger.ledger import telemetry
from shuffle_ledger.ledger.settings import SETTINGS_FILE, Settings

PROCESSES_MAX = 64


@click.command()
@click.option(
    "--concurrency", type=click.IntRange(1, PROCESSES_MAX), default=1, show_default=True, help="Processes."
)
@click.option(
    "--sweep/--no-sweep",
    default=True,
    show_default=True,
    help="Also do what `scheduler` does. With several workers: --no-sweep, and one scheduler.",
)
@database_options("workers decide where the ledger is")
@broker_option
@output_options
def worker(
    concurrency: int,
    sweep: bool,
    settings: Settings,
    as_json: bool,
) -> None:
    """Decide queued rounds until stopped."""
    _check(settings)
    present_start(
        {"started": True, "concurrency": concurrency, "sweep": sweep},
        f"Deciding queued rounds in {concurrency} process(es).",
        form=settings.log_format,
        as_json=as_json,
    )
    _become_celery(settings, concurrency=concurrency, rounds=True, upkeep=sweep)


@click.command()
@database_options("workers decide where the ledger is")
@broker_option
@output_options
def scheduler(settings: Settings, as_json: bool) -> None:
    """Queue again what was lost, and verify the chains in turn, until stopped. Decides nothing.

    One is enough; two do the same work twice, and no harm.
    """
    _check(settings)
    present_start({"started": True}, "Sweeping and verifying.", form=settings.log_format, as_json=as_json)
    # Three processes: a sweep waits neither for a verification nor for the receivers of webhooks.
    _become_celery(settings, concurrency=3, rounds=False, upkeep=True)


def _check(settings: Settings) -> None:
    if not settings.broker_url:
        needed = (
            "a broker is needed, such as amqp://HOST or redis://HOST: give --broker-url, or set"
            f" SHUFFLE_LEDGER_BROKER_URL, or broker_url in {SETTINGS_FILE}"
        )
        raise BadValue("broker_url", None, "the address of a broker", needed)
    require("celery")
    telemetry.check()
    with open_session(settings):
        pass  # an uninitialised ledger is better told now than by every task


def _become_celery(settings: Settings, *, concurrency: int, rounds: bool, upkeep: bool) -> NoReturn:
    """Replaces this process, so that signals reach Celery itself; its output goes to standard error."""
    chosen = {
        "SHUFFLE_LEDGER_DATABASE_URL": settings.database_url,
        "SHUFFLE_LEDGER_BROKER_URL": settings.broker_url or "",
        "SHUFFLE_LEDGER_ACTOR": settings.actor,
    }
    from shuffle_ledger.workers.queues import queue_names  # noqa: PLC0415 - Kombu, which only workers need

    names = queue_names(settings.queue)
    wanted = ((names.rounds, rounds), (names.upkeep, upkeep))
    consumed = [name for name, is_wanted in wanted if is_wanted]
    command = [
        sys.executable,
        "-m",
        "celery",
        "--quiet",
        "--app",
        "shuffle_ledger.workers.celery_app",
        "worker",
    ]
    command += ["--loglevel", "INFO", "--concurrency", str(concurrency), "--queues", ",".join(consumed)]
    command += ["--without-gossip", "--without-mingle"]  # workers share the database, and need no more
    if upkeep:
        command += ["--beat", "--scheduler", "celery.beat:Scheduler"]  # which keeps its schedule in memory
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.execve(sys.executable, command, {**os.environ, **chosen})  # noqa: S606 - our own interpreter, no shell
