"""The queues at the broker: their names, their limits, and the dead-letter queue for messages that cannot be
handled.

On RabbitMQ all are quorum queues: replicated, with a delivery limit, and a dead-letter queue behind them. A
classic queue of the same name, from elsewhere, would be refused by the broker: the names end in `.rounds`,
`.upkeep` and `.dead` so that the plain prefix stays free.
"""

from __future__ import annotations

from dataclasses import dataclass

from kombu.entity import Exchange, Queue

# Above what a round's own count allows, so that it is the round that says why it is given up; this stops
# messages that kill a worker before the ledger is even reached.
DELIVERY_LIMIT = 10
WAITING_MAX = 100_000  # then the broker refuses, and rounds wait in their table instead
UPKEEP_WAITING_MAX = 16  # a sweep that was missed need not be made up for
DEAD_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class QueueNames:
    """The names of one ledger's queues at the broker."""

    rounds: str  # identifiers of rounds to decide
    upkeep: str  # sweeps and verifications
    dead: str  # messages that could not be handled


def queue_names(prefix: str) -> QueueNames:
    """Return the names of the queues under a prefix."""
    kinds = ("rounds", "upkeep", "dead")
    return QueueNames(**{kind: f"{prefix}.{kind}" for kind in kinds})


def is_rabbitmq(broker_url: str) -> bool:
    """Return whether a broker speaks AMQP."""
    return broker_url.startswith(("amqp", "pyamqp"))


def is_redis(broker_url: str) -> bool:
    """Return whether a broker is Redis."""
    return broker_url.startswith(("redis", "rediss"))


def work_queues(prefix: str, *, rabbitmq: bool) -> list[Queue]:
    """Return the queues that workers consume: rounds first."""
    names = queue_names(prefix)
    if not rabbitmq:
        return [_queue(prefix, each, {}) for each in (names.rounds, names.upkeep)]
    limits = {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": names.dead,
        "x-dead-letter-strategy": "at-least-once",
    }
    return [
        _queue(prefix, names.rounds, {**limits, "x-max-length": WAITING_MAX}),
        _queue(prefix, names.upkeep, {**limits, "x-max-length": UPKEEP_WAITING_MAX}),
    ]


def dead_letter_queue(prefix: str) -> Queue:
    """Return RabbitMQ's queue for messages that were rejected or delivered too often; it has no consumer."""
    name = queue_names(prefix).dead
    arguments = {"x-queue-type": "quorum", "x-max-length": DEAD_MAX}
    return Queue(name, Exchange(name, type="fanout", durable=True), durable=True, queue_arguments=arguments)


def _queue(prefix: str, name: str, arguments: dict[str, object]) -> Queue:
    exchange = Exchange(prefix, type="direct", durable=True)
    return Queue(name, exchange, routing_key=name, durable=True, queue_arguments=arguments)
