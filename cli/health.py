"""`health`: does everything go its way, and what needs somebody."""

from __future__ import annotations

import dataclasses

import click
from rich.table import Table

from cli.failures import ExitCode
from cli.options import broker_option, ledger_options, output_options
from cli.present import Json, document_of, facts, present
from cli.session import open_session, settings_from
from ledger.scheduled_checkpoints import ScheduledCheckpoints
from ledger.upkeep import Health
from ledger.upkeep import health as ledger_health
from workers.dispatch import queue_alarms, queue_lengths


@click.command()
@ledger_options
@broker_option
@output_options
def health(database_url: str | None, actor: str | None, broker_url: str | None, as_json: bool) -> int:
    """Show what waits, what is stuck and what verification found: exits with 0 when nobody is needed.

    Exits with 6 when the last verification of a cohort found something, with 1 for every other alarm.
    """
    settings = settings_from(database_url=database_url, broker_url=broker_url, actor=actor)
    with open_session(settings) as session:
        found = ledger_health(session.store, ScheduledCheckpoints.of(settings))
    queues = queue_lengths(settings)
    alarms = (*found.alarms, *queue_alarms(settings, queues))
    found = dataclasses.replace(found, alarms=alarms)
    present(_document(found, queues), lambda: health_facts(found, queues), as_json=as_json)
    if found.cohorts_broken:
        return ExitCode.NOT_VERIFIED
    return ExitCode.FAILED if alarms else ExitCode.DONE


def health_facts(found: Health, queues: dict[str, int] | None) -> Table:
    """Returns the state of a ledger as a table for people."""
    rows: dict[str, object] = {
        "pending": found.rounds_pending,
        "longest wait": f"{found.longest_wait_seconds:.0f} seconds",
        "stuck": found.rounds_stuck,
        "cohorts": found.cohorts,
        "not verified lately": found.cohorts_unverified,
        "found broken": found.cohorts_broken,
        "last checkpoint": found.checkpointed_at and found.checkpointed_at.isoformat(timespec="seconds"),
    }
    rows |= {f"queue {name}": length for name, length in (queues or {}).items()}
    rows |= {f"alarm {number}": alarm for number, alarm in enumerate(found.alarms, start=1)}
    return facts("Somebody is needed." if found.alarms else "All is well.", rows)


def _document(found: Health, queues: dict[str, int] | None) -> dict[str, Json]:
    fields = {field.name: document_of(getattr(found, field.name)) for field in dataclasses.fields(found)}
    return {"healthy": not found.alarms, **fields, "queues": document_of(queues)}
