"""Crowds, deaths, lost connections and wrong clocks, on both databases."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from shuffle_ledger.accounting import Accountant, slot_for
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    open_cohort,
    register,
    register_and_admit,
    settle,
)
from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import open_as_usual, trust_any_clock

PROGRAMS, REPOSITORY = Path(__file__).parent / "programs", Path(__file__).parents[2]
PROCESSES = 50
CONNECTIONS = 60  # for all of them: each needs up to two; without one it must try again
WAIT_SECONDS_MAX = 300
OFF = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
COMMITTING = ("COMMIT", "DONE")
# Deaths at every step take a process each: one way to decide is tried on SQLite too.
ON_BOTH = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

MakeRequest = Callable[..., RoundRequest]


def run(program: str, *arguments: object) -> list[str]:
    """Return the lines that a program of ours says."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@contextmanager
def with_few_connections(database_url: str, connections: int) -> Iterator[str]:
    """Yields a PostgreSQL database's URL for a user with this limit of connections; SQLite has no limit."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        yield database_url
        return
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"crowd_{uuid.uuid4().hex}"
    role = f"CREATE ROLE {name} LOGIN PASSWORD '{name}' CONNECTION LIMIT {connections}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(role.encode())
        try:
            for kind in ("TABLES", "SEQUENCES"):
                connection.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {name}".encode())
            yield url.set(username=name, password=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP OWNED BY {name}".encode())
            connection.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
def scarce_url(database_url: str) -> Iterator[str]:
    """Yield the URL of a crowd: the other connections are for other tests."""
    with with_few_connections(database_url, CONNECTIONS) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize(
    (
        "database_url",
        "how",
        "seed",
    ),  # in two commits, and at once; test_races.py: two on SQLite
    [
        ("postgresql", "in-two-steps", 0),
        ("postgresql", "at-once", 1),
    ],
    indirect=["database_url"],
)
def test_fifty_processes_on_the_last_sliver_admit_exactly_what_fits(
    store: Store, scarce_url: str, accountant: Accountant, make_request: MakeRequest, how: str, seed: int
) -> None:
    accounted = slot_for(make_request().round)
    chance = random.Random(seed)  # noqa: S311 - how much fits need not be a secret
    cohort, fits = f"cohort-{seed}", chance.randint(0, 20)
    costs = [accountant.certify({accounted: fits + more}, delta=1e-9).epsilon_upper for more in (0, 1)]
    epsilon = chance.uniform(max(costs[0], 1e-6), costs[1])
    for name in (cohort, f"{cohort} too"):
        opening: dict[str, Any] = {"population": 10**6, "epsilon": epsilon, "delta": 1e-9}
        open_cohort(store, name=name, policy="adaptive", actor="tester", **opening)
    fits = fitting_one_by_one(store, accountant, make_request(cohort=f"{cohort} too"))
    said = run("crowd.py", scarce_url, cohort, how, PROCESSES, seed)
    refused = PROCESSES - fits
    assert Counter(said) == Counter({"Admitted": fits, "Refused budget_exceeded": refused})
    assert store.view(cohort).spent.epsilon_upper <= epsilon
    kinds = {"opened": 1, "admitted": fits, "refused": refused}
    assert store.count_entries(cohort) == {kind: count for kind, count in kinds.items() if count}
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


def fitting_one_by_one(store: Store, accountant: Accountant, request: RoundRequest) -> int:
    """Returns how many equal rounds a cohort without other writers admits."""
    for number in itertools.count():
        one = dataclasses.replace(request, round_id=f"{request.cohort}-{number}")
        if isinstance(register_and_admit(store, accountant, one, actor="tester")[0], Refused):
            return number
    raise AssertionError("unreachable")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # where turns are taken
def test_who_gets_no_connection_to_wait_its_turn_on_goes_on_without(
    store: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    open_as_usual(store, "crowded", epsilon=4.0)
    with with_few_connections(database_url, 1) as url, Store.connect(url) as scarce:
        request = make_request(cohort="crowded")
        register(scarce, request, actor="tester")
        scarce.turns.note_contention("crowded")
        with pytest.raises(Unavailable, match="too many connections"), Store.connect(url):
            pass  # there is no second one
        assert isinstance(admit(scarce, accountant, request.round_id), Admitted)


@pytest.mark.slow
@ON_POSTGRESQL
def test_a_process_killed_at_any_step_leaves_all_or_nothing(database_url: str) -> None:
    *said, last = run("doomed.py", database_url, "in-two-steps")
    assert last == "survived"
    steps, entries_left = said[::2], [int(count) for count in said[1::2]]
    assert entries_left == sorted(entries_left)  # who dies later leaves no less
    # All five where the last step was a statement that commits itself.
    assert set(entries_left) - {5} == {0, 1, 2, 3, 4}
    # The writes of a transaction are there after its commit, and none of them before.
    for at, (fewer, more) in enumerate(itertools.pairwise(entries_left)):
        if more > fewer:
            assert more == fewer + 1
            assert steps[at] == "COMMIT" or steps[at + 1] == "DONE"
    assert len(steps) >= 14  # a cohort, two rounds, their loss, and before and after each of four entries


@pytest.mark.slow
@ON_BOTH
def test_a_process_killed_while_it_decides_at_once_leaves_all_or_nothing(database_url: str) -> None:
    """As above; and whenever a round is there, its outcome is (the program looks after every death)."""
    *said, last = run("doomed.py", database_url, "at-once")
    assert last == "survived"
    # The cohort and its first round were there before; all six where the last step commits itself.
    assert {int(count) for count in said[1::2]} - {6} == {2, 3, 4, 5}


@pytest.mark.slow
@ON_POSTGRESQL
def test_a_process_killed_while_it_decides_together_leaves_both_or_none(database_url: str) -> None:
    *said, last = run("doomed.py", database_url, "together")
    assert last == "survived"
    assert {int(count) for count in said[1::2]} - {6} == {2, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database_url", "way"),
    [("sqlite", "joint"), ("postgresql", "joint"), ("postgresql", "joint-in-two-steps")],
    indirect=["database_url"],
)
def test_dying_at_any_step_of_a_round_of_two_cohorts_leaves_it_in_both_or_in_none(
    database_url: str, way: str
) -> None:
    *said, last = run("doomed.py", database_url, way)
    assert last == "survived"
    steps, left = said[::2], [int(count) for count in said[1::2]]
    assert sum("COMMIT" in step or "DONE" in step for step in steps) >= 4
    assert set(left) >= {2, 3, 4, 5}  # it died between any two entries


@contextmanager
def interrupted(step: int, interrupt: Callable[[Connection, str], None]) -> Iterator[list[str]]:
    """Interrupt a statement, its end where it commits itself, or a commit; yield the list of such steps."""
    steps: list[str] = []

    def count(connection: Connection, what: str) -> None:
        steps.append(what)
        if len(steps) == step:
            interrupt(connection, what)

    def before_statement(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):  # the first statement behind it is as good a place
            count(connection, statement)

    def before_commit(connection: Connection) -> None:
        count(connection, "COMMIT")

    def after_statement(connection: Connection, *_: object) -> None:
        if connection.get_execution_options().get("shuffle_ledger_alone"):
            count(connection, "DONE")

    listeners: dict[str, Callable[..., None]] = {
        "before_cursor_execute": before_statement,
        "after_cursor_execute": after_statement,
        "commit": before_commit,
    }
    for name, listener in listeners.items():
        event.listen(Engine, name, listener)
    try:
        yield steps
    finally:
        for name, listener in listeners.items():
            event.remove(Engine, name, listener)


def backend_of(connection: Connection) -> Any:
    """Return the psycopg connection underneath."""
    return connection.connection.dbapi_connection


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("acknowledged", [True, False], ids=["terminated", "commit-unanswered"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "in-two-steps"])
def test_a_lost_connection_is_told_and_leaves_nothing_half_done(
    store: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    *,
    acknowledged: bool,
    at_once: bool,
) -> None:
    open_as_usual(store, "phones")
    known = make_request("known from now on", epsilon0=0.125, reports=100_000)
    register_and_admit(store, accountant, known, actor="tester")
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)

    def terminate(connection: Connection, what: str) -> None:
        if what == "DONE":
            return
        pid = backend_of(connection).info.backend_pid
        with psycopg.connect(address, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def commit_and_hang_up(connection: Connection, what: str) -> None:
        if what in COMMITTING:
            if what == "COMMIT":
                backend_of(connection).execute("COMMIT")
            terminate(connection, "COMMIT")
            connection.invalidate()
            # psycopg knows that it committed; where the answer is what was lost, it says this instead.
            raise OperationalError("COMMIT", {}, psycopg.OperationalError("server closed the connection"))

    told, step, steps = 0, 0, ["there was a step before"]
    while step <= len(steps):
        step += 1
        name = f"round-{step}"
        request = make_request(name, epsilon0=0.125, reports=100_000)
        with interrupted(step, terminate if acknowledged else commit_and_hang_up) as steps:
            try:
                if at_once:
                    assert admit_at_once(store, accountant, request, actor="tester") is not None
                else:
                    register(store, request, actor="tester")
                    admit(store, accountant, name)
            except Unavailable:  # and nothing else
                told += 1
        left = [entry.round_id for entry in store.entries_of("phones")].count(name)
        assert not at_once or store.count_pending("phones") == 0
        register(store, request, actor="tester")
        assert store.round(name).attempts == 0  # it says nothing about the round
        assert isinstance(admit(store, accountant, name), Admitted)
        assert left <= [entry.round_id for entry in store.entries_of("phones")].count(name) == 1
    assert told == sum((what in COMMITTING) if not acknowledged else (what != "DONE") for what in steps)
    assert told >= (2 if at_once else 3)
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


@pytest.fixture(params=[OFF], ids=["fast"])
def database_off(request: pytest.FixtureRequest, database_url: str) -> Iterator[timedelta]:
    """Put the database's clock an hour off ours; yield by how much."""
    off: timedelta = request.param
    seconds = int(off.total_seconds())
    url = make_url(database_url)
    if url.get_backend_name() == "postgresql":
        address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True) as connection:
            for clock in ("clock_timestamp", "now"):
                connection.execute(
                    f"CREATE FUNCTION public.{clock}() RETURNS timestamptz LANGUAGE sql AS"
                    f" $$ SELECT pg_catalog.{clock}() + interval '{seconds} seconds' $$".encode()
                )
            connection.execute(f"ALTER DATABASE {url.database} SET search_path = public, pg_catalog".encode())
        yield off
        return

    def skew(dbapi_connection: Any, _record: object) -> None:
        def strftime(form: str, moment: str) -> str:
            assert moment == "now"
            assert form.endswith("%f")  # seconds with three decimals, as SQLite counts them
            return (datetime.now(UTC) + off).strftime(form.replace("%f", "%S.%f"))[:-3]

        dbapi_connection.create_function("strftime", 2, strftime)

    event.listen(Engine, "connect", skew)
    yield off
    event.remove(Engine, "connect", skew)


def test_every_stored_time_is_the_databases(
    database_off: timedelta, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    with Store.connect(database_url) as store:
        trust_any_clock(store)
        parameters: dict[str, Any] = {
            "population": 10**6,
            "epsilon": 1.0,
            "delta": 1e-9,
            "policy": "adaptive",
        }
        cohort = open_cohort(store, name="phones", actor="tester", **parameters)
        for name in ("settled", "queued"):
            register(store, make_request(name), actor="tester")
        admit(store, accountant, "settled")
        settle(store, accountant, "settled", reports=900, actor="tester")
        assert (
            store.take_overdue(older_than_seconds=300, limit=10) == []
        )  # registered just now, by that clock
        assert store.take_overdue(older_than_seconds=0, limit=10) == ["queued"]
        assert store.take_overdue(older_than_seconds=300, limit=10) == []
        verify_oldest(store, accountant, enough=lambda: False)
        moments = [cohort.opened_at, store.round("settled").registered_at, store.round("queued").queued_at]
        moments += [moment_of(entry) for entry in store.entries_of("phones")]
        moments += [store.verifications()["phones"].verified_at, store.waiting().at]
    assert len(moments) == 8
    for moment in moments:
        assert moment is not None
        assert abs(moment - datetime.now(UTC) - database_off) < MINUTE


def moment_of(entry: LedgerEntry) -> datetime:
    return entry.content().recorded_at
