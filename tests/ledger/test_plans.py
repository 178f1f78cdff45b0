"""Plans, and budgets that change: what was promised stays promised, or an entry says that it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import change_budget, open_cohort, quote, settle, void
from shuffle_ledger.ledger.errors import BeyondBudget, Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import decided

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
DELTA = 1e-9


def krr(epsilon0: float, reports: int, k: int = 10) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": k, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports)


PLAN = {krr(1.0, 10_000): 2, krr(2.0, 20_000): 1}


def open_planned(store: Store, accountant: Accountant, **changes: Any) -> None:
    content: dict[str, Any] = {
        "name": "watches",
        "population": 10**6,
        "epsilon": 1.0,
        "delta": DELTA,
        "policy": "plan",
        "actor": "tester",
        "plan": PLAN,
        "accountant": accountant,
    }
    open_cohort(store, **(content | changes))


@pytest.fixture
def watches(store: Store, accountant: Accountant) -> Store:
    """Return a ledger with the cohort "watches", which has a plan of three rounds."""
    open_planned(store, accountant)
    return store


def claimed(store: Store, accountant: Accountant) -> list[int]:
    return [slot.claimed for slot in budget(store, accountant, "watches").slots]


def test_rounds_take_the_slots_that_dominate_them(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    whole = accountant.certify(PLAN, delta=DELTA).epsilon_upper
    exact = decided(watches, accountant, make_request("a", cohort="watches", epsilon0=2.0, reports=20_000))
    assert isinstance(exact, Admitted)
    assert exact.accounted == krr(2.0, 20_000)
    smaller = make_request("b", cohort="watches", epsilon0=0.5, reports=15_000)
    assert quote(watches, accountant, smaller).would_be == "admitted"
    answer = decided(watches, accountant, smaller)
    assert isinstance(answer, Admitted)
    assert answer.accounted == krr(1.0, 10_000)
    assert claimed(watches, accountant) == [1, 1]
    others: dict[str, dict[str, Any]] = {
        "c": {"epsilon0": 1.5},
        "d": {"reports": 9_000},
        "e": {"sampled_from": 10**6},
    }
    for name, changes in others.items():
        wanted: dict[str, Any] = {"epsilon0": 1.0, "reports": 10_000} | changes
        refused = decided(watches, accountant, make_request(name, cohort="watches", **wanted))
        assert isinstance(refused, Refused)
        assert refused.reason == "no_free_slot"
        assert refused.epsilon_requested_upper is None
    last = make_request("f", cohort="watches", epsilon0=1.0, reports=10_000)
    assert isinstance(decided(watches, accountant, last), Admitted)
    full = decided(watches, accountant, dataclasses.replace(last, round_id="g"))
    assert isinstance(full, Refused)
    statement = budget(watches, accountant, "watches")
    assert statement.epsilon_promised_upper == whole
    assert statement.epsilon_spent_upper <= whole <= 1.0
    assert statement.epsilon_spent_upper >= accountant.certify(PLAN, delta=DELTA).epsilon_lower
    report = verify(watches, accountant, numbers="all")
    assert report.ok, report


def test_a_budget_says_how_many_slots_a_kind_may_take(store: Store, accountant: Accountant) -> None:
    small, large = krr(1.0, 10_000, k=4), krr(1.0, 20_000, k=4)
    open_planned(store, accountant, epsilon=2.0, plan={small: 3, large: 4})
    found = {one.round: one.rounds_at_least for one in budget(store, accountant, "watches").fits}
    assert found == {small: 3, large: 7}  # a round of more reports fits a slot of fewer
    for number in range(7):
        request = RoundRequest(round_id=f"r{number}", cohort="watches", round=large)
        assert isinstance(decided(store, accountant, request), Admitted)
    assert [one.rounds_at_least for one in budget(store, accountant, "watches").fits] == [0, 0]


def test_voiding_frees_the_slot(watches: Store, accountant: Accountant, make_request: MakeRequest) -> None:
    decided(watches, accountant, make_request("a", cohort="watches", epsilon0=2.0, reports=20_000))
    void(watches, accountant, "a", reason="never released", actor="tester")
    assert claimed(watches, accountant) == [0, 0]
    again = decided(watches, accountant, make_request("b", cohort="watches", epsilon0=2.0, reports=20_000))
    assert isinstance(again, Admitted)
    assert verify(watches, accountant, numbers="all").ok


def test_a_truth_stands_in_a_slot_of_the_kind_that_the_plan_names_for_it(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    plan = {krr(1.0, 10_000): 3, krr(1.0, 9_000): 1, krr(2.0, 8_000): 1}
    open_planned(store, accountant, plan=plan)
    whole = budget(store, accountant, "watches").epsilon_promised_upper
    for name in ("a", "b", "c"):
        decided(store, accountant, make_request(name, cohort="watches", epsilon0=1.0, reports=12_000))
    assert claimed(store, accountant) == [3, 0, 0]
    # As many as its slot has, although fewer than were declared, keep it.
    assert settle(store, accountant, "a", reports=10_000, actor="tester").accounted == krr(1.0, 10_000)
    moved = settle(store, accountant, "b", reports=9_000, actor="tester")
    assert (moved.accounted, moved.overspent) == (krr(1.0, 9_000), False)
    assert claimed(store, accountant) == [2, 1, 0]
    again = make_request("d", cohort="watches", epsilon0=1.0, reports=10_000)
    assert isinstance(decided(store, accountant, again), Admitted), "the slot it left is free"
    held = {krr(1.0, 10_000): 3, krr(1.0, 9_000): 1}
    statement = budget(store, accountant, "watches")
    assert statement.epsilon_spent_upper == accountant.certify(held, delta=DELTA).epsilon_upper
    # The slot of 2-RR is free and would do; but the plan names the one before it, and that is taken.
    beyond = settle(store, accountant, "c", reports=9_000, actor="tester")
    assert beyond.overspent
    assert beyond.accounted == slot_for(krr(1.0, 9_000))
    assert claimed(store, accountant) == [2, 2, 0], "one more than there are"
    statement = budget(store, accountant, "watches")
    assert (statement.status, statement.epsilon_promised_upper) == ("overspent", whole)
    refused = decided(store, accountant, make_request("e", cohort="watches", epsilon0=1.0, reports=10_000))
    assert isinstance(refused, Refused)
    assert refused.reason == "cohort_overspent"
    void(store, accountant, "d", reason="never released", actor="tester")
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


@pytest.mark.slow
def test_slots_of_a_million_reports_cover_no_rounds_of_one(store: Store, accountant: Accountant) -> None:
    kinds = (krr(0.1, 10**6, k=2), krr(1.0, 10**6, k=200))
    alone = (krr(0.1, 1, k=2), krr(1.0, 1, k=200))
    plan = {kinds[0]: 60, kinds[1]: 120, alone[0]: 1}
    for name, slots in (("watches", dict(list(plan.items())[:2])), ("clocks", plan)):
        open_planned(store, accountant, name=name, epsilon=2.0, delta=1e-4, plan=slots)
    expected = {("watches", 0): True, ("clocks", 0): False, ("clocks", 1): True}
    for (cohort, number), overspent in expected.items():
        request = RoundRequest(round_id=f"{cohort}-{number}", cohort=cohort, round=kinds[0])
        assert isinstance(decided(store, accountant, request), Admitted)
        settled = settle(store, accountant, request.round_id, reports=1, actor="tester")
        assert (settled.accounted, settled.overspent) == (alone[0], overspent)
    assert [slot.claimed for slot in budget(store, accountant, "clocks").slots] == [0, 0, 2]
    report = verify(store, accountant)
    assert report.ok, report


def test_reports_are_counted_as_the_round_declares_them_and_not_as_its_slot_does(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    half_honest = dataclasses.replace(krr(1.0, 20_000), honest_fraction=0.5)
    open_planned(store, accountant, plan={krr(1.0, 10_000): 2, half_honest: 1})
    doubtful = {"epsilon0": 1.0, "reports": 24_000, "honest_fraction": 0.5}
    for name, declared in (("a", doubtful), ("b", doubtful), ("c", {"epsilon0": 1.0, "reports": 11_000})):
        answer = decided(store, accountant, make_request(name, cohort="watches", **declared))
        assert isinstance(answer, Admitted)
    enough = settle(store, accountant, "b", reports=22_000, actor="tester")
    assert enough.accounted == krr(1.0, 10_000)
    # 10,500 honest reports are more than the half of 20,000.
    assert settle(store, accountant, "c", reports=10_500, actor="tester").accounted == half_honest
    # 16,000 reports, half of them honest, are fewer than the 10,000 honest ones of every slot.
    fewer = settle(store, accountant, "a", reports=16_000, actor="tester")
    assert (fewer.accounted.honest_reports <= 8_000, fewer.overspent) == (True, True)
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


@pytest.mark.slow
def test_sampled_and_declared_rounds_stand_by_what_their_reports_mean(
    store: Store, accountant: Accountant
) -> None:
    sampled = dataclasses.replace(krr(2.0, 1_000), sampled_from=10_000)
    declared = ShuffledRound(randomizer=parse_randomizer("declared(epsilon=0.1, delta=1e-12)"), reports=5_000)
    open_planned(store, accountant, plan={sampled: 4, declared: 1})
    half = dataclasses.replace(sampled, sampled_from=20_000)
    asked = {"a": half, "b": half, "c": declared, "d": sampled, "e": sampled}
    for name, one in asked.items():
        assert isinstance(
            decided(store, accountant, RoundRequest(round_id=name, cohort="watches", round=one)), Admitted
        )
    for name, reports, overspent in (
        ("a", 1_000, False),
        ("b", 1_500, False),  # 1,500 of 20,000 are a lower rate than the slot's
        ("c", 7, False),  # what is declared does not depend on them
        ("d", 1_001, True),  # a higher rate
        ("e", 999, True),  # fewer, at the planned rate
    ):
        settled = settle(store, accountant, name, reports=reports, actor="tester")
        assert settled.overspent == overspent, name
    assert settled.accounted == slot_for(dataclasses.replace(krr(2.0, 999), sampled_from=9_990))
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


def test_a_plan_beyond_the_budget_opens_nothing(store: Store, accountant: Accountant) -> None:
    with pytest.raises(BeyondBudget, match="expected at most the budget"):
        open_planned(store, accountant, epsilon=0.01)
    with pytest.raises(NotFound):
        store.cohort("watches")
    for changes in ({"plan": None}, {"population": 15_000}, {"policy": "adaptive", "population": 15_000}):
        with pytest.raises(InvalidValue):
            open_planned(store, accountant, **changes)
    with pytest.raises(NotFound):
        store.cohort("watches")


def test_a_plan_is_part_of_what_a_cohort_was_opened_with(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    other = {krr(1.0, 10_000): 2}
    open_planned(watches, accountant, plan=other)  # again: nothing was decided
    open_planned(watches, accountant)
    decided(watches, accountant, make_request("r", cohort="watches", epsilon0=2.0, reports=20_000))
    with pytest.raises(Conflict):
        open_planned(watches, accountant, plan=other)


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_raised_budget_admits_more_and_says_who_and_why(
    store: Store, accountant: Accountant, make_request: MakeRequest, policy: str
) -> None:
    plan = PLAN if policy == "plan" else None
    open_planned(store, accountant, policy=policy, plan=plan, epsilon=0.4)
    request = make_request("a", cohort="watches", epsilon0=2.0, reports=20_000)
    admitted = 0
    while isinstance(
        decided(store, accountant, dataclasses.replace(request, round_id=f"{admitted}")), Admitted
    ):
        admitted += 1
    before = budget(store, accountant, "watches")
    changed = change_budget(store, "watches", epsilon=0.6, reason="a new contract", actor="board")
    assert changed.epsilon_budget == 0.6
    after = budget(store, accountant, "watches")
    assert after.epsilon_spent_upper == before.epsilon_spent_upper
    assert after.status == "open"
    more = decided(store, accountant, dataclasses.replace(request, round_id="more"))
    assert isinstance(more, Refused if policy == "plan" else Admitted)
    assert budget(store, accountant, "watches").epsilon_spent_upper <= 0.6
    (body,) = [
        entry.content() for entry in store.entries_of("watches") if entry.kind == EntryKind.BUDGET_CHANGED
    ]
    assert (body.actor, body.details["reason"], body.details["epsilon_before"]) == (
        "board",
        "a new contract",
        0.4,
    )
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_budget_below_what_is_held_or_planned_is_not_taken(
    store: Store, accountant: Accountant, make_request: MakeRequest, policy: str
) -> None:
    open_planned(store, accountant, policy=policy, plan=PLAN if policy == "plan" else None)
    decided(store, accountant, make_request("a", cohort="watches", epsilon0=1.0, reports=10_000))
    before = store.view("watches")
    with pytest.raises(Conflict, match="does not certainly fit"):
        change_budget(store, "watches", epsilon=0.001, reason="caution", actor="board")
    assert store.view("watches").head_digest == before.head_digest
    again = make_request("b", cohort="watches", epsilon0=1.0, reports=10_000)
    assert isinstance(decided(store, accountant, again), Admitted)
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


def test_what_is_no_budget_changes_nothing(watches: Store, accountant: Accountant) -> None:
    for changes in (
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"epsilon": 1.0},
        {"delta": 1e-6},
        {"reason": ""},
    ):
        content: dict[str, Any] = {"epsilon": 2.0, "reason": "why", "actor": "board"} | changes
        with pytest.raises(InvalidValue):
            change_budget(watches, "watches", **content)
    with pytest.raises(NotFound):
        change_budget(watches, "nobody", epsilon=2.0, reason="why", actor="board")
    assert watches.view("watches").head_sequence == 1
