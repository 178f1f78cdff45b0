"""Ceilings: they are promised whether the budget is raised or not, and no budget is raised beyond one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import (
    Accountant,
    FilterSet,
    ShuffledRound,
    exact_text,
    parse_randomizer,
    upper_text,
)
from shuffle_ledger.ledger.decisions import (
    change_budget,
    register_and_admit,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.machine import Limits
from shuffle_ledger.ledger.policies.numbers import read, spelled
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, rewrite, state_in

pytestmark = pytest.mark.policies

KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=10_000)
SLACK = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1)"), reports=20_000, delta0=1e-15)


class Desk(AnyDesk):
    """A ledger with the cohort "watches", of epsilon 0.2 and ceiling 0.4."""

    def __init__(self, store: Store, accountant: Accountant) -> None:
        super().__init__(store, accountant)
        self.open("watches", epsilon=0.2, ceiling=0.4)

    def admitted(self, cohort: str = "watches", kind: ShuffledRound = KRR, most: int = 60) -> int:
        for count in range(most):
            request = RoundRequest(round_id=self.new_name(), cohort=cohort, round=kind)
            if isinstance(self.decide(request), Refused):
                return count
        return most

    def change(self, epsilon: float, cohort: str = "watches") -> None:
        change_budget(self.store, cohort, epsilon=epsilon, reason="why", actor="ada")


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def test_the_budget_is_raised_up_to_its_ceiling(desk: Desk) -> None:
    desk.open("small", epsilon=0.2)
    assert desk.admitted() == desk.admitted("small")
    desk.change(0.3)
    assert desk.admitted() > 0
    desk.change(0.25)
    for epsilon in (0.4000001, 0.5, 1e308):
        with pytest.raises(InvalidValue, match="the ceiling"):
            desk.change(epsilon)
    assert desk.store.cohort("watches").epsilon_budget == 0.25
    desk.change(0.4)
    desk.check()


def test_a_cohort_without_a_ceiling_is_as_before(desk: Desk) -> None:
    desk.open("plain", epsilon=0.2)
    desk.change(0.3, cohort="plain")
    body = desk.store.entry("plain", 1).content()
    assert body.details["rules"]["filters"] == FilterSet.for_budget(epsilon=0.2, delta=1e-6).to_mapping()
    assert "ceiling" not in body.details
    for ceiling in (0.1, float("nan"), float("inf"), 0.0):
        with pytest.raises(InvalidValue, match="ceiling"):
            desk.open("bad", epsilon=0.2, ceiling=ceiling)


@pytest.mark.slow
def test_slack_is_priced_at_the_ceiling_from_the_beginning(desk: Desk) -> None:
    """The price of slack must be one on all paths, also on those on which the budget stays."""
    desk.open("low", epsilon=0.2, ceiling=3.0)
    desk.open("none", epsilon=0.2)
    desk.open("high", epsilon=3.0)
    used = {}
    for name in ("low", "none", "high"):
        desk.admitted(name, SLACK, most=1)
        used[name] = state_in(desk.store, name).limits.slack
    assert used["low"] == used["high"] < used["none"], "a unit of slack costs 1 + exp(epsilon)"
    desk.check()


@pytest.mark.slow
def test_what_breaks_the_budget_and_not_the_ceiling_breaks_no_promise(desk: Desk) -> None:
    assert desk.admitted(most=3) == 3
    told = desk.correct("round-0", reports=1_000)
    assert not told.overspent
    view = desk.store.view("watches")
    assert 0.2 < view.spent.epsilon_upper <= 0.4
    assert view.cohort.status == "open"
    assert desk.admitted() == 0
    (kind,) = forecast(
        desk.store, desk.accountant, "watches", ForecastWanted(round=KRR), today=datetime.now(UTC).date()
    ).kinds
    assert kind.rounds_at_least == 0
    statement = make_statement(desk.store, desk.accountant, ["watches"], made_at=datetime.now(UTC))
    (one,) = statement.cohorts
    assert (one.verdict, one.promise.epsilon_guaranteed, one.promise.epsilon_budget) == ("kept", 0.4, 0.2)
    (found,) = verify_bundle(make_bundle(desk.store, ["watches"]).data, desk.accountant).cohorts
    assert found.promise_kept
    desk.check()
    assert desk.correct("round-1", reports=150).overspent
    assert (
        make_statement(desk.store, desk.accountant, ["watches"], made_at=datetime.now(UTC)).cohorts[0].verdict
        == "broken"
    )
    desk.check()


def test_a_plan_within_its_ceiling_waits_until_the_budget_is_raised(desk: Desk) -> None:
    desk.open("other", epsilon=0.05, ceiling=0.4, policy="plan", plan={KRR: 5})
    assert desk.admitted("other") == 0
    desk.check()
    desk.change(0.4, "other")
    assert desk.admitted("other") == 5
    desk.check()


def test_a_plan_that_promises_more_than_a_lowered_budget_admits_nothing(desk: Desk) -> None:
    other = dataclasses.replace(KRR, reports=20_000)
    desk.open("other", epsilon=0.2, ceiling=0.4, policy="plan", plan={KRR: 5, other: 1})
    request = RoundRequest(round_id="first", cohort="other", round=KRR)
    assert isinstance(register_and_admit(desk.store, desk.accountant, request, actor="ada")[0], Admitted)
    promised = budget(desk.store, desk.accountant, "other").epsilon_promised_upper
    assert promised is not None
    desk.change(promised * (1 - 1e-12), "other")
    assert desk.store.cohort("other").status == "open"
    assert [each.rounds_at_least for each in budget(desk.store, desk.accountant, "other").fits] == [0, 0]
    today = datetime.now(UTC).date()
    wanted = ForecastWanted(every="week")
    found = forecast(desk.store, desk.accountant, "other", wanted, today=today)
    assert {(each.rounds_at_least, each.next_is_refused, each.limited_by) for each in found.kinds} == {
        (0, True, "promise")
    }
    assert found.together is not None
    assert found.together.periods_at_least == 0
    request = dataclasses.replace(request, round_id="second")
    refused, _ = register_and_admit(desk.store, desk.accountant, request, actor="ada")
    assert isinstance(refused, Refused)
    assert refused.reason == "budget_exceeded"
    assert refused.epsilon_requested_upper is not None
    assert refused.epsilon_requested_upper < refused.epsilon_budget
    told = f"its plan promises {upper_text(promised)} of {exact_text(refused.epsilon_budget)}"
    assert told in refused.message


def refused_by_promise(desk: Desk) -> None:
    """Open a plan, lower its budget below its promise, and ask for a round that its slot dominates."""
    plan = {KRR: 5, dataclasses.replace(KRR, reports=20_000): 1}
    desk.open("other", epsilon=0.2, ceiling=0.4, policy="plan", plan=plan)
    assert desk.admitted("other", most=1) == 1
    desk.change(0.1, "other")
    assert desk.admitted("other", kind=dataclasses.replace(KRR, reports=15_000)) == 0


def test_a_refusal_by_a_plans_promise_is_verified(desk: Desk) -> None:
    refused_by_promise(desk)
    desk.check()
    assert verify(desk.store, desk.accountant, numbers="all").ok
    report = verify_bundle(make_bundle(desk.store, ["other"]).data, desk.accountant, numbers="all")
    assert report.ok, report.findings


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"reason": "unbounded_loss"}, "details.reason does not follow"),
        ({"reason": "no_free_slot"}, "details.reason does not follow"),
        ({"cost": {"fits": [0, 1]}}, "details.cost.fits does not follow"),
        ({"charge": {"kind": 1, "claimed": 1, "units": 1}}, "details.charge"),
        ({"charge": ...}, "details.charge does not follow"),
        ({"requested": None, "privacy_loss": None}, "details.privacy_loss is not written"),
        (
            {"requested": None, "privacy_loss": None, "cost": ..., "charge": ...},
            "it does not say what its round costs",
        ),
        (
            {
                "requested": None,
                "privacy_loss": None,
                "cost": ...,
                "charge": ...,
                "reason": "no_free_slot",
            },
            "it does not say what its round costs",
        ),
    ],
)
def test_a_forged_refusal_by_a_plans_promise_is_found(
    desk: Desk, changes: dict[str, object], found: str
) -> None:
    def forge(body: EntryBody) -> EntryBody:
        details = {name: value for name, value in {**body.details, **changes}.items() if value is not ...}
        return dataclasses.replace(body, details=details)

    refused_by_promise(desk)
    rewrite(desk.store, 4, forge, cohort="other")
    report = verify(desk.store, desk.accountant)
    assert not report.ok
    assert found in str(report)


FORGERIES: dict[str, tuple[int, Callable[[EntryBody], EntryBody], str]] = {
    "beyond": (2, lambda body: dataclasses.replace(body, epsilon_budget=0.5), "above the ceiling"),
    "opened beyond": (
        1,
        lambda body: dataclasses.replace(body, details={**body.details, "ceiling": 0.1}),
        "expected at least epsilon",
    ),
    "no number": (
        1,
        lambda body: dataclasses.replace(body, details={**body.details, "ceiling": "0.4"}),
        "ceiling: got",
    ),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_forged_raises_are_found(desk: Desk, how: str) -> None:
    desk.change(0.3)
    desk.check()
    sequence, forge, found = FORGERIES[how]
    rewrite(desk.store, sequence, forge)
    report = verify(desk.store, desk.accountant)
    assert not report.ok
    assert found in str(report)


def test_slack_that_is_priced_below_the_ceiling_is_found(desk: Desk) -> None:
    def cheaper(body: EntryBody) -> EntryBody:
        limits = dataclasses.replace(read(Limits, body.details["limits"]), slack=at_the_budget)
        return dataclasses.replace(body, details={**body.details, "limits": spelled(limits)})

    desk.open("plain", epsilon=0.2)
    at_the_budget = state_in(desk.store, "plain").limits.slack
    rewrite(desk.store, 1, cheaper)
    assert "larger than their shares of delta" in str(verify(desk.store, desk.accountant))


def test_the_database_keeps_what_was_declared(desk: Desk) -> None:
    for column in ("ceiling", "quota", "local_budget"):
        with (
            pytest.raises(Exception, match="keeps what it was opened with"),
            desk.store.engine.begin() as connection,
        ):
            connection.execute(text(f"UPDATE cohorts SET {column} = :value"), {"value": b"9.0"})  # noqa: S608
