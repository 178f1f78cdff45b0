"""The grid of round parameters: a round is accounted as its slot on the grid, so that rounds that differ by
less than 1 % share one privacy loss."""

from __future__ import annotations

import dataclasses
import math

from shuffle_ledger.accounting.randomizers import WholeRelease
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet
from shuffle_ledger.accounting.rounds.shuffled_round import (
    ShuffledRound,
    certain_round,
    charged_as,
    fewest_reports,
)

#: Ratio of neighbouring grid points.
GRID_RATIO = 1.01
# Up to this number of reports every number is a grid point.
_EXACT_REPORTS = 100


def slot_for(shuffled: ShuffledRound) -> ShuffledRound:
    """Returns the slot of a round, the grid point as which it is accounted: fewer honest reports and a higher
    sampling rate, each by less than 1 % (or by one user). The slot of a grid point is the point itself.

    Guarantee: the slot's pair dominates the round's. Without sampling, a round of more reports is a
    post-processing of one of fewer, in which the missing users are simulated; if all users contribute noise,
    more users make more noise. With sampling without replacement, the same holds at a fixed rate, and the
    divergence grows with the rate. With several reports of a user, the rounds that it is charged as become
    slots. With Poisson participation, the same holds, and a higher rate can be
    thinned.
    Source: docs/theory/rounds-and-samples.md, S8.

    Raises:
        InvalidParameter: `shuffled` is not a round.
    """
    shuffled = certain_round(shuffled)
    if shuffled.reports_per_user > 1:
        return _slot_of_several(shuffled)
    if isinstance(shuffled.randomizer, MixedFleet):
        return shuffled  # no group may be rounded alone: its number is the randomizer's
    if isinstance(shuffled.randomizer, WholeRelease) and shuffled.sampled_from is None:
        return dataclasses.replace(shuffled, reports=1)  # nothing depends on their number
    if shuffled.sampled_from is not None:
        return _sampled_slot(shuffled, shuffled.sampled_from)
    # Only honest reports matter: the fewest reports with the grid's number of honest ones.
    reports = fewest_reports(_grid_below(shuffled.honest_reports), shuffled.honest_fraction)
    if shuffled.participation is None:
        return dataclasses.replace(shuffled, reports=reports)
    participation = _rate_above(shuffled.participation)
    return dataclasses.replace(shuffled, reports=reports, participation=participation)


def _slot_of_several(shuffled: ShuffledRound) -> ShuffledRound:
    """Returns the round of fewest reports that is charged as the slots of the rounds that this one is charged
    as. It is not sampled, since sampling earns no credit."""
    single, count = charged_as(shuffled)
    honest = count * slot_for(single).honest_reports
    reports = min(fewest_reports(honest, shuffled.honest_fraction), shuffled.reports)
    return dataclasses.replace(shuffled, reports=reports, sampled_from=None)


def _sampled_slot(shuffled: ShuffledRound, population: int) -> ShuffledRound:
    """Returns a slot with reports on the grid, and with the population on a grid of sampling rates, rounded
    down to whole users."""
    if shuffled.honest_fraction < 1:
        return shuffled  # the number of sampled honest users is random: no order of such rounds is known
    reports = _grid_below(shuffled.reports)
    # In integers, so that no rounding decides: the slot's rate is at least the round's rate.
    at_rate = reports * population // shuffled.reports
    return dataclasses.replace(shuffled, reports=reports, sampled_from=_grid_below(at_rate, reports))


def _rate_above(rate: float) -> float:
    """Returns the smallest grid point that is at least `rate`; 1 is a grid point."""
    ratio = math.log(GRID_RATIO)
    step = math.floor(-math.log(rate) / ratio) + 1
    while (point := math.exp(-ratio * step)) < rate:
        step -= 1
    return point


def _grid_below(count: int, least: int = _EXACT_REPORTS) -> int:
    """Returns the largest grid point that is at most `count`, of the grid that begins with `least`."""
    if count <= least:
        return count
    step = math.floor(math.log(count / least) / math.log(GRID_RATIO)) + 2
    while (point := math.floor(least * GRID_RATIO**step)) > count:
        step -= 1
    return point
