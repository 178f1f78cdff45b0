"""The policies there are, and which one a cohort has."""

from __future__ import annotations

import functools
import json
from typing import Any, TypeAlias

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    FilterSet,
    InvalidParameter,
    checked_share,
)
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.policies.adaptive import AdaptivePolicy, limits_raised, spending_of, total_charged
from shuffle_ledger.ledger.policies.base import (
    ASSUMES,
    Books,
    Policy,
    SlotReading,
    Step,
    rules_digest,
    standing_of,
    told,
)
from shuffle_ledger.ledger.policies.plan import PlanPolicy
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, POLICY_PLAN, Cohort

__all__ = [
    "ASSUMES",
    "AdaptivePolicy",
    "Books",
    "CohortPolicy",
    "PlanPolicy",
    "Policy",
    "SlotReading",
    "Step",
    "approximate_share_of",
    "limits_raised",
    "policy_for",
    "policy_from",
    "policy_of",
    "rules_digest",
    "spending_of",
    "standing_of",
    "told",
    "total_charged",
]

CohortPolicy: TypeAlias = AdaptivePolicy | PlanPolicy

_RULES_REMEMBERED_MAX = 4096
_AS_CANONICAL: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}


def policy_for(cohort: Cohort, *, approximate_share: float | None = None) -> AdaptivePolicy:
    """Return the policy that a new cohort without a plan is opened with.

    Args:
        cohort: the cohort as it would be opened.
        approximate_share: part of delta for approximate rounds; None: the usual one.

    Raises:
        InvalidParameter: filters cannot share the budget's delta.
    """
    share = APPROXIMATE_SHARE if approximate_share is None else checked_share(approximate_share)
    rules = FilterSet.for_budget(
        epsilon=cohort.epsilon_budget,
        delta=cohort.delta_budget,
        ceiling=cohort.ceiling,
        rounds_per_user=cohort.rounds_per_user,
        approximate_share=share,
    )
    return AdaptivePolicy(rules=rules, approximate_share=share)


def approximate_share_of(opening: bytes) -> float | None:
    """Return the part of delta that a cohort's first body, as canonical bytes, sets aside for approximate
    rounds, for its windows and quotas; None: the usual one."""
    share: float | None = canonical.decode(opening)["details"].get("approximate_share")
    return share


def policy_of(store: Store, view: CohortView) -> CohortPolicy:
    """Return a cohort's policy with the rules it was opened with; raises Damaged."""
    return policy_from(view.cohort.policy, view.opening or store.first_body(view.cohort.name))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def policy_from(name: str, opening: bytes) -> CohortPolicy:
    """Return the policy that a chain's first body, as canonical bytes, lays down; raises Damaged."""
    try:
        details = json.loads(opening)["details"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"the first entry cannot be read: {error}") from error
    # Budgets are much alike: most cohorts have rules that are known from another one.
    rules = [details.get("rules"), details.get("approximate_share")]
    return _policy(name, json.dumps(rules, **_AS_CANONICAL))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def _policy(name: str, spelled: str) -> CohortPolicy:
    rules, share = canonical.decode(spelled.encode("utf-8"))
    try:
        if name == POLICY_ADAPTIVE:
            return AdaptivePolicy(
                rules=FilterSet.from_mapping(rules), approximate_share=share or APPROXIMATE_SHARE
            )
        if name == POLICY_PLAN:
            return PlanPolicy.from_rules(rules)
    except (AttributeError, KeyError, TypeError, InvalidParameter) as error:
        raise Damaged(f"the rules of policy {name} cannot be read: {error}") from error
    raise Damaged(f"no version known here has policy {name!r}")
