"""What still fits into a budget: how many more rounds of each kind that a cohort has had.

A filter's reading says what is spent, and close to the end of a budget it says little of what still fits: a
sliding reserve admits hundreds of rounds while the reading is next to the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from shuffle_ledger.accounting import (
    ShuffledRound,
    fits,
)
from shuffle_ledger.ledger.decisions.windows import views_on
from shuffle_ledger.ledger.policies.base import slot_of
from shuffle_ledger.ledger.policies.registry import Books, BudgetPolicy, policy_of
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.local_budget import local_bounds, local_rounds_left

KINDS_MAX = 8  # kinds that one answer names
ROUNDS_MAX = 1_000_000  # of one kind; more are not searched for


@dataclass(frozen=True, kw_only=True)
class FittingRounds:
    """How many more rounds of one kind fit, if nothing else is registered and no other budget refuses them.

    The other cohorts of a round, and the quota of its team, decide too.
    """

    round: ShuffledRound  # as the ledger accounts it
    rounds_at_least: int  # all of these are admitted; perhaps more are


def what_fits(
    books: Books,
    view: CohortView,
    policy: BudgetPolicy,
    kinds: Iterable[ShuffledRound],
    *,
    on: date | None = None,
) -> tuple[FittingRounds, ...]:
    """Return how many more rounds of each kind fit, of the first `KINDS_MAX`; of a plan, its own kinds.

    Guarantee: if as many rounds of a kind as this says are registered, one after the other and nothing else
    in between, and no other cohort or quota that they are charged to refuses, every one is admitted. A cohort
    that is not open admits none, and neither does a period of a window that is over. Of a cohort with
    windows: if they are all collected on the day `on`, which is today if it is None.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    slots = policy.slots(view) if policy.filters is None else ()
    listed = [slot.round for slot in slots] if slots else list(kinds)
    counts = dict(_found(books, view, policy, listed[:KINDS_MAX]))
    for period in views_on(books.store, view, on or view.now.date()):
        found = dict(_found(books, period, policy_of(books.store, period), counts))
        counts = {kind: min(count, found.get(kind, 0)) for kind, count in counts.items()}
    return tuple(FittingRounds(round=kind, rounds_at_least=count) for kind, count in counts.items())


def is_over(view: CohortView) -> bool:
    """Return whether this is a period of a window whose days have passed: no round of these is admitted."""
    period = view.cohort.period
    return period is not None and period.last < view.now.date()


def by_frequency(counts: Mapping[ShuffledRound, int]) -> list[ShuffledRound]:
    """Return kinds of rounds, the most frequent first."""
    return sorted(counts, key=lambda kind: -counts[kind])


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many more rounds fit."""

    count: int
    is_largest: bool  # one more is refused; False: it may fit too


def room_for(books: Books, view: CohortView, policy: BudgetPolicy, kind: ShuffledRound) -> Room:
    """Return how many more rounds of one kind an open cohort admits, one after the other.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        policy: its policy.
        kind: the round, as declared or as it is accounted.

    Guarantee: as `what_fits`. Where `is_largest`, one round more is refused.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    local = local_rounds_left(view.cohort.local_budget, view.local, dearest(view, policy, kind))
    count = policy.room(books, view, kind).promised
    if local < count:
        return Room(count=local, is_largest=policy.filters is not None)
    return Room(count=count, is_largest=count < ROUNDS_MAX)


def dearest(view: CohortView, policy: BudgetPolicy, kind: ShuffledRound) -> ShuffledRound:
    """Return what a round may be accounted as, with the largest epsilon0 of the slots of a plan."""
    if policy.filters is not None:
        return slot_of(kind)
    slots = [slot.round for slot in policy.slots(view) if slot.round == kind or fits(kind, slot.round)]
    return max(slots, key=lambda slot: local_bounds([(slot, 1)]), default=slot_of(kind))


def _found(
    books: Books, view: CohortView, policy: BudgetPolicy, kinds: Iterable[ShuffledRound]
) -> Iterator[tuple[ShuffledRound, int]]:
    is_closed = view.cohort.status != "open" or is_over(view)
    for kind in kinds:
        yield kind, 0 if is_closed else room_for(books, view, policy, kind).count
