"""Admission through a real worker process, and what is left when workers or brokers fail."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery.exceptions import WorkerShutdown
from click.testing import CliRunner
from kombu.exceptions import OperationalError

from shuffle_ledger.accounting import Accountant, FilterCharge, FilterSet, ShuffledRound
from shuffle_ledger.cli.failures import ExitCode
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger import request_ids
from shuffle_ledger.ledger.decisions import admit
from shuffle_ledger.ledger.decisions.outcomes import present_answer
from shuffle_ledger.ledger.errors import AnswerLost, Unavailable
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Pending, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from shuffle_ledger.ledger.webhooks import subscribe
from shuffle_ledger.workers import consumer, tasks
from shuffle_ledger.workers.celery_app import (
    ADMIT_ROUND,
    CHECKPOINT,
    RECONNECT_SECONDS_MAX,
    SWEEP,
    VERIFY,
    WEBHOOKS,
    create_app,
)
from shuffle_ledger.workers.dispatch import decide, publish, report_stuck, sweep
from shuffle_ledger.workers.queues import queue_names
from shuffle_ledger.workers.worker_logs import write_logs
from tests.ports import free_port
from tests.receiver import receiving
from tests.workers.conftest import (
    awaited,
    register_round,
    remove_queues,
    running,
    settings_at,
)

SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
ENOUGH_TOUCHES = 20  # of the heartbeat file: more than one attempt to connect makes
UNREACHABLE = "amqp://guest:guest@127.0.0.1:1//"


@pytest.fixture
def broker(database_url: str) -> Iterator[Settings]:
    """Yield settings for queues at RabbitMQ."""
    found = settings_at("rabbitmq", database_url)
    yield found
    remove_queues(found)


@contextmanager
def worker(settings: Settings, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process."""
    arguments = ["worker", "--pool", "solo", "--without-mingle", "--without-gossip", "--loglevel", "INFO"]
    command = [sys.executable, "-m", "celery", "--app", "shuffle_ledger.workers.celery_app", *arguments]
    with running(settings, log, *command) as process:
        yield process


@pytest.mark.system
def test_a_worker_process_decides(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest], tmp_path: Path
) -> None:
    accountant = Accountant()
    app = create_app(broker)
    for name in ("a", "b", "c"):
        request_round(name)
        assert publish(app, name)
        assert publish(app, name)  # a task delivered twice decides once
    with worker(broker, tmp_path / "log"):
        outcomes = [decide(store, accountant, broker, name) for name in ("a", "b", "c")]
    assert all(isinstance(outcome, Admitted) for outcome in outcomes)
    assert store.count_entries("phones") == {"opened": 1, "admitted": 3}
    assert verify(store, accountant, numbers="all").ok
    again = [decide(store, accountant, broker, name) for name in ("a", "b", "c")]
    assert again == outcomes  # with no worker running: the answer is in the database


@pytest.mark.system
def test_a_worker_counts_its_tasks_at_a_port_of_its_own(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest], tmp_path: Path
) -> None:
    request_round("counted")
    app = create_app(broker)
    assert publish(app, "counted")
    app.send_task(ADMIT_ROUND, args=["unknown"])
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "shuffle_ledger", "worker", "--no-sweep"]
    more = {"SHUFFLE_LEDGER_WORKER_METRICS": address}

    def answer() -> str:
        return httpx.get(f"http://{address}/metrics", timeout=5).text

    with running(broker, tmp_path / "log", *command, more=more) as process:
        assert isinstance(decide(store, Accountant(), broker, "counted"), Admitted)
        for _ in range(600):
            if 'ended="failure"' in answer():
                break
            time.sleep(0.1)
        found = answer()
        counted = dict(re.findall(r'task_seconds_count\{ended="(\w+)",task="admit_round"\} (\S+)', found))
        # The round was published twice: by the test, and when it was asked for.
        assert float(counted["success"]) >= 1
        assert float(counted["failure"]) == 1
        assert "shuffle_ledger_worker_tasks_running 0.0" in found
        assert process.poll() is None


def test_a_worker_asks_for_a_while_where_the_database_does_not_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [AnswerLost("the round was decided"), Unavailable("no connection")]

    def sometimes(*given: Any, redelivered: bool) -> Outcome:
        if told:
            raise told.pop()
        return admit(*given, redelivered=redelivered)

    monkeypatch.setattr(tasks, "admit", sometimes)
    monkeypatch.setattr(tasks, "worker_store", lambda: store)
    monkeypatch.setattr(tasks, "worker_accountant", Accountant)
    register_round(store, "first")
    tasks.admit_round.apply(args=["first"], throw=True)
    assert isinstance(present_answer(store, store.round("first")), Admitted)
    told[:] = [Unavailable("no connection")] * 100
    monkeypatch.setattr(tasks, "DATABASE_SECONDS_MAX", 0.6)
    with pytest.raises(Unavailable):
        tasks.admit_round.apply(args=["first"], throw=True)
    assert 2 <= 100 - len(told) <= 4


@pytest.mark.system
def test_a_broker_that_is_down_loses_nothing(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest], tmp_path: Path
) -> None:
    down = broker.model_copy(update={"broker_url": UNREACHABLE, "broker_transport_options": {}})
    request_round("a")
    assert decide(store, Accountant(), down, "a") == Pending(round_id="a", cohort="phones")
    request_round("b")  # by a process that ended before it queued it, so that nothing says it is in no queue
    assert sweep(store, create_app(down), older_than_seconds=0) == 0
    assert store.pending(limit=10) == ["a", "b"]
    assert sweep(store, create_app(broker)) == 2  # both were in no queue: neither waits for minutes
    assert sweep(store, create_app(broker), older_than_seconds=60) == 0  # it was queued a moment ago
    with worker(broker, tmp_path / "log"):
        assert isinstance(decide(store, Accountant(), broker, "a"), Admitted)


def test_a_process_that_lost_its_broker_tries_to_reach_it_every_few_seconds(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _seconds: None)
    app = create_app(Settings(database_url=database_url, broker_url=UNREACHABLE))
    with app.connection_for_read() as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda _error, seconds: waits.append(seconds), 12)
    assert len(waits) == 12
    assert max(waits) <= RECONNECT_SECONDS_MAX


def test_a_poison_round_is_tried_a_bounded_number_of_times_and_seen(
    store: Store,
    database_url: str,
    request_round: Callable[[str], RoundRequest],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("poison", "healthy"):
        request_round(name)
    accountant, tries = Accountant(), []
    charge = Accountant.charge

    def fail_once_per_round(self: Accountant, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        tries.append(1)
        if len(store.pending(limit=10)) == 2:
            raise MemoryError("too large")
        return charge(self, accounted, filters)

    monkeypatch.setattr(Accountant, "charge", fail_once_per_round)
    here = Settings(database_url=database_url, broker_url=None)
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(MemoryError):
            decide(store, accountant, here, "poison")
    assert len(tries) == ATTEMPTS_MAX
    assert isinstance(decide(store, accountant, here, "healthy"), Admitted)  # later ones go on
    assert sweep(store, create_app(here), older_than_seconds=0) == 0
    report_stuck(store)
    assert "poison" in caplog.text
    assert "MemoryError: too large" in caplog.text


def test_without_a_broker_a_round_is_decided_when_it_is_asked_for_whatever_waits(
    store: Store, database_url: str, request_round: Callable[[str], RoundRequest]
) -> None:
    names = ["z", "m", "a"]
    for name in names:
        request_round(name)
    here = Settings(database_url=database_url, broker_url=None)
    for name in ("a", "z"):
        decide(store, Accountant(), here, name)
    assert [entry.round_id for entry in store.entries_of("phones")][1:] == ["a", "z"]
    assert store.pending(limit=3) == ["m"]


@pytest.mark.parametrize("broker_url", ["amqp://localhost//", "redis://localhost/0", None])
def test_tasks_are_acknowledged_late_and_none_has_results(broker_url: str | None) -> None:
    app = create_app(Settings(broker_url=broker_url))
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert app.conf.worker_prefetch_multiplier == 1
    assert app.conf.task_ignore_result
    ours = [task for name, task in tasks.admit_round.app.tasks.items() if name.startswith("shuffle_ledger.")]
    assert ours
    assert all(task.ignore_result for task in ours)
    options = app.conf.broker_transport_options
    assert options.get("visibility_timeout", 10**9) > app.conf.task_time_limit > app.conf.task_soft_time_limit


def test_checkpoints_are_scheduled_only_where_a_key_and_a_place_are_named(tmp_path: Path) -> None:
    key = Settings(signing_key=tmp_path / "key.pem", checkpoint_every_seconds=9)
    for lacking in (Settings(), key, Settings(checkpoint_directory=tmp_path)):
        assert "checkpoint" not in create_app(lacking).conf.beat_schedule
    schedule = create_app(key.model_copy(update={"checkpoint_directory": tmp_path})).conf.beat_schedule
    assert schedule["checkpoint"] == {"task": CHECKPOINT, "schedule": 9.0, "options": {"expires": 9.0}}


def test_rabbitmq_keeps_work_in_quorum_queues_and_stops_what_is_delivered_too_often() -> None:
    app = create_app(Settings(broker_url="amqp://localhost//", queue="here"))
    names = {queue.name for queue in app.conf.task_queues}
    assert names == {"here.rounds", "here.upkeep"}
    for queue in app.conf.task_queues:
        assert queue.queue_arguments["x-queue-type"] == "quorum"
        assert queue.queue_arguments["x-dead-letter-exchange"] == "here.dead"
        # The round's own count comes first: it says why.
        assert queue.queue_arguments["x-delivery-limit"] > ATTEMPTS_MAX
    assert app.conf.broker_transport_options["confirm_publish"]
    assert app.conf.worker_detect_quorum_queues
    assert app.conf.task_acks_on_timeout is False
    for task in (
        SWEEP,
        VERIFY,
        CHECKPOINT,
    ):  # so that decisions never wait for upkeep where there is a scheduler
        assert app.amqp.router.route({}, task)["queue"].name == "here.upkeep"
    assert app.amqp.router.route({}, ADMIT_ROUND)["queue"].name == "here.rounds"


def test_the_scheduler_delivers_webhooks(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    conf = create_app(Settings(broker_url="amqp://localhost//")).conf
    assert conf.beat_schedule["webhooks"]["task"] == WEBHOOKS
    assert conf.task_routes[WEBHOOKS] == {"queue": queue_names("shuffle-ledger").upkeep}
    key = "a key of at least thirty-two characters"
    monkeypatch.setenv("SHUFFLE_LEDGER_DATABASE_URL", database_url)
    monkeypatch.setenv("SHUFFLE_LEDGER_WEBHOOK_KEY", key)
    monkeypatch.setattr(tasks, "worker_store", lambda: store)
    root, level = logging.getLogger(), logging.getLogger().level
    handlers = list(root.handlers)
    write_logs()  # as a worker does
    try:
        with receiving() as receiver:
            secret = subscribe(store, key, url=f"{receiver.url}hooks/s3cret", actor="tester").secret
            register_round(store, "large", epsilon0=8.0)
            admit(store, Accountant(precision=4e-3), "large")
            tasks.deliver_webhooks()
            [message] = receiver.read(secret)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("httpx").setLevel(logging.NOTSET)
    assert "s3cret" not in caplog.text
    assert (message["type"], message["subject"]) == ("shuffle-ledger.refused", "phones")


@pytest.mark.system
def test_a_full_queue_and_one_of_another_kind_leave_rounds_pending(
    store: Store,
    database_url: str,
    request_round: Callable[[str], RoundRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_at("rabbitmq", database_url)
    names = queue_names(settings.queue)
    request_round("a")
    try:
        with create_app(settings).connection_for_write() as connection:
            connection.default_channel.queue_declare(names.rounds, durable=True, auto_delete=False)
        assert decide(store, Accountant(), settings, "a") == Pending(round_id="a", cohort="phones")
        with create_app(settings).connection_for_write() as connection:
            connection.default_channel.queue_delete(names.rounds)
        monkeypatch.setattr("shuffle_ledger.workers.queues.WAITING_MAX", 1)
        app = create_app(settings)
        assert publish(app, "a")
        # The limit of a replicated queue is met a few messages late.
        assert not all(publish(app, "a") for _ in range(1000))
    finally:
        remove_queues(settings)


def test_a_round_registered_while_the_broker_is_down_says_so(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHUFFLE_LEDGER_DATABASE_URL", database_url)
    arguments = ["round", "register", "phones", "--id", "a", "--randomizer", "generic(epsilon0=1)"]
    answer = CliRunner().invoke(
        main, [*arguments, "--reports", "1000", "--broker-url", UNREACHABLE, "--json"]
    )
    assert answer.exit_code == ExitCode.UNDECIDED
    assert json.loads(answer.stdout) == {"outcome": "pending", "round_id": "a", "cohort": "phones"}
    assert store.pending(limit=10) == ["a"]
    healthy = CliRunner().invoke(main, ["health", "--broker-url", UNREACHABLE, "--json"])
    assert healthy.exit_code == ExitCode.FAILED
    assert json.loads(healthy.stdout)["alarms"] == ["BROKER cannot be reached; rounds stay pending"]
    embedded = CliRunner().invoke(main, ["round", "retry", "a", "--json"])
    assert (embedded.exit_code, json.loads(embedded.stdout)["outcome"]) == (ExitCode.DONE, "admitted")


@pytest.mark.system
def test_a_workers_lines_carry_the_request_that_queued_the_round(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest], tmp_path: Path
) -> None:
    request_round("a")
    request_round("b")
    app, log = create_app(broker), tmp_path / "log"
    with request_ids.bound("req-77"):
        assert publish(app, "a")
    assert publish(app, "b")
    with running(broker, log, SCRIPT, "worker", "--no-sweep", more={"SHUFFLE_LEDGER_LOG_FORMAT": "json"}):
        awaited(lambda: len(store.pending(limit=10)) == 0, log)
        awaited(lambda: "round b: " in log.read_text("utf-8"), log)
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    (first,) = [line for line in lines if line["message"] == "round a: admitted"]
    (second,) = [line for line in lines if line["message"] == "round b: admitted"]
    assert (first["request_id"], first["level"]) == ("req-77", "info")
    assert re.fullmatch(r"[0-9a-f-]{36}", second["request_id"])  # the task's own


@pytest.mark.system
@pytest.mark.parametrize("command", ["worker", "serve"])
def test_every_line_of_a_process_is_json_where_the_log_is(
    command: str, database_url: str, tmp_path: Path
) -> None:
    log, port = tmp_path / "log", free_port()
    settings = Settings(database_url=database_url, broker_url=UNREACHABLE)
    options = ("--port", port) if command == "serve" else ()
    ready = "Application startup complete" if command == "serve" else "Trying again"
    more = {"SHUFFLE_LEDGER_LOG_FORMAT": "json", "SHUFFLE_LEDGER_DRAIN_SECONDS": "0.1"}
    with running(settings, log, SCRIPT, command, *options, more=more):
        awaited(lambda: ready in log.read_text("utf-8"), log)
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)
    first = lines[0]
    assert (first["logger"], first["level"]) == ("shuffle_ledger", "info")
    assert first["serving" if command == "serve" else "started"]
    assert command == "serve" or any("Warm shutdown" in line["message"] for line in lines)


def test_a_worker_without_a_broker_shows_that_it_lives_and_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    touched: list[str] = []

    def touch() -> None:
        touched.append("heartbeat")
        if len(touched) == ENOUGH_TOUCHES:
            monkeypatch.setattr("celery.worker.state.should_stop", 0)

    monkeypatch.setattr(consumer, "touch_heartbeat", touch)
    seconds = iter(range(3 * ENOUGH_TOUCHES))
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: next(seconds))
    app = create_app(Settings(database_url=database_url, broker_url=UNREACHABLE))
    waiting = consumer.RoundConsumer.__new__(consumer.RoundConsumer)  # without the steps of a whole worker
    waiting.app, waiting.first_connection_attempt, waiting.broker_connection_retry_attempt = app, True, 0
    with app.connection_for_read() as connection, pytest.raises(WorkerShutdown):
        waiting.ensure_connected(connection)
    assert len(touched) == ENOUGH_TOUCHES
