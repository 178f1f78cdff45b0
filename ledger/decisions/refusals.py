"""Why a budget refuses a round, and the one sentence about a refusal that answers, entries and pages show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from shuffle_ledger.accounting import (
    AccountsReading,
    LocalGaussian,
    ShuffledRound,
    exact_text,
    lower_text,
    upper_text,
)
from shuffle_ledger.ledger.decisions.windows import is_over
from shuffle_ledger.ledger.machine import Posting
from shuffle_ledger.ledger.policies.base import Effect
from shuffle_ledger.ledger.policies.numbers import epsilon_above
from shuffle_ledger.ledger.policies.policy import NO_FILTER, NO_LOCAL, BudgetPolicy
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.entries import Spending
from shuffle_ledger.ledger.values.requests import Cohort, CohortStatus, RefusalReason, RoundRequest

BUDGETS_NAMED_MAX: Final = 5  # in one sentence; `refused_by` of an answer lists all


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why one budget refuses a round."""

    reason: RefusalReason
    clause: str  # says of the budget, as "it", what it is and what it would be
    remedy: str = ""  # a sentence about what to do


def refused_sentence(refusals: Sequence[tuple[CohortView, Refusal]]) -> str:
    """Returns the sentence that names the budgets that refuse a round, each with what it would be and is.

    Of the periods of one sliding window it names the one of which most is spent, and how many refuse.

    Args:
        refusals: of each budget that refuses, in order; one at least.

    Guarantee: what a budget would be and what is used of it are rounded up, to 6 significant digits.
    """
    windows: dict[tuple[str, str], list[tuple[CohortView, Refusal]]] = {}
    for view, refusal in refusals:
        period = view.cohort.period
        window = (period.cohort, period.kind) if period and period.is_sliding else (view.cohort.name, "")
        windows.setdefault(window, []).append((view, refusal))
    alike: dict[str, list[str]] = {}
    remedies: dict[str, None] = {}
    for found in list(windows.values())[:BUDGETS_NAMED_MAX]:
        view, refusal = max(found, key=lambda each: each[0].spent.epsilon_upper)
        most = f", the most used of {len(found)} such budgets," if len(found) > 1 else ""
        alike.setdefault(refusal.clause, []).append(budget_words(view.cohort) + most)
        remedies |= {refusal.remedy: None} if refusal.remedy else {}
    parts = [f"by {' and '.join(names).removesuffix(',')}: {clause}" for clause, names in alike.items()]
    if (more := sum(map(len, list(windows.values())[BUDGETS_NAMED_MAX:]))) > 0:
        parts.append(f"and by {more:,} more")
    return " ".join([f"Refused {'; '.join(parts)}.", *remedies])


def budget_words(cohort: Cohort) -> str:
    """Returns the name of a budget in words, as `the 2027 budget of br-desktop`."""
    if cohort.quota is not None:
        return f"the quota of team {cohort.quota.team} in {cohort.quota.cohort}"
    period = cohort.period
    if period is None and not cohort.has_life:
        return f"cohort {cohort.name}"
    if period is None:
        return f"the {'life ' if cohort.windows else ''}budget of {cohort.name}"
    if period.is_sliding:
        return f"the budget of {period.cohort} from {period.first.isoformat()} to {period.last.isoformat()}"
    return f"the {period.label} budget of {period.cohort}"


def reason_unseen(status: CohortStatus, request: RoundRequest, today: date) -> RefusalReason | None:
    """Returns why a budget of some status refuses a round whatever it costs, if it does."""
    if status != "open":
        return RefusalReason(f"cohort_{status}")
    return RefusalReason.COLLECTION_OVER if is_over(request, today) else None


def refusal_unseen(view: CohortView, request: RoundRequest) -> Refusal | None:
    """Returns why a round is refused whatever it costs, if it is."""
    reason = reason_unseen(view.cohort.status, request, view.now.date())
    if reason is None:
        return None
    return _over(request) if reason is RefusalReason.COLLECTION_OVER else _closed(reason)


def refusal_by_slots(policy: BudgetPolicy, view: CohortView, described: ShuffledRound) -> Refusal | None:
    """Returns why slots alone refuse a round whatever else it costs, if they do."""
    if not policy.has_slots_alone:
        return None
    if policy.accounted(view, described) is not None:
        return None
    clause = "its plan has no free slot whose cost is known to cover this round"
    return Refusal(reason=RefusalReason.NO_FREE_SLOT, clause=clause)


def reason_of(policy: BudgetPolicy, posting: Posting, asked: Spending) -> RefusalReason | None:
    """Returns why a budget refuses a round, if it does.

    Args:
        policy: its rules.
        posting: what the machine says.
        asked: what would be spent with the round.
    """
    if not posting.reasons:
        return None
    if posting.reasons == (NO_LOCAL,):
        return RefusalReason.LOCAL_BUDGET_EXCEEDED
    if policy.filters is not None and NO_FILTER not in posting.reasons:
        return RefusalReason.DELTA_ACCOUNT_EXHAUSTED
    is_unbounded = policy.filters is not None and asked.epsilon_upper_or_none is None
    return RefusalReason.UNBOUNDED_LOSS if is_unbounded else RefusalReason.BUDGET_EXCEEDED


def refusal_of(
    policy: BudgetPolicy, view: CohortView, accounted: ShuffledRound, step: Effect
) -> Refusal | None:
    """Returns why a round is refused given what the machine says of it, if it is."""
    reason = reason_of(policy, step.posting, step.spent)
    if reason is None:
        return None
    if reason is RefusalReason.LOCAL_BUDGET_EXCEEDED:
        return _beyond_local_budget(view, accounted, policy.state(view).total.local, step.posting)
    if reason is RefusalReason.DELTA_ACCOUNT_EXHAUSTED:
        return _lacks_delta(policy, view, step.posting)
    if reason is RefusalReason.UNBOUNDED_LOSS:
        delta = exact_text(view.cohort.delta_budget)
        clause = f"no finite epsilon would hold at delta {delta} ({_used_of(view)})"
    elif policy.filters is None:
        clause = _plan_beyond_budget(policy, view)
    else:
        clause = _beyond_budget(view, step)
    return Refusal(reason=reason, clause=clause)


def _used_of(view: CohortView) -> str:
    budget, used = exact_text(view.cohort.epsilon_budget), upper_text(view.spent.epsilon_upper)
    return f"{used} of {budget} used"


def _beyond_budget(view: CohortView, step: Effect) -> str:
    after, budget = step.spent.epsilon_upper, view.cohort.epsilon_budget
    beyond = "" if after > budget else ", which leaves no room for round-off"
    used = upper_text(view.spent.epsilon_upper)
    return f"it would be {upper_text(after)} of {exact_text(budget)}{beyond} ({used} used)"


def _plan_beyond_budget(policy: BudgetPolicy, view: CohortView) -> str:
    promised, budget = upper_text(policy.slots_epsilon[0]), exact_text(view.cohort.epsilon_budget)
    used = upper_text(view.spent.epsilon_upper)
    return f"its plan promises {promised} of {budget} for all of its rounds, so it admits none ({used} used)"


def _lacks_delta(policy: BudgetPolicy, view: CohortView, posting: Posting) -> Refusal:
    account = policy.accounts_with(view, posting)
    certain, slack = upper_text(account.certain_loss_used_upper), upper_text(account.slack_used_upper)
    certain_share, slack_share = lower_text(account.certain_loss_share), lower_text(account.slack_share)
    clause = (
        "approximate rounds might use more of its delta than is set aside for them:"
        f" {certain} of {certain_share} for losses that are certain, {slack} of {slack_share} for local"
        f" deltas at epsilon {exact_text(account.epsilon)} (rounds without a delta of their own add nothing"
        " to that)"
    )
    epsilon = policy.epsilon_of_slack(view, posting)
    return Refusal(
        reason=RefusalReason.DELTA_ACCOUNT_EXHAUSTED,
        clause=clause,
        remedy=_smaller_budget(account, epsilon, view.spent.epsilon_upper),
    )


def _smaller_budget(account: AccountsReading, epsilon: float | None, spent: float) -> str:
    """Returns a sentence about the epsilon at which slack would fit, where only slack does not; else nothing.

    An epsilon below what is spent is no help: the filters of such a budget would not hold these rounds.
    """
    is_slack = account.certain_loss_used_upper <= account.certain_loss_share
    if epsilon is None or not is_slack or not spent < epsilon < account.epsilon:
        return ""
    return (
        "Local deltas cost less in a smaller budget: one that is opened alike, but with epsilon"
        f" {lower_text(epsilon)} or less and no higher ceiling, sets aside enough for these, and may admit"
        " more such rounds."
    )


def _beyond_local_budget(view: CohortView, accounted: ShuffledRound, held: int, posting: Posting) -> Refusal:
    budget = exact_text(view.cohort.local_budget or 0.0)
    if math.isinf(accounted.randomizer.epsilon0):
        remedy = ""
        if isinstance(accounted.randomizer, LocalGaussian):
            remedy = (
                "State a delta0 in local_gaussian: the round then counts with the epsilon0 at that delta0."
            )
        clause = (
            f"its local budget of {budget} admits no report of {accounted.randomizer.describe()}, which alone"
            " has no finite epsilon0"
        )
        return Refusal(reason=RefusalReason.LOCAL_BUDGET_EXCEEDED, clause=clause, remedy=remedy)
    used = upper_text(epsilon_above(held))
    after = upper_text(epsilon_above(held + (posting.charge.local if posting.charge else 0)))
    clause = f"the epsilon0 of a user's rounds would add up to {after} of {budget} ({used} used)"
    return Refusal(reason=RefusalReason.LOCAL_BUDGET_EXCEEDED, clause=clause)


def _over(request: RoundRequest) -> Refusal:
    first, last = (day.isoformat() for day in request.days or ())
    days = first if last == first else f"{first} to {last}"
    return Refusal(
        reason=RefusalReason.COLLECTION_OVER,
        clause=f"the decision came after the last day of the collection ({days}, UTC)",
        remedy=(
            "If nothing was collected, register the round again under another identifier and on other days;"
            " if something was, record it with `incident record`."
        ),
    )


def _closed(reason: RefusalReason) -> Refusal:
    if reason is RefusalReason.COHORT_FROZEN:
        return Refusal(
            reason=reason,
            clause=(
                "it is frozen, for entries were lost when the database was put back to an earlier state, so"
                " what is used is unknown and it admits nothing any more"
            ),
        )
    if reason is RefusalReason.COHORT_CLOSED:
        return Refusal(reason=reason, clause="it is closed, and admits nothing any more")
    return Refusal(
        reason=reason,
        clause=(
            "it is overspent, for it did not cover what was released or promised, and stays so whatever the"
            " budget is now: it admits nothing any more"
        ),
    )
