"""Contradictions in a decision's entry: between its reason, its numbers and the cohort's state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import (
    POLICY_ADAPTIVE,
    POLICY_PLAN,
    RefusalReason,
    RoundRequest,
)
from shuffle_ledger.ledger.verification.plan_trail import promised_in

# The field that a policy's decision has with what was requested, and not without.
_OF_REQUESTED: Final = {POLICY_ADAPTIVE: "charge", POLICY_PLAN: "slot"}
# Reasons of numbers beyond the budget: an account of delta may be why they are.
_BEYOND: Final = (RefusalReason.UNBOUNDED_LOSS, RefusalReason.BUDGET_EXCEEDED)


def contradictory(
    body: EntryBody, *, frozen: bool, overspent: bool, policy: str, refused_beyond: float
) -> Iterator[str]:
    """Yield how a decision's fields contradict each other: the reason, the numbers and what comes with them.

    Args:
        frozen, overspent: the cohort's state before the entry.
        policy: the cohort's.
        refused_beyond: the epsilon beyond which it refuses rounds.
    """
    details, requested = body.details, body.details["requested"]
    if (requested is None) != (details["privacy_loss"] is None):
        yield "it names a privacy loss without what was requested, or the other way round"
    part = _OF_REQUESTED.get(policy)
    if part is not None and (requested is None) == (part in details):
        yield f"it states a {part} without what was requested, or the other way round"
    if body.kind is EntryKind.ADMITTED:
        if requested != body.spent.to_mapping():
            yield "what it says was requested is not what it says is spent"
        return
    yield from _contradictory_refusal(
        body, closed=_closed(body, frozen=frozen, overspent=overspent), policy=policy, limit=refused_beyond
    )


def _contradictory_refusal(
    body: EntryBody, *, closed: RefusalReason | None, policy: str, limit: float
) -> Iterator[str]:
    """Yield the same of a refusal.

    Args:
        closed: why nothing was computed, None if something was.
        policy: the cohort's.
        limit: the epsilon beyond which it refuses rounds.
    """
    details, requested = body.details, body.details["requested"]
    is_promise = policy == POLICY_PLAN and promised_in(details) > limit
    expected = closed or _reason(requested, limit, is_promise=is_promise)
    # This cohort alone would have admitted the round; or the replay of the chain tells whether it is so.
    is_elsewhere = requested is None and details["reason"] == RefusalReason.REFUSED_ELSEWHERE
    if closed is None and (is_elsewhere or _is_local(details["reason"], expected, policy)):
        return
    is_of_delta = policy == POLICY_ADAPTIVE and details["reason"] == RefusalReason.DELTA_ACCOUNT_EXHAUSTED
    if details["reason"] != expected and not (is_of_delta and expected in _BEYOND):
        yield f"its reason is not the one that its numbers and the cohort's state give, {expected}"
    if closed is not None and requested is not None:
        yield "it states what was requested, although nothing was computed"
    if expected is RefusalReason.NO_FREE_SLOT and policy != POLICY_PLAN:
        yield "it refuses a round for want of a slot, and its cohort has no plan"


def _is_local(reason: object, expected: RefusalReason | None, policy: str) -> bool:
    """Return whether a refusal is for want of a local budget. Its numbers do not show that: a plan computes
    none then, and those of other policies admit the round."""
    without = RefusalReason.NO_FREE_SLOT if policy == POLICY_PLAN else None
    return reason == RefusalReason.LOCAL_BUDGET_EXCEEDED and expected is without


def _closed(body: EntryBody, *, frozen: bool, overspent: bool) -> RefusalReason | None:
    """Return why nothing was computed of a refused round."""
    if frozen or overspent:
        return RefusalReason.COHORT_FROZEN if frozen else RefusalReason.COHORT_OVERSPENT
    if body.details["reason"] != RefusalReason.COLLECTION_OVER:
        return None
    request = RoundRequest.from_bytes(canonical.encode(body.details["request"]))
    is_late = bool(request.windows) and request.days is not None and request.days[1] < body.recorded_at.date()
    return RefusalReason.COLLECTION_OVER if is_late else None


def _reason(requested: Mapping[str, Any] | None, limit: float, *, is_promise: bool) -> RefusalReason | None:
    """Return why a cohort that is open refuses a round; None if it does not.

    Args:
        requested: the numbers with the round; None if they were not computed.
        limit: the epsilon beyond which it refuses rounds.
        is_promise: its plan promises more than that.
    """
    if requested is None:
        return RefusalReason.NO_FREE_SLOT
    if requested["epsilon_upper"] <= limit and not is_promise:
        return None
    unbounded = math.isinf(requested["epsilon_upper"])
    return RefusalReason.UNBOUNDED_LOSS if unbounded else RefusalReason.BUDGET_EXCEEDED
