"""The decision itself: what a cohort's policy makes of a round, and the entry that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shuffle_ledger.accounting import (
    NUMERICAL_POLICY,
    Accountant,
    ShuffledRound,
)
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions.descriptions import check_sizes
from shuffle_ledger.ledger.decisions.refusals import (
    Refusal,
    refusal_by_slots,
    refusal_of,
    refusal_unseen,
    refused_sentence,
)
from shuffle_ledger.ledger.decisions.windows import period_names
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.base import slot_of
from shuffle_ledger.ledger.policies.policy import decided_together
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind, Spending
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    RefusalReason,
    RoundRequest,
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer, and the numbers that decided."""

    accounted: ShuffledRound
    reason: RefusalReason | None  # None: admitted
    requested: Spending | None  # with the round; None when it was not computed
    details: Mapping[str, Any]  # what the policy writes into the entry
    message: str | None = None  # names all budgets that refuse the round; None: none does


def decide(losses: LossSource, views: Sequence[CohortView], request: RoundRequest) -> list[Decision]:
    """Returns what each budget of a round, as `views` say they are, answers to it: the machine decides once,
    for all of them.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    policies = {view.cohort.name: registry.policy_of(losses.store, view) for view in views}
    unseen, states, costs = {}, {}, {}
    for view in views:
        name, policy = view.cohort.name, policies[view.cohort.name]
        refused = refusal_unseen(view, request) or refusal_by_slots(policy, view, request.round)
        if refused is not None:
            unseen[name] = refused
            continue
        states[name], costs[name] = policy.state(view), policy.cost(losses, request.round)
    postings = decided_together(states, costs)
    decisions, refusals = list[Decision](), list[tuple[CohortView, Refusal]]()
    for view in views:
        name, policy = view.cohort.name, policies[view.cohort.name]
        accounted, refused, spent = slot_of(request.round), unseen.get(name), None
        details: Mapping[str, Any] = {}
        if refused is None:
            step = policy.decided(
                losses, view, states[name], request.round, cost=costs[name], posting=postings[name]
            )
            accounted, spent, details = step.accounted or accounted, step.spent, step.details
            refused = refusal_of(policy, view, accounted, step)
        if refused is not None:
            # Of a refusal: the charge it would have had, beside the standing that it leaves as it was.
            details = {**details, **policy.unchanged(view)}
        reason = None if refused is None else refused.reason
        decisions.append(Decision(accounted=accounted, reason=reason, requested=spent, details=details))
        refusals += [(view, refused)] if refused else []
    if not refusals:
        return decisions
    message = refused_sentence(refusals)
    return [replace(one, message=message) for one in decisions]


def is_quick(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Whether a decision needs nothing but what is in memory, and may be awaited."""
    if view.cohort.status != "open":
        return True
    policy = registry.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None:
        return True
    losses = LossSource(store=store, accountant=accountant)
    return policy.is_quick(losses, accounted) and loss_cache.is_stored(store, accounted)


def prepare(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> bool:
    """Do what makes a decision quick, if that takes no long computation; return whether it does.

    Raises:
        AccountingError, LedgerError: as `decide`.
    """
    policy = registry.policy_of(store, view)
    accounted = policy.accounted(view, request.round)
    if accounted is None or not loss_cache.is_stored(store, accounted):
        return False
    return policy.prepare(LossSource(store=store, accountant=accountant), accounted)


def drafts(
    store: Store,
    accountant: Accountant,
    views: Sequence[CohortView],
    stored: Sequence[StoredRound],
    request: RoundRequest,
    *,
    registers: bool = False,
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
        registers: the entries write the rows.

    Raises:
        What `decide` raises.
    """
    decisions = decide(LossSource(store=store, accountant=accountant), views, request)
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
        drafted.append(_draft(view, row, request, stated, loss, registers=registers))
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
            message=decision.message,
            requested=None,
            details=registry.policy_of(store, view).unchanged(view),
        )
    return replace(decision, details={**decision.details, "refused_by": dict(refused_by)})


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
    view: CohortView,
    stored: StoredRound,
    request: RoundRequest,
    decision: Decision,
    loss: str | None,
    *,
    registers: bool,
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
    kind, spent, changes = EntryKind.REFUSED, view.spent, tuple[HoldingChange, ...]()
    if decision.reason is None and decision.requested is not None:
        kind, spent = EntryKind.ADMITTED, decision.requested
        changes = (HoldingChange(accounted=decision.accounted, count=1, local_count=1),)
    else:
        details |= {"reason": decision.reason, "message": decision.message}
    return EntryDraft(
        kind=kind,
        round_id=stored.round_id,
        actor=stored.registered_by,
        numerical_policy=NUMERICAL_POLICY,
        spent=spent,
        details=details,
        changes=changes,
        registers=stored if registers else None,
    )


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
