"""Counts of rounds that still fit are exactly the rounds that are admitted one by one, in every combination
of repetition filter, sliding reserve and accounts of delta.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from fractions import Fraction

import pytest

from shuffle_ledger.accounting import Charge, FilterSet, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.filters.repetition import RepetitionFilter

EPSILON = 1.0
KIND = ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1)"), reports=1)
ACCOUNTS = FilterSet.for_budget(epsilon=EPSILON, delta=1e-6, accounts=(1 / 16, 1 / 16))
WITHOUT = FilterSet.for_budget(epsilon=EPSILON, delta=1e-6)
CAPPED = dataclasses.replace(ACCOUNTS, sliding_limit=None, rounds_per_user=2)
# 2 repetitions fit into a budget of 0.8, and 6 into one of 1.
REPEATED = RepetitionFilter(kind=KIND, delta=1e-7, certified=((2, 0.7), (6, 0.9), (8, 1.5)))
MOST = 25  # rounds that are admitted one by one
UNCOVERED = Fraction(2**40)


def share(limit: float, part: int) -> Fraction:
    """Return a cost of which `part` fit."""
    return Fraction(limit) / part if part else Fraction(0)


def kind(filters: FilterSet, mixed: random.Random, *, is_covered: bool, is_approximate: bool) -> Charge:
    """Return the cost of one kind of rounds, of which a handful fits by each filter."""
    limit = filters.sliding_limit or 2 * filters.gaussian.reserves[-1]
    account: tuple[Fraction, ...] = ()
    if filters.accounts is not None:
        parts = mixed.choice([(1, 0), (0, 1), (1, 2), (3, 2)]) if is_approximate else (0, 0)
        account = share(filters.accounts.certain_loss, parts[0]), share(filters.accounts.slack / 4, parts[1])
    return Charge(
        gaussian=tuple(share(limit, part) for part in sorted(mixed.choices(range(5, 30), k=5))),
        renyi=tuple(share(EPSILON, part) for part in mixed.choices(range(1, 20), k=3)),
        repetition=(Fraction(1) if is_covered else UNCOVERED,) if filters.repetition else (),
        account=account,
    )


def admitted(filters: FilterSet, spent: Charge, cost: Charge, epsilon: float) -> Charge | None:
    """Return the total after a round is admitted; None if it is refused."""
    after = filters.after(spent, filters.taken(spent, cost))
    return after if filters.epsilon_upper(after) <= epsilon else None


@pytest.mark.parametrize("repetition", [None, REPEATED])
@pytest.mark.parametrize("filters", [ACCOUNTS, WITHOUT, CAPPED])
def test_as_many_rounds_as_are_said_to_fit_are_admitted_one_by_one(
    filters: FilterSet, repetition: RepetitionFilter | None
) -> None:
    mixed = random.Random(0)  # noqa: S311 - the same each time
    filters = dataclasses.replace(filters, repetition=repetition)
    for _ in range(12):
        costs = [
            kind(filters, mixed, is_covered=is_covered, is_approximate=is_approximate)
            for is_covered, is_approximate in itertools.product([True, False], repeat=2)
        ]
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


def test_rounds_that_only_the_repetition_filter_admits_leave_nothing_to_others() -> None:
    filters = dataclasses.replace(ACCOUNTS, repetition=REPEATED)
    accounts = filters.accounts
    assert accounts is not None
    small = dataclasses.replace(
        filters.nothing(),
        gaussian=tuple(Fraction(reserve + 0.1) / 1000 for reserve in reversed(filters.gaussian.reserves)),
        repetition=(UNCOVERED,),
    ).cost
    approximate = dataclasses.replace(
        small, repetition=(Fraction(1),), account=(share(accounts.certain_loss, 1),) * 2
    )
    spent = filters.nothing()
    for _ in range(2):
        spent = admitted(filters, spent, approximate, EPSILON) or spent
    assert spent.repetition == (Fraction(2),)
    assert not accounts.hold(spent.account)
    assert filters.most_more(spent, small, epsilon=EPSILON) == 0
    assert filters.epsilon_of(spent, small, 1, epsilon=EPSILON) > EPSILON
    assert accounts.most_more(spent.account, small.account) == 0
    assert filters.most_more(spent, approximate, epsilon=EPSILON) == 4
