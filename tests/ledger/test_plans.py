"""Plans: rounds take the slots that dominate them, and stand where their last description says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from shuffle_ledger.accounting import ShuffledRound, slot_for
from shuffle_ledger.ledger.decisions import change_budget
from shuffle_ledger.ledger.errors import BeyondBudget, Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.machine import Charge, Cost, Total
from shuffle_ledger.ledger.policies.numbers import spelled
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, Spending, loss_digest
from shuffle_ledger.ledger.values.requests import Admitted
from tests.conftest import sqlite_url
from tests.ledger.attack import rewrite, stating
from tests.ledger.clerk import Clerk, krr, parsed

database_url = sqlite_url  # the rules are the same in every database
DELTA = 1e-9
PLAN = {krr(10_000, 1.0): 2, krr(20_000, 2.0): 1}


@pytest.fixture
def planning(clerk: Clerk) -> Clerk:
    """Return a ledger whose cohorts have a plan of three rounds, unless a test says otherwise."""
    clerk.usual |= {"population": 10**6, "delta": DELTA, "policy": "plan", "plan": PLAN}
    return clerk


def claimed(clerk: Clerk) -> list[int]:
    return [slot.claimed for slot in clerk.budget().slots]


def test_rounds_take_the_slots_that_dominate_them(planning: Clerk) -> None:
    planning.open()
    whole = planning.accountant.certify(PLAN, delta=DELTA)
    exact = planning.ask(krr(20_000, 2.0))
    assert isinstance(exact, Admitted)
    assert exact.accounted == krr(20_000, 2.0)
    smaller = planning.request(krr(15_000, 0.5))
    assert planning.quote(smaller).would_be == "admitted"
    answer = planning.decide(smaller)
    assert isinstance(answer, Admitted)
    assert answer.accounted == krr(10_000, 1.0)
    assert claimed(planning) == [1, 1]
    for other in (krr(10_000, 1.5), krr(9_000, 1.0), krr(10_000, 1.0, sampled_from=10**6)):
        refused = planning.refusal(other)
        assert (refused.reason, refused.epsilon_requested_upper) == ("no_free_slot", None)
    assert planning.fill(krr(10_000, 1.0)) == 1
    statement = planning.budget()
    assert statement.epsilon_promised_upper == whole.epsilon_upper
    assert whole.epsilon_lower <= statement.epsilon_spent_upper <= whole.epsilon_upper <= 1.0
    planning.audit()


def test_a_budget_says_how_many_slots_a_kind_may_take(planning: Clerk) -> None:
    small, large = krr(10_000, 1.0, k=4), krr(20_000, 1.0, k=4)
    planning.open(epsilon=2.0, plan={small: 3, large: 4})
    found = {one.round: one.rounds_at_least for one in planning.budget().fits}
    assert found == {small: 3, large: 7}  # a round of more reports fits a slot of fewer
    assert planning.fill(large) == 7
    assert [one.rounds_at_least for one in planning.budget().fits] == [0, 0]


@pytest.mark.slow
def test_a_restated_round_stands_in_a_slot_of_the_kind_that_the_plan_names_for_it(planning: Clerk) -> None:
    planning.open(plan={krr(10_000, 1.0): 3, krr(9_000, 1.0): 1, krr(8_000, 2.0): 1})
    whole = planning.budget().epsilon_promised_upper
    for name in ("a", "b", "c"):
        planning.ask(krr(12_000, 1.0), name=name)
    assert claimed(planning) == [3, 0, 0]
    # As many as its slot has, although fewer than were declared, keep it.
    assert planning.settle("a", 10_000).accounted == krr(10_000, 1.0)
    moved = planning.settle("b", 9_000)
    assert (moved.accounted, moved.overspent) == (krr(9_000, 1.0), False)
    assert claimed(planning) == [2, 1, 0]
    assert planning.admits(krr(10_000, 1.0), name="d"), "the slot it left is free"
    held = {krr(10_000, 1.0): 3, krr(9_000, 1.0): 1}
    certified = planning.accountant.certify(held, delta=DELTA).epsilon_upper
    assert planning.budget().epsilon_spent_upper == certified
    # The slot of 2-RR is free and would do; but the plan names the one before it, and that is taken.
    beyond = planning.settle("c", 9_000)
    assert beyond.overspent
    assert beyond.accounted == slot_for(krr(9_000, 1.0))
    assert claimed(planning) == [2, 2, 0], "one more than there are"
    statement = planning.budget()
    assert (statement.status, statement.epsilon_promised_upper) == ("overspent", whole)
    assert planning.refusal(krr(10_000, 1.0)).reason == "cohort_overspent"
    planning.void("d")
    planning.audit()


def test_reports_are_counted_as_the_round_declares_them_and_not_as_its_slot_does(planning: Clerk) -> None:
    half_honest = krr(20_000, 1.0, honest_fraction=0.5)
    planning.open(plan={krr(10_000, 1.0): 2, half_honest: 1})
    doubtful = krr(24_000, 1.0, honest_fraction=0.5)
    for name, declared in (("a", doubtful), ("b", doubtful), ("c", krr(11_000, 1.0))):
        assert planning.admits(declared, name=name)
    assert planning.settle("b", 22_000).accounted == krr(10_000, 1.0)
    # 10,500 honest reports are more than the half of 20,000.
    assert planning.settle("c", 10_500).accounted == half_honest
    # 16,000 reports, half of them honest, are fewer than the 10,000 honest ones of every slot.
    fewer = planning.settle("a", 16_000)
    assert (fewer.accounted.honest_reports <= 8_000, fewer.overspent) == (True, True)
    planning.audit()


@pytest.mark.slow
def test_sampled_and_declared_rounds_stand_by_what_their_reports_mean(planning: Clerk) -> None:
    sampled, declared = krr(1_000, sampled_from=10_000), parsed("declared(epsilon=0.1, delta=1e-12)", 5_000)
    planning.open(plan={sampled: 4, declared: 1})
    half = dataclasses.replace(sampled, sampled_from=20_000)
    for name, one in {"a": half, "b": half, "c": declared, "d": sampled, "e": sampled}.items():
        assert planning.admits(one, name=name)
    for name, reports, overspent in (
        ("a", 1_000, False),
        ("b", 1_500, False),  # 1,500 of 20,000 are a lower rate than the slot's
        ("c", 7, False),  # what is declared does not depend on them
        ("d", 1_001, True),  # a higher rate
        ("e", 999, True),  # fewer, at the planned rate
    ):
        settled = planning.settle(name, reports)
        assert settled.overspent == overspent, name
    assert settled.accounted == slot_for(krr(999, sampled_from=9_990))
    planning.audit()


def test_a_plan_beyond_the_budget_opens_nothing(planning: Clerk) -> None:
    with pytest.raises(BeyondBudget, match="expected at most the budget"):
        planning.open(epsilon=0.01)
    wrong: list[dict[str, Any]] = [{"plan": None}, {"population": 15_000}]
    for changes in (*wrong, {"policy": "adaptive", "population": 15_000}):
        with pytest.raises(InvalidValue):
            planning.open(**changes)
    with pytest.raises(NotFound):
        planning.store.cohort("phones")


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_budget_below_what_is_held_or_planned_is_not_taken(planning: Clerk, policy: str) -> None:
    planning.open(policy=policy, plan=PLAN if policy == "plan" else None)
    planning.ask(krr(10_000, 1.0))
    before = planning.store.view("phones")
    with pytest.raises(Conflict, match="does not certainly fit"):
        planning.change(0.001)
    assert planning.store.view("phones").head_digest == before.head_digest
    assert planning.admits(krr(10_000, 1.0))
    planning.check()


def test_what_is_no_budget_changes_nothing(planning: Clerk) -> None:
    planning.open()
    wrong: list[dict[str, Any]] = [{"epsilon": 0.0}, {"epsilon": float("nan")}, {"epsilon": 1.0}]
    for changes in (*wrong, {"delta": 1e-6}, {"reason": ""}):
        content: dict[str, Any] = {"epsilon": 2.0, "reason": "why", "actor": "board"} | changes
        with pytest.raises(InvalidValue):
            change_budget(planning.store, "phones", **content)
    with pytest.raises(NotFound):
        planning.change(2.0, cohort="nobody")
    assert planning.store.view("phones").head_sequence == 1


# Entries that say that their round stands elsewhere.

LARGE, SMALL, OTHER = krr(10_000, 1.0), krr(9_000, 1.0), krr(8_000, 2.0)


@pytest.fixture
def three(planning: Clerk) -> Clerk:
    """Return a ledger with a plan of three kinds, and a round in the slot of the first."""
    planning.open(plan={LARGE: 1, SMALL: 1, OTHER: 1})
    planning.ask(LARGE, name="a")
    return planning


def placed(
    kind: int | None, accounted: ShuffledRound, claims: tuple[int, ...], *, fits: tuple[int, ...], **more: Any
) -> Mapping[str, Any]:
    charge = spelled(Charge(kind=kind, claimed=0, units=1))
    total = spelled(Total(claims=claims, unplaced=int(kind is None)))
    return {"accounted": accounted.to_mapping(), "charge": charge, "total": total, "fits": fits, **more}


# Each says that its round stands in another slot, with claims and numbers that fit; some, that it fits it.
FORGERIES = {
    "keeps its slot and says that it fits it": placed(0, LARGE, (1, 0, 0), fits=(0, 1, 2)),
    "takes a dearer slot and fits no other": placed(2, OTHER, (0, 0, 1), fits=(2,)),
    "leaves the plan and fits nothing": placed(None, SMALL, (0, 0, 0), fits=(), overspent=True),
    "keeps its slot for more reports": placed(0, LARGE, (1, 0, 0), fits=(1, 2), reports=9_999),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", FORGERIES)
def test_a_settlement_in_another_slot_than_its_reports_name_is_found(three: Clerk, how: str) -> None:
    three.settle("a", 9_000)
    three.audit()

    def forge(body: EntryBody) -> EntryBody:
        change = dict(FORGERIES[how])
        standing = {**body.details["standing"], "total": change.pop("total")}
        cost = spelled(Cost(fits=change.pop("fits")))
        kind = ShuffledRound.from_mapping(change["accounted"])
        certificate = three.accountant.certify({kind: 1}, delta=DELTA)
        loss = loss_digest(three.accountant.privacy_loss(kind).to_bytes()).hex()
        spent = Spending.from_certificate(certificate, delta=DELTA)
        forged = stating(**change, cost=cost, standing=standing, privacy_loss=loss)(body)
        return dataclasses.replace(forged, spent=spent)

    rewrite(three.store, 3, forge)
    bundle = make_bundle(three.store, ["phones"]).data
    found = [each.what for each in verify_bundle(bundle, three.accountant, numbers="all").findings]
    said = ("fits other slots than it does", "details.charge", "details.accounted", "details.cost")
    assert any(each in what for each in said for what in found), found


def test_a_slot_that_the_plan_does_not_have_is_found_and_keeps_no_other_cohort_waiting(three: Clerk) -> None:
    three.open("zebras", policy="adaptive", plan=None)

    def forge(body: EntryBody) -> EntryBody:
        return stating(charge={**body.details["charge"], "kind": 2**70, "claimed": 2**70})(body)

    rewrite(three.store, 2, forge)
    three.blames("details.charge", "phones")
    verify_oldest(three.store, three.accountant, enough=lambda: False)
    noted = {name: each.problem for name, each in three.store.verifications().items()}
    assert noted["phones"] is not None
    assert noted["zebras"] is None


def test_a_refusal_without_a_reason_is_found(clerk: Clerk) -> None:
    """The budget admits the round, by the numbers of the entry: what is charged must not be left out."""
    clerk.open()
    for _ in range(2):
        clerk.ask(LARGE)
    before = clerk.store.entry("phones", 2).content()

    def forge(body: EntryBody) -> EntryBody:
        forged = stating(standing=before.details["standing"], reason=None, message="no")(body)
        return dataclasses.replace(forged, kind=EntryKind.REFUSED, spent=before.spent)

    rewrite(clerk.store, 3, forge)
    clerk.blames_everywhere("refuses a round that the budget admits")
