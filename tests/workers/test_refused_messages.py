"""Messages that no process of ours sends: a worker refuses them, and goes on deciding."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.request_ids import MESSAGE_HEADER
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted
from shuffle_ledger.workers.celery_app import ADMIT_ROUND, SWEEP, create_app
from shuffle_ledger.workers.dispatch import broker_state, decide, publish, queue_alarms
from shuffle_ledger.workers.messages import BODY_BYTES_MAX, accepted_headers
from shuffle_ledger.workers.queues import queue_names
from tests.workers.conftest import awaited, register_round, remove_queues, running, settings_at
from tests.workers.test_worker import SCRIPT

NOTHING = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
HEADERS = {"id": "an-id", "task": ADMIT_ROUND}
BODY = json.dumps([["a-round"], {}, NOTHING]).encode()


def message(body: bytes = BODY, **other: Any) -> dict[str, Any]:
    """Return a message that would be right, but for what is named."""
    known = {"content_type": "application/json", "content_encoding": "utf-8", "headers": HEADERS}
    return {"body": body, **known, **other}


def of(task: str, *arguments: object, **options: object) -> dict[str, Any]:
    """Return a message to a task."""
    body = json.dumps([[*arguments], {}, {**NOTHING, **options}]).encode()
    return message(body, headers={**HEADERS, "task": task})


def with_header(name: str, value: object) -> dict[str, Any]:
    """Return a message with a header of another value."""
    return message(headers={**HEADERS, name: value})


HUGE_BYTES = 16 << 20  # RabbitMQ takes no larger message
POISON: dict[str, dict[str, Any]] = {
    "an object": message(b'{"a": 1}'),
    "a task in the body": message(json.dumps({"task": ADMIT_ROUND, "id": "x", "args": ["r"]}).encode()),
    "protocol 1": message(json.dumps({"task": ADMIT_ROUND, "id": "x", "args": 5}).encode(), headers={}),
    "a number": message(b"1"),
    "null": message(b"null"),
    "two parts": message(b"[[],{}]"),
    "four parts": message(b"[[],{},{},{}]"),
    "no argument": of(ADMIT_ROUND),
    "two arguments": of(ADMIT_ROUND, "a", "b"),
    "a number as a round": of(ADMIT_ROUND, 5),
    "an object as a round": of(ADMIT_ROUND, {"a": 1}),
    "a round with a zero byte": of(ADMIT_ROUND, "a\0b"),
    "a very long round": of(ADMIT_ROUND, "a" * 10_000),
    "arguments of a sweep": of(SWEEP, 1),
    "named arguments": message(json.dumps([["a"], {"b": 1}, NOTHING]).encode()),
    "arguments as an object": message(json.dumps([{"a": 1}, {}, NOTHING]).encode()),
    "options as a list": message(json.dumps([["a"], {}, []]).encode()),
    "a callback": of(ADMIT_ROUND, "a", callbacks=[5]),
    "huge": of(ADMIT_ROUND, "a" * (BODY_BYTES_MAX + 1)),
    "deep": message(b"[" * 60_000),
    "a long number": message(b"9" * 60_000),
    "nothing": message(b""),
    "no JSON": message(b"{"),
    "no UTF-8": message(b'[["\xff\xfe"],{},{}]'),
    "UTF-16": message(BODY.decode().encode("utf-16")),
    "declared as UTF-16": message(content_encoding="utf-16"),
    "an unknown encoding": message(content_encoding="none-such"),
    "pickle": message(
        b"\x80\x04N.", content_type="application/x-python-serialize", content_encoding="binary"
    ),
    "an unknown type": message(content_type="application/none-such"),
    "compressed": message(zlib.compress(BODY), headers={**HEADERS, "compression": "application/x-gzip"}),
    "a compression that there is not": with_header("compression", "none-such"),
    "no headers": message(headers={}),
    "no identifier": message(headers={"task": ADMIT_ROUND}),
    "no task": message(headers={"id": "x"}),
    "another task": with_header("task", "shuffle_ledger.none_such"),
    "a task that is a list": with_header("task", ["a"]),
    "an identifier that is a number": with_header("id", 5),
    "a time that is none": with_header("expires", "soon"),
    "a time without offset": with_header("expires", "2026-01-01"),
    "the end of the calendar": with_header("expires", "9999-12-31T23:59:59-12:00"),
    "a request that is a list": with_header(MESSAGE_HEADER, ["a"]),
    "a trace that is a text": with_header("shuffle_ledger_trace", "a"),
}
# What Celery reads and we leave out.
HARMLESS = {
    "eta": "never",
    "timelimit": "soon",
    "retries": "many",
    "shadow": 5,
    "argsrepr": ["x"],
    "group": {},
    "stamps": 7,
    "stamped_headers": 7,
    "replaced_task_nesting": "x",
    "ignore_result": "x",
    "origin": [],
    "lang": 5,
}
NO_MESSAGES = [
    b"",
    b"\xff",
    b"not JSON",
    b"[]",
    b"5",
    b"{}",
    b'{"properties": 5}',
    b'{"properties": {}}',
    b'{"properties": {"delivery_tag": "a"}}',
    b'{"properties": {"delivery_tag": {}, "delivery_info": {"exchange": "", "routing_key": ""}}}',
    b'{"body": 5, "properties": {"body_encoding": "base64", "delivery_tag": "a"}}',
    b'{"body": "x", "properties": {"body_encoding": "none-such", "delivery_tag": "a"}}',
    b'{"headers": [1], "properties": {"delivery_tag": "a"}}',
    b"[" * 100_000,
]


# Kombu itself refuses what is compressed, before anything is checked.
@pytest.mark.parametrize("kind", [kind for kind in POISON if "compress" not in kind])
def test_what_no_process_of_ours_sends_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^its? "):
        accepted_headers(SimpleNamespace(**POISON[kind]))


@pytest.fixture(params=["rabbitmq", "redis"])
def broker(request: pytest.FixtureRequest, database_url: str) -> Iterator[Settings]:
    """Yield settings for queues at a real broker."""
    found = settings_at(request.param, database_url)
    yield found
    remove_queues(found)


@pytest.mark.system
def test_a_worker_survives_every_message_that_is_not_ours(
    store: Store, broker: Settings, tmp_path: Path
) -> None:
    app, log = create_app(broker), tmp_path / "log"
    is_redis = str(broker.broker_url).startswith("redis")
    with running(broker, log, SCRIPT, "worker", "--no-sweep") as process:
        awaited(lambda: (state := broker_state(broker)) and state.workers, log)
        for poison in POISON.values():
            send(app, broker, **poison)
        if is_redis:  # RabbitMQ takes no larger message
            send(app, broker, **of(ADMIT_ROUND, "a" * HUGE_BYTES))
        refused = len(POISON) + is_redis
        if is_redis:
            refused += len(NO_MESSAGES)
            with app.connection_for_write() as connection:
                client = connection.default_channel.client
                for item in NO_MESSAGES:
                    client.lpush(queue_names(broker.queue).rounds, item)
        dead = queue_names(broker.queue).dead
        awaited(lambda: (state := broker_state(broker)) and state.lengths.get(dead) == refused, log)
        assert queue_alarms(broker, {dead: 3}) == ["DEAD 3 messages that no worker could handle"]
        register_round(store, "a-round")
        send(app, broker, **message(headers={**HEADERS, **HARMLESS}))
        awaited(lambda: not store.pending(limit=1), log)
        register_round(store, "good")
        assert publish(app, "good")
        assert isinstance(decide(store, Accountant(), broker, "good"), Admitted)
        assert process.poll() is None
    said = log.read_text("utf-8")
    assert said.count("a message was refused") == refused
    assert "Traceback" not in said


def send(app: Celery, broker: Settings, body: bytes, **named: Any) -> None:
    """Send a message to the queue of rounds as it is."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        properties = {"delivery_mode": 2}
        for queue in app.conf.task_queues:
            queue.bind(channel).declare()
        said = channel.prepare_message(body, properties=properties, **named)
        channel.basic_publish(said, exchange=broker.queue, routing_key=queue_names(broker.queue).rounds)
