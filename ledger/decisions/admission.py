"""Admission: registers rounds and decides them, each in one commit with its entry.

`decisions.decide` computes the answer to one round. `decisions.steps` says whether it can be given now. The
functions here act on that: they append the answer, or compute what is missing. A round whose numbers are
known is decided at once, another one when they are computed; no order between rounds is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import decide, optimistic_append
from shuffle_ledger.ledger.decisions.outcomes import joint_outcome, present_answer
from shuffle_ledger.ledger.decisions.quotas import with_budgets
from shuffle_ledger.ledger.decisions.steps import (
    Drafted,
    NeedsComputation,
    NeedsRow,
    NewRoundRequest,
    NotYet,
    Step,
    first_step,
    prepared_for,
)
from shuffle_ledger.ledger.decisions.windows import open_periods
from shuffle_ledger.ledger.errors import (
    BehindCheckpoint,
    Damaged,
    NotCollectable,
    NotFound,
    RoundStuck,
    TryAgain,
    Unavailable,
)
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX, CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    Outcome,
    Pending,
    RoundRequest,
    checked_new_name,
    request_digest,
)
from shuffle_ledger.ledger.values.texts import checked_text

_LOST_WORKER = "a worker was lost before it decided"


def register(store: Store, request: RoundRequest, *, actor: str) -> Pending | Outcome:
    """Bind an identifier to a round's content and commit it; a decided round answers with its present state.

    Raises:
        NotFound: no such cohort.
        InvalidValue: more reports, or a larger population to sample from, than the cohorts have users;
            a collection that windows do not take, or that ended
            before today; too many cohorts, windows and quotas together; or a name that no new round may have.
        Conflict: the identifier is bound to other content, or the name of a period is taken.
        NotCollectable: the round was admitted before, and is voided or settled, or its cohort is frozen or
            overspent; or it is recorded as an incident.
        TryAgain: others were faster every time; nothing was registered.
        Unavailable: the same, but for AnswerLost: the round may have been registered.
    """
    checked_new_name("round_id", request.round_id)
    actor = checked_text("actor", actor)
    request = with_budgets(store, request)
    open_periods(store, request, actor=actor)
    return register_placed(store, request, actor)


def register_placed(store: Store, request: RoundRequest, actor: str) -> Pending | Outcome:
    """Register a request with its periods, whose chains are open; as `register`."""

    def check(cohorts: Sequence[Cohort]) -> None:
        store.check_same(cohorts)
        decide.check_request(request, cohorts)

    return present_answer(store, store.insert_round(request, actor=actor, check=check))


def admit(store: Store, accountant: Accountant, round_id: str, *, redelivered: bool = False) -> Outcome:
    """Decide a registered round and return the outcome; of a decided one, the outcome while it stands.

    Args:
        redelivered: a worker died with the round; that is counted as a failure of it.

    **Guarantee**: at every commit, the certified epsilon of all a cohort holds is within its budget, or the
    cohort is marked overspent by a settled round; any number of processes may call this at once.

    Raises:
        NotFound: no such round.
        NotCollectable: it was decided before; as `register`.
        TryAgain: this call decided nothing.
        Unavailable: the same, but for AnswerLost: whether the outcome was committed is not known; ask again.
        RoundStuck: the round failed too often; it waits until an operator retries it.
        AccountingError, LedgerError: the round cannot be decided; the failure is counted with the round.
    """
    round_id = checked_text("round_id", round_id)
    if redelivered:
        _count_lost_worker(store, round_id)

    def drafted(views: Sequence[CohortView]) -> list[EntryDraft]:
        stored = [_row_of(view) for view in views]
        _refuse_stuck(stored[0])
        request = _registered(stored[0])
        if any(row.content != stored[0].content for row in stored):
            raise Damaged(f"round {stored[0].round_id!r}: its registered content differs between its cohorts")
        # It was registered for the cohorts as they were then: the database may have been put back since.
        decide.check_request(request, [view.cohort for view in views])
        return decide.drafts(store, accountant, views, stored, request)

    try:
        found = optimistic_append.append_outcome(store, round_id, drafted)
        if isinstance(found, StoredRound):
            return _decided(store, found)
        return joint_outcome([entry.content() for entry in found])
    except (BehindCheckpoint, NotCollectable, NotFound, RoundStuck, TryAgain, Unavailable):
        raise  # says nothing about the round itself
    except Exception as error:
        store.record_failure(round_id, f"{type(error).__name__}: {error}")
        raise


def register_and_admit(
    store: Store, accountant: Accountant, request: RoundRequest, *, actor: str
) -> tuple[Outcome, bool]:
    """Register a round and decide it here; also return whether it had been decided before.

    In one commit where that takes no long computation, else in two: the round first, so that nothing is lost
    should this process die while it computes.

    **Guarantee**: as `admit`.

    Raises:
        What `register` and `admit` raise.
    """
    given, request = request, with_budgets(store, request)
    asked = NewRoundRequest.of(request, actor=actor)
    open_periods(store, request, actor=asked.actor)
    answer = _at_once(store, accountant, asked)
    if not isinstance(answer, NotYet):
        return answer, False
    registered = register(store, given, actor=asked.actor)  # of the day that it is now
    if isinstance(registered, Pending):
        return admit(store, accountant, request.round_id), False
    return registered, True


def admit_at_once(
    store: Store, accountant: Accountant, request: RoundRequest, *, actor: str
) -> Outcome | None:
    """Register a round and decide it in one commit, or write nothing and return None.

    None if the decision takes a long computation, as one about a new kind of rounds does, or if the
    identifier is taken. `register` and `admit` are for these.

    **Guarantee**: as `admit`; and the round's row is there if and only if its outcome is.

    Raises:
        NotFound, InvalidValue: as `register`.
        TryAgain, Unavailable: as `admit`.
    """
    asked = NewRoundRequest.of(with_budgets(store, request), actor=actor)
    open_periods(store, asked.request, actor=asked.actor)
    answer = _at_once(store, accountant, asked)
    return None if isinstance(answer, NotYet) else answer


def _at_once(store: Store, accountant: Accountant, asked: NewRoundRequest) -> Outcome | NotYet:
    """Register and decide a round in one commit, or write nothing and return what has to happen first.

    Numbers that are missing are computed before, if that does not take long.
    """
    answer = _attempt(store, accountant, asked)
    if isinstance(answer, NeedsComputation) and all(
        prepared_for(store, accountant, view, asked.request) for view in answer.views
    ):
        return _attempt(store, accountant, asked)
    return answer


def _attempt(store: Store, accountant: Accountant, asked: NewRoundRequest) -> Outcome | NotYet:
    """Register and decide a round from numbers in memory, in one commit; if that cannot be, write nothing."""
    step: Step = NeedsRow()  # where the identifier is taken, no step is made

    def drafted(new: Sequence[NewRound]) -> Sequence[EntryDraft] | None:
        nonlocal step
        step = first_step(store, accountant, asked, new)
        return step.drafts if isinstance(step, Drafted) else None

    request = asked.request
    try:
        bodies = optimistic_append.append_with_round(store, request.cohorts, request.round_id, drafted)
    except Damaged:
        return NeedsRow()
    if not isinstance(step, Drafted):
        return step
    return joint_outcome(bodies, step.drafts[0].accounted) if bodies is not None else NeedsRow()


def _count_lost_worker(store: Store, round_id: str) -> None:
    stored = store.round(round_id)
    if stored.outcome_sequence is None and stored.attempts < ATTEMPTS_MAX:
        store.record_failure(round_id, _LOST_WORKER)


def _refuse_stuck(stored: StoredRound) -> None:
    if stored.attempts >= ATTEMPTS_MAX:
        raise RoundStuck(
            f"round {stored.round_id!r} failed {stored.attempts} times and is left alone until"
            " somebody asks for it (`round retry`);"
            f" last: {stored.last_error or _LOST_WORKER}"
        )


def _decided(store: Store, stored: StoredRound) -> Outcome:
    answer = present_answer(store, stored)
    if isinstance(answer, Pending):
        raise AssertionError("a decided round has an outcome")
    return answer


def _row_of(view: CohortView) -> StoredRound:
    if view.round is None:
        raise AssertionError("the view was made for a round")
    return view.round


def _registered(stored: StoredRound) -> RoundRequest:
    request = RoundRequest.from_bytes(stored.content)
    same = (request.round_id, request.cohort) == (stored.round_id, stored.cohort)
    if not same or request_digest(stored.content) != stored.content_digest:
        raise Damaged(f"round {stored.round_id!r}: its registered content was changed")
    return request
