"""The declared grid of round parameters: rounds that differ by less than a percent share one privacy loss."""

from __future__ import annotations

import dataclasses
import math

from shuffle_ledger.accounting.certificate import NUMERICAL_POLICY, is_known_policy
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import Declared
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, certain_round, honest_share

#: Neighbouring grid points are this factor apart.
GRID_RATIO = 1.01
# Below this many reports every number of reports is a grid point of its own.
_EXACT_REPORTS = 100


def slot_for(shuffled: ShuffledRound, *, numerical_policy: str = NUMERICAL_POLICY) -> ShuffledRound:
    """The grid point that a round is accounted as: fewer reports, a higher sampling rate, each by less than 1
    %.

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
    if not is_known_policy(numerical_policy):
        raise InvalidParameter("numerical_policy", numerical_policy, f"at most {NUMERICAL_POLICY}")
    shuffled = certain_round(shuffled)
    if isinstance(shuffled.randomizer, Declared) and shuffled.sampled_from is None:
        return dataclasses.replace(shuffled, reports=1)  # what is declared does not depend on their number
    reports = _grid_below(shuffled.reports)
    if honest_share(shuffled.honest_fraction, reports) < shuffled.randomizer.minimum_honest:
        return shuffled  # rounding down would leave too few honest
    if shuffled.sampled_from is not None and shuffled.honest_fraction < 1:
        return shuffled  # how many honest users are sampled varies: no ordering of such rounds is known
    if shuffled.participation is not None:
        return dataclasses.replace(
            shuffled, reports=reports, participation=_rate_above(shuffled.participation)
        )
    if shuffled.sampled_from is None:
        return dataclasses.replace(shuffled, reports=reports)
    rate = _rate_above(shuffled.reports / shuffled.sampled_from)
    population = math.floor(reports / rate)
    # In integers, so that no rounding decides: reports / population is at least the round's own rate.
    while population * shuffled.reports > reports * shuffled.sampled_from:
        population -= 1
    return dataclasses.replace(shuffled, reports=reports, sampled_from=max(population, reports))


def _rate_above(rate: float) -> float:
    """The smallest grid point that is at least `rate`; 1 is one."""
    step = math.log(GRID_RATIO)
    return max(rate, math.exp(-step * math.floor(-math.log(rate) / step * (1 - 1e-12))))


def _grid_below(count: int) -> int:
    """The largest grid point that is at most `count`."""
    if count <= _EXACT_REPORTS:
        return count
    step = math.floor(math.log(count / _EXACT_REPORTS) / math.log(GRID_RATIO)) + 1
    while (point := math.floor(_EXACT_REPORTS * GRID_RATIO**step)) > count:
        step -= 1
    return point
