"""The loop around every decision: read, decide outside any transaction, append if nobody was faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from ledger.entries import LedgerEntry
from ledger.errors import LostRace, TryAgain
from ledger.rows import CohortView, EntryDraft
from ledger.store import Store

RACES_MAX = 200
RACING_SECONDS_MAX = 60.0
WAIT_FIRST_SECONDS = 0.002
WAIT_MAX_SECONDS = 0.25

Answer = TypeVar("Answer")


def append(
    store: Store, cohort: str, decide: Callable[[CohortView], EntryDraft | Answer]
) -> LedgerEntry | Answer:
    """Append what `decide` drafts, asking it again with a fresh view whenever another writer was faster.

    `decide` must read anything else it depends on *after* it was given the view: if the append then
    succeeds, nothing in the cohort changed in between. An answer other than a draft ends the loop.

    Raises:
        TryAgain: others were faster every time; nothing was left behind.
        NotFound: no such cohort.
    """

    def once() -> LedgerEntry | Answer:
        view = store.view(cohort)
        decided = decide(view)
        return store.append(view, decided) if isinstance(decided, EntryDraft) else decided

    racing = Retrying(
        retry=retry_if_exception_type(LostRace),
        stop=stop_after_attempt(RACES_MAX) | stop_after_delay(RACING_SECONDS_MAX),
        wait=wait_random_exponential(multiplier=WAIT_FIRST_SECONDS, max=WAIT_MAX_SECONDS),
        retry_error_callback=_give_up,
    )
    return racing(once)


def _give_up(state: RetryCallState) -> LedgerEntry:
    raise TryAgain(
        f"others wrote to the cohort first, {state.attempt_number} times; nothing was changed, try again"
    )
