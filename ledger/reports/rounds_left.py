"""What still fits into a budget: how many more rounds of each kind that a cohort has had.

A filter's reading says what is spent, and close to the end of a budget it says little of what still fits: a
sliding reserve admits hundreds of rounds while the reading is next to the budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shuffle_ledger.accounting import (
    MAXIMUM_ROUNDS,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    charged_together,
    fits,
)
from shuffle_ledger.ledger.decisions.windows import views_today
from shuffle_ledger.ledger.policies.base import changed, slot_of
from shuffle_ledger.ledger.policies.registry import AdaptivePolicy, Books, PlanPolicy, Policy, policy_of
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.local_budget import local_bounds, local_rounds_left

KINDS_MAX = 8  # kinds that one answer names
ROUNDS_MAX = 1_000_000  # of one kind; more are not searched for
# Compositions that one answer makes under policy fixed: fewer if each has many kinds. A search that
# ends early finds a smaller number; the kinds after it are left out of the answer.
_COMPOSITIONS_MIN, _COMPOSITIONS_MAX = 4, 24
_KINDS_COMPOSED_MAX = 800
_FINE = 64  # the part of a number of rounds that is not searched any closer
_STRIDE = 8


@dataclass(frozen=True, kw_only=True)
class FittingRounds:
    """How many more rounds of one kind fit, if nothing else is registered and no other budget refuses them.

    The other cohorts of a round, and the quota of its team, decide too.
    """

    round: ShuffledRound  # as the ledger accounts it
    rounds_at_least: int  # all of these are admitted; perhaps more are


def what_fits(
    books: Books, view: CohortView, policy: Policy, kinds: Iterable[ShuffledRound]
) -> tuple[FittingRounds, ...]:
    """Return how many more rounds of each kind fit, of the first `KINDS_MAX`; of a plan, its own kinds.

    Guarantee: if as many rounds of a kind as this says are registered, one after the other and nothing else
    in between, and no other cohort or quota that they are charged to refuses, every one is admitted. A cohort
    that is not open admits none, and neither does a period of a window that is over. Of a cohort with
    windows: if they are all collected today.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    slots = policy.slots(view)
    listed = [slot.round for slot in slots] if slots else list(kinds)
    counts = dict(_found(books, view, policy, listed[:KINDS_MAX]))
    for period in views_today(books.store, view):
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
    compositions_left: int  # of those that the search was allowed


def room_for(
    books: Books, view: CohortView, policy: Policy, kind: ShuffledRound, *, compositions: int, exactly: bool
) -> Room:
    """Return how many more rounds of one kind an open cohort admits, one after the other.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        policy: its policy.
        kind: the round, as declared or as it is accounted.
        compositions: how many the search may make under policy fixed.
        exactly: search there until the number is the largest, or the compositions are used up.

    Guarantee: as `what_fits`. Where `is_largest`, one round more is refused.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    local = local_rounds_left(view.cohort.local_budget, view.local, dearest(view, policy, kind))
    if view.cohort.windows_only:
        return Room(
            count=min(local, ROUNDS_MAX), is_largest=local < ROUNDS_MAX, compositions_left=compositions
        )
    room = _room_in_budget(books, view, policy, kind, compositions=compositions, exactly=exactly)
    if local < room.count:
        return dataclasses.replace(room, count=local, is_largest=not isinstance(policy, PlanPolicy))
    return room


def dearest(view: CohortView, policy: Policy, kind: ShuffledRound) -> ShuffledRound:
    """Return what a round may be accounted as, with the largest epsilon0 of the slots of a plan."""
    slots = [slot.round for slot in policy.slots(view) if slot.round == kind or fits(kind, slot.round)]
    return max(slots, key=lambda slot: local_bounds([(slot, 1)]), default=slot_of(kind))


def _room_in_budget(
    books: Books, view: CohortView, policy: Policy, kind: ShuffledRound, *, compositions: int, exactly: bool
) -> Room:
    if isinstance(policy, AdaptivePolicy):
        accounted = slot_of(kind)
        filters, total = policy.filters(view), policy.total(view)
        epsilon = view.cohort.epsilon_budget
        most = filters.most_more(total, books.charge(accounted, filters), epsilon=epsilon)
        return Room(count=most, is_largest=False, compositions_left=compositions)
    if isinstance(policy, PlanPolicy):
        if policy.refuses_all(view):
            return Room(count=0, is_largest=True, compositions_left=compositions)
        fitting = (slot for slot in policy.slots(view) if slot.round == kind or fits(kind, slot.round))
        free = sum(slot.count - slot.claimed for slot in fitting)
        return Room(count=free, is_largest=True, compositions_left=compositions)
    accounted = slot_of(kind)
    return searched(books, view, [accounted], about=_about(books, view, accounted), asks=compositions,
                    exactly=exactly)  # fmt: skip


def searched(
    books: Books,
    view: CohortView,
    kinds: Sequence[ShuffledRound],
    *,
    about: float,
    asks: int,
    exactly: bool,
) -> Room:
    """Return how many more times policy fixed admits one round of each of some accounted kinds.

    Args:
        books: where privacy losses come from.
        view: the cohort now.
        kinds: the accounted rounds; one kind may be named more than once.
        about: where the search begins.
        asks: how many compositions it may make.
        exactly: as for `room_for`.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    search = _Search(
        limit=view.cohort.epsilon_budget,
        spent=view.spent.epsilon_upper,
        asks_left=asks,
        ask=_asker(books, view, kinds),
        fine=None if exactly else _FINE,
    )
    count = search.largest(about)
    return Room(count=count, is_largest=search.is_largest, compositions_left=search.asks_left)


def _found(
    books: Books, view: CohortView, policy: Policy, kinds: Iterable[ShuffledRound]
) -> Iterator[tuple[ShuffledRound, int]]:
    left = max(_COMPOSITIONS_MIN, min(_COMPOSITIONS_MAX, _KINDS_COMPOSED_MAX // max(len(view.held), 1)))
    for kind in kinds:
        if view.cohort.status != "open" or is_over(view):
            yield kind, 0
        elif left > 0:
            room = room_for(books, view, policy, kind, compositions=left, exactly=False)
            left = room.compositions_left
            yield kind, room.count


def _asker(books: Books, view: CohortView, kinds: Sequence[ShuffledRound]) -> Callable[[int], float]:
    """Return the function from a number of additional rounds of each kind to the epsilon of the last
    decision."""
    policy, each, last = policy_of(books.store, view), Counter(kinds), kinds[-1]

    def ask(count: int) -> float:
        wanted = {kind: count * times for kind, times in each.items()}
        if sum(charged_together(changed(view.held, wanted)).values()) > MAXIMUM_ROUNDS:
            return math.inf  # more than an accountant composes
        more = {kind: number - (kind == last) for kind, number in wanted.items()}
        before = dataclasses.replace(view, held=changed(view.held, more))
        return policy.admitting(books, before, last).spent.epsilon_upper

    return ask


def _about(books: Books, view: CohortView, kind: ShuffledRound) -> float:
    """Return about how many rounds of a kind fit, by their variances; nothing rests on it."""
    budget = view.cohort.epsilon_budget
    try:
        filters = FilterSet.for_budget(epsilon=budget, delta=view.cohort.delta_budget)
    except InvalidParameter:
        return 1.0
    left = 2 * filters.gaussian.reserves[-1] * (1 - (view.spent.epsilon_upper / budget) ** 2)
    return left / (max(float(books.charge(kind, filters).gaussian[0]), left / ROUNDS_MAX) or 1.0)


@dataclass(kw_only=True)
class _Search:
    """The search for the largest number of rounds within a limit, by few compositions.

    The square of epsilon grows about evenly with the number of rounds, so the next number to try is where a
    line meets the limit. No number counts that was not composed.
    """

    limit: float
    spent: float  # epsilon without any of the rounds
    ask: Callable[[int], float]
    asks_left: int
    fine: int | None = _FINE  # None: the search goes on until no number is left to try
    is_largest: bool = False  # after the search: one more does not fit

    def largest(self, about: float) -> int:
        """Return a number of rounds that fit, close to the largest."""
        known, beyond = (0, self.spent), (ROUNDS_MAX + 1, math.inf)
        count = math.floor(about)
        while self.asks_left > 0 and beyond[0] - known[0] > 1:
            count = min(max(count, known[0] + 1), beyond[0] - 1)
            if self.fine is not None and count - known[0] < known[0] // self.fine:
                break
            self.asks_left -= 1
            found = count, self.ask(count)
            known, beyond = (found, beyond) if found[1] <= self.limit else (known, found)
            count = self._on_a_line(known, beyond)
        self.is_largest = beyond[0] - known[0] == 1 and beyond[0] <= ROUNDS_MAX
        return known[0]

    def _on_a_line(self, known: tuple[int, float], beyond: tuple[int, float]) -> int:
        (low, below), (high, above) = ((0, self.spent), known) if math.isinf(beyond[1]) else (known, beyond)
        below, above = below / self.limit, above / self.limit
        rise = (above - below) * (above + below)
        if not rise > 0:
            return _STRIDE * known[0]
        share = (1 - below) * (1 + below) / rise
        return math.floor(min(low + share * (high - low), _STRIDE * max(high, 1)))
