"""Views: the state of a cohort at one moment, read by one statement for a decision."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy.sql.selectable import FromClause

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.errors import Damaged, NoCohort, NotFound
from shuffle_ledger.ledger.storage import engine, prepared, rows
from shuffle_ledger.ledger.storage.cohort_locks import LOCK_SPACE, waiting_for
from shuffle_ledger.ledger.storage.rows import CohortView, NewRound, StoredRound
from shuffle_ledger.ledger.storage.tables import (
    ENTRY_COLUMNS,
    accounted_rounds,
    cohorts,
    heads,
    holdings,
    rounds,
)
from shuffle_ledger.ledger.storage.tables import entries as entries_table
from shuffle_ledger.ledger.values import entries
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry
from shuffle_ledger.ledger.values.requests import DECLARED, Cohort, RoundRequest

KINDS_REMEMBERED_MAX = 8192
VIEWS_REMEMBERED_MAX = 4096
_OF_COHORT = tuple(field.name for field in dataclasses.fields(Cohort) if field.name not in DECLARED)


class Kinds:
    """Accounted rounds by digest, read once: their rows never change, and their bytes have their digest."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[bytes, ShuffledRound] = {}

    def learn(self, connection: Connection, digests: Iterable[bytes]) -> dict[bytes, ShuffledRound]:
        """Return the rounds with these digests; raises Damaged for one that is missing or was changed."""
        found = {digest: self._known[digest] for digest in digests if digest in self._known}
        missing = [digest for digest in digests if digest not in found]
        if missing:
            read = _read_kinds(connection, missing)
            if len(self._known) + len(read) > KINDS_REMEMBERED_MAX:
                self._known.clear()
            self._known.update(read)
            found.update(read)
        return found


class Memory:
    """A cache of kinds of rounds, and of each cohort's state after its last known entry.

    A cached view is valid while the head has the same digest, which covers everything in the entry.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.kinds = Kinds()
        self._views: dict[str, CohortView] = {}

    def last_view(self, cohort: str) -> CohortView | None:
        """Return a cohort's view as it was last read, or written."""
        return self._views.get(cohort)

    def keep(self, view: CohortView) -> None:
        """Remember a view that was read and checked, or written."""
        if len(self._views) >= VIEWS_REMEMBERED_MAX:
            self._views.clear()
        self._views[view.cohort.name] = view


def _read_kinds(connection: Connection, digests: list[bytes]) -> dict[bytes, ShuffledRound]:
    query = select(accounted_rounds).where(accounted_rounds.c.digest.in_(digests))
    found = {}
    for row in connection.execute(query):
        if entries.round_digest(row.parameters) != row.digest:
            raise Damaged(f"accounted round {row.digest.hex()}: its parameters were changed")
        found[row.digest] = rows.decoded_round(row.parameters)
    for digest in digests:
        if digest not in found:
            raise Damaged(f"accounted round {digest.hex()}: it is held, and its parameters are missing")
    return found


def of_cohort(connection: Connection, kinds: Kinds, name: str) -> CohortView:
    """Return a cohort's view.

    Raises:
        NotFound: no such cohort.
        Damaged: the head's entry is missing or not canonical, or the cohort's rows contradict it.
    """
    return of_all(connection, kinds, [name])[0]


def of_all(connection: Connection, kinds: Kinds, names: Sequence[str]) -> list[CohortView]:
    """Return the views of some cohorts in their order.

    Raises:
        NotFound: one of them is none.
        Damaged: as `of_cohort`.
    """
    found = of_cohorts(connection, kinds, names)
    for name in names:
        if name not in found:
            raise NoCohort(name)
    return [found[name] for name in names]


def of_cohorts(connection: Connection, kinds: Kinds, names: Iterable[str]) -> dict[str, CohortView]:
    """Return the views of those of some cohorts that there are; raises Damaged as `of_cohort`."""
    listed = list(names)
    given = {"names": listed, "known": [""] * len(listed)}
    asked = {name: prepared.listed(connection, each) for name, each in given.items()}
    return _views(connection, kinds, prepared.every(connection, _of_cohorts(connection.dialect.name), asked))


def of_round(connection: Connection, kinds: Kinds, round_id: str) -> list[CohortView] | StoredRound:
    """Return the views that a pending round is to be decided on, of its cohorts in order; a decided round as
    it is.

    Raises:
        NotFound: no such round.
        Damaged: as `of_cohort`.
    """
    row = prepared.one_or_none(connection, _of_round(connection.dialect.name), {"round_id": round_id})
    if row is None:
        raise NotFound(f"no round {round_id!r}")
    stored = StoredRound(**{name: getattr(row, f"round_{name}") for name in rounds.c.keys()})  # noqa: SIM118 - not a dict
    if stored.outcome_sequence is not None:
        return stored
    if row.name is None:
        raise Damaged(f"round {round_id!r}: its cohort, {stored.cohort!r}, is missing")
    names = RoundRequest.from_bytes(stored.content).cohorts
    if len(names) == 1:
        return [_view(connection, kinds, row, stored)]
    # The heads before the rows, for each statement has its own snapshot: the rows show a decision made in
    # between; after one made later, the heads have moved on, and nothing is appended.
    views = of_all(connection, kinds, names)
    stored_in = {each.cohort: each for each in rows.round_rows(connection, stored)}
    if tuple(sorted(stored_in)) != names:
        raise Damaged(f"round {round_id!r}: it does not have a row for each of its cohorts")
    decided = [name for name, each in stored_in.items() if each.outcome_sequence is not None]
    if len(decided) == len(names):
        return stored_in[stored.cohort]  # by another process, since its first row was read
    if decided:
        raise Damaged(f"round {round_id!r}: it is decided in cohort {decided[0]!r}, and in others it is not")
    return [dataclasses.replace(view, round=stored_in[view.cohort.name]) for view in views]


@dataclass(frozen=True, kw_only=True)
class RoundBasis:
    """What new rounds are decided on."""

    views: Mapping[str, CohortView]
    taken: frozenset[str]  # identifiers of rounds
    numbers: Iterator[int]  # of the next registrations

    def new_rounds(self, names: Sequence[str], after: Mapping[str, CohortView]) -> list[NewRound]:
        """Return a new round's cohorts, those of `after` as it has them, with the next numbers."""
        views = [after.get(name, self.views[name]) for name in names]
        return [NewRound(view=view, registration=next(self.numbers)) for view in views]


def of_new_rounds(
    connection: Connection, memory: Memory, wanted: Mapping[str, Sequence[str]], lines: Sequence[int]
) -> RoundBasis:
    """Return what rounds are registered and decided on, by one statement.

    Args:
        connection: on which to read; on SQLite of the transaction that decides.
        memory: what was read or written before. The statement reads the entries of other heads.
        wanted: the rounds' cohorts, by the rounds' identifiers.
        lines: locks of the cohorts: this waits while another session holds one, as long as a lock may take,
            and keeps them if the connection is in turn.

    Raises:
        NotFound: no such cohort.
        Damaged: as `of_cohort`.
    """
    names, ids = sorted({name for each in wanted.values() for name in each}), list(wanted)
    count = sum(map(len, wanted.values()))
    known = [view.head_digest.hex() if (view := memory.last_view(name)) else "" for name in names]
    values: dict[str, Sequence[str | int]] = {"names": names, "known": known, "ids": ids, "lines": lines}
    spelled = {name: prepared.listed(connection, each) for name, each in values.items()}
    asked = {**spelled, "numbers": count, "space": LOCK_SPACE}
    before = ("BEGIN", waiting_for(lines)) if engine.is_in_turn(connection) else ()
    listed = prepared.every(connection, _of_new_rounds(connection.dialect.name), asked, before=before)
    found = {row.name: row for row in listed}
    for name in names:
        if name not in found:
            raise NoCohort(name)
    seen = {name: view for name, row in found.items() if (view := as_seen(memory, row))}
    new = [row for row in listed if row.name not in seen and row.is_new]
    changed = [name for name in names if name not in seen and not found[name].is_new]  # beside its head
    read = _views(connection, memory.kinds, new)
    read |= of_cohorts(connection, memory.kinds, changed) if changed else {}
    for view in read.values():
        memory.keep(view)
    taken, numbers = listed[0].taken, listed[0].numbers
    if connection.dialect.name == "sqlite":
        taken, numbers = json.loads(taken), range(numbers, numbers + count)
    return RoundBasis(views=seen | read, taken=frozenset(taken or ()), numbers=iter(numbers))


def as_seen(memory: Memory, row: Any) -> CohortView | None:
    """Return the view in memory if it is what a cohort's rows, with a clock, say now."""
    last = memory.last_view(row.name)
    if last is None or row.digest != last.head_digest or not _is_as_seen(row, last):
        return None
    return dataclasses.replace(last, at=row.at)


def _is_as_seen(row: Any, last: CohortView) -> bool:
    """Whether the rows beside a head's entry say what they said when that entry was read, or written."""
    same = all(getattr(row, name) == getattr(last.cohort, name) for name in _OF_COHORT)
    declared = all(value == getattr(last.cohort, name) for name, value in rows.declared_in(row).items())
    return same and declared and row.sequence == last.head_sequence


def _views(connection: Connection, kinds: Kinds, found: Sequence[Any]) -> dict[str, CohortView]:
    kinds.learn(connection, {digest for row in found for digest, _, _ in _held(row)})  # of all, at once
    return {row.name: _view(connection, kinds, row, None) for row in found}


def _view(connection: Connection, kinds: Kinds, row: Any, stored: StoredRound | None) -> CohortView:
    if row.entry_body is None:
        raise Damaged(f"cohort {row.name!r}: the head names entry {row.sequence}, which does not exist")
    head = LedgerEntry(**{column.name: getattr(row, f"entry_{column.name}") for column in ENTRY_COLUMNS})
    listed = _held(row)
    counts = {digest: count for digest, count, _ in listed}
    body = _checked_head(row, head, counts)
    known = kinds.learn(connection, counts)
    return CohortView(
        cohort=rows.cohort_from(row),
        head_sequence=row.sequence,
        head_digest=row.digest,
        spent=body.spent,
        recorded_at=body.recorded_at,
        details=body.details,
        held={known[digest]: count for digest, count in counts.items() if count > 0},
        local={known[digest]: count for digest, _, count in listed if count > 0},
        at=row.at,
        round=stored,
        is_used=bool(row.is_used),
    )


def _held(row: Any) -> list[tuple[bytes, int, int]]:
    """Return the digest of each kind that a row says a cohort holds, with its two counts."""
    return [(bytes.fromhex(digest), held, local) for digest, held, local in json.loads(row.held or "[]")]


def _checked_head(row: Any, head: LedgerEntry, counts: Mapping[bytes, int]) -> EntryBody:
    """Return the head's body if the rows that decisions use agree with it; raises Damaged.

    Not a verification, which replays the chain; it stops decisions on rows that were edited since.
    """
    body = head.content()
    digest = entries.entry_digest(
        cohort=head.cohort, sequence=head.sequence, previous_digest=head.previous_digest, body=head.body
    )
    if not digest == head.digest == row.digest:
        raise Damaged(f"cohort {row.name!r}: entry {head.sequence} does not have the head's digest")
    if (body.epsilon_budget, body.delta_budget) != (row.epsilon_budget, row.delta_budget):
        raise Damaged(f"cohort {row.name!r}: its row has another budget than its last entry")
    if sum(counts.values()) != body.spent.rounds:
        raise Damaged(f"cohort {row.name!r}: it does not hold as many rounds as its last entry counts")
    return body


@functools.cache
def _of_cohorts(dialect_name: str) -> Select[Any]:
    names, known = bindparam("names", type_=ARRAY(Text())), bindparam("known", type_=ARRAY(Text()))
    if dialect_name == "sqlite":
        name, digest = (func.json_each(each).table_valued("key", "value") for each in (names, known))
        pairs = select(name.c.value.label("name"), digest.c.value.label("known"))
        asked: FromClause = pairs.join_from(name, digest, name.c.key == digest.c.key).subquery("asked")
    else:
        asked = func.unnest(names, known).table_valued("name", "known").render_derived(name="asked")
    return _selected(dialect_name, asked).where(heads.c.cohort.is_not(None))


@functools.cache
def _of_round(dialect_name: str) -> Select[Any]:
    named = (column.label(f"round_{column.name}") for column in rounds.c)
    first = select(rounds.c.cohort.label("name"), literal("").label("known"), *named)
    asked = first.where(rounds.c.round_id == bindparam("round_id"), rows.FIRST).subquery("asked")
    return _selected(dialect_name, asked).add_columns(*list(asked.c)[2:])


@functools.cache
def _of_new_rounds(dialect_name: str) -> Select[Any]:
    is_sqlite = dialect_name == "sqlite"
    gathered = func.json_group_array if is_sqlite else func.array_agg
    taken = select(gathered(rounds.c.round_id)).where(
        engine.is_one_of(rounds.c.round_id, "ids", dialect_name), rows.FIRST
    )
    number = engine.next_registration(dialect_name)
    numbers: Select[Any] = select(number)  # the first of them
    if not is_sqlite:
        each = func.generate_series(1, bindparam("numbers", type_=Integer())).table_valued("each")
        numbers = select(func.array_agg(number)).select_from(each)
    return _of_cohorts(dialect_name).add_columns(
        taken.scalar_subquery().label("taken"),
        numbers.scalar_subquery().label("numbers"),
        *([] if is_sqlite else [engine.waits().label("waited")]),
    )


def _hex(digest: ColumnElement[bytes], dialect_name: str) -> ColumnElement[str]:
    if dialect_name == "sqlite":
        return func.lower(func.hex(digest))
    return func.encode(digest, literal_column("'hex'"))


def _selected(dialect_name: str, asked: FromClause) -> Select[Any]:
    """Return the statement for cohorts, their heads, the clock and, where a head is new, its entry and what
    is held.

    Args:
        dialect_name: of the database.
        asked: `name` of each cohort, and `known`, the hexadecimal digest of a head.
    """
    is_sqlite = dialect_name == "sqlite"
    is_new = _hex(heads.c.digest, dialect_name) != asked.c.known
    # A subquery that `OFFSET 0` keeps whole. By statistics from when chains were short, PostgreSQL would else
    # look for the cohorts' names in the entries, and read whole chains.
    its = and_(entries_table.c.cohort == heads.c.cohort, entries_table.c.sequence == heads.c.sequence, is_new)
    last = select(*ENTRY_COLUMNS).where(its).correlate_except(entries_table).offset(literal_column("0"))
    entry: FromClause = entries_table if is_sqlite else last.lateral()
    source = asked.outerjoin(cohorts, cohorts.c.name == asked.c.name)
    source = source.outerjoin(heads, heads.c.cohort == cohorts.c.name)
    each = (_hex(holdings.c.accounted_digest, dialect_name), holdings.c.count, holdings.c.local_count)
    gathered, array = (
        (func.json_group_array, func.json_array) if is_sqlite else (func.json_agg, func.json_build_array)
    )
    listed = gathered(array(*each))
    held = select(cast(listed, Text)).where(holdings.c.cohort == cohorts.c.name).correlate(cohorts)
    return select(
        cohorts,
        *rows.HEAD_COLUMNS,
        *(entry.c[column.name].label(f"entry_{column.name}") for column in ENTRY_COLUMNS),
        case((is_new, held.scalar_subquery())).label("held"),
        engine.clock(dialect_name).label("at"),
        is_new.label("is_new"),
    ).select_from(source.outerjoin(entry, its if is_sqlite else true()))
