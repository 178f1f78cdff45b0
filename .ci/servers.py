"""Speaks to each server the tests need, and says in plain words which one does not answer."""

import os
import sys
from collections.abc import Callable

import psycopg
import redis
from kombu import Connection


def postgres() -> None:
    url = os.environ["SHUFFLE_LEDGER_TEST_POSTGRES_URL"].replace("+psycopg", "", 1)
    with psycopg.connect(url, connect_timeout=5) as connection:
        connection.execute("select 1")


def rabbitmq() -> None:
    with Connection(os.environ["SHUFFLE_LEDGER_TEST_BROKER_URL"], connect_timeout=5) as connection:
        connection.ensure_connection(max_retries=1, timeout=10)


def redis_server() -> None:
    redis.Redis.from_url(os.environ["SHUFFLE_LEDGER_TEST_REDIS_URL"], socket_timeout=5).ping()


SERVERS: dict[str, Callable[[], None]] = {"PostgreSQL": postgres, "RabbitMQ": rabbitmq, "Redis": redis_server}


def main() -> int:
    silent = 0
    for name, speak in SERVERS.items():
        try:
            speak()
        except Exception as problem:  # noqa: BLE001 - whatever the driver raises, the server did not answer
            silent += 1
            sys.stderr.write(f"{name} listens but does not answer as expected: {problem}\n")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
