"""The worker process: its connection to the broker, which messages it takes, and its signs of life, beside
running tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from celery import bootsteps
from celery.signals import heartbeat_sent
from celery.worker.consumer import Consumer
from celery.worker.consumer.connection import Connection
from celery.worker.consumer.tasks import Tasks

from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.messages import accepted_headers, refuse_compressed
from shuffle_ledger.workers.queues import dead_letter_queue, is_rabbitmq, is_redis, queue_names
from shuffle_ledger.workers.redis_broker import count_refused, end_life, show_life

_HEARTBEAT_FILE = Settings().heartbeat_file
_DELAYED_DELIVERY = "celery.worker.consumer.delayed_delivery:DelayedDelivery"
SIGN_SECONDS = 10.0  # between two signs of life at Redis
_SHOWN_MAX = 200  # characters of what a refused message says of itself

_log = logging.getLogger(__name__)


class DeadLetters(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery publishes no types
    """Declares the dead-letter queue before anything is consumed: a dead letter without one is lost."""

    requires = (Connection,)

    def start(self, parent: Any) -> None:
        """Declare it; declaring again changes nothing."""
        settings = Settings()
        if is_rabbitmq(settings.broker_url or ""):
            with parent.app.connection_for_write() as connection:
                dead_letter_queue(settings.queue).bind(connection.default_channel).declare()


class SignsOfLife(bootsteps.StartStopStep):  # type: ignore[misc]  # as above
    """Says at Redis, which does not know its consumers, that a worker takes rounds."""

    requires = (Tasks,)
    _timer: Any = None

    def start(self, parent: Any) -> None:
        """Say so from now on every few seconds."""
        settings = Settings()
        takes_rounds = queue_names(settings.queue).rounds in parent.app.amqp.queues.consume_from
        if takes_rounds and is_redis(str(settings.broker_url)):
            self._show(parent)
            self._timer = parent.timer.call_repeatedly(SIGN_SECONDS, self._show, (parent,))

    def stop(self, parent: Any) -> None:
        """Say it no longer."""
        if self._timer is not None:
            parent.timer.cancel(self._timer)
            self._timer = None
            end_life(parent.connection.default_channel, parent.hostname)

    def _show(self, parent: Any) -> None:
        show_life(parent.connection.default_channel, parent.hostname)


class RoundConsumer(Consumer):  # type: ignore[misc]  # Celery publishes no types
    """Celery's consumer, without delayed delivery, that refuses messages of others, and touches the
    heartbeat file also while it waits for the broker.

    With quorum queues Celery would declare 28 queues more, for tasks with a countdown. There are none here:
    what has to wait, waits in the database.
    """

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]  # Celery publishes no types
        """The steps of a consumer."""

        default_steps: ClassVar[list[object]] = [
            *(step for step in Consumer.Blueprint.default_steps if step != _DELAYED_DELIVERY),
            DeadLetters,
            SignsOfLife,
        ]

    def create_task_handler(self, *given: Any, **named: Any) -> Callable[[Any], None]:
        """See Celery: return what takes messages. This one gives Celery only those that are ours."""
        refuse_compressed()
        handle = super().create_task_handler(*given, **named)

        def take(message: Any) -> None:
            try:
                message.headers = accepted_headers(message)
            except ValueError as error:
                self.on_decode_error(message, error)
            else:
                handle(message)

        return take

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Refuse a message for good: RabbitMQ moves it to the dead-letter queue, Redis drops it."""
        said = repr(message.headers)[:_SHOWN_MAX]
        size = len(message.body) if isinstance(message.body, (bytes, str)) else 0
        _log.error("a message was refused: %s; %d bytes, headers %s", exc, size, said)
        message.reject_log_error(_log, self.connection_errors)
        count_refused(message.channel)

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
