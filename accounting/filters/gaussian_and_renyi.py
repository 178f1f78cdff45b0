"""The Gaussian and the Renyi privacy filter, sound if each round is chosen after the outputs of earlier ones.

A filter holds at an epsilon if the total of the charges costs at most its share of delta there. Its reading
is the smallest epsilon at which it holds. `docs/adaptivity.md` has theorems, sources and proofs.
`filter_set.py` defines the filters of a budget, `charges.py` the charge of a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT
from shuffle_ledger.accounting.numeric.later import scipy
from shuffle_ledger.accounting.numeric.rounding import float_above
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence_at

# Readings are sought up to this epsilon; beyond, they are infinite.
_LARGEST_EPSILON = 1e4
_SMALLEST_EPSILON = 1e-300
# Relative room for the round-off of a filter's delta.
_DELTA_ROUND_OFF = 2.0**-40
# Newton's method ends with a relative step of at most this. Its error is then about the square, 2^-36: the
# search for certified bounds tries these relative distances in turn.
_LAST_NEWTON_STEP = 2.0**-18
_SEARCH_DISTANCES = tuple(2.0**-36 * 4.0**step for step in range(64))
_MOST_NEWTON_STEPS = 16
# A step of Newton's method divides epsilon by at most this.
_MOST_SHRINKING = 4.0
_MOST_BISECTIONS = 64
_RELATIVE_WIDTH = 2.0**-30  # of a reading's bounds, unless round-off makes them wider


class Reading(NamedTuple):
    """Bounds on the smallest epsilon at which a filter holds; infinite if it holds at none."""

    epsilon_upper: float
    epsilon_lower: float


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """Charges each round the variance of a Gaussian mechanism that dominates it.

    Attributes:
        delta: the filter's share of the budget's delta.
        leak_rate: mass outside of the dominating pair that a round may have, for each unit of charge.
        reserves: variances, rising from 0. For each the filter has a separate total, of charges that are
            enough if noise of this variance is added to everything that is released. The filter holds while
            one total together with its reserve fits.

    Guarantee: if `reserves[j] + the total of charge j`, for one j that may depend on the outputs, never
    exceeds V, all released outputs together are `(epsilon, delta)`-DP whenever `delta_Gauss(epsilon; V) +
    leak_rate V <= delta`, however the rounds were chosen.
    Source: Koskela, Tobaben, Honkela for one reserve of 0 and no leak; docs/adaptivity.md, Theorem 1,
        Lemma 3.
    """

    delta: float
    leak_rate: float
    reserves: tuple[float, ...]

    def epsilon(self, variance: float) -> Reading:
        """Returns the smallest epsilon at which charges of `variance` altogether cost at most the filter's
        delta."""
        if variance <= 0:
            return Reading(0.0, 0.0)

        mu = math.sqrt(variance)

        def near(epsilon: float) -> tuple[float, float]:
            _, value, fall = gaussian_divergence_at(mu, epsilon)
            return value, fall

        def bounds(epsilon: float) -> tuple[float, float]:
            below, _, _ = gaussian_divergence_at(mu * (1 - _DELTA_ROUND_OFF), epsilon)
            _, above, _ = gaussian_divergence_at(mu * (1 + _DELTA_ROUND_OFF), epsilon)
            return below, above

        def guess(delta: float) -> float:
            return variance / 2 - mu * float(scipy.special.ndtri(delta))

        return _smallest_epsilon(_Tail(near, bounds, guess), self.leak_rate * variance, self.delta)

    def holds(self, variance: float, epsilon: float) -> bool:
        """Returns whether charges of `variance` altogether certainly cost at most the filter's delta at an
        epsilon."""
        if not 0 < variance < math.inf or not 0 <= epsilon <= _LARGEST_EPSILON:
            return False
        _, above, _ = gaussian_divergence_at(math.sqrt(variance) * (1 + _DELTA_ROUND_OFF), epsilon)
        return above + self.leak_rate * variance * (1 + _DELTA_ROUND_OFF) <= self.delta

    def is_above(self, variance: float, epsilon: float) -> bool:
        """Returns whether the filter certainly holds at no epsilon up to this one."""
        if not 0 < variance < math.inf or not 0 <= epsilon <= _LARGEST_EPSILON:
            return False
        below, _, _ = gaussian_divergence_at(math.sqrt(variance) * (1 - _DELTA_ROUND_OFF), epsilon)
        return below + self.leak_rate * variance * (1 - _DELTA_ROUND_OFF) > self.delta


@dataclass(frozen=True, kw_only=True)
class RenyiFilter:
    """Charges each round its Renyi divergence of one order.

    Attributes:
        order: the order, above 1. If it is infinite, the charge of a round is its largest loss.
        delta, leak_rate: as of `GaussianFilter`.

    Guarantee: if the charges never exceed R, all released outputs together are `(epsilon, delta)`-DP whenever
    `exp((order - 1) (R - epsilon)) (1 - 1/order)^order / (order - 1) + leak_rate R <= delta`, however the
    rounds were chosen.
    Source: Feldman and Zrnic; docs/adaptivity.md, Theorem 5.
    """

    order: float
    delta: float
    leak_rate: float

    @property
    def name(self) -> str:
        """Returns the filter's name for people."""
        return "largest loss" if math.isinf(self.order) else f"renyi of order {self.order:.4g}"

    def reading(self, spent: Fraction) -> Reading:
        """Returns the smallest epsilon at which the filter holds, given the total of charges."""
        total = float_above(spent)
        if total <= 0:
            return Reading(0.0, 0.0)
        if math.isinf(self.order):
            covered = self.leak_rate * total * (1 + _DELTA_ROUND_OFF) <= self.delta
            return Reading(total if covered else math.inf, total * (1 - _DELTA_ROUND_OFF))
        return _smallest_epsilon(self._tail(total), self.leak_rate * total, self.delta)

    def is_above(self, total: float, epsilon: float) -> bool:
        """Returns whether the filter certainly holds at no epsilon up to this one, given the total of
        charges, rounded up to the next float or the one behind it. False may mean that round-off leaves it
        undecided."""
        if total <= 0 or not epsilon < _LARGEST_EPSILON:
            return False
        if math.isinf(self.order):
            return total * (1 - _DELTA_ROUND_OFF) > epsilon
        leak = self.leak_rate * total * (1 - _DELTA_ROUND_OFF)
        return self._tail(total).bounds(epsilon)[0] + leak > self.delta

    def _tail(self, total: float) -> _Tail:
        theta = self.order - 1
        # theta log(theta) - order log(order) without cancellation: budgets of 1e-9 have orders of 1e12.
        peak = -theta * math.log1p(1 / theta) - math.log(self.order)

        def near(epsilon: float) -> tuple[float, float]:
            value = _exp(theta * (total - epsilon) + peak)
            return value, theta * value

        def bounds(epsilon: float) -> tuple[float, float]:
            value, _ = near(epsilon)
            room = _DELTA_ROUND_OFF * (1 + theta * (total + epsilon) + abs(peak))
            return value * (1 - room), value * (1 + room)

        def guess(delta: float) -> float:
            return total + (peak - math.log(delta)) / theta

        return _Tail(near, bounds, guess)


class _Tail(NamedTuple):
    """The part of delta that falls as epsilon grows.

    Attributes:
        near: returns about the value at an epsilon, and minus its derivative; only for the search.
        bounds: returns a lower and an upper bound at an epsilon; the guarantees use these.
        guess: returns an epsilon that is about that of a delta, or larger; only for the search.
    """

    near: Callable[[float], tuple[float, float]]
    bounds: Callable[[float], tuple[float, float]]
    guess: Callable[[float], float]


def _smallest_epsilon(tail: _Tail, leak: float, delta: float) -> Reading:
    """Returns bounds on the smallest epsilon at which the tail and a constant leak together are at most
    `delta`: the tail falls, so every larger epsilon is enough too."""

    def compared(epsilon: float) -> int:
        """Returns 1 if epsilon is enough, -1 if it is not, 0 if round-off leaves it undecided."""
        below, above = tail.bounds(epsilon)
        if above + leak * (1 + _DELTA_ROUND_OFF) <= delta:
            return 1
        return -1 if below + leak * (1 - _DELTA_ROUND_OFF) > delta else 0

    near = _guessed(tail, leak, delta)
    outer = (near + part * near for part in _SEARCH_DISTANCES)
    within = (epsilon for epsilon in outer if epsilon <= _LARGEST_EPSILON)
    upper = next((epsilon for epsilon in within if compared(epsilon) > 0), math.inf)
    if upper == math.inf:
        return Reading(math.inf, _short_up_to(tail, leak, delta))
    inner = (near - part * near for part in _SEARCH_DISTANCES if part < 1)
    lower = next((epsilon for epsilon in inner if compared(epsilon) < 0), 0.0)
    if lower == 0.0 and compared(0.0) > 0:
        return Reading(0.0, 0.0)
    for _ in range(_MOST_BISECTIONS):
        middle = (lower + upper) / 2
        side = compared(middle) if upper - lower > _RELATIVE_WIDTH * upper else 0
        if side == 0:
            break
        lower, upper = (lower, middle) if side > 0 else (middle, upper)
    return Reading(upper, lower)


def _guessed(tail: _Tail, leak: float, delta: float) -> float:
    """Returns about the smallest epsilon whose delta is `delta`, by Newton's method for the logarithm of the
    tail."""
    free = max(delta - leak, _DELTA_ROUND_OFF * delta)
    epsilon, left = min(max(tail.guess(free), _SMALLEST_EPSILON), _LARGEST_EPSILON), 0.0
    for _ in range(_MOST_NEWTON_STEPS):
        value, fall = tail.near(epsilon)
        rate = fall / value if value > 0 else 0.0
        if not 0 < rate < math.inf:  # epsilon is too large: the tail is below every float
            epsilon = (left + epsilon) / 2
            continue
        step = math.log(value / free) / rate
        if abs(step) <= _LAST_NEWTON_STEP * epsilon:
            return epsilon + step
        if step > 0:
            left = max(left, epsilon)
        epsilon = min(max(epsilon + step, left, epsilon / _MOST_SHRINKING), _LARGEST_EPSILON)
    return epsilon


def _short_up_to(tail: _Tail, leak: float, delta: float) -> float:
    """Returns an epsilon up to which no epsilon is enough. It grows step by step, and in smaller steps behind
    the last one at whose end tail and leak exceed delta."""
    least = leak * (1 - _DELTA_ROUND_OFF)
    if least > delta:
        return _LARGEST_EPSILON  # the leak alone exceeds delta
    epsilon, step = 0.0, 1.0
    for _ in range(_MOST_BISECTIONS):
        is_short = tail.bounds(epsilon + step)[0] + least > delta
        epsilon, step = (epsilon + step, 2 * step) if is_short else (epsilon, step / 2)
    return epsilon


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < LARGEST_EXPONENT else math.inf
