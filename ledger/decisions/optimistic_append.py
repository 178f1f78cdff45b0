"""The loop around every decision: read, decide outside any transaction, append if the head is unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from shuffle_ledger.ledger.errors import Damaged, LostRace, StayedLocked, TryAgain
from shuffle_ledger.ledger.storage.cohort_locks import RACES_IN_TURN_MAX
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry

if TYPE_CHECKING:
    from tenacity import RetryCallState

RACES_MAX = 200
RACING_SECONDS_MAX = 60.0
WAIT_FIRST_SECONDS = 0.002
WAIT_MAX_SECONDS = 0.25

Answer = TypeVar("Answer")
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

    def once() -> LedgerEntry | Answer:
        view = store.view(cohort)
        decided = decide(view)
        return store.append(view, decided) if isinstance(decided, EntryDraft) else decided

    return _insisting(store, [cohort], once)


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

    def once() -> list[LedgerEntry]:
        views = store.views(cohorts)
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
        return store.append_to_all(drafted, drafts) if drafts else present

    return _insisting(store, cohorts, once)


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
    cohorts: list[str] = []

    def once() -> list[LedgerEntry] | StoredRound:
        views = store.view_of_round(round_id)
        if not isinstance(views, list):
            return views
        cohorts[:] = [view.cohort.name for view in views]
        return store.append_to_all(views, decide(views))

    return _insisting(store, cohorts, once)


def append_with_round(
    store: Store,
    cohorts: Sequence[str],
    round_id: str,
    decide: Callable[[Sequence[NewRound]], Sequence[EntryDraft] | None],
) -> list[EntryBody] | None:
    """Append the outcome that `decide` drafts for a new round, as below; None if it drafts none."""
    appended = append_with_rounds(store, {round_id: cohorts}, lambda _, new: decide(new))
    return appended[0] if appended else None


def append_with_rounds(
    store: Store,
    wanted: Mapping[str, Sequence[str]],
    decide: Callable[[str, Sequence[NewRound]], Sequence[EntryDraft] | None],
) -> list[list[EntryBody]]:
    """Append the outcomes that `decide` drafts for new rounds to the chains of their cohorts, with the rows;
    see `Store.append_with_rounds`. After a lost race `decide` is asked about all of them again.

    Raises:
        TryAgain: others were faster every time; nothing was appended.
        NotFound: no such cohort.
        Damaged: a cohort is not as its last entry says.
    """
    names = sorted({name for each in wanted.values() for name in each})

    def once() -> list[list[EntryBody]]:
        try:
            return store.append_with_rounds(wanted, decide)
        except StayedLocked:  # by a writer that keeps its turn: go on without
            if not store.turns.lines(names):
                raise
            return store.append_with_rounds(wanted, decide, waits=False)

    return _insisting(store, names, once, takes_turns=True)


def _insisting(
    store: Store, cohorts: Sequence[str], once: Callable[[], Tried], *, takes_turns: bool = False
) -> Tried:
    """Return what `once` returns, which is called again after each lost race: in turn, if others wrote to the
    cohorts of late, unless it `takes_turns` itself.
    """

    def noting() -> Tried:
        try:
            return once()
        except LostRace:
            for cohort in cohorts:
                store.turns.note_contention(cohort)
            raise

    def in_turn() -> Tried:
        if takes_turns or not any(map(store.turns.is_contended, cohorts)):
            return noting()
        with store.turns.take(cohorts):
            for _ in range(RACES_IN_TURN_MAX):
                with suppress(LostRace):  # to a writer that had read before this turn began
                    return noting()
        raise LostRace(f"cohort {cohorts[0]!r} moved on although it was our turn")

    try:
        return in_turn()  # `Retrying` takes as long as a statement, and most races are won
    except LostRace:
        return _raced(in_turn)


def _raced(once: Callable[[], Tried]) -> Tried:
    """Return what `once` returns, which is called again after each lost race, a bounded number of times."""
    from tenacity import (  # noqa: PLC0415 - most commands lose no race
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        stop_after_delay,
        wait_random_exponential,
    )

    racing = Retrying(
        retry=retry_if_exception_type(LostRace),
        stop=stop_after_attempt(RACES_MAX) | stop_after_delay(RACING_SECONDS_MAX),
        wait=wait_random_exponential(multiplier=WAIT_FIRST_SECONDS, max=WAIT_MAX_SECONDS),
        retry_error_callback=_give_up,
    )
    return racing(once)


def _give_up(state: RetryCallState) -> NoReturn:
    raise TryAgain(f"others wrote to the cohort first, {state.attempt_number} times; ask the same again")
