"""Ledgers of any size in PostgreSQL: copies of one real chain, written without the product.

A real cohort is opened and a few dozen rounds are really decided. Its chain is copied under other names, with
right digests, heads, counters, holdings and rows of rounds; the largest cohort repeats the same entries. So
the product answers about every cohort as if the rounds had been decided one by one.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import decisions
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.rows import StoredHolding, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import GENESIS_DIGEST, LedgerEntry, entry_digest
from shuffle_ledger.ledger.values.requests import Cohort, RoundRequest, request_digest

MODEL = "model-of-a-cohort"
DECIDED = 9  # rounds of the real cohort, all of them admitted
REGISTERED_MAX = 1000  # numbers of registrations up to here are those of real rounds
KINDS = tuple(
    ShuffledRound(randomizer=parse_randomizer(f"krr(k={k}, epsilon0=1)"), reports=10**8) for k in (4, 8, 16)
)
_POSTGRES = "SHUFFLE_LEDGER_TEST_POSTGRES_URL"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a ledger is."""

    cohorts: int
    repeats: int  # how often the largest cohort repeats the model's decisions
    others: int = 1  # how often each other cohort repeats them

    @property
    def entries(self) -> int:
        """How many entries all chains have."""
        return self.cohorts * (1 + self.others * DECIDED) + (self.repeats - self.others) * DECIDED

    @property
    def largest(self) -> int:
        """How many entries the largest chain has."""
        return 1 + self.repeats * DECIDED


def cohort_name(number: int) -> str:
    """Return the name of a synthetic cohort; number 0 is the largest."""
    return f"cohort-{number:06}"


def round_name(cohort: str, sequence: int) -> str:
    """Return the identifier of the round that an entry decides."""
    return f"{cohort}.{sequence}"


def database_url(name: str) -> str:
    """Return the address of a database of the tests' PostgreSQL."""
    server = os.environ.get(_POSTGRES)
    if server is None:
        raise SystemExit(f"{_POSTGRES} does not say where PostgreSQL is")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def plain_url(url: str) -> str:
    """Return the address as the driver takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def drop(url: str) -> None:
    """Drop a database, if it is there."""
    with psycopg.connect(plain_url(database_url("postgres")), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)".encode())


def write_history(url: str, size: Size) -> str:
    """Make the database and write a ledger of a size; return how long that took, in words."""
    drop(url)
    with psycopg.connect(plain_url(database_url("postgres")), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {make_url(url).database}".encode())
    schema.initialise(url)
    with Store.connect(url) as store:
        model = _Model.decided(store)
    began = time.perf_counter()
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        # Triggers would check each row; what they check holds.
        connection.execute("SET session_replication_role = replica")
        for table, columns, rows in model.tables(size):
            _copy(connection, table, columns, rows)
        connection.execute("SELECT setval('rounds_registration_seq', max(registration)) FROM rounds")
        wrote = time.perf_counter() - began
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("VACUUM (ANALYZE)")
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    megabytes = (found[0] if found else 0) / 1e6
    return f"{size.entries:,} entries written in {wrote:.0f} s, {megabytes:,.0f} MB"


def _copy(
    connection: psycopg.Connection[Any], table: str, columns: dict[str, str], rows: Iterable[Sequence[Any]]
) -> None:
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.set_types(list(columns.values()))
        for row in rows:
            copy.write_row(row)


_ENTRIES = {
    "cohort": "varchar",
    "sequence": "int8",
    "kind": "varchar",
    "round_id": "varchar",
    "body": "bytea",
    "previous_digest": "bytea",
    "digest": "bytea",
}
_ROUNDS = {
    "round_id": "varchar",
    "cohort": "varchar",
    "content": "bytea",
    "content_digest": "bytea",
    "registered_by": "varchar",
    "registered_at": "timestamptz",
    "outcome_sequence": "int8",
    "registration": "int8",
}


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The real cohort that the others are copies of."""

    cohort: Cohort
    chain: list[LedgerEntry]
    rounds: dict[str, StoredRound]
    holdings: list[StoredHolding]

    @classmethod
    def decided(cls, store: Store) -> _Model:
        """Open the cohort and decide its rounds."""
        accountant = Accountant(precision=4e-3)
        cohort = decisions.open_cohort(
            store, name=MODEL, population=10**9, epsilon=50.0, delta=1e-9, policy="adaptive", actor="bench"
        )
        for number in range(DECIDED):
            kind = KINDS[number % len(KINDS)]
            request = RoundRequest(round_id=f"{MODEL}.{number + 2}", cohort=MODEL, round=kind)
            decisions.register_and_admit(store, accountant, request, actor="bench")
        return cls(
            cohort=cohort,
            chain=list(store.entries_of(MODEL)),
            rounds={one.round_id: one for one in store.rounds_of(MODEL)},
            holdings=store.holdings(MODEL),
        )

    def tables(self, size: Size) -> Iterator[tuple[str, dict[str, str], Iterator[Sequence[Any]]]]:
        """Yield each table with the types of its columns and its rows."""
        names = [cohort_name(number) for number in range(size.cohorts)]
        ends: dict[str, bytes] = {}
        repeats = dict.fromkeys(names, size.others) | {names[0]: size.repeats}
        lengths = (repeats[name] * DECIDED for name in names)
        before = dict(zip(names, itertools.accumulate(lengths, initial=REGISTERED_MAX), strict=False))
        every = [(name, repeats[name], before[name]) for name in names]
        yield "entries", _ENTRIES, (row for one in every for row in self._entries(*one, ends))
        yield "rounds", _ROUNDS, (row for one in every for row in self._rounds(*one))
        yield from self._beside(names, repeats, ends)

    def _entries(
        self, name: str, repeats: int, before: int, ends: dict[str, bytes]
    ) -> Iterator[Sequence[Any]]:
        digest, cohort = GENESIS_DIGEST, name.encode()
        for sequence, model in self._in_order(repeats):
            identifier = None if model.round_id is None else round_name(name, sequence)
            body = _renamed(model.body, model.round_id, identifier, cohort)
            body = body.replace(b'"sequence":%d,' % model.sequence, b'"sequence":%d,' % sequence)
            if model.round_id is not None:
                registration = self.rounds[model.round_id].registration
                body = body.replace(
                    b'"registration":%d,' % registration, b'"registration":%d,' % (before + sequence - 1)
                )
            previous = digest
            digest = entry_digest(cohort=name, sequence=sequence, previous_digest=previous, body=body)
            yield name, sequence, model.kind, identifier, body, previous, digest
        ends[name] = digest

    def _in_order(self, repeats: int) -> Iterator[tuple[int, LedgerEntry]]:
        yield 1, self.chain[0]
        for turn in range(repeats):
            for model in self.chain[1:]:
                yield model.sequence + turn * DECIDED, model

    def _rounds(self, name: str, repeats: int, before: int) -> Iterator[Sequence[Any]]:
        cohort = name.encode()
        for sequence, model in self._in_order(repeats):
            if model.round_id is None:
                continue
            one, identifier = self.rounds[model.round_id], round_name(name, sequence)
            content = _renamed(one.content, model.round_id, identifier, cohort)
            yield (
                *(identifier, name, content, request_digest(content)),
                *(one.registered_by, one.registered_at, sequence, before + sequence - 1),
            )

    def _beside(
        self, names: Sequence[str], repeats: dict[str, int], ends: dict[str, bytes]
    ) -> Iterator[tuple[str, dict[str, str], Iterator[Sequence[Any]]]]:
        one = self.cohort
        stated = {
            "name": "varchar",
            "population": "int8",
            "delta_budget": "float8",
            "policy": "varchar",
            "opened_at": "timestamptz",
        }
        same = (one.population, one.delta_budget, one.policy, one.opened_at)
        yield "cohorts", stated, ((name, *same) for name in names)
        head = dict.fromkeys(("cohort", "status"), "varchar") | {"digest": "bytea"}
        head |= dict.fromkeys(("sequence", "admitted"), "int8")
        head |= dict.fromkeys(("epsilon_budget", "used_share"), "float8")
        used_share = self.chain[-1].content().used_share
        yield (
            "heads",
            head,
            (
                (
                    *(name, "open", ends[name], 1 + repeats[name] * DECIDED, repeats[name] * DECIDED),
                    *(one.epsilon_budget, used_share),
                )
                for name in names
            ),
        )
        held = {"cohort": "varchar", "accounted_digest": "bytea", "count": "int8", "local_count": "int8"}
        yield (
            "holdings",
            held,
            (
                (name, each.accounted_digest, each.count, each.local_count)
                for name in names
                for each in self.holdings
            ),
        )
        found = {"cohort": "varchar", "verified_at": "timestamptz"}
        found |= {"head_sequence": "int8", "head_digest": "varchar"}
        found |= {"numbers_checked": "int4"}
        now, day = datetime.now(UTC), timedelta(days=1)
        yield (
            "verifications",
            found,
            (
                (
                    *(name, now - day * (number / len(names))),
                    *(1 + repeats[name] * DECIDED, ends[name].hex(), 3),
                )
                for number, name in enumerate(names)
            ),
        )


def _renamed(data: bytes, round_id: str | None, identifier: str | None, cohort: bytes) -> bytes:
    """Return canonical bytes with another round's identifier and another cohort's name."""
    if round_id is not None and identifier is not None:
        data = data.replace(f'"{round_id}"'.encode(), f'"{identifier}"'.encode())
    return data.replace(f'"{MODEL}"'.encode(), b'"%s"' % cohort)
