"""Cohorts without a budget of their life: only those of periods limit and promise anything."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.cli.rendering.statements.document import document_from
from shuffle_ledger.ledger.decisions import change_budget, set_quota, settle, void
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.errors import Conflict, InvalidValue
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.policies.registry import rules_digest
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.reports.listing import most_used
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.documents import document_of, value_of
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import Admitted, Cohort, Refused
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import rewrite
from tests.ledger.test_windows import DAY, KRR, WEEK, Desk, a_monday, alone

NO_LIFE: dict[str, Any] = {"epsilon": None, "delta": None}
APPROXIMATE = ShuffledRound(randomizer=parse_randomizer("declared(epsilon=1, delta=1e-9)"), reports=10_000)


def opened(found: Desk) -> Desk:
    found.open("watches", WEEK, **NO_LIFE)
    return found


@pytest.fixture
def each_desk(store: Store, accountant: Accountant) -> Desk:
    return opened(Desk(store, accountant))


@pytest.fixture
def desk(sqlite_url: str, accountant: Accountant) -> Iterator[Desk]:
    with Store.connect(sqlite_url) as store:
        yield opened(Desk(store, accountant))


@pytest.mark.slow
def test_each_week_admits_what_it_admits_alone_however_many_weeks_there_are(each_desk: Desk) -> None:
    desk = each_desk
    monday, most = a_monday(), alone(desk, WEEK)
    for week in range(3):
        assert desk.admitted(monday + 7 * week * DAY, cohort="watches") == most
    view = desk.store.view("watches")
    assert (view.cohort.status, view.spent.rounds) == ("open", 3 * most)
    assert (view.spent.epsilon_upper, view.spent.delta) == (math.inf, 1.0), "of no budget, no number"
    assert view.details["standing"]["total"] == {}
    refused = desk.ask(monday, cohort="watches")
    assert isinstance(refused, Refused)
    assert [one.cohort for one in refused.refused_by] == [f"watches@{monday:%G-W%V}"]
    desk.check()
    assert all(
        each.ok for each in verify_bundle(make_bundle(desk.store, desk.names()).data, desk.accountant).cohorts
    )


@pytest.mark.slow
def test_forecasts_and_calibrations_ask_the_windows_alone(desk: Desk) -> None:
    most = alone(desk, WEEK)
    desk.ask(a_monday(), cohort="watches")
    wanted = ForecastWanted(round=KRR)
    today = datetime.now(UTC).date()
    (kind,) = forecast(desk.store, desk.accountant, "watches", wanted, today=today).kinds
    in_use = desk.store.cohorts(only=[f"watches@{today:%G-W%V}"])
    assert kind.rounds_at_least == most - len(in_use)
    assert kind.limited_by == "window week"
    (fitting,) = budget(desk.store, desk.accountant, "watches").fits
    assert fitting.rounds_at_least == kind.rounds_at_least
    described = {**KRR.to_mapping(), "randomizer": {"kind": "krr", "k": 10}}
    found = calibrate_for(desk.store, desk.accountant, "watches", described, rounds=2, width=1e-2)
    assert found.epsilon0 > 2, "most rounds of epsilon0 2 fit into a week"


def test_a_calibration_is_decided_by_the_period_with_the_least_left(desk: Desk) -> None:
    days = Window(unit="day", sliding=3, epsilon=0.5, delta=1e-7)
    desk.open("weekly", days, **NO_LIFE)
    today = datetime.now(UTC).date()
    assert isinstance(desk.ask(today + DAY, cohort="weekly"), Admitted)
    described = {**KRR.to_mapping(), "randomizer": {"kind": "krr", "k": 10}}
    found = calibrate_for(desk.store, desk.accountant, "weekly", described, width=0.1)
    tightest = f"weekly@{today}+3d"
    assert desk.store.view(tightest).spent.epsilon_upper > 0
    strong = dataclasses.replace(KRR, randomizer=found.round.randomizer)
    assert isinstance(desk.ask(today, cohort="weekly", round=strong), Admitted)
    assert found.epsilon_decided_upper == pytest.approx(
        desk.store.view(tightest).spent.epsilon_upper, rel=1e-2
    )


def test_no_release_breaks_a_promise_that_was_not_made(desk: Desk) -> None:
    """Not even one of which nothing is known, nor one that may have come before the filters were chosen."""
    monday = a_monday()
    assert isinstance(desk.ask(monday, cohort="watches"), Admitted)
    before = monday - 7 * DAY
    found = desk.incident("leak", None, "watches", collected_on=before)
    by_chain = {member.cohort: member.overspent for member in found.audience}
    assert by_chain == {f"watches@{before:%G-W%V}": True}
    assert isinstance(desk.ask(monday + 7 * DAY, cohort="watches"), Admitted)
    assert desk.store.view("watches").spent.epsilon_upper_or_none is None
    desk.check()
    stated = make_statement(desk.store, desk.accountant, ["watches"], made_at=datetime.now(UTC))
    (made,) = stated.cohorts
    assert (made.verdict, made.overspends, made.breach) == ("no_promise", (), None)
    text = str(document_from(stated, rows_max=50).blocks)
    assert "word='Not kept'" in text, "a week is not"
    assert f"Look at the promise of {before:%G-W%V}" in text


def test_a_statement_names_the_period_with_the_least_left_beside_the_life(desk: Desk) -> None:
    desk.open("both", WEEK, epsilon=5.0)
    today = datetime.now(UTC).date()
    assert isinstance(desk.ask(today, cohort="both"), Admitted)
    stated = make_statement(desk.store, desk.accountant, ["both"], made_at=datetime.now(UTC))
    text = str(document_from(stated, rows_max=50).blocks)
    monday = today - today.weekday() * DAY
    assert f"('Least left', 'of {monday} to {monday + 6 * DAY}: at most 0." in text


def test_a_statement_counts_every_failing_period(desk: Desk) -> None:
    desk.open("many", Window(unit="day", sliding=7, epsilon=0.2, delta=1e-7), **NO_LIFE)
    today = datetime.now(UTC).date()
    desk.incident("leak", None, "many", collected_on=today)
    stated = make_statement(desk.store, desk.accountant, ["many"], made_at=datetime.now(UTC))
    text = str(document_from(stated, rows_max=50).blocks)
    assert re.search("Look at the promise of [^ ]*, [^ ]*, [^ ]* and 4 more: the statement of that", text)
    assert "Least left" not in text


def test_accounts_of_delta_of_the_life_refuse_nothing(desk: Desk) -> None:
    window = Window(unit="week", epsilon=20.0, delta=1e-3)
    desk.open("slack", window, **NO_LIFE)
    for week in range(3):
        answer = desk.ask(a_monday() + 7 * week * DAY, cohort="slack", round=APPROXIMATE)
        assert isinstance(answer, Admitted)
    desk.check()


@pytest.mark.slow
def test_the_statement_promises_each_week_and_nothing_of_the_life(desk: Desk) -> None:
    monday = a_monday()
    desk.ask(monday, cohort="watches")
    made = make_statement(
        desk.store, desk.accountant, ["watches", f"watches@{monday:%G-W%V}"], made_at=datetime.now(UTC)
    )
    life, week = (
        str(document_from(dataclasses.replace(made, cohorts=(each,)), rows_max=50).blocks)
        for each in made.cohorts
    )
    assert "Nothing is promised of the cohort’s whole life" in life
    assert "limits add up: two, epsilon¹ 0.4 at delta² 2e-07" in life
    alone = str(
        document_from(dataclasses.replace(made, cohorts=made.cohorts[:1], promises=()), rows_max=50).blocks
    )
    assert "word='See the periods'" in alone
    assert "Kept" not in alone, "nothing is known of the periods"
    assert "word='Kept so far'" in life
    assert f"('watches', '{monday:%G-W%V}\\n{monday} to {monday + 6 * DAY}', 'ε 0.2 at δ 1e-07'," in life
    assert "that says whether its promise is kept." in life
    assert "each kind by itself, if collected today, if nothing else is registered" in life
    assert "if collected today" not in week, "its days are said: it is their period"
    assert not any(word in life for word in ("'Used'", "'Left'", "The larger end decides"))
    assert "'Promise', 'epsilon¹ 0.2 at delta² 1e-07" in week
    for moment, word in (
        (monday - DAY, "Not begun"),
        (monday + 6 * DAY, "Kept so far"),
        (monday + 7 * DAY, "Kept"),
    ):
        then = datetime.combine(moment, time.max, tzinfo=UTC)
        of_week = dataclasses.replace(made, cohorts=made.cohorts[1:], made_at=then)
        assert f"word={word!r}" in str(document_from(of_week, rows_max=50).blocks)
    assert f"'Period', '{monday} to {monday + 6 * DAY}, days of collection" in week
    statement = budget(desk.store, desk.accountant, "watches")
    assert [one.kind for one in statement.promises] == ["week"]
    assert (statement.epsilon_budget, statement.delta_budget) == (WEEK.epsilon, WEEK.delta)


def test_a_settled_or_voided_round_shows_what_is_left_of_its_period(desk: Desk) -> None:
    day = datetime.now(UTC).date()
    for close in (settle, void):
        outcome = desk.ask(day, cohort="watches")
        more: Any = {"reports": 9_000} if close is settle else {"reason": "why"}
        close(desk.store, desk.accountant, outcome.round_id, actor="ada", **more)
        closing = round_record(desk.store, outcome.round_id).closing
        (promise,) = budget(desk.store, desk.accountant, "watches", on=day).promises
        assert closing is not None
        assert closing.epsilon_remaining == promise.epsilon_remaining < WEEK.epsilon


def test_a_voided_round_that_was_released_all_the_same_is_not_called_unreleased(desk: Desk) -> None:
    desk.open("tablets", epsilon=1.0)
    asked = [desk.request(cohort="tablets") for _ in range(2)]
    for each in asked:
        desk.decide(each)
        desk.void(each.round_id)
    desk.incident(asked[0].round_id, KRR, "tablets")
    made = make_statement(desk.store, desk.accountant, ["tablets"], made_at=datetime.now(UTC))
    text = str(document_from(made, rows_max=50).blocks)
    assert "(1 of them voided and never released), 1 voided and released all the same, 0 refused" in text


def test_nothing_fits_into_a_period_that_is_over(desk: Desk) -> None:
    desk.open("tablets", WEEK)
    day = datetime.now(UTC).date() - 21 * DAY
    desk.incident("told", KRR, "tablets", collected_on=day, after=desk.store.now())
    past = f"tablets@{day:%G-W%V}"
    (kind,) = budget(desk.store, desk.accountant, past).fits
    assert kind.rounds_at_least == 0
    for wanted in (ForecastWanted(round=KRR), ForecastWanted(round=KRR, every="day"), ForecastWanted()):
        (found,) = forecast(desk.store, desk.accountant, past, wanted, today=day + 21 * DAY).kinds
        assert (found.rounds_at_least, found.limited_by) == (0, "collection_over")
    with pytest.raises(Conflict, match="passed"):
        calibrate_for(
            desk.store, desk.accountant, past, {"randomizer": {"kind": "krr", "k": 4}, "reports": 9}
        )


def test_its_own_budget_never_changes_and_is_in_no_alarm(desk: Desk) -> None:
    with pytest.raises(Conflict, match="no budget of its life"):
        change_budget(desk.store, "watches", epsilon=2.0, reason="why", actor="ada")
    desk.ask(a_monday(), cohort="watches")
    (worst,) = most_used(desk.store, a_monday(), limit=9)
    assert worst.cohort == f"watches@{a_monday():%G-W%V}"


def test_only_budgets_that_rounds_may_still_be_charged_to_are_among_the_most_used(each_desk: Desk) -> None:
    monday = a_monday()
    for week in range(3):
        each_desk.ask(monday + 7 * week * DAY, cohort="watches")
    each_desk.ask(monday, cohort="watches")  # of the first week most is used
    weeks = [f"watches@{monday + 7 * week * DAY:%G-W%V}" for week in range(3)]
    for day, left in ((6, 3), (7, 2), (14, 1), (21, 0)):
        found = most_used(each_desk.store, monday + day * DAY, limit=2)
        assert [use.cohort for use in found] == weeks[3 - left :][:2]


@pytest.mark.parametrize(
    ("windows", "changes", "match"),
    [
        ((), {}, "nothing would limit its rounds"),
        ((WEEK,), {"ceiling": 2.0}, "without a budget of the cohort's life"),
        ((WEEK,), {"local_budget": 2.0}, "without a budget of the cohort's life"),
        ((WEEK,), {"rounds_per_user": 2}, "without a budget of the cohort's life"),
        ((WEEK,), {"policy": "plan", "plan": {KRR: 1}}, "without a budget of the cohort's life"),
        ((WEEK,), {"epsilon": 1.0}, "both epsilon and delta"),
        ((WEEK,), {"epsilon": math.inf, "delta": 1e-6}, "finite"),
    ],
)
def test_something_must_limit_the_rounds(
    desk: Desk, windows: tuple[Window, ...], changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidValue, match=match):
        desk.open("other", *windows, **{**NO_LIFE, **changes})


def test_a_quota_is_a_part_of_a_life(desk: Desk) -> None:
    told = {"reason": "half", "actor": "ada"}
    with pytest.raises(Conflict, match="no budget of its life"):
        set_quota(desk.store, "watches", team="ads", epsilon=0.1, **told)


def test_no_answer_has_a_number_of_the_life(desk: Desk) -> None:
    monday = a_monday()
    admitted = desk.ask(monday, cohort="watches")
    assert isinstance(admitted, Admitted)
    period = desk.store.view(f"watches@{monday:%G-W%V}")
    assert [member.cohort for member in admitted.audience] == [period.cohort.name]
    assert admitted.epsilon_spent_upper == period.spent.epsilon_upper
    assert admitted.epsilon_spent_lower == period.spent.epsilon_lower > 0
    made: Any = document_of(
        make_statement(desk.store, desk.accountant, ["watches"], made_at=datetime.now(UTC))
    )
    promise = made["cohorts"][0]["promise"]
    assert (promise["epsilon_budget"], promise["delta_budget"]) == (None, None)
    cohort = desk.store.cohort("watches")
    document: Any = document_of(cohort)
    assert (document["epsilon_budget"], document["delta_budget"]) == (None, None)
    assert value_of(Cohort, document) == cohort


def without(name: str) -> Callable[[EntryBody], EntryBody]:
    def forge(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, details={k: v for k, v in body.details.items() if k != name})

    return forge


def as_life(body: EntryBody) -> EntryBody:
    """The opening as one of a cohort that promises a budget, and has no filter that would hold it."""
    rules = {**body.details["rules"], "kind": "life"}
    standing = {**body.details["standing"], "rules": rules_digest(rules)}
    return dataclasses.replace(body, details={**body.details, "rules": rules, "standing": standing})


@pytest.mark.parametrize(
    ("forge", "found"),
    [
        (as_life, "are not those of policy adaptive"),
        (lambda body: dataclasses.replace(body, epsilon_budget=1.0), "delta: got 1.0"),
        (without("windows"), "nothing would limit its rounds"),
        (
            lambda body: dataclasses.replace(body, details={**body.details, "local_budget": 2.0}),
            "expected none without a budget of the cohort's life",
        ),
    ],
)
def test_a_forged_opening_is_found(desk: Desk, forge: Callable[[EntryBody], EntryBody], found: str) -> None:
    desk.ask(a_monday(), cohort="watches")
    desk.check()
    rewrite(desk.store, 1, forge)
    said = str(verify(desk.store, desk.accountant))
    assert found in said, said


@pytest.mark.parametrize(
    "change", [{"epsilon_upper": 0.1}, {"epsilon_upper": 0.0, "method": "nothing admitted"}]
)
def test_a_number_that_is_said_to_be_spent_of_no_budget_is_found(desk: Desk, change: dict[str, Any]) -> None:
    desk.ask(a_monday(), cohort="watches")
    rewrite(
        desk.store,
        2,
        lambda body: dataclasses.replace(body, spent=dataclasses.replace(body.spent, **change)),
        cohort="watches",
    )
    assert "spent.epsilon_upper does not follow" in str(verify(desk.store, desk.accountant))


@pytest.mark.slow
@pytest.mark.parametrize(
    "added",
    [
        {"windows": [WEEK.to_mapping()]},
        {"ceiling": 5.0},
        {"rounds_per_user": 2},
        {"quota": Quota(cohort="watches", team="x").to_mapping()},
    ],
)
def test_a_period_that_declares_more_than_a_window_gives_it_is_found(
    desk: Desk, added: dict[str, Any]
) -> None:
    """As to take the promise of a week away, so that what it admits beyond its budget looks fine."""
    monday = a_monday()
    desk.ask(monday, cohort="watches")

    def forge(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, details={**body.details, **added})

    period = f"watches@{monday:%G-W%V}"
    rewrite(desk.store, 1, forge, cohort=period)
    for names in (desk.names(), [period]):
        found = verify_bundle(make_bundle(desk.store, names).data, desk.accountant)
        assert "declares more than a part of a cohort has" in str(found)


def test_a_refusal_by_the_record_is_found(desk: Desk) -> None:
    """A forged entry that says the cohort's own budget refused a round."""
    monday, most = a_monday(), alone(desk, WEEK)
    assert desk.admitted(monday, cohort="watches") == most

    admitted = desk.store.entry("watches", 2).content().details

    def forge(body: EntryBody) -> EntryBody:
        requested = body.details["requested"]
        assert requested is None
        refused_by = {
            "watches": {
                "reason": "budget_exceeded",
                "epsilon_spent_upper": body.spent.epsilon_upper,
                "epsilon_requested_upper": body.spent.epsilon_upper,
                "epsilon_budget": body.epsilon_budget,
                "delta_budget": body.delta_budget,
            }
        }
        spent = {**body.spent.to_mapping(), "rounds": body.spent.rounds + 1}
        details = {**body.details, "reason": "budget_exceeded", "requested": spent, "refused_by": refused_by}
        details |= {name: admitted[name] for name in ("cost", "charge", "privacy_loss")}
        return dataclasses.replace(body, details=details)

    rewrite(desk.store, most + 2, forge)
    assert "details.reason does not follow" in str(verify(desk.store, desk.accountant))
