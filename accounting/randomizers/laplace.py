"""The Laplace mechanism on one bit: a continuum of components, put on a grid from above and from below."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_ledger.accounting.amplification.binary_reports.thinned import ThinnedProfile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.randomizers.base import (
    BINARY_RESPONSE,
    BLANKET,
    EXACT,
    Bracket,
    Components,
    DecomposedRandomizer,
)
from shuffle_ledger.accounting.randomizers.binary_input import grid
from shuffle_ledger.accounting.randomizers.frequency_oracles import KaryRandomizedResponse

# Cells of the continuum on either side: the first number plus `epsilon0 + 64 (1 - exp(-epsilon0 / 2))`. They
# widen intervals of epsilon by about 1e-4, and by less than 1e-3.
_FEWEST_CELLS = 12
_CELLS_FOR_MASS = 64
# Parts of the range for which the density of cells is given.
_DENSITY_PARTS = 4096
# Room for the round-off of the share of bits.
_SHARE_ROOM = 1e-14
# Cells between 0 and 1 in which the attack counts reports.
_WITNESS_CELLS = 64


@dataclass(frozen=True, kw_only=True)
class Laplace(DecomposedRandomizer):
    """A bit in {0, 1} with Laplace noise of scale `1 / epsilon0` added to it, reported in full precision.

    Values anywhere in [0, 1] are `bounded_laplace`.

    Analyses: `binary-response`, the smaller of the blanket's bound and that of the binary randomized response
    of which these reports are a post-processing; `blanket`.
    Source: docs/theory/amplification.md, A9; Su, Cheng, Wang, Appendix B; the grid:
        docs/theory/randomizers.md, R11.
    """

    kind = "laplace"

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return (BINARY_RESPONSE, BLANKET)

    @property
    def bit_share(self) -> float:
        """Returns the probability, rounded up, with which binary randomized response makes a report: the
        total variation distance of the two laws, `1 - exp(-epsilon0/2)`, over `tanh(epsilon0/2)`."""
        share = -math.expm1(-self.epsilon0 / 2) / math.tanh(self.epsilon0 / 2)
        return min(share * (1 + _SHARE_ROOM), 1.0)

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        blanket = self.by_blanket(
            BLANKET, participation=participation, smoothing=smoothing, outcomes=outcomes
        )
        if analysis == BLANKET:
            return blanket
        response = KaryRandomizedResponse(k=2, epsilon0=self.epsilon0)
        bits = response.profile(EXACT, participation=1.0, smoothing=smoothing, outcomes=outcomes)
        return ThinnedProfile(share=self.bit_share * participation, bits=bits, blanket=blanket)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: on a grid that is as fine as one round needs."""
        more = self.epsilon0 - _CELLS_FOR_MASS * math.expm1(-self.epsilon0 / 2)
        return self._on_grid(_FEWEST_CELLS + math.ceil(more))

    def coarser(self, most: int) -> Components:
        """See `DecomposedRandomizer.coarser`."""
        finest = self.components()
        if finest.unequal[0].above.c.size <= most:
            return finest
        return self._on_grid(max(most // 2 - 1, 1))

    def _on_grid(self, cells: int) -> Components:
        """Returns the components on `cells` cells.

        A report y below 1/2 has the ratios `a : b : c = exp(t) : 1 : 1`, with `t = epsilon0 (1 - 2y)` from 0
        to epsilon0 and `c` of density `exp(-(epsilon0 + t)/2) / 4`; all `y <= 0` have `t = epsilon0`. Reports
        above 1/2 mirror them. In each cell of t the mass goes to the two ends with the mean of `exp(t)` kept
        (above), or to that mean (below).
        """
        # The grid is finest at large t, where single components matter most.
        density = np.exp(np.linspace(0.0, self.epsilon0 / 2, _DENSITY_PARTS))
        t = grid(self.epsilon0, density, cells)[::-1]
        width = -np.diff(t)
        inner = 0.5 * np.exp(-(self.epsilon0 + t[:-1]) / 2) * np.expm1(width / 2)
        outermost = 0.5 * math.exp(-self.epsilon0)
        ends = np.zeros_like(t)
        ends[0] = outermost
        # The mean of exp(t) in a cell is exp((t_upper + t_lower)/2).
        near = 1 / (np.exp(width / 2) + 1)
        ends[:-1] += inner * near
        ends[1:] += inner * (1 - near)
        middles = np.concatenate([[t[0]], (t[:-1] + t[1:]) / 2])
        left = -math.expm1(-self.epsilon0 / 2)
        above = _mirrored(t, ends, left)
        below = _mirrored(middles, np.concatenate([[outermost], inner]), left)
        return Components((Bracket(above, below),), ())

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`. All other users hold 1; reports are put in cells, with one cell
        for all below 0 and one for all above 1."""
        ends = np.linspace(0.0, 1.0, _WITNESS_CELLS + 1)
        # In a cell from u to v the masses under 0 and 1 have the ratio exp(epsilon0 (1 - u - v)).
        inner = 0.5 * np.exp(-self.epsilon0 * (1 - ends[1:])) * -np.expm1(-self.epsilon0 * np.diff(ends))
        loss = self.epsilon0 * np.concatenate([[1.0], 1 - ends[1:] - ends[:-1], [-1.0]])
        b = np.concatenate([[0.5 * math.exp(-self.epsilon0)], inner, [0.5]])
        return (Decomposition(b * np.exp(loss), b, b, b * np.expm1(loss), 0.0),)


def _mirrored(t: FloatArray, c: FloatArray, left: float) -> Decomposition:
    """Returns components of ratios `exp(t) : 1 : 1` with masses c, their mirror images, and the leftover
    mass."""
    a, b = np.concatenate([c * np.exp(t), c]), np.concatenate([c, c * np.exp(t)])
    gap = c * np.expm1(t)
    return Decomposition(a, b, np.concatenate([c, c]), np.concatenate([gap, -gap]), left).merged()
