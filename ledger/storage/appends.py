"""The one way in which entries are written: all of them with everything that goes with them, or nothing.

A writer reads heads, computes outside any transaction, and asks for its entries to be appended to the heads
it saw: one entry or many, to one cohort or several. On PostgreSQL that is one statement: it locks the rows of
the heads in one order, and goes on only if each is still where it was seen. On SQLite it is one transaction,
and there is one writer at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, insert, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError

from shuffle_ledger.ledger.errors import LostRace
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared
from shuffle_ledger.ledger.storage.rows import NEXT_POSITION, CohortView, EntryDraft
from shuffle_ledger.ledger.storage.tables import COUNT_OF_KIND, accounted_rounds, heads, holdings, rounds
from shuffle_ledger.ledger.storage.tables import entries as entries_table
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, LedgerEntry

_DECISIONS_AND_INCIDENTS = (EntryKind.ADMITTED, EntryKind.REFUSED, EntryKind.INCIDENT)
# What of a round's row an entry sets. A second decision or closing is another number, which a guard refuses.
_LINKED_BY = (
    ("its_outcome", (EntryKind.ADMITTED, EntryKind.REFUSED)),
    ("its_incident", (EntryKind.INCIDENT,)),
    ("its_closing", (EntryKind.SETTLED, EntryKind.VOIDED)),
)
_LINKS = tuple(kind for _, kinds in _LINKED_BY for kind in kinds)
_NOT_REGISTERED = dict.fromkeys(
    ("registration", "content", "content_digest", "registered_by", "registered_at", "shared")
)
# PostgreSQL: a key exists; a guard keeps a row. A round was registered, decided or closed since it was read.
_MEANWHILE = ("23505", "23001")
_COUNTS = tuple(COUNT_OF_KIND.values())
# What the statement below is given: arrays for each of these, with the types of their columns.
_GIVEN: Mapping[str, Mapping[str, str]] = {
    "moves": {
        "cohort": "text",
        "seen_digest": "bytea",
        "sequence": "bigint",
        "digest": "bytea",
        "status": "text",
        "epsilon_budget": "float8",  # NULL: unchanged
        "counts": "text",  # more entries of each kind
    },
    "written": {
        "cohort": "text",
        "sequence": "bigint",
        "kind": "text",
        "round_id": "text",
        "body": "bytea",
        "previous_digest": "bytea",
        "digest": "bytea",
        "registration": "bigint",  # NULL: the entry registers no round
        "content": "bytea",
        "content_digest": "bytea",
        "registered_by": "text",
        "registered_at": "timestamptz",
        "shared": "boolean",
    },
    "changes": {
        "cohort": "text",
        "accounted_digest": "bytea",
        "count": "bigint",
        "local_count": "bigint",
        "parameters": "bytea",  # NULL: of a kind that the ledger has, or that stands here before
    },
}
_ENTRY = "cohort, sequence, kind, round_id, body, previous_digest, digest"
_ROW = "registration, round_id, cohort, content, content_digest, registered_by, registered_at, shared"
_HOLDING = "cohort, accounted_digest, count, local_count"


def _given(name: str) -> str:
    arrays = ", ".join(f"%({name[0]}_{column})s::{kind}[]" for column, kind in _GIVEN[name].items())
    return f"unnest({arrays}) AS {name}({', '.join(_GIVEN[name])})"


# Rows of several writers are locked, and inserted, in one order: no two wait for each other in a circle.
_MOVED = f"""
WITH moves AS MATERIALIZED (SELECT * FROM {_given("moves")}),
held AS MATERIALIZED (
SELECT heads.cohort FROM moves JOIN heads ON heads.cohort = moves.cohort AND heads.digest = moves.seen_digest
ORDER BY heads.cohort FOR UPDATE OF heads
), go AS MATERIALIZED (SELECT FROM held HAVING count(*) = (SELECT count(*) FROM moves)),
written AS MATERIALIZED (SELECT written.* FROM go, {_given("written")}),
moved AS (
UPDATE heads SET sequence = moves.sequence, digest = moves.digest, status = moves.status,
epsilon_budget = coalesce(moves.epsilon_budget, heads.epsilon_budget),
{", ".join(f"{name} = {name} + (counts::int[])[{place}]" for place, name in enumerate(_COUNTS, start=1))}
FROM go, moves WHERE heads.cohort = moves.cohort
), appended AS (INSERT INTO entries ({_ENTRY}) SELECT {_ENTRY} FROM written)
"""  # noqa: S608 - our own names
# Parts that are left out of the statement if nothing is written by them.
_PARTS = {
    "registered": f"""
INSERT INTO rounds ({_ROW}, outcome_sequence) SELECT {_ROW}, sequence FROM written
WHERE registration IS NOT NULL ORDER BY round_id, registration""",  # noqa: S608 - our own names, as below
    "linked": """
UPDATE rounds SET
outcome_sequence = coalesce(CASE WHEN kind IN ('admitted', 'refused') THEN sequence END, outcome_sequence,
CASE WHEN kind = 'incident' THEN sequence END),
closing_sequence = coalesce(CASE WHEN kind IN ('settled', 'voided') THEN sequence END, closing_sequence)
FROM written
WHERE written.registration IS NULL AND kind IN ('admitted', 'refused', 'incident', 'settled', 'voided')
AND rounds.round_id = written.round_id AND rounds.cohort = written.cohort""",
    "changes": f"SELECT changes.* FROM go, {_given('changes')}",  # noqa: S608 - our own names
    "known": """
INSERT INTO accounted_rounds (digest, parameters) SELECT accounted_digest, parameters FROM changes
WHERE parameters IS NOT NULL ORDER BY accounted_digest ON CONFLICT DO NOTHING""",
    "lowered": """
UPDATE holdings AS held SET count = held.count + changes.count,
local_count = held.local_count + changes.local_count
FROM changes WHERE (changes.count < 0 OR changes.local_count < 0)
AND held.cohort = changes.cohort AND held.accounted_digest = changes.accounted_digest""",
    "raised": f"""
INSERT INTO holdings AS held ({_HOLDING}) SELECT {_HOLDING} FROM changes WHERE count >= 0 AND local_count >= 0
ON CONFLICT (cohort, accounted_digest) DO UPDATE
SET count = held.count + excluded.count, local_count = held.local_count + excluded.local_count""",  # noqa: S608 - our own names
}


@functools.cache
def _statement(parts: tuple[str, ...]) -> str:
    """Return the statement with these parts.

    The driver analyses a text again each time if it has more than 4,096 characters: all parts have fewer.
    """
    listed = [f"{name} AS ({_PARTS[name]})" for name in parts]
    return ", ".join([_MOVED, *listed]) + " SELECT count(*) AS went FROM go"  # noqa: S608 - our own names


def _parts(rows: Mapping[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    """Return the parts that write something."""
    written, changes = rows["written"], rows["changes"]
    lowers = [row["count"] < 0 or row["local_count"] < 0 for row in changes]
    wanted = {
        "registered": any(row["registration"] is not None for row in written),
        "linked": any(row["registration"] is None for row in written),
        "changes": bool(changes),
        "known": any(row["parameters"] is not None for row in changes),
        "lowered": any(lowers),
        "raised": not all(lowers),
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


_LATER = ("queued_at", "closing_sequence", "attempts", "last_error")  # of a row that is decided at once
# The same for SQLite, statement by statement. Made once: to make a statement takes SQLAlchemy longer than to
# run it takes SQLite.
_MOVE = (
    update(heads)
    .where(heads.c.cohort == bindparam("its_cohort"), heads.c.digest == bindparam("seen_digest"))
    .values(
        sequence=bindparam("its_sequence"),
        digest=bindparam("its_digest"),
        status=bindparam("its_status"),
        epsilon_budget=func.coalesce(bindparam("its_epsilon_budget"), heads.c.epsilon_budget),
        **{name: heads.c[name] + bindparam(f"more_{name}") for name in _COUNTS},
    )
)
_NEXT_ENTRY = insert(entries_table).values(position=NEXT_POSITION)
_ROUND = insert(rounds).values(
    {column.name: bindparam(column.name) for column in rounds.c if column.name not in _LATER}
)
_LINK = (
    update(rounds)
    .where(rounds.c.round_id == bindparam("its_round_id"), rounds.c.cohort == bindparam("its_cohort"))
    .values(
        outcome_sequence=func.coalesce(
            bindparam("its_outcome"), rounds.c.outcome_sequence, bindparam("its_incident")
        ),
        closing_sequence=func.coalesce(bindparam("its_closing"), rounds.c.closing_sequence),
    )
)
_KIND = sqlite.insert(accounted_rounds).on_conflict_do_nothing()
_NOTHING_HELD = sqlite.insert(holdings).values(count=0, local_count=0).on_conflict_do_nothing()
_CHANGE = (
    update(holdings)
    .where(
        holdings.c.cohort == bindparam("its_cohort"),
        holdings.c.accounted_digest == bindparam("its_accounted_digest"),
    )
    .values(
        count=holdings.c.count + bindparam("more"),
        local_count=holdings.c.local_count + bindparam("more_local"),
    )
)


class Step(NamedTuple):
    """An entry, and what it follows from."""

    view: CohortView
    draft: EntryDraft
    body: EntryBody
    entry: LedgerEntry

    @classmethod
    def of(cls, view: CohortView, draft: EntryDraft) -> Step:
        """Return the entry that `draft` is, in its place in the chain."""
        body = _body(view, draft)
        return cls(view, draft, body, LedgerEntry.following(view.head_digest, body))

    @property
    def after(self) -> CohortView:
        """The cohort as the entry leaves it."""
        view, draft = self.view, self.draft
        held, local = Counter(view.held), Counter(view.local)
        for change in draft.changes:
            held[change.accounted] += change.count
            local[change.accounted] += change.local_count
        epsilon = draft.epsilon_budget or view.cohort.epsilon_budget
        cohort = dataclasses.replace(
            view.cohort, status=draft.status or view.cohort.status, epsilon_budget=epsilon
        )
        return dataclasses.replace(
            view,
            cohort=cohort,
            head_sequence=self.entry.sequence,
            head_digest=self.entry.digest,
            spent=draft.spent,
            recorded_at=self.body.recorded_at,
            details=draft.details,
            held=held,
            local=local,
        )


def fact_of(draft: EntryDraft) -> str:
    """Return what appending an entry makes true, for an answer that was lost."""
    return engines.DECIDED if draft.kind in _DECISIONS_AND_INCIDENTS else engines.CHANGED


def recorded_at(view: CohortView) -> datetime:
    """Return the moment of the next entry: the database's clock, which may be set back, never before the last
    entry or the registration of the round that is decided.
    """
    return max(view.now, view.round.registered_at) if view.round else view.now


def write(connection: Connection, steps: Sequence[Step]) -> None:
    """Append entries, those of a chain in their order, with the rows of the rounds that they register, decide
    or close, and what cohorts hold after them.

    On PostgreSQL the connection may commit every statement; on SQLite it is in a transaction.

    Raises:
        LostRace: another entry was appended first, or the identifier of a new round was taken; nothing was
            written, and on SQLite the transaction must not be committed.
    """
    rows = _rows(steps)
    try:
        if connection.dialect.name == "postgresql":
            given = {
                f"{name[0]}_{column}": prepared.array([row[column] for row in rows[name]])
                for name, columns in _GIVEN.items()
                if rows[name]
                for column in columns
            }
            went = bool(prepared.run(connection, _statement(_parts(rows)), given).went)
        else:
            went = _write_in_steps(connection, rows)
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) in _MEANWHILE:
            raise LostRace("a round with the same identifier was registered or decided meanwhile") from error
        raise
    if not went:
        seen = {step.view.cohort.name: step.view.head_sequence for step in reversed(steps)}
        raise LostRace(
            "; ".join(f"cohort {name!r} moved on from entry {place}" for name, place in seen.items())
        )


def _write_in_steps(connection: Connection, rows: Mapping[str, list[dict[str, Any]]]) -> bool:
    for row in rows["moves"]:  # first: if another writer has moved a head, nothing is written
        names = ("cohort", "sequence", "digest", "status", "epsilon_budget")
        more = {f"more_{name}": row[name] for name in _COUNTS}
        values = {f"its_{name}": row[name] for name in names} | more
        if connection.execute(_MOVE, {**values, "seen_digest": row["seen_digest"]}).rowcount != 1:
            return False
    connection.execute(_NEXT_ENTRY, rows["written"])
    if registered := [row for row in rows["written"] if row["registration"] is not None]:
        connection.execute(_ROUND, [{**row, "outcome_sequence": row["sequence"]} for row in registered])
    for row in rows["written"]:
        if row["registration"] is None and row["kind"] in _LINKS:
            link = {name: row["sequence"] if row["kind"] in kinds else None for name, kinds in _LINKED_BY}
            place = {"its_cohort": row["cohort"], "its_round_id": row["round_id"]}
            connection.execute(_LINK, place | link)
    for row in rows["changes"]:
        if row["parameters"] is not None:
            connection.execute(_KIND, {"digest": row["accounted_digest"], "parameters": row["parameters"]})
        place = {name: row[name] for name in ("cohort", "accounted_digest")}
        if not row["is_held"]:
            connection.execute(_NOTHING_HELD, place)
        more = {"more": row["count"], "more_local": row["local_count"]}
        connection.execute(_CHANGE, {f"its_{name}": value for name, value in place.items()} | more)
    return True


def _rows(steps: Sequence[Step]) -> dict[str, list[dict[str, Any]]]:
    """Return what is written for some entries, by the part of the statement that writes it."""
    moves: dict[str, dict[str, Any]] = {}
    changes: dict[tuple[str, bytes], dict[str, Any]] = {}
    known: set[bytes] = set()
    written: list[dict[str, Any]] = []
    for view, draft, _, entry in steps:
        move = moves.setdefault(
            entry.cohort,
            {
                "cohort": entry.cohort,
                "seen_digest": view.head_digest,
                "status": view.cohort.status,
                "epsilon_budget": None,
                **dict.fromkeys(_COUNTS, 0),
            },
        )
        move |= {"sequence": entry.sequence, "digest": entry.digest}
        move["status"] = draft.status or move["status"]
        move["epsilon_budget"] = draft.epsilon_budget or move["epsilon_budget"]
        move[COUNT_OF_KIND[draft.kind]] += 1
        written.append({**(vars(draft.registers) if draft.registers else _NOT_REGISTERED), **vars(entry)})
        for change in draft.changes:
            is_held = change.accounted in view.held or change.accounted in view.local
            parameters = entries.round_bytes(change.accounted)
            digest = entries.round_digest(parameters)
            changed = changes.setdefault(
                (entry.cohort, digest),
                {
                    "cohort": entry.cohort,
                    "accounted_digest": digest,
                    "count": 0,
                    "local_count": 0,
                    "parameters": None if is_held or digest in known else parameters,
                    "is_held": is_held,  # the row is there, perhaps with counts of 0
                },
            )
            known.add(digest)
            changed["count"] += change.count
            changed["local_count"] += change.local_count
    for move in moves.values():
        move["counts"] = "{" + ",".join(str(move[name]) for name in _COUNTS) + "}"
    return {"moves": list(moves.values()), "written": written, "changes": list(changes.values())}


def _body(view: CohortView, draft: EntryDraft) -> EntryBody:
    return EntryBody(
        cohort=view.cohort.name,
        sequence=view.head_sequence + 1,
        kind=draft.kind,
        round_id=draft.round_id,
        actor=draft.actor,
        recorded_at=recorded_at(view),
        numerical_policy=draft.numerical_policy,
        epsilon_budget=draft.epsilon_budget or view.cohort.epsilon_budget,
        delta_budget=view.cohort.delta_budget,
        spent=draft.spent,
        details=draft.details,
    )
