"""The decision itself: what a cohort's policy makes of a round, and the entry that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import (
    NUMERICAL_POLICY,
    Accountant,
    AccountsReading,
    ShuffledRound,
    exact_text,
    upper_text,
)
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.base import slot_of
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind, Spending
from shuffle_ledger.ledger.values.requests import RefusalReason, RoundRequest, checked_reports


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is answered, and the numbers that decided."""

    accounted: ShuffledRound
    reason: RefusalReason | None  # None: admitted
    message: str | None
    requested: Spending | None  # with the round; None when it was not computed
    details: Mapping[str, Any]  # what the policy writes into the entry


def decide(
    store: Store, accountant: Accountant, view: CohortView, request: RoundRequest, *, keep: bool
) -> Decision:
    """Return what the answer to a request is, for a cohort as `view` says; `keep` stores a new privacy loss.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    cohort = view.cohort
    policy = registry.policy_of(store, view)
    accounted = slot_of(request.round)
    if cohort.status != "open":
        reason, message = _closed(view)
        details = policy.unchanged(view)
        return Decision(accounted=accounted, reason=reason, message=message, requested=None, details=details)
    slot = policy.accounted(view, request.round)
    if slot is None:
        return Decision(
            accounted=accounted,
            reason=RefusalReason.NO_FREE_SLOT,
            message="The cohort's plan has no free slot whose cost is known to cover this round.",
            requested=None,
            details=policy.unchanged(view),
        )
    accounted = slot
    books = Books(store=store, accountant=accountant, keep=keep)
    step = policy.admitting(books, view, accounted)
    requested = step.spent
    if step.is_within(cohort.epsilon_budget):
        return Decision(
            accounted=accounted, reason=None, message=None, requested=requested, details=step.details
        )
    at, budget = f"at delta {exact_text(cohort.delta_budget)}", exact_text(cohort.epsilon_budget)
    if step.lacks_delta is not None:
        reason, message = RefusalReason.DELTA_ACCOUNT_EXHAUSTED, _lacks_delta(step.lacks_delta)
    elif requested.epsilon_upper_or_none is None:
        reason = RefusalReason.UNBOUNDED_LOSS
        message = f"With this round no finite epsilon holds {at}; the budget is {budget}."
    else:
        reason = RefusalReason.BUDGET_EXCEEDED
        message = (
            "With this round the cohort would have spent at most epsilon"
            f" {upper_text(requested.epsilon_upper)} {at}, which is above the budget of {budget};"
            f" it has spent at most {upper_text(view.spent.epsilon_upper)}."
        )
    # The charge it would have had, beside the standing that it leaves as it was.
    details = {**step.details, **policy.unchanged(view)}
    return Decision(accounted=accounted, reason=reason, message=message, requested=requested, details=details)


def is_quick(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Whether a decision needs nothing but what is in memory, and may be awaited."""
    if view.cohort.status != "open":
        return True
    policy = registry.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None:
        return True
    books = Books(store=store, accountant=accountant)
    return policy.is_quick(books, view, accounted) and loss_cache.is_stored(store, accounted)


def prepare(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Do what makes a decision quick, if that takes no long computation; return whether it does.

    Raises:
        AccountingError, LedgerError: as `decide`.
    """
    policy = registry.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None or not loss_cache.is_stored(store, accounted):
        return False
    return policy.prepare(Books(store=store, accountant=accountant), view, accounted)


def draft(
    store: Store, accountant: Accountant, view: CohortView, stored: StoredRound, request: RoundRequest
) -> EntryDraft:
    """Return the entry that decides a round, with all that decided; raises what `decide` raises."""
    decision = decide(store, accountant, view, request, keep=True)
    details = {
        "request": request.to_mapping(),
        "accounted": decision.accounted.to_mapping(),
        "requested": decision.requested.to_mapping() if decision.requested else None,
        "privacy_loss": None,
        # The row says these too; here nobody changes them unseen.
        "registration": stored.registration,
        "registered_at": stored.registered_at.isoformat(timespec="microseconds"),
        **decision.details,
    }
    if decision.requested is not None:
        details["privacy_loss"] = loss_cache.digest_of(store, accountant, decision.accounted).hex()
    if decision.reason is not None or decision.requested is None:
        details |= {"reason": decision.reason, "message": decision.message}
        return _entry_draft(EntryKind.REFUSED, stored, view.spent, details)
    reservation = HoldingChange(accounted=decision.accounted, count=1, local_count=1)
    return _entry_draft(EntryKind.ADMITTED, stored, decision.requested, details, reservation)


def check_request(request: RoundRequest, cohort: str, population: int) -> None:
    """Raise InvalidValue if a round is of another cohort, or larger than this one."""
    if request.cohort != cohort:
        raise InvalidValue(field="cohort", value=request.cohort, expected=repr(cohort))
    check_sizes(request.round, population)


def check_sizes(described: ShuffledRound, population: int) -> None:
    """Raise InvalidValue if a round has more reports, or a larger population to sample, than a cohort."""
    checked_reports(described.reports, field="reports", population=population)
    if described.sampled_from is not None:
        checked_reports(described.sampled_from, field="sampled_from", population=population)


def _entry_draft(
    kind: EntryKind, stored: StoredRound, spent: Spending, details: dict[str, object], *changes: HoldingChange
) -> EntryDraft:
    return EntryDraft(
        kind=kind,
        round_id=stored.round_id,
        actor=stored.registered_by,
        numerical_policy=NUMERICAL_POLICY,
        spent=spent,
        details=details,
        changes=changes,
    )


def _lacks_delta(account: AccountsReading) -> str:
    certain = f"{exact_text(account.certain_loss_used_upper)} of {exact_text(account.certain_loss_share)}"
    slack = f"{exact_text(account.slack_used_upper)} of {exact_text(account.slack_share)}"
    return (
        "With this round the cohort's approximate rounds would use more of delta than is set aside for them:"
        f" {certain} for losses that are certain, and {slack} for local deltas at epsilon"
        f" {exact_text(account.epsilon)}. Rounds without a delta of their own are not concerned."
    )


def _closed(view: CohortView) -> tuple[RefusalReason, str]:
    if view.cohort.status == "frozen":
        return RefusalReason.COHORT_FROZEN, (
            "The cohort is frozen, for entries were lost when the database was put back to an earlier state:"
            " what it has spent is unknown, and it admits nothing any more."
        )
    return RefusalReason.COHORT_OVERSPENT, (
        "The cohort is overspent, for a released round cost more than the budget, or the budget was lowered"
        " below what was promised. It admits nothing any more:"
        f" at most epsilon {upper_text(view.spent.epsilon_upper)} of"
        f" {exact_text(view.cohort.epsilon_budget)} is spent."
    )
