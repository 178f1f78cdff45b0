"""What an overview shows of each of many cohorts beside its head, read by a few statements for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import ColumnElement, and_, case, func, literal, literal_column, select, text, true

from shuffle_ledger.accounting import LocalRandomizer, ShuffledRound
from shuffle_ledger.ledger.decisions.outcomes import collected_on
from shuffle_ledger.ledger.reports.collection_days import days_of, last_of_days
from shuffle_ledger.ledger.storage import engine, rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import ENTRY_COLUMNS, REFUSED, entries, heads, rounds
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.schedules import Every, Schedule

CURVE_POINTS = 16  # entries of a chain, evenly spaced, that its curve is drawn through
TAIL_ENTRIES = 24  # last entries of a chain, which tell what is in use and how often
LOOKED_BACK_MAX = 1_000  # entries behind the head among which the last admitted round is looked for
REFUSALS_COUNTED_MAX = 100  # of each cohort: more are not counted
_SCHEDULED_MIN = 3  # rounds of a kind that make a schedule
# Mean days from one round to the next from which a schedule counts as weekly or monthly. More frequent ones
# count as the next denser schedule, which ends earlier.
_WEEKLY_DAYS, _MONTHLY_DAYS = 6.5, 27.0
_ADMITTED: ColumnElement[str] = literal_column(f"'{EntryKind.ADMITTED}'")


@dataclass(frozen=True, kw_only=True)
class ChainOutline:
    """A cohort's chain up to one entry, in little: entries never change, so neither does this."""

    sequence: int  # of the last entry
    curve: tuple[tuple[date, float], ...]  # days of collection, and the upper bound on epsilon spent by then
    latest: ShuffledRound | None  # the kind that was admitted last, as accounted; None: none of late
    schedule: Schedule | None  # None: none is recognized


def chain_outlines(store: Store, names: Collection[str]) -> dict[str, ChainOutline]:
    """Return outlines of some cohorts, by one statement that reads at most 41 entries of each."""
    number = select(literal(0).label("number")).cte("numbers", recursive=True)
    last = CURVE_POINTS + TAIL_ENTRIES
    number = number.union_all(select(number.c.number + 1).where(number.c.number < last))
    before = entries.alias("before")
    admitted = (
        select(before.c.sequence)
        .where(before.c.cohort == heads.c.cohort, before.c.kind == _ADMITTED)
        .where(before.c.sequence > heads.c.sequence - LOOKED_BACK_MAX)
        .order_by(before.c.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    sequence = case(
        (number.c.number < CURVE_POINTS, 1 + (heads.c.sequence - 1) * number.c.number // (CURVE_POINTS - 1)),
        (number.c.number < last, heads.c.sequence - (number.c.number - CURVE_POINTS)),
        else_=admitted,
    )
    entry = and_(entries.c.cohort == heads.c.cohort, entries.c.sequence == sequence)
    query = select(*ENTRY_COLUMNS).select_from(heads.join(number, true()).join(entries, entry))
    read: dict[str, dict[int, EntryBody]] = defaultdict(dict)
    with engine.reading_once(store.engine) as connection:
        for row in connection.execute(query.where(heads.c.cohort.in_(names))):
            if row.sequence not in read[row.cohort]:
                read[row.cohort][row.sequence] = rows.entry_from(row).content()
    return {name: _outline([bodies[place] for place in sorted(bodies)]) for name, bodies in read.items()}


def refused_since(store: Store, names: Collection[str], since: datetime) -> dict[str, int]:
    """Return how many rounds of each of some cohorts were refused that were registered at a moment or later,
    counted up to `REFUSALS_COUNTED_MAX`; cohorts without one are left out. One statement.
    """
    before = entries.alias("before")
    first = (
        select(before.c.sequence)
        .where(before.c.cohort == heads.c.cohort, text(f"before.{REFUSED}"))  # in the words of the index
        .order_by(before.c.sequence.desc())
        .limit(1)
        .offset(REFUSALS_COUNTED_MAX - 1)
        .scalar_subquery()
    )
    refused = and_(
        entries.c.cohort == heads.c.cohort,
        text(f"entries.{REFUSED}"),
        entries.c.sequence >= func.coalesce(first, 1),
    )
    its = and_(rounds.c.cohort == entries.c.cohort, rounds.c.round_id == entries.c.round_id)
    query = (
        select(heads.c.cohort, func.count().label("refused"))
        .select_from(heads.join(entries, refused).join(rounds, its))
        .where(heads.c.cohort.in_(names), rounds.c.registered_at >= since)
        .group_by(heads.c.cohort)
    )
    with engine.reading_once(store.engine) as connection:
        return {row.cohort: row.refused for row in connection.execute(query)}


@dataclass(frozen=True, kw_only=True)
class _Point:
    kind: EntryKind
    collected_on: date | None
    recorded_at: datetime


def _outline(bodies: Sequence[EntryBody]) -> ChainOutline:
    points = [
        _Point(kind=body.kind, collected_on=collected_on(body), recorded_at=body.recorded_at)
        for body in bodies
    ]
    days, last = days_of(points), bodies[-1].sequence
    admitted = [
        (body, day) for body, day in zip(bodies, days, strict=True) if body.kind is EntryKind.ADMITTED
    ]
    is_recent = bool(admitted) and last - admitted[-1][0].sequence < LOOKED_BACK_MAX
    return ChainOutline(
        sequence=last,
        curve=tuple((day, bodies[place].spent.epsilon_upper) for day, place in last_of_days(points).items()),
        latest=_accounted(admitted[-1][0]) if is_recent else None,
        schedule=_schedule([each for each in admitted if last - each[0].sequence < TAIL_ENTRIES]),
    )


def _accounted(body: EntryBody) -> ShuffledRound:
    return ShuffledRound.from_mapping(body.details["accounted"])


def _schedule(admitted: Iterable[tuple[EntryBody, date]]) -> Schedule | None:
    """Return the schedule of the last admitted rounds, in the period in which none came twice on average."""
    days: dict[tuple[str | None, LocalRandomizer], list[date]] = defaultdict(list)
    kinds: dict[tuple[str | None, LocalRandomizer], ShuffledRound] = {}
    for body, day in admitted:
        kind = _accounted(body)
        series = (body.details["request"].get("use_case"), kind.randomizer)
        days[series].append(day)
        kinds[series] = kind
    if max(map(len, days.values()), default=0) < _SCHEDULED_MIN:
        return None
    gap = min((max(each) - min(each)).days / (len(each) - 1) for each in days.values() if len(each) > 1)
    if gap < 1:
        return None
    every: Every = "day" if gap < _WEEKLY_DAYS else "week" if gap < _MONTHLY_DAYS else "month"
    return Schedule(every=every, kinds=tuple(kinds.values()))
