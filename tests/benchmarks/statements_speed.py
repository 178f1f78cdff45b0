"""Statements and bundles of 10,000 rounds: making them, setting them, verifying them where no ledger is.

The chain repeats the entries of a hundred real admissions; what is measured does not depend on that. Numbers
are computed again for the hundred: that time grows with the numbers asked for.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.cli.rendering.statements.html import html
from shuffle_ledger.cli.rendering.statements.pdf import pdf
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.answers.heads import StoredHead
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.number_checks import BundleNumbers
from tests.benchmarks.case import Case, Work

ROUNDS = 10_000
REAL = 100
KINDS = 20
NAME = "year"


class LongStore(Store):
    """A ledger whose single chain is extended, in memory, with copies of its entries."""

    long: list[LedgerEntry]

    def entries_of(self, cohort: str, *, after: int = 0) -> Iterator[LedgerEntry]:
        """Yield the long chain."""
        del cohort
        return iter(self.long)

    def heads(self, *, after: str = "", limit: int | None = None) -> tuple[StoredHead, ...]:
        """Return where the long chain ends."""
        del after, limit
        last = self.long[-1]
        return (StoredHead(cohort=NAME, sequence=last.sequence, digest=last.digest),)

    def view(self, name: str) -> CohortView:
        """Return the cohort as it stands at the end of the long chain."""
        last = self.long[-1]
        return dataclasses.replace(super().view(name), head_sequence=last.sequence, head_digest=last.digest)


def real_ledger(rounds: int = REAL, kinds: int = KINDS) -> LongStore:
    """Return a ledger with the rounds that were really admitted."""
    url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'statements.db'}"
    schema.initialise(url)
    store, accountant = Store.connect(url), Accountant(precision=4e-3)
    decisions.open_cohort(
        store, name=NAME, population=10**9, epsilon=5.0, delta=1e-9, policy="adaptive", actor="bench"
    )
    randomizer = parse_randomizer("krr(k=8, epsilon0=1)")
    for number in range(rounds):
        shuffled = ShuffledRound(randomizer=randomizer, reports=10**7 + 2 * 10**5 * (number % kinds))
        request = RoundRequest(round_id=f"r{number}", cohort=NAME, round=shuffled)
        decisions.register(store, request, actor="bench")
        decisions.admit(store, accountant, request.round_id)
    long = LongStore.connect(url)
    long.long = list(store.entries_of(NAME))
    return long


def long_ledger(rounds: int = ROUNDS, *, real: int = REAL, kinds: int = KINDS) -> LongStore:
    """Return the ledger; its chain has this number of rounds, copies of some that were really admitted."""
    store = real_ledger(real, kinds)
    chain, bodies = store.long[:1], [entry.content() for entry in store.long[1:]]
    for number in range(rounds):
        body = bodies[number % len(bodies)]
        name = f"r{number}"
        spent = dataclasses.replace(body.spent, rounds=number + 1)
        request = {**body.details["request"], "round_id": name}
        details = {**body.details, "request": request, "requested": spent.to_mapping()}
        body = dataclasses.replace(
            body,
            sequence=number + 2,
            round_id=name,
            recorded_at=bodies[-1].recorded_at + timedelta(microseconds=number),
            spent=spent,
            details=details,
        )
        chain.append(LedgerEntry.following(chain[-1].digest, body))
    store.long = chain
    return store


def statement_of(store: Store) -> Statement:
    made_at = datetime.now(UTC)
    return make_statement(store, Accountant(precision=4e-3), [NAME], made_at=made_at)


def making() -> Work:
    """The statement as a value, its losses read from the ledger."""
    store = long_ledger()
    return lambda: f"{len(statement_of(store).cohorts[0].rounds)} rounds"


def setting(setter: Callable[[Statement], bytes]) -> Work:
    """The statement as a file."""
    statement = statement_of(long_ledger())
    return lambda: f"{len(setter(statement)) / 1e6:.1f} MB"


def verifying(numbers: BundleNumbers) -> Work:
    """A bundle: of all rounds without numbers, of the hundred real ones with them."""
    if numbers == "none":
        data = make_bundle(long_ledger(), [NAME]).data
    else:
        data = make_bundle(real_ledger(), [NAME]).data

    def run() -> str:
        report = verify_bundle(data, Accountant(), numbers=numbers)
        return f"{'holds' if report.ok else 'broken'}, {len(report.cohorts[0].numbers)} numbers"

    return run


def cases() -> Iterator[Case]:
    """Making and setting statements, then verifying bundles."""
    yield Case(name=f"statement of {ROUNDS} rounds", prepare=making, computes=True)
    yield Case(name="  as HTML", prepare=partial(setting, html), computes=True)
    yield Case(name="  as PDF", prepare=partial(setting, pdf), computes=True)
    yield Case(
        name=f"bundle of {ROUNDS} rounds, no numbers", prepare=partial(verifying, "none"), computes=True
    )
    yield Case(name=f"bundle of {REAL} rounds, all numbers", prepare=partial(verifying, "all"), computes=True)
