"""Entries of different chains that changed places in the feed, and clocks that were set back honestly."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import open_cohort, record_incident, register_and_admit, settle
from shuffle_ledger.ledger.errors import LostRace
from shuffle_ledger.ledger.storage.clocks import READING_AGE_MAX_SECONDS, Clocks
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification import feed_order
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.attack import disarmed
from tests.ledger.test_clocks import HOUR, MINUTE, OPENED, sqlite_store, with_clock  # noqa: F401 - a fixture

MakeRequest = Callable[..., RoundRequest]
APART = 0.4  # seconds between entries of two chains; half of it is allowed


@pytest.fixture
def two(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a ledger of two cohorts, whose verification allows a fraction of a second."""
    monkeypatch.setattr(feed_order, "APPEND_SECONDS_MAX", APART / 4)
    for name in ("phones", "tablets"):
        open_cohort(store, name=name, actor="ada", **OPENED)
    return store


def place(store: Store, cohort: str, sequence: int) -> int:
    """Return the place of an entry in the feed."""
    where = "SELECT position FROM entries WHERE cohort = :cohort AND sequence = :sequence"
    with store.engine.connect() as connection:
        return int(connection.execute(text(where), {"cohort": cohort, "sequence": sequence}).scalar_one())


def move(store: Store, *moves: tuple[str, int, int]) -> None:
    """Give entries other places, by way of free places."""
    change = "UPDATE entries SET position = :to WHERE cohort = :cohort AND sequence = :sequence"
    with disarmed(store) as connection:
        for offset in (10**6, 0):
            for cohort, sequence, to in moves:
                connection.execute(text(change), {"to": to + offset, "cohort": cohort, "sequence": sequence})


def leak(store: Store, accountant: Accountant, make_request: MakeRequest) -> None:
    described = make_request().round
    record_incident(
        store, accountant, "phones", round_id="leak", described=described, reason="a bug", actor="eve"
    )


def verified(store: Store, accountant: Accountant) -> tuple[str, ...]:
    """Return what is wrong with the ledger as a whole; its chains hold."""
    report = verify(store, accountant)
    assert [each.problems for each in report.cohorts] == [()] * len(report.cohorts)
    assert report.ok is not bool(report.problems)
    return report.problems


@pytest.mark.parametrize("how", ["swapped", "into a gap"])
def test_an_incident_that_changed_places_with_another_chain_is_named(
    two: Store, accountant: Accountant, make_request: MakeRequest, how: str
) -> None:
    register_and_admit(two, accountant, make_request("p"), actor="ada")
    register_and_admit(two, accountant, make_request("t", cohort="tablets"), actor="ada")
    time.sleep(APART)
    leak(two, accountant, make_request)
    two.clocks = dataclasses.replace(two.clocks, difference_max_seconds=APART / 4)
    assert verified(two, accountant) == ()
    low, high = place(two, "tablets", 2), place(two, "phones", 3)
    if how == "swapped":
        move(two, ("tablets", 2, high), ("phones", 3, low))
    else:  # the hole that a transaction leaves which was rolled back
        move(two, ("tablets", 2, low + 1), ("phones", 3, low))
    (problem,) = verified(two, accountant)
    assert problem.startswith("cohort 'phones', entry 3: ")
    assert "before that of cohort 'tablets', entry 2," in problem


@pytest.mark.parametrize("back", [50 * MINUTE, 3 * HOUR, 365 * 24 * HOUR])
def test_a_clock_that_was_set_back_is_no_finding_and_hides_none(
    sqlite_store: Store,  # noqa: F811 - the fixture
    accountant: Accountant,
    make_request: MakeRequest,
    back: timedelta,
) -> None:
    store, ahead = sqlite_store, with_clock(sqlite_store)
    for name in ("tablets", "watches"):
        open_cohort(store, name=name, actor="ada", **OPENED)
    register_and_admit(store, accountant, make_request("w", cohort="watches"), actor="ada")
    ahead.append(back)  # the clock is wrong
    open_cohort(store, name="phones", actor="ada", **OPENED)
    register_and_admit(store, accountant, make_request("p"), actor="ada")
    ahead.append(timedelta())
    settle(store, accountant, "w", reports=900, actor="ada")
    if back > HOUR:
        register_and_admit(store, accountant, make_request("t", cohort="tablets"), actor="ada")
    ahead.append(back + HOUR)  # it is right, and has caught up
    assert verified(store, accountant) == ()
    leak(store, accountant, make_request)
    register_and_admit(store, accountant, make_request("w2", cohort="watches"), actor="ada")
    ahead.append(back + 4 * HOUR)
    register_and_admit(store, accountant, make_request("p2"), actor="ada")
    assert verified(store, accountant) == ()
    low, high = place(store, "watches", 4), place(store, "phones", 4)
    move(store, ("watches", 4, high), ("phones", 4, low))
    (problem,) = verified(store, accountant)
    assert problem.startswith("cohort 'phones', entry 4: ")


@pytest.mark.parametrize("shift", [timedelta(), 50 * MINUTE])
@pytest.mark.parametrize("is_of_this_machine", [False, True])
def test_a_cohort_that_was_read_long_ago_is_read_again_before_an_entry_follows(
    shift: timedelta, is_of_this_machine: bool
) -> None:
    read = datetime(2026, 1, 1, tzinfo=UTC)

    def check(seconds: float) -> None:
        now = read + timedelta(seconds=seconds)  # by the database's clock, from which ours may differ
        clock = Clocks(is_of_this_machine=is_of_this_machine, own=lambda: now + shift)
        clock.check(read, None, what="it", read_again=lambda: now)

    check(0.0)
    check(READING_AGE_MAX_SECONDS)
    with pytest.raises(LostRace, match="read 901 seconds ago"):
        check(READING_AGE_MAX_SECONDS + 1)
