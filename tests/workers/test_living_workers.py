"""The alarm for rounds that wait while no worker lives, at real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shuffle_ledger.cli.backends.database import health_of
from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.workers.dispatch import WORKERS_ALARM_SECONDS, BrokerState, broker_state, worker_alarms
from shuffle_ledger.workers.queues import queue_names
from tests.workers.conftest import awaited, register_round, remove_queues, running, settings_at
from tests.workers.test_worker import SCRIPT


def test_rounds_that_wait_for_a_minute_without_a_worker_are_an_alarm() -> None:
    nobody, somebody = BrokerState(lengths={}, workers=0), BrokerState(lengths={}, workers=1)
    waited = WORKERS_ALARM_SECONDS + 1
    assert worker_alarms(nobody, pending=153, longest_wait_seconds=waited) == [
        "WORKERS none takes rounds: 153 wait, the first for 61 seconds"
    ]
    assert worker_alarms(nobody, pending=153, longest_wait_seconds=WORKERS_ALARM_SECONDS) == []
    assert worker_alarms(nobody, pending=0, longest_wait_seconds=0.0) == []
    assert worker_alarms(somebody, pending=153, longest_wait_seconds=waited) == []
    assert worker_alarms(None, pending=153, longest_wait_seconds=waited) == []


@pytest.fixture(params=["rabbitmq", "redis"])
def broker(request: pytest.FixtureRequest, database_url: str) -> Iterator[Settings]:
    """Yield settings for queues at a real broker."""
    found = settings_at(request.param, database_url)
    yield found
    remove_queues(found)


@pytest.mark.system
def test_the_alarm_comes_and_goes_with_the_workers(
    store: Store, broker: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr("shuffle_ledger.workers.dispatch.WORKERS_ALARM_SECONDS", 0.0)
    assert words(broker) == []  # nothing waits
    register_round(store, "a-round")  # and is in no queue, so that nothing decides it
    assert words(broker) == ["WORKERS"]
    with running(broker, log, SCRIPT, "worker", "--no-sweep") as process:
        awaited(lambda: (state := broker_state(broker)) and state.workers == 1, log)
        assert words(broker) == []
        process.terminate()
        assert process.wait(60) == 0
        assert words(broker) == ["WORKERS"]
    with running(broker, log, SCRIPT, "scheduler"):  # which takes no rounds
        names = queue_names(broker.queue)
        awaited(lambda: (state := broker_state(broker)) and names.upkeep in state.lengths, log)
        assert words(broker) == ["WORKERS"]
    embedded = broker.model_copy(update={"broker_url": None})
    assert words(embedded) == []


def words(settings: Settings) -> list[str]:
    """Return the first words of the alarms."""
    with open_session(settings) as session:
        found = health_of(session)
    return [alarm.split(" ", 1)[0] for alarm in found.alarms]
