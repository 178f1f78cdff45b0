"""Changing a cohort's budget: never silently, and never so that a broken promise looks kept."""

from __future__ import annotations

from shuffle_ledger.accounting import NUMERICAL_POLICY, exact_text
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.errors import Conflict, InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    Cohort,
    checked_epsilon,
)
from shuffle_ledger.ledger.values.texts import checked_text


def change_budget(
    store: Store,
    name: str,
    *,
    epsilon: float,
    reason: str,
    actor: str,
    delta: float | None = None,
) -> Cohort:
    """Give a cohort another epsilon from now on; return the cohort.

    Raised: the larger epsilon is what is promised, for the outputs of before too. Filters keep their shares
    of delta and their rules, and hold up to the new epsilon. Lowered: the smaller one is promised, so what is
    held, or the plan, must fit it. With a ceiling, that is what is promised, and the budget only says what is
    refused. An overspent cohort stays overspent whatever its budget is: it broke its promise.
    Delta never changes, because filters divided it when the cohort was opened.

    A cohort with a ceiling is never raised beyond it. A quota is at most its cohort's budget: see `quotas`.

    Args:
        store: the ledger.
        name: the cohort.
        epsilon: its budget's from now on.
        reason: why, for the record.
        actor: who changes it.
        delta: None, or the present one.

    Raises:
        NotFound: no such cohort.
        InvalidValue: `epsilon` is no epsilon or the present one, or above the ceiling or, of a quota, above
            its cohort's budget; `delta` is another one than the present; the reason is none.
        Conflict: nothing is decided about the cohort any more, or its budget may not change so.
        TryAgain, Unavailable: nothing was changed, but for AnswerLost: it may have been.
    """
    name, actor = checked_text("cohort", name), checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    epsilon = checked_epsilon(epsilon)

    def decide(view: CohortView) -> EntryDraft:
        cohort = view.cohort
        _check(store, cohort, epsilon=epsilon, delta=delta)
        policy = registry.policy_of(store, view)
        step = policy.rebudgeted(view, epsilon)
        return EntryDraft(
            kind=EntryKind.BUDGET_CHANGED,
            round_id=None,
            actor=actor,
            numerical_policy=NUMERICAL_POLICY,
            spent=step.spent,
            details={
                "reason": reason,
                "epsilon_before": cohort.epsilon_budget,
                **step.details,
            },
            status="overspent" if step.posting.is_overspent else None,
            epsilon_budget=epsilon,
        )

    entry = optimistic_append.append(store, name, decide)
    if not isinstance(entry, LedgerEntry):
        raise AssertionError("every decision about a budget is an entry")
    return store.cohort(name)


def check_quota(parent: Cohort, epsilon: float) -> None:
    """Raise InvalidValue or Conflict if no quota of a cohort may be set to an epsilon now."""
    if not parent.has_life:
        raise Conflict(f"cohort {parent.name!r} has no budget of its life, of which a quota would be a part")
    if epsilon > parent.epsilon_budget:
        expected = f"at most {exact_text(parent.epsilon_budget)}, the cohort's own budget"
        raise InvalidValue(field="epsilon", value=epsilon, expected=expected)


def _check(store: Store, cohort: Cohort, *, epsilon: float, delta: float | None) -> None:
    """Raise InvalidValue or Conflict, as `change_budget`, if a cohort must not be given this budget."""
    if cohort.period is not None:
        raise Conflict(
            f"{cohort.name!r} is a period of a window of cohort {cohort.period.cohort!r}: what a window"
            " allows is fixed when the cohort is opened"
        )
    if not cohort.has_life:
        raise Conflict(
            f"cohort {cohort.name!r} has no budget of its life, and what a period allows is fixed when the"
            " cohort is opened"
        )
    if delta is not None and delta != cohort.delta_budget:
        expected = f"{exact_text(cohort.delta_budget)}, for delta never changes"
        raise InvalidValue(field="delta", value=delta, expected=expected)
    if epsilon == cohort.epsilon_budget:
        expected = "another budget than the present one"
        raise InvalidValue(field="epsilon", value=epsilon, expected=expected)
    if cohort.ceiling is not None and epsilon > cohort.ceiling:
        expected = f"at most {exact_text(cohort.ceiling)}, the ceiling that the cohort was opened with"
        raise InvalidValue(field="epsilon", value=epsilon, expected=expected)
    if cohort.quota is not None:
        check_quota(store.cohort(cohort.quota.cohort), epsilon)
    if cohort.status in ("closed", "frozen"):
        raise Conflict(f"cohort {cohort.name!r} is {cohort.status}: nothing about it is decided any more")
