"""Previews: what settling, voiding or correcting a round would change. They write nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import epsilon_left


@dataclass(frozen=True, kw_only=True)
class Telling:
    """Something to be told of a round, and what it is in each of its chains."""

    stored: StoredRound
    cohorts: tuple[str, ...]
    decide: Callable[[CohortView], EntryDraft | LedgerEntry | None]  # None: the chain stays as it is


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """What telling something would change in one chain."""

    cohort: str
    epsilon_spent_before: float  # upper bounds
    epsilon_spent_after: float
    epsilon_remaining: float  # after it
    breaks: bool  # the budget's promise, which holds now


def consequences(store: Store, telling: Telling) -> tuple[Consequence, ...]:
    """Return what telling something of a round would change now, in each chain that it would change.

    Raises:
        What `settle`, `void` or `correct` raise.
    """
    found = []
    for view in store.views(telling.cohorts):
        draft = telling.decide(view)
        if isinstance(draft, EntryDraft):
            after = draft.spent.epsilon_upper
            found.append(
                Consequence(
                    cohort=view.cohort.name,
                    epsilon_spent_before=view.spent.epsilon_upper,
                    epsilon_spent_after=after,
                    epsilon_remaining=epsilon_left(view.cohort.epsilon_budget, after),
                    breaks=draft.status == "overspent" and view.cohort.status == "open",
                )
            )
    return tuple(found)
