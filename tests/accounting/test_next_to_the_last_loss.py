"""Delta at the last floats before a round's largest loss: what is left there is next to nothing, and no less
than that may be said."""

from __future__ import annotations

import math
import random

import mpmath
import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, DistinctElements, KaryRandomizedResponse, ShuffledRound
from shuffle_ledger.accounting.numeric.arrays import order_less_one
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

DRAWN = 12


def floats_before(loss: mpmath.mpf) -> list[float]:
    """The last floats below a loss."""
    last = float(loss)
    while mpmath.mpf(last) >= loss:
        last = math.nextafter(last, 0.0)
    found = [last]
    while len(found) < 3:
        found.append(math.nextafter(found[-1], 0.0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sample", [None, 4])
def test_of_two_labels_told_from_their_sums(sample: int | None) -> None:
    """Of two labels' sums one is a fair bit and one is biased by `s = (1 - 2p)^honest`."""
    draw = random.Random(3)  # noqa: S311 - it need not be a secret
    with mpmath.workdps(60):
        for _ in range(DRAWN // 3):
            p, honest = draw.uniform(0.001, 0.499), sample or draw.choice([2, 3, 5, 10])
            bias = (1 - 2 * mpmath.mpf(p)) ** honest
            ratio, masses = (1 + bias) / (1 - bias), (1 - bias) / 4
            rate = mpmath.mpf(sample) / 1004 if sample else mpmath.mpf(1)
            shuffled = ShuffledRound(
                randomizer=DistinctElements(p=p, security=1000),
                reports=honest,
                sampled_from=1004 if sample else None,
            )
            for epsilon in floats_before(mpmath.log1p(rate * (ratio - 1))):
                order = 1 + mpmath.expm1(epsilon) / rate
                exact = rate * masses * (ratio - order)
                certified = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
                assert certified.delta_lower <= exact <= certified.delta_upper < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("populations", [[1], [2, 12, 100, 10**9]])
def test_of_one_answer_alone_and_out_of_a_sample(populations: list[int]) -> None:
    """Floats of orders are twice as far apart as those of losses just below a power of 2."""
    draw = random.Random(4)  # noqa: S311 - it need not be a secret
    with mpmath.workdps(60):
        for _ in range(DRAWN):
            power, population = 2.0 ** draw.randint(-10, 3), draw.choice(populations)
            epsilon0 = draw.uniform(math.log1p(power), power)
            shuffled = ShuffledRound(
                randomizer=KaryRandomizedResponse(epsilon0=epsilon0, k=2),
                reports=1,
                sampled_from=None if population == 1 else population,
            )
            rate, ratio = mpmath.mpf(1) / population, mpmath.exp(epsilon0)
            for epsilon in floats_before(mpmath.log1p(rate * (ratio - 1))):
                order = 1 + mpmath.expm1(epsilon) / rate
                exact = rate * (ratio - order) / (1 + ratio)
                certified = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
                assert certified.delta_lower <= exact <= certified.delta_upper < 1e-12


@pytest.mark.parametrize("epsilon0", [0.5456915189916893, 0.554377645890847, 0.9622650758477509])
def test_the_float_before_the_order_of_the_largest_loss(epsilon0: float) -> None:
    """`math.expm1` gives the float before the nearest one, at which something is left: `P - E Q` at the
    likelier output of one report alone."""
    order, nearest = math.expm1(epsilon0), order_less_one(epsilon0)
    shuffled = ShuffledRound(randomizer=KaryRandomizedResponse(k=2, epsilon0=epsilon0), reports=1)
    upper, lower = RoundProfile(shuffled, smoothing=1e-3)(np.array([order, nearest]))
    with mpmath.workdps(60):
        e = mpmath.exp(mpmath.mpf(epsilon0))
        assert order < nearest
        assert abs(mpmath.mpf(nearest) - (e - 1)) <= mpmath.mpf(math.ulp(nearest)) / 2
        assert lower[0] <= (e - 1 - mpmath.mpf(order)) / (1 + e) <= upper[0] < 1e-14
    assert upper[1] == lower[1] == 0
