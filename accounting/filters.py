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

import numpy as np

from accounting.contour import FloatArray
from accounting.gaussian import gaussian_divergence

_LARGEST_EPSILON = 1e4
_SMALLEST_EPSILON = 1e-12
_COARSE = 192
_FINE = 48
_REFINEMENTS = 4
_ROOM = 2.0**-40
_COARSE_GRID = np.concatenate([[0.0], np.geomspace(_SMALLEST_EPSILON, _LARGEST_EPSILON, _COARSE)])
_COARSE_GRID.setflags(write=False)
_FINE_STEPS = np.arange(float(_FINE))
_FINE_STEPS.setflags(write=False)

Bounds = tuple[FloatArray, FloatArray]  # below and above


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
            _float_above(Fraction(reserve) + total) if total else 0.0
            for reserve, total in zip(self.reserves, spent, strict=True)
        ]
        return self.epsilon(min(variances))

    def epsilon(self, variance: float) -> Reading:
        """The smallest epsilon that charges of `variance` altogether leave room for."""
        if variance <= 0:
            return Reading(0.0, 0.0)

        def bounds(epsilon: FloatArray) -> Bounds:
            below, above = gaussian_divergence(math.sqrt(variance) * (1 + _ROOM), epsilon)
            below, _ = gaussian_divergence(math.sqrt(variance) * (1 - _ROOM), epsilon)
            extra = _extra(self.leak_rate, self.slack_rate, variance, epsilon)
            return below + extra * (1 - _ROOM), above + extra * (1 + _ROOM)

        return _smallest_epsilon(bounds, self.delta)


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
        peak = theta * math.log(theta) - self.order * math.log(self.order)

        def bounds(epsilon: FloatArray) -> Bounds:
            with np.errstate(over="ignore", under="ignore"):
                moment = np.exp(theta * (total - epsilon) + peak)
            room = _ROOM * (1 + theta * (total + epsilon) + abs(peak))
            extra = _extra(self.leak_rate, self.slack_rate, total, epsilon)
            return (moment + extra) * (1 - room), (moment + extra) * (1 + room)

        return _smallest_epsilon(bounds, self.delta)


def _extra(leak_rate: float, slack_rate: float, total: float, epsilon: FloatArray) -> FloatArray:
    """What leaks and slacks of charges that add up to `total` cost of delta."""
    extra: FloatArray = total * (leak_rate + slack_rate * (1 + np.exp(np.minimum(epsilon, 600.0))))
    return extra


def _smallest_epsilon(bounds: Callable[[FloatArray], Bounds], delta: float) -> Reading:
    """Bounds on the smallest epsilon whose delta is at most `delta`: ever finer grids around the crossing."""
    grid = _COARSE_GRID
    lower = upper = 0.0
    for _ in range(_REFINEMENTS + 1):
        below, above = bounds(grid)
        enough = above <= delta
        first = int(enough.argmax()) if enough.any() else grid.size
        short = (below[:first] > delta).nonzero()[0]
        lower = max(lower, float(grid[short[-1]])) if short.size else lower
        if first == grid.size:
            return Reading(math.inf, lower)
        upper = float(grid[first])
        if first == 0:
            break
        start = float(grid[first - 1])
        grid = _FINE_STEPS * ((upper - start) / (_FINE - 1)) + start
        grid[-1] = upper
    return Reading(upper, lower)


def _float_above(value: Fraction) -> float:
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)
