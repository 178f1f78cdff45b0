"""How many more periods of a schedule fit into a budget: one round of each of several kinds in each."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence

from shuffle_ledger.accounting import ShuffledRound, fits
from shuffle_ledger.ledger.policies.base import changed, slot_of
from shuffle_ledger.ledger.policies.registry import AdaptivePolicy, Books, CohortPolicy, PlanPolicy
from shuffle_ledger.ledger.reports.rounds_left import dearest
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.local_budget import local_bounds

PERIODS_MAX = 10_000  # more are not searched for
_SIMULATED_MAX = 4_000  # rounds that are charged one by one


def periods_for(books: Books, view: CohortView, policy: CohortPolicy, kinds: Sequence[ShuffledRound]) -> int:
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
    accounted = [slot_of(kind) for kind in kinds]
    if view.cohort.windows_only:
        found = PERIODS_MAX
    elif isinstance(policy, PlanPolicy):
        accounted = [dearest(view, policy, kind) for kind in kinds]
        found = _by_free_slots(view, policy, kinds)
    else:
        found = _by_filters(books, view, policy, kinds)
    limit = view.cohort.local_budget

    def is_within_local(count: int) -> bool:
        spent = Counter(view.local) + Counter(
            {kind: count * times for kind, times in Counter(accounted).items()}
        )
        return limit is None or not local_bounds(spent.items())[0] > limit

    return _largest(is_within_local, min(found, PERIODS_MAX))


def _by_filters(
    books: Books, view: CohortView, policy: AdaptivePolicy, kinds: Sequence[ShuffledRound]
) -> int:
    """Return the larger of two numbers: what filters hold that add up, and what the sliding reserve holds."""
    accounted, epsilon = [slot_of(kind) for kind in kinds], view.cohort.epsilon_budget
    filters, total = policy.filters(view), policy.total(view)
    costs = [books.charge(each, filters) for each in accounted]
    together = functools.reduce(operator.add, costs)

    def added_up(count: int) -> bool:
        if filters.rounds_per_user is not None:
            return False
        return filters.epsilon_upper(total.cost + together * count) <= epsilon

    totals, now = [total], total
    for period in range(1, min(_SIMULATED_MAX // len(kinds), PERIODS_MAX) + 1):
        for cost in costs:
            now = filters.after(now, filters.taken(now, cost))
        totals.append(now)
        if period & (period - 1) == 0 and filters.epsilon_upper(now) > epsilon:
            break  # looked at after powers of 2: at most twice the periods that fit are simulated
    # Filters hold at the end of a period only if they held all along: their totals never shrink.
    simulated = _largest(lambda count: filters.epsilon_upper(totals[count]) <= epsilon, len(totals) - 1)
    return max(simulated, _largest(added_up, PERIODS_MAX))


def spent_after(
    books: Books,
    view: CohortView,
    policy: CohortPolicy,
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
    if isinstance(policy, AdaptivePolicy):
        return _read_after(books, view, policy, kinds, counts)
    per_period = Counter(dearest(view, policy, kind) for kind in kinds)
    held = [
        changed(view.held, {kind: count * times for kind, times in per_period.items()}) for count in counts
    ]
    return [books.certify(each, delta=view.cohort.delta_budget).epsilon_upper for each in held]


def _read_after(
    books: Books,
    view: CohortView,
    policy: AdaptivePolicy,
    kinds: Sequence[ShuffledRound],
    counts: Sequence[int],
) -> list[float]:
    accounted = [slot_of(kind) for kind in kinds]
    filters, total = policy.filters(view), policy.total(view)
    costs = [books.charge(each, filters) for each in accounted]
    together = functools.reduce(operator.add, costs)
    found, now, done = [], total, 0
    for count in counts:
        added = math.inf
        if filters.rounds_per_user is None:
            added = filters.epsilon_upper(total.cost + together * count)
        while done < count and count * len(kinds) <= _SIMULATED_MAX:
            done += 1
            for cost in costs:
                now = filters.after(now, filters.taken(now, cost))
        found.append(min(added, filters.epsilon_upper(now)) if done == count else added)
    return found


def _by_free_slots(view: CohortView, policy: PlanPolicy, kinds: Sequence[ShuffledRound]) -> int:
    """Return how many periods find slots, each round the one that an admission would choose."""
    if policy.refuses_all(view):
        return 0
    slots = policy.slots(view)
    left = [slot.count - slot.claimed for slot in slots]
    choices = [
        [number for number, slot in enumerate(slots) if slot.round == kind]
        + [number for number, slot in enumerate(slots) if slot.round != kind and fits(kind, slot.round)]
        for kind in kinds
    ]
    for period in range(PERIODS_MAX):
        for choice in choices:
            free = next((number for number in choice if left[number]), None)
            if free is None:
                return period
            left[free] -= 1
    return PERIODS_MAX


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that holds, 0 if none does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
