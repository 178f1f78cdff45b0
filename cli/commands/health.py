"""`health`: the ledger's health, and alarms for operators."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from shuffle_ledger.cli.backends.opening import open_ledger
from shuffle_ledger.cli.failures import ExitCode
from shuffle_ledger.cli.options import check_watch, deciding_options, output_options, watch_option
from shuffle_ledger.cli.rendering.present import facts, present, watched
from shuffle_ledger.ledger.health import Health, health_document


@click.command()
@watch_option
@deciding_options
@output_options
def health(watch: float | None, as_json: bool, **where: Any) -> int:
    """Show what waits, what is stuck and what verification found: exits with 0 if there is no alarm.

    Exits with 6 when the last verification of a cohort found something, with 1 for every other alarm.
    """
    check_watch(watch, as_json=as_json)
    with open_ledger(**where) as ledger:

        def show() -> Health:
            state = ledger.health()
            present(health_document(state), lambda: health_facts(state), as_json=as_json)
            return state

        found = watched(show, watch)
    if found.cohorts_broken:
        return ExitCode.NOT_VERIFIED
    return ExitCode.FAILED if found.alarms else ExitCode.DONE


def health_facts(found: Health) -> Table:
    """Returns the state of a ledger as a table for people."""
    rows: dict[str, object] = {
        "pending": found.rounds_pending,
        "longest wait": f"{found.longest_wait_seconds:.0f} seconds",
        "stuck": found.rounds_stuck,
        "cohorts": found.cohorts,
        "not verified lately": found.cohorts_unverified,
        "found broken": found.cohorts_broken,
        "overspent": found.cohorts_overspent,
        "frozen": found.cohorts_frozen,
        "webhooks paused": found.webhooks_paused,
        "webhooks failing": found.webhooks_failing,
        "last checkpoint": found.checkpointed_at and found.checkpointed_at.isoformat(timespec="seconds"),
    }
    if found.workers is not None:
        rows["workers"] = found.workers
    rows |= {f"acknowledged {number}": which for number, which in enumerate(found.acknowledged, start=1)}
    rows |= {f"queue {name}": length for name, length in (found.queues or {}).items()}
    rows |= {f"alarm {number}": alarm for number, alarm in enumerate(found.alarms, start=1)}
    return facts("Somebody is needed." if found.alarms else "All is well.", rows)
