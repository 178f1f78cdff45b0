"""The second method for releases that are private as a whole: tails, sums and regions, from the definitions.

As `second_method.py`, nothing here is a bound, and nothing shares arithmetic with the accountant.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.randomizers import (
    CentralLaplace,
    Declared,
    DiscreteGaussian,
    Gaussian,
    WholeRelease,
)

_NOISE_DEVIATIONS = 16.0  # discrete noise further out has no effect on a delta of 1e-11
# For the region within bounds on Renyi divergences: orders that represent a curve, probabilities p of an
# event in one search, bisections for q, and searches, each around the best p of the last.
_CURVE_ORDERS, _CURVE_POINTS, _BISECTIONS, _SEARCHES = 320, 48, 60, 3


def release_delta(randomizer: WholeRelease, epsilon: float) -> float | None:
    """Returns about the delta at `epsilon` of a release; None for kinds that this method does not cover."""
    match randomizer:
        case Declared():
            return _of_declared(randomizer, epsilon)
        case Gaussian():
            return _gaussian(_times(randomizer.relation) * randomizer.sensitivity / randomizer.sigma, epsilon)
        case DiscreteGaussian():
            shift = _times(randomizer.relation) * randomizer.sensitivity
            return _discrete_gaussian(randomizer.sigma, shift, epsilon)
        case CentralLaplace():
            apart = _times(randomizer.relation) * randomizer.sensitivity / randomizer.scale
            return max(-math.expm1((epsilon - apart) / 2), 0.0)
        case _:
            return None


def _times(relation: str) -> int:
    """Returns the number of steps of the relation that a substitution takes."""
    return 2 if relation == "add-remove" else 1


def _of_declared(randomizer: Declared, epsilon: float) -> float:
    delta, times = randomizer.delta, _times(randomizer.relation)
    if randomizer.epsilon is not None:
        return _declared(randomizer.epsilon, delta, times, epsilon)
    if randomizer.mu is not None:
        return delta + (1 - delta) * _gaussian(times * randomizer.mu, epsilon)
    return delta + (1 - delta) * _within_curve(*_curve(randomizer), epsilon)


def _declared(promised: float, delta: float, times: int, epsilon: float) -> float:
    if times == 2:
        promised, delta = 2 * promised, delta * (1 + math.exp(promised))
    heads = 1 / (1 + math.exp(-promised))
    return delta + (1 - delta) * max(heads - math.exp(epsilon) * (1 - heads), 0.0)


def _gaussian(mu: float, epsilon: float) -> float:
    """Returns the mass of `N(mu, 1)` beyond the point where its density is `exp(epsilon)` times that of `N(0,
    1)`, minus `exp(epsilon)` times the mass of `N(0, 1)` there."""
    above = epsilon / mu + mu / 2
    return float(scipy.stats.norm.sf(above - mu) - math.exp(epsilon + scipy.stats.norm.logsf(above)))


def _discrete_gaussian(sigma: float, shift: int, epsilon: float) -> float:
    reach = math.ceil(_NOISE_DEVIATIONS * sigma) + 1
    counts = np.arange(-reach, reach + shift + 1, dtype=np.float64)
    p, q = (np.exp(-((counts - at) ** 2) / (2 * sigma * sigma)) for at in (shift, 0))
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() / q.sum())


def _curve(randomizer: Declared) -> tuple[FloatArray, FloatArray]:
    """Returns orders, and the declared Renyi divergences of a substitution there."""
    doubled = _times(randomizer.relation) == 2
    if randomizer.rho is not None:
        orders = 1 + np.geomspace(2e-3, 20, _CURVE_ORDERS) / math.sqrt(randomizer.rho)
        return orders, randomizer.rho * orders * (4 if doubled else 1)
    orders, divergences = np.array(randomizer.renyi).T
    if doubled:  # the weak triangle inequality, half of the order by each of two conjugate exponents 2
        far = orders > 2.0002
        orders, divergences = orders[far] / 2, divergences[far]
        divergences = divergences * ((orders - 1 / 2) / (orders - 1) + 1)
    return orders, divergences


def _within_curve(orders: FloatArray, divergences: FloatArray, epsilon: float) -> float:
    """Returns about the largest `p - exp(epsilon) q` over probabilities p, q of an event whose Renyi
    divergences are within the bounds in both directions: for every p the smallest such q by bisection, on
    finer and finer grids of p."""
    alpha, powers = orders[:, None], ((orders - 1) * divergences)[:, None]

    def smallest(log_p: FloatArray) -> FloatArray:
        low, high = np.full_like(log_p, -800.0), log_p.copy()
        for _ in range(_BISECTIONS):
            log_q = (low + high) / 2
            far = np.zeros(log_p.size, dtype=bool)
            for one, other in ((log_p, log_q), (log_q, log_p)):
                rest = alpha * np.log1p(-np.exp(one)) + (1 - alpha) * np.log1p(-np.exp(other))
                far |= (np.logaddexp(alpha * one + (1 - alpha) * other, rest) > powers).any(axis=0)
            low, high = np.where(far, log_q, low), np.where(far, high, log_q)
        return high

    log_p = np.append(-np.geomspace(80.0, 0.7, _CURVE_POINTS), -np.geomspace(0.69, 1e-6, _CURVE_POINTS))
    best = 0.0
    for _ in range(_SEARCHES):
        values = np.exp(log_p) - np.exp(np.minimum(epsilon + smallest(log_p), 1.0))
        top = int(np.argmax(values))
        best = max(best, float(values[top]))
        ends = log_p[max(top - 1, 0)], log_p[min(top + 1, log_p.size - 1)]
        log_p = np.linspace(*ends, _CURVE_POINTS)
    return best
