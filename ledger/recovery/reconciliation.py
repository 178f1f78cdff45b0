"""Accepting that a ledger lost entries: nothing is decided any more where something may have been lost."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError

from shuffle_ledger.ledger.decisions.freezing import freezing
from shuffle_ledger.ledger.errors import Conflict, LostRace, TryAgain
from shuffle_ledger.ledger.storage import anchor, appends, engine
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.requests import NOTHING_LATER, REASON_LENGTH_MAX
from shuffle_ledger.ledger.values.texts import checked_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """A loss that somebody accepted."""

    number: int
    frozen: tuple[str, ...]  # cohorts that admit nothing any more
    lost: tuple[str, ...]  # cohorts that are gone, whose names are never opened again


def reconcile(
    store: Store, checkpoint: Checkpoint, *, reason: str, actor: str, nothing_later: bool = False
) -> Reconciled:
    """Record that entries were lost, and freeze every cohort that may have lost some.

    **Guarantee**: no cohort that lost an entry admits a round again, under its name, on what is left of its
    chain. Entries written after the checkpoint are in no checkpoint, so every cohort is frozen, unless the
    actor attests that there were none (`nothing_later`): then only those behind the checkpoint are.

    Cohorts that were both opened and lost after the checkpoint leave no trace: make checkpoints often.

    Raises:
        InvalidValue: no reason, or no actor, that can be stored.
        Conflict: the ledger lacks nothing.
        Damaged: a cohort's rows contradict its last entry; verify, and restore a sound backup first.
        TryAgain: somebody wrote meanwhile; nothing was changed.
    """
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    actor = checked_text("actor", actor)
    with engine.reading(store.engine) as connection:
        found = anchor.losses(connection, checkpoint)
    if not found:
        raise Conflict(
            "the ledger has everything that the checkpoint has seen: there is nothing to reconcile"
        )
    saved = {head.cohort: head for head in checkpoint.heads}
    names = (
        [head.cohort for head in found.behind]
        if nothing_later
        else [cohort.name for cohort in store.cohorts()]
    )
    views = [view for view in map(store.view, names) if view.cohort.status != "frozen"]
    said: dict[str, Any] = {
        "reason": reason,
        "checkpoint": checkpoint.signed_bytes().hex(),
        "nothing_later": NOTHING_LATER if nothing_later else None,
    }
    drafts = [freezing(store, view, saved.get(view.cohort.name), said, actor=actor) for view in views]
    try:
        with engine.writing(store.engine) as connection:
            number = anchor.insert_reconciliation(
                connection, checkpoint, found, reason=reason, actor=actor, nothing_later=nothing_later
            )
            if views:
                pairs = zip(views, drafts, strict=True)
                appends.write(connection, [appends.Step.of(view, draft) for view, draft in pairs])
    except (IntegrityError, LostRace) as error:
        raise TryAgain("somebody wrote to the ledger meanwhile; nothing was changed, try again") from error
    for view in views:
        _log.error("cohort %s is FROZEN since entry %d", view.cohort.name, view.head_sequence + 1)
    return Reconciled(
        number=number,
        frozen=tuple(view.cohort.name for view in views),
        lost=tuple(head.cohort for head in found.missing),
    )
