"""What people type is refused by name, before anything is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, given_text
from shuffle_ledger.ledger.decisions import open_cohort, quote, register
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    RefusalReason,
    RoundRequest,
    epsilon_left,
    refusal_in_words,
)

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
COHORT: dict[str, Any] = {
    "name": "phones",
    "population": 10,
    "epsilon_budget": 1.0,
    "delta_budget": 1e-9,
    "policy": "adaptive",
}


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


def test_a_request_that_cannot_be_is_refused_by_field(make_request: MakeRequest) -> None:
    good = make_request("a")
    parts: dict[str, Any] = {"round_id": "a", "cohort": "phones", "round": good.round}
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


def test_more_reports_than_users_are_refused_and_leave_nothing(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for field, request in [
        ("reports", make_request("a", reports=1_000_001)),
        ("sampled_from", make_request("a", reports=10, sampled_from=1_000_001)),
    ]:
        for attempt in (
            lambda request=request: register(phones, request, actor="tester"),
            lambda request=request: quote(phones, accountant, request),
        ):
            with pytest.raises(InvalidValue) as caught:
                attempt()
            assert caught.value.field == field
            assert "1000000" in str(caught.value)
    with pytest.raises(NotFound):
        phones.round("a")


def test_names_are_compared_in_one_normal_form(phones: Store, make_request: MakeRequest) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    first = register(phones, make_request(composed), actor="tester")
    assert register(phones, make_request(decomposed), actor="tester") == first
    with pytest.raises(Conflict):
        register(phones, make_request(decomposed, reports=999), actor="tester")


@pytest.mark.parametrize(
    "unseen",
    [
        "\u00ad",
        "\u034f",
        "\u061c",
        "\u115f",
        "\u180e",
        "\u200b",
        "\u200d",
        "\u202e",
        "\u2066",
        "\u2800",
        "\u3164",
        "\ufe0f",
        "\ufeff",
        "\uffa0",
        "\ufff9",
        "\U000e0001",
        "\U000e0100",
        "\ue000",
        "\u2028",
        "\u00a0",
    ],
)
def test_characters_that_nobody_sees_are_refused_everywhere(
    phones: Store, make_request: MakeRequest, unseen: str
) -> None:
    for text in (f"a{unseen}b", unseen):
        attempts: list[tuple[str, Callable[[], object]]] = [
            ("round_id", lambda text=text: make_request(text)),  # type: ignore[misc]
            ("use_case", lambda text=text: make_request("a", use_case=text)),  # type: ignore[misc]
            ("name", lambda text=text: Cohort(**COHORT | {"name": text})),  # type: ignore[misc]
            ("actor", lambda text=text: register(phones, make_request("a"), actor=text)),  # type: ignore[misc]
        ]
        for field, attempt in attempts:
            with pytest.raises(InvalidValue) as caught:
                attempt()
            assert caught.value.field == field
    assert phones.count_pending("phones") == 0


def test_names_that_differ_in_case_or_in_kind_of_letter_are_different(
    phones: Store, make_request: MakeRequest
) -> None:
    """Databases fold and sort text as they like; ours compare it byte by byte, both the same."""
    names = [
        "round",
        "Round",
        "ROUND",
        "\uff32ound",
        "\u0440ound",
        "stra\u00dfe",
        "strasse",
        "\u0130",
        "i",
        "I",
    ]
    for name in names:
        register(phones, make_request(name), actor="tester")
    assert phones.pending(limit=100) == names


def test_an_opening_takes_all_that_it_needs_and_nothing_else(phones: Store) -> None:
    opening: dict[str, Any] = {"name": "other", "population": 9, "epsilon": 1.0, "delta": 1e-9}
    wrong: dict[str, dict[str, Any]] = {
        "missing .*'policy'": {},
        "not opened with status": {"policy": "adaptive", "status": "frozen"},
    }
    for said, more in wrong.items():
        with pytest.raises(TypeError, match=said):
            open_cohort(phones, actor="ada", **opening, **more)
    assert [cohort.name for cohort in phones.cohorts()] == ["phones"]


def test_opening_again_while_a_round_waits_answers_the_same_or_conflicts(
    phones: Store, make_request: MakeRequest
) -> None:
    register(phones, make_request(), actor="tester")
    same = {"name": "phones", "population": 1_000_000, "epsilon": 1, "delta": 1e-9, "policy": "adaptive"}
    again = open_cohort(phones, **same, actor="somebody else")  # type: ignore[arg-type]
    assert again == phones.cohort("phones")
    changes: list[dict[str, Any]] = [
        {"population": 999_999},
        {"epsilon": math.nextafter(1, 2)},
        {"delta": 2e-9},
    ]
    for change in changes:
        with pytest.raises(Conflict):
            open_cohort(phones, **same | change, actor="tester")  # type: ignore[arg-type]
    assert phones.count_entries("phones") == {"opened": 1}


def test_unknown_names_are_not_found(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    request = make_request(cohort="tablets")
    with pytest.raises(NotFound, match="tablets"):
        register(phones, request, actor="tester")
    with pytest.raises(NotFound, match="tablets"):
        quote(phones, accountant, request)


@pytest.mark.parametrize("actor", ["", "\n", "x" * 201])
def test_an_actor_has_a_name(phones: Store, make_request: MakeRequest, actor: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        register(phones, make_request(), actor=actor)
    assert caught.value.field == "actor"


def test_people_read_words_for_every_reason_of_a_refusal() -> None:
    for reason in RefusalReason:
        words = refusal_in_words(reason)
        assert "_" not in words
        assert words != reason.replace("_", " "), f"{reason} has no words"
    assert refusal_in_words("of_a_later_version") == "of a later version"
