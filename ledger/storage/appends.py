"""Writing one entry with everything that goes with it: all of it, if the head is still where it was seen."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Executable, and_, bindparam, update
from sqlalchemy.exc import IntegrityError

from shuffle_ledger.ledger.errors import LostRace
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared, rows
from shuffle_ledger.ledger.storage.cohort_locks import Turn
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, StoredRound
from shuffle_ledger.ledger.storage.tables import COUNT_OF_KIND, cohorts, heads
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, LedgerEntry

_DECISIONS_AND_INCIDENTS = (EntryKind.ADMITTED, EntryKind.REFUSED, EntryKind.INCIDENT)
_TAKEN = "23505"  # PostgreSQL's word for a key that exists
# The same as `append_in_steps`, for the common case, in one round trip. Everything hangs on the head's move:
# where it did not move, nothing else is written.
_MOVED_AND_HELD = """
WITH moved AS (
  UPDATE heads SET sequence = %(sequence)s, digest = %(digest)b, status = %(status)s,
    admitted = admitted + %(admitted)s, refused = refused + %(refused)s, incidents = incidents + %(incidents)s
  WHERE cohort = %(cohort)s AND sequence = %(seen)s AND digest = %(previous_digest)b
  RETURNING cohort
), appended AS (
  INSERT INTO entries (cohort, sequence, kind, round_id, body, previous_digest, digest)
  SELECT cohort, %(sequence)s, %(kind)s, %(round_id)s, %(body)b, %(previous_digest)b, %(digest)b FROM moved
), known AS (
  INSERT INTO accounted_rounds (digest, parameters)
  SELECT %(accounted_digest)b, %(parameters)b FROM moved WHERE %(accounted_digest)b::bytea IS NOT NULL
  ON CONFLICT DO NOTHING
), held AS (
  INSERT INTO holdings (cohort, accounted_digest, count, local_count)
  SELECT cohort, %(accounted_digest)b, %(count)s, %(local_count)s FROM moved
  WHERE %(accounted_digest)b::bytea IS NOT NULL
  ON CONFLICT (cohort, accounted_digest) DO UPDATE
  SET count = holdings.count + excluded.count, local_count = holdings.local_count + excluded.local_count
), """
_DECIDED = """linked AS (
  UPDATE rounds SET outcome_sequence = %(sequence)s FROM moved
  WHERE rounds.round_id = %(round_id)s AND rounds.cohort = moved.cohort AND rounds.outcome_sequence IS NULL
)
"""
_REGISTERED = """registered AS (
  INSERT INTO rounds (registration, round_id, cohort, content, content_digest, registered_by, registered_at,
    outcome_sequence, shared)
  SELECT %(registration)s, %(round_id)s, cohort, %(content)b, %(content_digest)b, %(registered_by)s,
    %(registered_at)s, %(sequence)s, %(shared)s FROM moved
)
"""
_ANSWER = "SELECT count(*) AS moves FROM moved"
# Releases a session-level advisory lock with the commit: the lock is first taken for the transaction too.
_ANSWER_LEAVING = """
SELECT count(*) AS moves, CASE WHEN count(*) > 0 THEN
  CASE WHEN pg_try_advisory_xact_lock(%(space)s, %(line)s) THEN pg_advisory_unlock(%(space)s, %(line)s) END
END AS has_left FROM moved
"""
_NOTHING_REGISTERED = dict.fromkeys(field.name for field in dataclasses.fields(StoredRound))
_AT_ONCE = _MOVED_AND_HELD + _DECIDED + _ANSWER
_WITH_ROUND = _MOVED_AND_HELD + _REGISTERED + _ANSWER_LEAVING


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
        return dataclasses.replace(
            view,
            cohort=dataclasses.replace(view.cohort, status=draft.status or view.cohort.status),
            head_sequence=self.entry.sequence,
            head_digest=self.entry.digest,
            spent=draft.spent,
            recorded_at=self.body.recorded_at,
            details=draft.details,
            held=held,
            local=local,
        )

    @property
    def lost(self) -> LostRace:
        """Returns the error for a lost race: another writer appended first."""
        return LostRace(f"cohort {self.view.cohort.name!r} moved on from entry {self.view.head_sequence}")


def append(engine: Engine, view: CohortView, draft: EntryDraft) -> LedgerEntry:
    """Append what `draft` says to the cohort that `view` saw; return the entry.

    Raises:
        LostRace: another entry was appended first; nothing was changed.
    """
    step, fact = Step.of(view, draft), fact_of(draft)
    if engines.is_postgresql(engine) and is_simple(draft):
        with engines.writing_once(engine, fact=fact) as connection:
            moved = connection.exec_driver_sql(_AT_ONCE, parameters_of(step)).scalar_one()
    else:
        with engines.writing(engine, fact=fact) as connection:
            moved = append_in_steps(connection, step)
    if moved != 1:
        raise step.lost
    return step.entry


def fact_of(draft: EntryDraft) -> str:
    """Return what appending an entry makes true, for an answer that was lost."""
    return engines.DECIDED if draft.kind in _DECISIONS_AND_INCIDENTS else engines.CHANGED


def append_on(
    connection: Connection, view: CohortView, draft: EntryDraft, turn: Turn
) -> tuple[EntryBody, CohortView]:
    """Append with the row of the round that is decided, on a connection of `engines.deciding`.

    Returns the entry's body, and the cohort after the entry. The turn, if it was held, is released by the
    commit.

    Raises:
        LostRace: another entry was appended first, or the round's identifier was taken; nothing was changed.
    """
    if draft.registers is None or not is_simple(draft):
        raise AssertionError("only the decision about a new round is appended like this")
    step = Step.of(view, draft)
    with lost_if_taken(step):
        if connection.dialect.name == "postgresql":
            moved = write_with_round(connection, parameters_of(step), turn.place)
        else:
            moved = append_in_steps(connection, step)
    if moved != 1:
        raise step.lost
    turn.is_held = False
    return step.body, step.after


def write_with_round(connection: Connection, parameters: Mapping[str, Any], turn: Mapping[str, Any]) -> int:
    """Append an entry with the row of the round that it decides, by one statement of PostgreSQL's.

    Returns 0 if another entry was first. The turn, unless it is `NO_TURN`, is released by the commit.
    """
    moves: int = prepared.run(connection, _WITH_ROUND, {**parameters, **turn}).moves
    return moves


def append_within(connection: Connection, view: CohortView, draft: EntryDraft) -> LedgerEntry:
    """Append in the caller's transaction, which must not be committed after LostRace."""
    step = Step.of(view, draft)
    if append_in_steps(connection, step) != 1:
        raise step.lost
    return step.entry


@contextmanager
def lost_if_taken(step: Step) -> Iterator[None]:
    """Raise LostRace where the identifier of a new round was taken meanwhile."""
    try:
        yield
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) == _TAKEN:
            raise LostRace(f"round {step.entry.round_id!r} was registered meanwhile") from error
        raise


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


def recorded_at(view: CohortView) -> datetime:
    """Return the moment of the next entry: the database's clock, which may be set back, never before the last
    entry or the registration of the round that is decided.
    """
    return max(view.now, view.round.registered_at) if view.round else view.now


def is_simple(draft: EntryDraft) -> bool:
    """Whether an entry decides a round, or tells a release, and takes at most one kind more, nothing less."""
    taken = len(draft.changes) <= 1 and all(
        change.count >= 0 and change.local_count >= 0 for change in draft.changes
    )
    return draft.kind in _DECISIONS_AND_INCIDENTS and taken


def parameters_of(step: Step) -> Mapping[str, Any]:
    """Return what the statements above are given for an entry that takes at most one kind."""
    view, draft, _, entry = step
    change = draft.changes[0] if draft.changes else None
    parameters = entries.round_bytes(change.accounted) if change else None
    return {
        **(vars(draft.registers) if draft.registers else _NOTHING_REGISTERED),
        **vars(entry),
        "seen": view.head_sequence,
        "status": draft.status or view.cohort.status,
        **{count: int(str(draft.kind) == kind) for kind, count in COUNT_OF_KIND.items()},
        "parameters": parameters,
        "accounted_digest": entries.round_digest(parameters) if parameters is not None else None,
        "count": change.count if change else 0,
        "local_count": change.local_count if change else 0,
    }


def append_in_steps(connection: Connection, step: Step) -> int:
    """Append in a transaction, with any draft and on any database; return 0 if another entry was first."""
    view, draft, _, entry = step
    cohort = view.cohort
    # The head moves first: if another writer has moved it, nothing is written.
    moved = {"sequence": entry.sequence, "digest": entry.digest, "status": draft.status or cohort.status}
    seen = {"whose": cohort.name, "seen": view.head_sequence, "seen_digest": view.head_digest}
    if connection.execute(_head_moved(str(draft.kind)), {**moved, **seen}).rowcount != 1:
        return 0
    if draft.registers is not None:
        rows.insert_decided_round(connection, draft.registers, entry.sequence)
    rows.insert_entry(connection, entry)
    for change in draft.changes:
        rows.change_holding(connection, cohort.name, change)
    if entry.round_id is not None and draft.registers is None:
        rows.link_round(connection, entry)
    if draft.epsilon_budget is not None:
        row = update(cohorts).where(cohorts.c.name == cohort.name)
        connection.execute(row.values(epsilon_budget=draft.epsilon_budget))
    return 1


@functools.cache
def _head_moved(kind: str) -> Executable:
    counter = heads.c[COUNT_OF_KIND[kind]]
    unmoved = and_(
        heads.c.cohort == bindparam("whose"),
        heads.c.sequence == bindparam("seen"),
        heads.c.digest == bindparam("seen_digest"),
    )
    return update(heads).where(unmoved).values({counter: counter + 1})
