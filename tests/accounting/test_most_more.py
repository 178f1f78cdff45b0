"""Counts of rounds that still fit are exactly the rounds that are admitted one by one, with a sliding reserve
and with a limited number of rounds for each user.
"""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_ledger.accounting import Charge, FilterSet
from shuffle_ledger.accounting.filters.counts import ROUNDS_MAX, largest_count

EPSILON = 1.0
SLIDING = FilterSet.for_budget(epsilon=EPSILON, delta=1e-6, approximate_share=1 / 8)
FIXED = dataclasses.replace(SLIDING, sliding_limit=None)
CAPPED = dataclasses.replace(FIXED, rounds_per_user=2)
MOST = 25  # rounds that are admitted one by one


def share(limit: float, part: int) -> Fraction:
    """Return a cost of which `part` fit."""
    return Fraction(limit) / part if part else Fraction(0)


def kind(filters: FilterSet, mixed: random.Random, *, is_approximate: bool) -> Charge:
    """Return the cost of one kind of rounds, of which a handful fits by each filter."""
    limit = filters.sliding_limit or 2 * filters.gaussian.reserves[-1]
    parts = mixed.choice([(1, 0), (0, 1), (1, 2), (3, 2)]) if is_approximate else (0, 0)
    account = share(filters.accounts.certain_loss, parts[0]), share(filters.accounts.slack / 4, parts[1])
    return Charge(
        gaussian=tuple(share(limit, part) for part in sorted(mixed.choices(range(5, 30), k=5))),
        renyi=tuple(share(EPSILON, part) for part in mixed.choices(range(1, 20), k=3)),
        account=account,
    )


def admitted(filters: FilterSet, spent: Charge, cost: Charge, epsilon: float) -> Charge | None:
    """Return the total after a round is admitted; None if it is refused."""
    after = filters.after(spent, filters.taken(spent, cost))
    return after if filters.epsilon_upper(after) <= epsilon else None


@pytest.mark.parametrize("filters", [SLIDING, FIXED, CAPPED])
def test_as_many_rounds_as_are_said_to_fit_are_admitted_one_by_one(filters: FilterSet) -> None:
    mixed = random.Random(0)  # noqa: S311 - the same each time
    for _ in range(12):
        costs = [kind(filters, mixed, is_approximate=is_approximate) for is_approximate in (True, False) * 2]
        spent = filters.nothing()
        for cost in mixed.choices(costs[:2], k=3) + mixed.choices(costs, k=mixed.randrange(3)):
            spent = admitted(filters, spent, cost, EPSILON) or spent
        if spent.sliding and mixed.random() < 0.2:  # settlements used up the sliding reserve's headroom
            spent = dataclasses.replace(spent, sliding=(*spent.sliding[:2], Fraction(99)))
        epsilon = mixed.choice([EPSILON, EPSILON, 0.8])
        for cost in costs:
            now, count = spent, 0
            while count < MOST and (after := admitted(filters, now, cost, epsilon)):
                now, count = after, count + 1
            assert min(filters.most_more(spent, cost, epsilon=epsilon), MOST) == count
            assert filters.epsilon_of(spent, cost, count + 1, epsilon=epsilon) > epsilon or count == MOST


@given(st.integers(0, ROUNDS_MAX), st.integers(0, 2 * ROUNDS_MAX))
def test_a_search_finds_the_largest_wherever_it_begins(largest: int, about: int) -> None:
    assert largest_count(lambda count: count <= largest, about) == largest
