"""Plans: rounds that are declared before the first output, and the slot of the plan that a released round
takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from shuffle_ledger.accounting.accountant import Accountant
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import LocalRandomizer
from shuffle_ledger.accounting.rounds.dominance import NESTED, fits
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound
from shuffle_ledger.accounting.validation import MAXIMUM_EPSILON0

_SMALLEST_SUGGESTION = 1e-3  # epsilon0, below which none is suggested
_BISECTIONS = 12  # enough for three significant digits


def largest_common_epsilon0(
    accountant: Accountant, slots: Mapping[ShuffledRound, int], *, epsilon: float, delta: float
) -> float | None:
    """Returns about the largest epsilon0, to three digits, with which all slots together stay within a
    budget.

    The result is None if there is none, or if a slot's randomizer has no single epsilon0.

    Guarantee: the slots with the returned epsilon0 are certified to fit.
    """

    def holds(epsilon0: float) -> bool:
        changed: dict[ShuffledRound, int] = {}
        for slot, count in slots.items():
            one = dataclasses.replace(slot, randomizer=_with(slot.randomizer, epsilon0))
            changed[one] = changed.get(one, 0) + count
        return accountant.certify(changed, delta=delta, budget=epsilon).epsilon_upper <= epsilon

    try:
        low, high = _SMALLEST_SUGGESTION, MAXIMUM_EPSILON0
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


def place(kinds: Sequence[ShuffledRound], claimed: int | None, released: ShuffledRound) -> int | None:
    """Returns the kind of slot that a released round must stand in.

    That is the claimed kind if what was released fits it, else the first in the order of the plan that it
    fits. None means that it fits no kind. Which slots are free does not matter, for that may depend on
    outputs. Chains are verified by this rule: a change of it, or of `fits`, needs its own numerical policy.

    Args:
        kinds: the plan's kinds of slots, in its order.
        claimed: position of the kind that the round claimed when it was admitted; None if nothing admitted
            it.
        released: the round as it was really released.

    Guarantee: if every released round stands in a slot of its kind and each slot holds one round, the
        composition of all slots bounds everything released, however rounds and slots were chosen.
    Source: docs/adaptivity.md, Lemma 8.
    """
    if claimed is not None and fits(released, kinds[claimed]):
        return claimed
    return next((position for position, kind in enumerate(kinds) if fits(released, kind)), None)


def _with(randomizer: LocalRandomizer, epsilon0: float) -> LocalRandomizer:
    if randomizer.kind not in NESTED:
        raise InvalidParameter("epsilon0", randomizer.kind, "randomizers of a single epsilon0")
    return dataclasses.replace(randomizer, epsilon0=epsilon0)
