"""Inversion of bounds on delta: certified intervals of epsilon at a given delta."""

from __future__ import annotations

import math
from collections.abc import Callable

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.later import scipy
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.pair_bounds import RoundLoss
from shuffle_ledger.accounting.pld.tilting import Contour

# Smoothings that are tried in turn, in units of the root of the precision and of the deviation.
_SMOOTHINGS = (0.5, 0.15, 0.04, 0.01, 0.0025)
# Most new choices of a contour after a better guess of the answer, and the distance of tilts, in steps of
# their grid, at which the search ends.
_MOST_RETILTS = 12
_SETTLED_STEPS, _SETTLED_STEPS_OF_MANY = 1, 5
# From this number of kinds on, a composition uses one contour for all deltas in an interval of this number of
# decades. One interval ends at the last number.
_MANY_KINDS, _SHARED_DECADES, _SHARED_END = 32, 5.0, 10**-4.5
# From an approximate root, most steps to an epsilon at which a bound certainly holds, each four times the
# last; and bisections if there is no root to start from.
_MOST_NUDGES = 14
_BISECTIONS = 20
# Replaces a bound of 0 in a logarithm.
_LEAST_BOUND = 1e-320
# Once two compositions have done this work together (see `Composition.work`), and this much for each kind of
# rounds, no closer answer is sought: some seconds.
_MOST_WORK, _MOST_WORK_OF_KIND = 3e7, 2e5
# Bisections after which no float is left between two ends.
_ALL_BISECTIONS = 60


def most_work(kinds: int) -> float:
    """Returns the most work (see `Composition.work`) of a question about this many kinds of rounds before
    their answer is given as it is."""
    return max(_MOST_WORK, _MOST_WORK_OF_KIND * kinds)


def epsilon_interval(
    above: Composition, below: Composition, delta: float, precision: float, *, most: float | None = None
) -> Interval:
    """Returns bounds on epsilon at `delta`, the smoothing reduced until they are close enough or stop
    improving.

    Args:
        above, below: compositions of the upper and of the lower pairs.
        delta: the delta, positive.
        precision: wanted relative width.
        most: the compositions' work, earlier work included, from which on the bounds are returned as they
            are; None for the usual limit.

    Guarantee: `lower <= epsilon <= upper` for the exact epsilon of everything between the pairs; infinite if
    no
        finite epsilon holds.
    Source: docs/theory/pld.md, P11.
    """
    if above.infinity >= delta:
        # If the lower pair's mass at infinity is above delta, the exact epsilon is infinite too.
        if below.infinity > delta:
            return Interval(upper=math.inf, lower=math.inf)
        return Interval(upper=math.inf, lower=0.0, truncation=math.inf)
    interval, most = Interval(upper=above.largest_loss, lower=0.0), _limit(above, most)
    for smoothing in _SMOOTHINGS:
        found, smoothed = _epsilon_once(above, below, delta, smoothing * math.sqrt(precision), most)
        interval = interval.intersection(found)
        # Less smoothing helps only as long as smoothing causes most of the width.
        if interval.is_within(precision) or smoothed < 0.3 * interval.width:
            break
        if above.work + below.work >= most:
            break
    return interval


def _limit(above: Composition, most: float | None) -> float:
    return most_work(above.kinds) if most is None else most


def delta_interval(
    above: Composition, below: Composition, epsilon: float, precision: float, *, most: float | None = None
) -> tuple[Interval, float]:
    """Returns bounds on delta at `epsilon`, likewise, and an upper bound at the epsilon that is larger by the
    relative precision."""
    if above.infinity >= 1:
        return Interval(upper=1.0, lower=below.infinity), 1.0  # no loss is finite
    interval, later, most = Interval(upper=1.0, lower=0.0), 1.0, _limit(above, most)
    for smoothing in _SMOOTHINGS:
        contour = above.contour(min(epsilon, above.largest_loss), smoothing * math.sqrt(precision))
        high = above.delta(epsilon, contour)
        low = below.delta(epsilon, below.widened(epsilon, contour))
        later = min(later, above.delta(epsilon * (1 + precision), contour).value)
        interval = interval.intersection(
            Interval(
                upper=high.value,
                lower=min(low.value, high.value),
                truncation=high.truncation,
                round_off=high.round_off + low.round_off,
            )
        )
        if is_precise_delta(interval, later, precision) or above.work + below.work >= most:
            break
    return interval, later


def is_precise_delta(interval: Interval, later: float, precision: float) -> bool:
    """Returns whether bounds on delta are close enough: the lower one is at least `1 - precision` times the
    upper one, or times `later`, the upper bound at an epsilon that is larger by the precision.

    Source: docs/theory/pld.md, P11.
    """
    return interval.lower >= min(later, interval.upper) * (1 - precision)


def pair_delta(loss: RoundLoss, epsilon: float) -> Interval:
    """Returns bounds on the delta of a single round at `epsilon`, computed from its two pairs without
    smoothing."""
    upper = min(loss.upper.divergence_bound(epsilon), 1.0)
    return Interval(upper=upper, lower=min(loss.lower.divergence_bound(epsilon), upper))


def pair_epsilon(loss: RoundLoss, delta: float) -> Interval:
    """Returns bounds on the epsilon of a single round at `delta`, computed from its two pairs without
    smoothing.

    Source: docs/theory/pld.md, P3.
    """
    upper = first_that_holds(
        lambda epsilon: loss.upper.divergence_bound(epsilon) <= delta, loss.upper.largest_loss
    )[1]
    lower = first_that_holds(
        lambda epsilon: loss.lower.divergence_bound(epsilon) < delta, loss.lower.largest_loss
    )[0]
    if loss.lower.infinity > delta:
        return Interval(upper=math.inf, lower=math.inf)
    if loss.upper.infinity >= delta:
        return Interval(upper=math.inf, lower=lower, truncation=math.inf)
    return Interval(upper=upper, lower=min(lower, upper))


def first_that_holds(holds: Callable[[float], bool], high: float) -> tuple[float, float]:
    """Returns two neighbouring floats from 0 to `high`: the condition is false at the first and true at the
    second.

    The condition must be true at `high` and monotone. If it is true at 0, both are 0.
    """
    low = 0.0
    if holds(low):
        return 0.0, 0.0
    for _ in range(_ALL_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _epsilon_once(
    above: Composition, below: Composition, delta: float, smoothing: float, most: float
) -> tuple[Interval, float]:
    """Returns bounds on epsilon at `delta` with one smoothing, and the part of their distance that the
    smoothing causes.

    The contour is chosen for a guess, and again if the answer is far from the guess, until the work reaches
    `most`.
    """
    guess, upper, many = above.about(delta), above.largest_loss, above.kinds >= _MANY_KINDS
    # With many kinds, which are most of the work, neighbouring deltas share a contour.
    contour = above.contour(above.about(_shared(delta)) if many else guess, smoothing)
    best, tried = contour, {contour.tilt}
    for _ in range(_MOST_RETILTS):
        found = _beyond(above, contour, delta, guess)
        upper, best = (found, contour) if found < upper else (upper, best)
        guess, before = found, contour
        if above.work + below.work >= most:
            contour = best
            break
        contour = above.contour(guess, smoothing)
        if abs(contour.tilt - before.tilt) <= (_SETTLED_STEPS_OF_MANY if many else _SETTLED_STEPS):
            contour = before
            break
        if contour.tilt in tried:  # answers of two contours lead to each other
            contour = best
            break
        tried.add(contour.tilt)
    else:
        contour = best
    if upper == 0:
        return Interval(upper=0.0, lower=0.0), 0.0
    lower = _before(below, below.widened(upper, contour), delta, upper)
    at, nearby = above.delta(upper, contour), above.delta(upper * (1 - 1e-3), contour)
    slope = max((nearby.value - at.value) / (1e-3 * upper), 1e-6 * delta / upper)
    causes = {"truncation": at.truncation / slope, "round_off": 2 * at.round_off / slope}
    return Interval(upper=upper, lower=min(lower, upper), **causes), 2 * at.smoothing / slope


def _beyond(above: Composition, contour: Contour, delta: float, guess: float) -> float:
    """Returns about the smallest epsilon at which the upper bound is at most delta, from 0 to the largest
    loss.

    Guarantee: the upper bound is at most delta at the returned epsilon.
    """
    limit = above.largest_loss
    if above.delta(0.0, contour).value <= delta:
        return 0.0
    root = _root(lambda epsilon: above.delta(epsilon, contour).value, delta, guess, limit)
    for step in range(_MOST_NUDGES):
        nudged = root * (1 + 1e-9 * 4.0**step)
        if nudged >= limit:
            break
        if above.delta(nudged, contour).value <= delta:
            return nudged
    return limit


def _before(below: Composition, contour: Contour, delta: float, guess: float) -> float:
    """Returns about the largest epsilon at which the lower bound is at least delta; 0 if none is found.

    Guarantee: the lower bound is at least delta at the returned epsilon, unless that is 0.
    """
    if below.delta(0.0, contour).value < delta:
        return _just_before(below, contour, delta, guess)
    root = _root(lambda epsilon: below.delta(epsilon, contour).value, delta, guess, below.largest_loss)
    for step in range(_MOST_NUDGES):
        nudged = root * (1 - 1e-9 * 4.0**step)
        if nudged > 0 and below.delta(nudged, contour).value >= delta:
            return nudged
    return 0.0


def _just_before(below: Composition, contour: Contour, delta: float, guess: float) -> float:
    """Returns the same if the contour gives no useful bound at epsilon 0: searches close to the guess."""
    share = 0.5
    while below.delta(guess * (1 - share), contour).value < delta:
        share /= 2
        if share <= 1e-7:
            return 0.0
    enough, short = 1 - share, 1.0
    for _ in range(_BISECTIONS):
        middle = (enough + short) / 2
        if below.delta(guess * middle, contour).value >= delta:
            enough = middle
        else:
            short = middle
    return guess * enough


def _root(bound: Callable[[float], float], delta: float, guess: float, limit: float) -> float:
    """Returns about where a falling bound crosses delta, between 0 and `limit`. It is not certified: both
    callers check the bound again."""

    def excess(epsilon: float) -> float:
        return math.log(max(bound(epsilon), _LEAST_BOUND) / delta)

    low = high = min(guess, limit)
    for factor in (0.98, 0.8, 0.5, 0.2, 0.02, 0.0):
        if excess(low) > 0:
            break
        low = guess * factor
    for factor in (1.02, 1.2, 2.0, 5.0, 50.0, math.inf):
        if excess(high) <= 0:
            break
        high = min(guess * factor, limit)
    if low >= high or excess(low) <= 0 or excess(high) > 0:
        return high
    return float(
        scipy.optimize.brentq(excess, low, high, xtol=1e-9 * high, rtol=1e-9, maxiter=100, disp=False)
    )


def _shared(delta: float) -> float:
    """Returns the delta whose contour also serves this one: the middle, in logarithms, of its interval."""
    interval = math.floor(math.log10(delta / _SHARED_END) / _SHARED_DECADES)
    return max(_SHARED_END * 10 ** (_SHARED_DECADES * (interval + 0.5)), _LEAST_BOUND)
