"""Verification of a short and a long chain."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.benchmarks.case import Case, Work

NAME = "long"
LENGTHS = (500, 20_000)  # rounds
AT_ONCE = 100  # rounds of a commit
KIND = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=1)"), reports=1_000_000)


def verifying(length: int) -> Work:
    """Verify a cohort with some number of rounds."""
    url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'verification.db'}"
    schema.initialise(url)
    store, accountant = Store.connect(url), Accountant(precision=4e-3)
    decisions.open_cohort(
        store, name=NAME, population=10**9, epsilon=50.0, delta=1e-9, policy="adaptive", actor="bench"
    )
    _register(store, accountant, [f"r{number}" for number in range(length)])

    def run() -> str:
        (found,) = verify(store, accountant, NAME).cohorts
        return f"{'holds' if found.ok else 'broken'}, {found.entries} entries"

    return run


def _register(store: Store, accountant: Accountant, names: list[str]) -> None:
    first, *others = [RoundRequest(round_id=name, cohort=NAME, round=KIND) for name in names]
    decisions.register_and_admit(store, accountant, first, actor="bench")
    while others:
        done = decisions.admit_together(store, accountant, others[:AT_ONCE], actor="bench")
        others = others[len(done) :]


def cases() -> Iterator[Case]:
    """Both lengths."""
    for length in LENGTHS:
        yield Case(
            name=f"verification of {length} rounds",
            prepare=partial(verifying, length),
            computes=True,
            repeats=1,
        )
