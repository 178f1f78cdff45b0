"""Restatements: settle, correct, incident and void are one event for all that turns out otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from shuffle_ledger.ledger.machine import filters
from shuffle_ledger.ledger.machine.budgets import posted
from shuffle_ledger.ledger.machine.values import (
    BudgetKind,
    Cause,
    Charge,
    Cost,
    Described,
    InvalidStep,
    Posting,
    PostingKind,
    Round,
    Rules,
    State,
)


def restate(
    states: Mapping[str, State],
    round_: Round,
    described: Described,
    cause: Cause,
    charges: Mapping[str, Cost],
) -> tuple[Posting, ...]:
    """Returns what each budget posts when a release turned out otherwise than it was recorded.

    Args:
        states: the budgets that the round is, or should have been, charged to, by name.
        round_: what was recorded of it before.
        described: as what the release is described.
        cause: why.
        charges: the described cost to each budget; empty unless `described` is STATED.

    Source: docs/adaptivity.md, Theorem 10.

    Raises:
        InvalidStep: the cause does not suit the round or the description, or costs do not suit the budgets.
    """
    _check(states, round_, described, cause)
    if set(charges) != (set(states) if described is Described.STATED else set()) or not states:
        raise InvalidStep(
            f"costs of {sorted(charges)}", "one for each budget if the release is described, else none"
        )
    if cause is not Cause.INCIDENT and set(round_.charges) != set(states):
        raise InvalidStep(f"budgets {sorted(states)}", f"those charged, {sorted(round_.charges)}")
    return tuple(
        _restated(state, _before(state, round_, cause), _cost(state, round_, cause, charges.get(name)))
        for name, state in states.items()
    )


def is_after_opening(released_after: int | None, opened_at: int | None) -> bool:
    """Returns whether a release that nothing admitted is attested to be later than an opening.

    The opening chooses limits and slots. A release before it may have been seen before they were chosen. Both
    moments are readings of clocks, and of two equal readings either may have been the first: only a larger
    one counts.

    Args:
        released_after: the moment after which the release is attested to have happened; None: there is none.
        opened_at: of the opening; None: not known.
    """
    return released_after is not None and opened_at is not None and released_after > opened_at


def may_precede_opening(rules: Rules, released_after: int | None) -> bool:
    """Returns whether an incident is charged as unrandomized, because its release may have chosen the rules.

    A quota may be opened and moved by anything that was seen: it promises nothing.
    """
    is_exempt = rules.kind is BudgetKind.QUOTA
    return not is_exempt and not is_after_opening(released_after, rules.opened_at)


def _cost(state: State, round_: Round, cause: Cause, stated: Cost | None) -> Cost | None:
    """Returns what the release costs a budget; None if nothing was released."""
    if cause is Cause.VOID:
        return None
    if stated is None:
        return filters.unrandomized(state.rules)
    filters.check_cost(state.rules, stated)
    if cause is Cause.INCIDENT and may_precede_opening(state.rules, round_.released_after):
        return filters.unrandomized(state.rules)
    return stated


def _before(state: State, round_: Round, cause: Cause) -> Charge:
    """Returns what a budget was charged for the release so far.

    An incident counts as a second release of its round. If the round was voided, the incident keeps the kind
    of slots that the round claimed, and nothing else: without it a false void would choose the kind after the
    release (docs/adaptivity.md, Lemma 8). The part that the void did not give back stays beside the charge.
    """
    known = round_.charges.get(state.rules.name)
    if known is None or cause is Cause.INCIDENT:
        return filters.no_charge(state.rules, claimed=None if known is None else known.claimed)
    return known


def _restated(state: State, before: Charge, cost: Cost | None) -> Posting:
    after = filters.left_of(state, before) if cost is None else filters.taken_instead(state, before, cost)
    total = filters.replaced(state.rules, state.total, before, after)
    return posted(state, PostingKind.RESTATED, charge=after, total=total)


def _check(states: Mapping[str, State], round_: Round, described: Described, cause: Cause) -> None:
    if (cause is Cause.VOID) != (described is Described.NOTHING):
        raise InvalidStep(f"cause {cause} with a release described as {described}", "void with nothing")
    if described is Described.UNKNOWN and cause is not Cause.INCIDENT:
        raise InvalidStep(f"cause {cause} of an unknown release", "an incident")
    if cause is Cause.INCIDENT:
        charged = [name for name in states if name in round_.charges]
        if charged and not round_.is_voided:
            raise InvalidStep(f"an incident of a round that is charged to {charged}", "a correction")
    elif not round_.charges:
        raise InvalidStep(f"cause {cause} of a round that nothing was charged for", "an incident")
    elif round_.is_voided:
        raise InvalidStep(f"cause {cause} of a voided round", "an incident, if it released something")
    elif round_.is_closed and cause is not Cause.CORRECT:
        raise InvalidStep(f"cause {cause} of a closed round", "a correction")
