"""Scheduled verification: findings are kept, cohorts take turns, and a busy database is not a finding."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import health as upkeep
from shuffle_ledger.ledger.checkpoints import ScheduledCheckpoints
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    record_incident,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.health import health, retry, verify_oldest
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import Refused, ReleaseTimes, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import Clerk, open_as_usual

MakeRequest = Callable[..., RoundRequest]


def enough() -> bool:
    return True


def cohorts(store: Store, *names: str) -> None:
    for name in names:
        open_as_usual(store, name)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_cohorts_are_verified_in_turn(store: Store, accountant: Accountant) -> None:
    cohorts(store, "a", "b", "c")
    done = [verify_oldest(store, accountant, enough=enough) for _ in range(4)]
    assert done == [["a"], ["b"], ["c"], ["a"]]
    cohorts(store, "d")
    assert verify_oldest(store, accountant, enough=lambda: False) == ["d", "b", "c", "a"]
    assert {name: found.problem for name, found in store.verifications().items()} == dict.fromkeys("abcd")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_verification_finds_is_an_alarm_until_it_is_mended(
    phones: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    request = make_request("a")
    register(phones, request, actor="tester")
    admit(phones, accountant, "a")
    assert verify_oldest(phones, accountant, enough=enough) == ["phones"]
    assert health(phones).alarms == ()
    good = phones.verifications()["phones"]
    assert good.head_sequence == 2
    _attack(database_url, "UPDATE entries SET body = replace(body, 'tester', 'nobody') WHERE sequence = 2")
    for _ in range(2):  # it does not forget
        verify_oldest(phones, accountant, enough=enough)
        (alarm,) = health(phones).alarms
        assert alarm.startswith("BROKEN phones: ")
        assert health(phones).cohorts_broken == 1
        found = phones.verifications()["phones"]
        assert (found.head_sequence, found.head_digest) == (2, good.head_digest)
    _attack(database_url, "UPDATE entries SET body = replace(body, 'nobody', 'tester') WHERE sequence = 2")
    verify_oldest(phones, accountant, enough=enough)
    assert health(phones).alarms == ()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_moments_to_come_and_rubbish_keep_no_chain_from_its_verification(
    phones: Store, database_url: str, accountant: Accountant
) -> None:
    verify_oldest(phones, accountant, enough=enough)
    _attack(database_url, "UPDATE verifications SET verified_at = '2099-01-01'")
    assert any(alarm.startswith("UNVERIFIED 1") for alarm in health(phones).alarms)
    verify_oldest(phones, accountant, enough=enough)
    assert health(phones).alarms == ()
    # SQLite takes any value.
    _attack(database_url, "UPDATE verifications SET verified_at = 'junk'")
    verify_oldest(phones, accountant, enough=enough)
    assert health(phones).alarms == ()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_long_chain_rests_as_long_as_it_was_good(
    phones: Store, database_url: str, accountant: Accountant
) -> None:
    cohorts(phones, "tablets")
    assert set(verify_oldest(phones, accountant, enough=lambda: False)) == {"phones", "tablets"}
    assert set(verify_oldest(phones, accountant, enough=lambda: False)) == {"phones", "tablets"}  # short ones
    _attack(database_url, "UPDATE verifications SET head_sequence = 6000 WHERE cohort = 'phones'")
    assert verify_oldest(phones, accountant, enough=lambda: False) == ["tablets"]
    _attack(database_url, "UPDATE verifications SET verified_at = '2026-01-01' WHERE cohort = 'phones'")
    assert "phones" in verify_oldest(phones, accountant, enough=lambda: False)
    # It was found shorter than it was, and rests no more.
    assert "phones" in verify_oldest(phones, accountant, enough=lambda: False)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_entries_written_during_a_verification_are_no_damage(
    phones: Store, accountant: Accountant, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_and_admit(phones, accountant, make_request("a"), actor="tester")
    entries_of, rounds_of, written = Store.entries_of, Store.rounds_of, iter(("b", "c"))

    def then_another(self: Store, cohort: str) -> list[LedgerEntry]:
        found = list(entries_of(self, cohort))
        register_and_admit(phones, accountant, make_request(next(written)), actor="tester")
        return found

    def after_another(self: Store, cohort: str) -> object:
        register_and_admit(phones, accountant, make_request(next(written)), actor="tester")
        return rounds_of(self, cohort)

    monkeypatch.setattr(Store, "entries_of", then_another)
    monkeypatch.setattr(Store, "rounds_of", after_another)
    (found,) = verify(phones, accountant, "phones").cohorts
    assert (found.problems, found.head_sequence) == ((), 3)  # "b" is read with the tables, "c" came later


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_cohort_that_vanished_is_an_alarm(phones: Store, database_url: str, accountant: Accountant) -> None:
    verify_oldest(phones, accountant, enough=enough)
    _attack(
        database_url,
        "DELETE FROM heads WHERE cohort = 'phones'",
        "DELETE FROM entries WHERE cohort = 'phones'",
        "DELETE FROM cohorts WHERE name = 'phones'",
    )
    verify_oldest(phones, accountant, enough=enough)
    (alarm,) = health(phones).alarms
    assert alarm.startswith("BROKEN phones: ")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_database_that_is_gone_is_not_taken_for_a_damaged_one(
    phones: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise Unavailable("the database cannot be used")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "entries_of", gone)
        with pytest.raises(Unavailable):
            verify_oldest(phones, accountant, enough=enough)
    assert phones.verifications() == {}


@pytest.mark.slow
def test_whatever_needs_somebody_is_an_alarm(
    phones: Store, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health(phones).alarms == ()
    register(phones, make_request("stuck"), actor="tester")
    for _ in range(ATTEMPTS_MAX):
        phones.record_failure("stuck", "too large")
    register(phones, make_request("waits"), actor="tester")
    monkeypatch.setattr(upkeep, "WAITING_ALARM_SECONDS", -1.0)
    monkeypatch.setattr(upkeep, "VERIFIED_ALARM_SECONDS", -1.0)
    found = health(phones)
    assert (found.rounds_pending, found.rounds_stuck, found.cohorts_unverified) == (1, 1, 1)
    words = ["STUCK", "WAITING", "UNVERIFIED"]
    assert [alarm.split()[0] for alarm in found.alarms] == words
    assert found.alarms[0] == f"STUCK stuck after {ATTEMPTS_MAX} attempts: too large"
    retry(phones, "waits")  # changes nothing: it is not stuck
    retry(phones, "stuck")
    assert (health(phones).rounds_pending, health(phones).rounds_stuck) == (2, 0)


def _attack(database_url: str, *statements: str) -> None:
    """Change a SQLite file behind the back of the code, its triggers and its foreign keys."""
    file = f"file:{make_url(database_url).database}?mode=rw"  # never makes a file, as of PostgreSQL's name
    with closing(sqlite3.connect(file, uri=True)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement.replace("replace(body", "replace(CAST(body AS TEXT)"))
        connection.execute("UPDATE entries SET body = CAST(body AS BLOB)")
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_release_that_breaks_many_periods_is_one_alarm_of_one_cohort(
    store: Store, accountant: Accountant
) -> None:
    rolling = Window.from_text("rolling=7d,epsilon=1,delta=1e-9")
    for name in ("phones", "tablets"):
        open_as_usual(store, name, windows=[rolling], epsilon=None, delta=None)
    now = store.now().date()
    told: dict[str, Any] = {"reason": "a bug", "actor": "ada", "released": ReleaseTimes()}
    told |= {"round_id": "lost", "described": None, "collected_on": now}
    record_incident(store, accountant, "phones", **told)
    found = health(store)
    first, *others = (period.name for period in rolling.periods("phones", now, now))
    (alarm,) = found.alarms
    assert alarm.startswith(f"OVERSPENT {first}, {others[0]}, {others[1]} and 4 more of this cohort: ")
    assert (found.cohorts, found.cohorts_overspent, found.cohorts_frozen) == (2, 1, 0)
    known = {name: store.view(name).head_sequence for name in (first, *others)}
    assert (health(store, acknowledged=known).alarms, len(health(store).alarms)) == ((), 1)
    del known[others[-1]]
    assert health(store, acknowledged=known).alarms[0].startswith(f"OVERSPENT {others[-1]}: ")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_acknowledged_alarm_ends_and_comes_back_with_the_next_bad_entry(
    phones: Store, accountant: Accountant
) -> None:
    change_budget(phones, name="phones", epsilon=0.5, reason="less", actor="tester")
    register(phones, _large("a"), actor="tester")
    admit(phones, accountant, "a")
    assert Clerk(phones, accountant).incident("lost", None).overspent
    last = phones.view("phones").head_sequence
    for too_early in ({}, {"phones": last - 1}, {"other": last}, {"phones": last + 1}):
        (alarm,) = health(phones, acknowledged=too_early).alarms
        assert alarm.startswith("OVERSPENT phones: ")
    known = health(phones, acknowledged={"phones": last})
    assert (known.alarms, known.acknowledged, known.cohorts_overspent) == ((), ("OVERSPENT phones",), 1)
    register(phones, _large("b"), actor="tester")
    assert isinstance(admit(phones, accountant, "b"), Refused)  # makes nothing worse
    assert health(phones, acknowledged={"phones": last}).alarms == ()
    Clerk(phones, accountant).incident("another", None)
    (alarm,) = health(phones, acknowledged={"phones": last}).alarms
    assert alarm.startswith("OVERSPENT phones: ")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_database_that_takes_no_writes_is_an_alarm_until_it_does(phones: Store) -> None:
    assert health(phones).alarms == ()
    with phones.engine.connect() as connection:  # the pool keeps it for the next to come
        connection.exec_driver_sql("PRAGMA query_only = ON")
    (alarm,) = health(phones).alarms
    assert alarm.startswith(f"DISK the database cannot be used: {phones.engine.url.database}: ")
    assert "the file or its folder is read only (attempt to write a readonly database)" in alarm
    with phones.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = OFF")
    assert health(phones).alarms == ()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_database_that_was_made_read_only_is_an_alarm(phones: Store, database_url: str) -> None:
    url = make_url(database_url)
    server = str(url.set(drivername="postgresql").render_as_string(hide_password=False))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{url.database}" SET default_transaction_read_only = on'.encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with pytest.raises(Unavailable):
        phones.check()  # the connection that was cut
    (alarm,) = health(phones).alarms
    assert alarm.startswith("DISK ")
    assert "read-only transaction" in alarm


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_nearly_full_file_system_is_an_alarm(
    phones: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ScheduledCheckpoints(directory=tmp_path, every_seconds=300)
    sizes = {"total": 10 << 30, "used": 10 << 30, "free": 1 << 20}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(**sizes))
    assert health(phones, place).alarms[-1] == (
        f"DISK {tmp_path} has 1 MiB free, and less than 256 MiB is an alarm"
    )
    sizes.update(total=100 << 20, free=6 << 20)  # a small one, and a twentieth of it is free
    assert not any(alarm.startswith("DISK") for alarm in health(phones, place).alarms)


def _large(round_id: str) -> RoundRequest:
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.5)"), reports=100_000)
    return RoundRequest(round_id=round_id, cohort="phones", round=shuffled)
