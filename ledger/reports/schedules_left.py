"""How many more periods of a schedule fit into a budget: one round of each of several kinds in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.policies.base import changed
from shuffle_ledger.ledger.policies.registry import Books, BudgetPolicy
from shuffle_ledger.ledger.reports.rounds_left import dearest
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.local_budget import local_bounds

PERIODS_MAX = 10_000  # more are not searched for


def periods_for(books: Books, view: CohortView, policy: BudgetPolicy, kinds: Sequence[ShuffledRound]) -> int:
    """Return how many periods fit into an open cohort, up to `PERIODS_MAX`.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        policy: its policy.
        kinds: the rounds of one period, in their order.

    Guarantee: if the rounds of the returned number of periods are registered one after the other, in this
    order and with nothing else in between, every one is admitted.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    accounted = [dearest(view, policy, kind) for kind in kinds]
    found = policy.room(books, view, *kinds).promised
    limit = view.cohort.local_budget

    def is_within_local(count: int) -> bool:
        spent = Counter(view.local) + Counter(
            {kind: count * times for kind, times in Counter(accounted).items()}
        )
        return limit is None or not local_bounds(spent.items())[0] > limit

    return _largest(is_within_local, min(found, PERIODS_MAX))


def spent_after(
    books: Books,
    view: CohortView,
    policy: BudgetPolicy,
    kinds: Sequence[ShuffledRound],
    counts: Sequence[int],
) -> list[float]:
    """Return upper bounds on the epsilon that is spent after some numbers of periods, which fit.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        policy: its policy.
        kinds: the rounds of one period, in their order.
        counts: numbers of periods, ascending.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    if policy.filters is not None:
        return _read_after(books, view, policy, kinds, counts)
    per_period = Counter(dearest(view, policy, kind) for kind in kinds)
    held = [
        changed(view.held, {kind: count * times for kind, times in per_period.items()}) for count in counts
    ]
    return [books.certify(each, delta=view.cohort.delta_budget).epsilon_upper for each in held]


def _read_after(
    books: Books,
    view: CohortView,
    policy: BudgetPolicy,
    kinds: Sequence[ShuffledRound],
    counts: Sequence[int],
) -> list[float]:
    state, costs = policy.state(view), [policy.cost(books, kind) for kind in kinds]
    return [
        policy.spending(
            machine.after(state, costs, count), rounds=view.spent.rounds + count * len(kinds)
        ).epsilon_upper
        for count in counts
    ]


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that holds, 0 if none does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
