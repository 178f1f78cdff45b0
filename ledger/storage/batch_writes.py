"""Many new rounds in one transaction: what they are decided on, and the entries that decide them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.storage import cohort_views, engine, prepared, rows
from shuffle_ledger.ledger.storage.appends import (
    Step,
    append_in_steps,
    is_simple,
    lost_if_taken,
    parameters_of,
    write_with_round,
)
from shuffle_ledger.ledger.storage.cohort_locks import NO_TURN
from shuffle_ledger.ledger.storage.cohort_views import Memory
from shuffle_ledger.ledger.storage.rows import HoldingChange, NewRound
from shuffle_ledger.ledger.storage.tables import COUNT_OF_KIND, cohorts, heads, rounds
from shuffle_ledger.ledger.values import entries

# A statement for entries of as many cohorts, as `storage.appends` has one for one. In order of their digests,
# lest two who bring the same kinds wait for each other.
_KNOWN = """
WITH known AS (
  INSERT INTO accounted_rounds (digest, parameters)
  SELECT DISTINCT digest, parameters FROM unnest(%(accounted_digest)b::bytea[], %(parameters)b::bytea[])
    AS given(digest, parameters)
  WHERE digest IS NOT NULL ORDER BY digest
  ON CONFLICT DO NOTHING
  RETURNING digest
)
SELECT count(*) AS new FROM known
"""
_COUNTS = tuple(COUNT_OF_KIND.values())
# Columns of what is given, with their types.
_GIVEN = {
    "cohort": "text",
    "seen": "bigint",
    "previous_digest": "bytea",
    "sequence": "bigint",
    "digest": "bytea",
    "status": "text",
    **dict.fromkeys(_COUNTS, "bigint"),
    "kind": "text",
    "body": "bytea",
    "accounted_digest": "bytea",
    "count": "bigint",
    "local_count": "bigint",
    "registration": "bigint",
    "round_id": "text",
    "content": "bytea",
    "content_digest": "bytea",
    "registered_by": "text",
    "registered_at": "timestamptz",
    "shared": "boolean",
}
_ARRAYS = ", ".join(f"%({name}){'b' if kind == 'bytea' else 's'}::{kind}[]" for name, kind in _GIVEN.items())
_MOVED = f"""
WITH given AS (
  SELECT * FROM unnest({_ARRAYS}) AS given({", ".join(_GIVEN)})
), moved AS (
  UPDATE heads SET sequence = given.sequence, digest = given.digest, status = given.status,
    {", ".join(f"{name} = heads.{name} + given.{name}" for name in _COUNTS)}
  FROM given
  WHERE heads.cohort = given.cohort AND heads.sequence = given.seen AND heads.digest = given.previous_digest
  RETURNING given.*
), appended AS (
  INSERT INTO entries (cohort, sequence, kind, round_id, body, previous_digest, digest)
  SELECT cohort, sequence, kind, round_id, body, previous_digest, digest FROM moved
), held AS (
  INSERT INTO holdings (cohort, accounted_digest, count, local_count)
  SELECT cohort, accounted_digest, count, local_count FROM moved WHERE accounted_digest IS NOT NULL
  ON CONFLICT (cohort, accounted_digest) DO UPDATE
  SET count = holdings.count + excluded.count, local_count = holdings.local_count + excluded.local_count
), """  # noqa: S608 - our own names
_REGISTERED = """registered AS (
  INSERT INTO rounds (registration, round_id, cohort, content, content_digest, registered_by, registered_at,
    outcome_sequence, shared)
  SELECT registration, round_id, cohort, content, content_digest, registered_by, registered_at, sequence,
    shared
  FROM moved
)
SELECT count(*) AS moves FROM moved
"""
# By key alone: the planner might else read all that is pending.
_LINKED = """decided AS (
  UPDATE rounds SET outcome_sequence = coalesce(rounds.outcome_sequence, moved.sequence) FROM moved
  WHERE moved.kind IN ('admitted', 'refused', 'incident')
    AND rounds.cohort = moved.cohort AND rounds.round_id = moved.round_id
), closed AS (
  UPDATE rounds SET closing_sequence = coalesce(rounds.closing_sequence, moved.sequence) FROM moved
  WHERE moved.kind IN ('settled', 'voided')
    AND rounds.cohort = moved.cohort AND rounds.round_id = moved.round_id
)
SELECT count(*) AS moves FROM moved
"""
# A change may lower a count, so a row of 0 is inserted before the change.
_NOTHING_HELD = """
WITH given AS (
  INSERT INTO holdings (cohort, accounted_digest, count, local_count)
  SELECT DISTINCT cohort, digest, 0, 0 FROM unnest(%(cohort)s::text[], %(digest)b::bytea[])
    AS given(cohort, digest)
  ON CONFLICT DO NOTHING
  RETURNING cohort
)
SELECT count(*) AS new FROM given
"""
_HELD = """
WITH given AS (
  SELECT cohort, digest, sum(count)::bigint AS count, sum(local_count)::bigint AS local_count
  FROM unnest(%(cohort)s::text[], %(digest)b::bytea[], %(count)s::bigint[], %(local_count)s::bigint[])
    AS given(cohort, digest, count, local_count)
  GROUP BY cohort, digest
), changed AS (
  UPDATE holdings SET count = holdings.count + given.count,
    local_count = holdings.local_count + given.local_count
  FROM given WHERE holdings.cohort = given.cohort AND holdings.accounted_digest = given.digest
  RETURNING holdings.cohort
)
SELECT count(*) AS changes FROM changed
"""


def read(
    connection: Connection, memory: Memory, wanted: Mapping[str, Sequence[str]]
) -> Iterator[list[NewRound] | None]:
    """Yield what each round is decided on as if it were the first, None if its identifier is taken.

    Args:
        connection: of the transaction that decides.
        memory: what was read before.
        wanted: the rounds' cohorts, in order, by the rounds' identifiers.

    No entry is appended to their cohorts before the transaction ends.

    Raises:
        NotFound: no such cohort.
        Damaged: as `views.of_cohort`.
    """
    found = _views(connection, memory, sorted({name for names in wanted.values() for name in names}))
    query = select(rounds.c.round_id).where(rounds.c.round_id.in_(list(wanted)), rows.FIRST)
    taken = set(connection.execute(query).scalars())
    numbers = iter(_registrations(connection, sum(map(len, wanted.values()))))
    for round_id, names in wanted.items():
        new = [dataclasses.replace(found[name], registration=next(numbers)) for name in names]
        yield None if round_id in taken else new


def lock(connection: Connection, names: Sequence[str]) -> None:
    """Locks the heads of some cohorts: no entry is appended to them before the transaction ends.

    All writers lock in the order of names, so no two wait for each other.
    """
    head = select(heads.c.cohort).where(heads.c.cohort.in_(names)).order_by(heads.c.cohort)
    connection.execute(head.with_for_update()).all()


def _views(connection: Connection, memory: Memory, names: Sequence[str]) -> dict[str, NewRound]:
    lock(connection, names)  # first: rows that are read before a lock is granted may be outdated
    # Not EXISTS: by old statistics the planner would read once, and whole, what waits in all cohorts.
    waiting = select(rounds.c.registration).where(
        rounds.c.cohort == cohorts.c.name,
        rounds.c.outcome_sequence.is_(None),
        rounds.c.attempts < rows.ATTEMPTS_MAX,
    )
    query = select(
        cohorts,
        heads.c.sequence,
        heads.c.digest,
        heads.c.status,
        engine.clock(connection.dialect.name).label("at"),
        waiting.limit(1).scalar_subquery().is_not(None).label("others_wait"),
    ).select_from(cohorts.join(heads, heads.c.cohort == cohorts.c.name))
    listed = {row.name: row for row in connection.execute(query.where(cohorts.c.name.in_(names))).all()}
    for name in names:
        if name not in listed:
            raise NotFound(f"no cohort {name!r}")
    seen = {name: view for name, row in listed.items() if (view := cohort_views.as_seen(memory, row))}
    unseen = [name for name in names if name not in seen]
    seen |= cohort_views.of_cohorts(connection, memory.kinds, unseen) if unseen else {}
    return {
        name: NewRound(view=seen[name], registration=0, others_wait=row.others_wait)
        for name, row in listed.items()
    }


def _registrations(connection: Connection, count: int) -> Sequence[int]:
    number = engine.next_registration(connection.dialect.name)
    if connection.dialect.name == "sqlite":
        first: int = connection.execute(select(number)).scalar_one()
        return range(first, first + count)
    each = func.generate_series(1, bindparam("count")).table_valued("each")
    return list(connection.execute(select(number).select_from(each), {"count": count}).scalars())


def write(connection: Connection, steps: Sequence[Step]) -> None:
    """Append entries with the rows of the rounds they register, decide or close, in the caller's transaction.

    Raises:
        LostRace: another entry was appended first, or an identifier was taken; the transaction must not be
            committed then.
    """
    if connection.dialect.name != "postgresql":
        for step in steps:
            if append_in_steps(connection, step) != 1:
                raise step.lost
        return
    if any(step.draft.epsilon_budget is not None for step in steps):
        raise AssertionError("a budget changes in a transaction of its own")
    simple = all(is_simple(step.draft) for step in steps)
    registers = {step.draft.registers is not None for step in steps}
    if len(registers) != 1:
        raise AssertionError("rounds are registered with their outcomes, or were before")
    moved = _MOVED + (_REGISTERED if registers == {True} else _LINKED)
    parameters = [parameters_of(step) for step in steps]
    with lost_if_taken(steps[0]):
        if simple:
            prepared.run(connection, _KNOWN, _columns(parameters, "accounted_digest", "parameters"))
        else:
            parameters = [{**one, "accounted_digest": None} for one in parameters]
        for wave in _waves(steps):
            given = [parameters[position] for position in wave]
            if _append(connection, given, moved, as_one=simple and registers == {True}) != len(wave):
                raise steps[wave[0]].lost
        if not simple:
            _change_holdings(connection, steps)


def _append(
    connection: Connection, given: Sequence[Mapping[str, object]], statement: str, *, as_one: bool
) -> int:
    """Append entries of as many cohorts; return how many heads moved.

    `as_one` allows the statement for one new round, which costs less than arrays of one element.
    """
    if as_one and len(given) == 1:
        return write_with_round(connection, given[0], NO_TURN)
    moves: int = prepared.run(connection, statement, _columns(given, *_GIVEN)).moves
    return moves


def _change_holdings(connection: Connection, steps: Sequence[Step]) -> None:
    """Apply any changes to what cohorts hold, whose heads this transaction has moved."""
    given = [_change(step.view.cohort.name, change) for step in steps for change in step.draft.changes]
    if not given:
        return
    prepared.run(connection, _KNOWN, _columns(given, "accounted_digest", "parameters"))
    prepared.run(connection, _NOTHING_HELD, _columns(given, "cohort", "digest"))
    prepared.run(connection, _HELD, _columns(given, "cohort", "digest", "count", "local_count"))


def _change(cohort: str, change: HoldingChange) -> dict[str, object]:
    parameters = entries.round_bytes(change.accounted)
    digest = entries.round_digest(parameters)
    return {
        "cohort": cohort,
        "digest": digest,
        "accounted_digest": digest,
        "parameters": parameters,
        "count": change.count,
        "local_count": change.local_count,
    }


def _waves(steps: Sequence[Step]) -> Iterator[list[int]]:
    """Yield positions in order, none with two entries of one chain: a head moves one entry at a time."""
    waves: dict[int, list[int]] = defaultdict(list)
    lengths: dict[str, int] = defaultdict(int)
    for position, step in enumerate(steps):
        cohort = step.view.cohort.name
        waves[lengths[cohort]].append(position)
        lengths[cohort] += 1
    yield from waves.values()


def _columns(given: Sequence[Mapping[str, object]], *names: str) -> dict[str, list[object]]:
    return {name: [one[name] for one in given] for name in names}
