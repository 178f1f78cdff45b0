"""Rules that decide, without computation, that one round dominates another. Plans use them."""

from __future__ import annotations

import dataclasses

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import LocalGaussian, WholeRelease
from shuffle_ledger.accounting.randomizers.base import BINARY_RESPONSE, BLANKET, EXACT, DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.generic import CLONE, of_any_order
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, certain_round, charged_as

# Randomizers of which a smaller epsilon0 is a post-processing of a larger one, report by report.
NESTED = frozenset(
    {
        *("generic", "krr", "blh", "rappor", "oue", "hadamard", "laplace"),
        *("bounded_laplace", "duchi"),
        *("olh", "subset", "block_hadamard", "bloom_rappor", "cms", "hcms"),
    }
)


def fits(described: ShuffledRound, slot: ShuffledRound) -> bool:
    """Returns whether one of a few rules proves that a slot's pair, with its slack, dominates a round.

    False means that no rule proves it; the slot may still dominate the round. Slack needs no comparison: the
    round is a post-processing of a mechanism that the slot describes, and the slot's slack bounds every one
    of those.

    Guarantee: if True, everything that the round reveals is a post-processing of what the slot was charged
    for.
    Source: docs/adaptivity.md, "What fits a slot".

    Raises:
        InvalidParameter: one of the two is not a `ShuffledRound`.
    """
    described, slot = certain_round(described), certain_round(slot)
    if described.reports_per_user > 1 or slot.reports_per_user > 1:
        return _is_no_more_often(described, slot)
    if slot.analysis == CLONE and described.analysis != CLONE:
        found = _in_any_order(described)
        return found is not None and fits(found, slot)
    return described == slot or (
        _is_analysed_as(described, slot)
        and described.delta0 <= slot.delta0
        and _is_nested(described, slot)
        and _hides_as_many(described, slot)
    )


def _is_analysed_as(described: ShuffledRound, slot: ShuffledRound) -> bool:
    """Returns whether what bounds the slot bounds rounds of the analysis of `described`.

    `blanket`, `exact` and `binary-response` bound the same divergences, those of all neighbouring datasets.
    """
    alike = {EXACT, BINARY_RESPONSE, BLANKET}
    of_reports = isinstance(described.randomizer, DecomposedRandomizer)
    return described.analysis == slot.analysis or (
        of_reports and {described.analysis, slot.analysis} <= alike
    )


def _is_no_more_often(described: ShuffledRound, slot: ShuffledRound) -> bool:
    """Returns whether the rounds that a round is charged as fit, one by one, those of a slot. The numbers of
    reports per user are compared as well, which a local budget counts."""
    (inner, often), (outer, count) = charged_as(described), charged_as(slot)
    is_fewer = described.reports_per_user <= slot.reports_per_user and often <= count
    return is_fewer and fits(inner, outer)


def _in_any_order(described: ShuffledRound) -> ShuffledRound | None:
    """Returns the round bounded by `clone` of which this round of one randomizer on all devices is a special
    case; None if there is none."""
    try:
        return dataclasses.replace(described, randomizer=of_any_order(described.randomizer), analysis=CLONE)
    except InvalidParameter:
        return None


def _hides_as_many(described: ShuffledRound, slot: ShuffledRound) -> bool:
    modes = (described.sampled_from is None, described.participation is None)
    if modes != (slot.sampled_from is None, slot.participation is None):
        return False
    if isinstance(slot.randomizer, WholeRelease) and slot.sampled_from is None:
        return True  # nothing depends on the number of reports
    if described.sampled_from is not None and slot.sampled_from is not None:
        # In integers: the sampling rate may not be higher, and the sample not smaller.
        lower_rate = described.reports * slot.sampled_from <= slot.reports * described.sampled_from
        all_honest = described.honest_fraction == slot.honest_fraction == 1
        return all_honest and lower_rate and described.reports >= slot.reports
    if (described.participation or 0.0) > (slot.participation or 0.0):
        return False
    return described.honest_reports >= slot.honest_reports


def _is_nested(described: ShuffledRound, slot: ShuffledRound) -> bool:
    inner, outer = described.randomizer, slot.randomizer
    if inner == outer:
        return True
    if isinstance(inner, WholeRelease) and isinstance(outer, WholeRelease):
        return outer.covers(inner)
    if isinstance(inner, LocalGaussian) and isinstance(outer, LocalGaussian):
        return outer.covers(inner)
    if type(inner) is not type(outer) or inner.kind not in NESTED:
        return False
    for field in dataclasses.fields(inner):
        here, there = getattr(inner, field.name), getattr(outer, field.name)
        if here == there or (field.name == "epsilon0" and here <= there):
            continue
        # More categories are a post-processing: the law of every other report is mixed with its mean.
        if field.name == "k" and slot.analysis == BLANKET and here >= there:
            continue
        return False
    return True
