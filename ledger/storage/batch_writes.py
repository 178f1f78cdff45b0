"""Many new rounds in one transaction: what they are decided on, and the entries that decide them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.storage import cohort_views, engine, prepared, rows
from shuffle_ledger.ledger.storage.appends import Step, append_in_steps, lost_if_taken, parameters_of
from shuffle_ledger.ledger.storage.cohort_views import Memory
from shuffle_ledger.ledger.storage.rows import NewRound
from shuffle_ledger.ledger.storage.tables import cohorts, heads, rounds

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
_MOVED = """
WITH given AS (
  SELECT * FROM unnest(
    %(cohort)s::text[], %(seen)s::bigint[], %(previous_digest)b::bytea[], %(sequence)s::bigint[],
    %(digest)b::bytea[], %(status)s::text[], %(admitted)s::bigint[], %(refused)s::bigint[], %(kind)s::text[],
    %(body)b::bytea[], %(accounted_digest)b::bytea[], %(count)s::bigint[], %(local_count)s::bigint[],
    %(registration)s::bigint[], %(round_id)s::text[], %(content)b::bytea[], %(content_digest)b::bytea[],
    %(registered_by)s::text[], %(registered_at)s::timestamptz[]
  ) AS given(
    cohort, seen, previous_digest, sequence, digest, status, admitted, refused, kind, body, accounted_digest,
    count, local_count, registration, round_id, content, content_digest, registered_by, registered_at
  )
), moved AS (
  UPDATE heads SET sequence = given.sequence, digest = given.digest, status = given.status,
    admitted = heads.admitted + given.admitted, refused = heads.refused + given.refused
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
), registered AS (
  INSERT INTO rounds (registration, round_id, cohort, content, content_digest, registered_by, registered_at,
    outcome_sequence)
  SELECT registration, round_id, cohort, content, content_digest, registered_by, registered_at, sequence
  FROM moved
)
SELECT count(*) AS moves FROM moved
"""


def read(connection: Connection, memory: Memory, wanted: Mapping[str, str]) -> Iterator[NewRound | None]:
    """Yield what each round is decided on as if it were the first, None if its identifier is taken.

    Args:
        wanted: the rounds' cohorts, by their identifiers.

    No entry is appended to their cohorts before the transaction ends.

    Raises:
        NotFound: no such cohort.
        Damaged: as `views.of_cohort`.
    """
    found = _views(connection, memory, sorted(set(wanted.values())))
    query = select(rounds.c.round_id).where(rounds.c.round_id.in_(list(wanted)))
    taken = set(connection.execute(query).scalars())
    numbers = _registrations(connection, len(wanted))
    for number, (round_id, cohort) in zip(numbers, wanted.items(), strict=True):
        new = dataclasses.replace(found[cohort], registration=number)
        yield None if round_id in taken else new


def _views(connection: Connection, memory: Memory, names: Sequence[str]) -> dict[str, NewRound]:
    # All writers lock in the same order. Rows are read after the lock is granted; earlier reads may be
    # outdated.
    head = select(heads.c.cohort).where(heads.c.cohort.in_(names)).order_by(heads.c.cohort)
    connection.execute(head.with_for_update()).all()
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
    """Append entries with the rows of the rounds they decide, in the caller's transaction.

    Raises:
        LostRace: another entry was appended first, or an identifier was taken; the transaction must not be
            committed then.
    """
    if connection.dialect.name != "postgresql":
        for step in steps:
            if append_in_steps(connection, step) != 1:
                raise step.lost
        return
    parameters = [parameters_of(step) for step in steps]
    with lost_if_taken(steps[0]):
        prepared.run(connection, _KNOWN, _columns(parameters, "accounted_digest", "parameters"))
        for wave in _waves(steps):
            given = [parameters[position] for position in wave]
            if prepared.run(connection, _MOVED, _columns(given, *given[0])).moves != len(wave):
                raise steps[wave[0]].lost


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
