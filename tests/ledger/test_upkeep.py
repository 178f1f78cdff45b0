"""Scheduled verification: findings are kept, cohorts take turns, and a busy database is not a finding."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import health as upkeep
from shuffle_ledger.ledger.decisions import admit, open_cohort, register
from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.health import health, retry, verify_oldest
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest

MakeRequest = Callable[..., RoundRequest]


def enough() -> bool:
    return True


def cohorts(store: Store, *names: str) -> None:
    for name in names:
        open_cohort(
            store,
            name=name,
            population=1_000_000,
            epsilon=1.0,
            delta=1e-9,
            policy="fixed",
            actor="tester",
        )


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


def test_a_database_that_is_gone_is_not_taken_for_a_damaged_one(
    phones: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise Unavailable("the database cannot be used")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "entries_of", gone)
        with pytest.raises(Unavailable):
            verify_oldest(phones, accountant, enough=enough)
    assert phones.verifications() == {}


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
    with closing(sqlite3.connect(str(make_url(database_url).database))) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement.replace("replace(body", "replace(CAST(body AS TEXT)"))
        connection.execute("UPDATE entries SET body = CAST(body AS BLOB)")
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()
