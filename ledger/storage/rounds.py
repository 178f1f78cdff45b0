"""The registered rounds of the ledger's database: who waits, who failed, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, func, select, text, union_all, update

from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.storage import engine, rows
from shuffle_ledger.ledger.storage.database import ERROR_LENGTH_MAX, PAGE_ROWS, Database
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX, MissingRounds, StoredRound, Waiting
from shuffle_ledger.ledger.storage.tables import ENTRY_COLUMNS, RESTATED, entries, registrations, rounds
from shuffle_ledger.ledger.values.differences import other_round
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import Cohort, RoundRequest, request_digest

PENDING_LIMIT_MAX = 10_000
MISSING_MAX = 100  # rounds that are named
NOT_QUEUED = datetime(1970, 1, 1, tzinfo=UTC)  # as `queued_at`: the broker did not take the round


class RoundStore(Database):
    """Methods raise TryAgain when the database is busy and Unavailable when it is gone."""

    def insert_round(
        self,
        request: RoundRequest,
        *,
        actor: str,
        check: Callable[[Sequence[Cohort]], None] = lambda _: None,
    ) -> StoredRound:
        """Store a round, or return the stored one if the request repeats it.

        `check` gets the round's cohorts, which are not opened again until the round is stored; it raises if
        the round is none for them.

        Raises:
            OtherContent: the identifier is bound to other content.
        """
        content, others = request.to_bytes(), len(request.cohorts) > 1
        values = {
            "round_id": request.round_id,
            "cohort": request.cohort,
            "content": content,
            "content_digest": request_digest(content),
            "registered_by": actor,
            "registered_at": engine.clock(self._engine.dialect.name),
        }
        with engine.writing(self._engine, fact=engine.REGISTERED) as connection:
            self.check_anchor()  # now: the connection may have been opened for this
            check(rows.held_cohorts(connection, request.cohorts))
            if not self.clocks.is_of_this_machine:
                self.check_clock(engine.database_time(connection), connection=connection)
            stored = rows.insert_round(connection, values)
            if stored is not None and others:
                rows.insert_shares(connection, values, request.cohorts)
        if stored is None:
            stored = self.round(request.round_id)
        if not request.repeats(stored.content):
            raise other_round(RoundRequest.from_bytes(stored.content), request)
        return stored

    def round(self, round_id: str) -> StoredRound:
        """Return a registered round, as its first cohort's row has it; raises NotFound."""
        with engine.reading_once(self._engine) as connection:
            return rows.round_row(connection, round_id)

    def taken(self, round_ids: Sequence[str]) -> set[str]:
        """Return which of some identifiers are bound to rounds."""
        found: set[str] = set()
        for start in range(0, len(round_ids), PAGE_ROWS):
            some = rounds.c.round_id.in_(round_ids[start : start + PAGE_ROWS])
            with engine.reading_once(self._engine) as connection:
                found.update(connection.execute(select(rounds.c.round_id).where(some, rows.FIRST)).scalars())
        return found

    def round_in(self, cohort: str, round_id: str) -> StoredRound:
        """Return a registered round as the row of one of its cohorts has it; raises NotFound."""
        place = and_(rounds.c.cohort == cohort, rounds.c.round_id == round_id)
        with engine.reading_once(self._engine) as connection:
            row = connection.execute(select(rounds).where(place)).one_or_none()
        if row is None:
            raise NotFound(f"cohort {cohort!r} has no round {round_id!r}")
        return rows.round_from(row)

    def entries_about(self, round_ids: Collection[str], cohorts: Collection[str]) -> list[LedgerEntry]:
        """Return all entries about some rounds in some chains, in their order, all of one moment."""
        restated = select(*ENTRY_COLUMNS).where(
            entries.c.round_id.in_(round_ids), entries.c.cohort.in_(cohorts), text(RESTATED)
        )
        decided, closed = (
            select(*ENTRY_COLUMNS)
            .join_from(
                rounds, entries, and_(entries.c.cohort == rounds.c.cohort, entries.c.sequence == place)
            )
            .where(rounds.c.round_id.in_(round_ids), rounds.c.cohort.in_(cohorts))
            for place in (rounds.c.outcome_sequence, rounds.c.closing_sequence)
        )
        with engine.reading_once(self._engine) as connection:
            # An incident of a round that nothing decided is its outcome, too.
            found = {rows.entry_from(row) for row in connection.execute(union_all(decided, closed, restated))}
        return sorted(found, key=lambda entry: (entry.cohort, entry.sequence))

    def restatements_of(self, cohort: str, round_id: str) -> list[LedgerEntry]:
        """Return the entries of a chain that tell what a round truly was, in order: its corrections, or its
        incident."""
        query = select(*ENTRY_COLUMNS).where(
            entries.c.round_id == round_id, entries.c.cohort == cohort, rows.RESTATED
        )
        with engine.reading_once(self._engine) as connection:
            return [rows.entry_from(row) for row in connection.execute(query.order_by(entries.c.sequence))]

    def freeze_of(self, cohort: str) -> LedgerEntry | None:
        """Return the entry that froze a cohort, if there is one."""
        query = select(*ENTRY_COLUMNS).where(
            entries.c.cohort == cohort, entries.c.kind == str(EntryKind.FROZEN)
        )
        with engine.reading_once(self._engine) as connection:
            row = connection.execute(query.order_by(entries.c.sequence).limit(1)).one_or_none()
        return None if row is None else rows.entry_from(row)

    def pending(self, *, limit: int) -> list[str]:
        """Return identifiers of undecided rounds that are not stuck, `limit` at most, in order of
        registration."""
        query = select(rounds.c.round_id).where(rows.FIRST_PENDING, rounds.c.attempts < ATTEMPTS_MAX)
        query = query.order_by(rows.BY_NUMBER).limit(min(limit, PENDING_LIMIT_MAX))
        with engine.reading_once(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def stuck(self, *, limit: int) -> list[StoredRound]:
        """Return undecided rounds that failed too often, in order of registration."""
        query = select(rounds).where(rows.FIRST_PENDING, rounds.c.attempts >= ATTEMPTS_MAX)
        query = query.order_by(rows.BY_NUMBER).limit(min(limit, PENDING_LIMIT_MAX))
        with engine.reading_once(self._engine) as connection:
            return [rows.round_from(row) for row in connection.execute(query)]

    def take_overdue(self, *, older_than_seconds: float, limit: int) -> list[str]:
        """Marks pending rounds that were not queued for `older_than_seconds` as queued now; returns their
        identifiers."""
        with engine.writing(self._engine) as connection:
            now = engine.database_time(connection)
            before = now - timedelta(seconds=older_than_seconds)
            waiting_since = func.coalesce(rounds.c.queued_at, rounds.c.registered_at)
            query = select(rounds.c.registration, rounds.c.round_id)
            query = query.where(rows.FIRST_PENDING, rounds.c.attempts < ATTEMPTS_MAX)
            query = query.where(waiting_since <= before)
            query = query.order_by(rows.BY_NUMBER).limit(min(limit, PENDING_LIMIT_MAX))
            found = connection.execute(query.with_for_update(skip_locked=True)).all()
            for row in found:
                mark = update(rounds).where(rounds.c.registration == row.registration)
                connection.execute(mark.values(queued_at=now))
            return [row.round_id for row in found]

    def mark_unqueued(self, round_ids: Iterable[str]) -> None:
        """Record that pending rounds are in no queue, so that `take_overdue` returns them without delay."""
        with engine.writing(self._engine) as connection:
            for round_id in round_ids:
                mark = update(rounds).where(rounds.c.round_id == round_id, rows.FIRST, rows.PENDING)
                connection.execute(mark.values(queued_at=NOT_QUEUED))

    def record_failure(self, round_id: str, error: str) -> int:
        """Count a failed attempt to decide a pending round; return how many there were."""
        with engine.writing(self._engine) as connection:
            values = {"attempts": rounds.c.attempts + 1, "last_error": error[:ERROR_LENGTH_MAX]}
            return self._mark_pending(connection, round_id, values).attempts

    def forget_failures(self, round_id: str) -> None:
        """Let a stuck round be tried again; raises NotFound."""
        with engine.writing(self._engine) as connection:
            self._mark_pending(connection, round_id, {"attempts": 0})

    @staticmethod
    def _mark_pending(connection: Connection, round_id: str, values: Mapping[str, Any]) -> StoredRound:
        """Change the rows of a round that is undecided, and return the first one; raises NotFound."""
        for each in rows.round_rows(connection, rows.round_row(connection, round_id)):
            mark = update(rounds).where(rounds.c.registration == each.registration, rows.PENDING)
            connection.execute(mark.values(**values))
        return rows.round_row(connection, round_id)

    def count_pending(self, cohort: str) -> int:
        """Return how many rounds of a cohort are undecided, stuck ones included."""
        query = select(func.count()).select_from(rounds).where(rounds.c.cohort == cohort, rows.PENDING)
        with engine.reading_once(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def rounds_of(self, cohort: str) -> Iterator[StoredRound]:
        """Yield a cohort's rounds in order of registration, a page at a time."""
        last = 0
        while True:
            query = select(rounds).where(
                rounds.c.cohort == cohort, rounds.c.registration > last, rows.IN_ORDER
            )
            query = query.order_by(rounds.c.registration).limit(PAGE_ROWS)
            with engine.reading_once(self._engine) as connection:
                page = [rows.round_from(row) for row in connection.execute(query)]
            yield from page
            if len(page) < PAGE_ROWS:
                return
            last = page[-1].registration

    def missing_rounds(self, cohort: str) -> MissingRounds:
        """Return which of a cohort's rounds that were registered without an outcome have lost their row, and
        which of those that are undecided have lost their place in the list."""
        same = and_(
            rounds.c.cohort == registrations.c.cohort,
            rounds.c.round_id == registrations.c.round_id,
            rounds.c.content_digest == registrations.c.content_digest,
        )
        # An offset keeps the planner from joining: by old statistics it would compare each with all others.
        in_rounds = select(rounds.c.registration).where(same).correlate(registrations).offset(0).exists()
        in_list = select(registrations.c.round_id).where(same).correlate(rounds).offset(0).exists()
        lost = select(registrations.c.round_id).where(registrations.c.cohort == cohort, ~in_rounds)
        unlisted = select(rounds.c.round_id).where(rounds.c.cohort == cohort, rows.PENDING, ~in_list)
        with engine.reading(self._engine) as connection:
            found = [
                tuple(connection.execute(query.limit(MISSING_MAX)).scalars()) for query in (lost, unlisted)
            ]
        return MissingRounds(rows=found[0], unlisted=found[1])

    def waiting(self) -> Waiting:
        """Return how many rounds wait for a decision, and how long the first of them has waited."""
        query = select(
            func.count().filter(rounds.c.attempts < ATTEMPTS_MAX),
            func.count().filter(rounds.c.attempts >= ATTEMPTS_MAX),
            func.min(rounds.c.registered_at).filter(rounds.c.attempts < ATTEMPTS_MAX),
        )
        with engine.reading(self._engine) as connection:
            pending, stuck, since = connection.execute(query.where(rows.FIRST_PENDING)).one()
            now = engine.database_time(connection)
        waited = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        return Waiting(at=now, pending=pending, stuck=stuck, longest_seconds=waited)
