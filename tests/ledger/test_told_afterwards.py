"""Corrections and incidents: true releases, charged when they are recorded, and never refused."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import (
    freezing,
    quote,
    register,
    round_record,
)
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotCollectable
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.machine import Total
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Refused,
    RoundRequest,
)
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, total_in
from tests.ledger.releases import after_opening

pytestmark = pytest.mark.policies


class Desk(AnyDesk):
    """A ledger, and short words for what is done to it."""

    def open(self, name: str, /, **changes: Any) -> None:
        super().open(name, **{"population": 10**6, **changes})

    def admit(self, name: str, shuffled: ShuffledRound, cohort: str) -> Any:
        return self.decide(RoundRequest(round_id=name, cohort=cohort, round=shuffled))

    def chosen(self, cohort: str) -> datetime:
        """The first moment that is later than the cohort's opening, which chose its filters."""
        after = after_opening(self.store.cohort(cohort)).after
        assert after is not None
        return after

    def total(self, cohort: str) -> Total:
        return total_in(self.store, cohort)

    def status(self, cohort: str) -> str:
        return self.store.cohort(cohort).status

    def verified(self, cohort: str) -> None:
        found = verify(self.store, self.accountant, cohort, numbers="all")
        assert found.ok, [(each.sequence, each.what) for each in found.cohorts[0].problems]


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def krr(epsilon0: float, reports: int = 1000, **changes: Any) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports, **changes)


def now() -> datetime:
    return datetime.now(UTC)


def test_a_correction_costs_what_admitting_the_truth_would_have_cost(desk: Desk) -> None:
    for cohort in ("told", "known"):
        desk.open(cohort)
        desk.admit(f"first-{cohort}", krr(1, 5000), cohort)
    desk.admit("r-told", krr(1, 20_000), "told")
    desk.admit("r-known", krr(2, 20_000), "known")
    answer = desk.correct("r-told", randomizer=krr(2).randomizer.to_mapping())
    assert answer.changed
    assert answer.accounted == slot_for(krr(2, 20_000))
    told, known = desk.total("told"), desk.total("known")
    assert told.late > 0 == known.late
    assert dataclasses.replace(told, late=0) == known
    views = [desk.store.view(cohort) for cohort in ("told", "known")]
    assert views[0].spent.epsilon_upper == views[1].spent.epsilon_upper
    for cohort in ("told", "known"):
        desk.verified(cohort)


def test_a_better_truth_changes_nothing_but_the_record(desk: Desk) -> None:
    desk.open("adaptive")
    desk.admit("r-adaptive", krr(2, 20_000), "adaptive")
    desk.open("plan", policy="plan", plan={krr(2, 20_000): 2})
    desk.admit("r-plan", krr(2, 20_000), "plan")
    for cohort in ("adaptive", "plan"):
        before = desk.store.view(cohort)
        answer = desk.correct(f"r-{cohort}", randomizer=krr(1).randomizer.to_mapping(), reports=30_000)
        after = desk.store.view(cohort)
        assert not answer.changed
        assert (after.spent, after.held) == (before.spent, before.held)
        assert after.details.get("standing") == before.details.get("standing")
        assert after.head_sequence == before.head_sequence + 1
        assert round_record(desk.store, f"r-{cohort}").corrections[-1].round.reports == 30_000
        desk.verified(cohort)


def test_a_settlement_goes_on_from_a_correction_and_a_correction_from_a_settlement(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(1, 20_000), "phones")
    desk.correct("r", randomizer=krr(2).randomizer.to_mapping())
    settled = desk.settle("r", 5_000)
    assert settled.accounted == slot_for(krr(2, 5_000))
    corrected = desk.correct("r", randomizer=krr(2.5).randomizer.to_mapping())
    assert corrected.round == krr(2.5, 5_000)
    record = round_record(desk.store, "r")
    assert (record.state, record.accounted) == ("settled", slot_for(krr(2.5, 5_000)))
    assert desk.settle("r", 5_000) == settled
    with pytest.raises(Conflict):
        desk.settle("r", 4_000)
    desk.verified("phones")


def test_a_repeated_correction_answers_with_the_present_state(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(1, 20_000), "phones")
    first = desk.correct("r", reports=9_000)
    length = desk.store.view("phones").head_sequence
    assert desk.correct("r", reports=9_000) == first
    assert desk.store.view("phones").head_sequence == length
    assert desk.correct("r", reports=9_000, reason="another").sequence == length + 1
    assert desk.correct("r", reports=8_000).sequence == length + 2
    assert desk.correct("r", reports=9_000).sequence == length + 3  # it is not what was told last


def test_what_was_not_admitted_or_is_voided_cannot_be_corrected(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(1, 20_000), "phones")
    desk.void("r")
    assert isinstance(desk.admit("s", krr(8, 10), "phones"), Refused)
    register(desk.store, RoundRequest(round_id="p", cohort="phones", round=krr(1)), actor="ada")
    for name in ("r", "s", "p"):
        with pytest.raises(Conflict, match="record an incident"):
            desk.correct(name, reports=10)
    with pytest.raises(InvalidValue):
        desk.correct("r")
    with pytest.raises(InvalidValue):
        desk.correct("r", reports=10, reason=" ")


def test_a_correction_beyond_the_budget_marks_the_cohort_overspent_and_goes_on(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(2, 20_000), "phones")
    assert desk.correct("r", reports=3).overspent
    assert desk.status("phones") == "overspent"
    again = desk.correct("r", reports=2)
    assert again.overspent
    assert isinstance(desk.admit("s", krr(1), "phones"), Refused)
    assert desk.incident("x", krr(1), "phones", after=desk.chosen("phones")).overspent
    desk.verified("phones")


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_an_incident_before_the_opening_breaks_the_promise(desk: Desk, policy: str) -> None:
    desk.open("phones", policy=policy, plan={krr(1, 10_000): 3} if policy == "plan" else None)
    desk.admit("r", krr(1, 20_000), "phones")
    chosen = desk.chosen("phones")
    before = chosen - timedelta(microseconds=1)
    late = desk.incident("late", krr(1, 20_000), "phones", after=chosen)
    assert (late.overspent, late.chosen_after) == (False, False)
    early = desk.incident("early", krr(1, 20_000), "phones", after=before)
    assert (early.overspent, early.chosen_after) == (True, True)
    assert desk.status("phones") == "overspent"
    desk.verified("phones")
    assert desk.correct("early", reports=10_000).overspent, "no correction mends it"
    desk.verified("phones")


def test_an_approximate_release_before_the_opening_is_charged_enough_for_auditors(desk: Desk) -> None:
    """That everything was revealed is charged to the account of certain losses, and covers any slack."""
    desk.open("phones")
    desk.admit("r", krr(1, 20_000), "phones")
    local = parse_randomizer("generic(epsilon0=1)")
    approximate = ShuffledRound(randomizer=local, reports=8_000, delta0=1e-14)
    assert desk.incident("early", approximate, "phones").chosen_after
    desk.verified("phones")
    desk.correct("early", reports=9_000)
    desk.verified("phones")


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_an_unknown_release_overspends(desk: Desk, policy: str) -> None:
    desk.open("phones", policy=policy, plan={krr(1, 10_000): 3} if policy == "plan" else None)
    desk.admit("r", krr(1, 20_000), "phones")
    answer = desk.incident("x", None, "phones", after=desk.chosen("phones"))
    assert answer.round is None
    assert answer.overspent
    assert answer.epsilon_spent_upper == math.inf
    if policy == "adaptive":  # filters that hold at no epsilon say not how much was spent at least, either
        assert answer.epsilon_spent_lower == 0.0
    assert desk.status("phones") == "overspent"
    desk.verified("phones")


def test_an_incident_takes_the_first_slot_kind_that_dominates_it_or_none(desk: Desk) -> None:
    desk.open("phones", epsilon=3.0, policy="plan", plan={krr(1, 10_000): 1, krr(2, 10_000): 2})
    later = desk.chosen("phones")
    first = desk.incident("x", krr(1, 20_000), "phones", after=later)
    assert (first.accounted, first.overspent) == (krr(1, 10_000), False)
    second = desk.incident(
        "y", krr(1, 20_000), "phones", after=later
    )  # its kind is taken, and no other is tried
    assert second.overspent
    assert desk.total("phones").claims == (2, 0)
    desk.verified("phones")


def test_a_corrected_round_of_a_plan_is_placed_from_its_claim_and_its_last_truth(desk: Desk) -> None:
    desk.open("phones", epsilon=3.0, policy="plan", plan={krr(1, 10_000): 1, krr(2, 10_000): 2})
    desk.admit("r", krr(1, 10_000), "phones")
    desk.correct("r", randomizer=krr(1.5).randomizer.to_mapping())
    assert desk.total("phones").claims == (0, 1)
    desk.settle("r", 12_000)
    desk.correct("r", randomizer=krr(0.5).randomizer.to_mapping())
    assert desk.total("phones").claims == (1, 0)
    assert desk.correct("r", reports=50).overspent
    assert desk.total("phones").unplaced == 1
    desk.verified("phones")


def test_a_correction_that_a_settlement_followed_is_told_anew(desk: Desk) -> None:
    desk.open("phones", epsilon=3.0, policy="plan", plan={krr(1, 10_000): 1, krr(1, 5_000): 1})
    desk.admit("r", krr(1, 10_000), "phones")
    first = desk.correct("r", reports=5_000)
    desk.settle("r", 10_000)
    assert desk.total("phones").claims == (1, 0)
    again = desk.correct("r", reports=5_000)
    assert (again.sequence, again.accounted) == (first.sequence + 2, krr(1, 5_000))
    assert desk.total("phones").claims == (0, 1)
    assert desk.correct("r", reports=5_000) == again
    desk.verified("phones")


def test_an_incident_of_a_corrected_round_tells_of_another_release(desk: Desk) -> None:
    """The correction of the voided release does not describe the later one."""
    desk.open("phones", epsilon=30.0)
    desk.admit("r", krr(1, 20_000), "phones")
    earlier = desk.correct("r", randomizer=krr(3).randomizer.to_mapping())
    desk.void("r")
    desk.incident("r", krr(2, 5_000), "phones", after=desk.chosen("phones"))
    record = round_record(desk.store, "r")
    assert (record.state, record.accounted) == ("incident", slot_for(krr(2, 5_000)))
    assert desk.correct("r", reports=4_000).round == krr(2, 4_000)
    again = desk.correct("r", randomizer=krr(3).randomizer.to_mapping())
    assert again.sequence > earlier.sequence + 2
    assert again.accounted == slot_for(krr(3, 4_000))
    desk.verified("phones")


@pytest.mark.parametrize("policy", ["plan", "adaptive"])
def test_a_void_does_not_choose_the_slot_of_a_release(desk: Desk, policy: str) -> None:
    """The truth fits both kinds; it stands in the one that the round claimed, and not in the first."""
    desk.open("phones", policy=policy, epsilon=30.0, plan={krr(1, 20_000): 1, krr(2, 20_000): 1})
    desk.admit("r", krr(2, 20_000), "phones")
    desk.void("r")
    assert desk.total("phones").claims == (0, 0)
    desk.incident("r", krr(0.5, 20_000), "phones", after=desk.chosen("phones"))
    assert desk.total("phones").claims == (0, 1)
    desk.incident("x", krr(0.5, 20_000), "phones", after=desk.chosen("phones"))
    assert desk.total("phones").claims == (1, 1), "it claimed nothing"
    desk.verified("phones")


def test_an_incident_refers_to_rounds_that_were_not_to_be_released(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("voided", krr(1, 20_000), "phones")
    desk.void("voided")
    assert isinstance(desk.admit("refused", krr(8, 10), "phones"), Refused)
    register(desk.store, RoundRequest(round_id="pending", cohort="phones", round=krr(1)), actor="ada")
    for name in ("voided", "pending", "refused"):
        answer = desk.incident(name, krr(1, 20_000), "phones", after=desk.chosen("phones"))
        assert (answer.round_id, answer.overspent) == (name, False)
        assert round_record(desk.store, name).state == "incident"
    with pytest.raises(NotCollectable):
        register(desk.store, RoundRequest(round_id="pending", cohort="phones", round=krr(1)), actor="ada")
    with pytest.raises(NotCollectable):
        desk.admit("voided", krr(1, 20_000), "phones")
    assert isinstance(desk.admit("refused", krr(8, 10), "phones"), Refused)
    assert (
        quote(
            desk.store, desk.accountant, RoundRequest(round_id="refused", cohort="phones", round=krr(8, 10))
        ).would_be
        == "refused"
    )
    assert desk.correct("voided", reports=9_000).changed
    desk.verified("phones")


def test_an_incident_is_told_once(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(1, 20_000), "phones")
    after = desk.chosen("phones")
    first = desk.incident("x", krr(1, 20_000), "phones", after=after)
    assert desk.incident("x", krr(1, 20_000), "phones", after=after) == first
    for otherwise in (
        {"described": krr(2, 20_000), "after": after},
        {"described": krr(1, 20_000), "after": after, "reason": "another"},
        {"described": krr(1, 20_000)},
    ):
        with pytest.raises(Conflict, match="correct the round"):
            desk.incident("x", cohort="phones", **otherwise)
    with pytest.raises(Conflict, match="correct the round"):
        desk.incident("r", krr(1, 20_000), "phones")
    desk.open("tablets")
    with pytest.raises(Conflict, match="of cohort 'phones'"):
        desk.incident("x", krr(1, 20_000), "tablets")
    with pytest.raises(NotCollectable):
        desk.admit("x", krr(1, 20_000), "phones")
    with pytest.raises(Conflict):
        desk.void("x")
    with pytest.raises(InvalidValue, match="released_after"):
        desk.incident("y", krr(1, 20_000), "phones", after=now() + timedelta(days=1))
    with pytest.raises(InvalidValue, match="released_before"):
        desk.incident("y", krr(1, 20_000), "phones", after=after, before=after)
    desk.verified("phones")


@pytest.mark.parametrize("is_overspent", [False, True])
@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_frozen_cohort_records_what_it_is_told_and_charges_nothing(
    desk: Desk, policy: str, *, is_overspent: bool
) -> None:
    desk.open("phones", policy=policy, plan={krr(1, 10_000): 3} if policy == "plan" else None)
    desk.admit("r", krr(1, 20_000), "phones")
    if is_overspent:
        assert desk.incident("unknown", krr(8, 10), "phones").overspent
    view = desk.store.view("phones")
    head = CheckpointHead(cohort="phones", sequence=99, digest_hex="0" * 64)
    said = {"reason": "the disk broke", "checkpoint": "0" * 64, "nothing_later": None}
    desk.store.append(view, freezing.freezing(desk.store, view, head, said, actor="ada"))
    frozen = desk.store.view("phones")
    corrected = desk.correct("r", reports=5)
    assert (corrected.changed, corrected.overspent) == (False, False)
    assert not desk.incident("x", krr(8, 10), "phones").overspent
    after = desk.store.view("phones")
    assert (after.cohort.status, after.spent, after.held) == ("frozen", frozen.spent, frozen.held)
    assert after.details.get("standing") == frozen.details.get("standing")
    assert desk.incident("x", krr(8, 10), "phones") == round_record(desk.store, "x").incident
    desk.correct("x", reports=9)
    desk.verified("phones")


@pytest.mark.slow
def test_the_budget_that_would_have_been_kept_covers_what_was_given_back_later(
    sqlite_url: str, accountant: Accountant
) -> None:
    kind = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=9_000)
    with Store.connect(sqlite_url) as store:
        desk = AnyDesk(store, accountant)
        desk.open("alone", epsilon=0.3)
        asked = [RoundRequest(round_id=desk.new_name(), cohort="alone", round=kind) for _ in range(20)]
        assert all(isinstance(desk.decide(each), Admitted) for each in asked)
        assert desk.settle(asked[0].round_id, 250).overspent
        largest = store.view("alone").spent.epsilon_upper
        for each in asked[1:]:
            desk.void(each.round_id)
        assert store.view("alone").spent.epsilon_upper < 0.3 < largest
        (stated,) = make_statement(store, accountant, ["alone"], made_at=datetime.now(UTC)).cohorts
        assert stated.breach is not None
        assert stated.breach.kept_at_epsilon_upper == largest
