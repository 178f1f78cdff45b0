"""Rows of permits and receipts: the statements that `ledger.permits` needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, insert, or_, select, update

from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.database import PAGE_ROWS
from shuffle_ledger.ledger.storage.tables import heads, permits, receipts, rounds

REVOKED_FOR = timedelta(days=1)  # how long after its end a permit is listed: longer than any gate's leeway
REVOKED_MAX = 100_000  # one more is read, which `ledger.permits` refuses to leave out


@dataclass(frozen=True, kw_only=True)
class StoredPermit:
    """One row of the permits."""

    round_id: str
    event: str
    token: str
    releaser: str | None
    issued_by: str
    issued_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class StoredReceipt:
    """One row of the receipts."""

    digest: str
    round_id: str
    cohort: str
    token: str
    keys: str
    recorded_by: str
    recorded_at: datetime


def keep_permit(engine: Engine, permit: StoredPermit) -> StoredPermit:
    """Insert a permit, or return the one that the round has."""
    with engines.writing(engine) as connection:
        engines.insert_if_absent(connection, permits, vars(permit))
        found = connection.execute(select(permits).where(permits.c.round_id == permit.round_id)).one()
        return StoredPermit(**found._mapping)


def sign_again(engine: Engine, round_id: str, token: str) -> None:
    """Replace the token of a permit by one of another key."""
    with engines.writing(engine) as connection:
        connection.execute(update(permits).where(permits.c.round_id == round_id).values(token=token))


def permits_of(engine: Engine, round_ids: Collection[str]) -> dict[str, StoredPermit]:
    """Return the permits of some rounds, by their identifiers."""
    names, found = sorted(round_ids), dict[str, StoredPermit]()
    for start in range(0, len(names), PAGE_ROWS):
        some = permits.c.round_id.in_(names[start : start + PAGE_ROWS])
        with engines.reading_once(engine) as connection:
            rows = connection.execute(select(permits).where(some))
            found |= {row.round_id: StoredPermit(**row._mapping) for row in rows}
    return found


def revoked_events(engine: Engine) -> tuple[datetime, list[str]]:
    """Return the database's clock, and the events of permits whose rounds permit no release any more.

    That is the rule of `values.repeats`, in one statement: closed, or of a cohort that is not open.
    """
    over = or_(rounds.c.closing_sequence.is_not(None), heads.c.status != "open")
    query = select(permits.c.event).distinct().order_by(permits.c.event).limit(REVOKED_MAX + 1)
    query = query.join(rounds, rounds.c.round_id == permits.c.round_id)
    query = query.join(heads, heads.c.cohort == rounds.c.cohort).where(over)
    with engines.reading(engine) as connection:
        now = engines.database_time(connection)
        alive = permits.c.expires_at > now - REVOKED_FOR
        return now, list(connection.execute(query.where(alive)).scalars())


def keep_receipt(engine: Engine, receipt: StoredReceipt) -> list[StoredReceipt]:
    """Insert a receipt unless it is there; return those of its round, in the order they were recorded.

    **Guarantee**: of two receipts at once, each process sees the same one as the first. They are inserted one
    after the other, and the second one's moment is after the first one's, whatever the clocks say.
    """
    with engines.writing(engine) as connection:
        connection.execute(select(heads.c.cohort).where(heads.c.cohort == receipt.cohort).with_for_update())
        kept = _receipts_of(connection, [receipt.round_id])
        if receipt.digest not in [each.digest for each in kept]:
            last = kept[-1].recorded_at + timedelta(microseconds=1) if kept else receipt.recorded_at
            kept += [replace(receipt, recorded_at=max(receipt.recorded_at, last))]
            connection.execute(insert(receipts).values(vars(kept[-1])))
        return kept


def receipts_of(engine: Engine, round_ids: Collection[str]) -> list[StoredReceipt]:
    """Return the receipts of some rounds, in the order they were recorded."""
    names, found = sorted(round_ids), list[StoredReceipt]()
    for start in range(0, len(names), PAGE_ROWS):
        with engines.reading_once(engine) as connection:
            found += _receipts_of(connection, names[start : start + PAGE_ROWS])
    return found


def receipts_in(engine: Engine, cohorts: Collection[str] | None = None) -> list[StoredReceipt]:
    """Return the receipts of rounds of some cohorts, or all, in the order of digests."""
    query = select(receipts).order_by(receipts.c.digest)
    if cohorts is not None:
        names = sorted(cohorts)
        own = select(rounds.c.round_id).where(rounds.c.cohort.in_(names))
        query = query.where(or_(receipts.c.cohort.in_(names), receipts.c.round_id.in_(own)))
    with engines.reading_once(engine) as connection:
        return [StoredReceipt(**row._mapping) for row in connection.execute(query)]


def _receipts_of(connection: Connection, round_ids: Collection[str]) -> list[StoredReceipt]:
    query = select(receipts).where(receipts.c.round_id.in_(round_ids))
    rows = connection.execute(query.order_by(receipts.c.recorded_at, receipts.c.digest))
    return [StoredReceipt(**row._mapping) for row in rows]
