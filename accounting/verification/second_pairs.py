"""The second method for rounds that are known as pairs: tails and small sums, from the definitions.

As in `second_method.py`, nothing here is a bound, and nothing shares arithmetic with the accountant.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.randomizers import (
    BinomialHistogram,
    BinomialSum,
    Declared,
    DistinctElements,
    LocalRandomizer,
    UniformityTester,
)

_COUNT_DEVIATIONS = 16.0  # counts further from their mean have no effect on a delta of 1e-11
_MOST_COUNTS = 1 << 18  # of one count; more are not checked
_MOST_OUTCOMES = 1 << 23  # pairs of counts; more are not checked
_LOSS_POINTS = 1 << 15  # points of the lattice of the loss of one label


def pair_delta(randomizer: LocalRandomizer, honest: int, epsilon: float) -> float | None:
    """Returns about the delta at `epsilon` of `honest` honest users. The result is None for randomizers that
    are not known as pairs, and if too many outcomes would have to be summed."""
    match randomizer:
        case Declared():
            return _declared(randomizer, epsilon)
        case BinomialHistogram():
            return _histogram(honest * randomizer.bits, randomizer.p, epsilon)
        case BinomialSum():
            order = np.array([math.exp(epsilon)])
            trials = honest * randomizer.bits
            return max(float(_moved(trials, p, order)[0]) for p in (randomizer.p, 1 - randomizer.p))
        case DistinctElements() if honest >= randomizer.minimum_honest:
            return _distinct((1 - 2 * randomizer.p) ** honest, epsilon)
        case UniformityTester():
            return _uniformity(honest * randomizer.noise / 2, epsilon)
        case _:
            return None


def _declared(randomizer: Declared, epsilon: float) -> float:
    promised, delta = randomizer.epsilon, randomizer.delta
    if randomizer.relation == "add-remove":
        promised, delta = 2 * promised, delta * (1 + math.exp(promised))
    heads = 1 / (1 + math.exp(-promised))
    return delta + (1 - delta) * max(heads - math.exp(epsilon) * (1 - heads), 0.0)


def _moved(trials: int, p: float, orders: FloatArray) -> FloatArray:
    """Returns the divergences of `1 + Bin(trials, p)` against `Bin(trials, p)` at the orders, shape of
    `orders`.

    The likelihood ratio `k (1 - p) / ((trials - k + 1) p)` rises with k, so each divergence is a difference
    of two tails. The other direction is the same for zeros, with `1 - p`.
    """
    with np.errstate(over="ignore"):
        first = np.floor(orders * (trials + 1) * p / (1 - p + orders * p)) + 1
    first = np.minimum(first, trials + 1)  # the count that only the first law can have
    law = scipy.stats.binom(trials, p)
    divergence: FloatArray = law.sf(first - 2) - orders * law.sf(first - 1)
    return np.maximum(divergence, 0.0)


def _histogram(trials: int, p: float, epsilon: float) -> float | None:
    """Sums over the outcomes of the count that falls: for each, the divergence of the count that rises."""
    deviation = math.sqrt(trials * p * (1 - p))
    low = max(0, math.floor(trials * p - _COUNT_DEVIATIONS * deviation) - 40)
    high = min(trials, math.ceil(trials * p + _COUNT_DEVIATIONS * deviation) + 40)
    if high - low > _MOST_COUNTS:
        return None
    counts = np.arange(low, high + 1, dtype=np.float64)
    ratios = counts * (1 - p) / ((trials - counts + 1) * p)  # of the count one higher to the count
    return float(
        (scipy.stats.binom.pmf(counts, trials, p) * _moved(trials, p, ratios * math.exp(epsilon))).sum()
    )


def _distinct(s: float, epsilon: float) -> float:
    biased, fair = np.array([(1 + s) / 2, (1 - s) / 2]), np.full(2, 0.5)
    gains = np.outer(biased, fair) - math.exp(epsilon) * np.outer(fair, biased)
    return float(np.maximum(gains, 0.0).sum())


def _uniformity(mean: float, epsilon: float) -> float | None:
    """Returns the delta of two labels. For each label the counts of ones and of zeros are independent
    Poisson, one of them raised by one: the likelihood ratio is the ratio of the counts. The two labels'
    losses are added on a lattice."""
    reach = _COUNT_DEVIATIONS * math.sqrt(mean) + 40
    counts = np.arange(max(0, math.floor(mean - reach)), math.ceil(mean + reach) + 1, dtype=np.float64)
    if counts.size**2 > _MOST_OUTCOMES:
        return None
    more, same = scipy.stats.poisson.pmf(counts - 1, mean), scipy.stats.poisson.pmf(counts, mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(counts[:, None] / counts[None, :])
    p = np.outer(more, same)
    infinite = float(p[np.isposinf(losses)].sum())
    finite = np.isfinite(losses) & (p > 0)
    losses, p = losses[finite], p[finite]
    step = 2 * float(np.abs(losses).max()) / _LOSS_POINTS
    below = np.floor(losses / step)
    # Both laws keep their masses.
    share = np.clip(np.expm1(below * step - losses) / math.expm1(-step), 0.0, 1.0)
    start = int(below.min())
    law = np.zeros(int(np.ptp(below)) + 2)
    np.add.at(law, below.astype(np.int64) - start, p * (1 - share))
    np.add.at(law, below.astype(np.int64) - start + 1, p * share)
    both = np.maximum(scipy.signal.fftconvolve(law, law), 0.0)
    total = (2 * start + np.arange(both.size)) * step
    finite_part = both[total > epsilon] @ -np.expm1(epsilon - total[total > epsilon])
    return float(finite_part) + 1 - (1 - infinite) ** 2
