"""Decisions about rounds: all budgets that a round is charged to admit it, or none is charged."""

from __future__ import annotations

from collections.abc import Mapping

from shuffle_ledger.ledger.machine import filters
from shuffle_ledger.ledger.machine.budgets import posted
from shuffle_ledger.ledger.machine.values import (
    Charge,
    Cost,
    Decided,
    InvalidStep,
    Posting,
    PostingKind,
    Request,
    State,
    Total,
)


def decide(states: Mapping[str, State], request: Request, charges: Mapping[str, Cost]) -> Decided:
    """Returns whether a round is admitted, and what each budget posts.

    Args:
        states: all budgets that the round is charged to, by name.
        request: the round.
        charges: its cost to each of them.

    Source: docs/adaptivity.md, Theorem 11.

    Raises:
        InvalidStep: states, audience and charges are not of the same budgets, or a cost is not one of its
            budget's.
    """
    _check_charges(states, request, charges)
    taken = {name: filters.taken(state, charges[name]) for name, state in states.items()}
    after = {name: filters.added(state.rules, state.total, taken[name]) for name, state in states.items()}
    reasons = {name: _reasons(state, after[name]) for name, state in states.items()}
    refused_by = tuple(name for name in states if reasons[name])

    def posting(name: str, state: State, charge: Charge) -> Posting:
        if refused_by:
            return posted(state, PostingKind.REFUSED, charge=charge, reasons=reasons[name])
        return posted(state, PostingKind.ADMITTED, charge=charge, total=after[name])

    postings = tuple(posting(name, state, taken[name]) for name, state in states.items())
    return Decided(is_admitted=not refused_by, refused_by=refused_by, postings=postings)


def _check_charges(states: Mapping[str, State], request: Request, charges: Mapping[str, Cost]) -> None:
    """Raises InvalidStep unless states, audience and costs are of the same budgets."""
    if not states or set(charges) != set(states):
        raise InvalidStep(f"costs of {sorted(charges)}", f"one for each of {sorted(states)}, one at least")
    cohorts = {state.rules.cohort for state in states.values()}
    if cohorts != set(request.audience):
        raise InvalidStep(
            f"budgets of the cohorts {sorted(cohorts)}", f"of the audience {sorted(request.audience)}"
        )
    for name, state in states.items():
        if state.rules.name != name:
            raise InvalidStep(f"the state of {state.rules.name} under the name {name}", "its own name")
        filters.check_cost(state.rules, charges[name])


def _reasons(state: State, after: Total) -> tuple[str, ...]:
    """Returns why a budget refuses a round, the first reason first."""
    found = filters.standing(state.rules, state.limits, after, state.limits.refuse)
    reasons = []
    if state.is_frozen:
        reasons.append("frozen")
    if state.is_overspent:
        reasons.append("overspent")
    if not found.local:
        reasons.append("local epsilon")
    if not found.promised:
        reasons += ["slots"] if state.rules.slots else []
        if state.rules.reserves and not max(found.filters):
            reasons.append("filters")
        elif state.rules.reserves:
            reasons += [] if found.certain else ["certain loss"]
            reasons += [] if found.slack else ["slack"]
    return tuple(reasons)
