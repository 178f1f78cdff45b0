"""Detection of a database that was put back to an earlier state, before anything is written, and its
reconciliation.

Rounds that a restored backup does not contain may have been released, so they must not be decided again. An
*anchor* is a checkpoint that is kept outside of the database. While a chain lacks the head that the anchor
names, nothing is written, no statement is made, and no budget says what is left. Reconciliation records the
person that accepted the loss, and freezes every cohort that may have lost an entry: its spending is unknown
from then on, never zero.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, event, func, insert, select, tuple_

from shuffle_ledger.ledger.errors import BadSignature, BehindCheckpoint, InvalidValue
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import rows
from shuffle_ledger.ledger.storage.tables import entries, heads, lost_cohorts, reconciliations
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.checkpoint import (
    Checkpoint,
    CheckpointHead,
    check_signature,
    read_checkpoint,
)
from shuffle_ledger.ledger.values.signing import read_public_key

if TYPE_CHECKING:
    from shuffle_ledger.ledger.answers.heads import Standing, StoredHead
    from shuffle_ledger.ledger.settings import Settings
    from shuffle_ledger.ledger.storage.store import Store

NAMED_MAX = 5  # cohorts that an error names
_HEADS_AT_ONCE = 500
CHECKED_SECONDS = 1.0  # connections opened this shortly after a check are not checked again


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A checkpoint in a file outside the database."""

    path: Path
    trusted_public_key: bytes | None = None

    @classmethod
    def of(cls, settings: Settings) -> Anchor | None:
        """Return the anchor that the settings name, if any; raises InvalidValue."""
        if settings.checkpoint is None:
            return None
        key = settings.checkpoint_key
        return cls(path=settings.checkpoint, trusted_public_key=read_public_key(key) if key else None)

    def read(self) -> Checkpoint:
        """Return the checkpoint.

        Raises:
            InvalidValue: the file cannot be read or holds no checkpoint: removing the file does not help an
                attacker.
            BadSignature: it was changed, or another key than the trusted one signed it.
        """
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            expected = f"a checkpoint (`audit checkpoint --output`): {error}"
            raise InvalidValue(field="checkpoint", value=str(self.path), expected=expected) from error
        checkpoint = read_checkpoint(data)
        check_signature(checkpoint, self.trusted_public_key)
        return checkpoint


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Heads of a checkpoint that a ledger lacks, and whose loss was not accepted yet."""

    of_another_ledger: bool
    behind: tuple[CheckpointHead, ...]  # of cohorts whose chain does not have this head
    missing: tuple[CheckpointHead, ...]  # of cohorts that are not there

    def __bool__(self) -> bool:
        """Return whether anything is lacking."""
        return self.of_another_ledger or bool(self.behind) or bool(self.missing)

    def describe(self) -> str:
        """Return one sentence for people."""
        names = [head.cohort for head in (*self.behind, *self.missing)]
        said = ["it is of another ledger"] if self.of_another_ledger else []
        if names:
            more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
            said.append(f"entries it has seen are gone from {', '.join(names[:NAMED_MAX])}{more}")
        return "; ".join(said)


class Guard:
    """Lets nothing be written while the ledger lacks what its anchor has seen.

    Checked before the first write, and again whenever a connection was opened since, or lost: to put a
    PostgreSQL database back, all connections are cut.
    """

    def __init__(self, engine: Engine, anchor: Anchor) -> None:
        """Watch the engine's connections."""
        self._engine = engine
        self._anchor = anchor
        self._due = True
        self._lost = 0  # connections, so far
        self._checked_at = -CHECKED_SECONDS
        event.listen(engine, "connect", self._note_connection)
        for loss in ("close", "invalidate"):
            event.listen(engine, loss, self._note_loss)

    def check(self) -> None:
        """Raises BehindCheckpoint if the ledger lacks an entry of the checkpoint, or if that cannot be
        decided."""
        if not self._due:
            return
        try:
            checkpoint = self._anchor.read()
        except (BadSignature, InvalidValue) as error:
            raise BehindCheckpoint(
                "nobody can tell whether the ledger was put back, so nothing is written, quoted or stated:"
                f" {error}"
            ) from error
        lost = self._lost
        refuse_losses(self._engine, checkpoint)
        self._due, self._checked_at = self._lost != lost, time.monotonic()

    def _note_connection(self, _connection: Any, _record: Any) -> None:
        if time.monotonic() - self._checked_at >= CHECKED_SECONDS:
            self._due = True

    def _note_loss(self, *_: Any) -> None:
        self._due = True
        self._lost += 1


def refuse_losses(engine: Engine, checkpoint: Checkpoint) -> None:
    """Raises BehindCheckpoint if the ledger lacks heads of a checkpoint and the loss was not accepted."""
    with engines.reading(engine) as connection:
        found = losses(connection, checkpoint)
    if found:
        raise BehindCheckpoint(
            f"the ledger is behind its checkpoint of {checkpoint.created_at.isoformat(timespec='seconds')}:"
            f" {found.describe()}. It was put back to an earlier state, or changed. Nothing is written,"
            " quoted or stated until the newer state is restored, `audit recover` brings it back, or"
            " `audit reconcile` accepts the loss"
        )


def standing_after(store: Store, earlier: Checkpoint | None) -> Standing:
    """Return where all chains end, to be signed elsewhere; raises BehindCheckpoint.

    It is refused if the ledger lacks what its own anchor, or the checkpoint before, has seen.
    """
    store.check_anchor()
    if earlier is not None:
        refuse_losses(store.engine, earlier)
    return store.standing()


def losses(connection: Connection, checkpoint: Checkpoint) -> Losses:
    """Returns the heads of a checkpoint that the ledger lacks, without reconciled ones."""
    standing = {head.cohort: head for head in rows.head_rows(connection)}
    frozen = set(connection.execute(select(heads.c.cohort).where(heads.c.status == "frozen")).scalars())
    lost = set(connection.execute(select(lost_cohorts.c.name)).scalars())
    accepted = select(func.count()).where(reconciliations.c.checkpoint_digest == checkpoint.signed_bytes())
    foreign = rows.ledger_id(connection) != checkpoint.ledger_id
    known = [head for head in checkpoint.heads if head.cohort in standing and head.cohort not in frozen]
    behind = [head for head in known if standing[head.cohort].sequence < head.sequence]
    # Where the head is the same, its entry is not looked for: foreign keys keep it, and decisions check it.
    reached = [head for head in known if standing[head.cohort].sequence >= head.sequence]
    moved = [head for head in reached if not _is_head(standing[head.cohort], head)]
    behind += _differing(connection, moved)
    return Losses(
        of_another_ledger=foreign and not connection.execute(accepted).scalar_one(),
        behind=tuple(sorted(behind, key=lambda head: head.cohort)),
        missing=tuple(
            head for head in checkpoint.heads if head.cohort not in standing and head.cohort not in lost
        ),
    )


def _is_head(standing: StoredHead, head: CheckpointHead) -> bool:
    return standing.sequence == head.sequence and standing.digest.hex() == head.digest_hex


def _differing(connection: Connection, expected: list[CheckpointHead]) -> Iterator[CheckpointHead]:
    place = tuple_(entries.c.cohort, entries.c.sequence)
    for begin in range(0, len(expected), _HEADS_AT_ONCE):
        some = expected[begin : begin + _HEADS_AT_ONCE]
        query = select(entries.c.cohort, entries.c.digest)
        query = query.where(place.in_([(head.cohort, head.sequence) for head in some]))
        found = {row.cohort: row.digest for row in connection.execute(query)}
        yield from (head for head in some if found.get(head.cohort, b"").hex() != head.digest_hex)


def insert_reconciliation(
    connection: Connection,
    checkpoint: Checkpoint,
    found: Losses,
    *,
    reason: str,
    actor: str,
    nothing_later: bool,
) -> int:
    """Record who accepted a loss, and which cohorts were lost whole; return the record's number."""
    number = int(
        connection.execute(select(func.coalesce(func.max(reconciliations.c.number), 0))).scalar_one()
    )
    values = {
        "number": number + 1,
        "checkpoint_digest": checkpoint.signed_bytes(),
        "checkpoint": canonical.encode(checkpoint.to_json()),
        "nothing_later": nothing_later,
        "reason": reason,
        "actor": actor,
        "recorded_at": engines.database_time(connection),
    }
    connection.execute(insert(reconciliations).values(**values))
    for head in found.missing:
        lost = {"name": head.cohort, "sequence": head.sequence, "digest": bytes.fromhex(head.digest_hex)}
        connection.execute(insert(lost_cohorts).values(reconciliation=number + 1, **lost))
    return number + 1
