"""Cohorts of policy `adaptive`: filters decide, entries record charges, and every change of them is
detected."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import Accountant, FilterSet, ShuffledRound
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import admit, quote, register, void
from shuffle_ledger.ledger.errors import Damaged, InvalidValue
from shuffle_ledger.ledger.machine import Charge, Cost, Limits, Total
from shuffle_ledger.ledger.machine.filters import taken as taken_now
from shuffle_ledger.ledger.policies.numbers import cost_of, read, spelled
from shuffle_ledger.ledger.policies.registry import BudgetPolicy
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import decided, disarmed, open_as_usual, policy_in, rewrite, state_in, total_in

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
EPSILON, DELTA = 1.0, 1e-9


@pytest.fixture
def watches(store: Store) -> Store:
    """Return a ledger with the adaptive cohort "watches"."""
    open_as_usual(store, "watches", epsilon=EPSILON, delta=DELTA)
    return store


def filters(store: Store) -> FilterSet:
    found = policy_in(store, "watches").filters
    assert found is not None
    return found


def total(store: Store) -> Total:
    return total_in(store, "watches")


def stated(store: Store, name: str) -> Cost:
    """Returns what a round's entry says that it costs."""
    (entry,) = (one for one in store.entries_of("watches") if one.round_id == name)
    return read(Cost, entry.content().details["cost"])


def test_entries_carry_exact_sums_of_what_each_round_was_charged(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    state = state_in(watches, "watches")
    kinds: list[dict[str, Any]] = [
        {"epsilon0": 1.0, "reports": 20_000},
        {"epsilon0": 2.0, "reports": 5_000, "sampled_from": 500_000},
        {"epsilon0": 1.0, "reports": 40_000, "honest_fraction": 0.9},
        {"epsilon0": 1.0, "reports": 20_000},
    ]
    charges = []
    for number, changes in enumerate(kinds):
        request = make_request(f"r{number}", cohort="watches", **changes)
        quoted = quote(watches, accountant, request)
        outcome = decided(watches, accountant, request)
        assert isinstance(outcome, Admitted)
        cost = cost_of(accountant.charge(outcome.accounted, filters(watches)))
        charges.append(taken_now(state, cost))
        expected = machine.added(state.rules, state.total, charges[-1])
        state = dataclasses.replace(state, total=expected)
        assert stated(watches, f"r{number}") == cost
        assert total(watches) == expected
        spent = policy_in(watches, "watches").spending(state, rounds=number + 1).epsilon_upper
        assert outcome.epsilon_spent_upper == spent == quoted.epsilon_requested_upper
    void(watches, accountant, "r1", reason="never released", actor="tester")
    left, one = total(watches), charges[1]
    assert left.gaussian == tuple(a - b for a, b in zip(state.total.gaussian, one.gaussian, strict=True))
    assert left.divergences == tuple(
        a - b for a, b in zip(state.total.divergences, one.divergences, strict=True)
    )
    assert (left.sliding, left.returned) == (state.total.sliding, one.sliding)
    voided = verify(watches, accountant)
    assert voided.ok, voided
    for number in (0, 2, 3):
        void(watches, accountant, f"r{number}", reason="never released", actor="tester")
    nothing = total(watches)
    assert not any((*nothing.gaussian, *nothing.divergences, nothing.certain, nothing.slack))
    assert nothing.sliding == nothing.returned
    assert budget(watches, accountant, "watches").epsilon_spent_upper == 0.0


def test_a_decision_reads_no_history(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Entries in the middle may be unreadable: only the first and the last are read."""
    for number in range(4):
        decided(watches, accountant, make_request(f"r{number}", cohort="watches", epsilon0=0.5))
    with disarmed(watches) as connection:
        connection.execute(text("UPDATE entries SET body = digest WHERE sequence IN (2, 3, 4)"))
    assert isinstance(
        decided(watches, accountant, make_request("next", cohort="watches", epsilon0=0.5)), Admitted
    )


Numbers = TypeVar("Numbers", Charge, Cost, Total)


def less(numbers: Numbers) -> Numbers:
    """Costs, charges or totals with one percent off."""
    changes: dict[str, Any] = {
        name: tuple(one * 99 // 100 for one in getattr(numbers, name)) for name in ("gaussian", "divergences")
    }
    if not isinstance(numbers, Cost):
        changes["sliding"] = numbers.sliding * 99 // 100
    return dataclasses.replace(numbers, **changes)


def cheaper(policy: BudgetPolicy, body: EntryBody) -> EntryBody:
    """An admitted round that costs one percent less, with everything that follows from it."""
    details = dict(body.details)
    after, charge = policy.state_in(details), read(Charge, details["charge"])
    before = dataclasses.replace(after, total=less_of(after.total, charge))
    cost = less(read(Cost, details["cost"]))
    taken = taken_now(before, cost)
    state = dataclasses.replace(before, total=machine.added(before.rules, before.total, taken))
    details |= {"cost": spelled(cost), "charge": spelled(taken)}
    details["standing"] = {**details["standing"], "total": spelled(state.total)}
    spent = policy.spending(state, rounds=body.spent.rounds)
    return dataclasses.replace(body, details={**details, "requested": spent.to_mapping()}, spent=spent)


def less_of(total: Total, charge: Charge) -> Total:
    """The total before an admitted round."""
    return dataclasses.replace(
        total,
        gaussian=tuple(a - b for a, b in zip(total.gaussian, charge.gaussian, strict=True)),
        divergences=tuple(a - b for a, b in zip(total.divergences, charge.divergences, strict=True)),
        sliding=total.sliding - charge.sliding,
        certain=total.certain - charge.certain,
        slack=total.slack - charge.slack,
    )


@pytest.mark.slow
def test_a_charge_a_little_too_small_is_found_though_everything_fits(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for number in range(3):
        decided(watches, accountant, make_request(f"r{number}", cohort="watches", epsilon0=0.5))
    assert verify(watches, accountant).ok
    policy = policy_in(watches, "watches")
    rewrite(watches, 4, lambda body: cheaper(policy, body))
    report = verify(watches, accountant)
    assert not report.ok
    assert report.cohorts[0].problems[0].sequence == 4, report


def test_rules_are_those_of_the_first_entry(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    decided(watches, accountant, make_request("one", cohort="watches", epsilon0=0.5))

    def forge(body: EntryBody) -> EntryBody:
        generous = FilterSet.for_budget(epsilon=5.0, delta=0.1).to_mapping()
        rules = {**body.details["rules"], "delta": 0.1, "filters": generous}
        return dataclasses.replace(body, details={**body.details, "rules": rules})

    rewrite(watches, 1, forge, rest=False)
    # As another process would: one that has read the first entry before knows it, whatever the row says.
    with Store.connect(watches.engine.url.render_as_string(hide_password=False)) as elsewhere:
        request = make_request("two", cohort="watches", epsilon0=0.5)
        with pytest.raises(Damaged, match="other rules"):
            decided(elsewhere, accountant, request)


def test_nothing_is_decided_when_the_policy_was_edited(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    with disarmed(watches) as connection:
        connection.execute(text("UPDATE cohorts SET policy = 'plan' WHERE name = 'watches'"))
    request = make_request("one", cohort="watches")
    register(watches, request, actor="tester")
    with pytest.raises(Damaged):
        admit(watches, accountant, "one")


@pytest.mark.slow
def test_readings_are_the_same_in_every_process(watches: Store) -> None:
    """What verification computes again is what was decided, to the last digit."""
    program = (
        "from accounting import *\n"
        "filters = FilterSet.for_budget(epsilon=1.0, delta=1e-9)\n"
        "shuffled = ShuffledRound(randomizer='generic(epsilon0=1)', reports=5000, sampled_from=50000)\n"
        "print(Accountant().charge(shuffled, filters), filters.limits(1.0))"
    )
    command = [sys.executable, "-c", program]
    answers = {
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    shuffled = ShuffledRound(randomizer="generic(epsilon0=1)", reports=5000, sampled_from=50000)  # type: ignore[arg-type]
    again = filters(watches)
    assert answers == {f"{Accountant().charge(shuffled, again)} {again.limits(1.0)}\n"}


def test_an_adaptive_opening_says_its_rules(watches: Store) -> None:
    body = watches.entry("watches", 1).content()
    assert body.kind is EntryKind.OPENED
    opened = FilterSet.for_budget(epsilon=EPSILON, delta=DELTA)
    assert FilterSet.from_mapping(body.details["rules"]["filters"]) == opened
    assert (body.details["rules"]["delta"], body.details["rules"]["kind"]) == (DELTA, "life")
    state = state_in(watches, "watches")
    assert state.limits == read(Limits, body.details["limits"])
    assert state.total == machine.new_state(state.rules, state.limits).total


def test_a_round_of_more_users_than_the_cohort_has_is_neither_admitted_nor_verified(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """As after the database was put back, and the cohort opened again with fewer users."""
    assert isinstance(
        decided(watches, accountant, make_request("early", cohort="watches", reports=20_000)), Admitted
    )
    register(watches, make_request("late", cohort="watches", reports=20_000), actor="tester")
    rewrite(watches, 1, lambda body: dataclasses.replace(body, details={**body.details, "population": 1000}))
    with disarmed(watches) as connection:
        connection.execute(text("UPDATE cohorts SET population = 1000"))
    with pytest.raises(InvalidValue):
        admit(watches, accountant, "late")
    problems = verify(watches, accountant).cohorts[0].problems
    assert any(one.sequence == 2 and "more users" in one.what for one in problems), problems
