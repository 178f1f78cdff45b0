"""What still fits into a budget: how many more rounds of each kind that a cohort has had.

A filter's reading says what is spent, and close to the end of a budget it says little of what still fits: a
sliding reserve admits hundreds of rounds while the reading is next to the budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from shuffle_ledger.accounting import FilterSet, InvalidParameter, ShuffledRound, fits
from shuffle_ledger.ledger.policies.base import changed
from shuffle_ledger.ledger.policies.registry import AdaptivePolicy, Books, PlanPolicy, Policy, policy_of
from shuffle_ledger.ledger.storage.rows import CohortView

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
    """How many more rounds of one kind fit, if nothing else is registered in between."""

    round: ShuffledRound  # as the ledger accounts it
    rounds_at_least: int  # all of these are admitted; perhaps more are


def what_fits(
    books: Books, view: CohortView, policy: Policy, kinds: Iterable[ShuffledRound]
) -> tuple[FittingRounds, ...]:
    """Return how many more rounds of each kind fit, of the first `KINDS_MAX`; of a plan, its own kinds.

    Guarantee: if as many rounds of a kind as this says are registered, one after the other and nothing else
    in between, every one is admitted. A cohort that is not open admits none.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    slots = policy.slots(view)
    listed = [slot.round for slot in slots] if slots else list(kinds)
    found = _found(books, view, policy, listed[:KINDS_MAX])
    return tuple(FittingRounds(round=kind, rounds_at_least=count) for kind, count in found)


def by_frequency(counts: Mapping[ShuffledRound, int]) -> list[ShuffledRound]:
    """Return kinds of rounds, the most frequent first."""
    return sorted(counts, key=lambda kind: -counts[kind])


def _found(
    books: Books, view: CohortView, policy: Policy, kinds: Iterable[ShuffledRound]
) -> Iterator[tuple[ShuffledRound, int]]:
    epsilon, free = view.cohort.epsilon_budget, policy.slots(view)
    left = max(_COMPOSITIONS_MIN, min(_COMPOSITIONS_MAX, _KINDS_COMPOSED_MAX // max(len(view.held), 1)))
    for kind in kinds:
        if view.cohort.status != "open":
            yield kind, 0
        elif isinstance(policy, AdaptivePolicy):
            filters = policy.filters(view)
            yield kind, filters.most_more(policy.total(view), books.charge(kind, filters), epsilon=epsilon)
        elif isinstance(policy, PlanPolicy):
            fitting = (slot for slot in free if slot.round == kind or fits(kind, slot.round))
            yield kind, sum(slot.count - slot.claimed for slot in fitting)
        elif left > 0:
            search = _Search(
                limit=epsilon, spent=view.spent.epsilon_upper, asks_left=left, ask=_asker(books, view, kind)
            )
            yield kind, search.largest(_about(books, view, kind))
            left = search.asks_left


def _asker(books: Books, view: CohortView, kind: ShuffledRound) -> Callable[[int], float]:
    """Return the function from a number of additional rounds to the epsilon of the last decision."""
    policy = policy_of(books.store, view)

    def ask(count: int) -> float:
        before = dataclasses.replace(view, held=changed(view.held, {kind: count - 1}))
        return policy.admitting(books, before, kind).spent.epsilon_upper

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

    def largest(self, about: float) -> int:
        """Return a number of rounds that fit, close to the largest."""
        known, beyond = (0, self.spent), (ROUNDS_MAX + 1, math.inf)
        count = math.floor(about)
        while self.asks_left > 0 and beyond[0] - known[0] > 1:
            count = min(max(count, known[0] + 1), beyond[0] - 1)
            if count - known[0] < known[0] // _FINE:
                break
            self.asks_left -= 1
            found = count, self.ask(count)
            known, beyond = (found, beyond) if found[1] <= self.limit else (known, found)
            count = self._on_a_line(known, beyond)
        return known[0]

    def _on_a_line(self, known: tuple[int, float], beyond: tuple[int, float]) -> int:
        (low, below), (high, above) = ((0, self.spent), known) if math.isinf(beyond[1]) else (known, beyond)
        below, above = below / self.limit, above / self.limit
        rise = (above - below) * (above + below)
        if not rise > 0:
            return _STRIDE * known[0]
        share = (1 - below) * (1 + below) / rise
        return math.floor(min(low + share * (high - low), _STRIDE * max(high, 1)))
