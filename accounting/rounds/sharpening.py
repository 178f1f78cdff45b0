"""Narrows a single round's interval by the round's own profile."""

from __future__ import annotations

import math

import numpy as np

from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA
from shuffle_ledger.accounting.rounds.shuffled_round import RoundProfile, ShuffledRound

# A single round's answer is narrowed by its own profile, at this many points, this often at least.
_SHARP = 0.1
_SHARP_MIXED = 0.3  # where chance decides how many are honest
_SHARP_POINTS = 17
_FEW_POINTS = 9
_SHARPENINGS = 2
_MOST_SHARPENINGS = 5  # while the answer is wider than asked
# Deltas of which lists of outcomes, which leave hardly probable ones out, say nothing.
_UNLISTED = 1e6 * NEGLIGIBLE_DELTA


def sharpened_delta(
    shuffled: ShuffledRound, interval: Interval, epsilon: float, precision: float
) -> Interval:
    """The interval intersected with the round's own profile, which no lattice has widened."""
    profile = RoundProfile(shuffled, smoothing=_SHARP * math.sqrt(precision))
    if not profile.is_simple or epsilon >= profile.end:
        return interval
    bounds = profile.at(np.array([epsilon]))
    return interval.intersection(Interval(upper=float(bounds.upper[0]), lower=float(bounds.lower[0])))


def sharpened_epsilon(
    shuffled: ShuffledRound, interval: Interval, delta: float, precision: float
) -> Interval:
    """The interval narrowed by the round's own profile at points inside it."""
    if interval.lower == interval.upper:
        return interval
    profile = RoundProfile(shuffled, smoothing=_SHARP * math.sqrt(precision), listed=delta > _UNLISTED)
    upper, lower = min(interval.upper, profile.largest_loss), interval.lower
    if not lower < upper < math.inf:
        return interval
    simple = profile.is_simple
    if not simple:  # orders of a mixture cost much
        if interval.is_within(precision):
            return interval
        profile = RoundProfile(shuffled, smoothing=_SHARP_MIXED * math.sqrt(precision))
    for number in range(_MOST_SHARPENINGS):
        if upper - lower <= precision * upper and (not simple or number >= _SHARPENINGS):
            break
        points = np.linspace(lower, upper, _SHARP_POINTS if simple else _FEW_POINTS)
        bounds = profile.at(points)
        enough = np.flatnonzero(bounds.upper <= delta)
        needed = np.flatnonzero(bounds.lower >= delta)
        upper = min(upper, float(points[enough[0]])) if enough.size else upper
        lower = max(lower, float(points[needed[-1]])) if needed.size else lower
    lower = min(lower, upper)
    causes = {
        cause: min(getattr(interval, cause), (upper - lower) / 2) for cause in ("truncation", "round_off")
    }
    return Interval(upper=upper, lower=lower, **causes)
