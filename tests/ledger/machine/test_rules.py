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


def test_room_counts_without_a_limit_and_at_once() -> None:
    free = replace(STATE, limits=replace(LIMITS, local=None))
    assert room(free, Cost(gaussian=(0,))).budget == ROUNDS_MAX
    assert room(STATE, Cost(gaussian=(3,), local=0)).budget == 33
    assert room(STATE, Cost(gaussian=(3,), parts=2)).budget == 16


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
