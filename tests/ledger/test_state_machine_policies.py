"""Any sequence of operations where a count of repetitions decides, and where slots of a plan are taken."""

from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Charge, FilterSet, ShuffledRound, fits, parse_randomizer, slot_for
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, RoundRequest
from tests.ledger.test_state_machine import (
    BUDGET,
    DELTA,
    AddingAccountant,
    ChargingAccountant,
    Operations,
    run_machine,
)


class DearAccountant(ChargingAccountant):
    """To filters for rounds of any kind a round costs twice what it costs in composition."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> Charge:
        charge = super().charge(accounted, filters) * 2
        repetition = (filters.repetition.charge(accounted),) if filters.repetition else ()
        return dataclasses.replace(charge, repetition=repetition)


class RepeatingOperations(Operations):
    """The first admitted round of a cohort is counted, as often as its composition with itself allows."""

    policy = "adaptive"

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, ShuffledRound] = {}

    def new_accountant(self) -> AddingAccountant:
        return DearAccountant()

    def holds(self, cohort: str, held: Counter[ShuffledRound]) -> bool:
        kind = self.first.get(cohort, next(iter(held), None))
        if kind is None:
            return True
        repeated = all(fits(one, kind) for one in held) and self.cost(Counter({kind: held.total()})) <= BUDGET
        # Charges add exactly, and what the largest losses add up to may be the budget to the last digit.
        added = sum(count * Fraction(self.cost(Counter({one: 1}))) for one, count in held.items())
        return repeated or 2 * added <= BUDGET

    def would_admit(self, request: RoundRequest) -> bool:
        cohort = self.cohorts[request.cohort]
        wanted = +(cohort.held + Counter({slot_for(request.round): 1}))
        return not cohort.overspent and self.holds(request.cohort, wanted)

    def is_broken(self, cohort: str) -> bool:
        return not self.holds(cohort, +self.cohorts[cohort].held)

    def is_spent(self, cohort: str, stated: float) -> bool:
        composed = self.spent(cohort)
        return composed * (1 - 1e-9) <= stated <= 2 * composed * (1 + 1e-9)

    def note_outcome(self, name: str, outcome: Outcome, *, expected: bool) -> None:
        super().note_outcome(name, outcome, expected=expected)
        if isinstance(outcome, Admitted):
            self.first.setdefault(outcome.cohort, outcome.accounted)


def planned(epsilon0: float, reports: int) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": 4, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports)


# Rounds of 2.0 that turn out to have fewer than 500 reports fit nothing, others the next slot, if it is free.
PLAN = {planned(2.0, 500): 2, planned(1.0, 500): 1, planned(1.0, 100): 2, planned(0.5, 7): 2}


class PlannedOperations(Operations):
    """Rounds take free slots of a plan that dominate them."""

    policy = "plan"

    def __init__(self) -> None:
        super().__init__()
        self.free = {cohort: Counter(PLAN) for cohort in ("phones", "tablets")}
        self.uncovered = Counter[str]()  # released rounds that no slot stands for, by cohort

    def options(self) -> dict[str, Any]:
        return {"plan": PLAN, "accountant": self.accountant}

    def slot(self, request: RoundRequest) -> ShuffledRound | None:
        free = [slot for slot in PLAN if self.free[request.cohort][slot]]
        return next((slot for slot in free if slot == request.round), None) or next(
            (slot for slot in free if fits(request.round, slot)), None
        )

    def would_admit(self, request: RoundRequest) -> bool:
        return not self.cohorts[request.cohort].overspent and self.slot(request) is not None

    def refusal(self, cohort: str) -> str:
        return "cohort_overspent" if self.cohorts[cohort].overspent else "no_free_slot"

    def is_broken(self, cohort: str) -> bool:
        return self.uncovered[cohort] > 0

    def is_spent(self, cohort: str, stated: float) -> bool:
        spent = self.spent(cohort)
        return stated == (spent if self.uncovered[cohort] else min(spent, self.cost(Counter(PLAN))))

    def turned_out(self, name: str, before: ShuffledRound, reports: int) -> ShuffledRound:
        cohort, declared = self.requests[name].cohort, self.requests[name].round
        truth = dataclasses.replace(declared, reports=reports)
        self.free[cohort][before] += 1
        kind = next((slot for slot in (before, *PLAN) if fits(truth, slot)), None)
        if kind is None or not self.free[cohort][kind]:
            self.uncovered[cohort] += 1
            return slot_for(truth)
        self.free[cohort][kind] -= 1
        return kind

    def note_outcome(self, name: str, outcome: Outcome, *, expected: bool) -> None:
        if isinstance(outcome, Admitted):
            assert outcome.accounted == self.slot(self.requests[name])
            self.free[outcome.cohort][outcome.accounted] -= 1
        super().note_outcome(name, outcome, expected=expected)

    def note_voided(self, name: str, accounted: ShuffledRound) -> None:
        self.free[self.requests[name].cohort][accounted] += 1


@pytest.mark.slow
@pytest.mark.parametrize("machine", [RepeatingOperations, PlannedOperations])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_any_sequence_of_operations(
    machine: type[Operations],
    database: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    sqlite_template: Path,
) -> None:
    assert AddingAccountant().certify(PLAN, delta=DELTA).epsilon_upper <= BUDGET
    run_machine(machine, database, request, (tmp_path, sqlite_template))
