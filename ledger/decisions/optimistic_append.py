"""The loop around every decision: read, decide outside any transaction, append if the head is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from shuffle_ledger.ledger.errors import LostRace, TryAgain
from shuffle_ledger.ledger.storage.cohort_locks import RACES_IN_TURN_MAX
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry

RACES_MAX = 200
RACING_SECONDS_MAX = 60.0
WAIT_FIRST_SECONDS = 0.002
WAIT_MAX_SECONDS = 0.25

Answer = TypeVar("Answer")
Found = TypeVar("Found")
Tried = TypeVar("Tried")


def append(
    store: Store, cohort: str, decide: Callable[[CohortView], EntryDraft | Answer]
) -> LedgerEntry | Answer:
    """Append what `decide` drafts, asking it again with a fresh view whenever another writer was faster.

    `decide` must read anything else it depends on *after* it was given the view: if the append then
    succeeds, nothing in the cohort changed in between. An answer other than a draft ends the loop.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such cohort.
    """
    return _racing(store, lambda: store.view(cohort), decide)


def append_outcome(
    store: Store, round_id: str, decide: Callable[[CohortView, StoredRound], EntryDraft]
) -> LedgerEntry | StoredRound:
    """Append the outcome that `decide` drafts for a pending round, as `append`, and return its entry.

    Returns the row of a round that was decided before.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such round.
        Damaged: the round's cohort is not as its last entry says.
    """

    def of_pending(view: CohortView) -> EntryDraft:
        if view.round is None:
            raise AssertionError("the view was made for a round")
        return decide(view, view.round)

    return _racing(store, lambda: store.view_of_round(round_id), of_pending)


def append_with_round(
    store: Store, cohort: str, round_id: str, decide: Callable[[NewRound], EntryDraft | None]
) -> EntryBody | None:
    """Append the outcome that `decide` drafts for a new round, with its row; see `Store.append_with_round`.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such cohort.
        Damaged: the cohort is not as its last entry says.
    """

    def once() -> EntryBody | None:
        try:
            return store.append_with_round(cohort, round_id, decide)
        except LostRace:
            store.turns.note_contention(cohort)
            raise

    try:
        return once()
    except LostRace:
        return _insisting(once)


def _racing(
    store: Store,
    read: Callable[[], CohortView | Found],
    decide: Callable[[CohortView], EntryDraft | Answer],
) -> LedgerEntry | Answer | Found:
    def once() -> LedgerEntry | Answer | Found:
        view = read()
        if not isinstance(view, CohortView):
            return view
        cohort = view.cohort.name
        if not store.turns.is_contended(cohort):
            return attempt(view)
        with store.turns.take(cohort):
            for _ in range(RACES_IN_TURN_MAX):
                view = read()
                if not isinstance(view, CohortView):
                    return view
                try:
                    return attempt(view)
                except LostRace:
                    continue  # to somebody who did not take a turn: not again
            raise LostRace(f"cohort {cohort!r} moved on although it was our turn")

    def attempt(view: CohortView) -> LedgerEntry | Answer:
        decided = decide(view)
        if not isinstance(decided, EntryDraft):
            return decided
        try:
            return store.append(view, decided)
        except LostRace:
            store.turns.note_contention(view.cohort.name)
            raise

    return _insisting(once)


def _insisting(once: Callable[[], Tried]) -> Tried:
    racing = Retrying(
        retry=retry_if_exception_type(LostRace),
        stop=stop_after_attempt(RACES_MAX) | stop_after_delay(RACING_SECONDS_MAX),
        wait=wait_random_exponential(multiplier=WAIT_FIRST_SECONDS, max=WAIT_MAX_SECONDS),
        retry_error_callback=_give_up,
    )
    return racing(once)


def _give_up(state: RetryCallState) -> NoReturn:
    raise TryAgain(
        f"others wrote to the cohort first, {state.attempt_number} times; ask again, with the same identifier"
    )
