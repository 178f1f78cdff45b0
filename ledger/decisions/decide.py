"""The decision itself: what a cohort's policy makes of a round, and the entry that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from shuffle_ledger.accounting import (
    NUMERICAL_POLICY,
    Accountant,
    AccountsReading,
    LocalGaussian,
    ShuffledRound,
    exact_text,
    lower_text,
    upper_text,
)
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions.windows import is_over, period_names
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.machine import Posting
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.base import Effect, slot_of
from shuffle_ledger.ledger.policies.numbers import epsilon_above
from shuffle_ledger.ledger.policies.policy import NO_FILTER, NO_LOCAL, BudgetPolicy, decided_together
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind, Spending
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    RefusalReason,
    RoundRequest,
    checked_reports,
)

_Refusal: TypeAlias = tuple[RefusalReason, str]  # and the sentence that says why


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer, and the numbers that decided."""

    accounted: ShuffledRound
    reason: RefusalReason | None  # None: admitted
    message: str | None
    requested: Spending | None  # with the round; None when it was not computed
    details: Mapping[str, Any]  # what the policy writes into the entry


def decide(books: Books, views: Sequence[CohortView], request: RoundRequest) -> list[Decision]:
    """Returns what each budget of a round, as `views` say they are, answers to it: the machine decides once,
    for all of them.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    policies = {view.cohort.name: registry.policy_of(books.store, view) for view in views}
    unseen, states, costs = {}, {}, {}
    for view in views:
        name, policy = view.cohort.name, policies[view.cohort.name]
        refused = _refused_unseen(view, request) or _refused_slot(policy, view, request.round)
        if refused is not None:
            unseen[name] = refused
            continue
        states[name], costs[name] = policy.state(view), policy.cost(books, request.round)
    postings = decided_together(states, costs)
    decisions = []
    for view in views:
        name, policy = view.cohort.name, policies[view.cohort.name]
        if name in unseen:
            accounted = slot_of(request.round)
            decisions.append(_decision(accounted, unseen[name], None, policy.unchanged(view)))
            continue
        step = policy.decided(books, view, request.round, costs[name], postings[name])
        accounted = step.accounted or slot_of(request.round)
        refused = _refused(policy, view, accounted, step)
        # Of a refusal: the charge it would have had, beside the standing that it leaves as it was.
        details = step.details if refused is None else {**step.details, **policy.unchanged(view)}
        decisions.append(_decision(accounted, refused, step.spent, details))
    return decisions


def _decision(
    accounted: ShuffledRound, refused: _Refusal | None, requested: Spending | None, details: Mapping[str, Any]
) -> Decision:
    reason, message = refused or (None, None)
    return Decision(accounted=accounted, reason=reason, message=message, requested=requested, details=details)


def _refused_unseen(view: CohortView, request: RoundRequest) -> _Refusal | None:
    """Return why a round is refused whatever it costs, if it is."""
    if view.cohort.status != "open":
        return _closed(view)
    return _over(request) if is_over(request, view.now.date()) else None


def _refused_slot(policy: BudgetPolicy, view: CohortView, described: ShuffledRound) -> _Refusal | None:
    """Return why slots alone refuse a round whatever else it costs, if they do."""
    if not policy.has_slots_alone:
        return None
    if policy.accounted(view, described) is not None:
        return None
    message = "The cohort's plan has no free slot whose cost is known to cover this round."
    return RefusalReason.NO_FREE_SLOT, message


def _refused(
    policy: BudgetPolicy, view: CohortView, accounted: ShuffledRound, step: Effect
) -> _Refusal | None:
    """Return why a round is refused given what the machine says of it, if it is."""
    reasons, cohort = step.posting.reasons, view.cohort
    if not reasons:
        return None
    if reasons == (NO_LOCAL,):
        return _beyond_local_budget(view, accounted, policy.state(view).total.local, step.posting)
    if policy.filters is None:
        return RefusalReason.BUDGET_EXCEEDED, _plan_beyond_budget(policy, view)
    if NO_FILTER not in reasons:
        return RefusalReason.DELTA_ACCOUNT_EXHAUSTED, _lacks_delta(policy.accounts_with(view, step.posting))
    if step.spent.epsilon_upper_or_none is None:
        at, budget = exact_text(cohort.delta_budget), exact_text(cohort.epsilon_budget)
        message = f"With this round no finite epsilon holds at delta {at}; the budget is {budget}."
        return RefusalReason.UNBOUNDED_LOSS, message
    return RefusalReason.BUDGET_EXCEEDED, _beyond_budget(view, step)


def is_quick(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Whether a decision needs nothing but what is in memory, and may be awaited."""
    if view.cohort.status != "open":
        return True
    policy = registry.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None:
        return True
    books = Books(store=store, accountant=accountant)
    return policy.is_quick(books, accounted) and loss_cache.is_stored(store, accounted)


def prepare(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Do what makes a decision quick, if that takes no long computation; return whether it does.

    Raises:
        AccountingError, LedgerError: as `decide`.
    """
    policy = registry.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None or not loss_cache.is_stored(store, accounted):
        return False
    return policy.prepare(Books(store=store, accountant=accountant), accounted)


def drafts(
    store: Store,
    accountant: Accountant,
    views: Sequence[CohortView],
    stored: Sequence[StoredRound],
    request: RoundRequest,
) -> list[EntryDraft]:
    """Return the entries that decide a round, one for each of its cohorts, with all that decided.

    **Guarantee**: the round is admitted by all of them or refused by all; it is admitted only if each of them
    admits it, by its own policy and with its own rounds.

    Args:
        store: where privacy losses are.
        accountant: what computes.
        views: the round's cohorts in order.
        stored: the round's row in each of them.
        request: what was registered.

    Raises:
        What `decide` raises.
    """
    decisions = decide(Books(store=store, accountant=accountant), views, request)
    refused_by = {
        view.cohort.name: _numbers_of(decision, view)
        for view, decision in zip(views, decisions, strict=True)
        if decision.reason is not None
    }
    drafted = []
    for view, row, decision in zip(views, stored, decisions, strict=True):
        stated = decision
        if len(request.cohorts) > 1 and refused_by:
            stated = _of_audience(store, view, decision, request, refused_by)
        loss = None
        if stated.requested is not None:
            loss = loss_cache.digest_of(store, accountant, stated.accounted).hex()
        drafted.append(_draft(view, row, request, stated, loss))
    return drafted


def _of_audience(
    store: Store,
    view: CohortView,
    decision: Decision,
    request: RoundRequest,
    refused_by: Mapping[str, Mapping[str, Any]],
) -> Decision:
    """Return what a cohort's entry says of a round that is refused, given which of its cohorts refuse it."""
    if decision.reason is None:
        # Nothing that it would have changed, and no choice that it would have made, is left of it.
        decision = Decision(
            accounted=slot_of(request.round),
            reason=RefusalReason.REFUSED_ELSEWHERE,
            message=refused_elsewhere(request, refused_by),
            requested=None,
            details=registry.policy_of(store, view).unchanged(view),
        )
    return replace(decision, details={**decision.details, "refused_by": dict(refused_by)})


def refused_elsewhere(request: RoundRequest, refused_by: Iterable[str]) -> str:
    """Return the message in the entry of a cohort that would have admitted a refused round of several."""
    if len(request.cohorts) == len(request.members):
        return "Other cohorts of the round's audience refused it; this one would have admitted it."
    names = ", ".join(refused_by)
    return f"Other budgets that the round is charged to refused it, {names}; this one would have admitted it."


def _numbers_of(decision: Decision, view: CohortView) -> dict[str, Any]:
    """Return why a cohort refuses, and its numbers, for the entries of all of them."""
    requested = decision.requested
    return {
        "reason": str(decision.reason),
        "epsilon_spent_upper": view.spent.epsilon_upper,
        "epsilon_requested_upper": requested.epsilon_upper_or_none if requested else None,
        "epsilon_budget": view.cohort.epsilon_budget,
        "delta_budget": view.cohort.delta_budget,
    }


def _draft(
    view: CohortView, stored: StoredRound, request: RoundRequest, decision: Decision, loss: str | None
) -> EntryDraft:
    details = {
        "request": request.to_mapping(),
        "accounted": decision.accounted.to_mapping(),
        "requested": decision.requested.to_mapping() if decision.requested else None,
        "privacy_loss": loss,
        # The row has these too; in the entry every change of them is detected.
        "registration": stored.registration,
        "registered_at": canonical.spelled_moment(stored.registered_at),
        **decision.details,
    }
    if decision.reason is not None or decision.requested is None:
        details |= {"reason": decision.reason, "message": decision.message}
        return _entry_draft(EntryKind.REFUSED, stored, view.spent, details)
    reservation = HoldingChange(accounted=decision.accounted, count=1, local_count=1)
    return _entry_draft(EntryKind.ADMITTED, stored, decision.requested, details, reservation)


def check_request(request: RoundRequest, cohorts: Sequence[Cohort]) -> None:
    """Raise InvalidValue if a round is of other cohorts, larger than these together, or not one for all; or
    if it is charged to other periods of their windows than those of the days of its collection, or to quotas
    that are not its team's.

    Args:
        request: the round.
        cohorts: those that it names, and the periods and quotas that it names.
    """
    names = tuple(cohort.name for cohort in cohorts)
    if request.cohorts != names:
        raise InvalidValue(field="cohort", value=request.cohort, expected=repr(names[0]))
    quotas = [cohort for cohort in cohorts if cohort.name in request.quotas]
    cohorts = [cohort for cohort in cohorts if cohort.name in request.members]
    if period_names(request, cohorts) != request.windows:
        expected = "the periods of the cohorts' windows that the round is collected in"
        raise InvalidValue(field="windows", value=list(request.windows), expected=expected)
    _check_quotas(request, quotas)
    population = sum(cohort.population for cohort in cohorts)
    check_sizes(request.round, population, cohorts=len(cohorts))


def _check_quotas(request: RoundRequest, quotas: Sequence[Cohort]) -> None:
    for cohort in quotas:
        quota = cohort.quota
        if quota is None or quota.cohort not in request.members or quota.team != request.team:
            expected = f"quotas of team {request.team!r} in the round's cohorts"
            raise InvalidValue(field="quotas", value=cohort.name, expected=expected)


def check_sizes(described: ShuffledRound, population: int, *, cohorts: int = 1) -> None:
    """Raise InvalidValue if a round has more reports, or a larger population to sample, than its cohorts."""
    checked_reports(
        described.reports,
        field="reports",
        population=population,
        cohorts=cohorts,
        per_user=described.reports_per_user,
    )
    if described.sampled_from is not None:
        checked_reports(described.sampled_from, field="sampled_from", population=population, cohorts=cohorts)


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


def _beyond_budget(view: CohortView, step: Effect) -> str:
    cohort, after = view.cohort, step.spent.epsilon_upper
    at, spent = f"at delta {exact_text(cohort.delta_budget)}", upper_text(view.spent.epsilon_upper)
    budget = exact_text(cohort.epsilon_budget)
    is_above = after > cohort.epsilon_budget
    beyond = "which is above" if is_above else "which leaves no room for round-off within"
    return (
        f"With this round {_whose(cohort)} would have spent at most epsilon {upper_text(after)} {at},"
        f" {beyond} the budget of {budget}; it has spent at most {spent}."
    )


def _plan_beyond_budget(policy: BudgetPolicy, view: CohortView) -> str:
    at, promised = exact_text(view.cohort.delta_budget), upper_text(policy.slots_epsilon[0])
    budget, spent = exact_text(view.cohort.epsilon_budget), upper_text(view.spent.epsilon_upper)
    return (
        f"The promise of the cohort's plan, at most epsilon {promised} at delta {at} for all of its rounds,"
        f" is above the budget of {budget}, so no round is admitted;"
        f" the cohort has spent at most {spent}."
    )


def _lacks_delta(account: AccountsReading) -> str:
    certain, slack = upper_text(account.certain_loss_used_upper), upper_text(account.slack_used_upper)
    certain_share, slack_share = lower_text(account.certain_loss_share), lower_text(account.slack_share)
    return (
        "With this round the cohort's approximate rounds may use more of delta than is set aside for them:"
        f" at most {certain} for losses that are certain, of {certain_share}, and at most {slack} for local"
        f" deltas at epsilon {exact_text(account.epsilon)}, of {slack_share}. Rounds without a delta of their"
        " own add nothing to that."
    )


def _whose(cohort: Cohort) -> str:
    if cohort.quota is not None:
        return f"team {cohort.quota.team!r}, of its quota in cohort {cohort.quota.cohort!r},"
    if cohort.period is not None:
        return f"cohort {cohort.period.cohort!r}, of its budget of the period {cohort.period.label!r},"
    return "the cohort"


def _beyond_local_budget(view: CohortView, accounted: ShuffledRound, held: int, posting: Posting) -> _Refusal:
    if math.isinf(accounted.randomizer.epsilon0):
        remedy = ""
        if isinstance(accounted.randomizer, LocalGaussian):
            remedy = (
                " State a delta0 in local_gaussian: the round then counts with the epsilon0 at that delta0."
            )
        return RefusalReason.LOCAL_BUDGET_EXCEEDED, (
            f"A report of {accounted.randomizer.describe()} alone has no finite epsilon0, so no local budget"
            f" admits it; the cohort has one of {exact_text(view.cohort.local_budget or 0.0)}.{remedy}"
        )
    spent = epsilon_above(held)
    after = epsilon_above(held + (posting.charge.local if posting.charge else 0))
    return RefusalReason.LOCAL_BUDGET_EXCEEDED, (
        "With this round the epsilon0 of a user's rounds would add up to at most"
        f" {upper_text(after)}, which is above the local budget of"
        f" {exact_text(view.cohort.local_budget or 0.0)}; they add up to at most {upper_text(spent)}."
    )


def _over(request: RoundRequest) -> _Refusal:
    first, last = (day.isoformat() for day in request.days or ())
    return RefusalReason.COLLECTION_OVER, (
        f"The decision came after the last day of the collection: the round was registered for {first}"
        + (f" to {last}" if last != first else "")
        + " (UTC), and would be charged to the windows of these days only. If nothing was collected, register"
        " it again under another identifier; what was collected without an answer is an incident."
    )


def _closed(view: CohortView) -> _Refusal:
    if view.cohort.status == "frozen":
        return RefusalReason.COHORT_FROZEN, (
            "The cohort is frozen, for entries were lost when the database was put back to an earlier state:"
            " what it has spent is unknown, and it admits nothing any more."
        )
    return RefusalReason.COHORT_OVERSPENT, (
        "The cohort is overspent: its budget did not cover what was released or promised. It stays so,"
        " whatever its budget is now, and admits nothing any more."
    )
