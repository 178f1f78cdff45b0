"""Counts over all cohorts for operators, and whether the database takes writes."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, exists, func, insert, or_, select

from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.rows import StoredVerification
from shuffle_ledger.ledger.storage.tables import cohorts, ended_sessions, entries, heads, verifications
from shuffle_ledger.ledger.values.entries import EntryKind

_QUIET = (str(EntryKind.REFUSED), str(EntryKind.VOIDED))  # entries that make nothing worse


@dataclass(frozen=True, kw_only=True)
class Named:
    """How many cohorts something is true of, and the first names in order."""

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Census:
    """The counts of one moment. Counts cost one statement each, names one short list."""

    cohorts: int
    overspent: int
    frozen: int
    unverified: Named  # the whole chain was not replayed within the time that was asked for
    broken_count: int
    broken: tuple[StoredVerification, ...]  # the first of those whose last verification found something
    rounds_admitted: int  # ever, in every cohort
    rounds_refused: int


def census(engine: Engine, *, unverified_seconds: float, names_max: int) -> Census:
    """Count the cohorts by what an operator has to know; names are at most `names_max` each."""
    with engines.reading(engine) as connection:
        now = engines.database_time(connection)
        before = now - timedelta(seconds=unverified_seconds)
        since = func.coalesce(verifications.c.replayed_at, cohorts.c.opened_at)
        both = cohorts.outerjoin(verifications, verifications.c.cohort == cohorts.c.name)
        # A moment to come was not written by a verification.
        late = select(cohorts.c.name).select_from(both).where(or_(since < before, since > now))
        problem = verifications.c.problem.is_not(None)
        found = connection.execute(
            select(verifications).where(problem).order_by(verifications.c.cohort).limit(names_max)
        )
        sums = (func.coalesce(func.sum(count), 0) for count in (heads.c.admitted, heads.c.refused))
        total = select(func.count(), *sums)
        number, admitted, refused = connection.execute(total.select_from(heads)).one()
        late_count = connection.execute(select(func.count()).select_from(late.subquery())).scalar_one()
        late_names = connection.execute(late.order_by(cohorts.c.name).limit(names_max)).scalars()
        return Census(
            cohorts=int(number),
            overspent=_count(connection, heads.c.cohort, heads.c.status == "overspent"),
            frozen=_count(connection, heads.c.cohort, heads.c.status == "frozen"),
            unverified=Named(count=int(late_count), names=tuple(late_names)),
            broken_count=_count(connection, verifications.c.cohort, problem),
            broken=tuple(StoredVerification(**row._mapping) for row in found),
            rounds_admitted=int(admitted),
            rounds_refused=int(refused),
        )


def verified_before(engine: Engine, moment: datetime, *, limit: int) -> list[str]:
    """Return names of cohorts that were not verified since a moment, those that waited longest first.

    Args:
        engine: of the ledger's database.
        moment: by the database's clock.
        limit: how many names at most.
    """
    # A cohort that vanished was verified before, so it is found in the other table.
    both = cohorts.outerjoin(verifications, verifications.c.cohort == cohorts.c.name)
    never = select(cohorts.c.name).select_from(both).where(verifications.c.cohort.is_(None))
    found: list[str] = []
    with engines.reading(engine) as connection:
        verified_at = verifications.c.verified_at
        # A moment to come was not written by a verification, so it keeps no cohort from one.
        is_due = or_(verified_at < moment, verified_at > engines.database_time(connection))
        earlier = select(verifications.c.cohort).where(is_due)
        for query in (
            never.order_by(cohorts.c.name),
            earlier.order_by(verifications.c.verified_at, verifications.c.cohort),
        ):
            found += connection.execute(query.limit(limit - len(found))).scalars()
    return found


def still_acknowledged(engine: Engine, acknowledged: Mapping[str, int]) -> dict[str, str]:
    """Return the status of each overspent or frozen cohort whose acknowledgement holds, by name.

    `acknowledged` gives, by cohort, the last entry that somebody knows of. It holds until a later entry of
    any kind but `refused` and `voided`.
    """
    if not acknowledged:
        return {}
    found: dict[str, str] = {}
    with engines.reading(engine) as connection:
        for name, sequence in acknowledged.items():
            later = and_(
                entries.c.cohort == name, entries.c.sequence > sequence, entries.c.kind.not_in(_QUIET)
            )
            known = and_(
                heads.c.cohort == name,
                heads.c.status != "open",
                heads.c.sequence >= sequence,
                ~exists().where(later),
            )
            status = connection.execute(select(heads.c.status).where(known)).scalar_one_or_none()
            if status is not None:
                found[name] = status
    return found


def write_problem(engine: Engine) -> str | None:
    """Return why the database takes no writes (a full disk, a standby); None if it takes them.

    Commits a row that it writes and removes, in a table that decisions do not read. Raises TryAgain.
    """
    session_id = secrets.token_hex(16)
    try:
        with engines.writing(engine) as connection:
            now = engines.database_time(connection)
            connection.execute(insert(ended_sessions).values(session_id=session_id, expires_at=now))
            connection.execute(delete(ended_sessions).where(ended_sessions.c.session_id == session_id))
    except Unavailable as error:
        return str(error)
    return None


def first_of_status(engine: Engine, status: str, *, names_max: int, but: Collection[str]) -> tuple[str, ...]:
    """Return the first names of the cohorts of a status, in order, without those in `but`."""
    query = select(heads.c.cohort).where(heads.c.status == status, heads.c.cohort.not_in(but))
    with engines.reading_once(engine) as connection:
        return tuple(connection.execute(query.order_by(heads.c.cohort).limit(names_max)).scalars())


def _count(connection: Connection, column: ColumnElement[str], where: ColumnElement[bool]) -> int:
    return int(connection.execute(select(func.count(column)).where(where)).scalar_one())
