"""The round that a settlement charges: one pure rule for settlement and for verification."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

from shuffle_ledger.accounting import InvalidParameter, ShuffledRound, honest_share, slot_for
from shuffle_ledger.ledger.decisions.truths import alone

_Slotted: TypeAlias = Callable[[ShuffledRound], ShuffledRound]  # the slot rule of a numerical policy


def really_shuffled(
    accounted: ShuffledRound, declared: ShuffledRound, reports: int, *, numerical_policy: str
) -> ShuffledRound:
    """Return the round to charge when `reports` reports arrived.

    Args:
        accounted: what the round was charged when it was admitted.
        declared: the round as it was registered.
        reports: the reports that arrived, in the unit of the registration.
        numerical_policy: the policy of the settlement's entry; its slot rule applies.

    **Guarantee**: the answer dominates what happened. Users who were sampled and dropped out were at risk all
    the same, so the sampling rate stays (up to rounding up): the smaller sample's own rate would make a round
    cheaper because reports were lost.

    Raises:
        InvalidParameter: no known policy.
    """
    slotted = functools.partial(slot_for, numerical_policy=numerical_policy)
    if accounted.honest_fraction != declared.honest_fraction:
        return _of_so_many_honest(accounted, honest_share(declared.honest_fraction, reports), slotted)
    if reports >= accounted.reports:
        return _at_rate(accounted, declared, reports, slotted)
    fewer = accounted.to_mapping() | {"reports": reports}
    if accounted.sampled_from is not None:
        fewer["sampled_from"] = accounted.sampled_from * reports // accounted.reports
    try:
        return slotted(ShuffledRound.from_mapping(fewer))
    except InvalidParameter:
        return alone(accounted)


def _at_rate(
    accounted: ShuffledRound, declared: ShuffledRound, reports: int, slotted: _Slotted
) -> ShuffledRound:
    """Return what dominates at least as many reports as were accounted: of a larger sample, its own slot."""
    if declared.sampled_from is None or reports <= declared.reports:
        return accounted
    larger = {"reports": reports, "sampled_from": max(declared.sampled_from, reports)}
    return slotted(ShuffledRound.from_mapping(declared.to_mapping() | larger))


def _of_so_many_honest(accounted: ShuffledRound, honest: int, slotted: _Slotted) -> ShuffledRound:
    """Return what dominates a round in a plan's slot that counts another share of the reports as honest.

    Only the number of honest reports means the same in both; nothing is sampled there, or it would not fit.
    """
    if honest >= accounted.honest_reports:
        return accounted
    try:
        return slotted(dataclasses.replace(accounted, reports=honest, honest_fraction=1.0))
    except InvalidParameter:
        return alone(accounted)
