"""Every decision about what may be spent: registering, admitting, quoting.

Opening a cohort (`decisions.opening`), closing what was admitted (`decisions.settlement`) and changing a
budget are offered here too. What a decision is, `decisions.decide` says.
"""

from __future__ import annotations

import dataclasses
import logging

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import decide, optimistic_append
from shuffle_ledger.ledger.decisions.batches import admit_together
from shuffle_ledger.ledger.decisions.budget_changes import change_budget
from shuffle_ledger.ledger.decisions.new_rounds import NewRoundRequest, NotQuick, OthersWait, draft_new
from shuffle_ledger.ledger.decisions.opening import open_cohort
from shuffle_ledger.ledger.decisions.outcomes import outcome_from, outcome_in, round_record
from shuffle_ledger.ledger.decisions.repeats import present_answer, quote_repeated
from shuffle_ledger.ledger.decisions.settlement import settle, void
from shuffle_ledger.ledger.errors import (
    BehindCheckpoint,
    Damaged,
    NotCollectable,
    NotFound,
    RoundStuck,
    TryAgain,
    Unavailable,
)
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX, CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    Outcome,
    Pending,
    Quote,
    RoundRequest,
    checked_new_name,
    checked_text,
    request_digest,
)

EARLIER_ROUNDS_MAX = 10_000

__all__ = [
    "admit",
    "admit_at_once",
    "admit_in_order",
    "admit_queued",
    "admit_together",
    "change_budget",
    "open_cohort",
    "pending_before",
    "pending_rounds",
    "quote",
    "quote_at",
    "quote_next",
    "register",
    "register_and_admit",
    "round_record",
    "settle",
    "void",
]

_log = logging.getLogger(__name__)


def register(store: Store, request: RoundRequest, *, actor: str) -> Pending | Outcome:
    """Bind an identifier to a round's content and commit it; a decided round answers with its present state.

    Raises:
        NotFound: no such cohort.
        InvalidValue: more reports, or a larger population to sample from, than the cohort has users.
        Conflict: the identifier is bound to other content.
        NotCollectable: the round was admitted before, and is voided or settled, or its cohort is frozen or
            overspent.
    """
    checked_new_name("round_id", request.round_id)
    decide.check_request(request, request.cohort, store.population(request.cohort))
    stored = store.insert_round(request, actor=checked_text("actor", actor))
    return present_answer(store, stored)


def admit(store: Store, accountant: Accountant, round_id: str) -> Outcome:
    """Decide a registered round and return the outcome; of a decided one, the outcome while it stands.

    **Guarantee**: at every commit, the certified epsilon of all a cohort holds is within its budget, or the
    cohort is marked overspent by a settled round; any number of processes may call this at once.

    Raises:
        NotFound: no such round.
        NotCollectable: it was decided before; as `register`.
        TryAgain: nothing was decided and nothing was left behind.
        Unavailable: the same, or the connection was lost while the outcome was committed: ask again.
        AccountingError, LedgerError: the round cannot be decided; the failure is counted with the round.
    """
    round_id = checked_text("round_id", round_id)

    def drafted(view: CohortView, stored: StoredRound) -> EntryDraft:
        request = _registered(stored)
        # It was registered for the cohort as it was then: the database may have been put back since.
        decide.check_request(request, view.cohort.name, view.cohort.population)
        return decide.draft(store, accountant, view, stored, request)

    try:
        found = optimistic_append.append_outcome(store, round_id, drafted)
        return outcome_from(found) if isinstance(found, LedgerEntry) else _decided(store, found)
    except (BehindCheckpoint, NotCollectable, NotFound, TryAgain, Unavailable):
        raise  # says nothing about the round itself
    except Exception as error:
        store.record_failure(round_id, f"{type(error).__name__}: {error}")
        raise


def register_and_admit(
    store: Store, accountant: Accountant, request: RoundRequest, *, actor: str
) -> tuple[Outcome, bool]:
    """Register a round and decide it here; also return whether it had been decided before.

    In one commit where that takes no long computation, else in two: the round first, so that nothing is lost
    should this process die while it computes. Rounds of the same cohort that were registered earlier and left
    undecided are decided first, and keep their order.

    **Guarantee**: as `admit`.

    Raises:
        What `register` and `admit_queued` raise.
    """
    try:
        outcome = _admit_prepared(store, accountant, request, actor)
    except OthersWait:
        _admit_each(store, accountant, store.pending(limit=EARLIER_ROUNDS_MAX, cohort=request.cohort))
        # Who came since then is no earlier than this one.
        outcome = _admit_prepared(store, accountant, request, actor, others_first=False)
    if outcome is not None:
        return outcome, False
    answer = register(store, request, actor=actor)
    if isinstance(answer, Pending):
        return admit_in_order(store, accountant, request.round_id), False
    return answer, True


def admit_at_once(
    store: Store, accountant: Accountant, request: RoundRequest, *, actor: str
) -> Outcome | None:
    """Register a round and decide it in one commit, or write nothing and return None.

    None if the decision takes a long computation, if the identifier is taken, or if rounds of the cohort that
    were registered earlier are undecided: `register` and `admit` are for these.

    **Guarantee**: as `admit`; and the round's row is there if and only if its outcome is.

    Raises:
        NotFound, InvalidValue: as `register`.
        TryAgain: nothing was decided and nothing was left behind.
        Unavailable: the same, or the connection was lost while the outcome was committed: ask again.
    """
    try:
        return _admit_at_once(store, accountant, request, actor)
    except (OthersWait, NotQuick):
        return None


def admit_in_order(store: Store, accountant: Accountant, round_id: str) -> Outcome:
    """Decide a registered round after those of its cohort that were registered earlier and left undecided.

    Who was interrupted and starts again keeps the order.

    Raises:
        What `admit_queued` raises.
    """
    _admit_each(store, accountant, pending_before(store, round_id, limit=EARLIER_ROUNDS_MAX))
    return admit_queued(store, accountant, round_id)


def admit_queued(
    store: Store, accountant: Accountant, round_id: str, *, redelivered: bool = False
) -> Outcome:
    """Decide a round that came out of a queue; `redelivered` says that a worker died with it.

    Raises:
        RoundStuck: the round failed too often; it waits for somebody to look at it.
        What `admit` raises.
    """
    stored = store.round(round_id)
    attempts = stored.attempts
    if stored.outcome_sequence is None:
        if redelivered and attempts < ATTEMPTS_MAX:
            attempts = store.record_failure(round_id, "a worker was lost before it decided")
        if attempts >= ATTEMPTS_MAX:
            error = stored.last_error or "a worker was lost before it decided"
            raise RoundStuck(f"round {round_id!r} failed {attempts} times and is left alone; last: {error}")
    return admit(store, accountant, round_id)


def quote(store: Store, accountant: Accountant, request: RoundRequest) -> Quote:
    """Return what the answer to a registration would be now. Leaves no trace.

    If the identifier is registered, that is the answer to a repetition; see `decisions.repeats`.

    Raises:
        NotFound: no such cohort.
        InvalidValue: more reports, or a larger population to sample from, than the cohort has users.
        Conflict, NotCollectable: as `register`.
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    view = store.view(request.cohort)
    now = quote_at(store, accountant, view, request)
    try:
        record = round_record(store, request.round_id)
    except NotFound:
        return now
    return quote_repeated(request, record, view.cohort.status, now)


def quote_at(store: Store, accountant: Accountant, view: CohortView, request: RoundRequest) -> Quote:
    """Return what the answer would be for a new identifier, if the cohort were as `view` says.

    Raises:
        InvalidValue, AccountingError, LedgerError: as `quote`.
    """
    return quote_next(store, accountant, view, request)[0]


def quote_next(
    store: Store, accountant: Accountant, view: CohortView, request: RoundRequest
) -> tuple[Quote, CohortView]:
    """Return what `quote_at` returns, and how the cohort would be after that answer."""
    cohort = view.cohort
    decide.check_request(request, cohort.name, cohort.population)
    decision = decide.decide(store, accountant, view, request, keep=False)
    admitted = decision.reason is None
    requested = decision.requested
    after = requested if admitted and requested is not None else view.spent
    answer = Quote(
        cohort=cohort.name,
        would_be="admitted" if admitted else "refused",
        reason=decision.reason,
        message=decision.message,
        accounted=decision.accounted,
        epsilon_spent_upper=view.spent.epsilon_upper,
        epsilon_requested_upper=requested.epsilon_upper_or_none if requested else None,
        epsilon_requested_lower=requested.epsilon_lower if requested else None,
        epsilon_remaining=cohort.remaining(after.epsilon_upper),
        epsilon_budget=cohort.epsilon_budget,
        delta_budget=cohort.delta_budget,
    )
    policy = registry.policy_of(store, view)
    if admitted:
        held = {**view.held, decision.accounted: view.held.get(decision.accounted, 0) + 1}
        details = {**view.details, **decision.details}
        view = dataclasses.replace(view, held=held, spent=after, details=details)
    return dataclasses.replace(answer, delta_accounts=policy.delta_accounts(view)), view


def pending_rounds(store: Store, *, limit: int) -> list[str]:
    """Return undecided rounds in order of registration, without those that failed too often."""
    return store.pending(limit=limit)


def pending_before(store: Store, round_id: str, *, limit: int) -> list[str]:
    """Return the undecided rounds of a round's cohort registered before it, in order; raises NotFound."""
    stored = store.round(round_id)
    return store.pending(limit=limit, cohort=stored.cohort, up_to=stored.registration - 1)


def _admit_each(store: Store, accountant: Accountant, waiting: list[str]) -> None:
    for round_id in waiting:
        try:
            admit_queued(store, accountant, round_id)
        except (TryAgain, Unavailable):
            raise
        except NotCollectable:
            continue  # another process decided it since, and somebody closed it
        except Exception:  # noqa: BLE001 - counted with that round, which must not hold up the others
            _log.exception("round %s, registered earlier, could not be decided", round_id)


def _admit_prepared(
    store: Store, accountant: Accountant, request: RoundRequest, actor: str, *, others_first: bool = True
) -> Outcome | None:
    """Do as `_admit_at_once`, after computing what it misses, in nobody's way, if that does not take long."""
    try:
        return _admit_at_once(store, accountant, request, actor, others_first=others_first)
    except NotQuick as found:
        view = found.view
    try:
        is_ready = decide.prepare(store, accountant, view, request)
    except (TryAgain, Unavailable):
        raise
    except Exception:  # noqa: BLE001 - it comes again once the round is registered, and is counted with it
        return None
    try:
        return (
            _admit_at_once(store, accountant, request, actor, others_first=others_first) if is_ready else None
        )
    except NotQuick:
        return None


def _admit_at_once(
    store: Store, accountant: Accountant, request: RoundRequest, actor: str, *, others_first: bool = True
) -> Outcome | None:
    charged: ShuffledRound | None = None
    asking = NewRoundRequest.of(request, actor=actor)

    def drafted(new: NewRound) -> EntryDraft | None:
        nonlocal charged
        draft = draft_new(store, accountant, asking, new, others_first=others_first)
        charged = draft.accounted if draft else None
        return draft

    try:
        body = optimistic_append.append_with_round(store, request.cohort, request.round_id, drafted)
    except Damaged:
        return None  # it comes again once the round is registered, and is counted with it
    return outcome_in(body, charged) if body else None


def _decided(store: Store, stored: StoredRound) -> Outcome:
    answer = present_answer(store, stored)
    if isinstance(answer, Pending):
        raise AssertionError("a decided round has an outcome")
    return answer


def _registered(stored: StoredRound) -> RoundRequest:
    request = RoundRequest.from_bytes(stored.content)
    same = (request.round_id, request.cohort) == (stored.round_id, stored.cohort)
    if not same or request_digest(stored.content) != stored.content_digest:
        raise Damaged(f"round {stored.round_id!r}: its registered content was changed")
    return request
