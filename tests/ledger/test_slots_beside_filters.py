"""Cohorts of policy `adaptive` that declare slots: slots or a filter hold, each at its part of delta."""

from __future__ import annotations

import copy
import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import set_quota, with_budgets
from shuffle_ledger.ledger.errors import BeyondBudget, Conflict, InvalidValue
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.machine import Coordinates, Total
from shuffle_ledger.ledger.policies.registry import rules_digest
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.desk import AnyDesk, policy_in, rewrite, state_in, total_in

database_url = sqlite_url  # an entry has the same bytes in every database
DELTA = 1e-6


def krr(epsilon0: float, reports: int, **more: Any) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports, **more)


RARE = krr(4.0, 500, sampled_from=50_000)  # filters bound it badly
PLAIN, FEWER, UNDECLARED = krr(1.0, 10_000), krr(1.0, 5_000), krr(1.0, 2_000)
PLAN = {RARE: 20, PLAIN: 2}


class Desk(AnyDesk):
    """A ledger with the cohort "watches", which declares `PLAN` beside its filters."""

    def open(self, name: str = "watches", /, **changes: Any) -> None:
        super().open(name, **{"plan": PLAN, "epsilon": 0.13, "delta": DELTA, **changes})

    def ask(self, kind: ShuffledRound, name: str | None = None) -> Outcome:
        request = RoundRequest(round_id=name or self.new_name(), cohort="watches", round=kind)
        return self.decide(request)

    def admitted(self, kind: ShuffledRound, most: int) -> int:
        """Ask for rounds of a kind until one is refused, at most this many; return how many were admitted."""
        for count in range(most):
            if isinstance(self.ask(kind), Refused):
                return count
        return most

    @property
    def total(self) -> Total:
        return total_in(self.store, "watches")

    @property
    def holds(self) -> Coordinates:
        """Which limits and filters hold at the budget's epsilon."""
        state = state_in(self.store, "watches")
        return machine.standing(state.rules, state.limits, state.total, state.limits.refuse)


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def test_an_opening_divides_delta_and_certifies_the_slots(desk: Desk) -> None:
    desk.open()
    policy = policy_in(desk.store, "watches")
    assert policy.filters is not None
    assert policy.share_of_slots == 0.75 * DELTA
    assert 0.24 * DELTA < sum(policy.filters.shares()) <= 0.25 * DELTA
    assert sum(policy.machine_rules.shares) <= policy.machine_rules.delta
    whole = desk.accountant.certify(PLAN, delta=0.75 * DELTA)
    assert policy.slots_epsilon == (whole.epsilon_upper, whole.epsilon_lower)
    shown = budget(desk.store, desk.accountant, "watches")
    assert [(one.round, one.count, one.claimed) for one in shown.slots] == [(RARE, 20, 0), (PLAIN, 2, 0)]
    desk.open()  # the same again
    desk.ask(PLAIN)  # now it is not opened again with another plan
    with pytest.raises(Conflict, match="another plan"):
        desk.open(plan={RARE: 20, PLAIN: 1})
    with pytest.raises(Conflict, match="another plan"):
        desk.open(plan=None)
    with pytest.raises(BeyondBudget):
        desk.open("more", plan={RARE: 2_000})
    with pytest.raises(InvalidValue, match="rounds_per_user"):
        desk.open("few", rounds_per_user=2)
    desk.audit()


@pytest.mark.slow
def test_declared_rounds_go_on_where_every_filter_ended(desk: Desk) -> None:
    desk.open()
    assert desk.admitted(RARE, 30) == 20
    assert desk.total.claims == (20, 0)
    assert (desk.holds.slots, desk.holds.filtered) == (1, 0)
    refused = desk.ask(UNDECLARED)
    assert isinstance(refused, Refused)
    assert refused.reason == "budget_exceeded"
    assert desk.admitted(PLAIN, 3) == 2, "the rest of what was declared"
    shown = budget(desk.store, desk.accountant, "watches")
    assert [one.claimed for one in shown.slots] == [20, 2]
    assert [one.rounds_at_least for one in shown.fits] == [0, 0]
    assert shown.epsilon_spent_upper == policy_in(desk.store, "watches").slots_epsilon[0] <= 0.13
    (stated,) = make_statement(desk.store, desk.accountant, ["watches"], made_at=datetime.now(UTC)).cohorts
    assert stated.verdict == "kept"
    assert stated.spent.epsilon_upper == shown.epsilon_spent_upper
    assert "declared slots" in stated.decided_by
    assert [one.epsilon_upper for one in stated.filters if one.name == "slots"] == [shown.epsilon_spent_upper]
    desk.audit()


@pytest.mark.slow
def test_a_truth_moves_between_slots(desk: Desk) -> None:
    desk.open(epsilon=0.4, plan={PLAIN: 2, FEWER: 1})
    assert isinstance(desk.ask(PLAIN, "a"), Admitted)
    assert desk.total.claims == (1, 0)
    desk.settle("a", 6_000)
    assert desk.total.claims == (0, 1)
    desk.correct("a", reports=3_000)
    assert (desk.total.claims, desk.total.unplaced, desk.holds.slots) == ((0, 0), 1, 0)
    assert desk.store.view("watches").cohort.status != "overspent", "the filters hold"
    desk.correct("a", reports=20_000)
    assert (desk.total.claims, desk.total.unplaced, desk.holds.slots) == ((1, 0), 0, 1)
    desk.audit()


@pytest.mark.slow
def test_windows_and_quotas_have_filters_alone(desk: Desk) -> None:
    desk.open(epsilon=0.4, windows=(Window(unit="day", epsilon=0.3, delta=1e-7),))
    set_quota(desk.store, "watches", team="ads", epsilon=0.3, reason="agreed", actor="ada")
    request = RoundRequest(round_id="r", cohort="watches", round=PLAIN, team="ads")
    assert isinstance(desk.decide(with_budgets(desk.store, request)), Admitted)
    parts = [cohort.name for cohort in desk.store.cohorts() if cohort.parent == "watches"]
    assert len(parts) == 2
    for name in parts:
        assert policy_in(desk.store, name).slots_declared == ()
        assert "fits" not in desk.store.entry(name, 2).content().details["cost"]
    assert desk.total.claims == (0, 1)
    desk.audit()


def test_an_approximate_round_is_refused_for_delta_that_slots_do_not_need(desk: Desk) -> None:
    """Filters would hold, but for their account of slack; and the round fits no slot."""
    desk.open(epsilon=0.4)
    often = krr_with_delta(1e-12)
    refused = desk.ask(often)
    assert isinstance(refused, Refused)
    assert refused.reason == "delta_account_exhausted"
    assert isinstance(desk.ask(PLAIN), Admitted)
    desk.audit()


def krr_with_delta(delta0: float) -> ShuffledRound:
    return ShuffledRound(
        randomizer=parse_randomizer("generic(epsilon0=0.5)"), reports=20_000, delta0=delta0, analysis="clone"
    )


def with_larger(body: EntryBody, *paths: tuple[str | int, ...]) -> EntryBody:
    """An opening of which these limits are a 65,536th larger."""
    limits = copy.deepcopy(body.details["limits"])
    for path in paths:
        place: Any = limits
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = str(int(place[path[-1]]) + (int(place[path[-1]]) >> 16))
    return dataclasses.replace(body, details={**body.details, "limits": limits})


TOGETHER: tuple[tuple[tuple[str | int, ...], ...], ...] = (
    (("certain",),),
    (("slack",),),
    (("sliding",),),
    (("refuse", "epsilon"), ("promise", "epsilon")),
    (("sliding",), ("refuse", "gaussian"), ("promise", "gaussian")),
    *((("refuse", "divergences", place), ("promise", "divergences", place)) for place in range(3)),
)


@pytest.mark.parametrize("paths", TOGETHER)
def test_limits_that_their_shares_of_delta_do_not_allow_are_found(
    desk: Desk, paths: tuple[tuple[str | int, ...], ...]
) -> None:
    """They are larger wherever they stand, so that they say the same."""
    desk.open()
    desk.ask(PLAIN)
    rewrite(desk.store, 1, lambda body: with_larger(body, *paths))
    report = verify(desk.store, desk.accountant)
    assert any(one.sequence == 1 for one in report.cohorts[0].problems), report


def test_no_entry_says_other_limits_than_follow(desk: Desk) -> None:
    """Also where it need not say any."""
    desk.open()
    desk.ask(PLAIN)
    variance = (("sliding",), ("refuse", "gaussian"), ("promise", "gaussian"))
    larger = with_larger(desk.store.entry("watches", 1).content(), *variance).details["limits"]

    def forge(body: EntryBody) -> EntryBody:
        standing = {**body.details["standing"], "limits": larger}
        return dataclasses.replace(body, details={**body.details, "standing": standing})

    rewrite(desk.store, 2, forge)
    problems = verify(desk.store, desk.accountant).cohorts[0].problems
    assert any(one.sequence == 2 and "standing.limits" in one.what for one in problems), problems


def test_an_opening_that_bounds_slots_by_nothing_from_below_hides_no_spending(desk: Desk) -> None:
    desk.open()
    assert desk.admitted(RARE, 20) == 20
    last = desk.store.view("watches").head_sequence

    def forge(body: EntryBody) -> EntryBody:
        spent = dataclasses.replace(body.spent, epsilon_upper=0.01, epsilon_lower=0.0)
        return dataclasses.replace(
            body, details={**body.details, "requested": spent.to_mapping()}, spent=spent
        )

    rules = desk.store.entry("watches", 1).content().details["rules"]
    assert rules["slots"]["epsilon_lower"] > 0.1
    forged = rules_digest({**rules, "slots": {**rules["slots"], "epsilon_lower": 0.0}})
    rewrite(desk.store, 1, lambda body: with_slots(body, epsilon_lower=0.0))
    for sequence in range(2, last + 1):
        rewrite(desk.store, sequence, lambda body: named(body, forged))
    assert verify(desk.store, desk.accountant).ok, "a lower bound of nothing is one"
    rewrite(desk.store, last, forge)
    problems = verify(desk.store, desk.accountant).cohorts[0].problems
    assert any(one.sequence == last and "the filters say" in one.what for one in problems), problems


def named(body: EntryBody, rules: str) -> EntryBody:
    """An entry that names other rules."""
    standing = {**body.details["standing"], "rules": rules}
    return dataclasses.replace(body, details={**body.details, "standing": standing})


def with_slots(body: EntryBody, **changes: float) -> EntryBody:
    """An opening whose slots are certified otherwise."""
    slots = {**body.details["rules"]["slots"], **changes}
    rules = {**body.details["rules"], "slots": slots}
    standing = {**body.details["standing"], "rules": rules_digest(rules)}
    return dataclasses.replace(body, details={**body.details, "rules": rules, "standing": standing})


@pytest.mark.parametrize("epsilon", [0.1, 0.05])
def test_a_certificate_of_slots_that_is_too_small_is_found(desk: Desk, epsilon: float) -> None:
    desk.open()
    rewrite(desk.store, 1, lambda body: with_slots(body, epsilon_upper=epsilon, epsilon_lower=epsilon))
    assert "the whole plan costs" in str(verify(desk.store, desk.accountant))
