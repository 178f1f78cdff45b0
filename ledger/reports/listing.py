"""Reading many rows: pages of a chain, and what all cohorts add up to."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from sqlalchemy import and_, func, select, text

from shuffle_ledger.ledger.answers.budgets import Closure, status_now
from shuffle_ledger.ledger.answers.cohorts import ShownCohort
from shuffle_ledger.ledger.answers.entries import PAGE_MAX
from shuffle_ledger.ledger.decisions.outcomes import collected_on
from shuffle_ledger.ledger.errors import Damaged, InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage import engine, rows
from shuffle_ledger.ledger.storage.rows import IS_NO_PART, CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import ENTRY_COLUMNS, REFUSED, cohorts, entries, heads
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE, EntryBody, EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import POLICY_PLAN, Cohort, CohortStatus

REFUSALS_READ_MAX = 5000
USES_AT_ONCE = 500  # chains whose last entries one statement reads
_LAST = and_(entries.c.cohort == heads.c.cohort, entries.c.sequence == heads.c.sequence)


@dataclass(frozen=True, kw_only=True)
class EntryPage:
    """Consecutive entries of one chain."""

    entries: tuple[LedgerEntry, ...]
    after: int | None  # the sequence to go on after; None: this was the end


@dataclass(frozen=True, kw_only=True)
class CohortHead:
    """A cohort's state as its last entry says."""

    status: CohortStatus
    body: EntryBody
    opened_at: datetime

    @property
    def has_life(self) -> bool:
        """Whether the cohort has a budget of its life."""
        return math.isfinite(self.body.epsilon_budget)


def shown_cohort(store: Store, name: str) -> ShownCohort:
    """Return a cohort with its openings and the slots of its plan; raises NotFound."""
    cohort = store.cohort(name)
    closure = closure_of(store, cohort)
    now = {"closure": closure, "status": status_now(cohort.status, is_closed=closure is not None)}
    openings = store.count_entries(name).get(EntryKind.OPENED, 1)
    if cohort.policy != POLICY_PLAN:
        return ShownCohort(**vars(cohort) | now, openings=openings)
    view = store.view(name)
    slots = registry.policy_of(store, view).slots(view)
    return ShownCohort(**vars(view.cohort) | now, openings=openings, slots=slots)


def closure_of(store: Store, cohort: Cohort) -> Closure | None:
    """Return how a cohort was closed, or the one that it is a part of; None if it is not. Raises Damaged."""
    name = cohort.parent or cohort.name
    if not store.count_entries(name).get(EntryKind.CLOSED):
        return None
    found = latest_entries(store, name, limit=1, kind=EntryKind.CLOSED)
    return closure_in(found[0].content()) if found else None


def closed_among(store: Store, names: Collection[str]) -> set[str]:
    """Return those of some cohorts that were closed, whatever their status became since."""
    listed, found = sorted(names), set[str]()
    query = select(heads.c.cohort).where(heads.c.closures > 0)
    for start in range(0, len(listed), USES_AT_ONCE):
        some = query.where(heads.c.cohort.in_(listed[start : start + USES_AT_ONCE]))
        with engine.reading_once(store.engine) as connection:
            found.update(connection.execute(some).scalars())
    return found


def view_now(view: CohortView, *, is_closed: bool) -> CohortView:
    """Return a chain with the status that people read, `status_now`. Decisions take that of the chain."""
    status = status_now(view.cohort.status, is_closed=is_closed)
    return replace(view, cohort=replace(view.cohort, status=status))


def views_now(store: Store, views: Sequence[CohortView]) -> list[CohortView]:
    """Return chains with the status that people read: a part is closed with its cohort."""
    parents = [view.cohort.parent for view in views]
    closed = closed_among(store, {name for name in parents if name is not None})
    return [view_now(view, is_closed=name in closed) for view, name in zip(views, parents, strict=True)]


def closure_in(body: EntryBody) -> Closure:
    """Return what an entry that closes a cohort says."""
    return Closure(
        sequence=body.sequence,
        closed_at=body.recorded_at,
        closed_by=body.actor,
        reason=str(body.details.get("reason")),
    )


def entries_after(store: Store, cohort: str, *, after: int, limit: int) -> EntryPage:
    """Return entries of a cohort in order, from the one behind sequence `after`.

    Raises:
        NotFound: no such cohort.
        InvalidValue: `limit` is not from 1 to 1000.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidValue(field="limit", value=limit, expected=f"a whole number from 1 to {PAGE_MAX}")
    query = select(*ENTRY_COLUMNS).where(entries.c.cohort == cohort, entries.c.sequence > after)
    with engine.reading(store.engine) as connection:
        rows.cohort_row(connection, cohort)
        found = connection.execute(query.order_by(entries.c.sequence).limit(limit + 1)).all()
    page = tuple(rows.entry_from(row) for row in found[:limit])
    return EntryPage(entries=page, after=page[-1].sequence if len(found) > limit else None)


def latest_entries(
    store: Store, cohort: str, *, limit: int, before: int | None = None, kind: EntryKind | None = None
) -> list[LedgerEntry]:
    """Return the last entries of a cohort, oldest first; raises NotFound.

    Args:
        store: the ledger.
        cohort: its name.
        limit: how many at most.
        before: only those before this one.
        kind: only these.
    """
    query = select(*ENTRY_COLUMNS).where(entries.c.cohort == cohort)
    if before is not None:
        query = query.where(entries.c.sequence < before)
    if kind is not None:
        query = query.where(entries.c.kind == str(kind))
    with engine.reading(store.engine) as connection:
        rows.cohort_row(connection, cohort)
        found = connection.execute(query.order_by(entries.c.sequence.desc()).limit(min(limit, PAGE_MAX)))
        return [rows.entry_from(row) for row in found][::-1]


@dataclass(frozen=True, kw_only=True)
class EntryFilter:
    """Which entries of a chain are listed: those that agree with every field that is not None."""

    kind: EntryKind | None = None
    randomizer: str | None = None  # its name, of the round that the entry describes
    use_case: str | None = None
    first: date | None = None  # days of collection, or else those of the record
    last: date | None = None

    def takes(self, body: EntryBody) -> bool:
        """Whether an entry is listed."""
        details = body.details
        day = collected_on(body) or body.recorded_at.astimezone(UTC).date()
        if not (self.first or date.min) <= day <= (self.last or date.max):
            return False
        asked = details.get("request", {})
        if self.use_case is not None and asked.get("use_case") != self.use_case:
            return False
        described = asked.get("round") or details.get("accounted") or {}
        is_randomizer = described.get("randomizer", {}).get("kind") == self.randomizer
        return (self.kind in (None, body.kind)) and (self.randomizer is None or is_randomizer)


EVERY_ENTRY = EntryFilter()


def matching_entries(
    store: Store,
    cohort: str,
    wanted: EntryFilter,
    *,
    limit: int,
    searched_max: int,
    before: int | None = None,
) -> tuple[list[EntryBody], int | None]:
    """Return the last entries of a cohort that a filter takes, the last one first, and before which entry
    the next page goes on; None: nothing is left.

    Args:
        store: the ledger.
        cohort: its name.
        wanted: the filter.
        limit: how many entries at most.
        searched_max: how many entries are read at most: a page may hold fewer than there are.
        before: only those before this one.

    Raises:
        NotFound: no such cohort.
    """
    found, searched = list[EntryBody](), 0
    while searched < searched_max:
        at_once = limit + 1 if wanted in (EVERY_ENTRY, EntryFilter(kind=wanted.kind)) else PAGE_MAX
        read = latest_entries(store, cohort, limit=at_once, before=before, kind=wanted.kind)[::-1]
        for entry in read:
            body = entry.content()
            if not wanted.takes(body):
                continue
            if len(found) == limit:
                return found, found[-1].sequence
            found.append(body)
        if len(read) < at_once:
            return found, None
        searched, before = searched + len(read), read[-1].sequence
    return found, before if before is not None and before > FIRST_SEQUENCE else None


def round_counts(store: Store) -> tuple[int, int]:
    """Return how many rounds cohorts admitted and refused; what is charged to their parts counts once."""
    sums = [func.coalesce(func.sum(column), 0) for column in (heads.c.admitted, heads.c.refused)]
    query = select(*sums).join_from(heads, cohorts, cohorts.c.name == heads.c.cohort).where(IS_NO_PART)
    with engine.reading_once(store.engine) as connection:
        admitted, refused = connection.execute(query).one()
    return int(admitted), int(refused)


def refused_counts(store: Store) -> dict[str, int]:
    """Return how many rounds each cohort refused that refused any; parts of cohorts are none."""
    query = select(heads.c.cohort, heads.c.refused).where(heads.c.refused > 0, IS_NO_PART)
    query = query.join_from(heads, cohorts, cohorts.c.name == heads.c.cohort)
    with engine.reading_once(store.engine) as connection:
        return {row.cohort: row.refused for row in connection.execute(query)}


@dataclass(frozen=True, kw_only=True, slots=True)
class CohortUse:
    """The used part of a chain's budget, as its last entry states it."""

    cohort: str  # or the name of a part's chain
    status: CohortStatus
    epsilon_budget: float
    delta_budget: float
    epsilon_spent_upper: float

    @property
    def ratio(self) -> float:
        """Upper bound on the spent share of the budget."""
        return self.epsilon_spent_upper / self.epsilon_budget


def most_used(store: Store, day: date, *, limit: int) -> tuple[CohortUse, ...]:
    """Return the chains that used most of their budgets, most first; none that has only its first entry, and
    no period that ended before a day.

    Raises:
        Damaged: a last entry lacks what is read.
    """
    # In the bytes of the period: to decode those that are over takes longer than all else.
    last = engine.part_behind(cohorts.c.period, b'"last":"', len("YYYY-MM-DD"), store.engine.dialect.name)
    is_over = and_(cohorts.c.period.is_not(None), last < day.isoformat().encode())
    query = select(heads.c.cohort).join_from(heads, cohorts, cohorts.c.name == heads.c.cohort)
    query = query.where(heads.c.sequence > FIRST_SEQUENCE, heads.c.epsilon_budget < math.inf, ~is_over)
    query = query.order_by(heads.c.used_share.desc(), heads.c.cohort).limit(limit)
    with engine.reading_once(store.engine) as connection:
        names = connection.execute(query).scalars().all()
    found = cohort_uses(store, only=names)
    return tuple(sorted(found.values(), key=lambda use: (-use.ratio, use.cohort)))


def cohort_uses(store: Store, *, only: Collection[str]) -> dict[str, CohortUse]:
    """Return the used parts of some chains' budgets, without those of no budget and of no chain. The periods
    of windows are chains, too. Raises Damaged.
    """
    query = select(heads.c.cohort, heads.c.status, entries.c.body).join_from(heads, entries, _LAST)
    query = query.where(heads.c.epsilon_budget < math.inf)
    names, found = list(only), dict[str, CohortUse]()
    for start in range(0, len(names), USES_AT_ONCE):
        some = query.where(heads.c.cohort.in_(names[start : start + USES_AT_ONCE]))
        with engine.reading_once(store.engine) as connection:
            found |= {row.cohort: _use(row.cohort, row.status, row.body) for row in connection.execute(some)}
    return found


def _use(cohort: str, status: CohortStatus, body: bytes) -> CohortUse:
    content = canonical.skim(body)
    try:
        return CohortUse(
            cohort=cohort,
            status=status,
            epsilon_budget=float(content["epsilon_budget"]),
            delta_budget=float(content["delta_budget"]),
            epsilon_spent_upper=float(content["spent"]["epsilon_upper"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"cohort {cohort!r}: the body of its last entry has wrong fields: {error}") from error


def cohort_heads(store: Store, *, only: Collection[str] | None = None) -> list[CohortHead]:
    """Return the last entry of every cohort, or of those named, in the order of their names."""
    more = (heads.c.status, cohorts.c.opened_at)
    query = select(*ENTRY_COLUMNS, *more).join_from(heads, entries, _LAST)
    query = query.join(cohorts, cohorts.c.name == heads.c.cohort)
    if only is not None:
        query = query.where(heads.c.cohort.in_(only))
    with engine.reading(store.engine) as connection:
        found = [
            CohortHead(
                status=row.status,
                body=EntryBody.from_bytes(row.body),
                opened_at=row.opened_at,
            )
            for row in connection.execute(query)
        ]
    return sorted(found, key=lambda head: head.body.cohort)


def refusals_after(store: Store, cohort: str, *, after: int) -> list[LedgerEntry]:
    """Return at most 5000 refusals of a cohort in order, from the first one behind sequence `after`."""
    # In the words of the index, which is not found by a parameter.
    refused = and_(entries.c.cohort == cohort, text(REFUSED), entries.c.sequence > after)
    query = select(*ENTRY_COLUMNS).where(refused).order_by(entries.c.sequence).limit(REFUSALS_READ_MAX)
    with engine.reading(store.engine) as connection:
        return [rows.entry_from(row) for row in connection.execute(query)]
