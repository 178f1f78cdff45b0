"""Losses far beyond those of randomizers with a name: tables may hold probabilities down to 1e-50."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, attack_epsilon, parse_randomizer
from shuffle_ledger.accounting.rounds.round_profile import LARGEST_RESOLVED_LOSS

Rows = list[list[float]]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yields all counts of `total` reports in `parts` parts."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in compositions(total - first, parts - 1))


def exact_delta(rows: Rows, reports: int, epsilon: float) -> mpmath.mpf:
    """The largest of `E[(G_1 + ... + G_n)_+] / n` over all pairs of inputs, multiset by multiset."""
    exact = [[mpmath.mpf(one) for one in row] for row in rows]
    hidden = [min(column) for column in zip(*exact, strict=True)]
    masses = [*hidden, 1 - mpmath.fsum(hidden)]
    weights = {
        counts: mpmath.factorial(reports)
        * mpmath.fprod(
            mass**count / mpmath.factorial(count) for mass, count in zip(masses, counts, strict=True)
        )
        for counts in compositions(reports, len(masses))
    }
    found = mpmath.mpf(0)
    for first, second in itertools.permutations(exact, 2):
        gains = [(a - mpmath.exp(epsilon) * b) / c for a, b, c in zip(first, second, hidden, strict=True)]
        gained = (weight * max(mpmath.fdot(gains, counts), 0) for counts, weight in weights.items())
        found = max(found, mpmath.fsum(gained) / reports)
    return found


def drawn(seed: int) -> Rows:
    """Rows of two or three inputs and as many outputs or more, some of them very improbable."""
    draw = np.random.default_rng(seed)
    shape = int(draw.integers(2, 4)), int(draw.integers(2, 5))
    size = draw.uniform(60.0, 110.0)
    rows = np.exp(-draw.uniform(0.0, size, shape) * (draw.uniform(size=shape) < 0.6))
    rows[:, -1], rows[0, 0], rows[1, 0] = 1.0, 1.0, math.exp(-size)
    found: Rows = (rows / rows.sum(axis=1, keepdims=True)).tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("reports", [1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_profile_of_a_table_of_large_losses_is_enclosed(seed: int, reports: int) -> None:
    rows = drawn(seed)
    shuffled = ShuffledRound(randomizer=parse_randomizer(f"table({rows})"), reports=reports)
    epsilon0, accountant = shuffled.randomizer.epsilon0, Accountant()
    assert 55 < epsilon0 < LARGEST_RESOLVED_LOSS
    with mpmath.workdps(250):
        for epsilon in (0.0, *(epsilon0 * share for share in (0.6, 0.99, 1 - 1e-9, 1.01))):
            exact = exact_delta(rows, reports, epsilon)
            certified = accountant.certify_delta({shuffled: 1}, epsilon=epsilon)
            # Rows sum to 1 but for a rounding.
            assert certified.delta_lower * (1 - 1e-12) <= exact <= certified.delta_upper * (1 + 1e-12)


def many_scales() -> ShuffledRound:
    """A table whose losses beyond 60 are likely."""
    rows = np.maximum(np.random.default_rng(1).dirichlet(np.full(16, 0.1), size=6), 1e-30)
    rows[0, 3] = 1e-30
    table = parse_randomizer(f"table({(rows / rows.sum(axis=1, keepdims=True)).tolist()})")
    return ShuffledRound(randomizer=table, reports=1000)


@pytest.mark.slow
def test_rounds_of_large_losses_are_certified() -> None:
    shuffled, accountant = many_scales(), Accountant()
    assert shuffled.randomizer.epsilon0 > 60
    for count, delta in ((1, 1e-30), (100, 1e-10)):
        certificate = accountant.certify({shuffled: count}, delta=delta)
        assert certificate.precise
        if count > 1:
            assert certificate.epsilon_upper < 0.9 * count * shuffled.randomizer.epsilon0
    assert 60 < (attack_epsilon(shuffled, delta=1e-12) or 0.0) <= shuffled.randomizer.epsilon0
