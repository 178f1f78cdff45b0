"""Randomizers of which nothing is known but their local privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shuffle_ledger.accounting.amplification import witnesses
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.randomizers.base import Analysis, Bracket, Components, DecomposedRandomizer


@dataclass(frozen=True, kw_only=True)
class Generic(DecomposedRandomizer):
    """Any epsilon0-LDP randomizer, the same on every device.

    Analyses: `clone` is the published pair (Feldman, McMillan, Talwar, Theorem 3.2); `tight` the smallest
    bound that decompositions can give for all of them (docs/theory.md, Lemma 1), valid up to the loss
    epsilon0, where delta is 0.
    """

    kind = "generic"

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("tight", "clone")

    @property
    def is_generic(self) -> bool:
        """See `DecomposedRandomizer.is_generic`."""
        return True

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        e = math.exp(self.epsilon0)
        ends = np.array([e, 1.0]) / (1 + e)
        gap = math.tanh(self.epsilon0 / 2)
        hidden, left = (1 / (1 + e), gap) if name == "tight" else (1 / (2 * e), -math.expm1(-self.epsilon0))
        masses = Decomposition(ends, ends[::-1], np.full(2, hidden), np.array([gap, -gap]), rest=left)
        return Analysis((Bracket.exact(masses),), 1.0, self.epsilon0)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; those of the two smallest randomized responses."""
        return witnesses.of_response(2, self.epsilon0) + witnesses.of_response(3, self.epsilon0)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: the published pair, since the tight one is no
        decomposition."""
        return Components(self.analysis("clone").brackets, ())
