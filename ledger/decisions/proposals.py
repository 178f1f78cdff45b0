"""Raising a budget that was opened with a ceiling: one person proposes, another one approves.

The promise of such a cohort is that of its ceiling, whoever raises the budget and why. So approvals guard the
budget against haste, and no theorem rests on them. Source: docs/decisions/0018-quotas-and-ceilings.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from shuffle_ledger.accounting import Accountant, exact_text
from shuffle_ledger.ledger.decisions.budget_changes import change_budget, check_raise, times_changed
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    Cohort,
    Proposal,
    checked_epsilon,
)
from shuffle_ledger.ledger.values.texts import checked_text

LIFETIME: Final = timedelta(days=7)  # of a proposal


def propose(store: Store, cohort: str, *, epsilon: float, reason: str, actor: str) -> Proposal:
    """Propose to raise a cohort's budget, in place of what was proposed before. Changes nothing else.

    A proposal ends after 7 days, or when the budget is changed.

    Raises:
        NotFound: no such cohort.
        InvalidValue: no epsilon or reason that there can be, not more than the present budget, or more than
            the ceiling.
        Conflict: the cohort has no ceiling, so that one person may raise its budget; or it is frozen.
    """
    actor = checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    epsilon, cohort = checked_epsilon(epsilon), checked_text("cohort", cohort)
    changes = times_changed(store, cohort)  # first: a change after it ends the proposal
    found = store.cohort(cohort)
    if found.ceiling is None:
        raise Conflict(
            f"cohort {found.name!r} was opened without a ceiling: one person may change its budget"
        )
    if epsilon <= found.epsilon_budget:
        expected = (
            f"more than the present budget, {exact_text(found.epsilon_budget)}: one person may lower it"
        )
        raise InvalidValue(field="epsilon", value=epsilon, expected=expected)
    check_raise(found, epsilon)
    if found.status == "frozen":
        raise Conflict(f"cohort {found.name!r} is frozen: nothing about it is decided any more")
    return store.put_proposal(
        cohort=found.name, epsilon=epsilon, changes_before=changes, reason=reason, proposed_by=actor
    )


def approve(store: Store, accountant: Accountant, cohort: str, *, epsilon: float, actor: str) -> Cohort:
    """Approve what somebody else proposed, so that it is done; return the cohort with its new budget.

    Approving again what was done changes nothing.

    Args:
        store: the ledger.
        accountant: what computes.
        cohort: whose budget is raised.
        epsilon: what is approved: it must be what was proposed.
        actor: who approves; not who proposed.

    Raises:
        NotFound: no such cohort, or no proposal that is still open.
        InvalidValue: another epsilon was proposed.
        Conflict: the same person proposed it.
        What `change_budget` raises.
    """
    actor = checked_text("actor", actor)
    proposal = open_proposal(store, cohort)
    if proposal is None:
        found = store.cohort(cohort)
        if found.ceiling is not None and found.epsilon_budget == epsilon:
            return found  # done before: the answer may have been lost
        raise NotFound(f"cohort {cohort!r}: nothing is proposed that is still open")
    if checked_epsilon(epsilon) != proposal.epsilon:
        expected = f"{exact_text(proposal.epsilon)}, which {proposal.proposed_by!r} proposed"
        raise InvalidValue(field="epsilon", value=epsilon, expected=expected)
    if actor == proposal.proposed_by:
        raise Conflict(f"{actor!r} proposed it: another person has to approve it")
    return change_budget(
        store,
        accountant,
        proposal.cohort,
        epsilon=epsilon,
        reason=proposal.reason,
        actor=actor,
        approves=proposal,
    )


def open_proposal(store: Store, cohort: str) -> Proposal | None:
    """Return what is proposed for a cohort and may be approved; None if nothing is; raises NotFound."""
    found = store.cohort(checked_text("cohort", cohort))
    proposal, now = store.proposal(found.name)
    if proposal is None or proposal.proposed_at + LIFETIME <= now:
        return None
    return proposal if times_changed(store, found.name) == proposal.changes_before else None
