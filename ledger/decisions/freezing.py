"""Freezing: the entry that says that later entries of a chain may have been lost, so that nothing is decided.

Source: docs/operations.md, "Restore".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Cohort

_SAID: Final = ("reason", "checkpoint", "nothing_later")


def freezing(
    store: Store, view: CohortView, saved: CheckpointHead | None, said: Mapping[str, Any], *, actor: str
) -> EntryDraft:
    """Return the entry that freezes a chain.

    Args:
        store: the ledger.
        view: the chain now.
        saved: the last entry that the checkpoint has seen of it; None: it has seen none.
        said: the reason, the checkpoint and whether it is attested that nothing was written after it.
        actor: who freezes it.
    """
    last_known = {"sequence": saved.sequence, "digest": saved.digest_hex} if saved else None
    return EntryDraft(
        kind=EntryKind.FROZEN,
        round_id=None,
        actor=actor,
        numerical_policy=NUMERICAL_POLICY,
        spent=view.spent.unknown_after(view.head_sequence),
        details={**said, "last_known": last_known, **registry.policy_of(store, view).unchanged(view)},
        status="frozen",
    )


def loss_of(store: Store, cohort: Cohort) -> dict[str, Any] | None:
    """Return what was said when a cohort was frozen, if its lost rounds may be of any period of its windows.

    None of an open cohort; and if it was attested that nothing was written after the checkpoint, for then the
    names of lost periods are known, and are not opened again.
    """
    if cohort.status != "frozen":
        return None
    entry = store.freeze_of(cohort.name)
    details = {} if entry is None else entry.content().details
    return None if details.get("nothing_later") else {name: details.get(name) for name in _SAID}
