"""Counts over all cohorts for operators, and whether the database takes writes."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    TextClause,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    union_all,
)

from shuffle_ledger.ledger.errors import LedgerError, Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.clocks import Clocks
from shuffle_ledger.ledger.storage.rows import PENDING, StoredVerification, entry_from
from shuffle_ledger.ledger.storage.tables import (
    BROKEN,
    CLOSED,
    ENTRY_COLUMNS,
    NO_PART,
    cohorts,
    ended_sessions,
    entries,
    heads,
    rounds,
    unverified,
    verifications,
)
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind

_NEWEST = 100  # entries whose moments are compared with the clock
_QUIET = (str(EntryKind.REFUSED), str(EntryKind.VOIDED))  # entries that make nothing worse


@dataclass(frozen=True, kw_only=True)
class Named:
    """How many cohorts something is true of, and the first names in order."""

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Census:
    """The counts of one moment. All but the first read only the cohorts that they count."""

    cohorts: int  # without periods and quotas
    overspent: Mapping[
        str, tuple[str, ...]
    ]  # by cohort, its chains of this status: its own and those of parts
    frozen: Mapping[str, tuple[str, ...]]
    unverified: Named  # the chain was not verified within the time that was asked for
    broken_count: int
    broken: tuple[StoredVerification, ...]  # the first of those whose last verification found something


def census(engine: Engine, *, unverified_seconds: float, names_max: int) -> Census:
    """Count the cohorts by what an operator has to know; names are at most `names_max` each."""
    with engines.reading(engine) as connection:
        now = engines.database_time(connection)
        late = _unverified_since(now - timedelta(seconds=unverified_seconds), now)
        late_names = connection.execute(select(late.c.cohort).order_by(late.c.cohort).limit(names_max))
        return Census(
            cohorts=_count(connection, cohorts, text(NO_PART)),
            overspent=_chains_of_status(connection, "overspent"),
            frozen=_chains_of_status(connection, "frozen"),
            unverified=Named(count=_count(connection, late), names=tuple(late_names.scalars())),
            broken_count=_count(connection, verifications, text(BROKEN)),
            broken=tuple(broken_chains(connection, limit=names_max)),
        )


def _unverified_since(before: datetime, now: datetime) -> FromClause:
    """Return the cohorts that were last verified or, if they never were, opened before a moment."""

    def is_due(since: ColumnElement[datetime]) -> ColumnElement[bool]:
        return or_(since < before, since > now)  # a moment to come was not written by a verification

    known = select(verifications.c.cohort).join(cohorts, cohorts.c.name == verifications.c.cohort)
    # One for each of the indexes.
    return union_all(
        known.where(is_due(verifications.c.verified_at)),
        _never_verified().where(is_due(unverified.c.opened_at)),
    ).subquery()


def _never_verified() -> Select[Any]:
    # Checked against the findings: where a trigger was removed, the list keeps what was verified since.
    found = exists().where(verifications.c.cohort == unverified.c.cohort)
    return select(unverified.c.cohort).where(~found)


def complete_unverified(engine: Engine) -> None:
    """Put into the list of cohorts that were never verified those that it lacks: nothing guards the list.

    It reads every cohort, so that no cohort stays unverified because a row or a trigger was removed.
    """
    listed = exists().where(unverified.c.cohort == cohorts.c.name)
    found = exists().where(verifications.c.cohort == cohorts.c.name)
    query = select(cohorts.c.name, cohorts.c.opened_at).where(~listed, ~found)
    with engines.reading_once(engine) as connection:
        missing = connection.execute(query).all()
    if missing:
        with engines.writing(engine) as connection:
            for name, opened_at in missing:
                row = {"cohort": name, "opened_at": opened_at}
                engines.insert_if_absent(connection, unverified, row)


def broken_chains(connection: Connection, *, limit: int) -> list[StoredVerification]:
    """Return the first cohorts whose last verification found something."""
    query = select(verifications).where(text(BROKEN)).order_by(verifications.c.cohort)
    return [StoredVerification(**row._mapping) for row in connection.execute(query.limit(limit))]


def verified_before(engine: Engine, moment: datetime, *, limit: int) -> list[str]:
    """Return names of cohorts that were not verified since a moment, those that waited longest first.

    Args:
        engine: of the ledger's database.
        moment: by the database's clock.
        limit: how many names at most.
    """
    # A cohort that vanished was verified before, so it is found in the other table.
    never = _never_verified().order_by(unverified.c.cohort)
    verified_at = verifications.c.verified_at
    found: list[str] = []
    with engines.reading(engine) as connection:
        # A moment to come was not written by a verification, so it keeps no cohort from one.
        for is_due in (None, verified_at < moment, verified_at > engines.database_time(connection)):
            query = never
            if is_due is not None:
                query = select(verifications.c.cohort).where(is_due)
                query = query.order_by(verified_at, verifications.c.cohort)
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


def clock_problems(engine: Engine, clocks: Clocks) -> list[str]:
    """Return in words what is implausible about the database's clock: how far it is from this machine's, and
    behind the moments of the newest entries and of rounds that wait.

    Reads few rows. Verification finds older entries, too, that are ahead of the clock.
    """
    newest = select(*ENTRY_COLUMNS).order_by(entries.c.position.desc()).limit(_NEWEST)
    waiting = select(rounds.c.cohort, func.max(rounds.c.registered_at).label("at")).where(PENDING)
    with engines.reading(engine) as connection:
        now = engines.database_time(connection)
        said = clocks.difference_from_own(now)
        waits = connection.execute(waiting.group_by(rounds.c.cohort))
        last: dict[str, datetime] = {row.cohort: row.at for row in waits}
        for entry in map(entry_from, connection.execute(newest)):
            try:
                at = entry.content().recorded_at
            except (LedgerError, TypeError, ValueError):
                continue  # an entry that cannot be read: verification says so
            last[entry.cohort] = max(at, last.get(entry.cohort, at))
    behind = [clocks.behind(now, at, what=f"cohort {name!r}") for name, at in sorted(last.items())]
    return [what for what in (said, *behind) if what is not None]


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


def _chains_of_status(connection: Connection, status: str) -> dict[str, tuple[str, ...]]:
    """Return by cohort the chains of a status, of the cohort and of its periods and quotas, in order."""
    query = select(heads.c.cohort, cohorts.c.period, cohorts.c.quota)
    query = query.join_from(heads, cohorts, cohorts.c.name == heads.c.cohort)
    found = defaultdict[str, list[str]](list)
    for row in connection.execute(query.where(text(CLOSED), heads.c.status == status)):
        part = row.period or row.quota
        found[row.cohort if part is None else canonical.decode(bytes(part))["of"]].append(row.cohort)
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


def _count(connection: Connection, table: FromClause, *where: ColumnElement[bool] | TextClause) -> int:
    return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())
