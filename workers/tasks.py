"""The tasks: each carries identifiers only, is one call, and may run twice, late or at once."""

from __future__ import annotations

import functools

from celery import Task
from celery.utils.log import get_task_logger

from accounting import Accountant
from ledger.admission import admit_queued
from ledger.config import Settings
from ledger.store import Store
from workers.celery_app import ADMIT_ROUND, SWEEP, app
from workers.dispatch import sweep

_log = get_task_logger(__name__)


@app.task(name=ADMIT_ROUND, bind=True)
def admit_round(self: Task, round_id: str) -> None:
    """Decide a round; the answer is in the database. A failure is counted there, and raised for the log."""
    redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    outcome = admit_queued(_store(), _accountant(), round_id, redelivered=redelivered)
    _log.info("round %s: %s", round_id, type(outcome).__name__.lower())


@app.task(name=SWEEP)
def sweep_pending() -> None:
    """Queue again what was lost between the database and a worker."""
    _log.info("queued %d overdue rounds", sweep(_store(), app))


# One of each per worker process, made after the fork: connections do not survive one.
@functools.cache
def _store() -> Store:
    return Store.connect(Settings().database_url)


@functools.cache
def _accountant() -> Accountant:
    return Accountant(precision=Settings().precision)
