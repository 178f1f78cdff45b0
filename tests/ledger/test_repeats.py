"""Attacks the answer to a repeated request: no path may permit a release that nothing is charged for."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    admit_together,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.values.requests import Admitted
from shuffle_ledger.workers import dispatch
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk

database_url = sqlite_url  # the rules are the same in every database


@pytest.mark.parametrize(
    ("happens", "state", "status"),
    [
        (lambda clerk: clerk.void("week1"), "voided", "open"),
        (lambda clerk: clerk.settle("week1", 10_000), "settled", "open"),
        (lambda clerk: clerk.freeze(), "admitted", "frozen"),
        (lambda clerk: clerk.incident("lost", None), "admitted", "overspent"),
    ],
)
def test_every_repetition_says_how_the_round_stands(
    clerk: Clerk, happens: Callable[[Clerk], object], state: str, status: str
) -> None:
    clerk.open()
    parts, request = (clerk.store, clerk.accountant), clerk.request(name="week1")
    first, known = register_and_admit(*parts, request, actor="tester")
    assert isinstance(first, Admitted)
    assert not known
    assert register(clerk.store, request, actor="tester") == first
    assert clerk.quote(request).would_be == "admitted"
    happens(clerk)
    before = clerk.store.view("phones").head_sequence
    for repeat in (
        lambda: register(clerk.store, request, actor="tester"),
        lambda: register_and_admit(*parts, request, actor="tester"),
        lambda: admit(*parts, "week1"),
        lambda: admit(*parts, "week1", redelivered=True),
        lambda: clerk.quote(request),
        lambda: dispatch.decide(*parts, Settings(broker_url=None), "week1"),
        lambda: dispatch.decide(*parts, Settings(broker_url="memory://"), "week1"),
    ):
        with pytest.raises(NotCollectable) as found:
            repeat()
        said = found.value
        assert (said.round_id, said.state, said.cohort_status) == ("week1", state, status)
    assert admit_at_once(*parts, request, actor="tester") is None
    assert admit_together(*parts, [request], actor="tester") == []
    assert clerk.store.view("phones").head_sequence == before


def test_what_breaks_a_promise_is_logged_once_and_stays_an_alarm(
    clerk: Clerk, caplog: pytest.LogCaptureFixture
) -> None:
    clerk.open()
    names = [clerk.ask().round_id for _ in range(2)]
    assert health(clerk.store).alarms == ()
    for name in names:
        clerk.settle(name, 1)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == ["cohort phones is OVERSPENT since entry 4"]
    found = health(clerk.store)
    assert (found.cohorts_overspent, found.alarms[0].split(":")[0]) == (1, "OVERSPENT phones")
    clerk.freeze()
    found = health(clerk.store)
    assert (found.cohorts_overspent, found.cohorts_frozen) == (0, 1)
    assert found.alarms[0].startswith("FROZEN phones")
