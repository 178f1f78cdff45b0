"""The ledger's database: one method, one transaction. Only here and in the modules beneath is SQL spoken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, and_, func, insert, select, update

from ledger import appends, engines, rows, schema, views
from ledger.budgets import Cohort, RoundRequest, request_digest
from ledger.entries import FIRST_SEQUENCE, GENESIS_DIGEST, EntryBody, EntryKind, LedgerEntry, Spending
from ledger.errors import Conflict, Damaged, NotFound
from ledger.restores import Anchor, Guard
from ledger.rows import (
    ATTEMPTS_MAX,
    CohortView,
    EntryDraft,
    MissingRounds,
    NewRound,
    Standing,
    StoredHolding,
    StoredLoss,
    StoredRound,
    StoredVerification,
    Waiting,
)
from ledger.tables import (
    cohorts,
    heads,
    privacy_losses,
    registrations,
    rounds,
    verifications,
)
from ledger.tables import entries as entries_table
from ledger.turns import Turns
from ledger.views import Kinds

ERROR_LENGTH_MAX = 2000
PAGE_ROWS = 500
PENDING_LIMIT_MAX = 10_000
REMEMBERED_MAX = 20_000
MISSING_MAX = 100  # rounds that are named

Key = TypeVar("Key")
Value = TypeVar("Value")


class Store:
    """The ledger's database. Methods raise TryAgain when it is busy and Unavailable when it is gone."""

    def __init__(self, engine: Engine, anchor: Anchor | None = None) -> None:
        """Use `connect` instead."""
        self._engine = engine
        self._guard = Guard(engine, anchor) if anchor else None
        self.turns = Turns(engine)
        # Only what never changes is remembered.
        self._kinds = Kinds()
        self._populations: dict[str, int] = {}
        self._first_bodies: dict[str, bytes] = {}
        self._loss_digests: dict[bytes, bytes] = {}

    @classmethod
    def connect(cls, database_url: str, *, anchor: Anchor | None = None) -> Self:
        """Return the store behind a database URL.

        With an anchor, a ledger that lacks what the anchor has seen is only read: whatever opens, registers
        or appends raises BehindCheckpoint.

        Raises:
            InvalidValue: the URL is of no supported database.
            SchemaError: the database is not initialised, or older or newer than this code.
        """
        engine = engines.connect(database_url)
        try:
            with engines.reading(engine) as connection:
                schema.check_revision(connection)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, anchor)

    @property
    def engine(self) -> Engine:
        """The database, for `ledger.access` and `ledger.listing`, which read and write further rows."""
        return self._engine

    def check(self) -> None:
        """Raise SchemaError or Unavailable unless the database answers and has this code's schema."""
        with engines.reading(self._engine) as connection:
            schema.check_revision(connection)

    def check_anchor(self) -> None:
        """Raise BehindCheckpoint if there is an anchor, and the ledger lacks what it has seen."""
        if self._guard is not None:
            self._guard.check()

    def close(self) -> None:
        """Close all connections."""
        self.turns.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()

    # Cohorts

    def open_cohort(
        self, cohort: Cohort, *, actor: str, numerical_policy: str, rules: Mapping[str, Any] | None = None
    ) -> Cohort:
        """Store a cohort with its first entry, or return the stored one if it says the same.

        `rules` are what its policy writes into that entry.

        Raises:
            Conflict: the name is taken by a cohort with other content, or was that of a lost one.
        """
        self.check_anchor()
        with engines.writing(self._engine) as connection:
            if rows.is_lost(connection, cohort.name):
                raise Conflict(
                    f"cohort {cohort.name!r} was lost when the database was put back to an earlier state;"
                    " what it had spent is unknown, so its name is not opened again"
                )
            opened_at = engines.database_time(connection)
            values = {
                "name": cohort.name,
                "population": cohort.population,
                "epsilon_budget": cohort.epsilon_budget,
                "delta_budget": cohort.delta_budget,
                "policy": cohort.policy,
            }
            if not engines.insert_if_absent(connection, cohorts, {**values, "opened_at": opened_at}):
                stored = rows.cohort_from(rows.cohort_row(connection, cohort.name))
                if any(getattr(stored, name) != value for name, value in values.items()):
                    raise Conflict(f"cohort {cohort.name!r} exists with other parameters")
                return stored
            body = EntryBody(
                cohort=cohort.name,
                sequence=FIRST_SEQUENCE,
                kind=EntryKind.OPENED,
                round_id=None,
                actor=actor,
                recorded_at=opened_at,
                numerical_policy=numerical_policy,
                epsilon_budget=cohort.epsilon_budget,
                delta_budget=cohort.delta_budget,
                spent=Spending.nothing(cohort.delta_budget),
                details={"population": cohort.population, "policy": cohort.policy, **(rules or {})},
            )
            entry = LedgerEntry.following(GENESIS_DIGEST, body)
            rows.insert_entry(connection, entry)
            head = {
                "cohort": cohort.name,
                "sequence": entry.sequence,
                "digest": entry.digest,
                "status": "open",
            }
            connection.execute(insert(heads).values(**head))
            return rows.cohort_from(rows.cohort_row(connection, cohort.name))

    def cohort(self, name: str) -> Cohort:
        """Return a cohort; raises NotFound."""
        with engines.reading_once(self._engine) as connection:
            return rows.cohort_from(rows.cohort_row(connection, name))

    def cohorts(self) -> list[Cohort]:
        """Return all cohorts in the order of their names."""
        with engines.reading_once(self._engine) as connection:
            found = [rows.cohort_from(row) for row in connection.execute(rows.COHORTS_WITH_HEADS)]
        return sorted(found, key=lambda cohort: cohort.name)  # here, for databases sort text differently

    def cohort_names(self) -> list[str]:
        """Return every cohort name that any table mentions, in order."""
        with engines.reading(self._engine) as connection:
            return rows.mentioned_cohorts(connection)

    def view(self, name: str) -> CohortView:
        """Return a cohort with its head, its spending and its holdings, all of one moment.

        Raises:
            NotFound: no such cohort.
            Damaged: the head's entry is missing or not canonical, or the cohort's rows contradict it.
        """
        with engines.reading_once(self._engine) as connection:
            return views.of_cohort(connection, self._kinds, name)

    def view_of_round(self, round_id: str) -> CohortView | LedgerEntry:
        """Return the view that a pending round is to be decided on; of a decided one, the entry that did.

        Raises:
            NotFound: no such round.
            Damaged: as `view`.
        """
        with engines.reading_once(self._engine) as connection:
            found = views.of_round(connection, self._kinds, round_id)
        return found if isinstance(found, CohortView) else self.outcome_entry(found)

    def outcome_entry(self, stored: StoredRound) -> LedgerEntry:
        """Return the entry that decided a decided round; raises Damaged when it is about another one."""
        entry = self.entry(stored.cohort, stored.outcome_sequence or 0)
        if entry.round_id != stored.round_id:
            raise Damaged(f"round {stored.round_id!r}: its row refers to the entry of another round")
        return entry

    def population(self, name: str) -> int:
        """Return how many users a cohort has, which never changes; raises NotFound."""
        if name not in self._populations:
            self._remember(self._populations, name, self.cohort(name).population)
        return self._populations[name]

    def holdings(self, name: str) -> list[StoredHolding]:
        """Return what a cohort holds, as stored, kinds that are charged no more included."""
        with engines.reading_once(self._engine) as connection:
            return rows.holding_rows(connection, name)

    # Rounds

    def insert_round(self, request: RoundRequest, *, actor: str) -> StoredRound:
        """Store a round, or return the stored one if its content is the same.

        Raises:
            Conflict: the identifier is bound to other content.
        """
        self.check_anchor()
        content = request.to_bytes()
        values = {
            "round_id": request.round_id,
            "cohort": request.cohort,
            "content": content,
            "content_digest": request_digest(content),
            "registered_by": actor,
            "registered_at": engines.clock(self._engine.dialect.name),
        }
        with engines.writing_once(self._engine) as connection:
            stored = rows.insert_round(connection, values)
        if stored is None:
            stored = self.round(request.round_id)
        if stored.content != content:
            raise Conflict(f"round {request.round_id!r} was registered with other content")
        return stored

    def append_with_round(
        self, cohort: str, round_id: str, decide: Callable[[NewRound], EntryDraft | None]
    ) -> EntryBody | None:
        """Append the outcome that `decide` drafts for a new round together with the round's row.

        None, and nothing is written, if the identifier is taken or `decide` drafts nothing. `decide` must be
        quick, for on SQLite others wait, and writes nothing itself.

        Raises:
            LostRace: another entry was appended first, or the identifier was taken since.
            NotFound: no such cohort.
            Damaged: as `view`.
        """
        with engines.deciding(self._engine) as connection, self.turns.take_on(connection, cohort):
            self.check_anchor()  # now: the connection may have been opened for this
            opening = cohort not in self._first_bodies
            found, first = views.of_new_round(connection, self._kinds, cohort, round_id, opening=opening)
            if first is not None:
                self._remember(self._first_bodies, cohort, first)
            draft = decide(found) if found is not None else None
            if found is None or draft is None:
                return None
            return appends.append_on(connection, found.view, draft)

    def round(self, round_id: str) -> StoredRound:
        """Return a registered round; raises NotFound."""
        with engines.reading_once(self._engine) as connection:
            return rows.round_row(connection, round_id)

    def pending(self, *, limit: int, cohort: str | None = None, up_to: int | None = None) -> list[str]:
        """Return identifiers of undecided rounds that are not stuck, in order of registration."""
        query = select(rounds.c.round_id).where(rows.PENDING, rounds.c.attempts < ATTEMPTS_MAX)
        if cohort is not None:
            query = query.where(rounds.c.cohort == cohort)
        if up_to is not None:
            query = query.where(rounds.c.registration <= up_to)
        query = query.order_by(rounds.c.registration).limit(min(limit, PENDING_LIMIT_MAX))
        with engines.reading_once(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def stuck(self, *, limit: int) -> list[StoredRound]:
        """Return undecided rounds that failed too often, in order of registration."""
        query = select(rounds).where(rows.PENDING, rounds.c.attempts >= ATTEMPTS_MAX)
        query = query.order_by(rounds.c.registration).limit(min(limit, PENDING_LIMIT_MAX))
        with engines.reading_once(self._engine) as connection:
            return [rows.round_from(row) for row in connection.execute(query)]

    def take_overdue(self, *, older_than_seconds: float, limit: int) -> list[str]:
        """Mark pending rounds that nobody queued for a while as queued now; return their identifiers."""
        with engines.writing(self._engine) as connection:
            now = engines.database_time(connection)
            before = now - timedelta(seconds=older_than_seconds)
            waiting_since = func.coalesce(rounds.c.queued_at, rounds.c.registered_at)
            query = select(rounds.c.registration, rounds.c.round_id)
            query = query.where(rows.PENDING, rounds.c.attempts < ATTEMPTS_MAX, waiting_since <= before)
            query = query.order_by(rounds.c.registration).limit(min(limit, PENDING_LIMIT_MAX))
            found = connection.execute(query.with_for_update(skip_locked=True)).all()
            for row in found:
                mark = update(rounds).where(rounds.c.registration == row.registration)
                connection.execute(mark.values(queued_at=now))
            return [row.round_id for row in found]

    def record_failure(self, round_id: str, error: str) -> int:
        """Count a failed attempt to decide a pending round; return how many there were."""
        with engines.writing(self._engine) as connection:
            mark = update(rounds).where(rounds.c.round_id == round_id, rows.PENDING)
            values = {"attempts": rounds.c.attempts + 1, "last_error": error[:ERROR_LENGTH_MAX]}
            connection.execute(mark.values(**values))
            return rows.round_row(connection, round_id).attempts

    def forget_failures(self, round_id: str) -> None:
        """Let a stuck round be tried again; raises NotFound."""
        with engines.writing(self._engine) as connection:
            rows.round_row(connection, round_id)
            connection.execute(
                update(rounds).where(rounds.c.round_id == round_id, rows.PENDING).values(attempts=0)
            )

    def count_pending(self, cohort: str) -> int:
        """Return how many rounds of a cohort are undecided, stuck ones included."""
        query = select(func.count()).select_from(rounds).where(rounds.c.cohort == cohort, rows.PENDING)
        with engines.reading_once(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def rounds_of(self, cohort: str) -> Iterator[StoredRound]:
        """Yield a cohort's rounds in order of registration, a page at a time."""
        last = 0
        while True:
            query = select(rounds).where(rounds.c.cohort == cohort, rounds.c.registration > last)
            query = query.order_by(rounds.c.registration).limit(PAGE_ROWS)
            with engines.reading_once(self._engine) as connection:
                page = [rows.round_from(row) for row in connection.execute(query)]
            yield from page
            if len(page) < PAGE_ROWS:
                return
            last = page[-1].registration

    def missing_rounds(self, cohort: str) -> MissingRounds:
        """Return which of a cohort's registered rounds have lost their row, or their place in the list."""
        same = and_(
            rounds.c.cohort == registrations.c.cohort,
            rounds.c.round_id == registrations.c.round_id,
            rounds.c.content_digest == registrations.c.content_digest,
        )
        lost = select(registrations.c.round_id).outerjoin_from(registrations, rounds, same)
        lost = lost.where(registrations.c.cohort == cohort, rounds.c.registration.is_(None))
        unlisted = select(rounds.c.round_id).outerjoin_from(rounds, registrations, same)
        unlisted = unlisted.where(rounds.c.cohort == cohort, registrations.c.round_id.is_(None))
        with engines.reading(self._engine) as connection:
            found = [
                tuple(connection.execute(query.limit(MISSING_MAX)).scalars()) for query in (lost, unlisted)
            ]
        return MissingRounds(rows=found[0], unlisted=found[1])

    # The chain

    def first_body(self, cohort: str) -> bytes:
        """Return the canonical bytes that a chain begins with, read once, for they never change."""
        if cohort not in self._first_bodies:
            self._remember(self._first_bodies, cohort, self.entry(cohort, FIRST_SEQUENCE).body)
        return self._first_bodies[cohort]

    def standing(self) -> Standing:
        """Return which ledger this is and where all its chains end, all of one moment; raises Damaged."""
        with engines.reading(self._engine) as connection:
            return Standing(
                ledger_id=rows.ledger_id(connection),
                at=engines.database_time(connection),
                heads=rows.head_rows(connection),
            )

    def append(self, view: CohortView, draft: EntryDraft) -> LedgerEntry:
        """Append an entry if the cohort is still as `view` saw it, with everything that goes with it.

        Raises:
            LostRace: another entry was appended first; nothing was changed.
        """
        self.check_anchor()
        return appends.append(self._engine, view, draft)

    def entry(self, cohort: str, sequence: int) -> LedgerEntry:
        """Return one entry; raises NotFound."""
        with engines.reading_once(self._engine) as connection:
            row = rows.entry_row(connection, cohort, sequence)
        if row is None:
            raise NotFound(f"cohort {cohort!r} has no entry {sequence}")
        return rows.entry_from(row)

    def entries_of(self, cohort: str) -> Iterator[LedgerEntry]:
        """Yield a cohort's entries in order, a page at a time."""
        last = 0
        while True:
            query = select(entries_table).where(
                entries_table.c.cohort == cohort, entries_table.c.sequence > last
            )
            query = query.order_by(entries_table.c.sequence).limit(PAGE_ROWS)
            with engines.reading_once(self._engine) as connection:
                page = [rows.entry_from(row) for row in connection.execute(query)]
            yield from page
            if len(page) < PAGE_ROWS:
                return
            last = page[-1].sequence

    def count_entries(self, cohort: str) -> dict[str, int]:
        """Return how many entries of each kind a cohort has, as its head counts them."""
        query = select(heads).where(heads.c.cohort == cohort)
        with engines.reading_once(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        return {} if row is None else rows.counts_in(row)

    # Privacy losses

    def loss(self, key: bytes) -> StoredLoss | None:
        """Return a stored privacy loss, unchecked; None if there is none."""
        with engines.reading_once(self._engine) as connection:
            row = connection.execute(select(privacy_losses).where(privacy_losses.c.key == key)).one_or_none()
        return None if row is None else StoredLoss(**row._mapping)

    def loss_digest(self, key: bytes) -> bytes | None:
        """Return the digest a privacy loss is stored with; None if there is none."""
        if key in self._loss_digests:
            return self._loss_digests[key]
        query = select(privacy_losses.c.digest).where(privacy_losses.c.key == key)
        with engines.reading_once(self._engine) as connection:
            found = connection.execute(query).scalar_one_or_none()
        if found is not None:
            self._remember(self._loss_digests, key, found)
        return found

    def insert_loss(self, loss: StoredLoss) -> None:
        """Store a privacy loss unless one is stored under its key."""
        with engines.writing(self._engine) as connection:
            engines.insert_if_absent(connection, privacy_losses, vars(loss))

    @staticmethod
    def _remember(memory: dict[Key, Value], key: Key, value: Value) -> None:
        if len(memory) >= REMEMBERED_MAX:
            memory.clear()
        memory[key] = value

    # Upkeep

    def waiting(self) -> Waiting:
        """Return how many rounds wait for a decision, and how long the first of them has waited."""
        query = select(
            func.count().filter(rounds.c.attempts < ATTEMPTS_MAX),
            func.count().filter(rounds.c.attempts >= ATTEMPTS_MAX),
            func.min(rounds.c.registered_at).filter(rounds.c.attempts < ATTEMPTS_MAX),
        )
        with engines.reading(self._engine) as connection:
            pending, stuck, since = connection.execute(query.where(rows.PENDING)).one()
            now = engines.database_time(connection)
        waited = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        return Waiting(at=now, pending=pending, stuck=stuck, longest_seconds=waited)

    def record_verification(
        self, cohort: str, *, head: tuple[int, str], numbers_checked: int, problem: str | None
    ) -> None:
        """Remember what verifying a cohort found; the database's clock says when."""
        with engines.writing(self._engine) as connection:
            values = {
                "verified_at": engines.database_time(connection),
                "head_sequence": head[0],
                "head_digest": head[1],
                "numbers_checked": numbers_checked,
                "problem": None if problem is None else problem[:ERROR_LENGTH_MAX],
            }
            if not engines.insert_if_absent(connection, verifications, {"cohort": cohort, **values}):
                place = verifications.c.cohort == cohort
                connection.execute(update(verifications).where(place).values(**values))

    def verifications(self) -> dict[str, StoredVerification]:
        """Return what verification on a schedule found last, by cohort."""
        with engines.reading_once(self._engine) as connection:
            found = connection.execute(select(verifications)).all()
        return {row.cohort: StoredVerification(**row._mapping) for row in found}
