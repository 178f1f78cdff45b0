"""Narrowing of a single round's interval by the round's own profile, which no lattice has widened."""

from __future__ import annotations

import math

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.numeric.effort import MOST_EFFORT, counted
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

# Smoothing of the round's profile, in units of the root of the precision.
_SHARP_SMOOTHING = 0.1
# Points of one search within the interval.
_SEARCH_POINTS = 17
# Number of searches, and the most while the interval is wider than asked.
_FEWEST_SEARCHES = 2
_MOST_SEARCHES = 5
# There are no more searches after about this many array elements.
_MOST_SHARP_EFFORT = MOST_EFFORT / 8
# Smallest delta for which lists of outcomes are used: they leave out improbable outcomes.
_LEAST_LISTED_DELTA = 1e6 * NEGLIGIBLE_DELTA


def sharpened_delta(
    shuffled: ShuffledRound, interval: Interval, epsilon: float, precision: float
) -> Interval:
    """Returns the interval of delta at `epsilon`, intersected with bounds on the round's own profile."""
    if shuffled.certain_reports is None:  # orders of a mixture are expensive
        return interval
    profile = RoundProfile(shuffled, smoothing=_SHARP_SMOOTHING * math.sqrt(precision))
    if epsilon >= profile.end:
        return interval
    bounds = profile.at(np.array([epsilon]))
    return interval.intersection(Interval(upper=float(bounds.upper[0]), lower=float(bounds.lower[0])))


def sharpened_epsilon(
    shuffled: ShuffledRound, interval: Interval, delta: float, precision: float
) -> Interval:
    """Returns the interval of epsilon at `delta`, narrowed by the round's own profile at points inside it."""
    if interval.lower == interval.upper or shuffled.certain_reports is None:
        return interval
    profile = RoundProfile(
        shuffled, smoothing=_SHARP_SMOOTHING * math.sqrt(precision), listed=delta > _LEAST_LISTED_DELTA
    )
    upper, lower = min(interval.upper, profile.largest_loss), interval.lower
    if not lower < upper < math.inf:
        return interval
    spent = 0.0
    for number in range(_MOST_SEARCHES):
        if upper - lower <= precision * upper and number >= _FEWEST_SEARCHES:
            break
        if spent > _MOST_SHARP_EFFORT:
            break
        points = np.linspace(lower, upper, _SEARCH_POINTS)
        with counted() as effort:
            bounds = profile.at(points)
        spent += effort.spent
        enough = np.flatnonzero(bounds.upper <= delta)
        needed = np.flatnonzero(bounds.lower >= delta)
        upper = min(upper, float(points[enough[0]])) if enough.size else upper
        lower = max(lower, float(points[needed[-1]])) if needed.size else lower
    lower = min(lower, upper)
    causes = {
        cause: min(getattr(interval, cause), (upper - lower) / 2) for cause in ("truncation", "round_off")
    }
    return Interval(upper=upper, lower=lower, **causes)
