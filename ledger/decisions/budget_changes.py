"""Changing a cohort's budget: never silently, and never so that a broken promise looks kept."""

from __future__ import annotations

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, exact_text
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.errors import Conflict, InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import REASON_LENGTH_MAX, Cohort, checked_epsilon
from shuffle_ledger.ledger.values.texts import checked_text


def change_budget(
    store: Store,
    accountant: Accountant,
    name: str,
    *,
    epsilon: float,
    reason: str,
    actor: str,
    delta: float | None = None,
) -> Cohort:
    """Give a cohort another epsilon from now on; return the cohort.

    Raised: the larger epsilon is what is promised, for the outputs of before too. Filters keep their shares
    of delta and their rules, and hold up to the new epsilon; how many repetitions that allows is certified
    now. Lowered: the smaller one is promised if what is spent, or the plan, is within it; otherwise the
    cohort is overspent from now on. An overspent cohort stays overspent whatever is raised: it broke its
    promise. Delta never changes, because filters divided it when the cohort was opened.

    Raises:
        NotFound: no such cohort.
        InvalidValue: `epsilon` is no epsilon or the present one, `delta` is another one than the present, the
            reason is none.
        Conflict: nothing is decided about the cohort any more.
        TryAgain, Unavailable: nothing was changed, but for AnswerLost: it may have been.
    """
    name, actor = checked_text("cohort", name), checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    epsilon = checked_epsilon(epsilon)

    def decide(view: CohortView) -> EntryDraft:
        cohort = view.cohort
        if cohort.period is not None:
            raise Conflict(
                f"{name!r} is a period of a window of cohort {cohort.period.cohort!r}: what a window allows"
                " is fixed when the cohort is opened"
            )
        if delta is not None and delta != cohort.delta_budget:
            expected = f"{exact_text(cohort.delta_budget)}, for delta never changes"
            raise InvalidValue(field="delta", value=delta, expected=expected)
        if epsilon == cohort.epsilon_budget:
            raise InvalidValue(field="epsilon", value=epsilon, expected="another budget than the present one")
        if cohort.status == "frozen":
            raise Conflict(f"cohort {name!r} is frozen: nothing about it is decided any more")
        policy = registry.policy_of(store, view)
        step = policy.rebudgeted(Books(store=store, accountant=accountant), view, epsilon)
        return EntryDraft(
            kind=EntryKind.BUDGET_CHANGED,
            round_id=None,
            actor=actor,
            numerical_policy=NUMERICAL_POLICY,
            spent=step.spent,
            details={"reason": reason, "epsilon_before": cohort.epsilon_budget, **step.details},
            status="overspent" if not step.is_within(epsilon) else None,
            epsilon_budget=epsilon,
        )

    entry = optimistic_append.append(store, name, decide)
    if not isinstance(entry, LedgerEntry):
        raise AssertionError("every decision about a budget is an entry")
    return store.cohort(name)
