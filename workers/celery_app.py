"""The Celery application: a broker, and no database of results, for question and answer are rows."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport import redis

from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers import metrics, worker_logs
from shuffle_ledger.workers.queues import is_rabbitmq, is_redis, queue_names, work_queues
from shuffle_ledger.workers.redis_broker import SteadyTransport

ADMIT_ROUND = "shuffle_ledger.admit_round"
SWEEP = "shuffle_ledger.sweep"
REPORT_STUCK = "shuffle_ledger.report_stuck"
VERIFY = "shuffle_ledger.verify"
CHECKPOINT = "shuffle_ledger.checkpoint"
WEBHOOKS = "shuffle_ledger.webhooks"
UPKEEP = (SWEEP, REPORT_STUCK, VERIFY, CHECKPOINT, WEBHOOKS)
SOFT_TIME_LIMIT_SECONDS = 840  # raises in the task, so that the failure is counted with the round
TIME_LIMIT_SECONDS = 900
VISIBILITY_TIMEOUT_SECONDS = 3600  # longer than any task: Redis would deliver a running task again
SWEEP_EVERY_SECONDS = 10.0
STUCK_EVERY_SECONDS = 60.0
WEBHOOKS_EVERY_SECONDS = 10.0
VERIFY_EVERY_SECONDS = 300.0
PUBLISH_RETRY = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 0.5}
CONNECT_TIMEOUT_SECONDS = 4.0
RECONNECT_SECONDS_MAX = 5.0  # between attempts; with SWEEP_EVERY_SECONDS, what waited is queued within 30 s


class _Connection(Connection):
    """A connection whose attempts to reach a broker that is down are at most a few seconds apart, and that
    survives what is no message at Redis."""

    def get_transport_cls(self) -> type:
        """See Kombu: return the class of the transport."""
        found: type = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return SteadyTransport if found is redis.Transport else found

    def ensure_connection(self, *arguments: Any, **named: Any) -> Connection:
        """Connect, retrying as Kombu does, which by itself waits up to 30 seconds between attempts."""
        named = {"interval_max": RECONNECT_SECONDS_MAX, **named}
        connected: Connection = super().ensure_connection(*arguments, **named)  # type: ignore[no-untyped-call]
        return connected


class _Amqp(AMQP):  # type: ignore[misc]  # Celery publishes no types
    Connection = _Connection


def create_app(settings: Settings) -> Celery:
    """Return an application for the broker of the settings (in memory when there is none)."""
    broker_url = settings.broker_url or "memory://"
    rabbitmq = is_rabbitmq(broker_url)
    names = queue_names(settings.queue)
    app = Celery("shuffle-ledger", amqp=_Amqp, broker=broker_url, include=["shuffle_ledger.workers.tasks"])
    app.steps["worker"].add(worker_logs.EndAtHangup)
    if settings.worker_metrics is not None:
        app.steps["worker"].add(metrics.OwnPort)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        # A task may run twice, never not at all: acknowledged when done, given back when its worker dies or
        # is killed for taking too long. A failure is counted with the round, and the sweeper comes again.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=False,
        worker_prefetch_multiplier=1,
        # Quorum queues know no prefetch that is shared by consumers: Celery must notice them.
        worker_detect_quorum_queues=True,
        worker_consumer="shuffle_ledger.workers.consumer:RoundConsumer",
        # A computation is finished even if the broker is lost: its result goes to the database.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=False,
        task_soft_time_limit=SOFT_TIME_LIMIT_SECONDS,
        task_time_limit=TIME_LIMIT_SECONDS,
        task_queues=work_queues(settings.queue, rabbitmq=rabbitmq),
        task_default_queue=names.rounds,
        task_default_exchange=settings.queue,
        task_default_routing_key=names.rounds,
        task_create_missing_queues=False,
        task_routes={task: {"queue": names.upkeep} for task in UPKEEP},
        task_publish_retry_policy=PUBLISH_RETRY,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # a worker waits for its broker as long as it takes
        broker_connection_timeout=CONNECT_TIMEOUT_SECONDS,
        broker_transport_options=_transport_options(broker_url) | settings.broker_transport_options,
        beat_schedule=_schedule(settings),
        worker_hijack_root_logger=False,
    )
    return app


def _schedule(settings: Settings) -> dict[str, object]:
    schedule: dict[str, object] = {
        "sweep": _every(SWEEP, SWEEP_EVERY_SECONDS),
        "report_stuck": _every(REPORT_STUCK, STUCK_EVERY_SECONDS),
        "verify": _every(VERIFY, VERIFY_EVERY_SECONDS),
        "webhooks": _every(WEBHOOKS, WEBHOOKS_EVERY_SECONDS),
    }
    if settings.signing_key is not None and settings.checkpoint_directory is not None:
        schedule["checkpoint"] = _every(CHECKPOINT, settings.checkpoint_every_seconds)
    return schedule


def _every(task: str, seconds: float) -> dict[str, object]:
    # No caller waits for it: a task that was not begun when the next one is due is dropped.
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


def _transport_options(broker_url: str) -> dict[str, object]:
    if is_rabbitmq(broker_url):
        return {"confirm_publish": True}
    if is_redis(broker_url):
        return {"visibility_timeout": VISIBILITY_TIMEOUT_SECONDS}
    return {}


app = create_app(Settings())
