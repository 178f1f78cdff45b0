"""The sliding reserve in a ledger: rounds go on where fixed reserves end, and where a budget is raised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, slot_for
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import admit, change_budget, open_cohort, register
from shuffle_ledger.ledger.machine import Limits, State
from shuffle_ledger.ledger.policies.numbers import read
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import rewrite, state_in

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
EPSILON, DELTA = 0.4, 1e-9


@pytest.fixture
def watches(store: Store) -> Store:
    """Return a ledger with the adaptive cohort "watches"."""
    opened: dict[str, Any] = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA}
    open_cohort(store, name="watches", policy="adaptive", actor="tester", **opened)
    return store


def goes_on_by_sliding(state: State) -> bool:
    """Returns whether the sliding total alone holds, of all filters that add variances up."""
    *fixed, sliding = machine.standing(state.rules, state.limits, state.total, state.limits.refuse).filters
    return not any(fixed[: len(state.rules.reserves)]) and bool(sliding)


def until_refused(
    store: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    kinds: Sequence[dict[str, Any]],
    first: int = 0,
) -> int:
    """Ask for rounds of some kinds in turn, named by their numbers; return the number that was refused."""
    number = first
    while True:
        request = make_request(f"r{number}", cohort="watches", **kinds[number % len(kinds)])
        register(store, request, actor="tester")
        if not isinstance(admit(store, accountant, request.round_id), Admitted):
            return number
        number += 1


IRREGULAR: dict[str, Any] = {"epsilon0": 4.0, "reports": 10_000, "sampled_from": 100_000}
REGULAR: dict[str, Any] = {"epsilon0": 1.0, "reports": 20_000}


@pytest.mark.slow
def test_rounds_go_on_where_fixed_reserves_end(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    kinds = [REGULAR, IRREGULAR]
    admitted = until_refused(watches, accountant, make_request, kinds)
    assert goes_on_by_sliding(state_in(watches, "watches"))
    accounted = [slot_for(make_request("any", cohort="watches", **kind).round) for kind in kinds]
    exact = admitted
    while (
        accountant.certify(
            {accounted[0]: (exact + 2) // 2, accounted[1]: (exact + 1) // 2}, delta=DELTA
        ).epsilon_upper
        <= EPSILON
    ):
        exact += 1
    assert 0.9 * exact <= admitted <= exact
    report = verify(watches, Accountant(), numbers="all")
    assert report.ok, report


@pytest.mark.slow
def test_a_budget_that_is_raised_lets_rounds_go_on(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    change_budget(watches, "watches", epsilon=0.3, reason="as agreed", actor="owner")
    refused = until_refused(watches, accountant, make_request, [REGULAR, IRREGULAR])
    lowered_limits = state_in(watches, "watches").limits
    assert lowered_limits.promise == lowered_limits.refuse
    assert (
        lowered_limits.sliding
        == read(Limits, watches.entry("watches", 1).content().details["limits"]).sliding
    )
    change_budget(watches, "watches", epsilon=0.6, reason="as agreed", actor="owner")
    raised = state_in(watches, "watches").limits
    assert raised.sliding == raised.promise.gaussian > (lowered_limits.sliding or 0)
    more = until_refused(watches, accountant, make_request, [REGULAR, IRREGULAR], refused + 1)
    assert more > 2 * refused
    assert goes_on_by_sliding(state_in(watches, "watches"))
    report = verify(watches, Accountant(), numbers="all")
    assert report.ok, report


@pytest.mark.parametrize("written", ["1" + "0" * 400, "1e1000000000", "1/0"])
def test_a_charge_beyond_all_numbers_is_named(
    watches: Store, accountant: Accountant, make_request: MakeRequest, written: str
) -> None:
    request = make_request("r0", cohort="watches", **REGULAR)
    register(watches, request, actor="tester")
    assert isinstance(admit(watches, accountant, "r0"), Admitted)

    def dearest(body: EntryBody) -> EntryBody:
        changed = {name: {**body.details[name], "divergences": [written] * 3} for name in ("cost", "charge")}
        total = {**body.details["standing"]["total"], "divergences": [written] * 3}
        standing = {**body.details["standing"], "total": total}
        return dataclasses.replace(body, details={**body.details, **changed, "standing": standing})

    rewrite(watches, 2, dearest)
    problems = verify(watches, accountant).cohorts[0].problems
    named = ("details.cost is not written as ledgers write it", "does not follow")
    assert any(one.sequence == 2 and any(name in one.what for name in named) for one in problems), problems
