"""Metrics of a large ledger: a bounded scrape, a bounded number of names, nothing read twice."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import date

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.api import figures
from shuffle_ledger.ledger.api.figures import LedgerFigures
from shuffle_ledger.ledger.decisions import open_cohort, register_and_admit
from shuffle_ledger.ledger.errors import Damaged, Unavailable
from shuffle_ledger.ledger.health import Health, health
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RefusalReason, Refused, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from tests.api.conftest import ROUND, Server

NAMES = ("a", "b", "c")


@pytest.fixture
def busy(server: Server) -> Server:
    """Return a server of three cohorts that used one, two and three rounds, one of them refused one."""
    for number, name in enumerate(NAMES, start=1):
        open_cohort(
            server.store,
            name=name,
            population=100_000,
            epsilon=1,
            delta=1e-6,
            policy="adaptive",
            actor="tester",
        )
        for each in range(number):
            assert server.register(f"{name}{each}", cohort=name).status_code == 201
    large = {"randomizer": "krr(k=2, epsilon0=9)", "reports": 2}
    assert server.register("large", cohort="b", **{**ROUND, **large}).status_code == 409
    return server


@pytest.mark.slow
def test_only_the_cohorts_that_used_most_are_named(busy: Server) -> None:
    found = LedgerFigures(busy.store, lambda: health(busy.store), worst_max=2).latest()
    assert found.worst is not None
    assert [use.cohort for use in found.worst] == ["c", "b"]
    budget = busy.ask("GET", "/v1/cohorts/c/budget").json()
    assert found.worst[0].epsilon_spent_upper == budget["epsilon_spent_upper"]
    assert (found.rounds_admitted, found.rounds_refused) == (6, 1)
    assert found.used_at_least == dict.fromkeys(figures.SHARES, 0)
    assert found.refused_by_reason == {"budget_exceeded": 1}
    assert found.health.cohorts == 5


def test_a_scrape_does_not_wait_for_slow_figures(store: Store) -> None:
    may_end, reads, ticks = threading.Event(), [], itertools.count()

    def slow() -> Health:
        reads.append(1)
        if len(reads) > 1:
            assert may_end.wait(60)
        return health(store)

    found = LedgerFigures(store, slow, worst_max=2, clock=lambda: 1000.0 * next(ticks))
    first = found.latest()
    began = time.monotonic()
    assert all(found.latest() is first for _ in range(3))
    assert time.monotonic() - began < 10
    assert len(reads) == 2  # one thread reads, however many scrapes there are
    may_end.set()
    deadline = time.monotonic() + 10
    while found.latest() is first and time.monotonic() < deadline:
        pass
    assert found.latest() is not first


def test_figures_that_were_read_a_moment_ago_are_not_read_again(store: Store) -> None:
    now, reads = 0.0, []

    def counted() -> Health:
        nonlocal now
        reads.append(1)
        now += 1.0  # it took a second
        return health(store)

    found = LedgerFigures(store, counted, worst_max=2, clock=lambda: now)
    found.latest()
    now += figures.STALE_TIMES - 0.5
    found.latest()
    assert len(reads) == 1
    now += 1.0
    found.latest()
    assert len(reads) == 2


def test_a_round_that_a_period_refused_counts_by_the_reason_of_the_period(store: Store) -> None:
    week = Window.from_text("rolling=7d,epsilon=0.01,delta=1e-9")
    open_cohort(
        store,
        name="windowed",
        population=10**6,
        epsilon=None,
        delta=None,
        policy="adaptive",
        windows=[week],
        actor="tester",
    )
    large = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=3)"), reports=1000)
    request = RoundRequest(round_id="a", cohort="windowed", round=large)
    answer, _ = register_and_admit(store, Accountant(), request, actor="tester")
    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.REFUSED_ELSEWHERE
    read = LedgerFigures(store, lambda: health(store), worst_max=3)
    assert read.latest().refused_by_reason == {"unbounded_loss": 1}
    read.close()


def test_a_database_that_is_gone_is_said_and_not_remembered(store: Store) -> None:
    gone = [True]

    def asked() -> Health:
        if gone:
            raise Unavailable("the database cannot be used")
        return health(store)

    found = LedgerFigures(store, asked, worst_max=2)
    with pytest.raises(Unavailable):
        found.latest()
    gone.clear()
    assert found.latest().health.cohorts == 2


@pytest.mark.slow
def test_figures_are_incomplete_until_every_refusal_was_read(
    busy: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "REFUSALS_AT_ONCE", 0)
    monkeypatch.setattr(figures, "STALE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(figures, "WAIT_SECONDS", 60.0)
    scrape = busy.ask("GET", "/v1/metrics")
    assert scrape.status_code == 200
    assert "shuffle_ledger_rounds_admitted_total 6.0" in scrape.text
    assert "shuffle_ledger_figures_complete 0.0" in scrape.text
    assert "shuffle_ledger_rounds_refused_total{" not in scrape.text
    assert 'shuffle_ledger_epsilon_spent_upper{cohort="c"}' in scrape.text
    assert 'shuffle_ledger_cohorts_used_at_least{share="0.5"}' in scrape.text
    monkeypatch.setattr(figures, "REFUSALS_AT_ONCE", 100)
    scrape = busy.ask("GET", "/v1/metrics")
    assert "shuffle_ledger_figures_complete 1.0" in scrape.text
    assert 'shuffle_ledger_rounds_refused_total{reason="budget_exceeded"} 1.0' in scrape.text


def test_a_first_scrape_that_has_nothing_to_tell_yet_is_a_503(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(figures, "UNAVAILABLE_SECONDS", 0.01)
    monkeypatch.setattr(figures, "round_counts", lambda _store, **_: may_end.wait(60))
    scrape = server.ask("GET", "/v1/metrics")
    may_end.set()
    assert scrape.status_code == 503
    assert "are being read" in scrape.json()["detail"]


def test_a_damaged_body_leaves_the_alarms(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_store: Store, _day: date, *, limit: int) -> object:
        raise Damaged("the body of its last entry has wrong fields")

    monkeypatch.setattr(figures, "most_used", damaged)
    found = LedgerFigures(store, lambda: health(store), worst_max=2).latest()
    assert (found.is_complete, found.worst, found.health.cohorts) == (False, None, 2)
