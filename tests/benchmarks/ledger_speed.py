"""The ledger: admissions to a cohort with a short and with a long history, on SQLite."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from accounting import Accountant, ShuffledRound, parse_randomizer
from ledger import admission, schema
from ledger.budgets import RoundRequest
from ledger.store import Store
from tests.benchmarks.case import Case, Work

_ADMISSIONS = 50


def admissions(history: int) -> Work:
    """Rounds of one known kind admitted to a cohort that already has `history` of them."""
    folder = Path(tempfile.mkdtemp())
    url = f"sqlite:///{folder / 'bench.db'}"
    schema.initialise(url)
    store = Store.connect(url)
    accountant = Accountant(precision=4e-3)
    admission.open_cohort(
        store, name="bench", population=10**9, epsilon=50.0, delta=1e-9, policy="fixed", actor="bench"
    )
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=8, epsilon0=1)"), reports=10**8)
    done = iter(range(10**9))

    def admit_one() -> None:
        name = f"round-{next(done)}"
        request = RoundRequest(
            round_id=name, cohort="bench", round=shuffled, collected_on=None, use_case=None
        )
        admission.register(store, request, actor="bench")
        admission.admit(store, accountant, name)

    for _ in range(history):
        admit_one()

    def run() -> str:
        began = time.perf_counter()
        for _ in range(_ADMISSIONS):
            admit_one()
        return f"{_ADMISSIONS / (time.perf_counter() - began):.0f} admissions/s"

    return run


def cases() -> Iterator[Case]:
    """Fifty admissions after a history."""
    for history in (10, 2000):
        name = f"{_ADMISSIONS} admissions of a known kind, history of {history}"
        yield Case(name=name, prepare=partial(admissions, history))
