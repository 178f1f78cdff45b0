"""Rounds of several cohorts: the worst analyst against scopes with a budget each, computed, not sampled.

Theorem 11 of docs/adaptivity.md promises each cohort's budget to neighbours that differ in what one user
sends to rounds of that cohort, however rounds of other cohorts are chosen in between, and no more than that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from shuffle_ledger.accounting import FilterSet
from shuffle_ledger.accounting.filters.charges import charge_of
from tests.accounting.test_adaptive_adversary import REACH, Array, Masses, coin, expected, gains, pair_of
from tests.accounting.totals import holding, together

NOTHING: Masses = {0: 1.0}


class Option(NamedTuple):
    """A round that the analyst may ask for."""

    masses: Masses
    labels: frozenset[str]  # the cohorts that are charged


def worst(
    options: Sequence[Option],
    filters: FilterSet,
    epsilon: float,
    differing: frozenset[str],
    *,
    joint: bool = True,
) -> float:
    """Return the largest delta that any analyst reaches.

    Args:
        options: the rounds there are.
        filters: of every cohort's budget.
        epsilon: of every cohort's budget.
        differing: in rounds of which cohorts the neighbours differ; all others say the same of both.
        joint: a round is admitted only if all of its cohorts admit it; else if one of them does.
    """
    charges = [charge_of(pair_of(option.masses), filters, slack=0.0) for option in options]
    cohorts = sorted({name for option in options for name in option.labels})

    @functools.cache
    def holds(counts: tuple[int, ...]) -> bool:
        parts = [charge * count for count, charge in zip(counts, charges, strict=True)]
        return bool(holding(filters, together(*parts), epsilon))

    def allows(counts: tuple[int, ...], asked: Option) -> bool:
        held = [
            holds(tuple(count * (name in one.labels) for count, one in zip(counts, options, strict=True)))
            for name in cohorts
            if name in asked.labels
        ]
        return all(held) if joint else any(held)

    @functools.cache
    def value(counts: tuple[int, ...]) -> Array:
        best = gains(epsilon)
        for which, option in enumerate(options):
            after = tuple(count + (place == which) for place, count in enumerate(counts))
            if allows(after, option):
                masses = option.masses if option.labels & differing else NOTHING
                best = np.maximum(best, expected(value(after), masses))
        return best

    return float(value((0,) * len(options))[REACH])


EPSILON, DELTA = 1.0, 1e-2
A, B = frozenset("a"), frozenset("b")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2, 1), (1, 2, 1)])
def test_each_cohorts_budget_holds_for_its_own_neighbours_and_for_no_wider_ones(
    sizes: tuple[int, int, int],
) -> None:
    filters = FilterSet.for_budget(epsilon=EPSILON, delta=DELTA)
    options = [Option(coin(size), labels) for size, labels in zip(sizes, (A, B, A | B), strict=True)]
    ratios = [worst(options, filters, EPSILON, own) / DELTA for own in (A, B, A | B)]
    assert 0 < max(ratios[:2]) < 0.52
    assert ratios[2] > 2.4
    # If one cohort that admits a round were enough, no cohort's budget would hold.
    assert worst(options, filters, EPSILON, A, joint=False) > DELTA


def test_each_run_of_two_days_holds_for_its_own_neighbours_and_for_no_longer_ones() -> None:
    """Windows are scopes too: four days, and a budget for every two of them in a row.

    The analyst may even go back to an earlier day, which the ledger's clock forbids.
    """
    filters = FilterSet.for_budget(epsilon=EPSILON, delta=DELTA)
    runs = [frozenset({day, day + 1}) for day in range(-1, 4)]  # of day 0: the runs -1 and 0, and so on
    days = [frozenset(str(number) for number, run in enumerate(runs) if day in run) for day in range(4)]
    options = [Option(coin(size), labels) for size, labels in zip((2, 2, 1, 2), days, strict=True)]
    assert 0 < worst(options, filters, EPSILON, frozenset({"2"})) < 0.52 * DELTA
    assert worst(options, filters, EPSILON, frozenset({"1", "2", "3"})) > 2.8 * DELTA
