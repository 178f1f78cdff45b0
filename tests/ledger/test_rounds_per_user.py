"""Cohorts whose users take part in a limited number of rounds: only that number of charges counts."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk, rewrite, total_in

pytestmark = pytest.mark.policies


def krr(reports: int, epsilon0: float = 2.0) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports)


LARGE, SMALL = krr(50_000), krr(2_000)


class Desk(AnyDesk):
    """A ledger with the cohort "watches", whose users take part in at most 3 rounds."""

    def __init__(self, store: Store, accountant: Accountant, **changes: Any) -> None:
        super().__init__(store, accountant)
        self.open("watches", **{"rounds_per_user": 3, **changes})

    def open(self, name: str, /, **changes: Any) -> None:
        super().open(name, **{"population": 10**6, "epsilon": 0.4, **changes})

    def ask(self, kind: ShuffledRound = LARGE, cohort: str = "watches") -> Outcome:
        request = RoundRequest(round_id=self.new_name(), cohort=cohort, round=kind)
        return self.decide(request)


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def test_what_one_user_can_lose_stops_growing(desk: Desk) -> None:
    outcomes = [desk.ask() for _ in range(8)]
    assert all(isinstance(each, Admitted) for each in outcomes)
    spent = [each.epsilon_spent_upper for each in outcomes]
    assert spent[0] < spent[1] < spent[2] == spent[3] == spent[7]
    desk.open("all")
    three = [desk.ask(cohort="all") for _ in range(3)][-1]
    assert spent[2] == pytest.approx(three.epsilon_spent_upper, rel=0.1)
    dearer = desk.ask(SMALL)
    assert isinstance(dearer, Admitted)
    assert dearer.epsilon_spent_upper > spent[7], "three such rounds must be within the budget"
    desk.check()


@pytest.mark.slow
def test_settling_correcting_and_incidents_raise_the_largest_and_voids_lower_nothing(desk: Desk) -> None:
    for _ in range(4):
        desk.ask()
    before = desk.store.view("watches").spent.epsilon_upper
    desk.void("round-3")
    assert desk.store.view("watches").spent.epsilon_upper == before
    desk.settle("round-0", 20_000)
    settled = desk.store.view("watches").spent.epsilon_upper
    assert settled > before
    desk.correct("round-1", reports=10_000)
    corrected = desk.store.view("watches").spent.epsilon_upper
    assert corrected > settled
    desk.incident("leak", krr(5_000), "watches", after=datetime.now(UTC))
    assert desk.store.view("watches").spent.epsilon_upper > corrected
    desk.check()
    statement = make_statement(desk.store, desk.accountant, ["watches"], made_at=datetime.now(UTC))
    assert statement.cohorts[0].promise.rounds_per_user == 3
    (said,) = (each for each in statement.conditions if each.name == "A limited number of rounds")
    assert "admitted rounds" in said.holds_when
    assert "incidents are charged beside these" in said.holds_when
    (found,) = verify_bundle(make_bundle(desk.store, ["watches"]).data, desk.accountant).cohorts
    assert found.promise_kept


@pytest.mark.slow
def test_forecasts_and_calibrations_count_so_many(desk: Desk) -> None:
    desk.ask()
    today = datetime.now(UTC).date()
    asked = ForecastWanted(round=LARGE, every="week")
    (kind,) = forecast(desk.store, desk.accountant, "watches", asked, today=today).kinds
    assert kind.rounds_at_least >= 10_000, "more rounds of this kind cost no more"
    desk.ask(SMALL)
    both = forecast(desk.store, desk.accountant, "watches", ForecastWanted(every="week"), today=today)
    assert both.together is not None
    assert both.together.periods_at_least > 100
    described: dict[str, Any] = {**LARGE.to_mapping(), "randomizer": {"kind": "krr", "k": 10}}
    one = calibrate_for(desk.store, desk.accountant, "watches", described, rounds=1).epsilon0
    many = calibrate_for(desk.store, desk.accountant, "watches", described, rounds=50).epsilon0
    assert one >= many > 2.0
    assert isinstance(desk.ask(krr(50_000, many)), Admitted)
    desk.check()


def test_only_filters_count_rounds_of_users(store: Store, accountant: Accountant) -> None:
    with pytest.raises(InvalidValue, match="rounds_per_user"):
        Desk(store, accountant, policy="plan", plan={LARGE: 2})


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, 10**7])
def test_the_number_is_a_whole_one(store: Store, accountant: Accountant, wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="rounds_per_user"):
        Desk(store, accountant, rounds_per_user=wrong)


def test_cohorts_without_it_have_the_usual_rules(desk: Desk) -> None:
    desk.open("plain")
    plain, limited = (desk.store.entry(name, 1).content().details for name in ("plain", "watches"))
    assert limited["rules"] == {**plain["rules"], "rounds_per_user": 3}
    assert limited["limits"] == {name: one for name, one in plain["limits"].items() if name != "sliding"}


def _release_twice(desk: Desk) -> float:
    """Admit 5 rounds, tell of one that its reports were released twice, and return what was then spent."""
    for _ in range(5):
        desk.ask()
    desk.incident("again", LARGE, "watches", after=datetime.now(UTC))
    desk.check()
    return desk.store.view("watches").spent.epsilon_upper


@pytest.mark.slow
def test_an_incident_counts_beside_the_rounds_that_devices_count(desk: Desk) -> None:
    """A device that joined 3 rounds has 4 charges, if the reports of one of them were released again."""
    spent = _release_twice(desk)
    desk.open("four", rounds_per_user=4)
    four = [desk.ask(cohort="four") for _ in range(4)][-1]
    assert isinstance(four, Admitted)
    assert spent == pytest.approx(four.epsilon_spent_upper, rel=1e-9)
    desk.correct("again", reports=20_000)
    total = total_in(desk.store, "watches")
    assert (total.rounds, total.incidents) == (6, 1), "a correction counts the incident no second time"
    corrected = desk.store.view("watches").spent.epsilon_upper
    later = desk.ask()
    assert isinstance(later, Admitted)
    assert later.epsilon_spent_upper == corrected
    desk.check()
    (found,) = verify_bundle(make_bundle(desk.store, ["watches"]).data, desk.accountant).cohorts
    assert found.promise_kept


def test_another_number_than_the_rules_have_is_found(desk: Desk) -> None:
    def more(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, details={**body.details, "rounds_per_user": 9})

    rewrite(desk.store, 1, more)
    assert "details.rules.rounds_per_user does not follow" in str(verify(desk.store, desk.accountant))
