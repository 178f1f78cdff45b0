"""An analyst who chooses each round after seeing the last: the naive filter breaks, the shipped ones hold.

Computed, not sampled. The worst adversary against a filter is found by dynamic programming: its state is the
total privacy loss and how often each mechanism was used, and it takes whatever the filter allows that makes
the delta of everything released largest. Losses lie on a lattice: nothing is rounded but sums of floats.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from shuffle_ledger.accounting import FilterSet
from shuffle_ledger.accounting.filters.charges import charge_of
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from tests.accounting.totals import holding, together

STEP = 0.1
REACH = 250  # losses beyond 25 do not occur below: checked
Masses = Mapping[int, float]  # under P, by position; losses are positions * STEP
Counts = tuple[int, int]
Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def coin(size: int, rate: float = 1.0) -> Masses:
    """Binary randomized response of epsilon0 = size * STEP, asked with probability `rate`, which all see."""
    kept = rate / (1 + math.exp(-size * STEP))
    return {size: kept, -size: rate - kept, 0: 1 - rate}


def pair_of(masses: Masses) -> PrivacyLossDistribution:
    index = np.array(sorted(position for position in masses if position > 0), dtype=np.int64)
    p = np.array([masses[int(position)] for position in index])
    q = np.array([masses[-int(position)] for position in index])
    return PrivacyLossDistribution(
        spacing=STEP,
        index=index,
        p=p,
        q=q,
        zero=masses[0],
        infinity=0.0,
        support=float(index[-1] * STEP),
        side="upper",
    )


def gains(epsilon: float) -> Array:
    """What each final loss contributes to delta: `(1 - exp(epsilon - loss))_+`."""
    losses = (np.arange(2 * REACH + 1) - REACH) * STEP
    values: Array = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))
    return values


def expected(values: Array, masses: Masses) -> Array:
    """The mean of values after one more mechanism, for every loss before it."""
    places = np.arange(values.size)
    means = np.zeros_like(values)
    for position, mass in masses.items():
        means += mass * values[np.clip(places + position, 0, values.size - 1)]
    return means


def worst_delta(menu: tuple[Masses, Masses], allows: Callable[[Counts], bool], epsilon: float) -> float:
    """The largest delta that any adaptive choice from the menu reaches within what a filter allows."""

    @functools.cache
    def value(counts: Counts) -> Array:
        assert sum(count * max(masses) for count, masses in zip(counts, menu, strict=True)) < REACH
        best = gains(epsilon)
        for which, masses in enumerate(menu):
            after = (counts[0] + (which == 0), counts[1] + (which == 1))
            if allows(after):
                best = np.maximum(best, expected(value(after), masses))
        return best

    return float(value((0, 0))[REACH])


def composed_delta(menu: tuple[Masses, Masses], epsilon: float) -> Callable[[Counts], float]:
    """Returns the delta of these counts of each kind, fixed in advance; the naive filter compares it with its
    budget."""

    @functools.cache
    def value(counts: Counts) -> Array:
        if counts == (0, 0):
            return gains(epsilon)
        which = 0 if counts[0] else 1
        before = (counts[0] - (which == 0), counts[1] - (which == 1))
        return expected(value(before), menu[which])

    return lambda counts: float(value(counts)[REACH])


CASES = [
    ((coin(1), coin(10, rate=0.01)), 2.0, 1e-4, 2.0),
    ((coin(1), coin(4)), 1.0, 1e-2, 1.4),
]


@pytest.mark.parametrize(("menu", "epsilon", "delta", "factor"), CASES)
def test_an_adaptive_analyst_beats_the_running_composition(
    menu: tuple[Masses, Masses], epsilon: float, delta: float, factor: float
) -> None:
    composed = composed_delta(menu, epsilon)
    broken = worst_delta(menu, lambda counts: composed(counts) <= delta, epsilon)
    assert broken > factor * delta
    # One that decides in advance does not beat it: what breaks the naive filter is choosing.
    alone = worst_delta((menu[0], menu[0]), lambda counts: composed((sum(counts), 0)) <= delta, epsilon)
    assert alone <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("menu", "epsilon", "delta", "factor"), CASES)
def test_no_adaptive_analyst_beats_the_shipped_filters(
    menu: tuple[Masses, Masses], epsilon: float, delta: float, factor: float
) -> None:
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)
    charges = [charge_of(pair_of(masses), filters, slack=0.0) for masses in menu]
    used: set[str] = set()

    @functools.cache
    def allows(counts: Counts) -> bool:
        found = holding(filters, together(charges[0] * counts[0], charges[1] * counts[1]), epsilon)
        used.update(found)
        return bool(found)

    reached = worst_delta(menu, allows, epsilon)
    assert 0 < reached <= delta
    assert len(used) > 1, "only one filter decided: Lemma 3 was not attacked"


@pytest.mark.parametrize(("menu", "epsilon", "delta", "factor"), CASES)
def test_charges_that_are_too_small_are_beaten(
    menu: tuple[Masses, Masses], epsilon: float, delta: float, factor: float
) -> None:
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)
    charges = [charge_of(pair_of(masses), filters, slack=0.0) for masses in menu]

    @functools.cache
    def allows(counts: Counts) -> bool:
        full = together(charges[0] * counts[0], charges[1] * counts[1])
        return bool(holding(filters, replace(full * Fraction(1, 2), account=full.account), epsilon))

    assert worst_delta(menu, allows, epsilon) > delta
