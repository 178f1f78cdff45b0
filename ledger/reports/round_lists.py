"""Lists of rounds: which were refused and why, which wait, which are closed; in the order of registration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    TextClause,
    and_,
    exists,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from shuffle_ledger.ledger.answers.rounds import STATES, ListedRound, RoundPage
from shuffle_ledger.ledger.errors import Damaged, InvalidValue, NotFound
from shuffle_ledger.ledger.storage import engine, rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import entries, rounds
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import RefusalReason, RoundRequest, RoundState
from shuffle_ledger.ledger.values.texts import checked_text

ROUNDS_PAGE_MAX = 1000
SCANNED_MAX = 5_000  # rounds that one page may pass over: bounds its time where few of them are asked for
_UNSEEN = "Refused by budgets of the round's audience, of which other cohorts than yours may be part."

_INCIDENT = f"'{EntryKind.INCIDENT}'"  # as the index says it
_outcome, _closing, _incident = (entries.alias(name) for name in ("outcome", "closing", "incident"))
# Not a join: PostgreSQL would look for the rounds without an incident first, among all rounds.
_INCIDENT_SEQUENCE = (
    select(_incident.c.sequence)
    .where(
        _incident.c.round_id == rounds.c.round_id,
        _incident.c.cohort == rounds.c.cohort,
        _incident.c.kind == literal_column(_INCIDENT),
    )
    .correlate(rounds)
    .scalar_subquery()
)


@dataclass(frozen=True, kw_only=True)
class RoundFilter:
    """Which rounds a list has."""

    cohorts: tuple[str, ...] | None = None  # None: every cohort
    outcome: RoundState | None = None  # the present state; None: any
    since: datetime | None = None  # registered then or later

    def __post_init__(self) -> None:
        """Raise InvalidValue for a state that does not exist, or a time without its zone."""
        if self.outcome is not None and self.outcome not in STATES:
            raise InvalidValue(field="outcome", value=self.outcome, expected="one of: " + ", ".join(STATES))
        if self.since is not None and self.since.utcoffset() is None:
            expected = "a time with its zone, as 2025-01-06T12:00:00Z"
            raise InvalidValue(field="since", value=self.since.isoformat(), expected=expected)


def list_rounds(
    store: Store, wanted: RoundFilter, *, after: str | None = None, limit: int = ROUNDS_PAGE_MAX
) -> RoundPage:
    """Return a page of rounds, from the one registered behind `after`.

    Args:
        store: the ledger.
        wanted: which rounds.
        after: an identifier that a page ended with; it must be of a cohort of the filter.
        limit: how many at most, from 1 to 1000.

    Raises:
        NotFound: the round `after` does not exist among the cohorts of the filter.
        InvalidValue: `after` is no identifier.
        InvalidValue: `limit` is out of range.
    """
    if not 1 <= limit <= ROUNDS_PAGE_MAX:
        expected = f"a whole number from 1 to {ROUNDS_PAGE_MAX}"
        raise InvalidValue(field="limit", value=limit, expected=expected)
    some = _scanned(wanted, _registration(store, wanted, after), limit).subquery()
    last = select(func.max(some.c.registration), func.count())
    query = (
        select(
            rounds,
            _outcome.c.kind.label("outcome_kind"),
            _outcome.c.body.label("outcome_body"),
            _closing.c.kind.label("closing_kind"),
            _INCIDENT_SEQUENCE.label("incident_sequence"),
        )
        .select_from(some)
        .join(rounds, rounds.c.registration == some.c.registration)
        .outerjoin(_outcome, _entry_of(_outcome, rounds.c.outcome_sequence))
        .outerjoin(_closing, _entry_of(_closing, rounds.c.closing_sequence))
        .where(*_conditions(wanted))
        .order_by(some.c.registration)
        .limit(limit + 1)
    )
    with engine.reading(store.engine) as connection:
        found = connection.execute(query).all()
        end, count = connection.execute(last).one()
        page = tuple(_listed(row) for row in found[:limit])
        if len(found) > limit:
            return RoundPage(rounds=page, after=page[-1].round_id)
        if count < SCANNED_MAX:
            return RoundPage(rounds=page, after=None)
        name = select(rounds.c.round_id).where(rounds.c.registration == end)
        return RoundPage(rounds=page, after=connection.execute(name).scalar_one())


def without_audience(listed: ListedRound, sees: Callable[[str], bool]) -> ListedRound:
    """Return a listed round of several cohorts as one of the first of them that its reader may know of.

    The message of a refusal names each budget that refused, and chains of periods and quotas name their
    cohorts, of which the reader may not know.
    """
    message = None if listed.message is None else _UNSEEN
    own = next(filter(sees, listed.audience))
    windows, quotas = tuple(filter(sees, listed.windows)), tuple(filter(sees, listed.quotas))
    return dataclasses.replace(
        listed, cohort=own, audience=(), windows=windows, quotas=quotas, message=message
    )


def _registration(store: Store, wanted: RoundFilter, after: str | None) -> int:
    if after is None:
        return 0
    after = checked_text("after", after)
    # Each of the two has an index: identifiers alone are only in that of first rows.
    place = rows.FIRST if wanted.cohorts is None else rounds.c.cohort.in_(wanted.cohorts)
    query = select(func.min(rounds.c.registration)).where(rounds.c.round_id == after, place)
    with engine.reading_once(store.engine) as connection:
        last: int | None = connection.execute(query).scalar_one()
    if last is None:
        raise NotFound(f"no round {after!r}")
    return last


def _scanned(wanted: RoundFilter, first: int, limit: int) -> Select[tuple[int]]:
    """Return the numbers of the rounds that a page looks at, in order: all it lists, if no filter passes any
    over. A round of several cohorts has a row for each: it is looked at once, at the first of the filter's.
    """
    passes_over = wanted.since is not None or wanted.outcome not in (None, "pending")
    most = SCANNED_MAX if passes_over else limit + 1
    number = rounds.c.registration
    if wanted.cohorts is None and wanted.outcome == "pending":
        # Few: sorted, for SQLite would look for the next ones among all rounds.
        waiting = select(number).where(rows.FIRST_PENDING, first < rows.BY_NUMBER)
        return waiting.order_by(rows.BY_NUMBER).limit(most)
    which: list[ColumnElement[bool] | TextClause] = [
        rows.PENDING if wanted.outcome == "pending" else rows.IN_ORDER  # each has an index
    ]
    if first:  # SQLite takes `number > 0` for what the other index asks for
        which.append(number > first)

    def of(*cohort: ColumnElement[bool] | TextClause) -> Select[tuple[int]]:
        return select(number).where(*which, *cohort).order_by(number).limit(most)

    if wanted.cohorts is None:
        return of(rows.FIRST)
    if len(wanted.cohorts) < 2:
        return of(rounds.c.cohort.in_(wanted.cohorts))
    earlier = rounds.alias("earlier")
    again = exists().where(
        earlier.c.round_id == rounds.c.round_id,
        earlier.c.cohort.in_(wanted.cohorts),
        earlier.c.registration < number,
    )
    once = or_(rows.FIRST, ~again)
    each = [select(of(rounds.c.cohort == name, once).subquery()) for name in wanted.cohorts]
    every = union_all(*each).subquery()
    return select(every.c.registration).order_by(every.c.registration).limit(most)


def _entry_of(entry: Any, sequence: ColumnElement[Any]) -> ColumnElement[bool]:
    return and_(entry.c.cohort == rounds.c.cohort, entry.c.sequence == sequence)


def _conditions(wanted: RoundFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.since is not None:
        conditions.append(rounds.c.registered_at >= wanted.since)
    match wanted.outcome:
        case None | "pending":
            pass
        case "incident":
            conditions.append(_INCIDENT_SEQUENCE.is_not(None))
        case "settled" | "voided":
            conditions += [_closing.c.kind == wanted.outcome, _INCIDENT_SEQUENCE.is_(None)]
        case _:
            conditions += [_outcome.c.kind == wanted.outcome, _INCIDENT_SEQUENCE.is_(None)]
            conditions.append(rounds.c.closing_sequence.is_(None))
    return conditions


def _listed(row: Row[Any]) -> ListedRound:
    request = RoundRequest.from_bytes(row.content)
    decided = None if row.outcome_body is None else EntryBody.from_bytes(row.outcome_body)
    if decided is not None and decided.round_id != row.round_id:
        raise Damaged(f"round {row.round_id!r}: its row refers to the entry of another round")
    refusal = decided.details if decided is not None and decided.kind is EntryKind.REFUSED else {}
    requested = refusal.get("requested")
    upper = None if requested is None else float(requested["epsilon_upper"])
    return ListedRound(
        **vars(request),
        state=_state(row),
        registered_by=row.registered_by,
        registered_at=row.registered_at,
        sequence=row.outcome_sequence,
        decided_at=None if decided is None else decided.recorded_at,
        reason=RefusalReason(refusal["reason"]) if refusal else None,
        message=refusal.get("message"),
        epsilon_requested_upper=None if upper is None or math.isinf(upper) else upper,
    )


def _state(row: Row[Any]) -> RoundState:
    if row.incident_sequence is not None:
        return "incident"
    state: RoundState = row.closing_kind or row.outcome_kind or "pending"
    return state
