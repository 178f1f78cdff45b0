"""Attacks the answer to a repeated request: no path may permit a release that nothing is charged for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    admit_together,
    freezing,
    quote,
    register,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import Admitted, RefusalReason, Refused, RoundRequest
from shuffle_ledger.workers import dispatch
from tests.ledger.desk import break_promise

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]


def freeze(store: Store, _accountant: Accountant, _round_id: str) -> None:
    view = store.view("phones")
    store.append(view, freezing.freezing(store, view, None, {"reason": "disk"}, actor="tester"))


def overspend(store: Store, accountant: Accountant, _round_id: str) -> None:
    break_promise(store, accountant, "phones")


def voided(store: Store, accountant: Accountant, round_id: str) -> None:
    void(store, accountant, round_id, reason="the job failed", actor="tester")


def settled(store: Store, accountant: Accountant, round_id: str) -> None:
    settle(store, accountant, round_id, reports=1_000, actor="tester")


@pytest.mark.parametrize(
    ("happens", "state", "status"),
    [
        (voided, "voided", "open"),
        (settled, "settled", "open"),
        (freeze, "admitted", "frozen"),
        (overspend, "admitted", "overspent"),
    ],
)
def test_every_repetition_says_how_the_round_stands(
    phones: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    happens: Callable[[Store, Accountant, str], None],
    state: str,
    status: str,
) -> None:
    request = make_request("week1")
    first, known = register_and_admit(phones, accountant, request, actor="tester")
    assert isinstance(first, Admitted)
    assert not known
    assert register(phones, request, actor="tester") == first
    assert quote(phones, accountant, request).would_be == "admitted"
    happens(phones, accountant, "week1")
    before = phones.view("phones").head_sequence
    for repeat in (
        lambda: register(phones, request, actor="tester"),
        lambda: register_and_admit(phones, accountant, request, actor="tester"),
        lambda: admit(phones, accountant, "week1"),
        lambda: admit(phones, accountant, "week1", redelivered=True),
        lambda: quote(phones, accountant, request),
        lambda: dispatch.decide(phones, accountant, Settings(broker_url=None), "week1"),
        lambda: dispatch.decide(phones, accountant, Settings(broker_url="memory://"), "week1"),
    ):
        with pytest.raises(NotCollectable) as found:
            repeat()
        assert (found.value.round_id, found.value.state, found.value.cohort_status) == (
            "week1",
            state,
            status,
        )
    assert admit_at_once(phones, accountant, request, actor="tester") is None
    assert admit_together(phones, accountant, [request], actor="tester") == []
    assert phones.view("phones").head_sequence == before


def test_a_refusal_stands_whatever_happens_to_the_cohort(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    request = make_request("too much", epsilon0=12.0)
    refused, _ = register_and_admit(phones, accountant, request, actor="tester")
    assert isinstance(refused, Refused)
    freeze(phones, accountant, "")
    assert register(phones, request, actor="tester") == refused
    asked = quote(phones, accountant, request)
    assert (asked.would_be, asked.reason) == ("refused", RefusalReason.BUDGET_EXCEEDED)


def admitted_and_voided(url: str, accountant: Accountant, round_id: str) -> None:
    with Store.connect(url) as other:
        admit(other, accountant, round_id)
        voided(other, accountant, round_id)


def test_a_lost_race_against_an_admission_and_a_void_admits_nothing(
    phones: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(phones, make_request("week1"), actor="tester")
    append, raced = phones.append_to_all, False

    def beaten(views: Sequence[CohortView], drafts: Sequence[EntryDraft]) -> list[LedgerEntry]:
        nonlocal raced
        if not raced:
            raced = True
            admitted_and_voided(database_url, accountant, "week1")
        return append(views, drafts)

    monkeypatch.setattr(phones, "append_to_all", beaten)
    with pytest.raises(NotCollectable, match="voided"):
        admit(phones, accountant, "week1")
    assert phones.round("week1").attempts == 0


def test_a_client_that_waits_for_workers_learns_that_the_round_was_voided(
    phones: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(phones, make_request("week1"), actor="tester")

    def published(_app: object, round_id: str) -> bool:
        admitted_and_voided(database_url, accountant, round_id)
        return True

    monkeypatch.setattr(dispatch, "publish", published)
    with pytest.raises(NotCollectable, match="voided"):
        dispatch.decide(phones, accountant, Settings(broker_url="memory://"), "week1")


def test_what_breaks_a_promise_is_logged_once_and_stays_an_alarm(
    phones: Store, accountant: Accountant, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    register_and_admit(phones, accountant, make_request("week1"), actor="tester")
    register_and_admit(phones, accountant, make_request("week2"), actor="tester")
    assert health(phones).alarms == ()
    for round_id in ("week1", "week2"):
        settle(phones, accountant, round_id, reports=1, actor="tester")
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in told] == ["cohort phones is OVERSPENT since entry 4"]
    found = health(phones)
    assert (found.cohorts_overspent, found.alarms[0].split(":")[0]) == (1, "OVERSPENT phones")
    freeze(phones, accountant, "")
    found = health(phones)
    assert (found.cohorts_overspent, found.cohorts_frozen) == (0, 1)
    assert found.alarms[0].startswith("FROZEN phones")
