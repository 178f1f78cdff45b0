"""Verification behind a signed position beside a replay of the whole chain, for a short and a long chain."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification.verifier import verify
from tests.benchmarks.case import Case, Work

KEY = SigningKey.generate()
NAME = "long"
LENGTHS = (500, 20_000)  # rounds before the position
LATER = 20  # rounds behind it
AT_ONCE = 100  # rounds of a commit
KIND = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=1)"), reports=1_000_000)


def verifying(length: int, *, whole: bool) -> Work:
    """Verify a cohort of which all but the last rounds were verified."""
    url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'verification.db'}"
    schema.initialise(url)
    store, accountant = Store.connect(url), Accountant(precision=4e-3)
    decisions.open_cohort(
        store, name=NAME, population=10**9, epsilon=50.0, delta=1e-9, policy="adaptive", actor="bench"
    )
    numbers = iter(range(length + LATER))
    _register(store, accountant, [f"r{number}" for number in itertools.islice(numbers, length)])
    verify_oldest(store, accountant, enough=lambda: True, signing_key=KEY)
    _register(store, accountant, [f"r{number}" for number in numbers])
    key = None if whole else KEY.public_key_bytes

    def run() -> str:
        (found,) = verify(store, accountant, NAME, positions_of=key).cohorts
        before = found.verified_before
        replayed = found.entries - (0 if before is None else before.sequence)
        return f"{'holds' if found.ok else 'broken'}, {replayed} entries replayed"

    return run


def _register(store: Store, accountant: Accountant, names: list[str]) -> None:
    first, *others = [RoundRequest(round_id=name, cohort=NAME, round=KIND) for name in names]
    decisions.register_and_admit(store, accountant, first, actor="bench")
    while others:
        done = decisions.admit_together(store, accountant, others[:AT_ONCE], actor="bench")
        others = others[len(done) :]


def cases() -> Iterator[Case]:
    """Behind the position and whole, for both lengths."""
    for length in LENGTHS:
        for whole in (False, True):
            how = "whole" if whole else f"the last {LATER}"
            yield Case(
                name=f"verification of {length} rounds, {how}",
                prepare=partial(verifying, length, whole=whole),
                computes=True,
                repeats=1,
            )
