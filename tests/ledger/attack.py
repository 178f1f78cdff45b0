"""What an attacker with write access does to a ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, text

from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry


@contextmanager
def disarmed(store: Store) -> Iterator[Connection]:
    """Yield a connection on which neither triggers nor foreign keys stand in the way."""
    engine = create_engine(store.engine.url)
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET session_replication_role = replica"))
        else:
            triggers = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            for name in triggers.scalars().all():
                connection.execute(text(f"DROP TRIGGER {name}"))
        yield connection
    engine.dispose()


def rewrite(
    store: Store,
    sequence: int,
    forge: Callable[[EntryBody], EntryBody],
    *,
    rest: bool = True,
    cohort: str = "phones",
) -> None:
    """Change one entry, and make the rest of its chain and the head fit again."""
    previous = bytes(32)
    update = "UPDATE entries SET kind = :kind, body = :body, previous_digest = :previous_digest,"
    update += " digest = :digest WHERE cohort = :cohort AND sequence = :sequence"
    with disarmed(store) as connection:
        for entry in list(store.entries_of(cohort)):
            if entry.sequence < sequence or (entry.sequence > sequence and not rest):
                previous = entry.digest
                continue
            body = entry.content()
            forged = LedgerEntry.following(previous, forge(body) if entry.sequence == sequence else body)
            previous = forged.digest
            values = {name: value for name, value in vars(forged).items() if name != "round_id"}
            connection.execute(text(update), values)
        if rest:
            head = {"digest": previous, "cohort": cohort, "used_share": forged.content().used_share}
            fits = "UPDATE heads SET digest = :digest, used_share = :used_share WHERE cohort = :cohort"
            connection.execute(text(fits), head)


def stating(**details: Any) -> Callable[[EntryBody], EntryBody]:
    """Return a forgery that states other details; an ellipsis leaves one out."""

    def forge(body: EntryBody) -> EntryBody:
        said = {name: value for name, value in {**body.details, **details}.items() if value is not ...}
        return dataclasses.replace(body, details=said)

    return forge
