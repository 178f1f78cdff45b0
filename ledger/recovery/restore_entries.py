"""Bringing lost entries back from a copy of the chains: byte for byte, and only what a signed head proves.

A checkpoint names the digest of a chain's last entry, and that digest binds every entry before it. So the
copy need not come from a trusted place: entries that lead from the ledger's head to the checkpoint's head
*are* the lost ones. They are appended unchanged. The tables are set to the result of a replay of the chain,
with which verification compares them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import ColumnElement, Connection, func, select, text
from sqlalchemy.exc import IntegrityError

from shuffle_ledger.ledger.errors import Conflict, Damaged, LedgerError, LostRace, NotFound, TryAgain
from shuffle_ledger.ledger.storage import anchor, appends, engine, rows
from shuffle_ledger.ledger.storage.anchor import Losses
from shuffle_ledger.ledger.storage.appends import Step
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import rounds
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, CheckpointHead
from shuffle_ledger.ledger.values.entries import (
    FIRST_SEQUENCE,
    GENESIS_DIGEST,
    EntryBody,
    EntryKind,
    LedgerEntry,
)
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    Cohort,
    declared_from,
    request_digest,
)
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.verification.replay import EntrySource, Replay

_DECISIONS = (EntryKind.ADMITTED, EntryKind.REFUSED)


@dataclass(frozen=True, kw_only=True)
class Unproven:
    """A cohort that still lacks entries, and why they were not brought back."""

    cohort: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """The entries that were brought back."""

    number: int  # of the record in the ledger
    entries: dict[str, int]  # how many, by cohort
    unproven: tuple[Unproven, ...]  # nothing is written while there are any


class Copy(EntrySource, Protocol):
    """Chains kept elsewhere, as in a bundle."""

    def cohorts(self) -> Iterable[str]:
        """Name the cohorts it has chains of."""


def recover(store: Store, checkpoint: Checkpoint, source: Copy, *, reason: str, actor: str) -> Recovered:
    """Append the lost entries that `source` has, of every cohort of which it has them all.

    With this command the actor attests that no entry was written after the checkpoint: the loss of such an
    entry could not be detected.

    **Guarantee**: afterwards each of these chains is, to the last byte, the one that the checkpoint signed.
    Nothing is brought back of a chain that lacks one entry, that was written on after the database was put
    back (frozen ones are among them), or that goes on behind the checkpoint's head, for what follows there
    is not proven and must not be dropped either. All is written, or nothing.

    Args:
        checkpoint: its signature must have been checked.
        source: a copy of the chains, as in a bundle. It is not believed.

    Raises:
        InvalidValue: no reason, or no actor, that can be stored.
        Conflict: the ledger lacks nothing, it is another ledger, the copy has no cohort's lost entries, or
            a round of theirs was registered otherwise since; nothing was changed.
        TryAgain: somebody wrote meanwhile; nothing was changed.
    """
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    actor = checked_text("actor", actor)
    with engine.reading(store.engine) as connection:
        found = anchor.losses(connection, checkpoint)
    if not found:
        raise Conflict("the ledger has everything that the checkpoint has seen: there is nothing to recover")
    if found.of_another_ledger:
        raise Conflict("the checkpoint is of another ledger: its entries have no place here")
    _check_nothing_later(checkpoint, found, source)
    tails, unproven = _tails(store, found, source)
    if not tails:
        raise Conflict("; ".join(f"{each.cohort}: {each.why}" for each in unproven[: anchor.NAMED_MAX]))
    nothing_lost = Losses(of_another_ledger=False, behind=(), missing=())
    try:
        with engine.writing(store.engine) as connection:
            number = anchor.insert_reconciliation(
                connection, checkpoint, nothing_lost, reason=reason, actor=actor, nothing_later=True
            )
            for lost in tails.values():
                _append(connection, lost)
            _count_on(connection)
    except (IntegrityError, LostRace) as error:
        raise TryAgain("somebody wrote to the ledger meanwhile; nothing was changed, try again") from error
    return Recovered(
        number=number,
        entries={cohort: len(lost) for cohort, lost in tails.items()},
        unproven=tuple(unproven),
    )


def _check_nothing_later(checkpoint: Checkpoint, found: Losses, source: Copy) -> None:
    """Raise Conflict if the copy shows that a cohort that seems complete lost entries too.

    Those that lack entries by the checkpoint are looked at one by one.
    """
    lacking = {head.cohort for head in (*found.behind, *found.missing)}
    heads = {head.cohort: head.sequence for head in checkpoint.heads}
    for cohort in source.cohorts():
        last = max((entry.sequence for entry in source.entries_of(cohort)), default=0)
        if cohort not in lacking and last > heads.get(cohort, 0):
            raise Conflict(
                f"{cohort}: the copy goes on behind entry {heads.get(cohort, 0)}, the last one of the"
                " checkpoint: take a newer checkpoint, such as the one in the bundle"
            )


def _tails(store: Store, found: Losses, source: EntrySource) -> tuple[dict[str, list[Step]], list[Unproven]]:
    tails, unproven = {}, []
    for head in (*found.behind, *found.missing):
        try:
            tails[head.cohort] = _tail(store, head, source)
        except LedgerError as error:
            unproven.append(Unproven(cohort=head.cohort, why=str(error)))
    return tails, unproven


def _tail(store: Store, head: CheckpointHead, source: EntrySource) -> list[Step]:
    """Return what the ledger lacks of a chain up to `head`; raises LedgerError unless all of it is proven."""
    view = _present(store, head.cohort)
    here, digest = (0, b"") if view is None else (view.head_sequence, view.head_digest)
    if here >= head.sequence:
        raise Conflict(f"entry {head.sequence} is not the one of the checkpoint: others were written since")
    replay = Replay(store=source, cohort=head.cohort)
    lost: list[Step] = []
    for step in replay.steps():
        if replay.problems or step.sequence > head.sequence:
            break
        if step.sequence == here and replay.head_digest != digest:
            raise Conflict(f"entry {here} is not the one in the copy: other entries were written since")
        if step.sequence > here:
            lost.append(_step(view or _unopened(step.body), step.body, replay))
            view = lost[-1].after
    if replay.problems:
        raise Damaged(
            f"the copy does not hold: entry {replay.problems[0].sequence}: {replay.problems[0].what}"
        )
    if replay.head_sequence > head.sequence:
        raise Conflict(
            f"the copy goes on behind entry {head.sequence}, the last one of the checkpoint: take a newer"
            " checkpoint, such as the one in the bundle"
        )
    if (replay.head_sequence, replay.head_digest.hex()) != (head.sequence, head.digest_hex):
        raise Conflict(f"the copy does not lead to entry {head.sequence} of the checkpoint")
    if replay.fold.opened is None:
        raise Damaged("the copy does not begin with the entry that opened the cohort")
    with engine.reading(store.engine) as connection:
        _check_parts(connection, lost)
    return lost


def _present(store: Store, cohort: str) -> CohortView | None:
    try:
        return store.view(cohort)
    except NotFound:
        return None


def _step(view: CohortView, body: EntryBody, replay: Replay) -> Step:
    """Return an entry that was just replayed, byte for byte, and what the tables beside the chain follow."""
    opens = _as_opened(body) if body.kind is EntryKind.OPENED else None
    budget = body.epsilon_budget if opens or body.kind is EntryKind.BUDGET_CHANGED else None
    changes = (
        HoldingChange(
            accounted=kind,
            count=replay.fold.held[kind] - view.held.get(kind, 0),
            local_count=replay.fold.local[kind] - view.local.get(kind, 0),
        )
        for kind in {*view.held, *replay.fold.held, *view.local, *replay.fold.local}
    )
    draft = EntryDraft(
        kind=body.kind,
        round_id=body.round_id,
        actor=body.actor,
        numerical_policy=body.numerical_policy,
        spent=body.spent,
        details=body.details,
        changes=tuple(each for each in changes if each.count or each.local_count),
        status=replay.fold.status,
        epsilon_budget=budget,
        opens=opens,
    )
    entry = LedgerEntry.following(view.head_digest, body)
    if entry.digest != replay.head_digest:
        raise Damaged(f"entry {body.sequence} of {body.cohort!r} would not be what it was")
    return Step(view, draft, body, entry)


def _unopened(body: EntryBody) -> CohortView:
    """Return the view of a cohort before the entry that opens it."""
    cohort, at = _as_opened(body), body.recorded_at
    return CohortView(cohort=cohort, head_sequence=0, head_digest=GENESIS_DIGEST, spent=body.spent, at=at)


def _as_opened(body: EntryBody) -> Cohort:
    return Cohort(
        name=body.cohort,
        population=body.details["population"],
        epsilon_budget=body.epsilon_budget,
        delta_budget=body.delta_budget,
        policy=body.details["policy"],
        status="open",
        opened_at=body.recorded_at,
        **declared_from(body.details),
    )


def _append(connection: Connection, lost: Sequence[Step]) -> None:
    for step in lost:
        if step.entry.sequence == FIRST_SEQUENCE:
            rows.insert_cohort(connection, step.view.cohort, step.entry)
            continue
        if step.body.kind in _DECISIONS or _is_first_restated(connection, step.body):
            _register(connection, step.body)
        appends.write(connection, [step])
        _check_parts(connection, [step])  # now: no other session opens one


def _check_parts(connection: Connection, lost: Sequence[Step]) -> None:
    """Raise Conflict if an entry opens a cohort again of which a part has the rules of the opening before."""
    for body in (each.body for each in lost if each.body.kind is EntryKind.OPENED):
        if (part := rows.part_of(connection, body.cohort)) is not None:
            raise Conflict(f"{part} was opened since, by rules that entry {body.sequence} replaced")


def _register(connection: Connection, body: EntryBody) -> None:
    """Put back the row of a decided round as it was registered, unless the older state has it already."""
    content = canonical.encode(body.details["request"])
    registration = body.details["registration"]
    row: dict[str, object] = {
        "round_id": body.round_id,
        "cohort": body.cohort,
        "content": content,
        "content_digest": request_digest(content),
        "registration": registration,
        "registered_at": datetime.fromisoformat(body.details["registered_at"]),
        "registered_by": body.details.get("registered_by", body.actor),  # incidents name others
    }
    first = select(rounds.c.registration).where(rounds.c.round_id == body.round_id, rows.FIRST)
    row["shared"] = connection.execute(first.where(rounds.c.cohort != body.cohort)).first() is not None
    if rows.insert_round(connection, {**row, "outcome_sequence": None}) is not None:
        return
    stored = connection.execute(select(rounds).where(*_row_of(body))).one_or_none()
    if stored is None:
        raise Conflict(f"registration {registration}, of round {body.round_id!r}, was given to another since")
    if stored.outcome_sequence is not None or any(stored._mapping[name] != row[name] for name in row):
        raise Conflict(f"round {body.round_id!r} was registered otherwise since")


def _row_of(body: EntryBody) -> tuple[ColumnElement[bool], ...]:
    return (rounds.c.round_id == body.round_id, rounds.c.cohort == body.cohort)


def _is_first_restated(connection: Connection, body: EntryBody) -> bool:
    """Whether an entry tells a release of a round that nothing decided."""
    if body.kind is not EntryKind.INCIDENT:
        return False
    decided = select(rounds.c.outcome_sequence).where(*_row_of(body))
    return connection.execute(decided).scalar_one_or_none() is None


def _count_on(connection: Connection) -> None:
    """Let registrations go on behind those that were put back; SQLite sees to it by itself."""
    if connection.dialect.name == "postgresql":
        sequence = text("pg_get_serial_sequence('rounds', 'registration')")
        last = select(func.max(rounds.c.registration)).scalar_subquery()
        connection.execute(select(func.setval(sequence, func.greatest(last, func.nextval(sequence)))))
