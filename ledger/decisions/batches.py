"""Many rounds in one commit, where every decision is quick: an import is long because commits are."""

from __future__ import annotations

from collections.abc import Sequence

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.admission import admit_at_once
from shuffle_ledger.ledger.decisions.outcomes import joint_outcome
from shuffle_ledger.ledger.decisions.quotas import with_budgets
from shuffle_ledger.ledger.decisions.steps import Drafted, NewRoundRequest, first_step, prepared_for
from shuffle_ledger.ledger.decisions.windows import open_periods
from shuffle_ledger.ledger.errors import (
    ClockOff,
    Conflict,
    Damaged,
    InvalidValue,
    LedgerError,
    NotFound,
    TryAgain,
    Unavailable,
)
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, NewRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Outcome, RoundRequest
from shuffle_ledger.ledger.values.texts import checked_text


def prepare_together(store: Store, accountant: Accountant, requests: Sequence[RoundRequest]) -> None:
    """Compute what `admit_together` would miss to decide rounds whose privacy losses are stored, where that
    does not take long. Whatever goes wrong with a round does so again when it is decided.

    Raises:
        TryAgain, Unavailable: the database cannot be asked now.
    """
    views: dict[str, CohortView] = {}
    for given in requests:
        try:
            request = with_budgets(store, given)
            views |= {name: store.view(name) for name in request.cohorts if name not in views}
        except (Conflict, Damaged, InvalidValue, NotFound):
            continue
        for name in request.cohorts:
            prepared_for(store, accountant, views[name], request)


def admit_together(
    store: Store, accountant: Accountant, requests: Sequence[RoundRequest], *, actor: str
) -> list[Outcome]:
    """Register and decide rounds in their order and in one commit: as many of the first ones as can be.

    Ends before a round that `admit_at_once` leaves alone or refuses to look at. Decides none where other
    writers were first every time, or hold the cohort's lock for too long.

    **Guarantee**: as `admit`, for each; the outcomes are those of one after another.

    Raises:
        InvalidValue: the actor is none.
        Unavailable: the database cannot be asked now; AnswerLost: whether the outcomes were committed is
            not known; ask again.
    """
    actor = checked_text("actor", actor)
    return _admitted_together(store, accountant, [(request, actor) for request in requests])


def _admitted_together(
    store: Store, accountant: Accountant, requests: Sequence[tuple[RoundRequest, str]]
) -> list[Outcome]:
    """Register and decide rounds, each with its actor, as `admit_together`."""
    asked: dict[str, NewRoundRequest] = {}
    for given, actor in requests:
        if given.round_id in asked:
            break
        try:
            one = NewRoundRequest.of(with_budgets(store, given), actor=actor)
            open_periods(store, one.request, actor=one.actor)
        except (Conflict, InvalidValue, NotFound):
            break  # for the caller to ask by itself
        asked[given.round_id] = one
    if not asked:
        return []
    charged: dict[str, ShuffledRound | None] = {}

    def drafted(round_id: str, new: Sequence[NewRound]) -> Sequence[EntryDraft] | None:
        try:
            step = first_step(store, accountant, asked[round_id], new)
        except InvalidValue:
            return None
        if not isinstance(step, Drafted):
            return None
        charged[round_id] = step.drafts[0].accounted
        return step.drafts

    wanted = {round_id: one.request.cohorts for round_id, one in asked.items()}
    try:
        bodies = optimistic_append.append_with_rounds(store, wanted, drafted)
    except (Damaged, NotFound, TryAgain):
        return []
    return [joint_outcome(each, charged[round_id]) for each, round_id in zip(bodies, wanted, strict=False)]


def admit_each(
    store: Store, accountant: Accountant, asked: Sequence[tuple[RoundRequest, str]]
) -> list[Outcome | LedgerError | None]:
    """Register and decide rounds of several callers, as many as can be in each commit.

    Args:
        store: the ledger.
        accountant: computes nothing long here.
        asked: requests, each with its actor.

    Returns for each what `admit_at_once` returns, or the error that it raises.
    """
    answers: list[Outcome | LedgerError | None] = []
    while left := asked[len(answers) :]:
        try:
            together = _admitted_together(store, accountant, left) if len(left) > 1 else []
        except LedgerError as error:
            if isinstance(error, Unavailable) and not isinstance(error, ClockOff):
                return answers + [error] * len(left)
            together = []  # perhaps of one cohort, whose name is not for all callers: each is asked alone
        answers += together or [_at_once(store, accountant, *left[0])]
    return answers


def _at_once(
    store: Store, accountant: Accountant, request: RoundRequest, actor: str
) -> Outcome | LedgerError | None:
    try:
        return admit_at_once(store, accountant, request, actor=actor)
    except LedgerError as error:
        return error
