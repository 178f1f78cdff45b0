"""The sliding reserve in a ledger: admissions, voids late and early, settlements, forgeries, any sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, FilterCharge, FilterSet, ShuffledRound, slot_for
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import admit, change_budget, open_cohort, register, settle, void
from shuffle_ledger.ledger.machine import LOSS_UNIT, Charge, Limits, State, Total
from shuffle_ledger.ledger.policies.numbers import cost_of, read, spelled
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import policy_in, state_in, total_in
from tests.ledger.test_adaptive import rewrite
from tests.ledger.test_state_machine import (
    BUDGET,
    AddingAccountant,
    ChargingAccountant,
    Operations,
    run_machine,
)

pytestmark = pytest.mark.policies

MakeRequest = Callable[..., RoundRequest]
EPSILON, DELTA = 0.4, 1e-9


@pytest.fixture
def watches(store: Store) -> Store:
    """Return a ledger with the adaptive cohort "watches"."""
    opened: dict[str, Any] = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA}
    open_cohort(store, name="watches", policy="adaptive", actor="tester", **opened)
    return store


def total_of(store: Store) -> Total:
    return total_in(store, "watches")


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
def test_a_late_void_gives_back_what_nothing_was_built_on(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    admitted = until_refused(watches, accountant, make_request, [IRREGULAR, REGULAR])
    before = total_of(watches)
    void(watches, accountant, "r0", reason="never released", actor="tester")
    kept = total_of(watches)
    assert kept.gaussian == before.gaussian, "later rounds were hidden in what it had left"
    assert all(after < was for after, was in zip(kept.divergences, before.divergences, strict=True))
    last = admitted - 1 if admitted % 2 == 0 else admitted - 2  # the last regular one: it needs no reserve
    void(watches, accountant, f"r{last}", reason="never released", actor="tester")
    given = total_of(watches)
    assert all(after < was for after, was in zip(given.gaussian, kept.gaussian, strict=True))
    settle(watches, accountant, "r2", reports=9_900, actor="tester")
    settled = total_of(watches)
    assert settled.sliding > given.sliding
    assert settled.late == settled.sliding - given.sliding
    report = verify(watches, Accountant(), numbers="all")
    assert report.ok, report


@pytest.mark.slow
def test_a_reserve_that_is_not_left_is_found(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    admitted = until_refused(watches, accountant, make_request, [IRREGULAR])

    def smoothed(body: EntryBody) -> EntryBody:
        """The last admitted round, charged as if half of the budget were left."""
        details = dict(body.details)
        charge, total = read(Charge, details["charge"]), read(Total, details["standing"]["total"])
        last = len(charge.gaussian) - 1
        cheaper = dataclasses.replace(charge, sliding=charge.gaussian[last], reserve=last)
        assert cheaper.sliding < charge.sliding
        less = dataclasses.replace(total, sliding=total.sliding - charge.sliding + cheaper.sliding)
        details["charge"] = spelled(cheaper)
        details["standing"] = {**details["standing"], "total": spelled(less)}
        return dataclasses.replace(body, details=details)

    rewrite(watches, admitted + 1, smoothed)
    problems = verify(watches, accountant).cohorts[0].problems
    assert any(one.sequence == admitted + 1 and "what is left" in one.what for one in problems), problems


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
    change_budget(watches, "watches", epsilon=0.7, reason="as agreed", actor="owner")

    def lowered(body: EntryBody) -> EntryBody:
        standing = body.details["standing"]
        limits = {**standing["limits"], "sliding": str((raised.sliding or 0) // 2)}
        return dataclasses.replace(body, details={**body.details, "standing": {**standing, "limits": limits}})

    head = watches.view("watches").head_sequence
    rewrite(watches, head, lowered)
    problems = verify(watches, accountant).cohorts[0].problems
    assert any(one.sequence == head and "what it says of limits" in one.what for one in problems), problems


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
    named = ("details.charge is not written as ledgers write it", "does not follow")
    assert any(one.sequence == 2 and any(name in one.what for name in named) for one in problems), problems


class SmoothingAccountant(ChargingAccountant):
    """Only the Gaussian filter bounds anything, and rounds are cheaper where there is more noise."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        charge = super().charge(accounted, filters)
        beyond, cost = charge.gaussian[0], charge.renyi[-1]
        least = cost / Fraction(BUDGET) * Fraction(filters.gaussian.reserves[-1])
        dearer = [1 + Fraction(2, 1 + 4 * place) for place in range(len(charge.gaussian))]
        return dataclasses.replace(
            charge, gaussian=tuple(least * more for more in dearer), renyi=(beyond,) * len(charge.renyi)
        )

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Any:
        """Less than what the filter says to it, as it must be."""
        certificate = super().certify(rounds, delta=delta, budget=budget)
        certificate.epsilon_upper /= 4
        certificate.epsilon_lower /= 4
        return certificate


class SlidingOperations(Operations):
    """Charges at what noise is left, and voids that come too late: told again, as plainly as possible."""

    policy = "adaptive"

    def __init__(self) -> None:
        super().__init__()
        self.costs: dict[str, tuple[int, ...]] = {}
        self.took: dict[str, int] = {}
        self.fixed = {name: [0] * 5 for name in ("phones", "tablets")}
        self.held = dict.fromkeys(self.fixed, 0)
        self.ever = dict.fromkeys(self.fixed, 0)
        self.late = dict.fromkeys(self.fixed, 0)

    def new_accountant(self) -> AddingAccountant:
        return SmoothingAccountant()

    def reserves(self, cohort: str) -> tuple[int, ...]:
        return policy_in(self.store, cohort).machine_rules.reserves

    def limit(self, cohort: str) -> int:
        found = policy_in(self.store, cohort).limits
        assert found.sliding == found.refuse.gaussian
        return found.refuse.gaussian

    def after(self, cohort: str, round_: ShuffledRound, least: int = 0) -> tuple[tuple[int, ...], int]:
        filters = policy_in(self.store, cohort).filters
        assert filters is not None
        costs = cost_of(self.accountant.charge(round_, filters)).gaussian
        limit, held = self.limit(cohort), self.held[cohort]
        wanted = [max(cost, least) for cost in costs]
        fitting = [
            cost
            for reserve, cost in zip(self.reserves(cohort), wanted, strict=True)
            if held + cost + (reserve + limit // 32 if reserve else 0) <= limit
        ]
        return costs, min(fitting, default=wanted[0])

    def least(self, cohort: str, fixed: Sequence[int]) -> int:
        pairs = zip(self.reserves(cohort), fixed, strict=True)
        return min(reserve + used if used else 0 for reserve, used in pairs)

    def slides(self, cohort: str, held: int) -> bool:
        limit = self.limit(cohort)
        return held <= limit and self.late[cohort] <= limit // 32

    def holds(self, cohort: str, fixed: Sequence[int], held: int) -> bool:
        return self.least(cohort, fixed) <= self.limit(cohort) or self.slides(cohort, held)

    def would_admit(self, request: RoundRequest) -> bool:
        name = request.cohort
        costs, taken = self.after(name, slot_for(request.round))
        fixed = [total + cost for total, cost in zip(self.fixed[name], costs, strict=True)]
        return not self.cohorts[name].overspent and self.holds(name, fixed, self.held[name] + taken)

    def note_outcome(self, name: str, outcome: Outcome, *, expected: bool) -> None:
        if isinstance(outcome, Admitted):
            cohort = outcome.cohort
            self.costs[name], self.took[name] = self.after(cohort, outcome.accounted)
            self.add(cohort, self.costs[name], self.took[name])
        super().note_outcome(name, outcome, expected=expected)

    def add(self, cohort: str, costs: Sequence[int], taken: int, *, sign: int = 1) -> None:
        self.fixed[cohort] = [
            total + sign * cost for total, cost in zip(self.fixed[cohort], costs, strict=True)
        ]
        self.held[cohort] += sign * taken
        self.ever[cohort] += max(sign, 0) * taken

    def note_settled(self, name: str, before: ShuffledRound, after: ShuffledRound) -> None:
        cohort = self.requests[name].cohort
        filters = policy_in(self.store, cohort).filters
        assert filters is not None
        worse = cost_of(self.accountant.charge(after, filters)).gaussian
        if before == after or worse <= self.costs[name]:
            return  # what was charged covers it at every reserve
        self.add(cohort, self.costs[name], self.took[name], sign=-1)
        self.ever[cohort] -= self.took[name]
        costs, taken = self.after(cohort, after, self.took[name])
        self.late[cohort] += taken - self.took[name]
        self.add(cohort, costs, taken)

    def note_voided(self, name: str, accounted: ShuffledRound) -> None:
        cohort = self.requests[name].cohort
        reserve = self.reserves(cohort)[self.costs[name].index(self.took[name])]
        limit = self.limit(cohort)
        if not reserve or self.ever[cohort] + reserve + limit // 32 <= limit:
            self.add(cohort, self.costs[name], self.took[name], sign=-1)

    def is_broken(self, cohort: str) -> bool:
        return not self.holds(cohort, self.fixed[cohort], self.held[cohort])

    def is_spent(self, cohort: str, stated: float) -> bool:
        filters, held = policy_in(self.store, cohort).filters, self.held[cohort]
        assert filters is not None
        if not +self.cohorts[cohort].held:
            return stated == 0.0
        totals = [self.least(cohort, self.fixed[cohort])]
        if held and self.slides(cohort, held):
            totals.append(self.limit(cohort))
        return stated == min(filters.gaussian_reading(one * LOSS_UNIT).epsilon_upper for one in totals)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_any_sequence_of_operations(
    database: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    sqlite_template: Path,
) -> None:
    run_machine(SlidingOperations, database, request, (tmp_path, sqlite_template))
