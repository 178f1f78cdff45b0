"""Rows and what they mean: the statements and conversions that `storage.store` is made of."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.answers.heads import StoredHead
from shuffle_ledger.ledger.errors import Conflict, Damaged, LedgerError, NoCohort, NotFound
from shuffle_ledger.ledger.storage import engine, tables
from shuffle_ledger.ledger.storage.tables import (
    COUNT_OF_KIND,
    ENTRY_COLUMNS,
    LISTED,
    accounted_rounds,
    cohorts,
    heads,
    holdings,
    ledger_identity,
    lost_cohorts,
    registrations,
    rounds,
)
from shuffle_ledger.ledger.storage.tables import entries as entries_table
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry, Spending
from shuffle_ledger.ledger.values.requests import (
    DECLARED,
    Cohort,
    CohortStatus,
    RoundRequest,
    declared_details,
    declared_from,
)

# How a body spells its moment, UTC with microseconds: texts of that form are in the order of their moments.
RECORDED, REGISTERED = b'"recorded_at":"', b'"registered_at":"'
_MOMENT_LENGTH = len("2025-01-06T12:00:00.000000+00:00")
ATTEMPTS_MAX = 5  # failed attempts after which a round is not retried automatically
_DECODED_ROUNDS_MAX = 8192
_DECLARED_MAX = 1024


@dataclass(frozen=True, kw_only=True)
class HoldingChange:
    """How an entry changes what a cohort holds of one kind of round."""

    accounted: ShuffledRound
    count: int  # added to what is charged
    local_count: int = 0  # added to what may have been sent


@dataclass(frozen=True, kw_only=True)
class EntryDraft:
    """An entry before it has a place in the chain."""

    kind: EntryKind
    round_id: str | None  # None for entries about the cohort itself
    actor: str
    numerical_policy: str
    spent: Spending
    details: Mapping[str, Any]
    changes: tuple[HoldingChange, ...] = ()
    status: CohortStatus | None = None  # None: unchanged
    epsilon_budget: float | None = None  # None: unchanged
    registers: StoredRound | None = None  # the round it decides, where its row is written with the entry
    opens: Cohort | None = None  # the cohort that it opens again: the row follows

    @property
    def accounted(self) -> ShuffledRound | None:
        """Returns the round that a decision charges; None if it charges nothing."""
        return self.changes[0].accounted if self.changes else None


@dataclass(frozen=True, kw_only=True)
class CohortView:
    """A cohort at one moment: all that a decision may depend on."""

    cohort: Cohort
    head_sequence: int
    head_digest: bytes
    spent: Spending
    at: datetime  # the moment, by the database's clock
    recorded_at: datetime | None = None  # of the head's entry; the next one is never recorded before it
    details: Mapping[str, Any] = field(default_factory=dict)  # of the head's entry: the policy's standing
    held: Mapping[ShuffledRound, int] = field(default_factory=dict)
    local: Mapping[ShuffledRound, int] = field(
        default_factory=dict
    )  # rounds whose reports may have been sent
    round: StoredRound | None = None  # the round that is to be decided, if the view was made for one
    opening: bytes | None = None  # the body that the chain would begin with, if it is not opened yet
    is_used: bool = False  # something was decided or recorded, so that it cannot be opened again
    # Values parsed from `details`, by name, each with its source: valid while the source is the same object.
    read: dict[str, tuple[Any, Any]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def now(self) -> datetime:
        """The database's clock, which may be set back, but never before the last entry."""
        return max(self.at, self.recorded_at or self.at)


@dataclass(frozen=True, kw_only=True)
class NewRound:
    """A round that is not registered yet, and the moment at which it may be, with its outcome."""

    view: CohortView
    registration: int  # its number, should it be


@dataclass(frozen=True, kw_only=True)
class StoredHolding:
    """One row of what a cohort holds."""

    accounted_digest: bytes
    parameters: bytes
    count: int
    local_count: int


@dataclass(frozen=True, kw_only=True)
class StoredRound:
    """One row of the registered rounds."""

    registration: int
    round_id: str
    cohort: str
    content: bytes
    content_digest: bytes
    registered_by: str
    registered_at: datetime
    queued_at: datetime | None = None
    outcome_sequence: int | None = None
    closing_sequence: int | None = None
    attempts: int = 0
    last_error: str | None = None
    shared: bool = False  # the round is of several cohorts, and this is not the first one


@dataclass(frozen=True, kw_only=True)
class MissingRounds:
    """Identifiers on which the rounds and the list of registrations disagree."""

    rows: tuple[str, ...]  # listed, and without the row
    unlisted: tuple[str, ...]  # with a row, and not listed, or with another content


@dataclass(frozen=True, kw_only=True)
class StoredLoss:
    """A stored privacy loss; `digest` is what the row claims, not what the blob has."""

    key: bytes
    digest: bytes
    blob: bytes


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What waits for a decision, at a moment of the database's clock."""

    at: datetime
    pending: int  # without stuck ones
    stuck: int  # failed too often; wait for somebody to look
    longest_seconds: float  # of the pending ones


@dataclass(frozen=True, kw_only=True)
class StoredVerification:
    """The last result of the scheduled verification of a cohort."""

    cohort: str
    verified_at: datetime
    head_sequence: int  # of the last head found good; 0: none yet
    head_digest: str
    numbers_checked: int
    problem: str | None  # None: everything held


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What stands beside a chain, and the chain's last entries, all of one moment."""

    entries: tuple[LedgerEntry, ...]  # behind the sequence that was asked for
    view: CohortView | LedgerError  # the error: why it cannot be read
    counts: Mapping[str, int]  # of entries by kind, as the head counts them
    used_share: float | None  # as the head says it; None: there is no head
    holdings: tuple[StoredHolding, ...]


RESTATED = text(tables.RESTATED)  # as the index says it
# On SQLite, where the write lock is held: no other entry gets the number. PostgreSQL has a sequence.
NEXT_POSITION: ColumnElement[int] = literal_column("(SELECT coalesce(max(position), 0) + 1 FROM entries)")
_OF_COHORT = ("name", "population", "delta_budget", "policy", "opened_at")
PENDING = rounds.c.outcome_sequence.is_(None)
IN_ORDER = text(f"rounds.{LISTED}")  # true: says that the index for lists may be used
FIRST = text("NOT rounds.shared")  # the one row that every round has, as the index says it
# Of rounds that wait, the same. Not as the index of all rounds says it: SQLite would read all of them.
FIRST_PENDING = and_(PENDING, rounds.c.shared.is_(False))
BY_NUMBER = rounds.c.registration + 0  # few rounds are sorted: the index of numbers is of all rounds, again
IS_USED = heads.c.sequence > heads.c.openings + heads.c.budget_changes
HEAD_COLUMNS = (
    *(heads.c.sequence, heads.c.digest, heads.c.status, heads.c.epsilon_budget),
    IS_USED.label("is_used"),
)
COHORTS_WITH_HEADS = select(cohorts, *HEAD_COLUMNS).join_from(
    cohorts, heads, heads.c.cohort == cohorts.c.name
)
IS_NO_PART = and_(cohorts.c.period.is_(None), cohorts.c.quota.is_(None))  # of another cohort


def cohort_row(connection: Connection, name: str) -> Row[Any]:
    """Return a cohort with its head; raises NotFound."""
    row = connection.execute(COHORTS_WITH_HEADS.where(cohorts.c.name == name)).one_or_none()
    if row is None:
        raise NoCohort(name)
    return row


def cohort_from(row: Row[Any]) -> Cohort:
    """Return the cohort in a row."""
    return Cohort(
        name=row.name,
        population=row.population,
        epsilon_budget=row.epsilon_budget,
        delta_budget=row.delta_budget,
        policy=row.policy,
        status=row.status,
        opened_at=row.opened_at,
        **declared_in(row),
    )


def declared_in(row: Any) -> dict[str, Any]:
    """Return what a cohort's row has in canonical bytes, as fields of `Cohort`; raises Damaged."""
    return _declared(tuple(getattr(row, name) for name in DECLARED))


@functools.lru_cache(maxsize=_DECLARED_MAX)
def _declared(given: tuple[bytes | None, ...]) -> dict[str, Any]:
    found = zip(DECLARED, given, strict=True)
    return declared_from({name: canonical.decode(each) for name, each in found if each})


def declared_bytes(cohort: Cohort) -> dict[str, bytes]:
    """Return what a cohort declares as its row has it: only what there is."""
    return {name: canonical.encode(each) for name, each in declared_details(cohort).items()}


def round_row(connection: Connection, round_id: str) -> StoredRound:
    """Return a registered round, as its first cohort's row has it; raises NotFound."""
    row = connection.execute(select(rounds).where(rounds.c.round_id == round_id, FIRST)).one_or_none()
    if row is None:
        raise NotFound(f"no round {round_id!r}")
    return round_from(row)


def round_rows(connection: Connection, first: StoredRound) -> list[StoredRound]:
    """Return the rows of a round, one for each of its cohorts, in their order."""
    names = RoundRequest.from_bytes(first.content).cohorts
    if len(names) == 1:
        return [first]
    query = select(rounds).where(rounds.c.round_id == first.round_id, rounds.c.cohort.in_(names))
    found = [round_from(row) for row in connection.execute(query)]
    return sorted(found, key=lambda each: each.cohort)  # here: databases sort text differently


def insert_round(connection: Connection, values: Mapping[str, Any]) -> StoredRound | None:
    """Insert a round unless its identifier is taken, in one statement; return its row, None if it was."""
    inserted = engine.insert_unless_taken(connection.dialect.name, rounds)
    statement = inserted.values(**values).returning(rounds)
    row = connection.execute(statement).one_or_none()
    return None if row is None else round_from(row)


def insert_shares(connection: Connection, first: Mapping[str, Any], cohorts: Sequence[str]) -> None:
    """Insert the rows of a round's other cohorts behind its first one, in order."""
    others = [{**first, "cohort": name, "shared": True} for name in cohorts[1:]]
    for values in others:
        connection.execute(insert(rounds).values(**values))


def round_from(row: Row[Any]) -> StoredRound:
    """Return the registered round in a row."""
    return StoredRound(**row._mapping)


def entry_row(connection: Connection, cohort: str, sequence: int) -> Row[Any] | None:
    """Return the row of an entry, None if there is none."""
    place = and_(entries_table.c.cohort == cohort, entries_table.c.sequence == sequence)
    return connection.execute(select(*ENTRY_COLUMNS).where(place)).one_or_none()


def last_moment(connection: Connection, cohort: str) -> datetime | None:
    """Return when the last entry of a cohort was recorded; None if it has none."""
    place = and_(entries_table.c.cohort == heads.c.cohort, entries_table.c.sequence == heads.c.sequence)
    query = select(*ENTRY_COLUMNS).select_from(heads.join(entries_table, place))
    row = connection.execute(query.where(heads.c.cohort == cohort)).one_or_none()
    return None if row is None else entry_from(row).content().recorded_at


def moment_in(body: ColumnElement[bytes], mark: bytes, dialect_name: str) -> ColumnElement[bytes]:
    """Return the moment behind a mark in a body, as an expression; other bytes if it has no such mark."""
    return engine.part_behind(body, mark, _MOMENT_LENGTH, dialect_name)


def last_moments(connection: Connection, *, after: datetime, until: datetime) -> list[datetime]:
    """Return when last entries of chains were recorded, of those recorded between two moments."""
    place = and_(entries_table.c.cohort == heads.c.cohort, entries_table.c.sequence == heads.c.sequence)
    moment = moment_in(entries_table.c.body, RECORDED, connection.dialect.name)
    first, last = (canonical.spelled_moment(each).encode("ascii") for each in (after, until))
    query = select(moment).select_from(heads.join(entries_table, place)).where(moment > first, moment <= last)
    return [
        datetime.fromisoformat(bytes(each).decode("ascii")) for each in connection.execute(query).scalars()
    ]


def entry_from(row: Row[Any]) -> LedgerEntry:
    """Return the entry in a row."""
    return LedgerEntry(**row._mapping)


def holding_rows(connection: Connection, cohort: str) -> list[StoredHolding]:
    """Return what a cohort holds, kinds that are charged no more included."""
    query = (
        select(
            holdings.c.accounted_digest,
            accounted_rounds.c.parameters,
            holdings.c.count,
            holdings.c.local_count,
        )
        .join_from(holdings, accounted_rounds, accounted_rounds.c.digest == holdings.c.accounted_digest)
        .where(holdings.c.cohort == cohort)
        .order_by(holdings.c.accounted_digest)
    )
    return [StoredHolding(**row._mapping) for row in connection.execute(query)]


def ledger_id(connection: Connection) -> str:
    """Return which ledger this is; raises Damaged when the database does not say."""
    found = connection.execute(select(ledger_identity.c.ledger_id)).scalars().all()
    if len(found) != 1:
        raise Damaged("the database does not say which ledger it is: its identity was removed")
    return str(found[0])


def head_rows(connection: Connection, *, after: str = "", limit: int | None = None) -> tuple[StoredHead, ...]:
    """Return the heads of all chains in the order of the cohorts' names, those behind `after`; at most
    `limit`, if there is one.
    """
    name = engine.in_order(heads.c.cohort, connection.dialect.name)
    query = select(heads.c.cohort, heads.c.sequence, heads.c.digest).where(engine.behind(name, after))
    found = connection.execute(query.order_by(name).limit(limit))
    return tuple(StoredHead(**row._mapping) for row in found)


def counts_in(head: Row[Any]) -> dict[str, int]:
    """Return how many entries of each kind a head counts."""
    counts = {kind: int(head._mapping[column]) for kind, column in COUNT_OF_KIND.items()}
    return {kind: count for kind, count in counts.items() if count}


def is_lost(connection: Connection, cohort: str) -> bool:
    """Return whether a cohort was lost when the database was put back to an earlier state."""
    query = select(lost_cohorts.c.name).where(lost_cohorts.c.name == cohort)
    return connection.execute(query).first() is not None


def mentioned_cohorts(connection: Connection) -> list[str]:
    """Return every cohort name in any table, in order."""
    tables = (heads, entries_table, holdings, rounds, registrations)
    columns = (cohorts.c.name, *(table.c.cohort for table in tables))
    found = {name for column in columns for (name,) in connection.execute(_different(column))}
    return sorted(name if isinstance(name, str) else repr(name) for name in found)


def _different(column: ColumnElement[str]) -> Select[Any]:
    """Return the values of a column by one look into its index for each, however many rows have it."""
    # True of every round, and what the index of their cohorts is limited to.
    indexed = [text(LISTED)] if column is rounds.c.cohort else []
    name = select(func.min(column).label("name")).where(*indexed).cte("names", recursive=True)
    following = select(func.min(column)).where(column > name.c.name, *indexed).scalar_subquery()
    name = name.union_all(select(following).where(name.c.name.is_not(None)))
    return select(name.c.name).where(name.c.name.is_not(None))


def insert_cohort(connection: Connection, cohort: Cohort, entry: LedgerEntry) -> bool:
    """Insert a cohort with its first entry and its head, unless its name is taken; return whether it was
    free."""
    row = _cohort_values(cohort)
    if not engine.insert_if_absent(connection, cohorts, row):
        return False
    position = {"position": NEXT_POSITION} if connection.dialect.name == "sqlite" else {}
    connection.execute(insert(entries_table).values(**vars(entry), **position))
    head = {"cohort": cohort.name, "sequence": entry.sequence, "digest": entry.digest, "status": "open"}
    budget = {"epsilon_budget": cohort.epsilon_budget, "used_share": 0.0}
    connection.execute(insert(heads).values(**head, **budget))
    return True


def update_cohort(connection: Connection, cohort: Cohort) -> None:
    """Let a cohort's row say what the cohort is opened with again; its head and entry are written before."""
    changed = update(cohorts).where(cohorts.c.name == cohort.name)
    connection.execute(changed.values(dict.fromkeys(DECLARED) | _cohort_values(cohort)))


def _cohort_values(cohort: Cohort) -> dict[str, Any]:
    return {name: getattr(cohort, name) for name in _OF_COHORT} | declared_bytes(cohort)


def held_cohorts(connection: Connection, names: Collection[str]) -> list[Cohort]:
    """Return some cohorts in order; until the transaction ends, none is opened again. Raises NotFound."""
    query = COHORTS_WITH_HEADS.where(cohorts.c.name.in_(names)).order_by(cohorts.c.name)
    held = connection.execute(query.with_for_update(read=True, of=cohorts))
    found = {row.name: cohort_from(row) for row in held}
    for name in names:
        if name not in found:
            raise NoCohort(name)
    return [found[name] for name in sorted(found)]


def refuse_begun(connection: Connection, names: Collection[str]) -> None:
    """Raise Conflict for a cohort of which a round waits, or a part has a chain: it is not opened again.

    Until the transaction ends, no writer that holds these cohorts registers a round or opens a part.
    """
    for name in names:
        connection.execute(select(cohorts.c.name).where(cohorts.c.name == name).with_for_update())
        waiting = select(rounds.c.round_id).where(rounds.c.cohort == name, PENDING).limit(1)
        if (found := connection.execute(waiting).scalar()) is not None:
            raise Conflict(f"cohort {name!r} is not opened again while round {found!r} waits for a decision")
        if (found := part_of(connection, name)) is not None:
            raise Conflict(
                f"cohort {name!r} is not opened again, for {found!r} is open, which is a part of it"
            )


def part_of(connection: Connection, name: str) -> str | None:
    """Return the name of a part of a cohort that has a chain, if there is one."""
    of_part = engine.in_order(cohorts.c.name, connection.dialect.name)
    query = select(cohorts.c.name).where(of_part > f"{name}@", of_part < f"{name}A", ~IS_NO_PART)
    found: str | None = connection.execute(query.limit(1)).scalar()
    return found


@functools.lru_cache(maxsize=_DECODED_ROUNDS_MAX)
def decoded_round(parameters: bytes) -> ShuffledRound:
    """Return the round with these canonical bytes; remembered, for every view decodes them all."""
    return ShuffledRound.from_mapping(canonical.decode(parameters))
