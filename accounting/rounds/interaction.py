"""Whether all devices of a round run one randomizer, or each its own, which depends on earlier messages"""

from __future__ import annotations

from typing import Final

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import Generic, LocalRandomizer, WholeRelease
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.composite import knows_generic

IDENTICAL: Final = "identical"
SEQUENTIAL: Final = "sequential"
#: Of rounds that were written down before rounds declared it; they were accounted as identical.
UNDECLARED: Final = "undeclared"
#: The only bound that is published for sequential rounds.
SEQUENTIAL_ANALYSIS: Final = "clone"


def chosen_interaction(given: object, analysis: object, randomizer: LocalRandomizer) -> str:
    """The interaction that a round has, from the one it is given, None if none.

    A randomizer of which a part is `generic` may be anything: without a word its rounds are `sequential`, for
    which the bound holds either way. An analysis that only identical randomizers have asks for these.

    Raises:
        InvalidParameter: it is none of the three.
    """
    if given is None:
        is_open = isinstance(randomizer, DecomposedRandomizer) and knows_generic(randomizer)
        return SEQUENTIAL if is_open and analysis in (None, SEQUENTIAL_ANALYSIS) else IDENTICAL
    if given not in (IDENTICAL, SEQUENTIAL, UNDECLARED):
        raise InvalidParameter("interaction", given, f"{IDENTICAL} or {SEQUENTIAL}")
    return str(given)


def in_sequence(randomizer: LocalRandomizer) -> Generic:
    """What a sequential round of a randomizer is accounted as: nothing but the local privacy is known of each
    device's.

    Source: Feldman, McMillan, Talwar, Theorem 3.2; docs/theory.md, section 6, "Sequential rounds".

    Raises:
        InvalidParameter: a single report has no local privacy that a bound could rest on.
    """
    if isinstance(randomizer, Generic):
        return randomizer
    least, most = validation.MINIMUM_EPSILON0, validation.MAXIMUM_EPSILON0
    if not isinstance(randomizer, DecomposedRandomizer) or not least <= randomizer.epsilon0 <= most:
        expected = (
            f"{IDENTICAL} for this {randomizer.kind}: sequential rounds need an epsilon0 of every single"
            f" report from {exact_text(least)} to {exact_text(most)}"
        )
        raise InvalidParameter("interaction", SEQUENTIAL, expected)
    return Generic(epsilon0=randomizer.epsilon0)


def interaction_text(interaction: str, randomizer: LocalRandomizer) -> str:
    """What statements print of a kind of rounds."""
    if isinstance(randomizer, WholeRelease):
        return randomizer.interaction_text
    if interaction == SEQUENTIAL:
        return "secret order, adaptive"
    if interaction == UNDECLARED:
        return "accounted as identical randomizers"
    return "identical randomizer on all devices"
