"""Budgets over time: opening, changing, freezing, and folding postings into states."""

from __future__ import annotations

from collections.abc import Iterable
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

_USES = {PostingKind.ADMITTED, PostingKind.REFUSED, PostingKind.RESTATED}


def new_state(rules: Rules, limits: Limits, *, digest: str = "") -> State:
    """Returns the state of a budget without postings: a period's, whose rules follow from the opening of its
    cohort with this digest.

    Raises:
        InvalidStep: rules and limits do not suit each other.
    """
    _check_suit(rules, limits)
    return State(rules=rules, limits=limits, total=filters.nothing(rules), digest=digest)


def open_budget(rules: Rules, limits: Limits, *, present: Iterable[State] = ()) -> Posting:
    """Returns the posting that opens a budget, or opens it again.

    Args:
        rules, limits: of the opening.
        present: the states of all budgets of the cohort, periods and quotas included.

    Raises:
        InvalidStep: a round of the cohort was decided or restated, so that its outputs may have been seen; or
            rules and limits do not suit each other.
    """
    _check_suit(rules, limits)
    before = None
    for state in present:
        if state.rules.cohort != rules.cohort:
            raise InvalidStep(f"a budget of {state.rules.cohort}", f"budgets of {rules.cohort}")
        if rules.promises and not may_open_again(state):
            raise InvalidStep(
                f"opening {rules.name} again after {state.rules.name} was used",
                "a cohort of which no round was decided and no incident recorded",
            )
        before = state if state.rules.name == rules.name else before
    if before is not None and (before.is_frozen or (rules.opened_at or 0) <= (before.rules.opened_at or 0)):
        raise InvalidStep(f"opening {rules.name} again", "a later time, and a budget that is not frozen")
    return Posting(
        budget=rules.name,
        kind=PostingKind.OPENED,
        sequence=1 if before is None else before.sequence + 1,
        previous="" if before is None else before.digest,
        total=filters.nothing(rules),
        rules=rules,
        limits=limits,
    )


def may_open_again(state: State) -> bool:
    """Returns whether nothing was decided or restated, so that no output can have chosen another opening."""
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
        slack=min(before.slack, stated) if rules.promises else stated,
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


def freeze(state: State) -> Posting:
    """Returns the posting after which a budget admits nothing: it was closed, or part of its history is
    lost."""
    return replace(posted(state, PostingKind.FROZEN), is_frozen=True)


def fold(state: State | None, posting: Posting, *, digest: str = "") -> State:
    """Returns the state after a posting.

    Args:
        state: before; None: there was no posting.
        posting: the next one.
        digest: of the posting, computed over its stored bytes.

    Raises:
        InvalidStep: the posting is not the next one of this budget.
    """
    if posting.rules is not None and posting.limits is not None:
        opened = new_state(posting.rules, posting.limits, digest=digest)
        _check_next(state or opened, posting, first=state is None)
        return replace(opened, sequence=posting.sequence)
    if state is None:
        raise InvalidStep(f"a first posting of kind {posting.kind} to {posting.budget}", "an opening")
    _check_next(state, posting, first=False)
    return replace(
        state,
        limits=posting.limits or state.limits,
        total=posting.total,
        sequence=posting.sequence,
        digest=digest,
        is_used=state.is_used or posting.kind in _USES,
        is_overspent=posting.is_overspent,
        is_frozen=posting.is_frozen,
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
        sequence=state.sequence + 1,
        previous=state.digest,
        charge=charge,
        total=after,
        reasons=reasons,
        is_overspent=state.is_overspent or overspends(state.rules, limits or state.limits, after),
        is_frozen=state.is_frozen,
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


def _check_next(state: State, posting: Posting, *, first: bool) -> None:
    sequence, previous = (0, "") if first else (state.sequence, state.digest)
    expected = (state.rules.name, sequence + 1, previous)
    if (posting.budget, posting.sequence, posting.previous) != expected:
        raise InvalidStep(
            f"posting {posting.sequence} to {posting.budget} after {posting.previous or 'nothing'}",
            f"posting {sequence + 1} to {state.rules.name} after {previous or 'nothing'}",
        )
