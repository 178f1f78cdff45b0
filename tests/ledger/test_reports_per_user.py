"""Rounds with several reports of a user in a ledger: charged, settled, corrected, replayed and bundled."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from shuffle_ledger.accounting import (
    Accountant,
    FilterCharge,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    charged_as,
    slot_for,
)
from shuffle_ledger.ledger.decisions.descriptions import described_otherwise, local_kind, with_reports
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.evidence.conditions import OF_SEVERAL_REPORTS, PRIVACY_UNIT_OF_SEVERAL
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import Admitted
from tests.conftest import sqlite_url
from tests.ledger import clerk as clerks
from tests.ledger.clerk import Clerk, parsed

database_url = sqlite_url  # the rules are the same in every database
POPULATION, DELTA = 10_000, 1e-6
FILTERS = FilterSet.for_budget(epsilon=1.0, delta=DELTA)


def krr(reports: int, per_user: int = 2, **more: Any) -> ShuffledRound:
    """Return a round of several reports of each user."""
    return clerks.krr(reports, reports_per_user=per_user, **more)


@pytest.fixture
def phones(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones", of 10,000 users."""
    clerk.open(population=POPULATION)
    return clerk


def has_cost(clerk: Clerk, charge: FilterCharge) -> bool:
    """Whether this is what all rounds of the cohort cost together."""
    cost, total = cost_of(charge), clerk.total()
    names = ("gaussian", "divergences", "certain", "slack")
    return all(getattr(cost, name) == getattr(total, name) for name in names)


@pytest.mark.slow
def test_an_admission_a_settlement_and_a_correction_add_up(clerk: Clerk) -> None:
    clerk.open(population=20_000)
    described = krr(18_000)
    quoted = clerk.quote(clerk.request(described))
    admitted = clerk.ask(described, name="a")
    assert isinstance(admitted, Admitted)
    assert quoted.epsilon_requested_upper == admitted.epsilon_spent_upper
    assert admitted.accounted == slot_for(described)
    assert clerk.store.view("phones").held == {admitted.accounted: 1}
    # By another accountant, from the definition: two rounds of half of the reports.
    single, count = charged_as(admitted.accounted)
    assert (single, count) == (slot_for(krr(9_000, 1)), 2)
    assert has_cost(clerk, Accountant().charge(single, FILTERS) * 2)
    settled = clerk.settle("a", 12_000)
    assert settled.accounted == slot_for(krr(12_000))
    assert has_cost(clerk, Accountant().charge(slot_for(krr(6_000, 1)), FILTERS) * 2)
    corrected = clerk.correct("a", reports_per_user=3)
    assert corrected.accounted == slot_for(krr(12_000, 3))
    thrice = Accountant().charge(slot_for(krr(4_000, 1)), FILTERS) * 3
    assert has_cost(clerk, thrice)
    assert not clerk.correct("a", reports_per_user=1).changed  # a charge never shrinks
    assert has_cost(clerk, thrice)
    assert clerk.admits(krr(9_000, 1))
    clerk.audit()


def test_sizes_count_users(phones: Clerk) -> None:
    for described, match in (
        (krr(2 * POPULATION + 1), "2 times the cohort's population, 20000"),
        (krr(100, sampled_from=POPULATION + 1), "sampled_from"),
        (krr(POPULATION + 1, 1), "the cohort's population, 10000"),
    ):
        with pytest.raises(InvalidValue, match=match):
            phones.ask(described)
    assert phones.admits(krr(2 * POPULATION), name="a")
    with pytest.raises(InvalidValue, match="2 times the cohort's population, 20000"):
        phones.settle("a", 2 * POPULATION + 1)
    with pytest.raises(InvalidValue, match="the cohort's population, 10000"):
        phones.correct("a", reports_per_user=1)
    phones.settle("a", 2 * POPULATION)
    phones.check()


def test_the_local_budget_counts_every_report() -> None:
    one, several = krr(100, 1), krr(100, 3, honest_fraction=0.5)
    assert local_bounds([(several, 2), (one, 1)])[0] == 14.0
    more = {"delta0": 1e-9, "analysis": "clone-identical", "reports_per_user": 3}
    local = parsed("generic(epsilon0=1)", 100, **more)
    assert math.isclose(local_bounds([(local, 1)])[1], 3e-9, rel_tol=1e-12)
    assert local_kind([several, one]) == local_kind([one, several]) == several
    larger = dataclasses.replace(one, randomizer=clerks.krr(100, 5.0).randomizer)
    assert local_kind([several, larger]) == several
    assert local_kind([krr(100, 2), larger]) == larger


def test_fewer_reports_than_a_user_may_send_leave_nobody_to_hide_behind() -> None:
    few = with_reports(krr(100, 5, honest_fraction=0.1), 3)
    assert charged_as(few) == (krr(1, 1), 5)
    assert charged_as(with_reports(krr(100, 5), 3)) == (krr(1, 1), 3)
    sampled = with_reports(krr(100, 2, sampled_from=60), 150)
    assert (sampled.reports, sampled.sampled_from) == (150, 75)


@pytest.mark.slow
def test_more_reports_than_declared_may_come_from_one_user(clerk: Clerk) -> None:
    clerk.open(epsilon=12.0)
    admitted = clerk.ask(krr(3, 5), name="a")
    assert isinstance(admitted, Admitted)
    assert charged_as(admitted.accounted) == (krr(1, 1), 3)
    # Ten reports hide each other better than three, but five of them may be one user's.
    settled = clerk.settle("a", 10)
    assert charged_as(settled.accounted) == (krr(2, 1), 5)
    assert settled.epsilon_spent_upper > admitted.epsilon_spent_upper
    assert clerk.statement().cohorts[0].local_epsilon_upper == 10.0
    clerk.check()


def test_a_correction_to_one_report_states_the_sampling_rate_anew() -> None:
    sampled = krr(1_000, sampled_from=5_000)  # of 1,000 users, say, half of whom were lost
    with pytest.raises(InvalidParameter, match="reports divided by it are then the sampling rate"):
        described_otherwise(sampled, {"reports_per_user": 1, "reports": 500})
    assert described_otherwise(sampled, {"reports_per_user": 1, "sampled_from": 2_500}).sampled_from == 2_500
    assert described_otherwise(sampled, {"reports_per_user": 1, "sampled_from": None}) == krr(1_000, 1)
    assert described_otherwise(sampled, {"reports_per_user": 3}).sampled_from == 5_000


def test_a_correction_to_several_reports_needs_one_randomizer_for_all(phones: Clerk) -> None:
    assert phones.admits(parsed("generic(epsilon0=1)", 5_000), name="a")
    with pytest.raises(InvalidParameter, match="as tight and clone-identical do"):
        phones.correct("a", reports_per_user=2)
    corrected = phones.correct("a", reports_per_user=2, analysis="tight")
    assert corrected.accounted.reports_per_user == 2
    assert phones.statement().cohorts[0].local_epsilon_upper == 2.0
    phones.check()


def test_too_small_a_charge_is_found(phones: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Accountant.charge
    monkeypatch.setattr(
        Accountant, "charge", lambda own, one, filters: real(own, charged_as(one)[0], filters)
    )
    assert phones.admits(krr(8_000))
    monkeypatch.undo()
    phones.accountant = Accountant()
    phones.blames("the charge it states is too small")


def test_a_statement_knows_of_several_reports_that_a_correction_tells(phones: Clerk) -> None:
    """Without the shuffler the round counts as declared, for that is more; it has several reports now."""
    phones.ask(krr(5_000, 1), name="a")
    before = phones.statement()
    assert OF_SEVERAL_REPORTS not in before.conditions
    assert before.cohorts[0].interaction == "sequentially interactive"
    phones.correct("a", reports_per_user=2, randomizer={"kind": "krr", "k": 2, "epsilon0": 0.25})
    after = phones.statement()
    assert [kind.reports_per_user for kind in phones.store.view("phones").local] == [1]
    assert after.cohorts[0].promise.privacy_unit == PRIVACY_UNIT_OF_SEVERAL
    assert after.cohorts[0].interaction == "fully interactive"
    assert OF_SEVERAL_REPORTS in after.conditions
