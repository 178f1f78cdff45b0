"""Admission through a real worker process, and what is left when workers or brokers fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from accounting import Accountant, ShuffledRound, parse_randomizer
from ledger.admission import open_cohort, pending_rounds, register
from ledger.budgets import Admitted, Pending, RoundRequest
from ledger.config import Settings
from ledger.schema import initialise
from ledger.store import ATTEMPTS_MAX, Store
from ledger.verification import verify
from workers.celery_app import create_app
from workers.dispatch import decide, publish, sweep
from workers.queues import queue_names

REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS_MAX = 60.0
UNREACHABLE = "amqp://guest:guest@127.0.0.1:1//"


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """Return the URL of a ledger with the cohort "phones"."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url)
    with Store.connect(url) as store:
        open_cohort(
            store, name="phones", population=10**6, epsilon=1.0, delta=1e-9, policy="fixed", actor="tester"
        )
    return url


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Yield that ledger."""
    with Store.connect(database_url) as opened:
        yield opened


@pytest.fixture(params=["filesystem", "real"])
def broker(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Settings]:
    """Yield settings for a broker of files, and for the real one if there is one."""
    url, options = "filesystem://", cast("dict[str, Any]", {})
    if request.param == "filesystem":
        for name in ("messages", "processed", "control"):
            (tmp_path / name).mkdir()
        messages = str(tmp_path / "messages")
        options = {
            "data_folder_in": messages,
            "data_folder_out": messages,
            "processed_folder": str(tmp_path / "processed"),
            "control_folder": str(tmp_path / "control"),
        }
    elif "SHUFFLE_LEDGER_TEST_BROKER_URL" in os.environ:
        url = os.environ["SHUFFLE_LEDGER_TEST_BROKER_URL"]
    else:
        pytest.skip("SHUFFLE_LEDGER_TEST_BROKER_URL is not set: this was not run on a real broker")
    settings = Settings(
        database_url=database_url,
        broker_url=url,
        broker_transport_options=options,
        queue=f"shuffle-ledger-test-{uuid.uuid4().hex}",
        decision_timeout_seconds=WAIT_SECONDS_MAX,
    )
    yield settings
    if request.param == "real":
        with create_app(settings).connection_for_write() as connection:
            for name in vars(queue_names(settings.queue)).values():
                connection.default_channel.queue_delete(name)
            for name in (settings.queue, queue_names(settings.queue).dead):
                connection.default_channel.exchange_delete(name)


@contextmanager
def worker(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process."""
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "SHUFFLE_LEDGER_DATABASE_URL": settings.database_url,
        "SHUFFLE_LEDGER_BROKER_URL": str(settings.broker_url),
        "SHUFFLE_LEDGER_BROKER_TRANSPORT_OPTIONS": json.dumps(settings.broker_transport_options),
        "SHUFFLE_LEDGER_QUEUE": settings.queue,
    }
    arguments = ["worker", "--pool", "solo", "--without-mingle", "--without-gossip", "--loglevel", "INFO"]
    command = [sys.executable, "-m", "celery", "--app", "workers.celery_app", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def request_round(store: Store) -> Callable[[str], RoundRequest]:
    """Return a function that registers rounds."""

    def make(name: str) -> RoundRequest:
        randomizer = parse_randomizer("krr(k=10, epsilon0=2)")
        shuffled = ShuffledRound(randomizer=randomizer, reports=2_000)
        request = RoundRequest(round_id=name, cohort="phones", round=shuffled)
        register(store, request, actor="tester")
        return request

    return make


def test_a_worker_process_decides(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest]
) -> None:
    accountant = Accountant()
    app = create_app(broker)
    for name in ("a", "b", "c"):
        request_round(name)
        assert publish(app, name)
        assert publish(app, name)  # a task delivered twice decides once
    with worker(broker):
        outcomes = [decide(store, accountant, broker, name) for name in ("a", "b", "c")]
    assert all(isinstance(outcome, Admitted) for outcome in outcomes)
    assert store.count_entries("phones") == {"opened": 1, "admitted": 3}
    assert verify(store, accountant, numbers="all").ok
    again = [decide(store, accountant, broker, name) for name in ("a", "b", "c")]
    assert again == outcomes  # with no worker running: the answer is in the database


def test_no_worker_leaves_the_round_pending(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest]
) -> None:
    request_round("a")
    impatient = broker.model_copy(update={"decision_timeout_seconds": 0.05})
    assert decide(store, Accountant(), impatient, "a") == Pending(round_id="a", cohort="phones")
    with worker(broker):  # the message waited
        assert isinstance(decide(store, Accountant(), broker, "a"), Admitted)


def test_a_broker_that_is_down_loses_nothing(
    store: Store, broker: Settings, request_round: Callable[[str], RoundRequest]
) -> None:
    down = broker.model_copy(update={"broker_url": UNREACHABLE, "broker_transport_options": {}})
    request_round("a")
    assert decide(store, Accountant(), down, "a") == Pending(round_id="a", cohort="phones")
    assert sweep(store, create_app(down), older_than_seconds=0) == 0
    assert pending_rounds(store, limit=10) == ["a"]
    assert sweep(store, create_app(broker), older_than_seconds=0) == 1
    assert sweep(store, create_app(broker), older_than_seconds=60) == 0  # it was queued a moment ago
    with worker(broker):
        assert isinstance(decide(store, Accountant(), broker, "a"), Admitted)


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
    certify = Accountant.certify

    def fail_once_per_round(self: Accountant, rounds: Any, *, delta: float) -> Any:
        tries.append(1)
        if len(store.pending(limit=10)) == 2:
            raise MemoryError("too large")
        return certify(self, rounds, delta=delta)

    monkeypatch.setattr(Accountant, "certify", fail_once_per_round)
    here = Settings(database_url=database_url, broker_url=None)
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(MemoryError):
            decide(store, accountant, here, "poison")
    assert len(tries) == ATTEMPTS_MAX
    assert isinstance(decide(store, accountant, here, "healthy"), Admitted)  # later ones go on
    assert sweep(store, create_app(here), older_than_seconds=0) == 0
    assert "poison" in caplog.text
    assert "MemoryError: too large" in caplog.text


def test_without_a_broker_what_was_interrupted_is_decided_first(
    store: Store, database_url: str, request_round: Callable[[str], RoundRequest]
) -> None:
    names = ["z", "m", "a"]
    for name in names:
        request_round(name)
    here = Settings(database_url=database_url, broker_url=None)
    decide(store, Accountant(), here, "a")
    assert [entry.round_id for entry in store.entries_of("phones")][1:] == names


@pytest.mark.parametrize("broker_url", ["amqp://localhost//", "redis://localhost/0", None])
def test_tasks_are_acknowledged_late_and_carry_no_results(broker_url: str | None) -> None:
    app = create_app(Settings(broker_url=broker_url))
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert app.conf.worker_prefetch_multiplier == 1
    assert app.conf.result_backend is None
    options = app.conf.broker_transport_options
    assert options.get("visibility_timeout", 10**9) > app.conf.task_time_limit > app.conf.task_soft_time_limit
