"""Opening cohorts, with the rules of their policy, and opening them again while nothing was decided.

What was released before the opening in force must not choose it: docs/adaptivity.md, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    NUMERICAL_POLICY,
    Accountant,
    ShuffledRound,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.descriptions import check_sizes
from shuffle_ledger.ledger.errors import InvalidValue, OtherContent, UnacceptedWarnings
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.policy import BudgetPolicy
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store, opening_details
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.audiences import check_selectable
from shuffle_ledger.ledger.values.differences import check_same, is_same, other_content
from shuffle_ledger.ledger.values.entries import EntryKind, Spending
from shuffle_ledger.ledger.values.requests import (
    POLICY_PLAN,
    Cohort,
    Opening,
    checked_new_name,
    cohort_from_opening,
)
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.values.unusual_cohorts import opening_warnings


def open_cohort(
    store: Store,
    *,
    actor: str,
    plan: Mapping[ShuffledRound, int] | None = None,
    approximate_share: float | None = None,
    accountant: Accountant | None = None,
    **opening: Unpack[Opening],
) -> Cohort:
    """Open a cohort, or return it if it was opened with the same parameters; see `Opening` for them.

    A cohort with other parameters is opened again, while nothing was decided about it and no incident
    recorded, no round waits, and it has neither periods nor quotas with chains: one more entry replaces what
    was opened, and incidents are judged by its time.

    With `plan`, how many rounds of each kind are declared, and an accountant that composes them. Policy
    `plan` admits these alone; under policy `adaptive` they have 3/4 of delta, and filters the rest.
    Policy `adaptive` may have `approximate_share`, the part of delta that is set aside for rounds that are
    only approximately private, in its windows and quotas too; None: 1/64.

    Raises:
        InvalidValue, InvalidParameter: a parameter cannot be one; names the field.
        BeyondBudget: the plan costs more than the budget; nothing was opened.
        Conflict: the name is taken by a cohort with other parameters, another plan or another share, which
            cannot be opened again.
        TryAgain: others wrote to the cohort first every time.
        AccountingError: the plan cannot be composed.
    """
    cohort = cohort_from_opening(**opening)
    checked_new_name("name", cohort.name)
    actor = checked_text("actor", actor)
    is_new = not store.cohorts(only=[cohort.name])
    if is_new:
        check_new_cohort(cohort)
    policy = _policy(store, cohort, plan, accountant, approximate_share=approximate_share)
    rules = policy.opening()
    if is_new:
        opened = store.open_cohort(cohort, actor=actor, numerical_policy=NUMERICAL_POLICY, rules=rules)
        _check_rules(store, opened, rules)
        return opened

    def again(view: CohortView) -> EntryDraft | Cohort:
        try:
            check_same(view.cohort, cohort)
            _check_rules(store, view.cohort, rules)
        except OtherContent as error:
            if (why := _not_again(store, view)) is not None:
                raise OtherContent(f"{error}; {why}", differences=error.differences) from error
            return _opening_again(cohort, rules, actor)
        return view.cohort

    found = optimistic_append.append(store, cohort.name, again)
    return found if isinstance(found, Cohort) else store.cohort(cohort.name)


def check_new_cohort(cohort: Cohort) -> None:
    """Raise InvalidValue for names and labels that no new cohort has; a cohort of before may have them."""
    checked_new_name("name", cohort.name)
    if "@" in cohort.name:
        expected = "a name without @, which periods of windows have"
        raise InvalidValue(field="name", value=cohort.name, expected=expected)
    check_selectable(cohort.name, cohort.labels)


def open_many(store: Store, cohorts: Sequence[Cohort], *, actor: str) -> None:
    """Open cohorts without plans in one transaction, each as `open_cohort`; one that is open stays as it is.

    Raises:
        InvalidValue: a cohort has a plan, or the name of a part of another.
        Conflict: a name is taken by a cohort with other parameters; nothing was opened.
    """
    for cohort in cohorts:
        checked_new_name("name", cohort.name)
        if "@" in cohort.name or cohort.policy == POLICY_PLAN:
            expected = "a cohort without a plan, and a name without @"
            raise InvalidValue(field="name", value=cohort.name, expected=expected)
    known = {cohort.name for cohort in store.cohorts_among({cohort.name for cohort in cohorts})}
    for cohort in cohorts:
        if cohort.name not in known:
            check_new_cohort(cohort)
    given = [(cohort, registry.policy_for(cohort).opening()) for cohort in cohorts]
    store.open_cohorts(given, actor=checked_text("actor", actor), numerical_policy=NUMERICAL_POLICY)


def _counts_of(slots: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many rounds of each kind a plan has, by the kind in words."""
    kinds = [(ShuffledRound.from_mapping(slot["round"]), slot["count"]) for slot in slots]
    return {one.in_words: count for one, count in kinds}


def _opening_again(cohort: Cohort, rules: Mapping[str, Any], actor: str) -> EntryDraft:
    return EntryDraft(
        kind=EntryKind.OPENED,
        round_id=None,
        actor=actor,
        numerical_policy=NUMERICAL_POLICY,
        spent=Spending.nothing(cohort.delta_budget),
        details=opening_details(cohort, rules),
        epsilon_budget=cohort.epsilon_budget,
        opens=cohort,
    )


def _not_again(store: Store, view: CohortView) -> str | None:
    """Return why a cohort cannot be opened again, by its own chain; None: it can."""
    if view.cohort.parent is not None:
        return f"it is a part of cohort {view.cohort.parent!r}, with which it is opened"
    if view.cohort.status != "open":
        return f"it is {view.cohort.status}, and is not opened again"
    if machine.may_open_again(registry.policy_of(store, view).state(view)):
        return None
    return "rounds of it were decided or recorded, so it is not opened again"


def _check_rules(store: Store, cohort: Cohort, rules: Mapping[str, Any]) -> None:
    """Raise OtherContent if a cohort has another plan than some rules, or another share for approximate
    rounds."""
    name = cohort.name
    stored = canonical.decode(store.opening(cohort))["details"]["rules"]
    given = canonical.decode(canonical.encode(rules["rules"]))
    slots = [rules.get("slots", {}).get("kinds", []) for rules in (stored, given)]
    if slots[0] != slots[1]:
        raise other_content(f"cohort {name!r} exists with another plan", *map(_counts_of, slots))
    shares = [rules.get("approximate_share", APPROXIMATE_SHARE) for rules in (stored, given)]
    if shares[0] != shares[1]:
        what = f"cohort {name!r} exists with another share of delta for approximate rounds"
        raise other_content(what, *({"approximate_share": share} for share in shares))


def check_opening(store: Store, cohort: Cohort) -> None:
    """Raise UnacceptedWarnings for a cohort with unusual parameters, unless it is open with the same ones, or
    cannot be opened again: that is a conflict.
    """
    warnings = opening_warnings(cohort)
    if not warnings:
        return
    for stored in store.cohorts(only=[cohort.name]):
        if is_same(stored, cohort) or store.has_decided(cohort.name):
            return
    raise UnacceptedWarnings(cohort.name, warnings)


def _policy(
    store: Store,
    cohort: Cohort,
    plan: Mapping[ShuffledRound, int] | None,
    accountant: Accountant | None,
    *,
    approximate_share: float | None,
) -> BudgetPolicy:
    """Return the rules that a cohort is opened with."""
    if plan is None and cohort.policy == POLICY_PLAN:
        expected = "the rounds of the plan"
        message = f"policy {POLICY_PLAN} needs the field plan: {expected}"
        raise InvalidValue(field="plan", value=None, expected=expected, message=message)
    if plan is None:
        return registry.policy_for(cohort, approximate_share=approximate_share)
    if approximate_share is not None and cohort.policy == POLICY_PLAN:
        expected = f"none for policy {cohort.policy}: only filters set a part of delta aside"
        raise InvalidValue(field="approximate_share", value=approximate_share, expected=expected)
    if cohort.rounds_per_user is not None or not cohort.has_life:
        expected = "none with rounds_per_user, whose totals are largest charges, and none without --life"
        raise InvalidValue(field="plan", value=len(plan), expected=expected)
    if accountant is None:
        raise InvalidValue(field="accountant", value=None, expected="an accountant that composes the plan")
    for one in plan:
        check_sizes(one, cohort.population)
    return registry.policy_with_slots(
        LossSource(store=store, accountant=accountant), cohort, plan, approximate_share=approximate_share
    )
