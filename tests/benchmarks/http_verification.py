"""A verification over HTTP of a long chain in PostgreSQL: in the background, while budgets are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import psycopg
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Outcome, RoundRequest
from tests.benchmarks.case import Case, Work
from tests.benchmarks.http_speed import serving
from tests.benchmarks.synthetic_history import KINDS, database_url, drop, plain_url

NAME = "long"
LENGTHS = (10_000, 100_000)  # rounds, each really decided
AT_ONCE = 100  # rounds of a commit
WAIT_SECONDS = 1  # for each answer


def decided(url: str, length: int) -> Store:
    """Make a database without statistics whose one cohort has admitted rounds of three kinds; return it."""
    drop(url)
    with psycopg.connect(plain_url(database_url("postgres")), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {make_url(url).database}".encode())
    schema.initialise(url)
    store, accountant = Store.connect(url), Accountant(precision=4e-3)
    decisions.open_cohort(
        store, name=NAME, population=10**9, epsilon=50.0, delta=1e-9, policy="adaptive", actor="bench"
    )
    others = [
        RoundRequest(round_id=f"r{number}", cohort=NAME, round=KINDS[number % len(KINDS)])
        for number in range(length)
    ]
    while others:
        if done := decisions.admit_together(store, accountant, others[:AT_ONCE], actor="bench"):
            others = others[len(done) :]
        else:  # a round of a new kind is decided alone
            decisions.register_and_admit(store, accountant, others.pop(0), actor="bench")
    return store


def verifying(length: int) -> Work:
    """Ask for a verification until its findings are there."""
    url = database_url("shuffle_ledger_http_verification")
    store = decided(url, length)
    token = issue(store, name="bench", role="auditor", actor="bench").token

    def decide(given: Accountant, round_id: str) -> Outcome:
        return decisions.admit(store, given, round_id)

    app = create_app(Settings(database_url=url, broker_url=None), store, Dispatch(decide=decide))
    client = serving(app, {"Authorization": f"Bearer {token}", "Prefer": f"wait={WAIT_SECONDS}"})

    def work() -> str:
        slowest, told = 0.0, set()
        found = client.post(f"/v1/cohorts/{NAME}/verification")
        while found.status_code == 202:
            told.add(found.json()["step"])
            began = time.perf_counter()
            client.get(f"/v1/cohorts/{NAME}/budget").raise_for_status()
            slowest = max(slowest, time.perf_counter() - began)
            found = client.post(f"/v1/cohorts/{NAME}/verification")
        (chain,) = found.raise_for_status().json()["cohorts"]
        holds = "holds" if chain["ok"] else "broken"
        return f"{chain['entries']:,} entries, {holds}; told {len(told)} steps; budgets up to {slowest:.2f} s"

    return work


def cases() -> Iterator[Case]:
    """Two lengths: time grows with the chain, memory must not."""
    for length in LENGTHS:
        yield Case(
            name=f"verification of {length:,} rounds over HTTP",
            prepare=partial(verifying, length),
            repeats=1,
        )
