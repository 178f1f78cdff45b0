"""Real workers at real brokers: killed while they compute, given the same task twice, given poison."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.health import health, retry
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Outcome
from shuffle_ledger.ledger.verification.verifier import verify
from shuffle_ledger.workers.celery_app import VERIFY, create_app
from shuffle_ledger.workers.dispatch import broker_state, decide, publish, queue_alarms, sweep
from shuffle_ledger.workers.queues import queue_names
from tests.workers.conftest import (
    awaited,
    kill_group,
    register_round,
    remove_queues,
    running,
    settings_at,
)

pytestmark = pytest.mark.system

SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
PROGRAM = Path(__file__).parent / "programs" / "hampered_worker.py"
POISON_EPSILON0 = 0.75


@pytest.fixture(params=["rabbitmq", "redis"])
def settings(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[Settings]:
    """Yield settings of a ledger on PostgreSQL with a real broker."""
    found = settings_at(request.param, postgresql_url)
    yield found
    remove_queues(found)


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Store]:
    """Yield that ledger."""
    with Store.connect(settings.database_url) as opened:
        yield opened


@pytest.fixture
def computing(tmp_path: Path) -> Callable[[], list[int]]:
    """Return a function that lists the processes that began to compute since it was asked to forget."""

    def listed() -> list[int]:
        return [int(file.name.removeprefix("computing-")) for file in tmp_path.glob("computing-*")]

    return listed


def hold(directory: Path) -> None:
    for file in directory.glob("computing-*"):
        file.unlink()
    (directory / "hold").touch()


def release(directory: Path) -> None:
    (directory / "hold").unlink()


def decided(ledger: Store, name: str, log: Path) -> Outcome:
    """Return a round's outcome once it has one; `decide` would queue it again, and hide a lost message."""
    awaited(lambda: ledger.round(name).outcome_sequence, log)
    found = round_record(ledger, name).outcome
    assert found is not None
    return found


@pytest.mark.parametrize("settings", ["rabbitmq"], indirect=True)
def test_workers_that_are_killed_or_race_decide_once(
    settings: Settings, ledger: Store, computing: Callable[[], list[int]], tmp_path: Path
) -> None:
    app, accountant, log = create_app(settings), Accountant(), tmp_path / "log"
    with running(settings, log, sys.executable, PROGRAM, tmp_path):
        # The same task, delivered twice, at the same time, to two processes.
        hold(tmp_path)
        register_round(ledger, "twice")
        assert publish(app, "twice")
        assert publish(app, "twice")
        awaited(lambda: len(computing()) == 2, log)
        release(tmp_path)
        assert isinstance(decided(ledger, "twice", log), Admitted)
        # A process that dies while it computes: its message comes again, and the death is counted.
        hold(tmp_path)
        register_round(ledger, "orphan")
        assert publish(app, "orphan")
        (pid,) = awaited(computing, log)
        os.kill(pid, signal.SIGKILL)
        awaited(lambda: set(computing()) > {pid}, log)
        release(tmp_path)
        assert isinstance(decided(ledger, "orphan", log), Admitted)
        record = round_record(ledger, "orphan")
        assert (record.attempts, record.last_error) == (1, "a worker was lost before it decided")
        # A round that kills every process that computes it is given up, visibly, and the others go on.
        register_round(ledger, "poison", epsilon0=POISON_EPSILON0)
        assert publish(app, "poison")
        register_round(ledger, "healthy")
        assert publish(app, "healthy")
        assert isinstance(decided(ledger, "healthy", log), Admitted)
        awaited(lambda: ledger.round("poison").attempts == ATTEMPTS_MAX, log)
    assert health(ledger).rounds_stuck == 1
    assert sweep(ledger, app, older_than_seconds=0) == 0
    (alarm,) = health(ledger).alarms
    assert alarm == f"STUCK poison after {ATTEMPTS_MAX} attempts: a worker was lost before it decided"
    assert set((_lengths(settings) or {}).values()) <= {0}  # no message circulates
    assert ledger.count_entries("phones") == {"opened": 1, "admitted": 3}
    assert verify(ledger, accountant, numbers="all").ok
    retry(ledger, "poison")  # somebody looked, and mended what was wrong
    assert isinstance(
        decide(ledger, accountant, settings.model_copy(update={"broker_url": None}), "poison"), Admitted
    )


def test_a_worker_killed_with_all_its_processes_loses_nothing(
    settings: Settings, ledger: Store, computing: Callable[[], list[int]], tmp_path: Path
) -> None:
    app, accountant, log = create_app(settings), Accountant(), tmp_path / "log"
    hold(tmp_path)
    for name in ("first", "second"):
        register_round(ledger, name)
        assert publish(app, name)
    with running(settings, log, sys.executable, PROGRAM, tmp_path) as process:
        awaited(lambda: len(computing()) == 2, log)
        kill_group(process)
        assert ledger.count_entries("phones") == {"opened": 1}
    release(tmp_path)
    if str(settings.broker_url).startswith("redis"):
        # Redis returns them only after an hour. The sweep does not wait for that: the table is the outbox.
        assert sweep(ledger, app, older_than_seconds=0) == 2
    with running(settings, log, SCRIPT, "worker", "--no-sweep"):
        for name in ("first", "second"):
            assert isinstance(decided(ledger, name, log), Admitted)
    assert ledger.count_entries("phones") == {"opened": 1, "admitted": 2}
    assert verify(ledger, accountant, numbers="all").ok


@pytest.mark.parametrize("settings", ["rabbitmq"], indirect=True)
def test_the_scheduler_verifies_and_what_nobody_can_handle_ends_in_the_dead_letter_queue(
    settings: Settings, ledger: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, log, names = create_app(settings), tmp_path / "log", queue_names(settings.queue)
    heartbeat = tmp_path / "heartbeat"
    monkeypatch.setenv("SHUFFLE_LEDGER_HEARTBEAT_FILE", str(heartbeat))
    assert queue_alarms(settings, _lengths(settings)) == []
    with running(settings, log, SCRIPT, "scheduler", "--actor", "scheduler") as process:
        assert process.poll() is None
        app.send_task(VERIFY)
        found = awaited(ledger.verifications, log)["phones"]
        assert (found.problem, found.head_sequence) == (None, 1)
        awaited(heartbeat.exists, log)
        app.send_task("shuffle_ledger.unheard_of", queue=names.upkeep)
        awaited(lambda: (_lengths(settings) or {}).get(names.dead), log)
    assert queue_alarms(settings, _lengths(settings)) == ["DEAD 1 messages that no worker could handle"]


def _lengths(settings: Settings) -> dict[str, int] | None:
    """Return how many messages wait in each queue; None if the broker cannot be asked."""
    state = broker_state(settings)
    return None if state is None else state.lengths
