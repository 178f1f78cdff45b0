"""Getting a registered round decided: here, or by a worker, through the same function."""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass

from amqp.exceptions import AMQPError, MessageNacked
from amqp.exceptions import NotFound as AmqpNotFound
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_exponential

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import request_ids, telemetry
from shuffle_ledger.ledger.decisions import admit, present_answer
from shuffle_ledger.ledger.request_ids import MESSAGE_HEADER
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Store
from shuffle_ledger.ledger.values import Outcome, Pending
from shuffle_ledger.workers.celery_app import ADMIT_ROUND, create_app
from shuffle_ledger.workers.queues import QueueNames, is_rabbitmq, is_redis, queue_names
from shuffle_ledger.workers.redis_broker import state_of

POLL_FIRST_SECONDS = 0.02
POLL_MAX_SECONDS = 0.5
OVERDUE_SECONDS = 300.0
SWEEP_ROUNDS_MAX = 1000  # read and marked in one transaction
SWEEP_BATCHES_MAX = 50  # transactions of a sweep: it queues at most 50,000 rounds
CONFIRM_TIMEOUT_SECONDS = 5.0  # how long the broker may take to say that it has a message
WORKERS_ALARM_SECONDS = 60.0  # that a round waits while no worker lives; a restart of all takes less
_BROKERS_MAX = 8

_log = logging.getLogger(__name__)


def decide(store: Store, accountant: Accountant, settings: Settings, round_id: str) -> Outcome | Pending:
    """Return a registered round's outcome while it stands; Pending if no worker decides it in the time set.

    Without a broker the function that workers call runs here.

    Raises:
        NotFound: no such round.
        NotCollectable: it was admitted, and is voided or settled, or its cohort is frozen or overspent.
        What `ledger.decisions.admit` raises, without a broker.
    """
    if settings.broker_url is None:
        return admit(store, accountant, round_id)
    answer = _answer(store, round_id)
    if not isinstance(answer, Pending):
        return answer
    if not publish_or_mark(store, _app_of(settings), round_id):
        return _answer(store, round_id)
    return _wait(store, round_id, settings.decision_timeout_seconds)


def publish(app: Celery, round_id: str) -> bool:
    """Queue a round; False when the broker does not take it: the row stays, and the sweeper finds it."""
    request_id = request_ids.current()
    headers: dict[str, object] = {} if request_id is None else {MESSAGE_HEADER: request_id}
    try:
        with telemetry.span(f"publish {ADMIT_ROUND}", "producer") as trace:
            app.send_task(
                ADMIT_ROUND,
                args=[round_id],
                headers={**headers, telemetry.MESSAGE_HEADER: trace} if trace else headers,
                ignore_result=True,
                timeout=CONFIRM_TIMEOUT_SECONDS,
                confirm_timeout=CONFIRM_TIMEOUT_SECONDS,
            )
    except (OperationalError, AMQPError, MessageNacked, OSError) as error:
        _log.warning("round %s stays pending, the broker cannot be reached: %s", round_id, error)
        return False
    return True


def publish_or_mark(store: Store, app: Celery, round_id: str) -> bool:
    """Queue a round as `publish` does; one that the broker does not take is queued by the next sweep."""
    queued = publish(app, round_id)
    if not queued:
        store.mark_unqueued([round_id])
    return queued


def sweep(
    store: Store, app: Celery, *, older_than_seconds: float = OVERDUE_SECONDS, limit: int = SWEEP_ROUNDS_MAX
) -> int:
    """Queue again, in order, what the broker did not take, and what waited for longer than this.

    Returns how many were queued. After the first round that the broker does not take, the next sweep goes on.
    """
    queued = 0
    for _ in range(SWEEP_BATCHES_MAX):
        overdue = store.take_overdue(older_than_seconds=older_than_seconds, limit=limit)
        for place, round_id in enumerate(overdue):
            if not publish(app, round_id):
                store.mark_unqueued(overdue[place:])
                return queued
            queued += 1
        if len(overdue) < limit:
            break
    return queued


def report_stuck(store: Store, *, limit: int = SWEEP_ROUNDS_MAX) -> None:
    """Write each stuck round into the log."""
    for stuck in store.stuck(limit=limit):
        _log.error(
            "round %s is stuck after %d attempts: %s", stuck.round_id, stuck.attempts, stuck.last_error
        )


@dataclass(frozen=True, kw_only=True)
class BrokerState:
    """What waits at the broker, and how many workers it knows."""

    lengths: dict[str, int]  # messages, by the queue's name
    workers: int  # consumers of rounds: one for each `worker`, whatever its concurrency


def broker_state(settings: Settings) -> BrokerState | None:
    """Return the lengths of the queues and the number of workers; None when the broker cannot be asked.

    Only RabbitMQ and Redis are asked. A queue that was not declared yet is left out.
    """
    if not _can_be_asked(settings):
        return None
    lengths: dict[str, int] = {}
    workers = 0
    names = queue_names(settings.queue)
    try:
        with _app_of(settings).connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=CONFIRM_TIMEOUT_SECONDS)
            if is_redis(settings.broker_url or ""):
                return _state_at_redis(connection.default_channel, names)
            for name in vars(names).values():
                with contextlib.suppress(AmqpNotFound), connection.channel() as channel:
                    declared = channel.queue_declare(name, passive=True)
                    lengths[name] = declared.message_count
                    workers = declared.consumer_count if name == names.rounds else workers
    except (OperationalError, AMQPError, RedisError, OSError) as error:
        _log.warning("the broker cannot be asked: %s", error)
        return None
    return BrokerState(lengths=lengths, workers=workers)


def queue_alarms(settings: Settings, lengths: dict[str, int] | None) -> list[str]:
    """Return what is wrong at the broker, as sentences like those of `ledger.health.health`."""
    if not _can_be_asked(settings):
        return []
    if lengths is None:
        return ["BROKER cannot be reached; rounds stay pending"]
    dead = lengths.get(queue_names(settings.queue).dead, 0)
    return [f"DEAD {dead} messages that no worker could handle"] if dead else []


def worker_alarms(state: BrokerState | None, *, pending: int, longest_wait_seconds: float) -> list[str]:
    """Return the alarm for rounds that wait while no worker lives; of a broker that can be asked only."""
    if state is None or state.workers or longest_wait_seconds <= WORKERS_ALARM_SECONDS:
        return []
    return [f"WORKERS none takes rounds: {pending} wait, the first for {int(longest_wait_seconds)} seconds"]


def _can_be_asked(settings: Settings) -> bool:
    url = settings.broker_url or ""
    return is_rabbitmq(url) or is_redis(url)


def _state_at_redis(channel: object, names: QueueNames) -> BrokerState:
    lengths, workers = state_of(channel, names)
    return BrokerState(lengths=lengths, workers=workers)


def _app_of(settings: Settings) -> Celery:
    # One application, and with it one pool of connections, for each broker this process speaks to.
    return _app_from(settings.model_dump_json(include={"broker_url", "broker_transport_options", "queue"}))


@functools.lru_cache(maxsize=_BROKERS_MAX)
def _app_from(settings: str) -> Celery:
    return create_app(Settings.model_validate_json(settings))


def _wait(store: Store, round_id: str, timeout_seconds: float) -> Outcome | Pending:
    polling = Retrying(
        retry=retry_if_result(lambda answer: isinstance(answer, Pending)),
        stop=stop_after_delay(timeout_seconds),
        wait=wait_exponential(multiplier=POLL_FIRST_SECONDS, max=POLL_MAX_SECONDS),
        retry_error_callback=_last_answer,
    )
    return polling(_answer, store, round_id)


def _last_answer(state: RetryCallState) -> Outcome | Pending:
    if state.outcome is None:
        raise AssertionError("polling ends after at least one answer")
    answer: Outcome | Pending = state.outcome.result()
    return answer


def _answer(store: Store, round_id: str) -> Outcome | Pending:
    return present_answer(store, store.round(round_id))
