"""Rounds of several cohorts: admitted by all of them or by none, in one commit, and told to all of them."""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, select

from shuffle_ledger.ledger.decisions import admit, admit_at_once, register
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, LostRace, NotCollectable, NotFound
from shuffle_ledger.ledger.storage import tables
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Admitted, Pending, RefusalReason, RoundRequest
from tests.ledger.clerk import Clerk, krr

BOTH = ("phones", "tablets")
WAIT_SECONDS_MAX = 60
WRITING = re.compile(r"\s*(INSERT|UPDATE|WITH moves)")
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.mark.slow
@ON_SQLITE
def test_one_cohort_that_refuses_is_enough_and_leaves_no_trace_in_any_standing(clerk: Clerk) -> None:
    names = (*BOTH, "watches")
    clerk.open("phones", "watches", "twin")
    clerk.open("tablets", epsilon=0.05)
    before = {name: clerk.store.view(name).details["standing"] for name in names}
    answer = clerk.refusal(krr(1_000), *names)
    assert answer.reason is RefusalReason.REFUSED_ELSEWHERE
    (refusal,) = answer.refused_by
    assert (refusal.cohort, refusal.reason) == ("tablets", RefusalReason.BUDGET_EXCEEDED)
    assert refusal.epsilon_requested_upper is not None
    assert refusal.epsilon_requested_upper > refusal.epsilon_budget == 0.05
    for name, standing in before.items():
        view = clerk.store.view(name)
        assert (view.details["standing"], view.spent.rounds, view.held) == (standing, 0, {})
        own = view.details["reason"]
        assert (own == RefusalReason.REFUSED_ELSEWHERE) == (name != "tablets")
    # The next round is charged as the first one would be.
    assert clerk.admits(krr(100_000), "phones", "watches")
    assert clerk.admits(krr(100_000), "twin")
    standings = [clerk.store.view(name).details["standing"] for name in ("phones", "watches", "twin")]
    assert standings[0] == standings[1] == standings[2]
    clerk.check()


@ON_SQLITE
def test_sizes_are_those_of_all_cohorts_together(clerk: Clerk) -> None:
    clerk.open(*BOTH)
    for described in (krr(200_001), krr(1_000, sampled_from=200_001)):
        with pytest.raises(InvalidValue, match="population of its 2 cohorts"):
            clerk.ask(described, *BOTH)
    assert clerk.admits(krr(200_000, sampled_from=200_000), *BOTH)
    with pytest.raises(NotFound):
        clerk.ask(None, "phones", "watches")
    with pytest.raises(NotFound):
        register(clerk.store, clerk.request(None, "phones", "watches"), actor="ada")
    clerk.check()


@pytest.mark.slow
@ON_SQLITE
def test_it_is_closed_and_corrected_in_all_chains_by_the_rules_of_each(clerk: Clerk) -> None:
    clerk.open("phones")
    clerk.open("tablets", epsilon=0.2)
    for name in ("settled", "voided", "corrected"):
        assert clerk.admits(krr(50_000), *BOTH, name=name)
    before = [clerk.spent(name) for name in BOTH]
    voided = clerk.void("voided")
    assert [member.epsilon_spent_upper for member in voided.audience] < before
    assert clerk.void("voided") == voided
    settled = clerk.settle("settled", 1_000)
    assert settled.overspent
    assert [member.overspent for member in settled.audience] == [False, True]
    assert clerk.settle("settled", 1_000) == settled
    assert [clerk.status(name) for name in BOTH] == ["open", "overspent"]
    # New joint rounds are refused; what was admitted is corrected, closed and must not be collected.
    refused = clerk.refusal(None, *BOTH)
    assert [each.reason for each in refused.refused_by] == [RefusalReason.COHORT_OVERSPENT]
    with pytest.raises(NotCollectable, match="tablets"):
        clerk.ask(krr(50_000), *BOTH, name="corrected")
    corrected = clerk.correct("corrected", reports=40_000)
    assert [member.overspent for member in corrected.audience] == [False, True]
    clerk.settle("corrected", 40_000)
    kinds = ["opened", *["admitted"] * 3, "voided", "settled", "refused", "corrected", "settled"]
    assert [clerk.kinds(name) for name in BOTH] == [kinds, kinds]
    with pytest.raises(Conflict):
        clerk.settle("settled", 2_000)
    clerk.check()


def test_registered_first_and_decided_later_is_the_same(clerk: Clerk) -> None:
    clerk.open(*BOTH)
    request = clerk.request(krr(120_000), *BOTH, name="joint")
    for _ in range(2):
        assert isinstance(register(clerk.store, request, actor="ada"), Pending)
    assert [clerk.store.count_pending(name) for name in BOTH] == [1, 1]
    assert clerk.store.pending(limit=9) == ["joint"]
    assert clerk.store.waiting().pending == 1
    for cohort in BOTH:
        with pytest.raises(Conflict):
            register(clerk.store, clerk.request(None, cohort, name="joint"), actor="ada")
    # A round of one of them, asked for later, does not wait for it.
    assert clerk.admits(None, "tablets")
    assert [clerk.kinds(name) for name in BOTH] == [["opened"], ["opened", "admitted"]]
    quoted = clerk.quote(request)
    answer = admit(clerk.store, clerk.accountant, "joint")
    assert isinstance(answer, Admitted)
    assert quoted.would_be == "admitted"
    assert quoted.epsilon_requested_upper == answer.audience[1].epsilon_spent_upper  # the least is left there
    clerk.check()


def test_failures_are_counted_in_every_row(clerk: Clerk) -> None:
    clerk.open(*BOTH)
    register(clerk.store, clerk.request(None, *BOTH, name="joint"), actor="ada")
    for attempt in range(1, 6):
        assert clerk.store.record_failure("joint", "no") == attempt
    with clerk.store.engine.connect() as connection:
        assert set(connection.execute(select(tables.rounds.c.attempts)).scalars()) == {5}
    assert clerk.store.pending(limit=9) == []
    assert [stored.round_id for stored in clerk.store.stuck(limit=9)] == ["joint"]
    assert clerk.admits(None, "tablets")
    clerk.store.forget_failures("joint")
    assert clerk.store.pending(limit=9) == ["joint"]


@pytest.mark.parametrize(
    ("database_url", "after"),
    [*(("sqlite", place) for place in range(1, 9)), ("postgresql", 1), ("postgresql", 2)],
    indirect=["database_url"],
)
def test_what_fails_in_the_middle_writes_nothing(clerk: Clerk, after: int) -> None:
    """Whatever statement of the commit fails, of a decision, a settlement or a void: all of it or none."""
    clerk.open(*BOTH)
    for name in ("a", "b"):
        assert clerk.admits(None, *BOTH, name=name)
    heads = clerk.store.heads()
    doers: list[Callable[[], Any]] = [
        lambda: admit_at_once(
            clerk.store, clerk.accountant, clerk.request(None, *BOTH, name="c"), actor="ada"
        ),
        lambda: clerk.settle("a", 5_000),
        lambda: clerk.void("b"),
    ]

    class Dies(Exception):
        pass

    def die(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if WRITING.match(statement) and next(calls) == after:
            raise Dies

    for do in doers:
        calls = itertools.count(1)
        event.listen(clerk.store.engine, "before_cursor_execute", die)
        try:
            do()
        except Dies:
            assert clerk.store.heads() == heads
            assert [clerk.store.round_in(name, "a").closing_sequence for name in BOTH] == [None, None]
        finally:
            event.remove(clerk.store.engine, "before_cursor_execute", die)
        heads = clerk.store.heads()
        assert heads[0].sequence == heads[1].sequence
        clerk.check()


@ON_POSTGRESQL
@pytest.mark.slow
def test_crowds_on_the_last_sliver_across_chains(clerk: Clerk, database_url: str) -> None:
    """Rounds of overlapping audiences, closings among them: no deadlock, no overspending."""
    names = ("a", "b", "c", "d")
    clerk.open(*names, epsilon=0.12)
    audiences = [("a", "b", "c"), ("b", "c", "d"), ("a", "d"), ("c",), ("a", "b", "c", "d"), ("d",)]
    for audience in audiences:
        clerk.ask(krr(100_000), *audience)
    barrier = threading.Barrier(len(audiences))

    def work(place: int) -> int:
        admitted = 0
        with Store.connect(database_url) as own:
            other = Clerk(own, clerk.accountant)
            barrier.wait(WAIT_SECONDS_MAX)
            for number in range(25):
                name = f"{place}-{number}"
                if other.admits(krr(100_000), *audiences[place], name=name):
                    admitted += 1
                    if number % 4 == 1:
                        other.void(name)
                    elif number % 4 == 3:
                        other.settle(name, 90_000)
        return admitted

    with ThreadPoolExecutor(len(audiences)) as pool:
        admitted = list(pool.map(work, range(len(audiences)), timeout=WAIT_SECONDS_MAX * 4))
    assert sum(admitted) > 0
    for name in names:
        assert clerk.spent(name) <= 0.12
        assert EntryKind.REFUSED in clerk.kinds(name)
    clerk.check()


@ON_POSTGRESQL
def test_a_faster_writer_in_one_chain_is_noticed(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    clerk.open(*BOTH)
    clerk.ask(None, *BOTH, name="first")
    views = clerk.store.views(BOTH)
    drafts: list[Any] = []

    def instead(_views: Any, given: Any) -> Any:
        drafts.extend(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(clerk.store, "append_to_all", instead)
    with pytest.raises(KeyboardInterrupt):
        clerk.void("first")
    monkeypatch.undo()
    clerk.ask(None, "tablets")
    heads = clerk.store.heads()
    with pytest.raises(LostRace, match="moved on"):
        clerk.store.append_to_all(views, drafts)
    assert clerk.store.heads() == heads


@ON_SQLITE
def test_a_frozen_member_refuses_and_is_told_what_happened_all_the_same(clerk: Clerk) -> None:
    clerk.open(*BOTH)
    for name in ("a", "b"):
        assert clerk.admits(krr(50_000), *BOTH, name=name)
    clerk.freeze("tablets")
    refused = clerk.refusal(None, *BOTH)
    assert [each.reason for each in refused.refused_by] == [RefusalReason.COHORT_FROZEN]
    with pytest.raises(NotCollectable, match="frozen"):
        clerk.ask(krr(50_000), *BOTH, name="a")
    with pytest.raises(Conflict, match="tablets"):
        clerk.settle("a", 40_000)
    with pytest.raises(Conflict, match="tablets"):
        clerk.void("b")
    before = clerk.spent("phones")
    assert clerk.correct("a", reports=20_000).changed
    assert clerk.spent("phones") > before
    assert [clerk.kinds(name)[-1] for name in BOTH] == ["corrected", "corrected"]
    clerk.check()


@ON_SQLITE
def test_a_frozen_member_that_lost_its_entries_hides_nothing_from_the_others(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after entries of one chain were brought back from a copy, and those of another were not."""
    clerk.open(*BOTH)
    assert clerk.admits(krr(50_000), *BOTH, name="a")
    clerk.freeze("tablets", saved=False)
    found = clerk.store.round_in

    def lacking(cohort: str, round_id: str) -> Any:
        if cohort == "tablets":
            raise NotFound(f"cohort {cohort!r} has no round {round_id!r}")
        return found(cohort, round_id)

    monkeypatch.setattr(clerk.store, "round_in", lacking)
    before = clerk.spent("phones")
    corrected = clerk.correct("a", reports=20_000)
    assert (corrected.cohort, corrected.audience) == ("phones", ())
    assert clerk.spent("phones") > before
    assert [clerk.kinds(name)[-1] for name in BOTH] == ["corrected", "frozen"]
    monkeypatch.undo()
    clerk.check()


def test_an_audience_is_its_cohorts_in_order() -> None:
    request = RoundRequest(round_id="one", cohort="phones", round=krr())
    for wrong in (("phones",), ("tablets", "phones"), ("phones", "phones"), ("q", "tablets")):
        with pytest.raises(InvalidValue):
            dataclasses.replace(request, audience=wrong)
