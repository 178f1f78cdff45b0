"""Rounds that are pure but for a total variation distance, their slack, which costs `(1 + exp(epsilon))
slack` of delta."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.inversion import epsilon_interval

#: How much less a slack may be than it was rounded up to, relative.
ROUNDED = 4e-12
# How often an epsilon is guessed, where what is left of delta depends on it.
_STEPS = 80
# The least sum of delta and slack is looked for at these epsilons and at the last one, no larger than that;
# then so often within the two cells beside the best one, each cut in three. One more is beyond all, by such a
# factor and at least so much.
_LADDER = np.append(np.geomspace(1e-9, 1e-4, 6), np.geomspace(2e-4, 512.0, 22))
_LAST = 600.0
_SEARCHES = 7
_BEYOND, _APART = 1.05, 1e-3
_SMALLEST = 1e-200


def epsilon_interval_with_slack(
    above: Composition, below: Composition, delta: float, slack: float, precision: float
) -> Interval:
    """Bounds on epsilon when rounds are pure up to a total variation distance, rounded up by no more than
    `ROUNDED`, which costs `(1 + exp(epsilon)) slack`.

    An epsilon is guessed; if what is left of delta gives an answer below the guess, the answer holds.
    """
    least = slack * (1 - 2 * ROUNDED)
    if 2 * least > delta:
        return Interval(upper=math.inf, lower=math.inf)  # at no epsilon it costs less than at 0
    # Whatever epsilon is, no more is left than at a smaller one.
    lower = epsilon_interval(above, below, delta - 2 * least, precision).lower
    if math.isinf(lower) or (left := delta - (1 + _exp(lower)) * least) <= 0:
        return Interval(upper=math.inf, lower=lower, truncation=math.inf)
    lower = max(epsilon_interval(above, below, left, precision).lower, lower)
    guess = 0.0
    for _ in range(_STEPS):
        left = delta - (1 + _exp(guess)) * slack
        if left <= 0:
            break
        answer = epsilon_interval(above, below, left, precision)
        if answer.upper <= guess:
            lower = min(lower, answer.upper)
            truncation = answer.truncation + max(answer.lower - lower, 0.0)
            return Interval(
                upper=answer.upper, lower=lower, truncation=truncation, round_off=answer.round_off
            )
        guess = answer.upper * (1 + precision / 8) + 1e-12
    return Interval(upper=math.inf, lower=lower, truncation=math.inf)


def _exp(epsilon: float) -> float:
    """`exp(epsilon)`; beyond 700, where a slack of 1e-300 costs more than 1, no more than that."""
    return math.exp(min(epsilon, 700.0))


def delta_interval_with_slack(
    here: Interval, bounds: Callable[[float], Interval], epsilon: float, slack: float
) -> Interval:
    """Bounds on the least `delta(x) + (1 + exp(x)) slack` of all x from 0 to epsilon: rounds that are `(x,
    delta)` private are so at any larger epsilon, where the slack alone would cost more.

    Args:
        here: bounds on the delta of the pure rounds at epsilon.
        bounds: the same elsewhere, which may be wider.
        epsilon: the largest x.
        slack: total variation distance, rounded up by no more than `ROUNDED`.
    """
    most, least = _together(epsilon, here, slack)
    # Where the sum still falls beyond, it fell before: it is convex.
    if epsilon < _SMALLEST or _together(epsilon * _BEYOND, bounds(epsilon * _BEYOND), slack)[0] < least:
        return dataclasses.replace(here, upper=min(most, 1.0), lower=min(least, 1.0))
    return _least_of_both(here, bounds, epsilon, slack)


def _together(epsilon: float, pure: Interval, slack: float) -> tuple[float, float]:
    """An upper and a lower bound on delta and what the slack costs at an epsilon."""
    cost = (1 + _exp(epsilon)) * slack
    return (pure.upper + cost) * (1 + ROUNDED), pure.lower + cost * (1 - 2 * ROUNDED)


def _least_of_both(
    here: Interval, bounds: Callable[[float], Interval], epsilon: float, slack: float
) -> Interval:
    """The same where the sum may be less before epsilon."""
    last = min(epsilon, _LAST)
    # The same points for every epsilon, so that who remembers bounds has most of them.
    points = np.array([0.0, *_LADDER[: int(np.searchsorted(_LADDER, last))], last, last * _BEYOND + _APART])
    found = {epsilon: here} | {x: bounds(x) for x in points.tolist() if x != epsilon}
    for _ in range(_SEARCHES):
        best = int(np.argmin([found[x].upper + (1 + math.exp(x)) * slack for x in points[:-1].tolist()]))
        near = points[max(best - 1, 0) : min(best + 2, points.size - 1)]
        thirds = [near[:-1] + part * np.diff(near) for part in (1 / 3, 2 / 3)]
        points = np.unique(np.concatenate([points, *thirds]))
        found |= {x: bounds(x) for x in points.tolist() if x not in found}
    bounded = [found[x] for x in points.tolist()]
    excess, lower = np.expm1(points), np.array([one.lower for one in bounded])
    cost = (2 + excess) * slack
    high, low = np.array([one.upper for one in bounded]) + cost, lower + cost * (1 - ROUNDED)
    # Delta falls and the cost rises: each is least at an end of the cell.
    floor = (lower[1:] + cost[:-1] * (1 - ROUNDED)) * (1 - 4 * UNIT_ROUND_OFF)
    best = int(high[:-1].argmin())
    most = min(float(high[best]) * (1 + ROUNDED), 1.0)
    least = min(float(np.maximum(_least(excess, high, low), floor[:-1]).min()), most)
    if epsilon > last:
        least = min(least, math.exp(last) * slack * (1 - ROUNDED))
    at = bounded[best]
    return Interval(upper=most, lower=least, truncation=at.truncation, round_off=at.round_off)


def _least(excess: FloatArray, high: FloatArray, low: FloatArray) -> FloatArray:
    """Lower bounds on a convex function in every cell but the last one, given bounds at the orders: it is
    above the chords of the two cells beside, drawn on."""
    width, found = np.diff(excess), np.full(excess.size - 2, math.inf)
    # What differences of orders are off by, relative, and the rest is rounded by.
    doubt = 16 * UNIT_ROUND_OFF * (1 + excess[1:] / width)

    def drawn(cell: int, value: float, rise: float, run: float) -> float:
        steps = run / width[cell]
        off = (doubt[cell] + doubt[here]) * abs(rise) * steps
        off += 8 * UNIT_ROUND_OFF * (abs(value) + (abs(value) + abs(rise)) * steps)
        return float(value + rise * steps - off)

    for here in range(excess.size - 2):
        start, end, wide = low[here], low[here + 1], width[here]
        falls = start - high[here - 1] if here else math.inf
        rises = high[here + 2] - end
        runs = [0.0, wide]
        if here and (both := falls / width[here - 1] - rises / width[here + 1]) != 0:
            meet = (end - rises / width[here + 1] * wide - start) / both
            runs.append(min(max(meet, 0.0), wide))
        for run in runs:
            line = drawn(here + 1, end, -rises, wide - run)
            line = max(line, drawn(here - 1, start, falls, run)) if here else line
            found[here] = min(found[here], line)
    return found
