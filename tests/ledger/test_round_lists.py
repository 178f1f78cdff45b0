"""Lists of rounds say of each what its own record says."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.ledger.decisions import (
    register,
    round_record,
)
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.reports import RoundFilter, list_rounds, round_lists
from shuffle_ledger.ledger.reports.round_lists import without_audience
from shuffle_ledger.ledger.storage.store import Store
from tests.ledger.clerk import Clerk, krr

EVERY = ("admitted", "refused", "settled", "voided", "foreign", "incident", "pending")


@pytest.fixture
def filled(clerk: Clerk) -> Store:
    """Return a ledger with a round in each state, and one of another cohort."""
    clerk.open("phones", "others")
    small, large = krr(1_000, 0.1), krr(1_000, 20.0)
    clerk.ask(small, name="admitted", use_case="maps", on=date(2025, 1, 6))
    clerk.ask(large, name="refused")
    clerk.ask(small, name="settled")
    clerk.settle("settled", 1_000)
    clerk.ask(small, name="voided")
    clerk.void("voided")
    clerk.ask(small, "others", name="foreign")
    clerk.ask(large, name="incident")
    clerk.incident("incident", small)
    register(clerk.store, clerk.request(name="pending"), actor="tester")
    return clerk.store


def test_a_list_says_what_each_record_says(filled: Store) -> None:
    page = list_rounds(filled, RoundFilter())
    assert tuple(one.round_id for one in page.rounds) == EVERY
    assert page.after is None
    for one in page.rounds:
        record = round_record(filled, one.round_id)
        assert (one.state, one.cohort, one.round) == (
            record.state,
            record.request.cohort,
            record.request.round,
        )
        assert (one.collected_on, one.use_case) == (record.request.collected_on, record.request.use_case)
        assert (one.registered_by, one.registered_at) == (record.registered_by, record.registered_at)
        for name in ("reason", "message", "epsilon_requested_upper", "sequence"):
            assert getattr(one, name) == getattr(record.outcome, name, None), (one.round_id, name)
        assert (one.decided_at is None) == (record.outcome is None)


@pytest.mark.parametrize("state", ["admitted", "refused", "settled", "voided", "pending", "incident"])
def test_an_outcome_is_asked_for(filled: Store, state: Any) -> None:
    found = list_rounds(filled, RoundFilter(cohorts=("phones",), outcome=state)).rounds
    assert [one.round_id for one in found] == [state]


def test_pages_follow_each_other_and_hold_every_round_once(filled: Store) -> None:
    wanted, found, after = RoundFilter(cohorts=("phones",)), [], None
    for _ in range(4):
        page = list_rounds(filled, wanted, after=after, limit=2)
        found += [one.round_id for one in page.rounds]
        after = page.after
        if after is None:
            break
    assert found == ["admitted", "refused", "settled", "voided", "incident", "pending"]
    with pytest.raises(NotFound):
        list_rounds(filled, wanted, after="foreign")  # a cursor tells nothing of another cohort
    with pytest.raises(NotFound):
        list_rounds(filled, wanted, after="nothing")
    with pytest.raises(InvalidValue, match="after"):
        list_rounds(filled, wanted, after="a\0")  # which PostgreSQL takes in no text


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (RoundFilter(cohorts=("phones",), outcome="incident"), ["incident"]),
        (RoundFilter(cohorts=("others", "phones"), outcome="voided"), ["voided"]),
        (RoundFilter(since=datetime(2025, 1, 6, tzinfo=UTC), outcome="admitted"), ["admitted", "foreign"]),
        (RoundFilter(cohorts=("others",), outcome="refused"), []),
        (RoundFilter(cohorts=("others", "phones")), list(EVERY)),
        (RoundFilter(cohorts=()), []),
    ],
)
def test_pages_that_pass_over_rounds_lead_to_all_that_are_asked_for(
    filled: Store, monkeypatch: pytest.MonkeyPatch, wanted: RoundFilter, expected: list[str]
) -> None:
    monkeypatch.setattr(round_lists, "SCANNED_MAX", 2)
    found, after, pages = [], None, 0
    while pages == 0 or after is not None:
        page = list_rounds(filled, wanted, after=after, limit=1 if wanted.outcome is None else 5)
        found += [one.round_id for one in page.rounds]
        after, pages = page.after, pages + 1
    assert found == expected
    assert pages <= len(EVERY)


def test_a_time_of_registration_is_asked_for(filled: Store) -> None:
    moments = [one.registered_at for one in list_rounds(filled, RoundFilter()).rounds]
    found = list_rounds(filled, RoundFilter(since=moments[2])).rounds
    assert [one.registered_at for one in found] == [each for each in moments if each >= moments[2]]
    assert list_rounds(filled, RoundFilter(since=datetime.now(UTC) + timedelta(days=1))).rounds == ()


def test_filters_that_cannot_be_are_refused(store: Store) -> None:
    with pytest.raises(InvalidValue, match="outcome: got 'open', expected one of: pending, admitted"):
        RoundFilter(outcome="open")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"since: .*its zone"):
        RoundFilter(since=datetime(2025, 1, 6))  # noqa: DTZ001 - that is what is refused
    for limit in (0, 1001):
        with pytest.raises(InvalidValue, match="limit"):
            list_rounds(store, RoundFilter(), limit=limit)


MEMBERS = {"r0": "ab", "r1": "bc", "r2": "a", "told": "abc", "r4": "c", "r5": "bc"}


@pytest.fixture
def shared(clerk: Clerk) -> Store:
    """Return a ledger with rounds of one to three cohorts; one was released although it was refused."""
    clerk.open(*"abc")
    for round_id, members in MEMBERS.items():
        described = krr(1_000, 20.0 if round_id == "told" else 0.1)
        if round_id == "r5":
            register(clerk.store, clerk.request(described, *members, name=round_id), actor="tester")
        else:
            clerk.ask(described, *members, name=round_id)
    clerk.incident("told", None, "a")
    return clerk.store


@pytest.mark.parametrize("cohorts", [None, "a", "b", "c", "ac", "bc", "abc"])
def test_a_round_of_several_cohorts_is_listed_once_whatever_the_size_of_pages(
    shared: Store, cohorts: str | None
) -> None:
    states = dict.fromkeys(MEMBERS, "admitted") | {"told": "incident", "r5": "pending"}
    for outcome in (None, "admitted", "incident", "pending", "refused"):
        wanted = RoundFilter(cohorts=None if cohorts is None else tuple(cohorts), outcome=outcome)
        expected = [
            round_id
            for round_id, members in MEMBERS.items()
            if outcome in (None, states[round_id]) and set(members) & set(cohorts or members)
        ]
        for limit in range(1, len(MEMBERS) + 1):
            found: list[str] = []
            after: str | None = None
            for _ in range(len(MEMBERS) + 1):
                page = list_rounds(shared, wanted, after=after, limit=limit)
                found += [each.round_id for each in page.rounds]
                after = page.after
                if after is None:
                    break
            assert found == expected, (wanted, limit)


def test_a_reader_of_one_cohort_is_shown_no_name_of_another(shared: Store) -> None:
    (listed,) = (one for one in list_rounds(shared, RoundFilter()).rounds if one.round_id == "r1")
    chains = {"windows": ("b@2025-W02", "c@2025-W02"), "quotas": ("b@maps", "c@maps")}
    listed = dataclasses.replace(listed, **chains, message="c refused it")  # type: ignore[arg-type]  # of these two
    shown = without_audience(listed, lambda name: name.partition("@")[0] in "ac")
    assert (shown.cohort, shown.audience) == ("c", ())
    assert (shown.windows, shown.quotas) == (("c@2025-W02",), ("c@maps",))
    assert "c refused" not in str(shown.message)
