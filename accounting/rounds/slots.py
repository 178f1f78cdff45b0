"""The declared grid of round parameters: rounds that differ by less than a percent share one privacy loss."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from shuffle_ledger.accounting.certificate import NUMERICAL_POLICY, is_known_policy
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import WholeRelease
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, certain_round, honest_share

#: Neighbouring grid points are this factor apart.
GRID_RATIO = 1.01
# Below this many reports every number of reports is a grid point of its own.
_EXACT_REPORTS = 100
# The last policy under which slots of slots were coarser still, and few honest users could become fewer.
_LAST_WITHOUT_FIXED_POINTS = 21


def slot_for(shuffled: ShuffledRound, *, numerical_policy: str = NUMERICAL_POLICY) -> ShuffledRound:
    """The grid point that a round is accounted as: fewer honest reports, a higher sampling rate, each by less
    than 1 % (or one user). A grid point is its own slot.

    Guarantee: the slot's pair dominates the round's. Unsampled: a round of more reports is a post-processing
    of one of fewer, in which the missing users are simulated; where users make noise together, more of them
    make more. Sampled without replacement: likewise at a fixed rate, and the divergence grows with the rate.
    Poisson participation: likewise, and a higher rate can be thinned.
    Source: docs/theory.md, "The slot rule".

    Args:
        shuffled: the round as declared.
        numerical_policy: the policy whose slot rule applies; entries keep the rule they were written under.

    Raises:
        InvalidParameter: no round is given, or no known policy.
    """
    fixed_points = has_fixed_points(numerical_policy)
    shuffled = certain_round(shuffled)
    if isinstance(shuffled.randomizer, WholeRelease) and shuffled.sampled_from is None:
        return dataclasses.replace(shuffled, reports=1)  # nothing depends on their number
    if not fixed_points:
        return _slot_before(shuffled)
    if shuffled.sampled_from is not None:
        return _sampled_slot(shuffled, shuffled.sampled_from)
    # Only honest reports count: the fewest reports of which as many are honest as the grid says.
    honest = _grid_below(shuffled.honest_reports)
    reports = math.ceil(honest / Fraction(repr(shuffled.honest_fraction)))
    if shuffled.participation is None:
        return dataclasses.replace(shuffled, reports=reports)
    participation = _rate_above(shuffled.participation)
    return dataclasses.replace(shuffled, reports=reports, participation=participation)


def has_fixed_points(numerical_policy: str) -> bool:
    """Whether by the slot rule of a numerical policy every slot is its own slot.

    Raises:
        InvalidParameter: no known policy.
    """
    if not is_known_policy(numerical_policy):
        raise InvalidParameter("numerical_policy", numerical_policy, f"at most {NUMERICAL_POLICY}")
    return int(numerical_policy.rpartition("-")[2]) > _LAST_WITHOUT_FIXED_POINTS


def _sampled_slot(shuffled: ShuffledRound, population: int) -> ShuffledRound:
    """Reports on the grid, and the population on one of rates from theirs on, rounded down to whole users."""
    if shuffled.honest_fraction < 1:
        return shuffled  # how many honest users are sampled varies: no ordering of such rounds is known
    reports = _grid_below(shuffled.reports)
    # In integers, so that no rounding decides: the slot's rate is at least the round's own.
    at_rate = reports * population // shuffled.reports
    return dataclasses.replace(shuffled, reports=reports, sampled_from=_grid_below(at_rate, reports))


def _slot_before(shuffled: ShuffledRound) -> ShuffledRound:
    """The slot by the rule of older policies. Slots of participation or sampling are not their own."""
    reports = _grid_below(shuffled.reports)
    if honest_share(shuffled.honest_fraction, reports) < shuffled.randomizer.minimum_honest:
        return shuffled  # rounding down would leave too few honest
    if shuffled.sampled_from is not None and shuffled.honest_fraction < 1:
        return shuffled
    if shuffled.participation is not None:
        participation = _rate_above_before(shuffled.participation)
        return dataclasses.replace(shuffled, reports=reports, participation=participation)
    if shuffled.sampled_from is None:
        return dataclasses.replace(shuffled, reports=reports)
    rate = _rate_above_before(shuffled.reports / shuffled.sampled_from)
    population = math.floor(reports / rate)
    while population * shuffled.reports > reports * shuffled.sampled_from:
        population -= 1
    return dataclasses.replace(shuffled, reports=reports, sampled_from=max(population, reports))


def _rate_above(rate: float) -> float:
    """The smallest grid point that is at least `rate`; 1 is one."""
    ratio = math.log(GRID_RATIO)
    step = math.floor(-math.log(rate) / ratio) + 1
    while (point := math.exp(-ratio * step)) < rate:
        step -= 1
    return point


def _rate_above_before(rate: float) -> float:
    """A rate at least `rate`, by the rule of older policies: of a grid point the next one."""
    step = math.log(GRID_RATIO)
    return max(rate, math.exp(-step * math.floor(-math.log(rate) / step * (1 - 1e-12))))


def _grid_below(count: int, least: int = _EXACT_REPORTS) -> int:
    """The largest grid point that is at most `count`, of the grid that begins with `least`."""
    if count <= least:
        return count
    step = math.floor(math.log(count / least) / math.log(GRID_RATIO)) + 2
    while (point := math.floor(least * GRID_RATIO**step)) > count:
        step -= 1
    return point
