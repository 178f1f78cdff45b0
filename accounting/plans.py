"""Plans: rounds declared before the first output is seen, and which rounds may take their places."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from accounting.accountant import Accountant
from accounting.checks import MAXIMUM_EPSILON0
from accounting.errors import InvalidParameter
from accounting.randomizers import LocalRandomizer
from accounting.shuffling import ShuffledRound

# Randomizers of which a smaller epsilon0 is a post-processing of a larger one, report by report.
_NESTED = frozenset({"generic", "krr", "blh", "rappor", "oue", "hadamard", "laplace"})
_SMALLEST_EPSILON0 = 1e-3
_BISECTIONS = 12


def fits(described: ShuffledRound, slot: ShuffledRound) -> bool:
    """Whether a slot's pair, with its slack, dominates a round, by one of a few rules.

    False means that no rule says so, not that it does not.

    Guarantee: where True, whatever the round reveals is a post-processing of what the slot was charged for.
    Source: docs/adaptivity.md, "What fits a slot".
    """
    return described == slot or (
        described.analysis == slot.analysis
        and described.slack <= slot.slack
        and described.delta0 <= slot.delta0
        and _is_nested(described, slot)
        and _hides_as_many(described, slot)
    )


def _hides_as_many(described: ShuffledRound, slot: ShuffledRound) -> bool:
    modes = (described.sampled_from is None, described.participation is None)
    if modes != (slot.sampled_from is None, slot.participation is None):
        return False
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
    if type(inner) is not type(outer) or inner.kind not in _NESTED:
        return False
    for field in dataclasses.fields(inner):
        here, there = getattr(inner, field.name), getattr(outer, field.name)
        if here == there or (field.name == "epsilon0" and here <= there):
            continue
        # More categories: the law of every other report is mixed with its own mean.
        if field.name == "k" and slot.analysis == "blanket" and here >= there:
            continue
        return False
    return True


def largest_common_epsilon0(
    accountant: Accountant, slots: Mapping[ShuffledRound, int], *, epsilon: float, delta: float
) -> float | None:
    """The largest epsilon0, to three digits or so, with which all slots together stay within a budget.

    None when none does, or when a slot's randomizer has no single epsilon0. The answer was itself certified
    to fit.
    """

    def holds(epsilon0: float) -> bool:
        changed: dict[ShuffledRound, int] = {}
        for slot, count in slots.items():
            one = dataclasses.replace(slot, randomizer=_with(slot.randomizer, epsilon0))
            changed[one] = changed.get(one, 0) + count
        return accountant.certify(changed, delta=delta).epsilon_upper <= epsilon

    try:
        low, high = _SMALLEST_EPSILON0, MAXIMUM_EPSILON0
        if not holds(low):
            return None
        if holds(high):
            return high
        for _ in range(_BISECTIONS):
            middle = float(f"{math.sqrt(low * high):.3g}")
            low, high = (middle, high) if holds(middle) else (low, middle)
    except (InvalidParameter, TypeError):
        return None
    return low


def _with(randomizer: LocalRandomizer, epsilon0: float) -> LocalRandomizer:
    if randomizer.kind not in _NESTED:
        raise InvalidParameter("epsilon0", randomizer.kind, "randomizers of a single epsilon0")
    return dataclasses.replace(randomizer, epsilon0=epsilon0)
