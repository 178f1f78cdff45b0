"""Cohorts in which a device joins a limited number of rounds: the dearest of them add up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.ledger.errors import InvalidValue
from tests.conftest import sqlite_url
from tests.ledger.attack import rewrite, stating
from tests.ledger.clerk import Clerk, krr

database_url = sqlite_url  # the rules are the same in every database
LARGE = krr(50_000)


@pytest.fixture
def few(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones", whose users take part in at most 3 rounds."""
    clerk.usual |= {"population": 10**6, "epsilon": 0.4}
    clerk.open(rounds_per_user=3)
    return clerk


def test_what_one_user_can_lose_stops_growing(few: Clerk) -> None:
    outcomes = [few.ask(LARGE) for _ in range(8)]
    spent = [each.epsilon_spent_upper for each in outcomes]
    assert spent[0] < spent[1] < spent[2] == spent[3] == spent[7]
    few.open("all")
    three = [few.ask(LARGE, "all") for _ in range(3)][-1]
    assert spent[2] == pytest.approx(three.epsilon_spent_upper, rel=0.1)
    assert few.admits(krr(2_000))
    assert few.spent() > spent[7], "three such rounds must be within the budget"
    few.check()


@pytest.mark.slow
def test_settling_correcting_and_incidents_raise_the_largest_and_voids_lower_nothing(few: Clerk) -> None:
    few.fill(LARGE, most=4)
    before = few.spent()
    few.void("round-3")
    assert few.spent() == before
    few.settle("round-0", 20_000)
    settled = few.spent()
    assert settled > before
    few.correct("round-1", reports=10_000)
    corrected = few.spent()
    assert corrected > settled
    few.incident("leak", krr(5_000), after=datetime.now(UTC))
    assert few.spent() > corrected
    statement = few.statement()
    assert statement.cohorts[0].promise.rounds_per_user == 3
    (said,) = (each for each in statement.conditions if each.name == "A limited number of rounds")
    assert "incidents are charged beside these" in said.holds_when
    few.audit()


def test_only_filters_count_a_whole_number_of_rounds(clerk: Clerk) -> None:
    wrong: list[dict[str, Any]] = [{"rounds_per_user": one} for one in (0, 1.5, True, 10**7)]
    for changes in (*wrong, {"rounds_per_user": 2, "policy": "plan", "plan": {krr(): 2}}):
        with pytest.raises(InvalidValue, match="rounds_per_user"):
            clerk.open(**changes)


def test_another_number_than_the_rules_have_is_found(few: Clerk) -> None:
    rewrite(few.store, 1, stating(rounds_per_user=9))
    few.blames("details.rules.rounds_per_user does not follow")
