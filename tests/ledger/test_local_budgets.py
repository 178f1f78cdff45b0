"""Local budgets: the epsilon0 of a user's rounds never add up to more than the limit, by the exact sum."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    fits_instead,
    register_and_admit,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, RefusalReason, Refused, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, rewrite

pytestmark = pytest.mark.policies


def krr(epsilon0: float) -> ShuffledRound:
    return ShuffledRound(
        randomizer=parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0}), reports=50_000
    )


TWO = krr(2.0)


class Desk(AnyDesk):
    """A ledger with the cohort "watches", whose users' epsilon0 add up to at most 10."""

    def __init__(self, store: Store, accountant: Accountant, **changes: Any) -> None:
        super().__init__(store, accountant)
        self.open("watches", **{"population": 10**6, "epsilon": 5.0, "local_budget": 10.0, **changes})

    def ask(self, kind: ShuffledRound = TWO) -> Outcome:
        request = RoundRequest(round_id=self.new_name(), cohort="watches", round=kind)
        return self.decide(request)


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def test_rounds_are_admitted_up_to_the_limit_and_voided_ones_still_count(desk: Desk) -> None:
    outcomes = [desk.ask() for _ in range(6)]
    assert [isinstance(each, Admitted) for each in outcomes] == [True] * 5 + [False]
    refused = outcomes[-1]
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.LOCAL_BUDGET_EXCEEDED
    assert "add up to 12 of 10 (10 used)" in refused.message
    desk.void("round-0")
    assert isinstance(desk.ask(krr(0.01)), Refused), "its reports may have been sent"
    found = budget(desk.store, desk.accountant, "watches")
    assert (found.local_epsilon_upper, found.local_budget) == (10.0, 10.0)
    desk.check()


@pytest.mark.slow
def test_forecasts_calibrations_and_what_fits_know_the_limit(desk: Desk) -> None:
    desk.ask()
    asked = ForecastWanted(round=TWO, every="week")
    today = datetime.now(UTC).date()
    (kind,) = forecast(desk.store, desk.accountant, "watches", asked, today=today).kinds
    assert (kind.rounds_at_least, kind.next_is_refused, kind.limited_by) == (4, True, "local_budget")
    assert budget(desk.store, desk.accountant, "watches").fits[0].rounds_at_least == 4
    described: dict[str, Any] = {**TWO.to_mapping(), "randomizer": {"kind": "krr", "k": 10}}
    found = calibrate_for(desk.store, desk.accountant, "watches", described, rounds=2)
    assert 3.9 < found.epsilon0 <= 4.0


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_quote_counts_the_rounds_that_the_limit_lets_fit(
    store: Store, accountant: Accountant, policy: str
) -> None:
    kind = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=2)"), reports=2000)
    desk = Desk(store, accountant, policy=policy, plan={kind: 9} if policy == "plan" else None)
    assert isinstance(desk.ask(kind), Admitted)
    quoted = RoundRequest(round_id="quoted", cohort="watches", round=kind)
    assert fits_instead(store, accountant, quoted).rounds == 4
    outcomes = [desk.ask(kind) for _ in range(5)]
    assert [isinstance(each, Admitted) for each in outcomes] == [True] * 4 + [False]
    assert isinstance(outcomes[-1], Refused)
    assert outcomes[-1].reason is RefusalReason.LOCAL_BUDGET_EXCEEDED


def test_several_reports_of_a_user_count_each(desk: Desk) -> None:
    thrice = dataclasses.replace(krr(1.5), reports_per_user=3)
    assert [isinstance(desk.ask(thrice), Admitted) for _ in range(3)] == [True, True, False]
    assert budget(desk.store, desk.accountant, "watches").local_epsilon_upper == 9.0
    assert [isinstance(desk.ask(krr(0.5)), Admitted) for _ in range(3)] == [True, True, False]
    desk.check()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), True])
def test_a_limit_is_a_positive_number(store: Store, accountant: Accountant, limit: float) -> None:
    with pytest.raises(InvalidValue, match="local_budget"):
        Desk(store, accountant, local_budget=limit)


def test_decisions_against_the_limit_are_found(desk: Desk) -> None:
    for _ in range(6):
        desk.ask()

    def lowered(body: EntryBody) -> EntryBody:
        return _with_limit(body, 7)

    def raised(body: EntryBody) -> EntryBody:
        return _with_limit(body, 70)

    def unequal(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, details={**body.details, "local_budget": 70.0})

    rewrite(desk.store, 1, lowered)
    assert "admits a round beyond the budget, by its own numbers" in str(verify(desk.store, desk.accountant))
    rewrite(desk.store, 1, raised)
    assert "details.reason does not follow" in str(verify(desk.store, desk.accountant))
    rewrite(desk.store, 1, lowered)
    rewrite(desk.store, 1, unequal)
    assert "details.limits.local does not follow" in str(verify(desk.store, desk.accountant))


def test_a_cost_below_the_epsilon0_of_its_reports_is_found(desk: Desk) -> None:
    desk.ask()

    def cheaper(body: EntryBody) -> EntryBody:
        cost = {**body.details["cost"], "local": str(10**30)}
        return dataclasses.replace(body, details={**body.details, "cost": cost})

    rewrite(desk.store, 2, cheaper)
    assert "details.cost.local does not follow" in str(verify(desk.store, desk.accountant))


def test_ten_rounds_of_a_tenth_fit_a_limit_of_one(store: Store, accountant: Accountant) -> None:
    desk = Desk(store, accountant, local_budget=1.0)
    assert [isinstance(desk.ask(krr(0.1)), Admitted) for _ in range(11)] == [True] * 10 + [False]
    assert budget(store, accountant, "watches").local_epsilon_upper == 1.0


def test_a_correction_counts_the_largest_epsilon0_that_was_stated(desk: Desk) -> None:
    desk.ask(krr(3.0))
    for epsilon0 in (4.0, 1.0):
        desk.correct("round-0", randomizer=krr(epsilon0).randomizer.to_mapping())
    assert isinstance(desk.ask(krr(6.5)), Refused)
    assert isinstance(desk.ask(krr(6.0)), Admitted)
    desk.check()


def _with_limit(body: EntryBody, limit: int) -> EntryBody:
    limits = {**body.details["limits"], "local": str(limit * 10**30)}
    details = {**body.details, "local_budget": float(limit), "limits": limits}
    return dataclasses.replace(body, details=details)


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.tuples(st.floats(0.01, 9.0), st.integers(0, 5)), max_size=4))
def test_what_is_shown_is_the_exact_sum_rounded_up(counts: list[tuple[float, int]]) -> None:
    spent: dict[ShuffledRound, int] = {}
    for epsilon0, count in counts:
        spent[krr(epsilon0)] = spent.get(krr(epsilon0), 0) + count
    total = sum((Fraction(repr(epsilon0)) * count for epsilon0, count in counts), Fraction(0))
    upper, _ = local_bounds(spent.items())
    assert Fraction(repr(upper)) >= total
    assert upper == 0.0 or Fraction(repr(math.nextafter(upper, 0.0))) < total


WEEKLY = Window(unit="week", epsilon=3.0, delta=1e-7, local_budget=4.0)


@pytest.mark.slow
def test_each_period_of_a_window_has_its_limit(store: Store, accountant: Accountant) -> None:
    desk = Desk(store, accountant, windows=[WEEKLY])
    today = datetime.now(UTC).date()
    (kind,) = forecast(store, accountant, "watches", ForecastWanted(round=TWO), today=today).kinds
    assert (kind.rounds_at_least, kind.limited_by) == (2, "window week")
    described: dict[str, Any] = {**TWO.to_mapping(), "randomizer": {"kind": "krr", "k": 10}}
    assert 1.9 < calibrate_for(store, accountant, "watches", described, rounds=2).epsilon0 <= 2.0
    assert [isinstance(desk.ask(), Admitted) for _ in range(3)] == [True, True, False]
    week = f"watches@{today:%G-W%V}"
    assert store.cohort(week).local_budget == 4.0
    later = RoundRequest(
        round_id="later", cohort="watches", round=TWO, collected_on=today + timedelta(days=7)
    )
    assert isinstance(register_and_admit(store, accountant, later, actor="ada")[0], Admitted)
    desk.check()
    for wrong in (0.0, float("nan"), float("inf"), True, "4"):
        with pytest.raises(InvalidValue, match="window"):
            Window(unit="week", epsilon=3.0, delta=1e-7, local_budget=wrong)  # type: ignore[arg-type]  # also a text
    assert Window.from_text("calendar=week,epsilon=3,delta=1e-7,local_budget=4") == WEEKLY
    assert Window.from_mapping(WEEKLY.to_mapping()) == WEEKLY


@pytest.mark.parametrize("policy", ["adaptive", "plan"])
def test_a_report_without_an_epsilon_is_refused_with_a_sentence_that_helps(
    store: Store, accountant: Accountant, policy: str
) -> None:
    number, vector, common = (
        ShuffledRound(randomizer=parse_randomizer(written), reports=50_000)
        for written in (
            "local_gaussian(sigma=4)",
            "local_gaussian(sigma=4, delta0=1e-16)",
            "binomial_sum(p=0.25, bits=4)",
        )
    )
    plan = {number: 1, vector: 1, common: 1} if policy == "plan" else None
    desk = Desk(store, accountant, policy=policy, plan=plan)
    for kind, remedy in (
        (number, "State a delta0 in local_gaussian"),
        (common, "its local budget of 10 admits"),
    ):
        refused = desk.ask(kind)
        assert isinstance(refused, Refused)
        assert refused.reason is RefusalReason.LOCAL_BUDGET_EXCEEDED
        assert "which alone has no finite epsilon0" in refused.message
        assert remedy in refused.message
    assert isinstance(desk.ask(vector), Admitted)
    found = budget(desk.store, desk.accountant, "watches")
    assert (found.local_epsilon_upper, found.local_delta_upper) == (vector.randomizer.epsilon0, 1e-16)
    desk.check()
