"""Which rules a budget has: as it is opened, and as its chain's first entry lays them down."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    InvalidParameter,
    ShuffledRound,
    checked_share,
)
from shuffle_ledger.ledger.errors import BeyondBudget, Damaged
from shuffle_ledger.ledger.policies.base import Effect, LossSource, accounted_again, rules_digest, standing_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, slots_share
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.requests import Cohort

__all__ = [
    "BudgetPolicy",
    "Effect",
    "LossSource",
    "accounted_again",
    "approximate_share_of",
    "policy_for",
    "policy_from",
    "policy_of",
    "policy_with_slots",
    "rules_digest",
    "standing_of",
]

_RULES_REMEMBERED_MAX = 4096
_AS_CANONICAL: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}


def policy_for(cohort: Cohort, *, approximate_share: float | None = None) -> BudgetPolicy:
    """Return the rules that a new budget without slots is opened with.

    Args:
        cohort: the cohort, period or quota as it would be opened.
        approximate_share: part of delta for approximate rounds; None: the usual one.

    Raises:
        InvalidParameter: filters cannot share the budget's delta.
    """
    share = APPROXIMATE_SHARE if approximate_share is None else checked_share(approximate_share)
    return BudgetPolicy.opened(cohort, approximate_share=share)


def policy_with_slots(
    losses: LossSource,
    cohort: Cohort,
    plan: Mapping[ShuffledRound, int],
    *,
    approximate_share: float | None = None,
) -> BudgetPolicy:
    """Return the rules that a new cohort with declared slots is opened with.

    Args:
        losses: where privacy losses come from; their composition is certified here.
        cohort: as it would be opened.
        plan: how many rounds of each kind are declared.
        approximate_share: part of delta for approximate rounds, of what slots leave; None: the usual one.

    Raises:
        BeyondBudget: the slots cost more than what the cohort promises; they would never hold.
        InvalidParameter, LedgerError: they cannot be composed.
    """
    share = APPROXIMATE_SHARE if approximate_share is None else checked_share(approximate_share)
    most = cohort.epsilon_budget if cohort.ceiling is None else cohort.ceiling
    delta = cohort.delta_budget * slots_share(cohort.policy)
    whole = losses.certify(plan, delta=delta, budget=most)
    if not whole.epsilon_upper <= most:
        raise BeyondBudget(whole.epsilon_upper, epsilon=most, delta=delta)
    bounds = (whole.epsilon_upper, whole.epsilon_lower)
    return BudgetPolicy.opened(
        cohort, slots=tuple(plan.items()), slots_epsilon=bounds, approximate_share=share
    )


def approximate_share_of(opening: bytes) -> float | None:
    """Return the part of delta that a cohort's first body, as canonical bytes, sets aside for approximate
    rounds, for its windows and quotas; None: the usual one."""
    share: float | None = canonical.decode(opening)["details"]["rules"].get("approximate_share")
    return share


def policy_of(store: Store, view: CohortView) -> BudgetPolicy:
    """Return a budget's rules as it was opened with them; raises Damaged."""
    return policy_from(view.cohort.policy, view.opening or store.opening(view.cohort))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def policy_from(name: str, opening: bytes) -> BudgetPolicy:
    """Return the rules that a chain's first body, as canonical bytes, lays down; raises Damaged."""
    try:
        details = json.loads(opening)["details"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"the first entry cannot be read: {error}") from error
    # Budgets are much alike: most cohorts have rules that are known from another one.
    return _policy(name, json.dumps([details.get("rules"), details.get("limits")], **_AS_CANONICAL))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def _policy(name: str, spelled: str) -> BudgetPolicy:
    rules, limits = canonical.decode(spelled.encode("utf-8"))
    try:
        return BudgetPolicy.from_details(name, {"rules": rules, "limits": limits})
    except (AttributeError, KeyError, TypeError, ValueError, InvalidParameter) as error:
        raise Damaged(f"the rules of policy {name} cannot be read: {error}") from error
