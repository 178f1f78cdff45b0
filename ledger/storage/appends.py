"""The one way in which entries are written: all of them with everything that goes with them, or nothing.

A writer reads heads, computes outside any transaction, and asks for its entries to be appended to the heads
it saw: one entry or many, to one cohort or several. On PostgreSQL that is one statement: it locks the rows of
the heads in one order, and goes on only if each is still where it was seen. On SQLite it is one transaction,
and there is one writer at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from shuffle_ledger.ledger.errors import LostRace
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared
from shuffle_ledger.ledger.storage.rows import NEXT_POSITION, CohortView, EntryDraft, update_cohort
from shuffle_ledger.ledger.storage.tables import COUNT_OF_KIND
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, LedgerEntry

_UNUSED = (EntryKind.OPENED, EntryKind.BUDGET_CHANGED)  # a chain of these alone is of an unused budget
_AFTER = timedelta(microseconds=1)
_DECISIONS_AND_INCIDENTS = (EntryKind.ADMITTED, EntryKind.REFUSED, EntryKind.INCIDENT)
_NOT_REGISTERED = dict.fromkeys(
    ("registration", "content", "content_digest", "registered_by", "registered_at", "shared")
)
# PostgreSQL: a key exists; a guard keeps a row. A round was registered, decided or closed since it was read.
_MEANWHILE = ("23505", "23001")
_COUNTS = tuple(COUNT_OF_KIND.values())
# The values of the statement below: an array for each of these, with the type of its column.
_GIVEN: Mapping[str, Mapping[str, str]] = {
    "moves": {
        "cohort": "text",
        "seen_digest": "bytea",
        "sequence": "bigint",
        "digest": "bytea",
        "status": "text",
        "epsilon_budget": "float8",  # NULL: unchanged
        "used_share": "float8",
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
_LINKING = "kind IN ('admitted', 'refused', 'incident', 'settled', 'voided')"


def _given(name: str) -> str:
    arrays = ", ".join(f"%({name[0]}_{column})s::{kind}[]" for column, kind in _GIVEN[name].items())
    return f"unnest({arrays}) AS {name}({', '.join(_GIVEN[name])})"


def _given_once(name: str) -> str:
    values = ", ".join(f"%({name[0]}_{column})s::{kind} AS {column}" for column, kind in _GIVEN[name].items())
    return f"(SELECT {values}) AS {name}"


def _named(columns: str) -> str:
    return ", ".join(f":{column}" for column in columns.split(", "))


def _links(sign: str = "") -> str:
    """Return what of a round's row an entry sets; a sign makes its columns parameters. A second decision or
    closing is another number, which a guard refuses.
    """
    kind, sequence = f"{sign}kind", f"{sign}sequence"
    return f"""
outcome_sequence = coalesce(CASE WHEN {kind} IN ('admitted', 'refused') THEN {sequence} END, outcome_sequence,
CASE WHEN {kind} = 'incident' THEN {sequence} END), closing_sequence = coalesce(
CASE WHEN {kind} IN ('settled', 'voided') THEN {sequence} END, closing_sequence)"""


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
epsilon_budget = coalesce(moves.epsilon_budget, heads.epsilon_budget), used_share = moves.used_share,
{", ".join(f"{name} = {name} + (counts::int[])[{place}]" for place, name in enumerate(_COUNTS, start=1))}
FROM go, moves WHERE heads.cohort = moves.cohort
), appended AS (INSERT INTO entries ({_ENTRY}) SELECT {_ENTRY} FROM written)
"""  # noqa: S608 - our own names
# Parts that are left out of the statement if nothing is written by them.
_PARTS = {
    "registered": f"""
INSERT INTO rounds ({_ROW}, outcome_sequence) SELECT {_ROW}, sequence FROM written
WHERE registration IS NOT NULL ORDER BY round_id, registration""",  # noqa: S608 - our own names, as below
    "linked": f"""
UPDATE rounds SET {_links()} FROM written WHERE written.registration IS NULL AND {_LINKING}
AND rounds.round_id = written.round_id AND rounds.cohort = written.cohort""",  # noqa: S608 - our own names
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
def _statement(parts: tuple[str, ...], *, once: bool) -> str:
    """Return the statement with these parts. `once`: with the values of one row each, for arrays take a
    quarter longer.

    The driver analyses a text again each time if it has more than 4,096 characters: all parts have fewer.
    """
    listed = [f"{name} AS ({_PARTS[name]})" for name in parts]
    text = ", ".join([_MOVED, *listed]) + " SELECT count(*) AS went FROM go"  # noqa: S608 - our own names
    for name in _GIVEN if once else ():
        text = text.replace(_given(name), _given_once(name))
    return text


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


# The same for SQLite, each for one row.
_MOVE = f"""UPDATE heads SET sequence = :sequence, digest = :digest, status = :status,
epsilon_budget = coalesce(:epsilon_budget, epsilon_budget), used_share = :used_share,
{", ".join(f"{name} = {name} + :{name}" for name in _COUNTS)}
WHERE cohort = :cohort AND digest = :seen_digest"""  # noqa: S608 - our own names, as below
_APPEND = f"INSERT INTO entries ({_ENTRY}, position) VALUES ({_named(_ENTRY)}, {NEXT_POSITION})"  # noqa: S608
_REGISTER = f"INSERT INTO rounds ({_ROW}, outcome_sequence) VALUES ({_named(_ROW)}, :sequence)"  # noqa: S608
_LINK = f"UPDATE rounds SET {_links(':')} WHERE round_id = :round_id AND cohort = :cohort AND :{_LINKING}"  # noqa: S608
_KNOW = """INSERT INTO accounted_rounds (digest, parameters) VALUES (:accounted_digest, :parameters)
ON CONFLICT DO NOTHING"""
_LOWER = """UPDATE holdings SET count = count + :count, local_count = local_count + :local_count
WHERE cohort = :cohort AND accounted_digest = :accounted_digest"""
_RAISE = f"""INSERT INTO holdings ({_HOLDING}) VALUES ({_named(_HOLDING)})
ON CONFLICT DO UPDATE SET count = count + excluded.count, local_count = local_count + excluded.local_count"""  # noqa: S608


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
        view, draft, cohort = self.view, self.draft, self.view.cohort
        held, local = dict(view.held), dict(view.local)
        for change in draft.changes:
            held[change.accounted] = held.get(change.accounted, 0) + change.count
            local[change.accounted] = local.get(change.accounted, 0) + change.local_count
        if draft.status or draft.epsilon_budget:
            epsilon = draft.epsilon_budget or cohort.epsilon_budget
            cohort = dataclasses.replace(cohort, status=draft.status or cohort.status, epsilon_budget=epsilon)
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
            is_used=view.is_used or draft.kind not in _UNUSED,
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

    On PostgreSQL the connection may commit every statement, unless a cohort is opened again; on SQLite it is
    in a transaction. A transaction of a turn is committed.

    Raises:
        LostRace: another entry was appended first, or the identifier of a new round was taken; nothing was
            written, and on SQLite the transaction must not be committed.
    """
    rows = _rows(steps)
    if engines.is_in_turn(connection) and any(draft.opens is not None for _, draft, _, _ in steps):
        raise AssertionError("a turn is committed with its entries, before the row of a cohort is written")
    try:
        if connection.dialect.name == "postgresql":
            once = max(map(len, rows.values())) == 1
            given = {
                f"{name[0]}_{column}": rows[name][0][column]
                if once
                else prepared.array([row[column] for row in rows[name]])
                for name, columns in _GIVEN.items()
                if rows[name]
                for column in columns
            }
            end = ("COMMIT",) if engines.is_in_turn(connection) else ()
            went = bool(prepared.run(connection, _statement(_parts(rows), once=once), given, behind=end).went)
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
    for _, draft, body, _ in steps:
        if draft.opens is not None:
            update_cohort(connection, dataclasses.replace(draft.opens, opened_at=body.recorded_at))


def _write_in_steps(connection: Connection, rows: Mapping[str, list[dict[str, Any]]]) -> bool:
    moves, written, changes = rows["moves"], rows["written"], rows["changes"]
    if prepared.change(connection, _MOVE, moves) != len(moves):  # first: another writer has moved a head
        return False
    lowers = [row["count"] < 0 or row["local_count"] < 0 for row in changes]
    steps = {
        _APPEND: written,
        _REGISTER: [
            {**row, "registered_at": prepared.moment(row["registered_at"])}
            for row in written
            if row["registration"] is not None
        ],
        _LINK: [row for row in written if row["registration"] is None],
        _KNOW: [row for row in changes if row["parameters"] is not None],
        _LOWER: list(itertools.compress(changes, lowers)),
        _RAISE: [row for row, is_lower in zip(changes, lowers, strict=True) if not is_lower],
    }
    for text, those in steps.items():
        if those:
            prepared.change(connection, text, those)
    return True


def _rows(steps: Sequence[Step]) -> dict[str, list[dict[str, Any]]]:
    """Return what is written for some entries, by the part of the statement that writes it."""
    moves: dict[str, dict[str, Any]] = {}
    changes: dict[tuple[str, bytes], dict[str, Any]] = {}
    known: set[bytes] = set()
    written: list[dict[str, Any]] = []
    for view, draft, body, entry in steps:
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
        move |= {"sequence": entry.sequence, "digest": entry.digest, "used_share": body.used_share}
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
                },
            )
            known.add(digest)
            changed["count"] += change.count
            changed["local_count"] += change.local_count
    for move in moves.values():
        move["counts"] = "{" + ",".join(str(move[name]) for name in _COUNTS) + "}"
    return {"moves": list(moves.values()), "written": written, "changes": list(changes.values())}


def _body(view: CohortView, draft: EntryDraft) -> EntryBody:
    cohort, moment = draft.opens or view.cohort, recorded_at(view)
    if draft.opens is not None and view.cohort.opened_at is not None:
        moment = max(moment, view.cohort.opened_at + _AFTER)  # names the opening in force
    return EntryBody(
        cohort=view.cohort.name,
        sequence=view.head_sequence + 1,
        kind=draft.kind,
        round_id=draft.round_id,
        actor=draft.actor,
        recorded_at=moment,
        numerical_policy=draft.numerical_policy,
        epsilon_budget=draft.epsilon_budget or cohort.epsilon_budget,
        delta_budget=cohort.delta_budget,
        spent=draft.spent,
        details=draft.details,
    )
