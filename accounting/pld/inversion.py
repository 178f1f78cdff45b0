"""Where a falling bound on delta crosses the delta that is asked for: certified intervals of epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.pair_bounds import RoundLoss
from shuffle_ledger.accounting.pld.tilting import Contour

# Widths of the smoothing kernels, in units of the root of the precision, tried in turn.
_SMOOTHINGS = (0.5, 0.15, 0.04, 0.01, 0.0025)
# How often a contour is tilted anew, to where the answer turned out to be, and how near is near enough.
_RETILTS = 12
_SETTLED = 1  # steps of the grid of tilts
# Steps beyond a root, each four times the one before, until a bound certainly holds; halvings where there is
# no root to start from; and what a logarithm is taken of where nothing is left.
_NUDGES = 14
_BISECTIONS = 20
_NOTHING = 1e-320
# Halvings that leave nothing between two floats.
_HALVINGS = 60


def epsilon_interval(above: Composition, below: Composition, delta: float, precision: float) -> Interval:
    """Bounds on epsilon at delta: ever less smoothing, until they are as close as was asked or stop closing
    in."""
    if above.infinity >= delta:
        # Where so much certainly is at infinite loss, the exact value is infinite too.
        if below.infinity > delta:
            return Interval(upper=math.inf, lower=math.inf)
        return Interval(upper=math.inf, lower=0.0, truncation=math.inf)
    interval = Interval(upper=above.largest_loss, lower=0.0)
    for smoothing in _SMOOTHINGS:
        found, smoothed = _epsilon_once(above, below, delta, smoothing * math.sqrt(precision))
        interval = interval.intersection(found)
        # Less smoothing helps only while smoothing is what makes the interval wide.
        if interval.is_within(precision) or smoothed < 0.3 * interval.width:
            break
    return interval


def delta_interval(
    above: Composition, below: Composition, epsilon: float, precision: float
) -> tuple[Interval, float]:
    """Bounds on delta at epsilon, likewise, and an upper one at an epsilon larger by the precision."""
    if above.infinity >= 1:
        return Interval(upper=1.0, lower=below.infinity), 1.0  # no loss is finite
    interval, later = Interval(upper=1.0, lower=0.0), 1.0
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
        if is_precise_delta(interval, later, precision):
            break
    return interval, later


def is_precise_delta(interval: Interval, later: float, precision: float) -> bool:
    """Whether bounds on delta are as close as the precision of epsilon makes them, or that of delta itself:
    the lower one is no less than an upper one at an epsilon larger by it, but for that share."""
    return interval.lower >= min(later, interval.upper) * (1 - precision)


def pair_delta(loss: RoundLoss, epsilon: float) -> Interval:
    """Bounds on the delta of a single round at epsilon by its two pairs as they stand."""
    upper = min(loss.upper.divergence_bound(epsilon), 1.0)
    return Interval(upper=upper, lower=min(loss.lower.divergence_bound(epsilon), upper))


def pair_epsilon(loss: RoundLoss, delta: float) -> Interval:
    """Bounds on the epsilon of a single round at delta by its two pairs as they stand, which no kernel
    smooths."""
    upper = _first(lambda epsilon: loss.upper.divergence_bound(epsilon) <= delta, loss.upper.largest_loss)[1]
    lower = _first(lambda epsilon: loss.lower.divergence_bound(epsilon) < delta, loss.lower.largest_loss)[0]
    if loss.lower.infinity > delta:
        return Interval(upper=math.inf, lower=math.inf)
    if loss.upper.infinity >= delta:
        return Interval(upper=math.inf, lower=lower, truncation=math.inf)
    return Interval(upper=upper, lower=min(lower, upper))


def _first(holds: Callable[[float], bool], high: float) -> tuple[float, float]:
    """Two neighbouring numbers from 0 to `high`, of which the second one holds, as the last one is taken to,
    and the first does not but if it is 0."""
    low = 0.0
    if holds(low):
        return 0.0, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _epsilon_once(
    above: Composition, below: Composition, delta: float, smoothing: float
) -> tuple[Interval, float]:
    """Bounds on epsilon at delta from one smoothing, and how much of their distance is smoothing.

    Tilts to a guess, and again if the answer turns out elsewhere.
    """
    guess = min(_gaussian_epsilon(above.variance, delta), above.largest_loss / 2)
    upper = above.largest_loss
    contour = above.contour(guess, smoothing)
    for _ in range(_RETILTS):
        found = _beyond(above, contour, delta, guess)
        upper = min(upper, found)
        guess, before = found, contour
        contour = above.contour(guess, smoothing)
        if abs(contour.tilt - before.tilt) <= _SETTLED:
            contour = before
            break
    if upper == 0:
        return Interval(upper=0.0, lower=0.0), 0.0
    lower = _before(below, below.widened(upper, contour), delta, upper)
    at, nearby = above.delta(upper, contour), above.delta(upper * (1 - 1e-3), contour)
    slope = max((nearby.value - at.value) / (1e-3 * upper), 1e-6 * delta / upper)
    causes = {"truncation": at.truncation / slope, "round_off": 2 * at.round_off / slope}
    return Interval(upper=upper, lower=min(lower, upper), **causes), 2 * at.smoothing / slope


def _beyond(above: Composition, contour: Contour, delta: float, guess: float) -> float:
    """An epsilon, near the smallest, at which the upper bound is at most delta; 0 and the largest loss are
    candidates."""
    limit = above.largest_loss
    if above.delta(0.0, contour).value <= delta:
        return 0.0
    root = _root(lambda epsilon: above.delta(epsilon, contour).value, delta, guess, limit)
    for step in range(_NUDGES):
        nudged = root * (1 + 1e-9 * 4.0**step)
        if nudged >= limit:
            break
        if above.delta(nudged, contour).value <= delta:
            return nudged
    return limit


def _before(below: Composition, contour: Contour, delta: float, guess: float) -> float:
    """An epsilon, near the largest, at which the lower bound is at least delta; 0 when none is found."""
    if below.delta(0.0, contour).value < delta:
        return _just_before(below, contour, delta, guess)
    root = _root(lambda epsilon: below.delta(epsilon, contour).value, delta, guess, below.largest_loss)
    for step in range(_NUDGES):
        nudged = root * (1 - 1e-9 * 4.0**step)
        if nudged > 0 and below.delta(nudged, contour).value >= delta:
            return nudged
    return 0.0


def _just_before(below: Composition, contour: Contour, delta: float, guess: float) -> float:
    """The same where the tilt, which suits the answer, says nothing at 0: look close to the guess."""
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
    """About where a falling bound crosses delta, between 0 and `limit`. Nothing rests on it: both sides look
    again."""

    def excess(epsilon: float) -> float:
        return math.log(max(bound(epsilon), _NOTHING) / delta)

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


def _gaussian_epsilon(variance: float, delta: float) -> float:
    """Where a Gaussian privacy loss of this variance would have delta: a place to start from."""
    return variance / 2 + math.sqrt(2 * variance * max(-math.log(delta) - 1, 0.1))
