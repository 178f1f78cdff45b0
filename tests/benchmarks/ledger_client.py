"""One client of a ledger, as its own process: registers and admits rounds, or inserts bare rows, one by one.

Says "ready", waits for a line, works, and prints when it began and when each operation ended, by the clock
that all processes of the machine share.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest

BARE_BYTES = 1200  # about what an entry has
LOCK_TIMEOUT_SECONDS = 10
KINDS = tuple(
    ShuffledRound(randomizer=parse_randomizer(f"krr(k={k}, epsilon0=1)"), reports=10**8) for k in (4, 8, 16)
)

Operation = Callable[[], None]


@contextmanager
def admitting(url: str, cohorts: list[str], prefix: str) -> Iterator[Operation]:
    """Yield the registration and the decision of one more round of a known kind."""
    names = (f"{prefix}-{number}" for number in itertools.count())
    turns = itertools.cycle(itertools.product(KINDS, cohorts))
    accountant = Accountant(precision=4e-3)
    with Store.connect(url) as store:
        for kind in KINDS:
            accountant.certify({kind: 1}, delta=1e-9)

        def admit() -> None:
            kind, cohort = next(turns)
            request = RoundRequest(round_id=next(names), cohort=cohort, round=kind)
            decisions.register_and_admit(store, accountant, request, actor="bench")

        yield admit


@contextmanager
def admitting_together(url: str, cohorts: list[str], prefix: str, size: int) -> Iterator[Operation]:
    """Yields the registration and the decision of `size` more rounds, in one commit if that works."""
    names = (f"{prefix}-{number}" for number in itertools.count())
    turns = itertools.cycle(itertools.product(KINDS, cohorts))
    accountant = Accountant(precision=4e-3)
    with Store.connect(url) as store:

        def admit() -> None:
            requests = [
                RoundRequest(round_id=next(names), cohort=cohort, round=kind)
                for kind, cohort in itertools.islice(turns, size)
            ]
            while requests:
                done = decisions.admit_together(store, accountant, requests, actor="bench")
                if not done:
                    decisions.register_and_admit(store, accountant, requests[0], actor="bench")
                requests = requests[len(done) or 1 :]

        yield admit


@contextmanager
def inserting(url: str) -> Iterator[Operation]:
    """Yields the insertion of one row in a separate transaction, by the driver alone."""
    payload = os.urandom(BARE_BYTES)
    if url.startswith("sqlite"):
        file = sqlite3.connect(
            url.removeprefix("sqlite:///"), isolation_level=None, timeout=LOCK_TIMEOUT_SECONDS
        )
        file.execute("PRAGMA synchronous = FULL")

        def insert_into_file() -> None:
            file.execute("BEGIN IMMEDIATE")
            file.execute("INSERT INTO bare (payload) VALUES (?)", (payload,))
            file.execute("COMMIT")

        yield insert_into_file
        file.close()
        return
    with psycopg.connect(url.replace("+psycopg", "")) as connection:

        def insert() -> None:
            connection.execute("INSERT INTO bare (payload) VALUES (%s)", (payload,))
            connection.commit()

        yield insert


def main() -> None:
    """Does what the one argument, a JSON object, says."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    with _doing(order) as operation:
        for _ in range(order["warm"]):
            operation()
        gc.collect()  # what the start left over is collected once, and not while others wait
        print("ready", flush=True)
        sys.stdin.readline()
        moments = [time.monotonic()]
        for _ in range(order["count"]):
            operation()
            moments.append(time.monotonic())
    print(json.dumps(moments), flush=True)
    sys.stdin.readline()  # a process that ends takes time from those that still work


def _doing(order: dict[str, Any]) -> AbstractContextManager[Operation]:
    url, cohorts, prefix = order["url"], order["cohorts"], order["prefix"]
    match order["together"]:
        case 0:
            return inserting(url)
        case 1:
            return admitting(url, cohorts, prefix)
    return admitting_together(url, cohorts, prefix, order["together"])


if __name__ == "__main__":
    main()
