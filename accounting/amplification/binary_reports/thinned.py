"""Reports under two inputs, bounded by binary randomized response of which some reports are blank.

Every epsilon0-LDP randomizer of exactly two inputs, whose laws have the total variation distance T, is a
post-processing of this one: with probability `share = T / tanh(epsilon0/2) <= 1` report the input by binary
randomized response of the same epsilon0, else report a blank. So the shuffled reports of n users have, at the
order `1 + r`, a divergence of at most

    share * (sum over k of P(J' = k) D_(k + 1)(1 + r n/(k + 1))),

with J' a binomial of n - 1 and `share`, and D_j the largest divergence of all neighbouring datasets of j
bits. The condition is that no user holds a third input: Laplace noise on a bit satisfies it, on a number from
an interval it does not. Bits that are sent by a secret coin are the same with silence for a blank,
whatever the law of a bit. The proofs are in docs/theory/amplification.md, A8 and A9.
"""

from __future__ import annotations

import functools
import math

from shuffle_ledger.accounting.amplification.crowds import Hiding, Others
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, FloatArray, order_less_one
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# From the first number of bits times exp(epsilon0) on, and from this epsilon0 on, blanks are used; from the
# second number of bits on, the blanket is not. Both bounds hold everywhere: where only one of them is
# computed, it is the smaller one, but for a percent or rare deltas, and the choice saves time.
_THINNED_FROM, _BLANKET_UP_TO, _LEAST_EPSILON0 = 150.0, 3000.0, 0.05
# Least relative deviation of the number of bits, and the number of cells of it from there on. More cells:
# closer bounds, time in proportion.
_CELLS = ((5e-3, 11), (1e-3, 6), (0.0, 3))
_LAWS_KEPT = 64  # of numbers of bits, for rounds of other epsilon0 or sizes
# Relative room for the round-off of probabilities, and for that of quotients of orders.
_MASS_ROOM, _ORDER_ROOM = 1e-8, 1e-14


class ThinnedProfile(MechanismProfile):
    """The smaller of a blanket's profile and that of thinned bits.

    Args:
        share: probability that a report is no blank and is sent, rounded up.
        bits: the largest divergence over all datasets of the bits: of binary randomized response of the same
            epsilon0, or of the reports themselves if they are bits.
        blanket: the blanket's profile of the randomizer, with silence.

    Guarantee: the upper bound is at least the largest divergence of all neighbouring datasets, in both
        directions, of a randomizer of two inputs. The lower bound is at most what the same cells give if
        every divergence in them is computed exactly.
    Source: docs/theory/amplification.md, A9.
    """

    def __init__(self, *, share: float, bits: MechanismProfile, blanket: MechanismProfile) -> None:
        self.largest_loss = blanket.largest_loss
        self.share = share
        self._bits, self._blanket = bits, blanket

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        if not self.has_blanks(honest):
            return self._blanket.bounds(honest, excess)
        thinned = self.thinned(honest, excess)
        if not self.has_blanket(honest):
            return thinned
        return ProfileBounds(*map(np.minimum, thinned, self._blanket.bounds(honest, excess)))

    def has_blanks(self, honest: int) -> bool:
        """Returns whether the bound by binary randomized response with blanks is computed."""
        return self.largest_loss >= _LEAST_EPSILON0 and self._hidden(honest) >= _THINNED_FROM

    def has_blanket(self, honest: int) -> bool:
        """Returns whether the blanket's bound is computed."""
        return not self.has_blanks(honest) or self._hidden(honest) < _BLANKET_UP_TO

    def _hidden(self, honest: int) -> float:
        return honest * self.share / math.exp(min(self.largest_loss, LARGEST_EXPONENT))

    def thinned(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns bounds by the corollary, with one value for all numbers of a cell; see `bounds`."""
        weights = _hiding(self.share, honest).weight.tolist()
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        for (fewest, most), weight in zip(self.cells(honest), weights, strict=True):
            # These floats are not above the exact quotients. They are the orders that the analysis takes.
            orders = excess * (honest / most) * (1 - _ORDER_ROOM)
            found = self._bits.bounds(fewest, orders)
            upper += weight * found.upper
            lower += weight * found.lower
        upper = self.share * upper * (1 + _MASS_ROOM) + NEGLIGIBLE_DELTA
        upper[excess >= order_less_one(min(self.largest_loss, LARGEST_EXPONENT))] = 0.0
        return ProfileBounds(np.minimum(upper, 1.0), self.share * lower * (1 - _MASS_ROOM))

    def cells(self, honest: int) -> list[tuple[int, int]]:
        """Returns the least number of bits of every cell, the differing user's among them, and a number that
        is at least the largest one."""
        hiding = _hiding(self.share, honest)
        most = np.minimum(hiding.counts[hiding.most], honest)
        return list(zip(hiding.counts[:-1].tolist(), most.tolist(), strict=True))

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`: no loss is infinite."""
        return 0.0

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return self._blanket.is_listed(honest)

    def sharper(self, share: float) -> ThinnedProfile:
        """See `MechanismProfile.sharper`."""
        blanket = self._blanket.sharper(share)
        return ThinnedProfile(share=self.share, bits=self._bits, blanket=blanket)

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`: the blanket's, which bounds the divergence in any case."""
        return self._blanket.crude_log(honest, excess)

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """See `MechanismProfile.estimated_log`."""
        return self._blanket.estimated_log(crude)


@functools.lru_cache(maxsize=_LAWS_KEPT)
def _hiding(share: float, honest: int) -> Hiding:
    """Returns the law of one more than a binomial of `honest - 1` and `share`, in a few cells."""
    deviation = math.sqrt(max((1 - share) / (share * honest), 0.0))
    most = next(number for least, number in _CELLS if deviation >= least)
    return Hiding.of([Others(honest - 1, share)]).coarser(most)
