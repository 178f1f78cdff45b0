"""Cohorts of policy `adaptive` with the accountant's numbers: sliding reserves, accounts of delta for
approximate rounds, and declared slots beside the filters, each at its part of delta."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import Accountant, FilterSet, slot_for
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import admit, register
from shuffle_ledger.ledger.errors import BeyondBudget, Conflict, Damaged, InvalidValue
from shuffle_ledger.ledger.policies.registry import rules_digest
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.attack import disarmed, rewrite, stating
from tests.ledger.clerk import Clerk, krr, parsed

database_url = sqlite_url  # an entry has the same bytes in every database
DELTA = 1e-6
RARE = krr(500, 4.0, sampled_from=50_000)  # filters bound it badly
PLAIN = krr(10_000, 1.0)
PLAN = {RARE: 20, PLAIN: 2}
IRREGULAR, REGULAR = krr(10_000, 4.0, sampled_from=100_000), krr(20_000, 1.0)


def with_rules(body: EntryBody, **changes: Any) -> EntryBody:
    """An opening with other rules, and the standing that names them."""
    rules = {**body.details["rules"], **changes}
    return stating(rules=rules, standing={**body.details["standing"], "rules": rules_digest(rules)})(body)


# What decides is read from the first and the last entry.


def test_rules_are_those_of_the_first_entry(clerk: Clerk) -> None:
    clerk.open()
    clerk.ask()

    def forge(body: EntryBody) -> EntryBody:
        generous = FilterSet.for_budget(epsilon=5.0, delta=0.1).to_mapping()
        return stating(rules={**body.details["rules"], "delta": 0.1, "filters": generous})(body)

    rewrite(clerk.store, 1, forge, rest=False)
    # As another process would: one that has read the first entry before knows it, whatever the row says.
    url = clerk.store.engine.url.render_as_string(hide_password=False)
    with Store.connect(url) as other, pytest.raises(Damaged, match="other rules"):
        Clerk(other, clerk.accountant).ask(name="another")


def test_nothing_is_decided_when_the_policy_was_edited(clerk: Clerk) -> None:
    clerk.open()
    with disarmed(clerk.store) as connection:
        connection.execute(text("UPDATE cohorts SET policy = 'plan' WHERE name = 'phones'"))
    with pytest.raises(Damaged):
        clerk.ask()


def test_a_round_of_more_users_than_the_cohort_has_is_neither_admitted_nor_verified(clerk: Clerk) -> None:
    """As after the database was put back, and the cohort opened again with fewer users."""
    clerk.open()
    clerk.ask(krr(20_000))
    register(clerk.store, clerk.request(krr(20_000), name="late"), actor="tester")
    rewrite(clerk.store, 1, stating(population=1000))
    with disarmed(clerk.store) as connection:
        connection.execute(text("UPDATE cohorts SET population = 1000"))
    with pytest.raises(InvalidValue):
        admit(clerk.store, clerk.accountant, "late")
    clerk.blames("more users")


# Sliding reserves.


def goes_on_by_sliding(clerk: Clerk) -> bool:
    """Returns whether the sliding total alone holds, of all filters that add variances up."""
    state = clerk.state()
    *fixed, sliding = machine.standing(state.rules, state.limits, state.total, state.limits.refuse).filters
    return not any(fixed[: len(state.rules.reserves)]) and bool(sliding)


def in_turn(clerk: Clerk) -> int:
    """Ask for two kinds of rounds in turn; return how many were admitted before the first refusal."""
    count = 0
    while clerk.admits(IRREGULAR if count % 2 else REGULAR):
        count += 1
    return count


@pytest.mark.slow
def test_rounds_go_on_where_fixed_reserves_end(clerk: Clerk) -> None:
    clerk.open(population=10**6, epsilon=0.4, delta=1e-9)
    admitted = in_turn(clerk)
    assert goes_on_by_sliding(clerk)
    regular, irregular = slot_for(REGULAR), slot_for(IRREGULAR)

    def composed(rounds: int) -> float:
        held = {regular: (rounds + 1) // 2, irregular: rounds // 2}
        return clerk.accountant.certify(held, delta=1e-9).epsilon_upper

    exact = admitted
    while composed(exact + 1) <= 0.4:
        exact += 1
    assert 0.9 * exact <= admitted <= exact
    report = verify(clerk.store, Accountant(), numbers="all")
    assert report.ok, report


@pytest.mark.slow
def test_a_budget_that_is_raised_lets_rounds_go_on(clerk: Clerk) -> None:
    clerk.open(population=10**6, epsilon=0.4, delta=1e-9)
    first = clerk.state().limits
    clerk.change(0.3)
    refused = in_turn(clerk)
    lowered = clerk.state().limits
    assert lowered.promise == lowered.refuse
    assert lowered.sliding == first.sliding
    clerk.change(0.6)
    raised = clerk.state().limits
    assert raised.sliding == raised.promise.gaussian > (lowered.sliding or 0)
    assert in_turn(clerk) > refused
    assert goes_on_by_sliding(clerk)
    report = verify(clerk.store, Accountant(), numbers="all")
    assert report.ok, report


@pytest.mark.parametrize("written", ["1" + "0" * 400, "1e1000000000"])
def test_a_charge_beyond_all_numbers_is_named(clerk: Clerk, written: str) -> None:
    clerk.open()
    clerk.ask(REGULAR)

    def dearest(body: EntryBody) -> EntryBody:
        changed = {name: {**body.details[name], "divergences": [written] * 3} for name in ("cost", "charge")}
        standing = body.details["standing"]
        total = {**standing["total"], "divergences": [written] * 3}
        return stating(**changed, standing={**standing, "total": total})(body)

    rewrite(clerk.store, 2, dearest)
    problems = verify(clerk.store, clerk.accountant).cohorts[0].problems
    assert any(one.sequence == 2 for one in problems), problems


# Approximate rounds.


@pytest.mark.slow
def test_an_exhausted_account_refuses_approximate_rounds_alone(clerk: Clerk) -> None:
    clerk.open(population=10**6, epsilon=3.0, approximate_share=1 / 8)
    pure, local = krr(20_000), parsed("generic(epsilon0=1)", 20_000, analysis="clone", delta0=3e-14)
    assert clerk.admits(pure)
    assert clerk.fill(local) == 4
    refused = clerk.refusal(local)
    assert (refused.reason, refused.epsilon_requested_upper) == ("delta_account_exhausted", None)
    assert "local deltas" in refused.message
    assert clerk.admits(pure)
    quoted = clerk.quote(clerk.request(local))
    assert (quoted.would_be, quoted.reason) == ("refused", "delta_account_exhausted")
    (stated,) = clerk.statement().cohorts
    assert quoted.delta_accounts == clerk.budget().delta_accounts == stated.delta_accounts
    assert quoted.delta_accounts is not None
    assert quoted.delta_accounts.slack_used_upper <= quoted.delta_accounts.slack_share < DELTA / 16
    (kind,) = clerk.forecast(round=local).kinds
    assert (kind.rounds_at_least, kind.limited_by) == (0, "delta_account")
    clerk.audit()


def test_a_refusal_for_slack_names_a_smaller_epsilon_that_admits_the_rounds(clerk: Clerk) -> None:
    often = parsed("generic(epsilon0=1)", 50_000, delta0=1e-14)
    clerk.open("large", epsilon=8.0)
    few = clerk.fill(often, "large", most=6)
    message = clerk.refusal(often, "large").message
    found = re.search(r"but with epsilon ([0-9.]+) or less", message)
    assert found is not None, message
    assert 0 < float(found[1]) < 8
    clerk.open("smaller", epsilon=float(found[1]))
    assert clerk.fill(often, "smaller", most=6) > few


def test_a_share_that_the_accounts_do_not_have_is_found(clerk: Clerk) -> None:
    clerk.open(approximate_share=1 / 8)
    rewrite(clerk.store, 1, lambda body: with_rules(body, approximate_share=0.25))
    clerk.blames("another share of delta than it says")


# Declared slots.


@pytest.fixture
def slotted(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones", which declares `PLAN` beside its filters."""
    clerk.usual |= {"plan": PLAN, "epsilon": 0.13}
    clerk.open()
    return clerk


def test_an_opening_divides_delta_and_certifies_the_slots(slotted: Clerk) -> None:
    policy = slotted.policy()
    assert policy.filters is not None
    assert policy.share_of_slots == 0.75 * DELTA
    assert 0.24 * DELTA < sum(policy.filters.shares()) <= 0.25 * DELTA
    assert sum(policy.machine_rules.shares) <= policy.machine_rules.delta
    whole = slotted.accountant.certify(PLAN, delta=0.75 * DELTA)
    assert policy.slots_epsilon == (whole.epsilon_upper, whole.epsilon_lower)
    shown = slotted.budget()
    assert [(one.round, one.count, one.claimed) for one in shown.slots] == [(RARE, 20, 0), (PLAIN, 2, 0)]
    slotted.open()  # the same again
    slotted.ask(PLAIN)  # now it is not opened again with another plan
    for plan in ({RARE: 20, PLAIN: 1}, None):
        with pytest.raises(Conflict, match="another plan"):
            slotted.open(plan=plan)
    with pytest.raises(BeyondBudget):
        slotted.open("more", plan={RARE: 2_000})
    with pytest.raises(InvalidValue, match="rounds_per_user"):
        slotted.open("few", rounds_per_user=2)
    slotted.audit()


@pytest.mark.slow
def test_declared_rounds_go_on_where_every_filter_ended(slotted: Clerk) -> None:
    assert slotted.fill(RARE) == 20
    assert slotted.total().claims == (20, 0)
    state = slotted.state()
    holds = machine.standing(state.rules, state.limits, state.total, state.limits.refuse)
    assert (holds.slots, holds.filtered) == (1, 0)
    assert slotted.refusal(krr(2_000, 1.0)).reason == "budget_exceeded"
    assert slotted.fill(PLAIN) == 2, "the rest of what was declared"
    shown = slotted.budget()
    assert [one.claimed for one in shown.slots] == [20, 2]
    assert [one.rounds_at_least for one in shown.fits] == [0, 0]
    assert shown.epsilon_spent_upper == slotted.policy().slots_epsilon[0] <= 0.13
    (stated,) = slotted.statement().cohorts
    assert (stated.verdict, stated.spent.epsilon_upper) == ("kept", shown.epsilon_spent_upper)
    assert "declared slots" in stated.decided_by
    assert [one.epsilon_upper for one in stated.filters if one.name == "slots"] == [shown.epsilon_spent_upper]
    slotted.audit()


@pytest.mark.slow
def test_windows_and_quotas_have_filters_alone(slotted: Clerk) -> None:
    slotted.open("parts", epsilon=0.4, windows=(Window(unit="day", epsilon=0.3, delta=1e-7),))
    slotted.quota("ads", 0.3, cohort="parts")
    assert slotted.admits(PLAIN, "parts", team="ads")
    parts = [cohort.name for cohort in slotted.store.cohorts() if cohort.parent == "parts"]
    assert len(parts) == 2
    for name in parts:
        assert slotted.policy(name).slots_declared == ()
        assert "fits" not in slotted.store.entry(name, 2).content().details["cost"]
    assert slotted.total("parts").claims == (0, 1)
    slotted.audit()


def with_larger(body: EntryBody, *paths: tuple[str | int, ...]) -> EntryBody:
    """An opening of which these limits are a 65,536th larger."""
    limits = copy.deepcopy(body.details["limits"])
    for path in paths:
        place: Any = limits
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = str(int(place[path[-1]]) + (int(place[path[-1]]) >> 16))
    return stating(limits=limits)(body)


VARIANCES = (("sliding",), ("refuse", "gaussian"), ("promise", "gaussian"))
TOGETHER: tuple[tuple[tuple[str | int, ...], ...], ...] = (
    (("certain",),),
    (("slack",),),
    (("sliding",),),
    (("refuse", "epsilon"), ("promise", "epsilon")),
    VARIANCES,
    *((("refuse", "divergences", place), ("promise", "divergences", place)) for place in range(3)),
)


@pytest.mark.parametrize("paths", TOGETHER)
def test_limits_that_their_shares_of_delta_do_not_allow_are_found(
    slotted: Clerk, paths: tuple[tuple[str | int, ...], ...]
) -> None:
    """They are larger wherever they stand, so that they say the same."""
    slotted.ask(PLAIN)
    rewrite(slotted.store, 1, lambda body: with_larger(body, *paths))
    report = verify(slotted.store, slotted.accountant)
    assert any(one.sequence == 1 for one in report.cohorts[0].problems), report


def test_no_entry_says_other_limits_than_follow(slotted: Clerk) -> None:
    """Also where it need not say any."""
    slotted.ask(PLAIN)
    larger = with_larger(slotted.store.entry("phones", 1).content(), *VARIANCES).details["limits"]

    def forge(body: EntryBody) -> EntryBody:
        return stating(standing={**body.details["standing"], "limits": larger})(body)

    rewrite(slotted.store, 2, forge)
    slotted.blames("standing.limits")


def with_slots(body: EntryBody, **changes: float) -> EntryBody:
    """An opening whose slots are certified otherwise."""
    return with_rules(body, slots={**body.details["rules"]["slots"], **changes})


def test_an_opening_that_bounds_slots_by_nothing_from_below_hides_no_spending(slotted: Clerk) -> None:
    assert slotted.fill(RARE) == 20
    last = slotted.store.view("phones").head_sequence - 1  # the last one is refused

    def forge(body: EntryBody) -> EntryBody:
        spent = dataclasses.replace(body.spent, epsilon_upper=0.01, epsilon_lower=0.0)
        return dataclasses.replace(stating(requested=spent.to_mapping())(body), spent=spent)

    first = slotted.store.entry("phones", 1).content()
    assert first.details["rules"]["slots"]["epsilon_lower"] > 0.1
    forged = with_slots(first, epsilon_lower=0.0).details["standing"]["rules"]

    def named(body: EntryBody) -> EntryBody:
        return stating(standing={**body.details["standing"], "rules": forged})(body)

    rewrite(slotted.store, 1, lambda body: with_slots(body, epsilon_lower=0.0))
    for sequence in range(2, last + 2):
        rewrite(slotted.store, sequence, named)
    slotted.check()  # a lower bound of nothing is one
    rewrite(slotted.store, last, forge)
    problems = verify(slotted.store, slotted.accountant).cohorts[0].problems
    assert any(one.sequence == last and "the filters say" in one.what for one in problems), problems


def test_a_certificate_of_slots_that_is_too_small_is_found(slotted: Clerk) -> None:
    rewrite(slotted.store, 1, lambda body: with_slots(body, epsilon_upper=0.1, epsilon_lower=0.1))
    slotted.blames("the whole plan costs")
