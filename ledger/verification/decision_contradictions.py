"""Contradictions in a decision's entry: between its reason, its numbers and the cohort's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind
from shuffle_ledger.ledger.values.requests import (
    RefusalReason,
    RoundRequest,
)

_OF_CLOSED: Final = (
    RefusalReason.COHORT_FROZEN,
    RefusalReason.COHORT_OVERSPENT,
    RefusalReason.COLLECTION_OVER,
)


def contradictory(body: EntryBody, *, frozen: bool, overspent: bool) -> Iterator[str]:
    """Yield how a decision's fields contradict each other: the reason, the numbers and what comes with them.
    Whether the numbers give the reason is what the machine says.

    Args:
        body: the entry.
        frozen, overspent: the cohort's state before the entry.
    """
    details, requested = body.details, body.details["requested"]
    if (requested is None) != (details["privacy_loss"] is None):
        yield "it names a privacy loss without what was requested, or the other way round"
    if len({requested is None, "cost" not in details, "charge" not in details}) > 1:
        yield "it states a cost or a charge without what was requested, or the other way round"
    if body.kind is EntryKind.ADMITTED:
        if requested != body.spent.to_mapping():
            yield "what it says was requested is not what it says is spent"
        return
    closed = _closed(body, frozen=frozen, overspent=overspent)
    if closed is not None and details["reason"] != closed:
        yield f"its reason is not the one that its cohort's state gives, {closed}"
    if closed is not None and requested is not None:
        yield "it states what was requested, although nothing was computed"
    if closed is None and details["reason"] in _OF_CLOSED:
        yield f"its reason is {details['reason']}, and its cohort is open"


def _closed(body: EntryBody, *, frozen: bool, overspent: bool) -> RefusalReason | None:
    """Return why nothing was computed of a refused round."""
    if frozen or overspent:
        return RefusalReason.COHORT_FROZEN if frozen else RefusalReason.COHORT_OVERSPENT
    if body.details["reason"] != RefusalReason.COLLECTION_OVER:
        return None
    request = RoundRequest.from_mapping(body.details["request"])
    is_late = bool(request.windows) and request.days is not None and request.days[1] < body.recorded_at.date()
    return RefusalReason.COLLECTION_OVER if is_late else None
