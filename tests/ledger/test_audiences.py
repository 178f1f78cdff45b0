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

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    change_budget,
    freezing,
    quote,
    register,
    register_and_admit,
    round_record,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, LostRace, NotCollectable, NotFound
from shuffle_ledger.ledger.storage import tables
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Outcome,
    Pending,
    RefusalReason,
    Refused,
    RoundRequest,
)
from tests.ledger.desk import AnyDesk, total_in

POPULATION = 100_000
BOTH = ("phones", "tablets")
WAIT_SECONDS_MAX = 60
WRITING = re.compile(r"\s*(INSERT|UPDATE|WITH moves)")


def krr(reports: int = 10_000, **changes: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=reports, **changes)


class Desk(AnyDesk):
    """A ledger, and short words for what is done to it."""

    def open(self, *names: str, **changes: Any) -> None:
        for name in names:
            super().open(name, **{"population": POPULATION, **changes})

    def request(self, audience: tuple[str, ...], described: ShuffledRound, name: str = "") -> RoundRequest:
        return RoundRequest(
            round_id=name or self.new_name(),
            cohort=audience[0],
            audience=audience if len(audience) > 1 else (),
            round=described,
        )

    def ask(
        self, audience: tuple[str, ...], described: ShuffledRound | None = None, name: str = ""
    ) -> Outcome:
        request = self.request(audience, described or krr(), name)
        return self.decide(request)

    def kinds(self, *names: str) -> list[list[str]]:
        return [[entry.kind for entry in self.store.entries_of(name)][1:] for name in names]

    def spent(self, name: str) -> float:
        return self.store.view(name).spent.epsilon_upper


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def test_every_chain_gets_an_entry_with_its_own_numbers(desk: Desk) -> None:
    desk.open("phones", epsilon=1.0)
    desk.open("tablets", epsilon=2.0, delta=1e-9)
    answer = desk.ask(BOTH, krr(150_000), name="joint")
    assert isinstance(answer, Admitted)
    assert [member.cohort for member in answer.audience] == list(BOTH)
    bodies = [desk.store.entry(name, 2).content() for name in BOTH]
    requests = [body.details["request"] for body in bodies]
    assert requests[0] == requests[1]
    assert (requests[0]["cohort"], requests[0]["audience"]) == ("phones", ["phones", "tablets"])
    assert requests[0]["round"]["reports"] == 150_000  # one number for all, more than one cohort has users
    spent = [member.epsilon_spent_upper for member in answer.audience]
    assert spent == [desk.spent(name) for name in BOTH]
    for name, twin, changes in (("phones", "p", {}), ("tablets", "t", {"epsilon": 2.0, "delta": 1e-9})):
        desk.open(twin, **{"population": 2 * POPULATION, **changes})
        desk.ask((twin,), krr(150_000))
        assert desk.spent(twin) == desk.spent(name)
    desk.check()


def test_a_cohort_alone_keeps_its_bytes(desk: Desk) -> None:
    desk.open("phones")
    desk.ask(("phones",), name="one")
    opened, decided = (desk.store.entry("phones", number).content().details for number in (1, 2))
    assert set(opened) == {"population", "policy", "rules", "limits", "standing"}
    assert set(decided["request"]) == {
        "version", "round_id", "cohort", "round", "collected_on", "use_case",
    }  # fmt: skip
    request = RoundRequest(round_id="one", cohort="phones", round=krr())
    assert RoundRequest.from_bytes(request.to_bytes()) == request
    joint = dataclasses.replace(request, audience=BOTH)
    assert RoundRequest.from_bytes(joint.to_bytes()) == joint
    for wrong in (("phones",), ("tablets", "phones"), ("phones", "phones"), ("q", "tablets")):
        with pytest.raises(InvalidValue):
            dataclasses.replace(request, audience=wrong)


@pytest.mark.slow
def test_one_cohort_that_refuses_is_enough_and_leaves_no_trace_in_any_standing(desk: Desk) -> None:
    desk.open("phones")
    desk.open("tablets", epsilon=0.05)
    desk.open("watches")
    before = {name: desk.store.view(name).details["standing"] for name in (*BOTH, "watches")}
    answer = desk.ask((*BOTH, "watches"), krr(1_000))
    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.REFUSED_ELSEWHERE
    assert [each.cohort for each in answer.refused_by] == ["tablets"]
    refusal = answer.refused_by[0]
    assert refusal.reason is RefusalReason.BUDGET_EXCEEDED
    assert refusal.epsilon_requested_upper is not None
    assert refusal.epsilon_requested_upper > refusal.epsilon_budget == 0.05
    for name, standing in before.items():
        view = desk.store.view(name)
        assert (view.details["standing"], view.spent.rounds, view.held) == (standing, 0, {})
        own = view.details["reason"]
        assert (own == RefusalReason.REFUSED_ELSEWHERE) == (name != "tablets")
    # The next round is charged as the first one would be.
    assert isinstance(desk.ask(("phones", "watches"), krr(100_000)), Admitted)
    desk.open("twin")
    desk.ask(("twin",), krr(100_000))
    standings = [desk.store.view(name).details["standing"] for name in ("phones", "watches", "twin")]
    assert standings[0] == standings[1] == standings[2]
    desk.check()


@pytest.mark.slow
def test_policies_may_be_mixed(desk: Desk) -> None:
    slot = krr(20_000)
    desk.open("phones")
    desk.open("plans", policy="plan", plan={slot: 1})
    assert isinstance(desk.ask(("phones", "plans"), krr(20_000)), Admitted)
    held = [desk.store.view(name).held for name in ("phones", "plans")]
    assert all(sum(kinds.values()) == 1 for kinds in held)
    refused = desk.ask(("phones", "plans"), krr(20_000))
    assert isinstance(refused, Refused)
    assert [each.reason for each in refused.refused_by] == [RefusalReason.NO_FREE_SLOT]
    # A plan whose partner refuses keeps its slot.
    desk.open("small", epsilon=0.01)
    desk.open("spare", policy="plan", plan={slot: 1})
    assert isinstance(desk.ask(("small", "spare"), krr(20_000)), Refused)
    assert total_in(desk.store, "spare").claims == (0,)
    desk.check()


def test_sizes_are_those_of_all_cohorts_together(desk: Desk) -> None:
    desk.open(*BOTH)
    with pytest.raises(InvalidValue, match="population of its 2 cohorts"):
        desk.ask(BOTH, krr(200_001))
    with pytest.raises(InvalidValue, match="population of its 2 cohorts"):
        desk.ask(BOTH, krr(1_000, sampled_from=200_001))
    assert isinstance(desk.ask(BOTH, krr(200_000, sampled_from=200_000)), Admitted)
    with pytest.raises(NotFound):
        desk.ask(("phones", "watches"))
    with pytest.raises(NotFound):
        register(desk.store, desk.request(("phones", "watches"), krr()), actor="ada")
    desk.check()


@pytest.mark.slow
def test_it_is_closed_and_corrected_in_all_chains_by_the_rules_of_each(desk: Desk) -> None:
    desk.open("phones")
    desk.open("tablets", epsilon=0.2)
    for name in ("settled", "voided", "corrected"):
        assert isinstance(desk.ask(BOTH, krr(50_000), name=name), Admitted)
    before = [desk.spent(name) for name in BOTH]
    voided = desk.void("voided")
    assert [member.epsilon_spent_upper for member in voided.audience] < before
    assert desk.void("voided") == voided
    settled = desk.settle("settled", 1_000)
    assert settled.overspent
    assert [member.overspent for member in settled.audience] == [False, True]
    assert desk.settle("settled", 1_000) == settled
    assert [desk.store.cohort(name).status for name in BOTH] == ["open", "overspent"]
    # New joint rounds are refused; what was admitted is corrected, closed and must not be collected.
    refused = desk.ask(BOTH)
    assert isinstance(refused, Refused)
    assert [each.reason for each in refused.refused_by] == [RefusalReason.COHORT_OVERSPENT]
    with pytest.raises(NotCollectable, match="tablets"):
        desk.ask(BOTH, krr(50_000), name="corrected")
    told = desk.correct("corrected", reports=40_000)
    assert [member.overspent for member in told.audience] == [False, True]
    desk.settle("corrected", 40_000)
    kinds = ["admitted"] * 3 + ["voided", "settled", "refused", "corrected", "settled"]
    assert desk.kinds(*BOTH) == [kinds, kinds]
    with pytest.raises(Conflict):
        desk.settle("settled", 2_000)
    desk.check()


@pytest.mark.slow
def test_a_release_after_a_refusal_is_recorded_in_all_chains(desk: Desk) -> None:
    desk.open("phones")
    desk.open("tablets", epsilon=0.05)
    assert isinstance(desk.ask(BOTH, krr(5_000), name="joint"), Refused)
    released = {"after": desk.store.now()}

    def told(cohort: str, reason: str = "a script") -> Any:
        return desk.incident("joint", krr(5_000), cohort, reason=reason, **released)

    incident = told("tablets")
    assert [member.overspent for member in incident.audience] == [False, True]
    assert told("phones") == incident
    assert desk.kinds(*BOTH) == [["refused", "incident"]] * 2
    assert round_record(desk.store, "joint").state == "incident"
    desk.open("watches")
    with pytest.raises(Conflict):
        told("watches")
    desk.check()


def test_registered_first_and_decided_later_is_the_same(desk: Desk) -> None:
    desk.open(*BOTH)
    request = desk.request(BOTH, krr(120_000), name="joint")
    assert isinstance(register(desk.store, request, actor="ada"), Pending)
    assert isinstance(register(desk.store, request, actor="ada"), Pending)
    for name in BOTH:
        assert desk.store.count_pending(name) == 1
    assert desk.store.pending(limit=9) == ["joint"]
    assert desk.store.waiting().pending == 1
    with pytest.raises(Conflict):
        register(desk.store, dataclasses.replace(request, audience=(), round=krr()), actor="ada")
    with pytest.raises(Conflict):
        register(desk.store, RoundRequest(round_id="joint", cohort="tablets", round=krr()), actor="ada")
    # A round of one of them, asked for later, does not wait for it.
    assert isinstance(desk.ask(("tablets",), name="later"), Admitted)
    assert desk.kinds(*BOTH) == [[], ["admitted"]]
    quoted = quote(desk.store, desk.accountant, request)
    answer = admit(desk.store, desk.accountant, "joint")
    assert isinstance(answer, Admitted)
    assert quoted.would_be == "admitted"
    assert quoted.epsilon_requested_upper == answer.audience[1].epsilon_spent_upper  # the least is left there
    desk.check()


def test_failures_are_counted_in_every_row(desk: Desk) -> None:
    desk.open(*BOTH)
    register(desk.store, desk.request(BOTH, krr(), name="joint"), actor="ada")
    for attempt in range(1, 6):
        assert desk.store.record_failure("joint", "no") == attempt
    with desk.store.engine.connect() as connection:
        assert set(connection.execute(select(tables.rounds.c.attempts)).scalars()) == {5}
    assert desk.store.pending(limit=9) == []
    assert [stored.round_id for stored in desk.store.stuck(limit=9)] == ["joint"]
    assert isinstance(desk.ask(("tablets",)), Admitted)
    desk.store.forget_failures("joint")
    assert desk.store.pending(limit=9) == ["joint"]


def test_a_quote_names_all_who_would_refuse(desk: Desk) -> None:
    desk.open("phones", "watches")
    desk.open("tablets", epsilon=0.05)
    desk.open("tvs", epsilon=0.04)
    quoted = quote(
        desk.store, desk.accountant, desk.request(("phones", "tablets", "tvs", "watches"), krr(1_000))
    )
    assert (quoted.would_be, [each.cohort for each in quoted.refused_by]) == ("refused", ["tablets", "tvs"])
    assert desk.kinds("phones", "tablets", "tvs", "watches") == [[]] * 4


@pytest.mark.parametrize("after", range(1, 9))
def test_what_fails_in_the_middle_writes_nothing(desk: Desk, after: int) -> None:
    """Whatever statement of the commit fails, of a decision, a settlement or a void: all of it or none."""
    desk.open(*BOTH)
    for name in ("a", "b"):
        assert isinstance(desk.ask(BOTH, name=name), Admitted)
    heads = desk.store.heads()
    doers: list[Callable[[], Any]] = [
        lambda: admit_at_once(desk.store, desk.accountant, desk.request(BOTH, krr(), "c"), actor="ada"),
        lambda: desk.settle("a", 5_000),
        lambda: desk.void("b"),
    ]

    class Dies(Exception):
        pass

    def die(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if WRITING.match(statement) and next(calls) == after:
            raise Dies

    for do in doers:
        calls = itertools.count(1)
        event.listen(desk.store.engine, "before_cursor_execute", die)
        try:
            do()
        except Dies:
            assert desk.store.heads() == heads
            assert [desk.store.round_in(name, "a").closing_sequence for name in BOTH] == [None, None]
        finally:
            event.remove(desk.store.engine, "before_cursor_execute", die)
        heads = desk.store.heads()
        assert heads[0].sequence == heads[1].sequence
        desk.check()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.slow
def test_crowds_on_the_last_sliver_across_chains(desk: Desk, database_url: str) -> None:
    """Rounds of overlapping audiences, closings among them: no deadlock, no overspending."""
    names = ("a", "b", "c", "d")
    for name in names:
        desk.open(name, epsilon=0.12)
    audiences = [("a", "b", "c"), ("b", "c", "d"), ("a", "d"), ("c",), ("a", "b", "c", "d"), ("d",)]
    for audience in audiences:
        desk.ask(audience, krr(100_000))
    barrier = threading.Barrier(len(audiences))

    def work(place: int) -> int:
        admitted = 0
        with Store.connect(database_url) as own:
            barrier.wait(WAIT_SECONDS_MAX)
            for number in range(25):
                request = RoundRequest(
                    round_id=f"{place}-{number}",
                    cohort=audiences[place][0],
                    audience=audiences[place] if len(audiences[place]) > 1 else (),
                    round=krr(100_000),
                )
                outcome = register_and_admit(own, desk.accountant, request, actor="ada")[0]
                if isinstance(outcome, Admitted):
                    admitted += 1
                    if number % 4 == 1:
                        void(own, desk.accountant, request.round_id, reason="cancelled", actor="ada")
                    elif number % 4 == 3:
                        settle(own, desk.accountant, request.round_id, reports=90_000, actor="ada")
        return admitted

    with ThreadPoolExecutor(len(audiences)) as pool:
        admitted = list(pool.map(work, range(len(audiences)), timeout=WAIT_SECONDS_MAX * 4))
    assert sum(admitted) > 0
    for name in names:
        assert desk.spent(name) <= 0.12
        assert EntryKind.REFUSED in {entry.kind for entry in desk.store.entries_of(name)}
    desk.check()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_faster_writer_in_one_chain_is_noticed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open(*BOTH)
    desk.ask(BOTH, name="first")
    views = desk.store.views(BOTH)
    drafts: list[Any] = []

    def instead(_views: Any, given: Any) -> Any:
        drafts.extend(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(desk.store, "append_to_all", instead)
    with pytest.raises(KeyboardInterrupt):
        desk.void("first")
    monkeypatch.undo()
    desk.ask(("tablets",))
    heads = desk.store.heads()
    with pytest.raises(LostRace, match="moved on"):
        desk.store.append_to_all(views, drafts)
    assert desk.store.heads() == heads


def test_raising_a_budget_lets_the_next_one_in(desk: Desk) -> None:
    desk.open("phones")
    desk.open("tablets", epsilon=0.05)
    assert isinstance(desk.ask(BOTH, krr(5_000)), Refused)
    change_budget(desk.store, "tablets", epsilon=1.0, reason="the board agreed", actor="ada")
    assert isinstance(desk.ask(BOTH, krr(5_000)), Admitted)
    desk.check()


def test_a_frozen_member_refuses_and_is_told_the_truth_all_the_same(desk: Desk) -> None:
    desk.open(*BOTH)
    for name in ("a", "b"):
        assert isinstance(desk.ask(BOTH, krr(50_000), name=name), Admitted)
    view = desk.store.view("tablets")
    head = CheckpointHead(cohort="tablets", sequence=99, digest_hex="0" * 64)
    said = {"reason": "the disk broke", "checkpoint": "0" * 64, "nothing_later": None}
    desk.store.append(view, freezing.freezing(desk.store, view, head, said, actor="owner"))
    refused = desk.ask(BOTH)
    assert isinstance(refused, Refused)
    assert [each.reason for each in refused.refused_by] == [RefusalReason.COHORT_FROZEN]
    with pytest.raises(NotCollectable, match="frozen"):
        desk.ask(BOTH, krr(50_000), name="a")
    with pytest.raises(Conflict, match="tablets"):
        desk.settle("a", 40_000)
    with pytest.raises(Conflict, match="tablets"):
        desk.void("b")
    before = desk.spent("phones")
    told = desk.correct("a", reports=20_000)
    assert told.changed
    assert desk.spent("phones") > before
    assert [kinds[-1] for kinds in desk.kinds(*BOTH)] == ["corrected", "corrected"]
    desk.check()


def freeze_without_rounds(desk: Desk, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze a cohort, and have it know of no round, as if its entries had not been brought back."""
    view = desk.store.view(lost)
    said = {"reason": "the disk broke", "checkpoint": "0" * 64, "nothing_later": None}
    desk.store.append(view, freezing.freezing(desk.store, view, None, said, actor="owner"))
    found = desk.store.round_in

    def lacking(cohort: str, round_id: str) -> Any:
        if cohort == lost:
            raise NotFound(f"cohort {cohort!r} has no round {round_id!r}")
        return found(cohort, round_id)

    monkeypatch.setattr(desk.store, "round_in", lacking)


def test_a_frozen_member_that_lost_its_entries_does_not_hide_the_truth_from_the_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after entries of one chain were brought back from a copy, and those of another were not."""
    desk.open(*BOTH)
    assert isinstance(desk.ask(BOTH, krr(50_000), name="a"), Admitted)
    freeze_without_rounds(desk, "tablets", monkeypatch)
    before = desk.spent("phones")
    told = desk.correct("a", reports=20_000)
    assert (told.cohort, told.audience) == ("phones", ())
    assert desk.spent("phones") > before
    assert [kinds[-1] for kinds in desk.kinds(*BOTH)] == ["corrected", "frozen"]
    monkeypatch.undo()
    desk.check()


def test_a_frozen_member_that_lost_a_round_does_not_keep_its_incident_from_the_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.open("phones", epsilon=0.05)
    desk.open("tablets")
    assert isinstance(desk.ask(BOTH, krr(5_000), name="a"), Refused)
    freeze_without_rounds(desk, "tablets", monkeypatch)
    told = desk.incident("a", krr(5_000), "phones")
    assert (told.cohort, told.overspent) == ("phones", True)
    assert [kinds[-1] for kinds in desk.kinds(*BOTH)] == ["incident", "frozen"]
    monkeypatch.undo()
    desk.check()
