"""Rounds with several reports of a user in a ledger: charged, settled, corrected, replayed and bundled."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    FilterCharge,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    charged_as,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.ledger.decisions import (
    quote,
)
from shuffle_ledger.ledger.decisions.descriptions import described_otherwise, local_kind, with_reports
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.evidence.conditions import (
    OF_SEVERAL_REPORTS,
    PRIVACY_UNIT,
    PRIVACY_UNIT_OF_SEVERAL,
)
from shuffle_ledger.ledger.evidence.second_opinions import SecondOpinions
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.machine import Total
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Outcome,
    Refused,
    RoundRequest,
    request_of,
)
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, total_in

pytestmark = pytest.mark.policies

POPULATION, DELTA = 10_000, 1e-6


def krr(reports: int, per_user: int = 2, **more: Any) -> ShuffledRound:
    randomizer = parse_randomizer("krr(k=10, epsilon0=2)")
    return ShuffledRound(randomizer=randomizer, reports=reports, reports_per_user=per_user, **more)


class Desk(AnyDesk):
    """A ledger, and short words for what is done to it."""

    def open(self, name: str = "phones", /, **more: Any) -> None:
        super().open(name, **{"population": POPULATION, **more})

    def ask(self, name: str, described: ShuffledRound) -> Outcome:
        return self.decide(request_of(("phones",), described, round_id=name))

    def total(self, cohort: str = "phones") -> Total:
        return total_in(self.store, cohort)

    def has_cost(self, charge: FilterCharge, cohort: str = "phones") -> bool:
        """Whether this is what all rounds of a cohort cost together."""
        cost, total = cost_of(charge), self.total(cohort)
        return all(
            getattr(cost, name) == getattr(total, name)
            for name in ("gaussian", "divergences", "certain", "slack")
        )

    def statement(self, *cohorts: str) -> Statement:
        made_at = datetime.now(UTC)
        return make_statement(self.store, self.accountant, cohorts or ("phones",), made_at=made_at)


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


@pytest.mark.slow
def test_an_admission_a_settlement_and_a_correction_add_up(desk: Desk) -> None:
    desk.open(population=20_000)
    described = krr(18_000)
    asked = quote(desk.store, desk.accountant, request_of(("phones",), described, round_id="a"))
    admitted = desk.ask("a", described)
    assert isinstance(admitted, Admitted)
    assert asked.epsilon_requested_upper == admitted.epsilon_spent_upper
    assert admitted.accounted == slot_for(described)
    assert desk.store.view("phones").held == {admitted.accounted: 1}
    # By another accountant, from the definition: two rounds of half of the reports.
    filters = FilterSet.for_budget(epsilon=1.0, delta=DELTA)
    single, count = charged_as(admitted.accounted)
    assert (single, count) == (slot_for(krr(9_000, 1)), 2)
    cost = Accountant().charge(single, filters) * 2
    assert desk.has_cost(cost)
    settled = desk.settle("a", 12_000)
    fewer = Accountant().charge(slot_for(krr(6_000, 1)), filters) * 2
    assert settled.accounted == slot_for(krr(12_000))
    assert desk.has_cost(fewer)
    corrected = desk.correct("a", reports_per_user=3)
    thrice = Accountant().charge(slot_for(krr(4_000, 1)), filters) * 3
    assert corrected.accounted == slot_for(krr(12_000, 3))
    assert desk.has_cost(thrice)
    assert not desk.correct("a", reports_per_user=1).changed  # a charge never shrinks
    assert desk.has_cost(thrice)
    assert isinstance(desk.ask("b", krr(9_000, 1)), Admitted)
    desk.audit()


@pytest.mark.slow
def test_a_plan_reserves_slots_of_several_reports(desk: Desk) -> None:
    slot, small = krr(4_000), krr(1_500, 1)
    desk.open(policy="plan", plan={slot: 1, small: 1})
    assert isinstance(desk.ask("three", krr(6_000, 3)), Refused)  # never three in two
    assert isinstance(desk.ask("a", krr(5_000)), Admitted)
    assert isinstance(desk.ask("many", krr(9_000)), Refused)  # two are never one
    admitted = desk.ask("b", krr(2_000, 1))
    assert isinstance(admitted, Admitted)
    assert admitted.accounted == small
    assert desk.settle("a", 4_000).overspent is False
    desk.audit()
    statement = desk.statement().cohorts[0]
    assert statement.local_epsilon_upper == 2 * 2.0 + 2.0
    # Two rounds of 1,999 reports fit nothing: fewer hide each other than the slot says.
    assert desk.correct("a", reports=3_998).overspent is True
    desk.audit()


def test_sizes_count_users(desk: Desk) -> None:
    desk.open()
    with pytest.raises(InvalidValue, match="2 times the cohort's population, 20000"):
        desk.ask("a", krr(2 * POPULATION + 1))
    with pytest.raises(InvalidValue, match="sampled_from"):
        desk.ask("a", krr(100, sampled_from=POPULATION + 1))
    assert isinstance(desk.ask("a", krr(2 * POPULATION)), Admitted)
    with pytest.raises(InvalidValue, match="2 times the cohort's population, 20000"):
        desk.settle("a", 2 * POPULATION + 1)
    with pytest.raises(InvalidValue, match="the cohort's population, 10000"):
        desk.correct("a", reports_per_user=1)
    desk.settle("a", 2 * POPULATION)
    assert verify(desk.store, desk.accountant).ok
    with pytest.raises(InvalidValue, match="the cohort's population, 10000"):
        desk.ask("b", krr(POPULATION + 1, 1))


def test_an_incident_is_charged_as_its_rounds(desk: Desk) -> None:
    desk.open()
    desk.incident("lost", krr(8_000), "phones", after=desk.store.now())
    cost = Accountant().charge(slot_for(krr(4_000, 1)), FilterSet.for_budget(epsilon=1, delta=DELTA))
    assert desk.has_cost(cost * 2)
    assert verify(desk.store, desk.accountant, numbers="all").ok


def test_the_local_budget_counts_every_report() -> None:
    one, several = krr(100, 1), krr(100, 3, honest_fraction=0.5)
    assert local_bounds([(several, 2), (one, 1)])[0] == 14.0
    local = ShuffledRound(
        randomizer=parse_randomizer("generic(epsilon0=1)"),
        reports=100,
        delta0=1e-9,
        analysis="clone-identical",
        reports_per_user=3,
    )
    assert math.isclose(local_bounds([(local, 1)])[1], 3e-9, rel_tol=1e-12)
    assert local_kind([several, one]) == several
    assert local_kind([one, several]) == several
    more = dataclasses.replace(one, randomizer=parse_randomizer("krr(k=10, epsilon0=5)"))
    assert local_kind([several, more]) == several
    assert local_kind([krr(100, 2), more]) == more


def test_fewer_reports_than_a_user_may_send_leave_nobody_to_hide_behind() -> None:
    few = with_reports(krr(100, 5, honest_fraction=0.1), 3)
    assert charged_as(few) == (krr(1, 1), 5)
    assert charged_as(with_reports(krr(100, 5), 3)) == (krr(1, 1), 3)
    sampled = with_reports(krr(100, 2, sampled_from=60), 150)
    assert (sampled.reports, sampled.sampled_from) == (150, 75)


@pytest.mark.slow
def test_more_reports_than_declared_may_come_from_one_user(desk: Desk) -> None:
    desk.open(epsilon=12.0)
    admitted = desk.ask("a", krr(3, 5))
    assert isinstance(admitted, Admitted)
    assert charged_as(admitted.accounted) == (krr(1, 1), 3)
    # Ten reports hide each other better than three, but five of them may be one user's.
    settled = desk.settle("a", 10)
    assert charged_as(settled.accounted) == (krr(2, 1), 5)
    assert settled.epsilon_spent_upper > admitted.epsilon_spent_upper
    assert desk.statement().cohorts[0].local_epsilon_upper == 10.0
    assert verify(desk.store, desk.accountant).ok


def test_the_second_method_answers_for_one_of_the_rounds(accountant: Accountant) -> None:
    opinions = SecondOpinions(accountant)
    assert opinions.on_kind(krr(200)) is None
    assert opinions.confirmed == {krr(100, 1)}
    held = {krr(200): 1, krr(100, 1): 1}
    known = accountant.certify(held, delta=DELTA)
    computed = (known.epsilon_lower, known.epsilon_upper)
    second = opinions.on_composition(held, delta=DELTA, computed=computed)
    assert second is not None
    assert second.agrees


def test_a_correction_to_one_report_states_the_sampling_rate_anew() -> None:
    sampled = krr(1_000, sampled_from=5_000)  # of 1,000 users, say, half of whom were lost
    with pytest.raises(InvalidParameter, match="reports divided by it are then the sampling rate"):
        described_otherwise(sampled, {"reports_per_user": 1, "reports": 500})
    assert described_otherwise(sampled, {"reports_per_user": 1, "sampled_from": 2_500}).sampled_from == 2_500
    assert described_otherwise(sampled, {"reports_per_user": 1, "sampled_from": None}) == krr(1_000, 1)
    assert described_otherwise(sampled, {"reports_per_user": 3}).sampled_from == 5_000


def test_a_correction_to_several_reports_needs_one_randomizer_for_all(desk: Desk) -> None:
    desk.open()
    generic = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1)"), reports=5_000)
    assert isinstance(desk.ask("a", generic), Admitted)
    with pytest.raises(InvalidParameter, match="as tight and clone-identical do"):
        desk.correct("a", reports_per_user=2)
    told = desk.correct("a", reports_per_user=2, analysis="tight")
    assert told.accounted.reports_per_user == 2
    assert desk.statement().cohorts[0].local_epsilon_upper == 2.0
    assert verify(desk.store, desk.accountant, numbers="all").ok


def test_too_small_a_charge_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open()
    real = Accountant.charge
    monkeypatch.setattr(
        Accountant, "charge", lambda own, one, filters: real(own, charged_as(one)[0], filters)
    )
    assert isinstance(desk.ask("a", krr(8_000)), Admitted)
    monkeypatch.undo()
    (found,) = verify(desk.store, Accountant()).cohorts
    assert any("the charge it states is too small" in problem.what for problem in found.problems)


def test_a_statement_says_on_which_condition(desk: Desk) -> None:
    desk.open()
    desk.ask("a", krr(5_000, 1))
    before = desk.statement()
    assert OF_SEVERAL_REPORTS not in before.conditions
    assert before.cohorts[0].promise.privacy_unit == PRIVACY_UNIT
    desk.ask("b", krr(8_000))
    after = desk.statement()
    assert OF_SEVERAL_REPORTS in after.conditions
    assert "at most as many reports as the round states" in after.cohorts[0].promise.privacy_unit


def test_a_statement_knows_of_several_reports_that_a_correction_tells(desk: Desk) -> None:
    """Without the shuffler the round counts as declared, for that is more; it has several reports now."""
    desk.open()
    desk.ask("a", krr(5_000, 1))
    assert desk.statement().cohorts[0].interaction == "sequentially interactive"
    desk.correct("a", reports_per_user=2, randomizer={"kind": "krr", "k": 2, "epsilon0": 0.25})
    after = desk.statement()
    assert [kind.reports_per_user for kind in desk.store.view("phones").local] == [1]
    assert after.cohorts[0].promise.privacy_unit == PRIVACY_UNIT_OF_SEVERAL
    assert after.cohorts[0].interaction == "fully interactive"
    assert OF_SEVERAL_REPORTS in after.conditions


def test_requests_of_one_report_of_each_user_do_not_write_the_field() -> None:
    request = RoundRequest(round_id="a", cohort="phones", round=krr(1_000, 1))
    assert b"reports_per_user" not in request.to_bytes()
    several = dataclasses.replace(request, round=krr(1_000, 2))
    assert b'"reports_per_user":2' in several.to_bytes()
    assert RoundRequest.from_bytes(several.to_bytes()) == several
    assert not several.repeats(request.to_bytes())
    assert not request.repeats(several.to_bytes())
    assert entries.round_bytes(krr(1_000, 1)) == entries.round_bytes(charged_as(krr(2_000))[0])
