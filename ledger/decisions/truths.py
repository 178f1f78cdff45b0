"""Rounds as they were released: the declared ones, with the number of reports that were shuffled."""

from __future__ import annotations

import dataclasses

from shuffle_ledger.accounting import InvalidParameter, ShuffledRound, parse_randomizer

# The report is the user's value: no round reveals more.
_IN_CLEAR = ShuffledRound(randomizer=parse_randomizer("table([[1, 0], [0, 1]])"), reports=1)


def truth_of(declared: ShuffledRound, reports: int) -> ShuffledRound:
    """Return the declared round with the number of reports that were really shuffled.

    A sampled user who sent nothing was at risk all the same: with fewer reports than declared the sampling
    rate stays (rounded up), with more it rises.

    Guarantee: it dominates what was released, if the round was what was declared but for the number of
        reports.
    """
    changes = {"reports": reports}
    if declared.sampled_from is not None:
        rate_stays = declared.sampled_from * reports // declared.reports
        changes["sampled_from"] = min(rate_stays, max(declared.sampled_from, reports))
    try:
        return ShuffledRound.from_mapping(declared.to_mapping() | changes)
    except InvalidParameter:
        return alone(declared)


def alone(shuffled: ShuffledRound) -> ShuffledRound:
    """Return what to charge where too few reports arrived for another honest one to hide the user."""
    try:
        return dataclasses.replace(shuffled, reports=1, sampled_from=None, honest_fraction=1.0)
    except InvalidParameter:
        return _IN_CLEAR  # a protocol that promises nothing for one user alone
