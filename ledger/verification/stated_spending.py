"""What an entry may state as spent, given the entry before it and the policy's filters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind, Spending

_SIX_DIGITS = 2e-5  # more than rounding to six digits, up or down, changes a number by
_CLOSINGS = (EntryKind.SETTLED, EntryKind.VOIDED)


def unfounded(body: EntryBody, previous: EntryBody, filters: Mapping[str, float]) -> Iterator[str]:
    """Yield how what an entry says is spent cannot come about as it says.

    Args:
        filters: the shares of delta of the filters that read the spending, by their names; none if
            compositions do.
    """
    if previous.kind is EntryKind.FROZEN and body.kind not in (EntryKind.REFUSED, *CORRECTED_OR_INCIDENT):
        yield "it follows a freeze, after which a cohort only refuses, and records what it is told"
    if body.kind is EntryKind.BUDGET_CHANGED and body.epsilon_budget == previous.epsilon_budget:
        yield "it changes the budget to what it was"
    if body.kind is EntryKind.FROZEN and body.spent != previous.spent.unknown_after(previous.sequence):
        yield "what it says of the spending is not what a freeze leaves of it"
    is_computed = body.kind in (EntryKind.ADMITTED, *_CLOSINGS, *CORRECTED_OR_INCIDENT)
    if filters and (is_computed or body.kind is EntryKind.BUDGET_CHANGED) and body.spent != previous.spent:
        yield from _of_filters("what is spent", body.spent, filters)
    elif is_computed and math.isfinite(body.epsilon_budget):  # else there is no budget, and no number of it
        yield from _of_compositions(body, previous)
    requested = body.details.get("requested") if body.kind is EntryKind.REFUSED else None
    if requested is not None:
        asked = Spending(**requested)
        if filters:
            yield from _of_filters("what was requested", asked, filters)
        elif asked.method != body.numerical_policy:
            yield "what was requested was computed by another method than its numerical policy"


def _of_compositions(body: EntryBody, previous: EntryBody) -> Iterator[str]:
    details, is_carried = body.details, body.spent == previous.spent
    unchanged = "accounted_before" in details and details["accounted"] == details["accounted_before"]
    if unchanged and not is_carried:
        yield "it changes what is spent, although the round turned out as it was accounted"
    # The void that empties a cohort computes nothing. The replay checks that no rounds are held then.
    is_emptied = body.kind is EntryKind.VOIDED and body.spent == Spending.nothing(body.delta_budget)
    if not is_carried and not is_emptied and body.spent.method != body.numerical_policy:
        yield "what is spent was computed by another method than its numerical policy"


def _of_filters(subject: str, spent: Spending, filters: Mapping[str, float]) -> Iterator[str]:
    if spent.rounds == 0:
        if spent != Spending.nothing(spent.delta):
            yield f"it says epsilon of {subject} is something, although nothing is held"
        return
    width = spent.epsilon_upper - spent.epsilon_lower if math.isfinite(spent.epsilon_upper) else 0.0
    if (spent.discretization, spent.truncation, spent.round_off) != (0.0, 0.0, width):
        yield f"{subject}: the width by cause is not that of filters"
    name, _, delta = spent.method.partition(" filter at delta ")
    if name not in filters or not _is_written(delta, filters[name]):
        yield f"{subject} was read by no filter of its cohort"


def _is_written(text: str, number: float) -> bool:
    """Whether a text is a number with six digits, whichever way it was rounded."""
    try:
        return math.isclose(float(text), number, rel_tol=_SIX_DIGITS)
    except ValueError:
        return False
