"""The policies there are, and which one a cohort has."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    checked_share,
)
from shuffle_ledger.ledger.errors import Damaged, InvalidValue
from shuffle_ledger.ledger.policies.adaptive import AdaptivePolicy, limits_raised, spending_of, total_charged
from shuffle_ledger.ledger.policies.base import (
    ASSUMES,
    Books,
    Course,
    Policy,
    SlotReading,
    Step,
    changed,
    replaced,
    rules_digest,
    slot_of,
    standing_of,
    told,
)
from shuffle_ledger.ledger.policies.plan import PlanPolicy
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind, Spending
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, POLICY_FIXED, POLICY_PLAN, Cohort

__all__ = [
    "ASSUMES",
    "AdaptivePolicy",
    "Books",
    "Course",
    "FixedPolicy",
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

_RULES_REMEMBERED_MAX = 4096
_AS_CANONICAL: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}


class FixedPolicy(Policy):
    """The exact composition of all rounds decides. Sound when their parameters were fixed in advance."""

    decided_by = f"composition of the privacy losses; {ASSUMES[POLICY_FIXED]}"

    def opening(self) -> dict[str, Any]:
        """See `Policy`."""
        return {}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """See `Policy`."""
        return {}

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`."""
        return self._composed(books, view, {accounted: 1})

    def telling(
        self, books: Books, view: CohortView, truth: ShuffledRound, *, chosen_after: bool = False
    ) -> Step:
        """See `Policy`: it is composed with the rest, as if its parameters had been fixed in advance."""
        accounted = slot_of(truth)
        step = self._composed(books, view, {accounted: 1})
        return dataclasses.replace(step, changes={accounted: 1}, accounted=accounted)

    def replacing(self, books: Books, view: CohortView, course: Course, after: ShuffledRound | None) -> Step:
        """See `Policy`. A void gives nothing back: it may have been decided after seeing outputs.

        Only when every round ever admitted is voided, and nothing else was released, there were no outputs,
        and the cohort is empty again.
        """
        if after is None:
            counts = books.store.count_entries(view.cohort.name)
            closed = counts.get(EntryKind.VOIDED, 0) + 1
            if counts[EntryKind.ADMITTED] > closed or EntryKind.INCIDENT in counts:
                return Step(spent=view.spent, details={})
            changes = {kind: -count for kind, count in view.held.items()}
            return Step(spent=Spending.nothing(view.cohort.delta_budget), details={}, changes=changes)
        changes = replaced(course.accounted, after)
        if not changes:
            return Step(spent=view.spent, details={})
        return dataclasses.replace(self._composed(books, view, changes), changes=changes)

    def _composed(self, books: Books, view: CohortView, changes: Mapping[ShuffledRound, int]) -> Step:
        held, cohort = changed(view.held, changes), view.cohort
        spent = books.certify(held, delta=cohort.delta_budget, budget=cohort.epsilon_budget)
        return Step(spent=spent, details={})


def policy_for(cohort: Cohort, *, approximate_share: float | None = None) -> Policy:
    """Return the policy that a new cohort without a plan is opened with.

    Args:
        cohort: the cohort as it would be opened.
        approximate_share: part of delta for approximate rounds; None: the usual one.

    Raises:
        InvalidParameter: filters cannot share the budget's delta.
        InvalidValue: the policy has no filters, and a share was given.
    """
    if cohort.policy == POLICY_ADAPTIVE:
        share = APPROXIMATE_SHARE if approximate_share is None else checked_share(approximate_share)
        rules = FilterSet.for_budget(
            epsilon=cohort.epsilon_budget,
            delta=cohort.delta_budget,
            ceiling=cohort.ceiling,
            rounds_per_user=cohort.rounds_per_user,
            approximate_share=share,
        )
        return AdaptivePolicy(rules=rules, approximate_share=share)
    if approximate_share is not None:
        expected = f"none for policy {cohort.policy}: only filters set a part of delta aside"
        raise InvalidValue(field="approximate_share", value=approximate_share, expected=expected)
    return FixedPolicy()


def approximate_share_of(opening: bytes) -> float | None:
    """Return the part of delta that a cohort's first body, as canonical bytes, sets aside for approximate
    rounds, for its windows and quotas; None: the usual one."""
    share: float | None = canonical.decode(opening)["details"].get("approximate_share")
    return share


def policy_of(store: Store, view: CohortView) -> Policy:
    """Return a cohort's policy with the rules it was opened with; raises Damaged."""
    if view.cohort.policy == POLICY_FIXED:
        if "standing" in view.details:
            raise Damaged(f"cohort {view.cohort.name!r}: its row has another policy than its last entry")
        return FixedPolicy()
    return policy_from(view.cohort.policy, view.opening or store.first_body(view.cohort.name))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def policy_from(name: str, opening: bytes) -> Policy:
    """Return the policy that a chain's first body, as canonical bytes, lays down; raises Damaged."""
    try:
        details = json.loads(opening)["details"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"the first entry cannot be read: {error}") from error
    # Budgets are much alike: most cohorts have rules that are known from another one.
    rules = [details.get("rules"), details.get("approximate_share")]
    return _policy(name, json.dumps(rules, **_AS_CANONICAL))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def _policy(name: str, spelled: str) -> Policy:
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
    return FixedPolicy()
