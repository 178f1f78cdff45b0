"""Rounds within a total variation distance, their slack, of pure ones. Slack adds `(1 + exp(epsilon)) slack`
to delta."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.inversion import epsilon_interval

#: Relative amount by which a slack may have been rounded up: the exact slack is at least `1 - ROUNDED` times
#: it.
ROUNDED = 4e-12
# Largest number of guesses of an epsilon; the delta that is left depends on the guess.
_MOST_GUESSES = 80
# The least sum of delta and slack is sought at `_first_epsilons`, and at the given one if it is at most
# `_LAST_EPSILON`; then this often in the two cells beside the best one, each cut in three. One more epsilon
# lies beyond all, by this factor and at least this much.
_LAST_EPSILON = 600.0
_REFINEMENTS = 7
_BEYOND_FACTOR, _BEYOND_DISTANCE = 1.05, 1e-3
_SMALLEST_EPSILON = 1e-200


def epsilon_interval_with_slack(
    above: Composition, below: Composition, delta: float, slack: float, precision: float
) -> Interval:
    """Returns bounds on the epsilon at `delta` of rounds with a slack.

    Args:
        above, below: compositions of the pure rounds, for the upper and for the lower bound.
        delta: the delta, which pays for the slack too: `(1 + exp(epsilon)) slack` of it.
        slack: total variation distance from pure rounds, rounded up by at most `ROUNDED`.
        precision: wanted relative width.

    Guarantee: an epsilon is guessed, and the delta that the slack leaves at the guess gives an answer. If the
    answer is at most the guess, it is an upper bound.
    Source: docs/theory/rounds-and-samples.md, S4.
    """
    least = slack * (1 - 2 * ROUNDED)
    if 2 * least > delta:
        return Interval(upper=math.inf, lower=math.inf)  # at no epsilon it costs less than at 0
    # The delta that is left falls with epsilon: the delta left at 0 gives a lower bound.
    lower = epsilon_interval(above, below, delta - 2 * least, precision).lower
    if math.isinf(lower) or (left := delta - (1 + _exp(lower)) * least) <= 0:
        return Interval(upper=math.inf, lower=lower, truncation=math.inf)
    lower = max(epsilon_interval(above, below, left, precision).lower, lower)
    guess = 0.0
    for _ in range(_MOST_GUESSES):
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
    """Returns `exp(min(epsilon, 700))`: beyond 700 even a slack of 1e-300 costs more than 1."""
    return math.exp(min(epsilon, LARGEST_EXPONENT))


def delta_interval_with_slack(
    here: Interval, bounds: Callable[[float], Interval], epsilon: float, slack: float
) -> Interval:
    """Returns bounds on the least `delta(x) + (1 + exp(x)) slack` over x from 0 to epsilon, the rounds'
    delta.

    Rounds that are `(x, delta)`-private are also `(epsilon, delta)`-private for every larger epsilon,
    although the slack alone costs more there.

    Args:
        here: bounds on the delta of the pure rounds at epsilon.
        bounds: returns the same at another epsilon; these may be wider.
        epsilon: the largest x.
        slack: total variation distance, rounded up by at most `ROUNDED`.

    Source: docs/theory/rounds-and-samples.md, S5.
    """
    most, least = _together(epsilon, here, slack)
    # The sum is convex in exp(x). If it still falls beyond epsilon, epsilon is the best x.
    if (
        epsilon < _SMALLEST_EPSILON
        or _together(epsilon * _BEYOND_FACTOR, bounds(epsilon * _BEYOND_FACTOR), slack)[0] < least
    ):
        return dataclasses.replace(here, upper=min(most, 1.0), lower=min(least, 1.0))
    return _least_of_both(here, bounds, epsilon, slack)


def _together(epsilon: float, pure: Interval, slack: float) -> tuple[float, float]:
    """Returns an upper and a lower bound on delta plus the cost of the slack at an epsilon."""
    cost = (1 + _exp(epsilon)) * slack
    return (pure.upper + cost) * (1 + ROUNDED), pure.lower + cost * (1 - 2 * ROUNDED)


@functools.cache
def _first_epsilons() -> FloatArray:
    return np.append(np.geomspace(1e-9, 1e-4, 6), np.geomspace(2e-4, 512.0, 22))


def _least_of_both(
    here: Interval, bounds: Callable[[float], Interval], epsilon: float, slack: float
) -> Interval:
    """Returns the same if the sum may be smaller before epsilon."""
    last, first = min(epsilon, _LAST_EPSILON), _first_epsilons()
    # The points are the same for every epsilon, so that a cache of bounds holds most of them.
    points = np.array(
        [
            0.0,
            *first[: int(np.searchsorted(first, last))],
            last,
            last * _BEYOND_FACTOR + _BEYOND_DISTANCE,
        ]
    )
    found = {epsilon: here} | {x: bounds(x) for x in points.tolist() if x != epsilon}
    for _ in range(_REFINEMENTS):
        best = int(np.argmin([found[x].upper + (1 + math.exp(x)) * slack for x in points[:-1].tolist()]))
        near = points[max(best - 1, 0) : min(best + 2, points.size - 1)]
        thirds = [near[:-1] + part * np.diff(near) for part in (1 / 3, 2 / 3)]
        points = np.unique(np.concatenate([points, *thirds]))
        found |= {x: bounds(x) for x in points.tolist() if x not in found}
    bounded = [found[x] for x in points.tolist()]
    excess, lower = np.expm1(points), np.array([one.lower for one in bounded])
    cost = (2 + excess) * slack
    high, low = np.array([one.upper for one in bounded]) + cost, lower + cost * (1 - ROUNDED)
    # Delta falls and the cost rises: in a cell each is smallest at one of its ends.
    floor = (lower[1:] + cost[:-1] * (1 - ROUNDED)) * (1 - 4 * UNIT_ROUND_OFF)
    best = int(high[:-1].argmin())
    most = min(float(high[best]) * (1 + ROUNDED), 1.0)
    least = min(float(np.maximum(_least(excess, high, low), floor[:-1]).min()), most)
    if epsilon > last:
        least = min(least, math.exp(last) * slack * (1 - ROUNDED))
    at = bounded[best]
    return Interval(upper=most, lower=least, truncation=at.truncation, round_off=at.round_off)


def _least(excess: FloatArray, high: FloatArray, low: FloatArray) -> FloatArray:
    """Returns lower bounds on a convex function in every cell but the last one, given bounds at the orders:
    the function is above the extensions of the chords of the two neighbouring cells."""
    width, found = np.diff(excess), np.full(excess.size - 2, math.inf)
    # Relative error of differences of orders, and the round-off of the rest.
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
