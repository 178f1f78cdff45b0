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
    change_budget,
    decide,
    fold,
    may_open_again,
    new_state,
    periods,
    restate,
    room,
)

LOW, HIGH = Level(epsilon=5, gaussian=50), Level(epsilon=10, gaussian=100)
RULES = Rules(name="a", cohort="a", delta=9, shares=(3, 3, 3), opened_at=7)
LIMITS = Limits(refuse=HIGH, promise=HIGH, certain=5, slack=5, local=10)
ASK = Request(audience=("a",))
STATE = new_state(RULES, LIMITS)
DAY = date(2026, 11, 23)


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


def test_a_frozen_budget_admits_nothing_and_records_what_happened() -> None:
    state, posting = after(STATE, Cost(gaussian=(10,)))
    state = replace(state, is_frozen=True)
    _, refused = after(state, Cost(gaussian=(1,)))
    assert refused.reasons == ("frozen",)
    state, told = tell(state, posting, Cause.SETTLE, Cost(gaussian=(20,)))
    assert (told.total.gaussian, state.is_frozen) == ((20,), True)


def test_a_budget_is_opened_again_until_something_was_decided_or_restated() -> None:
    moved = change_budget(STATE, LOW)
    assert isinstance(moved, Posting)
    assert may_open_again(fold(STATE, moved))
    assert not may_open_again(after(STATE, Cost(gaussian=(1,)))[0])
    assert not may_open_again(after(STATE, Cost(gaussian=(1000,)))[0])
    assert not may_open_again(tell(STATE, None, Cause.INCIDENT, Cost(gaussian=(1,)))[0])


def test_a_posting_is_folded_into_its_own_budget() -> None:
    _, posting = after(STATE, Cost(gaussian=(1,)))
    with pytest.raises(InvalidStep, match="one to b"):
        fold(replace(STATE, rules=replace(RULES, name="b")), posting)


def test_a_restated_round_gives_back_no_variance_and_makes_no_room_for_others() -> None:
    """It was admitted beside another one, at no reserve. That one was voided, and a reserve is left again."""
    level = Level(epsilon=10, gaussian=1000)
    rules = replace(RULES, reserves=(0, 300))
    state = new_state(rules, Limits(refuse=level, promise=level, sliding=1000))
    state, first = after(state, Cost(gaussian=(600, 600)))
    state, second = after(state, Cost(gaussian=(400, 150)))
    state, _ = tell(state, first, Cause.VOID, None)
    state, told = tell(state, second, Cause.CORRECT, Cost(gaussian=(401, 151)))
    assert (told.total.sliding - told.total.returned, told.total.late) == (400, 0)


def test_a_void_with_rounds_per_user_leaves_the_largest_charge() -> None:
    state = new_state(replace(RULES, rounds_per_user=2), LIMITS)
    state, posting = after(state, Cost(gaussian=(10,), certain=2, local=3))
    _, told = tell(state, posting, Cause.VOID, None)
    assert told.total == posting.total


def test_room_counts_without_a_limit_and_at_once() -> None:
    free = replace(STATE, limits=replace(LIMITS, local=None))
    assert room(free, Cost(gaussian=(0,))).budget == ROUNDS_MAX
    assert room(STATE, Cost(gaussian=(3,), local=0)).budget == 33
    assert room(STATE, Cost(gaussian=(3,), parts=2)).budget == 16


def test_a_user_who_joins_two_rounds_may_have_joined_the_incidents_too() -> None:
    state = new_state(replace(RULES, rounds_per_user=2), LIMITS)
    cost = Cost(gaussian=(34,))
    assert room(state, cost).budget == ROUNDS_MAX
    state, told = tell(state, None, Cause.INCIDENT, cost)
    assert (told.total.rounds, told.total.incidents) == (1, 1)
    assert room(state, cost).budget == 1, "three times 34 are too much"
    assert room(state, Cost(gaussian=(20,))).budget == 1
    assert room(STATE, cost).budget == 2


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
        lambda: periods("hour", 1, DAY, DAY),
        lambda: periods("year", 2, DAY, DAY),
        lambda: periods("day", 32, DAY, DAY),
        lambda: periods("day", 1, DAY, DAY - timedelta(days=1)),
        lambda: periods("day", 1, DAY, DAY + timedelta(days=2)),
        lambda: periods("day", 1, date(1969, 1, 1), date(1969, 1, 1)),
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


def labels_of(unit: str, run: int, first: date, last: date) -> list[str]:
    """Labels, of which first and last days are those on which the labels of days change."""
    found = periods(unit, run, first, last)
    for one in found:
        days = [one.first - timedelta(days=1), one.first, one.last, one.last + timedelta(days=1)]
        before, begins, ends, then = map(UNIT_OF[unit], days)
        assert before != begins
        assert ends != then
        assert one.label.startswith(begins)
    return [one.label for one in found]


@pytest.mark.parametrize("unit", list(UNIT_OF))
def test_a_round_is_in_each_calendar_unit_of_its_days(unit: str) -> None:
    for start in range(0, 1500, 3):
        first = date(2023, 12, 20) + timedelta(days=start)
        last = first + timedelta(days=start % 2)
        days = dict.fromkeys(UNIT_OF[unit](day) for day in (first, last))
        assert labels_of(unit, 1, first, last) == list(days)


@pytest.mark.parametrize(("unit", "run"), [("day", 7), ("week", 3), ("month", 12)])
def test_a_round_is_in_each_run_that_meets_its_days(unit: str, run: int) -> None:
    everything = [date(2022, 6, 1) + timedelta(days=n) for n in range(1700)]
    labels = list(dict.fromkeys(UNIT_OF[unit](day) for day in everything))
    for start in range(0, 300, 11):
        first = date(2024, 2, 20) + timedelta(days=start)
        last = first + timedelta(days=start % 7)
        met = [labels.index(UNIT_OF[unit](day)) for day in (first, last)]
        runs = [n for n in range(len(labels)) if n <= met[1] and n + run - 1 >= met[0]]
        assert labels_of(unit, run, first, last) == [f"{labels[n]}+{run}{unit[0]}" for n in runs]
