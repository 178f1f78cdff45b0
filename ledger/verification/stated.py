"""What an entry states that nothing else says: people's words, moments, and numbers of the accountant.

`fold` takes these from the entry. They must be written as ledgers write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, slots_share
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryBody, Spending
from shuffle_ledger.ledger.values.requests import NOTHING_LATER, Cohort, RefusalReason

ROUND_OFF: Final = Fraction(1, 2**30)  # of a share of delta, on another computer
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REFUSAL: Final = frozenset(
    {"reason", "epsilon_spent_upper", "epsilon_requested_upper", "epsilon_budget", "delta_budget"}
)


def stated(body: EntryBody, *names: str) -> dict[str, Any]:
    """Return some of an entry's details; raises Damaged if one is missing or not as ledgers write it."""
    found = {}
    for name in names:
        if name not in body.details:
            raise Damaged(f"details lacks {name}")
        value = found[name] = body.details[name]
        if not _CHECKS[name](value):
            raise Damaged(f"details.{name} is not written as ledgers write it")
    return found


def stated_spending(body: EntryBody) -> Spending:
    """Return what an entry says was requested; raises Damaged."""
    try:
        return Spending(**body.details["requested"])
    except (LookupError, TypeError) as error:
        raise Damaged(f"details.requested is no spending: {error}") from error


def check_bounds(said: Spending) -> None:
    """Raise Damaged if numbers, which may be forged, can be no bounds."""
    numbers = (said.epsilon_upper, said.epsilon_lower, said.discretization, said.truncation, said.round_off)
    if not all(type(each) is float and each >= 0 for each in numbers):
        raise Damaged("its numbers are none that could be bounds")
    if not said.epsilon_lower <= said.epsilon_upper:
        raise Damaged("its lower bound is above its upper one")


def with_stated_amounts(policy: BudgetPolicy, cohort: Cohort) -> BudgetPolicy:
    """Return the rules that a cohort is opened with, by the filters, slots and amounts that a policy states:
    `proofs` proves those."""
    again = BudgetPolicy.opened(
        cohort,
        slots=policy.slots_declared,
        slots_epsilon=policy.slots_epsilon,
        approximate_share=policy.approximate_share,
        filters=policy.filters,
    )
    given, limits = policy.limits, again.limits
    if again.filters is None:
        return again
    promise = replace(given.promise, epsilon=limits.promise.epsilon)
    refuse = replace(given.refuse, epsilon=limits.refuse.epsilon)
    limits = replace(
        limits,
        promise=promise,
        refuse=promise if refuse.epsilon == promise.epsilon else refuse,
        certain=limits.certain and (given.certain or limits.certain),
        slack=limits.slack and (given.slack or limits.slack),
        sliding=None if limits.sliding is None else promise.gaussian,
    )
    return replace(again, limits=limits)


def misdivided(policy: BudgetPolicy) -> Iterator[str]:
    """Yield how an opening divides delta, or plans, otherwise than its rules and its budget say."""
    filters = policy.filters
    if filters is None:
        if policy.machine_rules.slots_epsilon > policy.limits.promise.epsilon:
            yield "it opens a cohort with a plan beyond its budget"
        return
    left = policy.delta * (1 - slots_share("adaptive") if policy.slots_declared else 1.0)
    part = Fraction(policy.approximate_share) * Fraction(left) / 2
    if not all(abs(Fraction(each) - part) <= part * ROUND_OFF for each in filters.shares()[-2:]):
        yield "its accounts have another share of delta than it says"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_moment(value: Any) -> bool:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return moment.tzinfo is not None and value == canonical.spelled_moment(moment)


def _is_last_known(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and set(value) == {"sequence", "digest"}
        and _is_number(value["sequence"])
        and _is_digest(value["digest"])
    )


def _are_refusals(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(each, Mapping) and _is_refusal(each) for each in value.values())
    )


def _is_refusal(numbers: Mapping[str, Any]) -> bool:
    reasons = set(RefusalReason) - {RefusalReason.REFUSED_ELSEWHERE}
    return (
        set(numbers) == _REFUSAL
        and numbers["reason"] in reasons
        and all(each is None or type(each) is float for name, each in numbers.items() if name != "reason")
    )


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "privacy_loss": _is_digest,
    "registration": _is_number,
    "registered_at": _is_moment,
    "registered_by": _is_text,
    "reason": _is_text,
    "message": _is_text,
    "reports": _is_number,
    "checkpoint": _is_digest,
    "nothing_later": lambda value: value in (None, NOTHING_LATER),
    "last_known": _is_last_known,
    "refused_by": _are_refusals,
    "chosen_after": lambda value: type(value) is bool,
}
