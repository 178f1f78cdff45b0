"""The ledger's database: one method, one transaction. Only here and in the modules beneath is SQL spoken."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, and_, select, text, update

from shuffle_ledger.ledger.answers.heads import Standing, StoredHead
from shuffle_ledger.ledger.errors import (
    Conflict,
    Damaged,
    LedgerError,
    NoCohort,
    NotFound,
    TryAgain,
    Unavailable,
)
from shuffle_ledger.ledger.storage import appends, cohort_views, rows
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.cohort_locks import claimed
from shuffle_ledger.ledger.storage.cohort_views import Memory
from shuffle_ledger.ledger.storage.database import ERROR_LENGTH_MAX, PAGE_ROWS
from shuffle_ledger.ledger.storage.rounds import RoundStore
from shuffle_ledger.ledger.storage.rows import (
    Beside,
    CohortView,
    EntryDraft,
    NewRound,
    StoredHolding,
    StoredLoss,
    StoredRound,
    StoredVerification,
)
from shuffle_ledger.ledger.storage.tables import (
    ENTRY_COLUMNS,
    OPENED,
    cohorts,
    heads,
    lost_cohorts,
    privacy_losses,
    verifications,
)
from shuffle_ledger.ledger.storage.tables import entries as entries_table
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.differences import check_same
from shuffle_ledger.ledger.values.entries import (
    FIRST_SEQUENCE,
    GENESIS_DIGEST,
    EntryBody,
    EntryKind,
    LedgerEntry,
    Spending,
)
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import Cohort, declared_details
from shuffle_ledger.ledger.values.windows import Period

REMEMBERED_MAX = 20_000
LOSSES_AT_ONCE = 50  # stored privacy losses in memory at once, each up to some megabytes

_log = logging.getLogger(__name__)

Key = TypeVar("Key")
Value = TypeVar("Value")


class Store(RoundStore):
    """The ledger's database. Methods raise TryAgain when it is busy and Unavailable when it is gone."""

    def __init__(self, engine: Engine, anchor: Anchor | None = None) -> None:
        """Use `connect` instead."""
        super().__init__(engine, anchor)
        # Only what never changes is remembered, or what the head's digest shows to be unchanged.
        self._memory = Memory()
        self._populations: dict[str, int] = {}
        self._windowed: dict[str, bool] = {}
        self._decided: dict[str, int] = {}
        self._openings: dict[str, tuple[datetime | None, bytes]] = {}  # with the moment, which names it
        self._loss_digests: dict[bytes, bytes] = {}
        self._claims = threading.BoundedSemaphore(engines.POOL_SIZE // 2)
        # Writers at once: one that has the turn of a cohort may need a second connection while others wait.
        self._writing = threading.BoundedSemaphore(engines.POOL_SIZE)

    # Cohorts

    def open_cohort(
        self, cohort: Cohort, *, actor: str, numerical_policy: str, rules: Mapping[str, Any] | None = None
    ) -> Cohort:
        """Store a cohort with its first entry, or return the stored one if it says the same.

        `rules` are what its policy writes into that entry.

        Raises:
            Conflict: the name is taken by a cohort with other content, or was that of a lost one.
        """
        return self.open_cohorts([(cohort, rules or {})], actor=actor, numerical_policy=numerical_policy)[0]

    def open_cohorts(
        self,
        given: Sequence[tuple[Cohort, Mapping[str, Any]]],
        *,
        actor: str,
        numerical_policy: str,
        parents: Sequence[Cohort] = (),
    ) -> list[Cohort]:
        """Store cohorts with their rules in one transaction, each as `open_cohort`; raises as that.

        `parents` are the cohorts of parts, from which the parts' rules follow.

        Raises:
            TryAgain: a parent was opened again meanwhile; nothing was stored.
        """
        with engines.writing(self._engine) as connection:
            self.check_anchor()  # now: the connection may have been opened for this
            opened_at = engines.database_time(connection)
            self.check_clock(opened_at, connection=connection)
            self.check_same(rows.held_cohorts(connection, [each.name for each in parents]), parents)
            for parent in parents:
                last = rows.last_moment(connection, parent.name)
                self.check_clock(opened_at, last, what=f"cohort {parent.name!r}", connection=connection)
                opened_at = max(opened_at, last or opened_at)
            bodies = [
                (cohort, opening_body(cohort, rules, actor, numerical_policy, opened_at=opened_at))
                for cohort, rules in given
            ]
            return [_opened(connection, cohort, body) for cohort, body in bodies]

    def cohort(self, name: str) -> Cohort:
        """Return a cohort; raises NotFound."""
        with engines.reading_once(self._engine) as connection:
            return rows.cohort_from(rows.cohort_row(connection, name))

    def cohorts(
        self,
        *,
        only: Collection[str] | None = None,
        parts: bool = True,
        after: str = "",
        limit: int | None = None,
    ) -> list[Cohort]:
        """Return all cohorts, or those named, in the order of their names.

        Args:
            only: the names of those that are returned.
            parts: False leaves out the periods of windows and the quotas of teams.
            after: only names behind this one.
            limit: how many at most; None: all.
        """
        name = engines.in_order(cohorts.c.name, self._engine.dialect.name)
        query = rows.COHORTS_WITH_HEADS.order_by(name).limit(limit)
        if after:
            query = query.where(engines.behind(name, after))
        if only is not None:
            query = query.where(cohorts.c.name.in_(only))
        if not parts:
            query = query.where(rows.IS_NO_PART)
        with engines.reading_once(self._engine) as connection:
            return [rows.cohort_from(row) for row in connection.execute(query)]

    def cohorts_among(self, names: Collection[str], *, parts: bool = False) -> list[Cohort]:
        """Return those of many cohorts that there are, with parts of others or without, in order."""
        listed, found = sorted(names), []
        for start in range(0, len(listed), PAGE_ROWS):
            found += self.cohorts(only=listed[start : start + PAGE_ROWS], parts=parts)
        return found

    def labelled(self, labels: Mapping[str, str]) -> list[Cohort]:
        """Return the cohorts that have all of some labels, without parts of others, in the order of their
        names."""
        dialect = self._engine.dialect.name
        # As they are spelled in the bytes of a row, so that no other cohort is decoded.
        spelled = [canonical.encode({name: value})[1:-1] for name, value in labels.items()]
        wanted = [engines.contains(cohorts.c.labels, pair, dialect) for pair in spelled]
        query = rows.COHORTS_WITH_HEADS.where(rows.IS_NO_PART, *wanted)
        query = query.order_by(engines.in_order(cohorts.c.name, dialect))
        with engines.reading_once(self._engine) as connection:
            found = [rows.cohort_from(row) for row in connection.execute(query)]
        return [cohort for cohort in found if labels.items() <= cohort.labels.items()]

    def lost_cohorts(self) -> set[str]:
        """Return the names of cohorts that were lost when the database was put back to an earlier state."""
        with engines.reading_once(self._engine) as connection:
            return set(connection.execute(select(lost_cohorts.c.name)).scalars())

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
            return cohort_views.of_cohort(connection, self._memory.kinds, name)

    def views(self, names: Sequence[str]) -> list[CohortView]:
        """Return some cohorts in their order, each as `view` does; raises what that raises."""
        with engines.reading_once(self._engine) as connection:
            return cohort_views.of_all(connection, self._memory.kinds, names)

    def view_of_round(self, round_id: str) -> list[CohortView] | StoredRound:
        """Return the views that a pending round is to be decided on, of its cohorts in order; a decided round
        as it is.

        Raises:
            NotFound: no such round.
            Damaged: as `view`.
        """
        with engines.reading_once(self._engine) as connection:
            return cohort_views.of_round(connection, self._memory.kinds, round_id)

    def cohorts_named(self, names: Sequence[str]) -> list[Cohort]:
        """Return some cohorts in their order; raises NotFound."""
        if len(names) == 1:
            return [self.cohort(names[0])]
        query = rows.COHORTS_WITH_HEADS.where(cohorts.c.name.in_(names))
        with engines.reading_once(self._engine) as connection:
            found = {row.name: rows.cohort_from(row) for row in connection.execute(query)}
        for name in names:
            if name not in found:
                raise NoCohort(name)
        return [found[name] for name in names]

    def population(self, names: Sequence[str]) -> int:
        """Return how many users some cohorts have together, which never changes; raises NotFound.

        Users of a window's period, or of a quota, are those of its cohort, and are not counted again.
        """
        known = {name: self._populations[name] for name in names if name in self._populations}
        missing = [name for name in names if name not in known]
        for cohort in self.cohorts_named(missing) if missing else ():
            known[cohort.name] = cohort.population if cohort.parent is None else 0
            self._remember(self._populations, cohort.name, known[cohort.name])
        return sum(known[name] for name in names)

    def quotas_of(self, name: str) -> list[Quota]:
        """Return the quotas that teams have in a cohort, in the order of the teams."""
        column = engines.in_order(cohorts.c.name, self._engine.dialect.name)
        begins, ends = Quota.names_of(name)
        query = select(cohorts.c.quota).where(column > begins, column < ends, cohorts.c.quota.is_not(None))
        with engines.reading_once(self._engine) as connection:
            found = [
                Quota.from_mapping(canonical.decode(bytes(row.quota))) for row in connection.execute(query)
            ]
        return sorted((quota for quota in found if quota.cohort == name), key=lambda quota: quota.team)

    def periods_after(self, name: str, day: date) -> list[Period]:
        """Return the periods of a cohort's windows that have chains and begin after a day."""
        column = engines.in_order(cohorts.c.name, self._engine.dialect.name)
        begins, ends = f"{name}@{day.year}", f"{name}A"  # the names of periods begin with years; A follows @
        query = select(cohorts.c.period).where(column > begins, column < ends, cohorts.c.period.is_not(None))
        with engines.reading_once(self._engine) as connection:
            found = [
                Period.from_mapping(canonical.decode(bytes(row.period))) for row in connection.execute(query)
            ]
        return [period for period in found if period.cohort == name and period.first > day]

    def has_windows(self, names: Sequence[str]) -> bool:
        """Return whether some cohort has windows, or is a part of one; never changes; raises NotFound."""
        missing = [name for name in names if name not in self._windowed]
        for cohort in self.cohorts_named(missing) if missing else ():
            is_windowed = bool(cohort.windows) or cohort.parent is not None
            self._remember(self._windowed, cohort.name, is_windowed)
        return any(self._windowed[name] for name in names)

    def has_decided(self, name: str) -> bool:
        """Return whether a chain has more than openings and changes of its budget; once it has, it always
        has. Raises NotFound."""
        if name not in self._decided:
            view = self.view(name)
            if not view.is_used:
                return False
            self._remember(self._decided, name, view.head_sequence)
        return True

    def holdings(self, name: str) -> list[StoredHolding]:
        """Return what a cohort holds, as stored, kinds that are charged no more included."""
        with engines.reading_once(self._engine) as connection:
            return rows.holding_rows(connection, name)

    # The chain

    def opening(self, cohort: Cohort) -> bytes:
        """Return the canonical bytes of the opening that a cohort has its values from; raises Damaged."""
        known = self._openings.get(cohort.name)
        if known is not None and known[0] == cohort.opened_at:
            return known[1]
        for _, moment, body in self._read_openings([cohort.name]):
            if moment == cohort.opened_at:
                self._remember(self._openings, cohort.name, (moment, body))
                return body
        raise Damaged(f"cohort {cohort.name!r}: its chain has no opening of {cohort.opened_at}")

    def heads(self, *, after: str = "", limit: int | None = None) -> tuple[StoredHead, ...]:
        """Return where all chains end, in order of the cohorts' names, all of one moment.

        Args:
            after: only names behind this one.
            limit: how many at most; None: all.
        """
        with engines.reading_once(self._engine) as connection:
            return rows.head_rows(connection, after=after, limit=limit)

    def remember_openings(self, names: Sequence[str]) -> None:
        """Read what `opening` returns of some cohorts, by one statement."""
        missing = [name for name in names if name not in self._openings]
        for name, moment, body in self._read_openings(missing) if missing else ():
            self._remember(self._openings, name, (moment, body))

    def _read_openings(self, names: Sequence[str]) -> list[tuple[str, datetime | None, bytes]]:
        """Return all openings of some cohorts, those of each in order, with their moments."""
        query = select(entries_table.c.cohort, entries_table.c.body).where(
            entries_table.c.cohort.in_(names), text(OPENED)
        )
        with engines.reading_once(self._engine) as connection:
            found = connection.execute(query.order_by(entries_table.c.sequence)).all()
        return [(row.cohort, _moment_of(row.body), row.body) for row in found]

    def ledger_id(self) -> str:
        """Return which ledger this is; raises Damaged."""
        with engines.reading_once(self._engine) as connection:
            return rows.ledger_id(connection)

    def now(self) -> datetime:
        """Return the database's clock, UTC."""
        with engines.reading_once(self._engine) as connection:
            return engines.database_time(connection)

    def standing(self) -> Standing:
        """Return which ledger this is and where all its chains end, all of one moment; raises Damaged."""
        with engines.reading(self._engine) as connection:
            now = engines.database_time(connection)
            # A clock that was set back a little leaves entries that are ahead of it, and nothing is signed
            # before it was recorded. An entry that is further ahead is wrong, and stays a finding.
            allowed = now + timedelta(seconds=self.clocks.difference_max_seconds)
            ahead = rows.last_moments(connection, after=now, until=allowed)
            return Standing(
                ledger_id=rows.ledger_id(connection), at=max([now, *ahead]), heads=rows.head_rows(connection)
            )

    def append(self, view: CohortView, draft: EntryDraft) -> LedgerEntry:
        """Append an entry to one cohort, as `append_to_all`."""
        return self.append_to_all([view], [draft])[0]

    def append_to_all(self, views: Sequence[CohortView], drafts: Sequence[EntryDraft]) -> list[LedgerEntry]:
        """Append an entry to each of some cohorts if all are still as `views` saw them, with everything that
        goes with the entries: all of it in one transaction.

        Raises:
            LostRace: another entry was appended first; nothing was changed.
        """
        self.check_anchor()
        for view in views:
            self._check_view(view)
        steps = [appends.Step.of(view, draft) for view, draft in zip(views, drafts, strict=True)]
        again = [view.cohort.name for view, draft in zip(views, drafts, strict=True) if draft.opens]
        transaction = engines.writing if again else engines.deciding
        with transaction(self._engine, fact=appends.fact_of(drafts[0])) as connection:
            rows.refuse_begun(connection, again)
            appends.write(connection, steps)
        for view, draft, _, entry in steps:
            if draft.status not in (None, view.cohort.status):
                level = logging.INFO if draft.status == "closed" else logging.ERROR
                _log.log(
                    level,
                    "cohort %s is %s since entry %d",
                    entry.cohort,
                    str(draft.status).upper(),
                    entry.sequence,
                )
        return [step.entry for step in steps]

    def drafted(self, view: CohortView, draft: EntryDraft) -> LedgerEntry:
        """Return the entry that `append` would write of a draft; raises what it raises. Leaves no trace."""
        self.check_anchor()
        self._check_view(view)
        return appends.Step.of(view, draft).entry

    def append_with_rounds(
        self,
        wanted: Mapping[str, Sequence[str]],
        decide: Callable[[str, list[NewRound]], Sequence[EntryDraft] | None],
        *,
        waits: bool = True,
    ) -> list[list[EntryBody]]:
        """Append the outcomes that `decide` drafts for new rounds, together with the rounds' rows.

        Args:
            wanted: the rounds' cohorts in order, by the rounds' identifiers, in the order in which they are
                decided.
            decide: returns an entry for each of the cohorts, or None; given the identifier and the cohorts as
                they are after the rounds before. It must be quick, for on SQLite other writers wait.
            waits: on PostgreSQL, wait for writers that have the turn of a cohort, as long as a lock may take;
                and take it, from reading until the commit, if another writer was faster of late.

        Returns the entries of the first ones, up to an identifier that is taken or one for which `decide`
        drafts nothing; all of them are written, or none.

        Raises:
            LostRace: another entry was appended first, or an identifier was taken since; nothing was changed.
            NotFound: no such cohort.
            Damaged: as `view`.
            TryAgain: among others, a writer keeps its turn for too long.
        """
        names = sorted({name for each in wanted.values() for name in each})
        self.remember_openings(names)  # before others wait for this
        lines = self.turns.lines(names) if waits else []
        in_turn = bool(lines) and any(map(self.turns.is_contended, names))
        decided: list[list[appends.Step]] = []
        after: dict[str, CohortView] = {}
        fact = engines.REGISTERED if len(wanted) == 1 else "the rounds were registered"
        with self._writing, engines.deciding(self._engine, fact=fact, in_turn=in_turn) as connection:
            self.check_anchor()  # now: the connection may have been opened for this
            found = cohort_views.of_new_rounds(connection, self._memory, wanted, lines)
            self.check_same([view.cohort for view in found.views.values()])
            for view in found.views.values():
                self._check_view(view, connection)
            for round_id, cohorts_of in wanted.items():
                if round_id in found.taken:
                    break
                asked = found.new_rounds(cohorts_of, after)
                drafts = decide(round_id, asked)
                if drafts is None:
                    break
                steps = [appends.Step.of(new.view, draft) for new, draft in zip(asked, drafts, strict=True)]
                after.update((step.view.cohort.name, step.after) for step in steps)
                decided.append(steps)
            if decided:
                appends.write(connection, [step for steps in decided for step in steps])
        for view in after.values():
            self._memory.keep(view)
        return [[step.body for step in steps] for steps in decided]

    def check_same(self, now: Sequence[Cohort], seen: Sequence[Cohort] = ()) -> None:
        """Raise TryAgain for a cohort that was opened again since it was seen, or its windows remembered."""
        moments = {cohort.name: cohort.opened_at for cohort in seen}
        for cohort in now:
            has_windows = bool(cohort.windows) or cohort.parent is not None
            remembered = self._windowed.get(cohort.name, has_windows)
            if remembered != has_windows or moments.get(cohort.name, cohort.opened_at) != cohort.opened_at:
                self._windowed.pop(cohort.name, None)
                raise TryAgain(f"cohort {cohort.name!r} was opened again meanwhile; ask the same again")

    def _check_view(self, view: CohortView, connection: Connection | None = None) -> None:
        """Raise ClockOff if nothing may be appended at a view's moment."""
        last, what = appends.recorded_at(view), f"cohort {view.cohort.name!r}"
        self.check_clock(view.at, last, what=what, connection=connection)

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
            query = select(*ENTRY_COLUMNS).where(
                entries_table.c.cohort == cohort, entries_table.c.sequence > last
            )
            query = query.order_by(entries_table.c.sequence).limit(PAGE_ROWS)
            with engines.reading_once(self._engine) as connection:
                page = [rows.entry_from(row) for row in connection.execute(query)]
            yield from page
            if len(page) < PAGE_ROWS:
                return
            last = page[-1].sequence

    def beside(self, cohort: str, *, after: int) -> Beside:
        """Return a cohort's entries behind a sequence and what stands beside its chain, of one moment."""
        newer = and_(entries_table.c.cohort == cohort, entries_table.c.sequence > after)
        query = select(*ENTRY_COLUMNS).where(newer).order_by(entries_table.c.sequence)
        with engines.reading(self._engine) as connection:
            head = connection.execute(select(heads).where(heads.c.cohort == cohort)).one_or_none()
            try:
                view: CohortView | LedgerError = cohort_views.of_cohort(
                    connection, self._memory.kinds, cohort
                )
            except (TryAgain, Unavailable):
                raise
            except LedgerError as error:
                view = error
            return Beside(
                entries=tuple(rows.entry_from(row) for row in connection.execute(query)),
                view=view,
                counts={} if head is None else rows.counts_in(head),
                used_share=None if head is None else head.used_share,
                holdings=tuple(rows.holding_rows(connection, cohort)),
            )

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

    def losses_of(self, keys: Sequence[bytes]) -> Iterator[StoredLoss]:
        """Yield the stored privacy losses of some keys, unchecked, a few by each statement."""
        for start in range(0, len(keys), LOSSES_AT_ONCE):
            query = select(privacy_losses).where(
                privacy_losses.c.key.in_(keys[start : start + LOSSES_AT_ONCE])
            )
            with engines.reading_once(self._engine) as connection:
                read = [StoredLoss(**row._mapping) for row in connection.execute(query)]
            yield from read

    def losses(self) -> Iterator[StoredLoss]:
        """Yield every stored privacy loss, unchecked, in the order of the keys, a few at a time."""
        last = b""
        while True:
            query = select(privacy_losses).where(privacy_losses.c.key > last).order_by(privacy_losses.c.key)
            with engines.reading_once(self._engine) as connection:
                page = [StoredLoss(**row._mapping) for row in connection.execute(query.limit(LOSSES_AT_ONCE))]
            yield from page
            if len(page) < LOSSES_AT_ONCE:
                return
            last = page[-1].key

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

    @contextmanager
    def claimed(self, key: bytes) -> Iterator[bool]:
        """Keep others from computing the privacy loss of a key meanwhile; see `claimed`.

        Half of the pool's connections may wait or hold claims; more computations go on without one.
        """
        if not self._claims.acquire(blocking=False):
            yield False
            return
        try:
            with claimed(self._engine, key) as waited:
                yield waited
        finally:
            self._claims.release()

    def insert_losses(self, losses: Sequence[StoredLoss]) -> None:
        """Store privacy losses in one commit, without those whose keys have one."""
        with engines.writing(self._engine) as connection:
            new = [
                loss for loss in losses if engines.insert_if_absent(connection, privacy_losses, vars(loss))
            ]
        for loss in new:
            self._remember(self._loss_digests, loss.key, loss.digest)

    @staticmethod
    def _remember(memory: dict[Key, Value], key: Key, value: Value) -> None:
        if len(memory) >= REMEMBERED_MAX:
            memory.clear()
        memory[key] = value

    # Verification

    def record_verification(
        self,
        cohort: str,
        *,
        head: tuple[int, str],
        numbers_checked: int,
        problem: str | None,
    ) -> None:
        """Remember what verifying a cohort found; the database's clock says when.

        Args:
            cohort: its name.
            head: sequence and digest of the last head that was found good.
            numbers_checked: how many certificates were computed again.
            problem: the first one; None: everything held.
        """
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

    def verifications(self, *, only: Collection[str] | None = None) -> dict[str, StoredVerification]:
        """Return what verification on a schedule found last, by cohort; `only` of those named."""
        query = select(verifications)
        if only is not None:
            query = query.where(verifications.c.cohort.in_(only))
        with engines.reading_once(self._engine) as connection:
            found = connection.execute(query).all()
        return {row.cohort: StoredVerification(**row._mapping) for row in found}


def opening_body(
    cohort: Cohort, rules: Mapping[str, Any], actor: str, numerical_policy: str, *, opened_at: datetime
) -> EntryBody:
    """Return the body of the entry that opens a cohort.

    Args:
        cohort: what is opened.
        rules: what its policy writes into that entry.
        actor: who opens it.
        numerical_policy: the accountant's.
        opened_at: when, by the database's clock.
    """
    return EntryBody(
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
        details=opening_details(cohort, rules),
    )


def opening_details(cohort: Cohort, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry that opens a cohort states beside its budget; arguments as of `opening_body`."""
    stated = {"population": cohort.population, "policy": cohort.policy}
    return {**stated, **declared_details(cohort), **rules}


def _moment_of(body: bytes) -> datetime | None:
    """Return when an entry was recorded; None if its body does not say."""
    try:
        return datetime.fromisoformat(canonical.skim(body)["recorded_at"])
    except (Damaged, LookupError, TypeError, ValueError):
        return None


def _opened(connection: Connection, cohort: Cohort, body: EntryBody) -> Cohort:
    """Insert a cohort with its first entry, or return the stored one if it says the same; raises Conflict."""
    if rows.is_lost(connection, cohort.name):
        raise Conflict(
            f"cohort {cohort.name!r} was lost when the database was put back to an earlier state;"
            " what it had spent is unknown, so its name is not opened again"
        )
    opened = dataclasses.replace(cohort, status="open", opened_at=body.recorded_at)
    if not rows.insert_cohort(connection, opened, LedgerEntry.following(GENESIS_DIGEST, body)):
        stored = rows.cohort_from(rows.cohort_row(connection, cohort.name))
        check_same(stored, cohort)
        return stored
    return opened
