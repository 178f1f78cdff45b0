"""The rows that a decision reads do not grow with the ledger, whatever the planner's statistics."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_together,
    register,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.reports.listing import refusals_after
from shuffle_ledger.ledger.reports.round_lists import RoundFilter, list_rounds
from shuffle_ledger.ledger.storage import rounds as rounds_module
from shuffle_ledger.ledger.storage import store as store_module
from shuffle_ledger.ledger.storage.rows import MissingRounds
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from tests.ledger.clerk import open_as_usual

MakeRequest = Callable[..., RoundRequest]

ROUNDS = 12
CHAIN = 200
COHORTS = 8
WAITING = 40
WAIT_SECONDS_MAX = 10.0
TIMES, FEW_TIMES, TOGETHER = 20, 6, 5
STEPS_TOGETHER = 20
FEW_STEPS = 50  # less than one for each round
READ = "SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes"
ATTEMPTS_MAX = 8  # a slow path fails all of them
READ_MAX = 25.0  # rows for each decision; what reads all rounds so far reads 100, half of TIMES * TOGETHER


def read_whole(database_url: str) -> dict[str, int]:
    """Return how often each table was read whole so far."""
    scans = counted(database_url, "SELECT relname, seq_scan FROM pg_stat_user_tables")
    return {name: count for name, count in scans.items() if name != "alembic_version"}


def counted(database_url: str, query: str) -> dict[str, int]:
    """Return what PostgreSQL has counted so far, as far as sessions that ended know."""
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        ends = time.monotonic() + WAIT_SECONDS_MAX
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        while connection.execute(others).fetchone() != (0,) and time.monotonic() < ends:
            time.sleep(0.01)  # until PostgreSQL has ended the sessions, which is when they tell
        return dict(connection.execute(query.encode()).fetchall())


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_no_table_is_read_whole_for_a_decision(
    database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Not even by statistics from when the tables were empty, nor for a foreign key or in a trigger."""
    with Store.connect(database_url) as store:
        open_as_usual(store, "phones", epsilon=5.0)
        register_and_admit(store, accountant, make_request("first"), actor="x")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")
    before = read_whole(database_url)
    with Store.connect(database_url) as store:
        for number in range(ROUNDS):
            outcome, _ = register_and_admit(store, accountant, make_request(f"once-{number}"), actor="x")
            assert isinstance(outcome, Admitted)
            register(store, make_request(f"twice-{number}"), actor="x")
            assert isinstance(admit(store, accountant, f"twice-{number}"), Admitted)
            assert refusals_after(store, "phones", after=0) == []
            assert len(events_after(store, cohorts=["phones"], limit=1).events) == 1
    assert read_whole(database_url) == before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_verification_reads_each_row_of_a_chain_a_few_times(
    database_url: str, accountant: Accountant, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages, and without statistics: not all later rows for each page, nor all others for each row."""
    for module in (store_module, rounds_module):
        monkeypatch.setattr(module, "PAGE_ROWS", 10)
    with Store.connect(database_url) as store:
        open_as_usual(store, "phones", epsilon=50.0)
        first, *others = [make_request(f"round {number}") for number in range(CHAIN)]
        register_and_admit(store, accountant, first, actor="x")
        assert len(admit_together(store, accountant, others, actor="x")) == len(others)
    before = sum(counted(database_url, READ).values())
    with Store.connect(database_url) as store:
        assert len(list(store.entries_of("phones"))) == CHAIN + 1
        assert len(list(store.rounds_of("phones"))) == CHAIN
        assert store.missing_rounds("phones") == MissingRounds(rows=(), unlisted=())
        assert store.positions.misplaced("phones", limit=20) == []
        assert len(list(store.positions.from_the_last())) == CHAIN + 1
    assert CHAIN < sum(counted(database_url, READ).values()) - before < 12 * CHAIN


def decide(store: Store, accountant: Accountant, requests: list[RoundRequest]) -> None:
    """Decide rounds in each of the ways there are, and close two of them."""
    once, twice, settled, *together = requests
    assert isinstance(register_and_admit(store, accountant, once, actor="x")[0], Admitted)
    register(store, twice, actor="x")
    assert isinstance(admit(store, accountant, twice.round_id), Admitted)
    assert len(admit_together(store, accountant, [settled, *together], actor="x")) == 1 + len(together)
    settle(store, accountant, settled.round_id, reports=settled.round.reports, actor="x")
    void(store, accountant, together[0].round_id, reason="not collected", actor="x")


def count_steps(store: Store, steps: Iterator[int], together: int) -> None:
    """Count the steps of SQLite's machine on every connection of the pool; `together` count as one."""

    def count(connection: Connection, *_: object) -> None:
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: next(steps) * 0, together)

    event.listen(store.engine, "before_cursor_execute", count)


def test_a_decision_reads_no_more_after_many_rounds(
    request: pytest.FixtureRequest, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """In one session, which planned its statements when the tables were almost empty.

    On PostgreSQL rows that indexes find are counted, on SQLite the steps of its machine.
    """
    numbers, steps = itertools.count(), itertools.count()

    def decide_many(url: str) -> list[int]:
        taken = []
        with Store.connect(url) as store:
            if "sqlite" in url:
                count_steps(store, steps, STEPS_TOGETHER)
            open_as_usual(store, "phones", epsilon=50.0)
            for _ in range(TIMES):
                begun = next(steps)
                decide(store, accountant, [make_request(f"round {next(numbers)}") for _ in range(TOGETHER)])
                taken.append(next(steps) - begun)
        return taken

    if "sqlite" in database_url:
        taken = decide_many(database_url)
        assert sum(taken[-FEW_TIMES:]) < 1.1 * sum(taken[FEW_TIMES : 2 * FEW_TIMES]), taken
        return
    # While another session looks at a database, as autovacuum does, rows of before stay, and are read, too.
    new_ledger: Callable[[], str] = request.getfixturevalue("new_postgresql_ledger")
    for _ in range(ATTEMPTS_MAX):
        url = new_ledger()
        before = counted(url, READ)
        decide_many(url)
        after = counted(url, READ)
        found = {name: (count - before.get(name, 0)) / (TIMES * TOGETHER) for name, count in after.items()}
        if max(found.values()) < READ_MAX:
            return
    raise AssertionError(found)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_what_waits_in_other_cohorts_is_not_read(
    database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Heads are locked while it is found out whether anything waits."""
    names = [f"cohort-{number}" for number in range(COHORTS)]
    with Store.connect(database_url) as store:
        for name in ["phones", *names]:
            open_as_usual(store, name, epsilon=5.0)
        for name in names:
            register_and_admit(store, accountant, make_request(f"first of {name}", cohort=name), actor="x")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")
        for number in range(WAITING):
            register(store, make_request(f"waits-{number}"), actor="x")
    query = "SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'rounds'"
    before = counted(database_url, query)
    with Store.connect(database_url) as store:
        new = [make_request(f"new of {name}", cohort=name) for name in names]
        assert len(admit_together(store, accountant, new, actor="x")) == COHORTS
    read = counted(database_url, query)["ix_rounds_pending"] - before["ix_rounds_pending"]
    assert read < WAITING


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_was_decided_is_not_read_to_see_what_waits(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """On SQLite, whose planner would take an index of all rounds; steps of its machine are counted."""
    open_as_usual(store, "phones", epsilon=50.0)
    register_and_admit(store, accountant, make_request("first"), actor="x")
    taken = itertools.count()
    count_steps(store, taken, 1)

    def steps(question: Callable[[], object]) -> int:
        before = next(taken)
        question()
        return next(taken) - before

    questions = (
        lambda: list_rounds(store, RoundFilter(outcome="pending"), limit=5),
        lambda: list_rounds(store, RoundFilter(outcome="pending"), after="first", limit=5),
        lambda: list_rounds(store, RoundFilter(cohorts=("phones",), outcome="pending"), limit=5),
        lambda: store.count_pending("phones"),
        store.waiting,
        lambda: store.stuck(limit=5),
        lambda: store.pending(limit=5),
        lambda: store.take_overdue(older_than_seconds=60.0, limit=5),
    )
    few = [steps(question) for question in questions]
    admit_together(store, accountant, [make_request(f"round {number}") for number in range(50)], actor="x")
    many = [steps(question) for question in questions]
    assert all(after < before + FEW_STEPS for before, after in zip(few, many, strict=True)), (few, many)
