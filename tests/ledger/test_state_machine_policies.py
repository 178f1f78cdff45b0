"""Any sequence of operations where slots of a plan are taken."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import ShuffledRound, fits, parse_randomizer, slot_for
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, RoundRequest
from tests.ledger.test_state_machine import (
    BUDGET,
    DELTA,
    AddingAccountant,
    Operations,
    run_machine,
)


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
@pytest.mark.parametrize("machine", [PlannedOperations])
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
