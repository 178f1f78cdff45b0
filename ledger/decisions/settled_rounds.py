"""The round that a settlement charges: one pure rule for settlement and for verification."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

from shuffle_ledger.accounting import (
    InvalidParameter,
    ShuffledRound,
    fits,
    has_fixed_points,
    honest_share,
    slot_for,
)
from shuffle_ledger.ledger.decisions.truths import alone, truth_of

_Slotted: TypeAlias = Callable[[ShuffledRound], ShuffledRound]  # the slot rule of a numerical policy


def really_shuffled(
    accounted: ShuffledRound, declared: ShuffledRound, reports: int, *, numerical_policy: str
) -> ShuffledRound:
    """Return the round to charge when `reports` reports arrived.

    If the accounted round dominates the round that arrived, it stays charged. Otherwise the charge is the
    slot, rounded once, of the declared round with the reports that arrived.

    Args:
        accounted: the round that was charged at admission.
        declared: the round as it was registered.
        reports: the reports that arrived, in the unit of the registration.
        numerical_policy: the policy of the settlement's entry; its slot rule applies, and older ones make the
            slot of a slot.

    **Guarantee**: the answer dominates what happened. Users who were sampled and dropped out were at risk all
    the same, so the sampling rate stays (up to rounding up): the smaller sample's own rate would make a round
    cheaper because reports were lost.

    Raises:
        InvalidParameter: no known policy.
    """
    slotted = functools.partial(slot_for, numerical_policy=numerical_policy)
    if not has_fixed_points(numerical_policy):
        return _slot_of_slot(accounted, declared, reports, slotted)
    if declared.reports_per_user > 1:
        truth = truth_of(declared, reports)
        return accounted if fits(truth, accounted) else slotted(truth)
    if _is_covered(accounted, declared, reports):
        return accounted
    return slotted(truth_of(declared, reports))


def _is_covered(accounted: ShuffledRound, declared: ShuffledRound, reports: int) -> bool:
    """Returns whether the charge of the declared round covers it with `reports` reports."""
    if declared.sampled_from is None or accounted.sampled_from is None:
        # After a correction, both may count another share of their reports as honest.
        honest = honest_share(declared.honest_fraction, reports)
        are_enough = reports >= accounted.reports and honest >= accounted.honest_reports
        return declared.sampled_from is None and are_enough
    if declared.honest_fraction < 1:
        return accounted == declared and reports == declared.reports
    # The rate at which users were at risk, in integers: with fewer reports than declared it is that declared.
    sample = max(reports, declared.reports)
    population = max(reports, declared.sampled_from)
    no_higher = sample * accounted.sampled_from <= accounted.reports * population
    return no_higher and reports >= accounted.reports


def _slot_of_slot(
    accounted: ShuffledRound, declared: ShuffledRound, reports: int, slotted: _Slotted
) -> ShuffledRound:
    """Return the round to charge by the rule of older policies."""
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
