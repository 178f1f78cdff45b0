"""Filters: budgets that stay sound when each round is chosen after the outputs of earlier ones were seen.

A filter holds while what rounds were charged allows its share of delta at the budget's epsilon; its reading
is the smallest epsilon at which it holds. `docs/adaptivity.md` has the theorems, sources, and the proofs of
what is ours. `filter_sets.py` says which filters a budget has, `charges.py` what a round is charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import scipy

from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence_at

_LARGEST_EPSILON = 1e4
_SMALLEST_EPSILON = 1e-300
_LARGEST_EXPONENT = 700.0
_ROOM = 2.0**-40
# The last step of Newton's method, in parts of a reading; its square is how near that comes about, and the
# search for bounds begins so far from there.
_NEAR_ENOUGH = 2.0**-18
_STRIDES = tuple(2.0**-36 * 4.0**step for step in range(64))
_GUESSES_MAX = 16
_SHRINKING = 4.0
_STEPS_MAX = 64
_WIDTH = 2.0**-30  # of a reading, in parts of it, where round-off allows


class Reading(NamedTuple):
    """The smallest epsilon at which a filter holds, between bounds; infinite when it holds at none."""

    epsilon_upper: float
    epsilon_lower: float


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """Rounds are charged the variance of a Gaussian mechanism that dominates them.

    Attributes:
        delta: the filter's share of the budget's delta.
        leak_rate: mass, per unit of charge, that a round may have outside of its dominating pair.
        slack_rate: total variation distance, per unit of charge, to a purely private round.
        reserves: variances, the first of them 0. For each the filter keeps a total of its own, of charges
            that hold when noise of this variance is added to all that is released; the filter holds while
            one total and its reserve fit.

    Guarantee: if `reserves[j] + the total of charge j`, for one j that may depend on the outputs, never
    exceeds V, all released outputs together are `(epsilon, delta)`-DP whenever `delta_Gauss(epsilon; V) +
    (leak_rate + (1 + exp(epsilon)) slack_rate) V <= delta`, however the rounds were chosen.
    Source: Koskela, Tobaben, Honkela (2022) for one reserve of 0 and no leak; docs/adaptivity.md for the
    rest.
    """

    delta: float
    leak_rate: float
    slack_rate: float
    reserves: tuple[float, ...]

    def reading(self, spent: Sequence[Fraction]) -> Reading:
        """The smallest epsilon at which the filter holds, one total spent for each reserve."""
        variances = [
            math.nextafter(reserve + _float_above(total), math.inf) if total else 0.0
            for reserve, total in zip(self.reserves, spent, strict=True)
        ]
        return self.epsilon(min(variances))

    def epsilon(self, variance: float) -> Reading:
        """The smallest epsilon that charges of `variance` altogether leave room for."""
        if variance <= 0:
            return Reading(0.0, 0.0)

        mu = math.sqrt(variance)

        def near(epsilon: float) -> tuple[float, float]:
            _, value, fall = gaussian_divergence_at(mu, epsilon)
            return value, fall

        def bounds(epsilon: float) -> tuple[float, float]:
            below, _, _ = gaussian_divergence_at(mu * (1 - _ROOM), epsilon)
            _, above, _ = gaussian_divergence_at(mu * (1 + _ROOM), epsilon)
            return below, above

        def guess(delta: float) -> float:
            return variance / 2 - mu * float(scipy.special.ndtri(delta))

        extra = _Extra(self.leak_rate * variance, self.slack_rate * variance)
        return _smallest_epsilon(_Tail(near, bounds, guess), extra, self.delta)


@dataclass(frozen=True, kw_only=True)
class RenyiFilter:
    """Rounds are charged their Renyi divergence of one order.

    Attributes:
        order: the order, above 1. When infinite, rounds are charged their largest loss.
        delta, leak_rate, slack_rate: as for `GaussianFilter`.

    Guarantee: if the charges never exceed R, all released outputs together are `(epsilon, delta)`-DP whenever
    `exp((order - 1) (R - epsilon)) (1 - 1/order)^order / (order - 1) + (leak_rate + (1 + exp(epsilon))
    slack_rate) R <= delta`, however the rounds were chosen.
    Source: Feldman and Zrnic (2021); docs/adaptivity.md for the leak.
    """

    order: float
    delta: float
    leak_rate: float
    slack_rate: float

    @property
    def name(self) -> str:
        """What people call the filter."""
        return "largest loss" if math.isinf(self.order) else f"renyi of order {self.order:.4g}"

    def reading(self, spent: Fraction) -> Reading:
        """The smallest epsilon at which the filter holds."""
        total = _float_above(spent)
        if total <= 0:
            return Reading(0.0, 0.0)
        if math.isinf(self.order):
            covered = self.leak_rate * total * (1 + _ROOM) <= self.delta and self.slack_rate == 0
            return Reading(total if covered else math.inf, total * (1 - _ROOM))
        theta = self.order - 1
        # theta log(theta) - order log(order), which would cancel: budgets of 1e-9 have orders of 1e12.
        peak = -theta * math.log1p(1 / theta) - math.log(self.order)

        def near(epsilon: float) -> tuple[float, float]:
            value = _exp(theta * (total - epsilon) + peak)
            return value, theta * value

        def bounds(epsilon: float) -> tuple[float, float]:
            value, _ = near(epsilon)
            room = _ROOM * (1 + theta * (total + epsilon) + abs(peak))
            return value * (1 - room), value * (1 + room)

        def guess(delta: float) -> float:
            return total + (peak - math.log(delta)) / theta

        extra = _Extra(self.leak_rate * total, self.slack_rate * total)
        return _smallest_epsilon(_Tail(near, bounds, guess), extra, self.delta)


class _Tail(NamedTuple):
    """The part of delta that falls as epsilon grows, convex in `exp(epsilon)`. All rests on `bounds`."""

    near: Callable[[float], tuple[float, float]]  # about what it is at an epsilon, and how fast it falls
    bounds: Callable[[float], tuple[float, float]]  # below and above
    guess: Callable[[float], float]  # about the epsilon of a delta, or a larger one


class _Extra(NamedTuple):
    """What leaks and slacks of all charges together cost of delta; convex in `exp(epsilon)`, too."""

    leak: float
    slack: float

    def at(self, epsilon: float) -> float:
        return self.leak + self.slack + self.rise(epsilon)

    def rise(self, epsilon: float) -> float:
        return self.slack * _exp(epsilon) if self.slack else 0.0

    def below(self, epsilon: float) -> float:
        return self.at(epsilon) * (1 - _ROOM)

    def above(self, epsilon: float) -> float:
        return self.at(epsilon) * (1 + _ROOM)


def _smallest_epsilon(tail: _Tail, extra: _Extra, delta: float) -> Reading:
    """Bounds on the smallest epsilon whose delta is at most `delta`.

    Delta is convex in `exp(epsilon)`: what is too little, and less than an epsilon that is enough, has
    nothing enough below it.
    """

    def compared(epsilon: float) -> int:
        """1 where it is enough, -1 where it is too little, 0 where round-off hides which."""
        below, above = tail.bounds(epsilon)
        if above + extra.above(epsilon) <= delta:
            return 1
        return -1 if below + extra.below(epsilon) > delta else 0

    near = _guessed(tail, extra, delta)
    outer = (near + part * near for part in _STRIDES)
    within = (epsilon for epsilon in outer if epsilon <= _LARGEST_EPSILON)
    upper = next((epsilon for epsilon in within if compared(epsilon) > 0), math.inf)
    if upper == math.inf:
        return Reading(math.inf, _short_up_to(tail, extra, delta))
    inner = (near - part * near for part in _STRIDES if part < 1)
    lower = next((epsilon for epsilon in inner if compared(epsilon) < 0), 0.0)
    if lower == 0.0 and compared(0.0) > 0:
        return Reading(0.0, 0.0)
    for _ in range(_STEPS_MAX):
        middle = (lower + upper) / 2
        side = compared(middle) if upper - lower > _WIDTH * upper else 0
        if side == 0:
            break
        lower, upper = (lower, middle) if side > 0 else (middle, upper)
    return Reading(upper, lower)


def _guessed(tail: _Tail, extra: _Extra, delta: float) -> float:
    """About the smallest epsilon whose delta is `delta`: Newton's method for the logarithm of the tail."""
    start = max(delta - extra.at(0.0), _ROOM * delta)
    epsilon, left = min(max(tail.guess(start), _SMALLEST_EPSILON), _LARGEST_EPSILON), 0.0
    for _ in range(_GUESSES_MAX):
        (value, fall), free = tail.near(epsilon), delta - extra.at(epsilon)
        rate = fall / value - extra.rise(epsilon) / free if value > 0 and free > 0 else 0.0
        if not 0 < rate < math.inf:  # too far to the right, where what grows outweighs the tail
            epsilon = (left + epsilon) / 2
            continue
        step = math.log(value / free) / rate
        if abs(step) <= _NEAR_ENOUGH * epsilon:
            return epsilon + step
        if step > 0:
            left = max(left, epsilon)
        epsilon = min(max(epsilon + step, left, epsilon / _SHRINKING), _LARGEST_EPSILON)
    return epsilon


def _short_up_to(tail: _Tail, extra: _Extra, delta: float) -> float:
    """An epsilon up to which none is enough, step by step: the tail at a step's end, and the rest at its
    beginning, are too much together.
    """
    epsilon, step = 0.0, 1.0
    for _ in range(_STEPS_MAX):
        if extra.below(epsilon) > delta:
            return _LARGEST_EPSILON  # and what is beyond is no less
        is_short = tail.bounds(epsilon + step)[0] + extra.below(epsilon) > delta
        epsilon, step = (epsilon + step, 2 * step) if is_short else (epsilon, step / 2)
    return epsilon


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < _LARGEST_EXPONENT else math.inf


def _float_above(value: Fraction) -> float:
    rounded = float(value)
    numerator, denominator = rounded.as_integer_ratio()
    is_above = numerator * value.denominator >= value.numerator * denominator
    return rounded if is_above else math.nextafter(rounded, math.inf)
