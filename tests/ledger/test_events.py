"""The feed has every committed entry once, in the order of each chain, however late a transaction ends."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.answers.entries import Event, EventPage
from shuffle_ledger.ledger.decisions import register_and_admit
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, Unavailable
from shuffle_ledger.ledger.reports import events
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import positions, prepared
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from tests.ledger.clerk import open_as_usual

FEEDER = Path(__file__).parent / "programs" / "feeder.py"
NAMES = ("phones", "tablets", "watches")
WRITERS = 3
ENOUGH = 120  # events, seen while all of them write
ENDS_SECONDS_MAX = 20.0
# Every transaction that adds entries takes up to 40 ms more for its commit.
SLOW_COMMITS = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_sleep(random() * 0.04); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION linger()
"""

MakeRequest = Callable[..., RoundRequest]


def places(found: list[Event]) -> list[tuple[str, int]]:
    return [(each.cohort, each.sequence) for each in found]


def drained(store: Store, after: str | None = None, limit: int = 100) -> tuple[list[Event], str | None]:
    found: list[Event] = []
    while True:
        page = events_after(store, after=after, limit=limit)
        found += page.events
        after = page.after
        if not page.more:
            return found, after


@contextmanager
def slow_opening(store: Store, name: str, *, fails: bool = False) -> Iterator[None]:
    """Open a cohort in another thread, whose transaction ends when the block does."""
    reached, ended = threading.Event(), threading.Event()

    def hold(_connection: object) -> None:
        reached.set()
        assert ended.wait(ENDS_SECONDS_MAX)
        if fails:
            raise OSError("the process ended here")

    def work() -> None:
        with Store.connect(store.engine.url.render_as_string(hide_password=False)) as own:
            event.listen(own.engine, "commit", hold)
            with suppress(OSError):
                open_as_usual(own, name)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert reached.wait(ENDS_SECONDS_MAX)
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_pages_of_any_size_are_the_same_feed(
    store: Store, accountant: Accountant, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events_after(store) == EventPage(events=(), after=None, more=False)
    expected = []
    for name in NAMES:
        open_as_usual(store, name)
        expected.append((name, 1))
    for number in range(6):
        name = NAMES[number % 2]
        register_and_admit(store, accountant, make_request(f"r{number}", cohort=name), actor="tester")
        expected.append((name, 2 + number // 2))
    whole, end = drained(store)
    assert places(whole) == expected
    assert whole[-1].cursor == end
    assert [each.digest for each in whole if each.cohort == "phones"] == [
        each.digest.hex() for each in store.entries_of("phones")
    ]
    for limit, scanned in ((1, 1), (2, 3), (3, 2), (1000, 10_000)):
        monkeypatch.setattr(events, "SCANNED_MAX", scanned)
        assert drained(store, limit=limit) == (whole, end)
        for place, each in enumerate(whole[:3]):
            assert drained(store, each.cursor, limit)[0] == whole[place + 1 :]
        found: list[Event] = []
        after, more = None, True
        while more:  # few of many: every page moves on
            page = events_after(store, after=after, limit=limit, cohorts=["tablets"], kinds=["opened"])
            found, after, more = [*found, *page.events], page.after, page.more
        assert (places(found), after) == ([("tablets", 1)], end)
    assert events_after(store, cohorts=[]).events == ()


def test_a_cursor_of_another_history_is_refused(store: Store) -> None:
    open_as_usual(store, "phones")
    [first] = events_after(store).events
    position, _, digest = first.cursor.partition("-")
    for gone in (f"{int(position) + 1}-{digest}", f"{position}-{'0' * 16}", f"{2**63 - 1}-{digest}"):
        with pytest.raises(Conflict) as caught:
            events_after(store, after=gone)
        assert str(caught.value) == (
            f"after: the ledger has no event {gone!r}: the cursor is another ledger's, or the database was"
            " put back to an earlier state. Read the feed from its beginning."
        )
    for wrong in (
        "",
        "0",
        position,
        f"0-{digest}",
        f"{2**63}-{digest}",
        f" {first.cursor}",
        f"{first.cursor}\n",
    ):
        with pytest.raises(InvalidValue, match=r"^after: .*expected the cursor of an event or of a page$"):
            events_after(store, after=wrong)
    for limit in (0, 1001):
        with pytest.raises(InvalidValue, match=r"^limit: got"):
            events_after(store, limit=limit)
    with pytest.raises(InvalidValue, match=r"^kind: got 'settles', expected one of opened, admitted, "):
        events_after(store, kinds=["settles"])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_an_earlier_position_that_commits_later_is_not_missed(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, fails: bool, before: int
) -> None:
    """Also the first position of the ledger, and where the transaction is rolled back in the end."""
    monkeypatch.setattr(positions, "WAIT_SECONDS", 0.02)
    for _ in range(before):
        open_as_usual(store, "phones")
        assert places(drained(store)[0]) == [("phones", 1)]
    seen = [("phones", 1)] * before
    with slow_opening(store, "slow", fails=fails):
        open_as_usual(store, "fast")
        with Store.connect(store.engine.url.render_as_string(hide_password=False)) as another:
            for each in (store, another):
                found, after = drained(each)
                assert places(found) in (seen, [])  # a new server does not know how far it is settled
        assert places(drained(store)[0]) == seen
    slow = [] if fails else [("slow", 1)]
    assert places(drained(store, after)[0]) == seen[len(found) :] + slow + [("fast", 1)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_feed_goes_on_while_transactions_overlap_without_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "WAIT_SECONDS", 0.02)
    with slow_opening(store, "second"):
        with slow_opening(store, "first"):
            assert drained(store)[0] == []
        assert drained(store)[0] == []
    with slow_opening(store, "third"):
        assert {each.cohort for each in drained(store)[0]} <= {"first", "second"}
        assert len(drained(store)[0]) == 2


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_standby_and_a_database_that_was_put_back_are_noticed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_as_usual(store, "phones")
    assert store.positions.settled() == 1
    with store.engine.connect() as connection:
        connection.exec_driver_sql("SELECT setval('entries_position_seq', 1, false)")
    assert store.positions.settled() == 0
    run = prepared.run

    def as_a_standby(connection: Connection, statement: str, values: Mapping[str, Any]) -> Any:
        return run(connection, statement.replace("pg_is_in_recovery()", "true"), values)

    monkeypatch.setattr(prepared, "run", as_a_standby)
    with pytest.raises(
        Unavailable, match=r"^the feed is read from the primary database, and this is a standby$"
    ):
        events_after(store)


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_reader_beside_a_crowd_that_is_killed_sees_every_entry_once(
    store: Store, database_url: str
) -> None:
    for name in NAMES:
        open_as_usual(store, name)
    if database_url.startswith("postgresql"):
        with store.engine.begin() as connection:
            connection.exec_driver_sql(SLOW_COMMITS)
    commands = [
        [sys.executable, str(FEEDER), database_url, f"w{number}", *NAMES] for number in range(WRITERS)
    ]
    writers = [subprocess.Popen(command, stdout=-1, text=True) for command in commands]
    chance = random.Random(5)  # noqa: S311 - sizes of pages
    seen: list[Event] = []
    after: str | None = None
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
        ends = time.monotonic() + ENDS_SECONDS_MAX
        while len(seen) < ENOUGH and time.monotonic() < ends:
            page = events_after(store, after=after, limit=chance.choice([1, 100, 100]))
            seen, after = [*seen, *page.events], page.after
            if len(writers) > 1 and len(seen) > ENOUGH / 2:
                killed = writers.pop()
                killed.kill()
                killed.wait()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert len(seen) >= ENOUGH
    while rest := drained(store, after)[0]:  # PostgreSQL ends the last transactions by itself
        seen, after = [*seen, *rest], rest[-1].cursor
        time.sleep(0.2)
    for name in NAMES:
        chain = [each.digest.hex() for each in store.entries_of(name)]
        assert [each.digest for each in seen if each.cohort == name] == chain
    assert len(seen) == sum(sum(store.count_entries(name).values()) for name in NAMES)
