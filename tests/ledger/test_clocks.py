"""A clock that is wrong, or was: nothing is written, error and alarm say so, and the way out works."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import (
    admit,
    open_cohort,
    record_incident,
    register,
    register_and_admit,
    set_quota,
    settle,
)
from shuffle_ledger.ledger.errors import ClockOff, LostRace
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Pending, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify

DAY = timedelta(days=1)
YEAR = 365 * DAY
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
OPENED: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}
WINDOW = Window(unit="week", epsilon=0.9, delta=1e-10)

MakeRequest = Callable[..., RoundRequest]


def with_clock(store: Store) -> list[timedelta]:
    """Return by how much SQLite's clock is ahead of the true one: the last of these."""
    ahead = [timedelta()]

    def clock(form: str, _moment: str) -> str:
        return (datetime.now(UTC) + ahead[-1]).strftime(form.replace("%f", "%S.%f"))[:-3]

    def put_clock(connection: Any, *_: object) -> None:
        connection.create_function("strftime", 2, clock)

    event.listen(store.engine, "checkout", put_clock)
    return ahead


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Any:
    with Store.connect(sqlite_url) as opened:
        yield opened


def entries_in(store: Store) -> int:
    return sum(head.sequence for head in store.heads())


def clock_alarms(store: Store) -> list[str]:
    return [alarm for alarm in health(store).alarms if alarm.startswith("CLOCK ")]


def attempts(store: Store, accountant: Accountant, make_request: MakeRequest) -> list[Callable[[], object]]:
    """Return every kind of write about the cohort "phones", which has a window and the open round "first"."""
    leak: dict[str, Any] = {"described": make_request().round, "reason": "a bug", "actor": "ada"}
    leak["collected_on"] = datetime.now(UTC).date()
    return [
        lambda: register_and_admit(store, accountant, make_request(), actor="ada"),
        lambda: register_and_admit(store, accountant, make_request(epsilon0=1.7), actor="ada"),
        lambda: settle(store, accountant, "first", reports=999, actor="ada"),
        lambda: set_quota(store, "phones", team="t", epsilon=0.5, reason="agreed", actor="ada"),
        lambda: record_incident(store, accountant, "phones", round_id="leak", **leak),
    ]


@pytest.mark.slow
def test_an_entry_of_next_year_lets_nothing_be_written_until_then_and_everything_says_so(
    sqlite_store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    store, ahead = sqlite_store, with_clock(sqlite_store)
    open_cohort(store, name="phones", actor="ada", windows=(WINDOW,), **OPENED)
    open_cohort(store, name="tablets", actor="ada", **OPENED)
    ahead.append(YEAR)
    assert isinstance(register_and_admit(store, accountant, make_request("first"), actor="ada")[0], Admitted)
    assert clock_alarms(store) == []  # a clock that is far after the last entry is normal
    ahead.append(0 * DAY)
    before = entries_in(store)
    for attempt in attempts(store, accountant, make_request):
        with pytest.raises(
            ClockOff, match=r"about 365 days\) behind the last moment of cohort 'phones'.*CLOCK"
        ):
            attempt()
    assert entries_in(store) == before
    assert ["cohort 'phones'" in alarm for alarm in clock_alarms(store)] == [True, False]  # and its week
    report = verify(store, accountant)
    assert not report.ok
    (problem,) = next(each for each in report.cohorts if each.cohort == "phones").problems
    assert (problem.sequence, "moment to come" in problem.what) == (2, True)
    # Other cohorts go on, and so does this one with a larger bound, in the period of its last day.
    assert isinstance(
        register_and_admit(store, accountant, make_request(cohort="tablets"), actor="ada")[0], Admitted
    )
    store.clocks = dataclasses.replace(store.clocks, difference_max_seconds=366 * 86_400.0)
    answer = register_and_admit(store, accountant, make_request("second"), actor="ada")[0]
    assert isinstance(answer, Admitted)
    day = (datetime.now(UTC) + YEAR).date()
    assert answer.audience[1].cohort == f"phones@{day:%G-W%V}"
    assert verify(store, accountant).ok
    assert clock_alarms(store) == []


def test_a_registration_of_next_year_makes_no_entry_of_next_year(
    sqlite_store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    store, ahead = sqlite_store, with_clock(sqlite_store)
    open_cohort(store, name="phones", actor="ada", **OPENED)
    ahead.append(YEAR)
    assert isinstance(register(store, make_request("first"), actor="ada"), Pending)
    ahead.append(0 * DAY)
    with pytest.raises(ClockOff, match="phones"):
        admit(store, accountant, "first")
    assert (entries_in(store), store.round("first").attempts) == (1, 0)
    assert len(clock_alarms(store)) == 1


def test_a_cohort_that_was_idle_for_a_year_and_a_clock_that_steps_back_a_little_are_normal(
    sqlite_store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    store, ahead = sqlite_store, with_clock(sqlite_store)
    ahead.append(-YEAR)
    open_cohort(store, name="phones", actor="ada", **OPENED)
    ahead.append(HOUR - MINUTE)
    assert isinstance(register_and_admit(store, accountant, make_request(), actor="ada")[0], Admitted)
    ahead.append(0 * DAY)
    assert isinstance(register_and_admit(store, accountant, make_request(), actor="ada")[0], Admitted)
    assert clock_alarms(store) == []
    assert verify(store, accountant).ok


@pytest.mark.parametrize(
    ("off", "where"), [(2 * HOUR, "ahead of"), (-2 * HOUR, "behind"), (HOUR - MINUTE, None)]
)
def test_on_postgresql_the_clock_is_compared_with_that_of_the_process(
    new_postgresql_ledger: Callable[[], str],
    accountant: Accountant,
    make_request: MakeRequest,
    off: timedelta,
    where: str | None,
) -> None:
    with Store.connect(new_postgresql_ledger()) as store:
        open_cohort(store, name="phones", actor="ada", windows=(WINDOW,), **OPENED)
        assert isinstance(
            register_and_admit(store, accountant, make_request("first"), actor="ada")[0], Admitted
        )
        store.clocks = dataclasses.replace(store.clocks, own=lambda: datetime.now(UTC) - off)
        writes: list[Callable[[], object]] = [
            *attempts(store, accountant, make_request),
            lambda: open_cohort(store, name="new", actor="ada", **OPENED),
            lambda: register(store, make_request("pending"), actor="ada"),
        ]
        for write in writes:
            if where is None:
                write()
                continue
            with pytest.raises(ClockOff, match=rf"7,(200|199) seconds {where} this machine's"):
                write()
        assert len(clock_alarms(store)) == (where is not None)
        assert (entries_in(store) == 4) == (where is not None)  # two of the cohort, two of its week


def test_a_long_computation_does_not_look_like_a_clock_that_is_behind(
    new_postgresql_ledger: Callable[[], str], accountant: Accountant, make_request: MakeRequest
) -> None:
    with Store.connect(new_postgresql_ledger()) as store:
        open_cohort(store, name="phones", actor="ada", **OPENED)
        store.clocks = dataclasses.replace(store.clocks, difference_max_seconds=300.0)
        now = store.now()
        store.check_clock(now - 10 * MINUTE, now - HOUR, what="a cohort that was read ten minutes ago")
        with pytest.raises(LostRace, match=r"read 10,\d+ seconds ago"):
            store.check_clock(now - 3 * HOUR, now - 4 * HOUR, what="a cohort that was read three hours ago")


def test_the_bound_is_a_setting(sqlite_url: str) -> None:
    with Store.of(Settings(database_url=sqlite_url, clock_difference_max_seconds=5)) as store:
        open_cohort(store, name="phones", actor="ada", **OPENED)
        with pytest.raises(ClockOff, match=r"10 seconds behind.*at most 5 seconds"):
            store.check_clock(store.now() - timedelta(seconds=10), store.now(), what="a cohort")
    with engines.reading(store.engine) as connection:
        assert engines.database_time(connection).tzinfo is not None
