"""Corrections and incidents: true releases, charged when they are recorded, and never refused."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.accounting import slot_for
from shuffle_ledger.ledger.decisions import round_record
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotCollectable
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk, krr, parsed

database_url = sqlite_url  # the rules are the same in every database


@pytest.fixture(autouse=True)
def large(clerk: Clerk) -> None:
    """Have cohorts of a million users."""
    clerk.usual["population"] = 10**6


@pytest.mark.slow
def test_a_correction_costs_what_admitting_it_would_have_cost(clerk: Clerk) -> None:
    clerk.open("corrected", "known")
    for cohort in ("corrected", "known"):
        clerk.ask(krr(5_000, 1), cohort)
    clerk.ask(krr(20_000, 1), "corrected", name="r")
    clerk.ask(krr(20_000, 2), "known")
    answer = clerk.correct("r", randomizer=krr().randomizer.to_mapping())
    assert answer.changed
    assert answer.accounted == slot_for(krr(20_000))
    corrected, known = clerk.total("corrected"), clerk.total("known")
    assert corrected.late > 0 == known.late
    assert dataclasses.replace(corrected, late=0) == known
    assert clerk.spent("corrected") == clerk.spent("known")
    clerk.audit()


def test_a_cheaper_correction_changes_nothing_but_the_record(clerk: Clerk) -> None:
    clerk.open("adaptive")
    clerk.open("plan", policy="plan", plan={krr(20_000): 2})
    for cohort in ("adaptive", "plan"):
        clerk.ask(krr(20_000), cohort, name=cohort)
        before = clerk.store.view(cohort)
        answer = clerk.correct(cohort, randomizer=krr(epsilon0=1).randomizer.to_mapping(), reports=30_000)
        after = clerk.store.view(cohort)
        assert not answer.changed
        assert (after.spent, after.held) == (before.spent, before.held)
        assert after.details.get("standing") == before.details.get("standing")
        assert after.head_sequence == before.head_sequence + 1
        assert round_record(clerk.store, cohort).corrections[-1].round.reports == 30_000
    clerk.audit()


def test_a_settlement_goes_on_from_a_correction_and_a_correction_from_a_settlement(clerk: Clerk) -> None:
    clerk.open()
    clerk.ask(krr(20_000, 1), name="r")
    clerk.correct("r", randomizer=krr(epsilon0=2).randomizer.to_mapping())
    settled = clerk.settle("r", 5_000)
    assert settled.accounted == slot_for(krr(5_000, 2))
    corrected = clerk.correct("r", randomizer=krr(epsilon0=2.5).randomizer.to_mapping())
    assert corrected.round == krr(5_000, 2.5)
    record = round_record(clerk.store, "r")
    assert (record.state, record.accounted) == ("settled", slot_for(krr(5_000, 2.5)))
    assert clerk.settle("r", 5_000) == settled
    with pytest.raises(Conflict):
        clerk.settle("r", 4_000)
    clerk.check()


def test_an_incident_before_the_opening_breaks_the_promise(clerk: Clerk) -> None:
    clerk.open()
    opened = clerk.later()
    late = clerk.incident("late", krr(20_000, 1), after=opened)
    assert (late.overspent, late.chosen_after) == (False, False)
    early = clerk.incident("early", krr(20_000, 1), after=opened - timedelta(microseconds=1))
    assert (early.overspent, early.chosen_after) == (True, True)
    assert clerk.status() == "overspent"
    (stated,) = clerk.statement().cohorts
    assert (stated.verdict, stated.spent.epsilon_upper) == ("broken", math.inf)
    assert clerk.correct("early", reports=10_000).overspent, "no correction mends it"
    clerk.audit()


def test_an_approximate_release_before_the_opening_is_charged_enough_for_auditors(clerk: Clerk) -> None:
    """That everything was revealed is charged to the account of certain losses, and covers any slack."""
    clerk.open()
    assert clerk.incident("early", parsed("generic(epsilon0=1)", 8_000, delta0=1e-14)).chosen_after
    clerk.audit()
    clerk.correct("early", reports=9_000)
    clerk.audit()


def test_an_unknown_release_overspends(clerk: Clerk) -> None:
    clerk.open()
    answer = clerk.incident("x", None, after=clerk.later())
    assert answer.round is None
    assert answer.overspent
    # Filters that hold at no epsilon say not how much was spent at least, either.
    assert (answer.epsilon_spent_upper, answer.epsilon_spent_lower) == (math.inf, 0.0)
    assert clerk.status() == "overspent"
    clerk.audit()


def test_a_correction_that_a_settlement_followed_is_recorded_anew(clerk: Clerk) -> None:
    clerk.open(epsilon=3.0, policy="plan", plan={krr(10_000, 1): 1, krr(5_000, 1): 1})
    clerk.ask(krr(10_000, 1), name="r")
    first = clerk.correct("r", reports=5_000)
    clerk.settle("r", 10_000)
    assert clerk.total().claims == (1, 0)
    again = clerk.correct("r", reports=5_000)
    assert (again.sequence, again.accounted) == (first.sequence + 2, krr(5_000, 1))
    assert clerk.total().claims == (0, 1)
    assert clerk.correct("r", reports=5_000) == again
    clerk.check()


def test_an_incident_is_recorded_once(clerk: Clerk) -> None:
    clerk.open("phones", "tablets")
    one = krr(20_000, 1)
    clerk.ask(one, name="r")
    after = clerk.later()
    first = clerk.incident("x", one, after=after)
    assert clerk.incident("x", one, after=after) == first
    otherwise: list[dict[str, Any]] = [
        {"described": krr(20_000), "after": after},
        {"described": one, "after": after, "reason": "another"},
        {"described": one},
    ]
    for said in otherwise:
        with pytest.raises(Conflict, match="correct the round"):
            clerk.incident("x", **said)
    with pytest.raises(Conflict, match="correct the round"):
        clerk.incident("r", one)
    with pytest.raises(Conflict, match="of cohort 'phones'"):
        clerk.incident("x", one, "tablets")
    with pytest.raises(NotCollectable):
        clerk.ask(one, name="x")
    with pytest.raises(Conflict):
        clerk.void("x")
    with pytest.raises(InvalidValue, match="released_after"):
        clerk.incident("y", one, after=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(InvalidValue, match="released_before"):
        clerk.incident("y", one, after=after, before=after)
    clerk.check()


@pytest.mark.parametrize("is_overspent", [False, True])
def test_a_frozen_cohort_records_what_it_is_told_and_charges_nothing(
    clerk: Clerk, *, is_overspent: bool
) -> None:
    clerk.open()
    clerk.ask(krr(20_000, 1), name="r")
    if is_overspent:
        assert clerk.incident("unknown", krr(10, 8)).overspent
    clerk.freeze()
    frozen = clerk.store.view("phones")
    corrected = clerk.correct("r", reports=5)
    assert (corrected.changed, corrected.overspent) == (False, False)
    found = clerk.incident("x", krr(10, 8))
    assert not found.overspent
    after = clerk.store.view("phones")
    assert (after.cohort.status, after.spent, after.held) == ("frozen", frozen.spent, frozen.held)
    assert after.details.get("standing") == frozen.details.get("standing")
    assert clerk.incident("x", krr(10, 8)) == found == round_record(clerk.store, "x").incident
    clerk.correct("x", reports=9)
    clerk.audit()


@pytest.mark.slow
def test_the_budget_that_would_have_been_kept_covers_what_was_given_back_later(clerk: Clerk) -> None:
    clerk.open(epsilon=0.3)
    assert clerk.fill(krr(9_000, 1, k=4), most=20) == 20
    assert clerk.settle("round-0", 250).overspent
    largest = clerk.spent()
    for number in range(1, 20):
        clerk.void(f"round-{number}")
    assert clerk.spent() < 0.3 < largest
    (stated,) = clerk.statement().cohorts
    assert stated.breach is not None
    assert stated.breach.kept_at_epsilon_upper == largest
