"""The tasks: each carries identifiers only, is one call, and may run twice, late or at once."""

from __future__ import annotations

import functools
import time

from celery import Task
from celery.utils.log import get_task_logger
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import request_ids, telemetry
from shuffle_ledger.ledger.checkpoints import ScheduledCheckpoints
from shuffle_ledger.ledger.decisions import admit
from shuffle_ledger.ledger.errors import NotCollectable, Unavailable
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.request_ids import MESSAGE_HEADER
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Store
from shuffle_ledger.ledger.values import SigningKey
from shuffle_ledger.ledger.webhooks import deliver
from shuffle_ledger.workers.celery_app import (
    ADMIT_ROUND,
    CHECKPOINT,
    REPORT_STUCK,
    SWEEP,
    VERIFY,
    WEBHOOKS,
    app,
)
from shuffle_ledger.workers.dispatch import report_stuck, sweep

# How long a round waits here for a database that does not answer. After that its message is gone, and a sweep
# finds the round.
DATABASE_SECONDS_MAX = 20.0
VERIFY_SECONDS_MAX = 60.0  # after which no further cohort is begun
WEBHOOKS_SECONDS_MAX = 30.0  # after which no further message is begun

_log = get_task_logger(__name__)


@app.task(name=ADMIT_ROUND, bind=True)
def admit_round(self: Task, round_id: str) -> None:
    """Decide a round; the answer is in the database. A failure is counted there, and raised for the log.

    Its log lines carry the identifier of the request that queued it; of a sweep, the task's own.
    """
    request_id = self.request.get(MESSAGE_HEADER) or self.request.id
    came_with = self.request.get(telemetry.MESSAGE_HEADER)
    with request_ids.bound(request_id), telemetry.span(self.name, "consumer", came_with=came_with):
        telemetry.describe_request(request_id)
        _admit(self, round_id)


def _admit(self: Task, round_id: str) -> None:
    redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    trying = Retrying(
        retry=retry_if_exception_type(Unavailable),
        stop=stop_after_delay(DATABASE_SECONDS_MAX),
        wait=wait_exponential(multiplier=0.25, max=5.0),
        reraise=True,
    )
    try:
        for attempt in trying:
            with attempt:
                came_again = redelivered and attempt.retry_state.attempt_number == 1
                outcome = admit(worker_store(), worker_accountant(), round_id, redelivered=came_again)
    except NotCollectable as closed:  # decided before, and closed since: the message came again
        _log.info("%s", closed)
        return
    except MemoryError as error:
        # Celery's main process would raise it again, and end with all its children.
        raise RuntimeError(f"round {round_id!r} needs more memory than there is") from error
    decision = type(outcome).__name__.lower()
    telemetry.decided(decision)
    _log.info("round %s: %s", round_id, decision)


@app.task(name=SWEEP)
def sweep_pending() -> None:
    """Queue again what was lost between the database and a worker."""
    _log.info("queued %d overdue rounds", sweep(worker_store(), app))


@app.task(name=REPORT_STUCK)
def report_stuck_rounds() -> None:
    """Write the rounds that no worker tries any more into the log."""
    report_stuck(worker_store())


@app.task(name=VERIFY)
def verify_some() -> None:
    """Verify the cohorts whose verification is oldest, for a bounded time; the answer is in the database."""
    began = time.monotonic()
    verified = verify_oldest(
        worker_store(),
        worker_accountant(),
        enough=lambda: time.monotonic() - began > VERIFY_SECONDS_MAX,
    )
    _log.info("verified %d cohorts", len(verified))


@app.task(name=WEBHOOKS)
def deliver_webhooks() -> None:
    """Send the messages of webhooks that are due, for a bounded time."""
    began = time.monotonic()
    key = Settings().webhook_key
    done = deliver(
        worker_store(),
        None if key is None else key.get_secret_value(),
        enough=lambda: time.monotonic() - began > WEBHOOKS_SECONDS_MAX,
    )
    if done.sent or done.failed or done.paused:
        _log.info("webhooks: %d messages sent, %d failed, %d paused", done.sent, done.failed, done.paused)


@app.task(name=CHECKPOINT)
def write_checkpoint() -> None:
    """Sign the heads of all chains, and write them where the settings say."""
    settings = Settings()
    place = ScheduledCheckpoints.of(settings)
    if place is None or settings.signing_key is None:
        raise RuntimeError("a checkpoint was asked for, and there is no key, or no place, to write it")
    made = place.write(worker_store(), SigningKey.load(settings.signing_key))
    _log.info("signed %d heads", len(made.heads))


# One of each per worker process, made after the fork: connections do not survive one.
@functools.cache
def worker_store() -> Store:
    """Return the ledger that this process's settings name, open until the process ends."""
    settings = Settings()
    return Store.of(settings)


@functools.cache
def worker_accountant() -> Accountant:
    """Return the accountant of this process, with the precision of its settings."""
    return Accountant(precision=Settings().precision)
