"""The worker process: its connection to the broker and its signs of life for a supervisor, beside running
tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from celery import bootsteps
from celery.signals import heartbeat_sent
from celery.worker.consumer import Consumer
from celery.worker.consumer.connection import Connection

from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.queues import dead_letter_queue, is_rabbitmq

_HEARTBEAT_FILE = Settings().heartbeat_file
_DELAYED_DELIVERY = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class DeadLetters(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery publishes no types
    """Declares the dead-letter queue before anything is consumed: a dead letter without one is lost."""

    requires = (Connection,)

    def start(self, parent: Any) -> None:
        """Declare it; declaring again changes nothing."""
        settings = Settings()
        if is_rabbitmq(settings.broker_url or ""):
            with parent.app.connection_for_write() as connection:
                dead_letter_queue(settings.queue).bind(connection.default_channel).declare()


class RoundConsumer(Consumer):  # type: ignore[misc]  # Celery publishes no types
    """Celery's consumer, without delayed delivery, that touches the heartbeat file also while it waits for
    the broker.

    With quorum queues Celery would declare 28 queues more, for tasks with a countdown. There are none here:
    what has to wait, waits in the database.
    """

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]  # Celery publishes no types
        """The steps of a consumer."""

        default_steps: ClassVar[list[object]] = [
            *(step for step in Consumer.Blueprint.default_steps if step != _DELAYED_DELIVERY),
            DeadLetters,
        ]

    def ensure_connected(self, conn: Any) -> Any:
        """See Celery: connect, or wait for the broker.

        Celery sends no heartbeat while it waits, and asks about once a second whether it shall end. A
        supervisor must not take a worker without a broker for one that hangs.
        """
        ensure = conn.ensure_connection

        def ensure_and_touch(*given: Any, callback: Callable[[], None], **more: Any) -> Any:
            def each_second() -> None:
                touch_heartbeat()
                callback()

            return ensure(*given, callback=each_second, **more)

        conn.ensure_connection = ensure_and_touch
        return super().ensure_connected(conn)


def touch_heartbeat(**_: object) -> None:
    """Touch the heartbeat file: the main loop of this worker runs, or waits for the broker."""
    if _HEARTBEAT_FILE is not None:
        _HEARTBEAT_FILE.touch()


heartbeat_sent.connect(touch_heartbeat)
