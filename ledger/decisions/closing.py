"""Closing a cohort that is not needed any more: it admits nothing from then on, and its record stays."""

from __future__ import annotations

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import REASON_LENGTH_MAX, Cohort
from shuffle_ledger.ledger.values.texts import checked_text


def close_cohort(store: Store, name: str, *, reason: str, actor: str) -> Cohort:
    """Close a cohort for ever, and return it; one that is closed stays as it is.

    Its budgets, its periods (those that do not exist yet, too) and its quotas admit nothing any more, for
    every round is decided by the cohort's own chain. How rounds of before ended, what they were and what was
    released besides is still recorded and charged.

    Args:
        store: the ledger.
        name: the cohort.
        reason: why, for the record.
        actor: the author.

    Raises:
        NotFound: no such cohort.
        InvalidValue: the reason is none.
        Conflict: it is a part of a cohort, or it is overspent or frozen: it admits nothing anyway.
        TryAgain, Unavailable: nothing was changed, but for AnswerLost: it may have been.
    """
    name, actor = checked_text("cohort", name), checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)

    def decide(view: CohortView) -> EntryDraft | Cohort:
        cohort = view.cohort
        if cohort.parent is not None:
            raise Conflict(f"{name!r} is a part of cohort {cohort.parent!r}: close that one")
        if cohort.status in ("overspent", "frozen"):
            raise Conflict(f"cohort {name!r} is {cohort.status}: it admits nothing anyway")
        if cohort.status == "closed":
            return cohort
        return EntryDraft(
            kind=EntryKind.CLOSED,
            round_id=None,
            actor=actor,
            numerical_policy=NUMERICAL_POLICY,
            spent=view.spent,
            details={"reason": reason, **registry.policy_of(store, view).unchanged(view)},
            status="closed",
        )

    found = optimistic_append.append(store, name, decide)
    return found if isinstance(found, Cohort) else store.cohort(name)
