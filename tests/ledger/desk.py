"""A ledger, and short words for what many files do to it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import open_cohort, record_incident, register_and_admit
from shuffle_ledger.ledger.machine import State, Total
from shuffle_ledger.ledger.policies.registry import BudgetPolicy, policy_of
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Incident, Outcome, ReleaseTimes, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify


def trust_any_clock(store: Store) -> None:
    """Let tests move the database's clock: no difference is implausible."""
    store.clocks = dataclasses.replace(
        store.clocks, difference_max_seconds=1e10, reading_age_max_seconds=1e10
    )


def policy_in(store: Store, cohort: str) -> BudgetPolicy:
    """Returns a budget's rules."""
    return policy_of(store, store.view(cohort))


def state_in(store: Store, cohort: str) -> State:
    """Returns the machine's state of a budget, as its last entry states it."""
    return policy_in(store, cohort).state(store.view(cohort))


def total_in(store: Store, cohort: str) -> Total:
    """Returns what a budget's last entry says was charged altogether."""
    return state_in(store, cohort).total


def break_promise(store: Store, accountant: Accountant, cohort: str, *, round_id: str = "lost") -> Incident:
    """Tell of a release of which nobody knows what it was."""
    told: dict[str, Any] = {"reason": "a bug", "actor": "ada", "released": ReleaseTimes()}
    return record_incident(store, accountant, cohort, round_id=round_id, described=None, **told)


class AnyDesk:
    """Opens cohorts, decides rounds and replays the ledger; a file's own desk adds what it tests."""

    def __init__(self, store: Store, accountant: Accountant) -> None:
        self.store, self.accountant = store, accountant
        self._names = itertools.count()

    def open(self, name: str, /, **changes: Any) -> None:
        """Open a cohort like those of most tests, but for the changes."""
        values = {"population": 100_000, "epsilon": 1.0, "delta": 1e-6, "policy": "adaptive", **changes}
        open_cohort(self.store, accountant=self.accountant, name=name, actor="ada", **values)

    def new_name(self) -> str:
        """Return a name that no round has."""
        return f"round-{next(self._names)}"

    def decide(self, request: RoundRequest) -> Outcome:
        """Register a round and decide about it."""
        return register_and_admit(self.store, self.accountant, request, actor="ada")[0]

    def check(self) -> None:
        """Replay the whole ledger."""
        report = verify(self.store, self.accountant)
        assert report.ok, report
