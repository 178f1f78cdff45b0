"""The Celery application: a broker and no result backend, for question and answer are rows."""

from __future__ import annotations

from celery import Celery

from ledger.config import Settings

ADMIT_ROUND = "shuffle_ledger.admit_round"
SWEEP = "shuffle_ledger.sweep"
SOFT_TIME_LIMIT_SECONDS = 840  # raises in the task, so that the failure is counted with the round
TIME_LIMIT_SECONDS = 900
VISIBILITY_TIMEOUT_SECONDS = 3600  # longer than any task: Redis would deliver a running task again
SWEEP_EVERY_SECONDS = 60.0
PUBLISH_RETRY = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 0.5}


def create_app(settings: Settings) -> Celery:
    """Return an application for the broker of the settings (in memory when there is none)."""
    broker_url = settings.broker_url or "memory://"
    app = Celery("shuffle-ledger", broker=broker_url, include=["workers.tasks"])
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        # A task may run twice, never not at all: acknowledged when done, given back when its worker dies.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_soft_time_limit=SOFT_TIME_LIMIT_SECONDS,
        task_time_limit=TIME_LIMIT_SECONDS,
        task_default_queue=settings.queue,
        task_publish_retry_policy=PUBLISH_RETRY,
        broker_connection_retry_on_startup=True,
        broker_transport_options=_transport_options(broker_url) | settings.broker_transport_options,
        beat_schedule={"sweep": {"task": SWEEP, "schedule": SWEEP_EVERY_SECONDS}},
        worker_hijack_root_logger=False,
    )
    return app


def _transport_options(broker_url: str) -> dict[str, object]:
    if broker_url.startswith(("amqp", "pyamqp")):
        return {"confirm_publish": True}
    if broker_url.startswith(("redis", "rediss")):
        return {"visibility_timeout": VISIBILITY_TIMEOUT_SECONDS}
    return {}


app = create_app(Settings())
