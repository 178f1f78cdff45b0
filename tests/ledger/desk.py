"""A ledger, and short words for what many files do to it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import open_cohort, register_and_admit
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Outcome, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify


def trust_any_clock(store: Store) -> None:
    """Let tests move the database's clock: no difference is implausible."""
    store.clocks = dataclasses.replace(store.clocks, difference_max_seconds=1e10)


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
