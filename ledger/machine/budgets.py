"""Budgets over time: new ones, changed levels, and folding postings into states."""

from __future__ import annotations

from dataclasses import replace

from shuffle_ledger.ledger.machine import filters
from shuffle_ledger.ledger.machine.values import (
    Charge,
    InvalidStep,
    Level,
    Limits,
    Posting,
    PostingKind,
    Rules,
    State,
    Total,
    Unchanged,
)


def new_state(rules: Rules, limits: Limits) -> State:
    """Returns the state of a budget without postings.

    Raises:
        InvalidStep: rules and limits do not suit each other.
    """
    _check_suit(rules, limits)
    return State(rules=rules, limits=limits, total=filters.nothing(rules))


def may_open_again(state: State) -> bool:
    """Returns whether nothing was decided or restated, so that no output can have chosen another opening.

    It must hold of each budget of the cohort, periods and quotas included.
    """
    return not state.is_used


def change_budget(
    state: State, refuse: Level, promise: Level | None = None, *, slack: int | None = None
) -> Posting | Unchanged:
    """Returns the posting that moves `refuse_at`, and `promise_at` if it is given.

    A larger promise takes the smaller limit of slack at its price; the sliding limit grows with it. A smaller
    promise leaves both, and is refused if what is held does not fit. A quota promises nothing and may move to
    any level, with any limit of slack.

    Args:
        state: the budget.
        refuse: the level that decides from now on.
        promise: the level that is promised from now on; None: as before.
        slack: limit of slack at the price of a larger promise; None: as before.

    Source: docs/adaptivity.md, Theorem 13.

    Raises:
        InvalidStep: `refuse` is above what is promised, levels do not suit the rules, or a promise is neither
            larger nor smaller in all limits, or larger without a limit of slack.
    """
    before, rules = state.limits, state.rules
    promise = promise or (before.promise if rules.promises else refuse)
    is_raised = not promise.is_within(before.promise)
    if rules.promises and is_raised and (slack is None or not before.promise.is_within(promise)):
        raise InvalidStep("a promise raised", "every limit at least as before, and slack at its price")
    stated = before.slack if slack is None else slack
    limits = replace(
        before,
        refuse=refuse,
        promise=promise,
        slack=priced_slack(before.slack, stated) if rules.promises else stated,
        sliding=None if before.sliding is None else max(before.sliding, promise.gaussian),
    )
    _check_suit(rules, limits)
    if rules.promises and not state.is_overspent:
        found = filters.standing(rules, limits, state.total, promise)
        if rules.reserves and is_raised and not found.slack:
            return Unchanged(reasons=("slack",))
        if not found.promised:
            return Unchanged(reasons=("what is held does not fit",))
    return posted(state, PostingKind.BUDGET_CHANGED, limits=limits)


def priced_slack(before: int, stated: int) -> int:
    """Returns the limit of slack after a promise was moved: that of the largest epsilon ever promised."""
    return min(before, stated)


def fold(state: State, posting: Posting) -> State:
    """Returns the state after a posting that was made of this state.

    Raises:
        InvalidStep: the posting is another budget's.
    """
    if posting.budget != state.rules.name:
        raise InvalidStep(f"a posting to {posting.budget}", f"one to {state.rules.name}")
    return replace(
        state,
        limits=posting.limits or state.limits,
        total=posting.total,
        is_used=state.is_used or posting.kind is not PostingKind.BUDGET_CHANGED,
        is_overspent=posting.is_overspent,
    )


def posted(
    state: State,
    kind: PostingKind,
    *,
    charge: Charge | None = None,
    total: Total | None = None,
    reasons: tuple[str, ...] = (),
    limits: Limits | None = None,
) -> Posting:
    """Returns the next posting of a budget, with its status afterwards."""
    after = state.total if total is None else total
    return Posting(
        budget=state.rules.name,
        kind=kind,
        charge=charge,
        total=after,
        reasons=reasons,
        is_overspent=state.is_overspent or overspends(state.rules, limits or state.limits, after),
        limits=limits,
    )


def overspends(rules: Rules, limits: Limits, total: Total) -> bool:
    """Returns whether a total breaks what is promised: nothing but the local limit holds at `promise_at`. A
    quota promises nothing."""
    if not rules.promises:
        return False
    return not filters.standing(rules, limits, total, promised_level(limits)).promised


def promised_level(limits: Limits) -> Level:
    """Returns the level that users are promised: the ceiling, wherever `refuse_at` is moved to."""
    return limits.promise


def _check_suit(rules: Rules, limits: Limits) -> None:
    lengths = {len(limits.refuse.divergences), len(limits.promise.divergences)}
    if lengths != {len(rules.orders)}:
        raise InvalidStep(f"limits with {lengths} divergences", f"{len(rules.orders)} for {rules.name}")
    if limits.sliding is not None and (not rules.reserves or rules.rounds_per_user is not None):
        raise InvalidStep("a sliding limit", "none in a budget without reserves or with rounds_per_user")
    if not rules.promises and limits.promise != limits.refuse:
        raise InvalidStep("a quota with promise_at", "the level of refuse_at, for it promises nothing")
