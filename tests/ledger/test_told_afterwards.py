"""Corrections and incidents: true releases, charged when they are recorded, and never refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import (
    admit,
    correct,
    freezing,
    open_cohort,
    quote,
    record_incident,
    register,
    register_and_admit,
    round_record,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotCollectable
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.machine import Total, taken
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Corrected,
    Incident,
    Refused,
    ReleaseTimes,
    RoundRequest,
)
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, policy_in, state_in, total_in

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
Ask = Callable[..., Any]
EPSILON, DELTA = 1.0, 1e-6


class Desk:
    """A ledger with a cohort of each policy, and short words for what is done to it."""

    def __init__(self, store: Store, accountant: Accountant) -> None:
        self.store, self.accountant = store, accountant

    def open(self, name: str, **changes: Any) -> None:
        values: dict[str, Any] = {
            "population": 10**6,
            "epsilon": EPSILON,
            "delta": DELTA,
            "policy": "adaptive",
        }
        open_cohort(self.store, accountant=self.accountant, name=name, actor="ada", **(values | changes))

    def admit(self, name: str, shuffled: ShuffledRound, cohort: str) -> Any:
        request = RoundRequest(round_id=name, cohort=cohort, round=shuffled)
        return register_and_admit(self.store, self.accountant, request, actor="ada")[0]

    def settle(self, name: str, reports: int) -> Any:
        return settle(self.store, self.accountant, name, reports=reports, actor="ada")

    def void(self, name: str) -> Any:
        return void(self.store, self.accountant, name, reason="cancelled", actor="ada")

    def correct(self, name: str, reason: str = "the log says so", **changes: object) -> Corrected:
        return correct(self.store, self.accountant, name, changes, reason=reason, actor="eve")

    def incident(
        self,
        name: str,
        described: ShuffledRound | None,
        cohort: str,
        *,
        reason: str = "a script",
        **times: Any,
    ) -> Incident:
        return record_incident(
            self.store,
            self.accountant,
            cohort,
            round_id=name,
            described=described,
            reason=reason,
            actor="eve",
            released=ReleaseTimes(**times),
        )

    def chosen(self, cohort: str) -> datetime:
        """When the cohort was opened, which chose its filters: what was released after that came later."""
        opened_at = self.store.cohort(cohort).opened_at
        assert opened_at is not None
        return opened_at

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


def declared(epsilon: float, delta: float) -> ShuffledRound:
    return ShuffledRound(
        randomizer=parse_randomizer(f"declared(epsilon={epsilon}, delta={delta})"), reports=1
    )


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


def test_correcting_twice_is_correcting_once_with_the_worse_filter_by_filter(desk: Desk) -> None:
    truths = (krr(2, 20_000), krr(1.5, 3_000))  # neither dominates the other
    charges = []
    for order in ((0, 1), (1, 0)):
        cohort = f"in-order-{order[0]}"
        desk.open(cohort)
        desk.admit(f"r-{cohort}", krr(1, 20_000), cohort)
        for which in order:
            truth = truths[which]
            desk.correct(f"r-{cohort}", randomizer=truth.randomizer.to_mapping(), reports=truth.reports)
        charges.append(desk.total(cohort))
        desk.verified(cohort)
    filters = policy_in(desk.store, "in-order-0").filters
    assert filters is not None
    worse = [cost_of(desk.accountant.charge(slot_for(each), filters)) for each in truths]
    for total in charges:
        assert total.gaussian == tuple(map(max, *(each.gaussian for each in worse)))
        assert total.divergences == tuple(map(max, *(each.divergences for each in worse)))


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


def test_a_correction_moves_what_devices_sent_only_to_more(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(1, 20_000), "phones")
    for epsilon0 in (2.0, 0.5, 1.5):
        desk.correct("r", randomizer=krr(epsilon0).randomizer.to_mapping())
    local = {each.local_count for each in desk.store.holdings("phones")}
    assert local == {0, 1}
    (sent,) = (each for each in desk.store.holdings("phones") if each.local_count)
    assert b"0x1.0000000000000p+1" in sent.parameters  # 2
    desk.verified("phones")


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


def headroom(desk: Desk, cohort: str) -> Fraction:
    return Fraction(state_in(desk.store, cohort).limits.sliding or 0, 32)


def costing(desk: Desk, cohort: str, target: Fraction) -> ShuffledRound:
    """Return a round whose charge, where all reserves are free, is close to `target` of the variance."""
    desk.open(f"{cohort}-empty")
    filters, empty = policy_in(desk.store, f"{cohort}-empty").filters, state_in(desk.store, f"{cohort}-empty")
    assert filters is not None
    low, high = 0.1, 8.0
    for _ in range(16):
        middle = (low + high) / 2
        cost = cost_of(desk.accountant.charge(slot_for(krr(middle, 20_000)), filters))
        low, high = (middle, high) if taken(empty, cost).sliding <= target else (low, middle)
    return krr(round(low, 6), 20_000)


@pytest.mark.slow
def test_an_incident_within_the_headroom_keeps_the_sliding_total_and_a_larger_one_ends_it(desk: Desk) -> None:
    desk.open("sliding")
    for shares, holds in ((Fraction(32, 33), True), (Fraction(32, 31), False)):
        cohort = f"after-{shares.denominator}"
        desk.open(cohort)
        desk.admit(f"first-{cohort}", krr(1, 20_000), cohort)
        desk.incident(
            f"x-{cohort}",
            costing(desk, cohort, headroom(desk, cohort) * shares),
            cohort,
            after=desk.chosen(cohort),
        )
        total = desk.total(cohort)
        assert (total.late <= headroom(desk, cohort)) is holds
        assert desk.status(cohort) == "open"  # fixed totals go on
        assert isinstance(desk.admit(f"next-{cohort}", krr(1, 20_000), cohort), Admitted)
        desk.verified(cohort)


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
    correct(desk.store, desk.accountant, "early", {"reports": 9_000}, reason="a log", actor="ada")
    desk.verified("phones")


def test_an_incident_in_an_empty_cohort_must_have_come_after_its_opening(desk: Desk) -> None:
    cases: dict[str, dict[str, Any]] = {"silent": {}, "before": {"before": desk.store.now()}}
    for name, times in cases.items():
        desk.open(name)
        answer = desk.incident(f"x-{name}", krr(1, 20_000), name, **times)
        assert (answer.overspent, answer.chosen_after) == (True, True)
        desk.verified(name)
    desk.open("phones")
    first = desk.incident("x", krr(1, 20_000), "phones", after=desk.chosen("phones"))
    assert (first.overspent, first.chosen_after) == (False, False)
    assert isinstance(desk.admit("r", krr(1, 20_000), "phones"), Admitted)
    desk.verified("phones")


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_an_unknown_release_overspends(desk: Desk, policy: str) -> None:
    desk.open("phones", policy=policy, plan={krr(1, 10_000): 3} if policy == "plan" else None)
    desk.admit("r", krr(1, 20_000), "phones")
    answer = desk.incident("x", None, "phones", after=desk.chosen("phones"))
    assert answer.round is None
    assert answer.overspent
    assert desk.status("phones") == "overspent"
    desk.verified("phones")


def test_an_unknown_release_in_an_empty_cohort_overspends(desk: Desk) -> None:
    desk.open("phones")
    assert desk.incident("x", None, "phones").overspent
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


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_frozen_cohort_records_what_it_is_told_and_charges_nothing(desk: Desk, policy: str) -> None:
    desk.open("phones", policy=policy, plan={krr(1, 10_000): 3} if policy == "plan" else None)
    desk.admit("r", krr(1, 20_000), "phones")
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


def test_what_counts_without_the_shuffler_follows_a_settlement_and_a_correction(
    store: Store, accountant: Accountant
) -> None:
    """A settled round counts as it was admitted, until a correction states a larger epsilon0."""
    opened: dict[str, Any] = {"population": 1000, "epsilon": 3.0, "delta": 1e-6, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", **opened)
    declared = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.25)"), reports=2)
    register(store, RoundRequest(round_id="r", cohort="watches", round=declared), actor="tester")
    admit(store, accountant, "r")
    settle(store, accountant, "r", reports=1, actor="tester")
    changes = {"randomizer": parse_randomizer("krr(k=2, epsilon0=0.5)").to_mapping()}
    correct(store, accountant, "r", changes, reason="a log", actor="tester")
    counted = [item.local_count for item in store.holdings("watches")]
    assert sorted(counted) == [0, 0, 1]
    assert verify(store, accountant, "watches", numbers="all").ok


def test_no_correction_takes_back_what_another_one_charged(desk: Desk) -> None:
    desk.open("phones")
    desk.admit("r", krr(0.5, reports=100, sampled_from=1000), "phones")
    first = desk.store.view("phones").spent.epsilon_upper
    desk.correct("r", sampled_from=None)
    worse = desk.store.view("phones").spent.epsilon_upper
    desk.correct("r", sampled_from=1000)
    assert first < worse == desk.store.view("phones").spent.epsilon_upper
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
        assert settle(store, accountant, asked[0].round_id, reports=250, actor="ada").overspent
        largest = store.view("alone").spent.epsilon_upper
        for each in asked[1:]:
            void(store, accountant, each.round_id, reason="cancelled", actor="ada")
        assert store.view("alone").spent.epsilon_upper < 0.3 < largest
        (stated,) = make_statement(store, accountant, ["alone"], made_at=datetime.now(UTC)).cohorts
        assert stated.breach is not None
        assert stated.breach.kept_at_epsilon_upper == largest
