"""The loop around every decision: read, decide outside any transaction, append if the head is unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from shuffle_ledger.ledger.errors import Damaged, LostRace, TryAgain
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


class _Drafts(NamedTuple):
    """The entries to append, one to each of the cohorts that were read."""

    views: Sequence[CohortView]
    listed: Sequence[EntryDraft]


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

    def of_one(views: Sequence[CohortView]) -> _Drafts | Answer:
        decided = decide(views[0])
        return _Drafts(views, [decided]) if isinstance(decided, EntryDraft) else decided

    appended = _racing(store, lambda: store.views([cohort]), of_one)
    return appended[0] if isinstance(appended, list) else appended


def append_to_each(
    store: Store, cohorts: Sequence[str], decide: Callable[[CohortView], EntryDraft | LedgerEntry | None]
) -> list[LedgerEntry]:
    """Append what `decide` drafts for each of some cohorts, in one transaction, as `append`.

    Where `decide` returns entries that say the same already, for every cohort, these are the answer. Where it
    returns None, the cohort's chain stays as it is.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such cohort.
        Damaged: some of the chains say the same already, and others do not.
    """

    def of_each(views: Sequence[CohortView]) -> _Drafts | list[LedgerEntry]:
        pairs = [(view, decide(view)) for view in views]
        decided = [each for _, each in pairs]
        drafts = [each for each in decided if isinstance(each, EntryDraft)]
        present = [each for each in decided if isinstance(each, LedgerEntry)]
        if drafts and present:
            if any(store.view(view.cohort.name).head_digest != view.head_digest for view in views):
                raise LostRace("another process said the same meanwhile")
            raise Damaged(
                f"cohort {present[0].cohort!r}, entry {present[0].sequence}: the chain of another cohort of"
                " the same round has no such entry"
            )
        drafted = [view for view, each in pairs if isinstance(each, EntryDraft)]
        return _Drafts(drafted, drafts) if drafts else present

    return _racing(store, lambda: store.views(cohorts), of_each)


def append_outcome(
    store: Store, round_id: str, decide: Callable[[Sequence[CohortView]], Sequence[EntryDraft]]
) -> list[LedgerEntry] | StoredRound:
    """Append the outcome that `decide` drafts for a pending round, to the chain of each of its cohorts, as
    `append`, and return the entries.

    Returns the row of a round that was decided before.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such round.
        Damaged: a cohort of the round is not as its last entry says.
    """
    return _racing(store, lambda: store.view_of_round(round_id), lambda views: _Drafts(views, decide(views)))


def append_with_round(
    store: Store,
    cohorts: Sequence[str],
    round_id: str,
    decide: Callable[[Sequence[NewRound]], Sequence[EntryDraft] | None],
) -> list[EntryBody] | None:
    """Append the outcome that `decide` drafts for a new round to the chain of each of its cohorts, with its
    rows; see `Store.append_with_round`.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such cohort.
        Damaged: a cohort is not as its last entry says.
    """

    def of_one(new: NewRound) -> EntryDraft | None:
        drafts = decide([new])
        return None if drafts is None else drafts[0]

    def once() -> list[EntryBody] | None:
        try:
            if len(cohorts) > 1:
                appended = store.append_with_rounds({round_id: cohorts}, lambda _, new: decide(new))
                return appended[0] if appended else None
            body = store.append_with_round(cohorts[0], round_id, of_one)
            return None if body is None else [body]
        except LostRace:
            _note_contention(store, cohorts)
            raise

    try:
        return once()
    except LostRace:
        return _insisting(once)


def _note_contention(store: Store, cohorts: Sequence[str]) -> None:
    for cohort in cohorts:
        store.turns.note_contention(cohort)


def _racing(
    store: Store,
    read: Callable[[], list[CohortView] | Found],
    decide: Callable[[Sequence[CohortView]], _Drafts | Answer],
) -> list[LedgerEntry] | Answer | Found:
    def once() -> list[LedgerEntry] | Answer | Found:
        views = read()
        if not isinstance(views, list):
            return views
        names = [view.cohort.name for view in views]
        if not any(map(store.turns.is_contended, names)):
            return attempt(views)
        with store.turns.take(names):
            for _ in range(RACES_IN_TURN_MAX):
                views = read()
                if not isinstance(views, list):
                    return views
                try:
                    return attempt(views)
                except LostRace:
                    continue  # to somebody who did not take a turn: not again
            raise LostRace(f"cohort {names[0]!r} moved on although it was our turn")

    def attempt(views: Sequence[CohortView]) -> list[LedgerEntry] | Answer:
        decided = decide(views)
        if not isinstance(decided, _Drafts):
            return decided
        try:
            return store.append_to_all(decided.views, decided.listed)
        except LostRace:
            _note_contention(store, [view.cohort.name for view in views])
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
    raise TryAgain(f"others wrote to the cohort first, {state.attempt_number} times; ask the same again")
