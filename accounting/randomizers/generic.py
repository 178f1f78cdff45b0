"""Randomizers of which nothing is known but their local privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification import witnesses
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import (
    Analysis,
    Bracket,
    Components,
    DecomposedRandomizer,
    LocalRandomizer,
)

#: The published pair, for devices of which each may run another randomizer after earlier messages.
CLONE = "clone"
#: The published pair, for devices that all run one randomizer.
CLONE_IDENTICAL = "clone-identical"
#: The smallest pair of all decompositions, for devices that all run one randomizer.
TIGHT = "tight"


@dataclass(frozen=True, kw_only=True)
class Generic(DecomposedRandomizer):
    """Any epsilon0-LDP randomizer.

    Analyses: `clone` is the published pair (Feldman, McMillan, Talwar, Theorem 3.2), and holds for devices in
    a secret order; each may run another randomizer, chosen by earlier messages. If all devices run one
    randomizer, `clone-identical` is the same pair, with credit for participation, and `tight` the smallest
    bound that decompositions can give for all of them, valid up to the loss epsilon0, where delta is 0.
    Source: docs/theory/amplification.md, A2 and A3.
    """

    kind = "generic"

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return (CLONE, TIGHT, CLONE_IDENTICAL)

    @property
    def is_generic(self) -> bool:
        """See `DecomposedRandomizer.is_generic`."""
        return True

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        e = math.exp(self.epsilon0)
        ends = np.array([e, 1.0]) / (1 + e)
        gap = math.tanh(self.epsilon0 / 2)
        hidden, left = (1 / (1 + e), gap) if name == TIGHT else (1 / (2 * e), -math.expm1(-self.epsilon0))
        masses = Decomposition(ends, ends[::-1], np.full(2, hidden), np.array([gap, -gap]), rest=left)
        return Analysis((Bracket.exact(masses),), 1.0, self.epsilon0)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; those of the two smallest randomized responses."""
        return witnesses.of_response(2, self.epsilon0) + witnesses.of_response(3, self.epsilon0)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: the published pair, since the tight one is no
        decomposition."""
        return Components(self.analysis(CLONE_IDENTICAL).brackets, ())


def of_any_order(randomizer: LocalRandomizer) -> Generic:
    """Returns the randomizer as which `clone` bounds one: `generic`, since only the local privacy of each
    device's randomizer is known.

    Source: Feldman, McMillan, Talwar, Theorem 3.2; docs/theory/amplification.md, A4.

    Raises:
        InvalidParameter: a single report has no local privacy that the bound could use.
    """
    if isinstance(randomizer, Generic):
        return randomizer
    least, most = validation.MINIMUM_EPSILON0, validation.MAXIMUM_EPSILON0
    if not isinstance(randomizer, DecomposedRandomizer) or not least <= randomizer.epsilon0 <= most:
        others = [name for name in randomizer.analyses if name != CLONE]
        expected = (
            f"one of {', '.join(others)} for this {randomizer.kind}: {CLONE} needs an epsilon0 of every"
            f" single report from {exact_text(least)} to {exact_text(most)}"
        )
        raise InvalidParameter("analysis", CLONE, expected)
    return Generic(epsilon0=randomizer.epsilon0)
