"""The interaction of a round: all devices run one randomizer, or each one a randomizer that may depend on
earlier messages."""

from __future__ import annotations

from typing import Final

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import Declared, Generic, LocalRandomizer
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.composite import knows_generic

IDENTICAL: Final = "identical"
SEQUENTIAL: Final = "sequential"
#: For rounds that were recorded before rounds declared their interaction; they were accounted as identical.
UNDECLARED: Final = "undeclared"
#: The only published bound for sequential rounds.
SEQUENTIAL_ANALYSIS: Final = "clone"


def chosen_interaction(given: object, analysis: object, randomizer: LocalRandomizer) -> str:
    """Returns the interaction of a round, given the one that was asked for, or None.

    A `generic` part can be any randomizer. So without a given interaction such a round is `sequential`, whose
    bound holds in both cases; an analysis that exists only for identical randomizers implies `identical`.

    Raises:
        InvalidParameter: the given value is not one of the three.
    """
    if given is None:
        is_open = isinstance(randomizer, DecomposedRandomizer) and knows_generic(randomizer)
        return SEQUENTIAL if is_open and analysis in (None, SEQUENTIAL_ANALYSIS) else IDENTICAL
    if given not in (IDENTICAL, SEQUENTIAL, UNDECLARED):
        raise InvalidParameter("interaction", given, f"{IDENTICAL} or {SEQUENTIAL}")
    return str(given)


def in_sequence(randomizer: LocalRandomizer) -> Generic:
    """Returns the randomizer as which a sequential round is accounted: `generic`, since only the local
    privacy of each device's randomizer is known.

    Source: Feldman, McMillan, Talwar, Theorem 3.2; docs/theory.md, section 6, "Sequential rounds".

    Raises:
        InvalidParameter: a single report has no local privacy that the bound could use.
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
    """Returns the words for the interaction that statements print."""
    if isinstance(randomizer, Declared):
        return "guarantee as declared"
    if interaction == SEQUENTIAL:
        return "secret order, adaptive"
    if interaction == UNDECLARED:
        return "accounted as identical randomizers"
    return "identical randomizer on all devices"
