"""What RabbitMQ does by itself and Redis does not: a count of refused messages, a list of living workers, and
a worker that survives what it cannot read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kombu.transport import redis
from redis.exceptions import DataError, RedisError

from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.queues import QueueNames, queue_names

LIFE_SECONDS: Final = 60.0  # a worker that showed no life for this time is none
_SHOWN_MAX: Final = 200  # characters of an error's text
# What reading an item raises that is no message. Errors of the connection are others.
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, DataError)

_log = logging.getLogger(__name__)


class SteadyChannel(redis.Channel):
    """Kombu's channel, which drops what is no message instead of ending the worker."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]  # Kombu has no types here
        except _UNREADABLE as error:
            said = str(error)[:_SHOWN_MAX]
            _log.error("a message was refused: it cannot be read: %s: %s", type(error).__name__, said)
            count_refused(self)
            return True


class SteadyTransport(redis.Transport):
    """Kombu's transport, with such channels."""

    Channel = SteadyChannel


def count_refused(channel: Any) -> None:
    """Count a message that was refused, where that is in no dead-letter queue."""
    if isinstance(channel, redis.Channel):
        with _asked(channel) as client:
            client.incr(_key(channel, queue_names(Settings().queue).dead))


def show_life(channel: Any, worker: str) -> None:
    """Say that a worker takes rounds from Redis. It is one for `LIFE_SECONDS`."""
    with _asked(channel) as client:
        now, name = float(client.time()[0]), _workers(queue_names(Settings().queue))
        client.zadd(name, {worker: now})  # to which Kombu adds the prefix
        client.zremrangebyscore(_key(channel, name), "-inf", now - LIFE_SECONDS)


def end_life(channel: Any, worker: str) -> None:
    """Say that a worker takes no more rounds."""
    with _asked(channel) as client:
        client.zrem(_workers(queue_names(Settings().queue)), worker)


def state_of(channel: Any, names: QueueNames) -> tuple[dict[str, int], int]:
    """Return the lengths of the queues, how many messages were refused, and how many workers there are.

    Raises:
        RedisError: Redis cannot be asked.
    """
    with channel.conn_or_acquire() as client:
        lengths = {name: client.llen(name) for name in (names.rounds, names.upkeep)}
        lengths[names.dead] = int(client.get(_key(channel, names.dead)) or 0)
        workers = client.zcount(
            _key(channel, _workers(names)), float(client.time()[0]) - LIFE_SECONDS, "+inf"
        )
    return lengths, int(workers)


def _workers(names: QueueNames) -> str:
    return f"{names.rounds}.workers"


def _key(channel: Any, name: str) -> str:
    """Return a key for commands to which Kombu adds no prefix by itself."""
    return f"{channel.global_keyprefix}{name}"


@contextmanager
def _asked(channel: Any) -> Iterator[Any]:
    """Yield a client; an error of Redis is logged, for what is counted must not end a worker."""
    try:
        with channel.conn_or_acquire() as client:
            yield client
    except (RedisError, OSError) as error:
        _log.warning("Redis was not told what a worker did: %s", error)
