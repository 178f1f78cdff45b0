"""What games cannot see: bad requests, chains of postings, days and periods, statuses, local epsilon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, cast

import pytest

from shuffle_ledger.ledger.machine import (
    ROUNDS_MAX,
    UNBOUNDED,
    BudgetKind,
    Cause,
    CohortBudgets,
    Cost,
    Described,
    InvalidStep,
    Level,
    Limits,
    Posting,
    PostingKind,
    Request,
    Round,
    Rules,
    State,
    Unchanged,
    WindowUnits,
    budgets_of,
    change_budget,
    decide,
    fold,
    freeze,
    how_many,
    new_state,
    open_budget,
    parts_of,
    restate,
)

LOW, HIGH = Level(epsilon=5, gaussian=50), Level(epsilon=10, gaussian=100)
RULES = Rules(name="a", cohort="a", delta=9, shares=(3, 3, 3), opened_at=7)
LIMITS = Limits(refuse=HIGH, promise=HIGH, certain=5, slack=5, local=10)
ASK = Request(audience=("a",))
STATE = new_state(RULES, LIMITS)


def after(state: State, cost: Cost) -> tuple[State, Posting]:
    decided = decide({state.rules.name: state}, ASK, {state.rules.name: cost})
    return fold(state, decided.postings[0]), decided.postings[0]


def tell(
    state: State, posting: Posting | None, cause: Cause, cost: Cost | None, **known: Any
) -> tuple[State, Posting]:
    """The restatement of the round that a posting charged, or of one that nothing charged."""
    charges = {"a": posting.charge} if posting is not None and posting.charge is not None else {}
    round_ = Round(charges=charges, **{"released_after": 8, **known})
    described = Described.NOTHING if cost is None else Described.STATED
    (told,) = restate({"a": state}, round_, described, cause, {} if cost is None else {"a": cost})
    return fold(state, told), told


def test_overspent_stays_and_refuses() -> None:
    state, posting = after(STATE, Cost(gaussian=(10,)))
    state, told = tell(state, posting, Cause.CORRECT, Cost(gaussian=(200,)))
    assert told.is_overspent
    assert decide({"a": state}, ASK, {"a": Cost(gaussian=(0,))}).postings[0].reasons[0] == "overspent"
    assert how_many({"a": state}, ASK, {"a": Cost(gaussian=(0,))}) == 0
    larger = Level(epsilon=20, gaussian=1000)
    raised = change_budget(state, larger, larger, slack=0)
    assert isinstance(raised, Posting)
    state = fold(state, raised)
    assert state.is_overspent
    state, _ = after(state, Cost(gaussian=(0,)))
    assert state.is_overspent


def test_a_quota_is_never_overspent_and_moves_as_it_likes() -> None:
    rules = replace(RULES, kind=BudgetKind.QUOTA)
    state = new_state(rules, LIMITS)
    state, told = tell(state, None, Cause.INCIDENT, Cost(gaussian=(200,)), released_after=None)
    assert (told.total.gaussian, told.is_overspent) == ((200,), False), "described, though it may be early"
    for level in (LOW, HIGH, Level(epsilon=30, gaussian=300)):
        moved = change_budget(state, level)
        assert isinstance(moved, Posting)
        state = fold(state, moved)
    assert decide({"a": state}, ASK, {"a": Cost(gaussian=(90,))}).is_admitted


def test_local_epsilon_refuses_is_never_given_back_and_does_not_end_the_promise() -> None:
    state, posting = after(STATE, Cost(local=6, gaussian=(10,)))
    assert not decide({"a": state}, ASK, {"a": Cost(local=5, gaussian=(1,))}).is_admitted
    state, told = tell(state, posting, Cause.VOID, None)
    assert (told.total.local, told.total.gaussian) == (6, (0,))
    state, told = tell(state, told, Cause.INCIDENT, Cost(local=8, gaussian=(10,)), is_voided=True)
    assert (told.total.local, told.is_overspent) == (14, False), "a release of its own"
    state, told = tell(state, None, Cause.INCIDENT, Cost(local=UNBOUNDED, gaussian=(10,)))
    assert (told.total.local > UNBOUNDED, told.is_overspent) == (True, False)
    refused = decide({"a": state}, ASK, {"a": Cost(gaussian=(1,))})
    assert refused.postings[0].reasons == ("local epsilon",)
    unlimited = replace(state, limits=replace(state.limits, local=None))
    assert decide({"a": unlimited}, ASK, {"a": Cost(local=UNBOUNDED, gaussian=(1,))}).is_admitted


def test_a_corrected_round_gives_back_no_variance_and_a_restated_one_that_was_no_worse_all() -> None:
    cost = Cost(gaussian=(10,), certain=1, slack=1)
    state, posting = after(STATE, cost)
    same, told = tell(state, posting, Cause.CORRECT, cost)
    assert told.total == posting.total
    same, told = tell(same, told, Cause.VOID, None)
    assert (told.total.gaussian, told.total.certain, told.total.slack) == ((0,), 0, 0)
    worse, told = tell(state, posting, Cause.CORRECT, Cost(gaussian=(11,), certain=2))
    worse, told = tell(worse, told, Cause.VOID, None)
    assert (told.total.gaussian, told.total.certain, told.total.slack) == ((11,), 0, 0)


@pytest.mark.parametrize("time", [None, 6, 7])
def test_an_incident_that_may_be_older_than_the_opening_is_unrandomized(time: int | None) -> None:
    _, told = tell(STATE, None, Cause.INCIDENT, Cost(gaussian=(1,)), released_after=time)
    assert told.is_overspent
    assert told.charge is not None
    assert told.charge.local == UNBOUNDED
    assert not tell(STATE, None, Cause.INCIDENT, Cost(gaussian=(1,)), released_after=8)[1].is_overspent


def test_a_round_is_an_incident_in_the_periods_that_it_lacked() -> None:
    period = new_state(replace(RULES, name="a@2026-W49", kind=BudgetKind.PERIOD), LIMITS)
    _, posting = after(STATE, Cost(gaussian=(10,)))
    assert posting.charge is not None
    round_ = Round(charges={"a": posting.charge}, released_after=8)
    cost = {"a@2026-W49": Cost(gaussian=(10,))}
    (told,) = restate({"a@2026-W49": period}, round_, Described.STATED, Cause.INCIDENT, cost)
    assert told.total.gaussian == (10,)


def test_what_is_unbounded_is_given_back_exactly() -> None:
    state = new_state(
        replace(RULES, shares=(3, 1, 3, 1), orders=("inf",)),
        replace(
            LIMITS,
            refuse=replace(HIGH, divergences=(30,)),
            promise=replace(HIGH, divergences=(30,)),
        ),
    )
    state, posting = after(state, Cost(gaussian=(5,), divergences=(UNBOUNDED,)))
    assert posting.kind is PostingKind.ADMITTED
    _, told = tell(state, posting, Cause.VOID, None)
    assert told.total.divergences == (0,)


def test_a_refusal_charges_nobody_and_tells_each_budget_its_own_reasons() -> None:
    other = new_state(replace(RULES, name="b", cohort="b"), replace(LIMITS, refuse=LOW))
    states = {"a": STATE, "b": other}
    cost = Cost(gaussian=(60,))
    decided = decide(states, Request(audience=("b", "a")), {"a": cost, "b": cost})
    assert (decided.is_admitted, decided.refused_by) == (False, ("b",))
    reasons = {one.budget: one.reasons for one in decided.postings}
    assert reasons == {"a": (), "b": ("filters",)}
    assert all(one.total.gaussian == (0,) for one in decided.postings)
    assert how_many(states, Request(audience=("a", "b")), {"a": cost, "b": cost}) == 0


@pytest.mark.parametrize(
    ("cost", "reasons"),
    [
        (Cost(gaussian=(1,), certain=6), ("certain loss",)),
        (Cost(gaussian=(1,), slack=6), ("slack",)),
        (Cost(gaussian=(101,), certain=6), ("filters",)),
        (Cost(gaussian=(1,), local=11), ("local epsilon",)),
    ],
)
def test_a_refusal_names_what_refused(cost: Cost, reasons: tuple[str, ...]) -> None:
    assert after(STATE, cost)[1].reasons == reasons


def test_a_raised_promise_prices_slack_anew_and_a_lowered_one_must_fit() -> None:
    state, _ = after(STATE, Cost(gaussian=(60,), slack=4))
    larger = Level(epsilon=20, gaussian=200)
    assert change_budget(state, larger, larger, slack=3) == Unchanged(reasons=("slack",))
    raised = change_budget(state, HIGH, larger, slack=4)
    assert isinstance(raised, Posting)
    state = fold(state, raised)
    assert (state.limits.slack, state.limits.promise) == (4, larger)
    assert change_budget(state, LOW, LOW) == Unchanged(reasons=("what is held does not fit",))
    lowered = change_budget(state, LOW)
    assert isinstance(lowered, Posting)
    assert not lowered.is_overspent, "what is promised stays"
    assert not decide({"a": fold(state, lowered)}, ASK, {"a": Cost(gaussian=(0,))}).is_admitted
    back = change_budget(state, HIGH, HIGH)
    assert isinstance(back, Posting)
    assert fold(state, back).limits.slack == 4, "the price of the largest promise stays"


def test_a_budget_is_opened_again_until_something_was_decided() -> None:
    state = fold(None, open_budget(RULES, LIMITS), digest="d1")
    moved = change_budget(state, LOW)
    assert isinstance(moved, Posting)
    state = fold(state, moved, digest="d2")
    later = replace(RULES, opened_at=9, reserves=(0, 4))
    again = open_budget(later, LIMITS, present=[state])
    assert (again.sequence, again.previous) == (3, "d2")
    opened = fold(state, again, digest="d3")
    assert (opened.rules, opened.sequence, opened.digest) == (later, 3, "d3")
    refused, _ = after(state, Cost(gaussian=(1000,)))
    told, _ = tell(state, None, Cause.INCIDENT, Cost(gaussian=(1,)))
    for used in (refused, told):
        with pytest.raises(InvalidStep, match="no round was decided"):
            open_budget(later, LIMITS, present=[replace(STATE, rules=replace(RULES, name="a@w")), used])
    quota = replace(RULES, name="a@team=x", kind=BudgetKind.QUOTA)
    assert open_budget(quota, LIMITS, present=[refused]).sequence == 1


def test_a_frozen_budget_admits_nothing_and_records_what_happened() -> None:
    state, posting = after(STATE, Cost(gaussian=(10,)))
    state = fold(state, freeze(state))
    _, refused = after(state, Cost(gaussian=(1,)))
    assert (refused.reasons, refused.is_frozen) == (("frozen",), True)
    state, told = tell(state, posting, Cause.SETTLE, Cost(gaussian=(20,)))
    assert (told.total.gaussian, state.is_frozen) == ((20,), True)


def test_postings_are_a_chain() -> None:
    opening = open_budget(RULES, LIMITS)
    state = fold(None, opening, digest="d1")
    _, posting = after(state, Cost(gaussian=(1,)))
    assert (posting.sequence, posting.previous) == (2, "d1")
    period = new_state(replace(RULES, name="a@2026-W48", kind=BudgetKind.PERIOD), LIMITS, digest="d1")
    first = decide({"a@2026-W48": period}, ASK, {"a@2026-W48": Cost(gaussian=(1,))}).postings[0]
    assert (first.sequence, first.previous) == (1, "d1"), "bound to its cohort's opening"
    for wrong in (
        replace(posting, sequence=3),
        replace(posting, previous="d0"),
        replace(posting, budget="b"),
        opening,
    ):
        with pytest.raises(InvalidStep):
            fold(state, wrong)
    with pytest.raises(InvalidStep, match="an opening"):
        fold(None, posting)


def test_how_many_counts_without_a_limit_and_at_once() -> None:
    free = replace(STATE, limits=replace(LIMITS, local=None))
    assert how_many({"a": free}, ASK, {"a": Cost(gaussian=(0,))}) == ROUNDS_MAX
    assert how_many({"a": STATE}, ASK, {"a": Cost(gaussian=(3,), local=0)}) == 33
    assert how_many({"a": STATE}, ASK, {"a": Cost(gaussian=(3,), parts=parts_of(4, 2))}) == 16


def test_a_user_who_joins_two_rounds_may_have_joined_the_incidents_too() -> None:
    state = new_state(replace(RULES, rounds_per_user=2), LIMITS)
    cost = Cost(gaussian=(34,))
    assert how_many({"a": state}, ASK, {"a": cost}) == ROUNDS_MAX
    state, told = tell(state, None, Cause.INCIDENT, cost)
    assert (told.total.rounds, told.total.incidents) == (1, 1)
    assert how_many({"a": state}, ASK, {"a": cost}) == 1, "three times 34 are too much"
    assert how_many({"a": state}, ASK, {"a": Cost(gaussian=(20,))}) == 1
    assert how_many({"a": STATE}, ASK, {"a": cost}) == 2


def wrong(**others: Any) -> Callable[[], object]:
    known: dict[str, Any] = {"states": {"a": STATE}, "request": ASK, "charges": {"a": Cost(gaussian=(1,))}}
    return lambda: decide(**(known | others))


CHARGED = {"a": after(STATE, Cost(gaussian=(1,)))[1].charge}


def retold(cause: Cause, described: Described, **round_: Any) -> Callable[[], object]:
    costs = {"a": Cost(gaussian=(1,))} if described is Described.STATED else {}
    known = Round(**{"charges": CHARGED, **round_})
    return lambda: restate({"a": STATE}, known, described, cause, costs)


@pytest.mark.parametrize(
    "step",
    [
        wrong(charges={}),
        wrong(states={}, charges={}),
        wrong(request=Request(audience=("a", "b"))),
        wrong(charges={"a": Cost()}),
        wrong(charges={"a": Cost(gaussian=(1,), fits=(0,))}),
        wrong(states={"b": STATE}, charges={"b": Cost(gaussian=(1,))}),
        lambda: restate({}, Round(charges={}), Described.UNKNOWN, Cause.INCIDENT, {}),
        retold(Cause.VOID, Described.STATED),
        retold(Cause.SETTLE, Described.NOTHING),
        retold(Cause.SETTLE, Described.UNKNOWN),
        retold(Cause.SETTLE, Described.STATED, is_closed=True),
        retold(Cause.VOID, Described.NOTHING, is_closed=True),
        retold(Cause.VOID, Described.NOTHING, is_closed=True, is_voided=True),
        retold(Cause.CORRECT, Described.STATED, is_voided=True),
        retold(Cause.CORRECT, Described.STATED, charges={}),
        retold(Cause.CORRECT, Described.STATED, charges={"b": CHARGED["a"]}),
        retold(Cause.INCIDENT, Described.STATED),
        lambda: Cost(gaussian=(-1,)),
        lambda: Cost(gaussian=cast("tuple[int, ...]", (1.0,))),
        lambda: Cost(gaussian=(UNBOUNDED + 1,)),
        lambda: Cost(fits=(1, 1)),
        lambda: Cost(parts=0),
        lambda: Level(epsilon=UNBOUNDED),
        lambda: Limits(refuse=HIGH, promise=LOW),
        lambda: replace(RULES, reserves=(1,)),
        lambda: replace(RULES, reserves=(), shares=()),
        lambda: replace(RULES, shares=(4, 3, 3)),
        lambda: replace(RULES, shares=(3, 3)),
        lambda: replace(RULES, shares=(3, 3, 2, 1), slots=(1,), rounds_per_user=2),
        lambda: new_state(replace(RULES, rounds_per_user=2), replace(LIMITS, sliding=10)),
        lambda: new_state(replace(RULES, kind=BudgetKind.QUOTA), replace(LIMITS, refuse=LOW)),
        lambda: new_state(replace(RULES, orders=("inf",), shares=(3, 1, 3, 1)), LIMITS),
        lambda: change_budget(STATE, Level(epsilon=20, gaussian=200)),
        lambda: change_budget(STATE, LOW, Level(epsilon=20, gaussian=200)),
        lambda: change_budget(STATE, LOW, Level(epsilon=20, gaussian=70), slack=1),
        lambda: open_budget(RULES, LIMITS, present=[STATE]),
        lambda: open_budget(RULES, LIMITS, present=[replace(STATE, rules=replace(RULES, cohort="b"))]),
        lambda: WindowUnits(unit="hour"),
        lambda: WindowUnits(unit="year", run=2),
        lambda: WindowUnits(unit="day", run=32),
        lambda: CohortBudgets(name="a", has_life=False),
    ],
)
def test_a_step_that_is_none_is_an_error_that_says_what_was_expected(step: Callable[[], object]) -> None:
    with pytest.raises(InvalidStep, match="; expected: "):
        step()


# Days and periods ----------------------------------------------------------------------------------------

UNIT_OF: dict[str, Callable[[date], str]] = {
    "day": lambda day: day.isoformat(),
    "week": lambda day: day.strftime("%G-W%V"),
    "month": lambda day: f"{day.year}-{day.month:02d}",
    "quarter": lambda day: f"{day.year}-Q{(day.month - 1) // 3 + 1}",
    "year": lambda day: str(day.year),
}


def names(window: WindowUnits, first: date, last: date) -> list[str]:
    request = Request(audience=("a",), collected_on=str(first), collected_until=str(last))
    found = budgets_of(request, {"a": CohortBudgets(name="a", has_life=False, windows=(window,))}, first)
    return [one.name for one in found]


@pytest.mark.parametrize("unit", list(UNIT_OF))
def test_a_round_is_in_each_calendar_unit_of_its_days(unit: str) -> None:
    for start in range(0, 1500, 3):
        first = date(2023, 12, 20) + timedelta(days=start)
        last = first + timedelta(days=start % 2)
        days = dict.fromkeys(UNIT_OF[unit](day) for day in (first, last))
        assert names(WindowUnits(unit=unit), first, last) == [f"a@{label}" for label in days]


@pytest.mark.parametrize(("unit", "run"), [("day", 7), ("week", 3), ("month", 12)])
def test_a_round_is_in_each_run_that_meets_its_days(unit: str, run: int) -> None:
    everything = [date(2022, 6, 1) + timedelta(days=n) for n in range(1700)]
    labels = list(dict.fromkeys(UNIT_OF[unit](day) for day in everything))
    for start in range(0, 300, 11):
        first = date(2024, 2, 20) + timedelta(days=start)
        last = first + timedelta(days=start % 7)
        met = [labels.index(UNIT_OF[unit](day)) for day in (first, last)]
        runs = [n for n in range(len(labels)) if n <= met[1] and n + run - 1 >= met[0]]
        assert names(WindowUnits(unit=unit, run=run), first, last) == [
            f"a@{labels[n]}+{run}{unit[0]}" for n in runs
        ]


def test_a_round_is_charged_to_life_windows_and_quota_of_each_cohort() -> None:
    cohorts = {
        "a": CohortBudgets(name="a", windows=(WindowUnits(unit="week"),), teams=frozenset({"x"})),
        "b": CohortBudgets(name="b", teams=frozenset({"y"})),
    }
    found = budgets_of(Request(audience=("b", "a"), team="x"), cohorts, date(2026, 11, 28))
    assert [(one.name, one.kind) for one in found] == [
        ("b", BudgetKind.LIFE),
        ("a", BudgetKind.LIFE),
        ("a@2026-W48", BudgetKind.PERIOD),
        ("a@team=x", BudgetKind.QUOTA),
    ]


@pytest.mark.parametrize(
    ("request_", "day", "said"),
    [
        (Request(audience=()), date(2026, 1, 1), "audience"),
        (Request(audience=("a", "a")), date(2026, 1, 1), "each once"),
        (Request(audience=("c",)), date(2026, 1, 1), "opened"),
        (Request(audience=("a",)), None, "without days"),
        (Request(audience=("a",), collected_on="2026-02-30"), date(2026, 1, 1), "days such as"),
        (Request(audience=("a",), collected_on="2026-01-02", collected_until="2026-01-01"), None, "in order"),
        (Request(audience=("a",), collected_on="2025-12-31"), date(2026, 1, 1), "ended on 2025-12-31"),
        (
            Request(audience=("a",), collected_on="2026-01-01", collected_until="2026-01-03"),
            None,
            "at most 2",
        ),
        (Request(audience=("a",), collected_on="1969-01-01"), None, "1970"),
    ],
)
def test_days_and_cohorts_that_are_none_are_refused(request_: Request, day: date | None, said: str) -> None:
    cohorts = {"a": CohortBudgets(name="a", windows=(WindowUnits(unit="day"),))}
    with pytest.raises(InvalidStep, match=said):
        budgets_of(request_, cohorts, day)


def test_a_past_release_is_in_the_periods_of_its_days() -> None:
    cohorts = {"a": CohortBudgets(name="a", windows=(WindowUnits(unit="day"),))}
    found = budgets_of(Request(audience=("a",), collected_on="2020-02-29"), cohorts, None)
    assert [one.name for one in found] == ["a", "a@2020-02-29"]
