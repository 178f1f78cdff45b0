"""A ledger, short words for what many files do to it, and what an attacker with write access does."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

from sqlalchemy import Connection, create_engine, text

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import (
    admit,
    correct,
    open_cohort,
    record_incident,
    register,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.evidence import make_bundle, verify_bundle
from shuffle_ledger.ledger.machine import State, Total
from shuffle_ledger.ledger.policies.registry import BudgetPolicy, policy_of
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    Corrected,
    Incident,
    Outcome,
    ReleaseTimes,
    RoundRequest,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.verification.verifier import verify


def open_as_usual(store: Store, name: str, /, **changes: Any) -> Cohort:
    """Open a cohort like those of most tests, but for the changes."""
    usual: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}
    return open_cohort(store, name=name, **(usual | {"actor": "tester"} | changes))


def decided(store: Store, accountant: Accountant, request: RoundRequest) -> Outcome:
    """Register a round, and decide about it in a second step."""
    register(store, request, actor="tester")
    return admit(store, accountant, request.round_id)


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


@contextmanager
def disarmed(store: Store) -> Iterator[Connection]:
    """Yield a connection on which neither triggers nor foreign keys stand in the way."""
    engine = create_engine(store.engine.url)
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET session_replication_role = replica"))
        else:
            triggers = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            for name in triggers.scalars().all():
                connection.execute(text(f"DROP TRIGGER {name}"))
        yield connection
    engine.dispose()


def rewrite(
    store: Store,
    sequence: int,
    forge: Callable[[EntryBody], EntryBody],
    *,
    rest: bool = True,
    cohort: str = "watches",
) -> None:
    """Change one entry, and make the rest of its chain and the head fit again."""
    previous = bytes(32)
    update = "UPDATE entries SET kind = :kind, body = :body, previous_digest = :previous_digest,"
    update += " digest = :digest WHERE cohort = :cohort AND sequence = :sequence"
    with disarmed(store) as connection:
        for entry in list(store.entries_of(cohort)):
            if entry.sequence < sequence or (entry.sequence > sequence and not rest):
                previous = entry.digest
                continue
            body = entry.content()
            forged = LedgerEntry.following(previous, forge(body) if entry.sequence == sequence else body)
            previous = forged.digest
            values = {name: value for name, value in vars(forged).items() if name != "round_id"}
            connection.execute(text(update), values)
        if rest:
            head = {"digest": previous, "cohort": cohort, "used_share": forged.content().used_share}
            fits = "UPDATE heads SET digest = :digest, used_share = :used_share WHERE cohort = :cohort"
            connection.execute(text(fits), head)


def break_promise(store: Store, accountant: Accountant, cohort: str, *, round_id: str = "lost") -> Incident:
    """Record a release whose round is unknown."""
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

    def settle(self, name: str, reports: int) -> Settled:
        """Settle a round."""
        return settle(self.store, self.accountant, name, reports=reports, actor="ada")

    def void(self, name: str) -> Voided:
        """Void a round."""
        return void(self.store, self.accountant, name, reason="cancelled", actor="ada")

    def correct(self, name: str, *, reason: str = "a log", **changes: object) -> Corrected:
        """Correct a round."""
        return correct(self.store, self.accountant, name, changes, reason=reason, actor="eve")

    def incident(
        self,
        name: str,
        described: ShuffledRound | None,
        cohort: str,
        *,
        reason: str = "a script",
        collected_on: date | None = None,
        **times: Any,
    ) -> Incident:
        """Record a release, with the times that are stated of it."""
        known: dict[str, Any] = {"round_id": name, "described": described, "collected_on": collected_on}
        known |= {"reason": reason, "actor": "eve", "released": ReleaseTimes(**times)}
        return record_incident(self.store, self.accountant, cohort, **known)

    def check(self) -> None:
        """Replay the whole ledger."""
        report = verify(self.store, self.accountant)
        assert report.ok, report

    def audit(self) -> None:
        """Replay everything, and have another accountant verify a bundle of it with every number."""
        report = verify(self.store, self.accountant, numbers="all")
        assert report.ok, report
        made = make_bundle(self.store, self.store.cohort_names())
        bundle = verify_bundle(made.data, Accountant(), numbers="all")
        assert bundle.ok, bundle.findings
