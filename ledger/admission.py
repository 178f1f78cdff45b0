"""Every decision about what may be spent: opening, registering, admitting, quoting.

`settle` and `void`, which close what was admitted, are in `ledger.settlement` and offered here too.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting import NUMERICAL_POLICY, Accountant, ShuffledRound, slot_for
from ledger import appending, canonical, losses, policies
from ledger.budget_changes import change_budget
from ledger.budgets import (
    POLICY_PLAN,
    Cohort,
    Outcome,
    Pending,
    Quote,
    RefusalReason,
    RoundRequest,
    checked_reports,
    checked_text,
    request_digest,
)
from ledger.entries import FIRST_SEQUENCE, EntryKind, Spending
from ledger.errors import (
    BehindCheckpoint,
    BeyondBudget,
    Conflict,
    Damaged,
    InvalidValue,
    NotFound,
    RoundStuck,
    TryAgain,
    Unavailable,
)
from ledger.outcomes import outcome_from, outcome_in, outcome_of, round_record
from ledger.policies import Books
from ledger.rows import ATTEMPTS_MAX, CohortView, EntryDraft, HoldingChange, NewRound, StoredRound
from ledger.settlement import settle, void
from ledger.store import Store

EARLIER_ROUNDS_MAX = 10_000

__all__ = [
    "admit",
    "admit_at_once",
    "admit_in_order",
    "admit_queued",
    "change_budget",
    "open_cohort",
    "pending_before",
    "pending_rounds",
    "quote",
    "quote_at",
    "quote_next",
    "register",
    "register_and_admit",
    "round_record",
    "settle",
    "void",
]

_log = logging.getLogger(__name__)


class _OthersWait(Exception):
    """Rounds of the cohort that were registered earlier are undecided."""


@dataclass(frozen=True, kw_only=True)
class _Decision:
    accounted: ShuffledRound
    reason: RefusalReason | None  # None: admitted
    message: str | None
    requested: Spending | None  # with the round; None when it was not computed
    details: Mapping[str, Any]  # what the policy writes into the entry


def open_cohort(
    store: Store,
    *,
    name: str,
    population: int,
    epsilon: float,
    delta: float,
    policy: str,
    actor: str,
    plan: Mapping[ShuffledRound, int] | None = None,
    accountant: Accountant | None = None,
) -> Cohort:
    """Open a cohort, or return it if it was opened with the same parameters.

    Policy `plan` needs `plan`, how many rounds of each kind there will be at most, and an accountant that
    composes them.

    Raises:
        InvalidValue: a parameter cannot be one; names the field.
        BeyondBudget: the plan costs more than the budget; nothing was opened.
        Conflict: the name is taken by a cohort with other parameters, or another plan.
        AccountingError: the plan cannot be composed.
    """
    cohort = Cohort(
        name=name, population=population, epsilon_budget=epsilon, delta_budget=delta, policy=policy
    )
    actor = checked_text("actor", actor)
    rules = _rules(store, cohort, plan, accountant)
    opened = store.open_cohort(cohort, actor=actor, numerical_policy=NUMERICAL_POLICY, rules=rules)
    if policy == POLICY_PLAN:
        stored = store.entry(opened.name, FIRST_SEQUENCE).content().details
        if stored["rules"]["slots"] != canonical.decode(canonical.encode(rules["rules"]["slots"])):
            raise Conflict(f"cohort {opened.name!r} exists with another plan")
    return opened


def _rules(
    store: Store, cohort: Cohort, plan: Mapping[ShuffledRound, int] | None, accountant: Accountant | None
) -> dict[str, Any]:
    """Return what a cohort's policy writes into the first entry."""
    if (cohort.policy == POLICY_PLAN) != (plan is not None):
        expected = "the rounds of the plan" if plan is None else "nothing: only policy plan has a plan"
        raise InvalidValue(field="plan", value=plan and len(plan), expected=expected)
    if plan is None:
        return policies.policy_for(cohort).opening()
    if accountant is None:
        raise InvalidValue(field="accountant", value=None, expected="an accountant that composes the plan")
    for one in plan:
        _check_sizes(one, cohort.population)
    books = Books(store=store, accountant=accountant)
    planned = policies.PlanPolicy.composed(books, plan, delta=cohort.delta_budget)
    if not planned.epsilon_upper <= cohort.epsilon_budget:
        raise BeyondBudget(planned.epsilon_upper, epsilon=cohort.epsilon_budget, delta=cohort.delta_budget)
    return planned.opening()


def register(store: Store, request: RoundRequest, *, actor: str) -> Pending | Outcome:
    """Bind an identifier to a round's content and commit it; a decided round answers with its outcome.

    Raises:
        NotFound: no such cohort.
        InvalidValue: more reports, or a larger population to sample from, than the cohort has users.
        Conflict: the identifier is bound to other content.
    """
    _check_population(request, request.cohort, store.population(request.cohort))
    stored = store.insert_round(request, actor=checked_text("actor", actor))
    return outcome_of(store, stored) or Pending(round_id=stored.round_id, cohort=stored.cohort)


def admit(store: Store, accountant: Accountant, round_id: str) -> Outcome:
    """Decide a registered round and return the outcome, which is the same for ever.

    **Guarantee**: at every commit, the certified epsilon of all a cohort holds is within its budget, or the
    cohort is marked overspent by a settled round; any number of processes may call this at once.

    Raises:
        NotFound: no such round.
        TryAgain: nothing was decided and nothing was left behind.
        Unavailable: the same, or the connection was lost while the outcome was committed: ask again.
        AccountingError, LedgerError: the round cannot be decided; the failure is counted with the round.
    """
    round_id = checked_text("round_id", round_id)
    try:
        entry = appending.append_outcome(
            store, round_id, lambda view, stored: _draft(store, accountant, view, stored, _registered(stored))
        )
        return outcome_from(entry)
    except (BehindCheckpoint, NotFound, TryAgain, Unavailable):
        raise  # says nothing about the round itself
    except Exception as error:
        store.record_failure(round_id, f"{type(error).__name__}: {error}")
        raise


def register_and_admit(
    store: Store, accountant: Accountant, request: RoundRequest, *, actor: str
) -> tuple[Outcome, bool]:
    """Register a round and decide it here; also return whether it had been decided before.

    In one commit where that takes no long computation, else in two: the round first, so that nothing is lost
    should this process die while it computes. Rounds of the same cohort that were registered earlier and left
    undecided are decided first, and keep their order.

    **Guarantee**: as `admit`.

    Raises:
        What `register` and `admit_queued` raise.
    """
    try:
        outcome = _admit_at_once(store, accountant, request, actor)
    except _OthersWait:
        _admit_each(store, accountant, store.pending(limit=EARLIER_ROUNDS_MAX, cohort=request.cohort))
        # Who came since then is no earlier than this one.
        outcome = _admit_at_once(store, accountant, request, actor, others_first=False)
    if outcome is not None:
        return outcome, False
    answer = register(store, request, actor=actor)
    if isinstance(answer, Pending):
        return admit_in_order(store, accountant, request.round_id), False
    return answer, True


def admit_at_once(
    store: Store, accountant: Accountant, request: RoundRequest, *, actor: str
) -> Outcome | None:
    """Register a round and decide it in one commit, or write nothing and return None.

    None if the decision takes a long computation, if the identifier is taken, or if rounds of the cohort that
    were registered earlier are undecided: `register` and `admit` are for these.

    **Guarantee**: as `admit`; and the round's row is there if and only if its outcome is.

    Raises:
        NotFound, InvalidValue: as `register`.
        TryAgain: nothing was decided and nothing was left behind.
        Unavailable: the same, or the connection was lost while the outcome was committed: ask again.
    """
    try:
        return _admit_at_once(store, accountant, request, actor)
    except _OthersWait:
        return None


def admit_in_order(store: Store, accountant: Accountant, round_id: str) -> Outcome:
    """Decide a registered round after those of its cohort that were registered earlier and left undecided.

    Who was interrupted and starts again keeps the order.

    Raises:
        What `admit_queued` raises.
    """
    _admit_each(store, accountant, pending_before(store, round_id, limit=EARLIER_ROUNDS_MAX))
    return admit_queued(store, accountant, round_id)


def admit_queued(
    store: Store, accountant: Accountant, round_id: str, *, redelivered: bool = False
) -> Outcome:
    """Decide a round that came out of a queue; `redelivered` says that a worker died with it.

    Raises:
        RoundStuck: the round failed too often; it waits for somebody to look at it.
        What `admit` raises.
    """
    stored = store.round(round_id)
    attempts = stored.attempts
    if stored.outcome_sequence is None:
        if redelivered and attempts < ATTEMPTS_MAX:
            attempts = store.record_failure(round_id, "a worker was lost before it decided")
        if attempts >= ATTEMPTS_MAX:
            error = stored.last_error or "a worker was lost before it decided"
            raise RoundStuck(f"round {round_id!r} failed {attempts} times and is left alone; last: {error}")
    return admit(store, accountant, round_id)


def quote(store: Store, accountant: Accountant, request: RoundRequest) -> Quote:
    """Return what the answer would be now. Leaves no trace.

    Raises:
        NotFound: no such cohort.
        InvalidValue: more reports, or a larger population to sample from, than the cohort has users.
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    return quote_at(store, accountant, store.view(request.cohort), request)


def quote_at(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> Quote:
    """Return what the answer would be if the cohort were as `view` says; raises what `quote` raises."""
    return quote_next(store, accountant, view, request)[0]


def quote_next(
    store: Store, accountant: Accountant, view: CohortView, request: RoundRequest
) -> tuple[Quote, CohortView]:
    """Return what `quote_at` returns, and how the cohort would be after that answer."""
    cohort = view.cohort
    _check_population(request, cohort.name, cohort.population)
    decision = _decide(store, accountant, view, request, keep=False)
    admitted = decision.reason is None
    requested = decision.requested
    after = requested if admitted and requested is not None else view.spent
    answer = Quote(
        cohort=cohort.name,
        would_be="admitted" if admitted else "refused",
        reason=decision.reason,
        message=decision.message,
        accounted=decision.accounted,
        epsilon_spent_upper=view.spent.epsilon_upper,
        epsilon_requested_upper=requested.epsilon_upper_or_none if requested else None,
        epsilon_requested_lower=requested.epsilon_lower if requested else None,
        epsilon_remaining=cohort.remaining(after.epsilon_upper),
        epsilon_budget=cohort.epsilon_budget,
        delta_budget=cohort.delta_budget,
    )
    if not admitted:
        return answer, view
    held = {**view.held, decision.accounted: view.held.get(decision.accounted, 0) + 1}
    details = {**view.details, **decision.details}
    return answer, dataclasses.replace(view, held=held, spent=after, details=details)


def pending_rounds(store: Store, *, limit: int) -> list[str]:
    """Return undecided rounds in order of registration, without those that failed too often."""
    return store.pending(limit=limit)


def pending_before(store: Store, round_id: str, *, limit: int) -> list[str]:
    """Return the undecided rounds of a round's cohort registered before it, in order; raises NotFound."""
    stored = store.round(round_id)
    return store.pending(limit=limit, cohort=stored.cohort, up_to=stored.registration - 1)


def _admit_each(store: Store, accountant: Accountant, waiting: list[str]) -> None:
    for round_id in waiting:
        try:
            admit_queued(store, accountant, round_id)
        except (TryAgain, Unavailable):
            raise
        except Exception:  # noqa: BLE001 - counted with that round, which must not hold up the others
            _log.exception("round %s, registered earlier, could not be decided", round_id)


def _admit_at_once(
    store: Store, accountant: Accountant, request: RoundRequest, actor: str, *, others_first: bool = True
) -> Outcome | None:
    actor = checked_text("actor", actor)
    content = request.to_bytes()
    digest = request_digest(content)

    def drafted(new: NewRound) -> EntryDraft | None:
        _check_population(request, new.view.cohort.name, new.view.cohort.population)
        if new.others_wait and others_first:
            raise _OthersWait
        stored = StoredRound(
            registration=new.registration,
            round_id=request.round_id,
            cohort=request.cohort,
            content=content,
            content_digest=digest,
            registered_by=actor,
            registered_at=new.view.at,
        )
        try:
            if not _is_quick(store, accountant, new.view, request):
                return None
            draft = _draft(store, accountant, new.view, stored, request)
        except (TryAgain, Unavailable):
            raise
        except Exception:  # noqa: BLE001 - it comes again once the round is registered, and is counted with it
            return None
        return dataclasses.replace(draft, registers=stored)

    try:
        body = appending.append_with_round(store, request.cohort, request.round_id, drafted)
    except Damaged:
        return None  # likewise
    return outcome_in(body) if body else None


def _is_quick(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Whether a decision needs nothing but what is in memory, and may be awaited."""
    if view.cohort.status != "open":
        return True
    policy = policies.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None:
        return True
    books = Books(store=store, accountant=accountant)
    return policy.is_quick(books, view, accounted) and losses.is_stored(store, accounted)


def _draft(
    store: Store, accountant: Accountant, view: CohortView, stored: StoredRound, request: RoundRequest
) -> EntryDraft:
    decision = _decide(store, accountant, view, request, keep=True)
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
        details["privacy_loss"] = losses.digest_of(store, accountant, decision.accounted).hex()
    if decision.reason is not None or decision.requested is None:
        details |= {"reason": decision.reason, "message": decision.message}
        return _entry_draft(EntryKind.REFUSED, stored, view.spent, details)
    reservation = HoldingChange(accounted=decision.accounted, count=1, local_count=1)
    return _entry_draft(EntryKind.ADMITTED, stored, decision.requested, details, reservation)


def _registered(stored: StoredRound) -> RoundRequest:
    request = RoundRequest.from_bytes(stored.content)
    same = (request.round_id, request.cohort) == (stored.round_id, stored.cohort)
    if not same or request_digest(stored.content) != stored.content_digest:
        raise Damaged(f"round {stored.round_id!r}: its registered content was changed")
    return request


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


def _decide(
    store: Store, accountant: Accountant, view: CohortView, request: RoundRequest, *, keep: bool
) -> _Decision:
    cohort = view.cohort
    policy = policies.policy_of(store, view)
    accounted = slot_for(request.round)
    if cohort.status != "open":
        reason, message = _closed(view)
        details = policy.unchanged(view)
        return _Decision(accounted=accounted, reason=reason, message=message, requested=None, details=details)
    slot = policy.accounted(view, request.round)
    if slot is None:
        return _Decision(
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
        return _Decision(
            accounted=accounted, reason=None, message=None, requested=requested, details=step.details
        )
    at = f"at delta {cohort.delta_budget:.6g}"
    if requested.epsilon_upper_or_none is None:
        reason = RefusalReason.UNBOUNDED_LOSS
        message = f"With this round no finite epsilon holds {at}; the budget is {cohort.epsilon_budget:.6g}."
    else:
        reason = RefusalReason.BUDGET_EXCEEDED
        message = (
            f"With this round the cohort would have spent at most epsilon {requested.epsilon_upper:.6g} {at},"
            f" which is above the budget of {cohort.epsilon_budget:.6g}; it has spent at most"
            f" {view.spent.epsilon_upper:.6g}."
        )
    # The charge it would have had, beside the standing that it leaves as it was.
    details = {**step.details, **policy.unchanged(view)}
    return _Decision(
        accounted=accounted, reason=reason, message=message, requested=requested, details=details
    )


def _closed(view: CohortView) -> tuple[RefusalReason, str]:
    if view.cohort.status == "frozen":
        return RefusalReason.COHORT_FROZEN, (
            "The cohort is frozen, for entries were lost when the database was put back to an earlier state:"
            " what it has spent is unknown, and it admits nothing any more."
        )
    return RefusalReason.COHORT_OVERSPENT, (
        "The cohort is overspent, for a settled round cost more than the budget, or the budget was lowered"
        " below what was promised. It admits nothing any more:"
        f" at most epsilon {view.spent.epsilon_upper:.6g} of {view.cohort.epsilon_budget:.6g} is spent."
    )


def _check_population(request: RoundRequest, cohort: str, population: int) -> None:
    if request.cohort != cohort:
        raise InvalidValue(field="cohort", value=request.cohort, expected=repr(cohort))
    _check_sizes(request.round, population)


def _check_sizes(described: ShuffledRound, population: int) -> None:
    checked_reports(described.reports, field="reports", population=population)
    if described.sampled_from is not None:
        checked_reports(described.sampled_from, field="sampled_from", population=population)
