"""What people type is refused by name, before anything is stored; and a conflict names what was typed."""

from __future__ import annotations

import dataclasses
import math
from datetime import date, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shuffle_ledger.accounting import given_text
from shuffle_ledger.ledger.decisions import admission, open_cohort, register
from shuffle_ledger.ledger.decisions.descriptions import described_otherwise
from shuffle_ledger.ledger.errors import Conflict, InvalidValue
from shuffle_ledger.ledger.values.differences import other_round
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    RefusalReason,
    RoundRequest,
    epsilon_left,
    refusal_in_words,
)
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk, krr, parsed

database_url = sqlite_url  # nothing is stored, or names are what both databases compare byte by byte
COHORT: dict[str, Any] = {"name": "phones", "population": 10, "policy": "adaptive"}
COHORT |= {"epsilon_budget": 1.0, "delta_budget": 1e-9}
MIXED = "mixed((5, krr(k=3, epsilon0=1)), dummies=2)"
UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u180e\u200b\u200d\u202e\u2066\u2800\u3164\ufe0f\ufeff\uffa0\ufff9\U000e0001"
    "\U000e0100\ue000\u2028\u00a0"
)


@pytest.mark.parametrize(
    ("field", "named", "values"),
    [
        ("epsilon_budget", "epsilon", [math.nan, -math.inf, -1.0, 0.0, -0.0, True, "1", None]),
        ("delta_budget", "delta", [math.nan, math.inf, 0.0, 1.0, 2, -1e-9, True, "1e-9", None]),
        ("population", "population", [0, -1, 10**12 + 1, 1.0, math.nan, True, "10", None]),
        ("policy", "policy", ["", "Fixed", "no-such-policy", None]),
        ("name", "name", ["", " ", " a", "a ", "a\n", "a\x00b", "\ud800", "a\u200bb", "x" * 201, None, 1]),
    ],
)
def test_a_cohort_that_cannot_be_is_refused_by_field(field: str, named: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidValue) as caught:
            Cohort(**COHORT | {field: value})
        assert caught.value.field == named
        assert given_text(value) in str(caught.value)


@given(st.floats(1e-300, 1e300), st.floats(0, 1))
@example(1.0, 0.1)
@example(5e-324, 1.0)
def test_what_is_left_of_a_budget_is_rounded_down(budget: float, part: float) -> None:
    spent = budget * part
    exact = Fraction(budget) - Fraction(spent)
    left = epsilon_left(budget, spent)
    assert left <= exact
    assert exact < math.nextafter(left, math.inf)


def test_a_cohort_without_a_life_wants_windows() -> None:
    with pytest.raises(InvalidValue, match=r"epsilon: is missing, .*budgets of periods"):
        Cohort(**COHORT | {"epsilon_budget": math.inf})


def test_a_request_that_cannot_be_is_refused_by_field() -> None:
    parts: dict[str, Any] = {"round_id": "a", "cohort": "phones", "round": krr()}
    wrong: list[tuple[str, Any]] = [
        ("round_id", "a\tb"),
        ("cohort", ""),
        ("round", {"reports": 3}),
        ("collected_on", "2025-01-01"),
        ("collected_on", datetime(2025, 1, 1)),  # noqa: DTZ001 - a naive datetime is the wrong value
        ("use_case", "x" * 201),
    ]
    for field, value in wrong:
        with pytest.raises(InvalidValue) as caught:
            RoundRequest(**parts | {field: value})
        assert caught.value.field == field


def test_a_round_has_one_randomizer_for_all_its_users() -> None:
    with pytest.raises(InvalidValue, match="one randomizer for the whole round"):
        RoundRequest(round_id="one", cohort="phones", round=parsed(MIXED, 5))
    with pytest.raises(InvalidValue, match="one randomizer for the whole round"):
        described_otherwise(krr(5), {"randomizer": MIXED, "reports": 5})


def test_names_are_compared_in_one_normal_form(clerk: Clerk) -> None:
    clerk.open()
    composed, decomposed = (clerk.request(name=name) for name in ("caf\u00e9", "cafe\u0301"))
    first = register(clerk.store, composed, actor="tester")
    assert register(clerk.store, decomposed, actor="tester") == first
    with pytest.raises(Conflict):
        register(clerk.store, clerk.request(krr(999), name="cafe\u0301"), actor="tester")


def test_characters_that_nobody_sees_are_refused_everywhere(clerk: Clerk) -> None:
    clerk.open()
    for text in (*(f"a{each}b" for each in UNSEEN), *UNSEEN):
        attempts: dict[str, Any] = {
            "round_id": lambda text=text: clerk.request(name=text),
            "use_case": lambda text=text: clerk.request(use_case=text),
            "name": lambda text=text: Cohort(**COHORT | {"name": text}),
            "actor": lambda text=text: register(clerk.store, clerk.request(), actor=text),
        }
        for field, attempt in attempts.items():
            with pytest.raises(InvalidValue) as caught:
                attempt()
            assert caught.value.field == field
    assert clerk.store.count_pending("phones") == 0


NAMES = ["round", "Round", "ROUND", "\uff32ound", "\u0440ound", "stra\u00dfe", "strasse", "\u0130", "i", "I"]


def test_names_that_differ_in_case_or_in_kind_of_letter_are_different(
    clerk: Clerk, new_postgresql_ledger: Any
) -> None:
    """Databases fold and sort text as they like; ours compare it byte by byte, both the same."""
    with type(clerk.store).connect(new_postgresql_ledger()) as other:
        for each in (clerk, Clerk(other, clerk.accountant)):
            each.open()
            for name in NAMES:
                register(each.store, each.request(name=name), actor="tester")
            assert each.store.pending(limit=100) == NAMES


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_no_address_can_contain_are_new_nowhere(clerk: Clerk, name: str) -> None:
    clerk.open()
    with pytest.raises(InvalidValue, match=r"name: got '\.+', expected a name other than"):
        clerk.open(name)
    request = clerk.request(name=name)
    attempts: list[Any] = [
        lambda: register(clerk.store, request, actor="tester"),
        lambda: clerk.decide(request),
        lambda: admission.admit_at_once(clerk.store, clerk.accountant, request, actor="tester"),
        lambda: clerk.incident(name, None),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidValue, match="round_id"):
            attempt()
    assert clerk.names() == ["phones"]
    assert list(clerk.store.rounds_of("phones")) == []


def test_an_opening_takes_all_that_it_needs_and_nothing_else(clerk: Clerk) -> None:
    opening: dict[str, Any] = {"name": "other", "population": 9, "epsilon": 1.0, "delta": 1e-9}
    wrong: dict[str, dict[str, Any]] = {
        "missing .*'policy'": {},
        "not opened with status": {"policy": "adaptive", "status": "frozen"},
    }
    for said, more in wrong.items():
        with pytest.raises(TypeError, match=said):
            open_cohort(clerk.store, actor="ada", **opening, **more)
    assert clerk.names() == []


@pytest.mark.parametrize("actor", ["", "\n", "x" * 201])
def test_an_actor_has_a_name(clerk: Clerk, actor: str) -> None:
    clerk.open()
    with pytest.raises(InvalidValue) as caught:
        register(clerk.store, clerk.request(), actor=actor)
    assert caught.value.field == "actor"


def test_people_read_words_for_every_reason_of_a_refusal() -> None:
    for reason in RefusalReason:
        words = refusal_in_words(reason)
        assert "_" not in words
        assert words != reason.replace("_", " "), f"{reason} has no words"
    assert refusal_in_words("of_a_later_version") == "of a later version"


def test_a_conflict_names_the_fields_that_the_caller_chose_otherwise() -> None:
    """Days and periods that a request leaves out do not differ; an audience differs as a whole."""
    asked: dict[str, Any] = {"round_id": "r", "cohort": "weekly", "round": krr()}
    stored = RoundRequest(**asked, collected_on=date(2026, 11, 26), windows=("weekly@2026-W48",))
    given = RoundRequest(**asked, use_case="emoji")
    found = other_round(stored, given)
    assert [each.field for each in found.differences] == ["use_case"]
    said = "round 'r' was registered with other content: use_case: stored nothing, given emoji"
    assert str(found) == said
    later = dataclasses.replace(given, collected_on=date(2026, 11, 27))
    assert [each.field for each in other_round(stored, later).differences] == ["collected_on", "use_case"]
    joint = RoundRequest(round_id="r", cohort="a", audience=("a", "b"), round=krr())
    alone = RoundRequest(round_id="r", cohort="a", round=krr())
    differences = other_round(joint, alone).differences
    assert {each.field: (each.stored, each.given) for each in differences} == {
        "cohort": (None, "a"),
        "audience": (["a", "b"], None),
    }
