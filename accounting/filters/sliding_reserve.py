"""The sliding reserve: charges with as much smoothing as the remaining Gaussian budget allows.

A round that reveals much about few users costs little while a large part of the budget remains to smooth it,
and more near the end. A total at a fixed reserve always charges as near the end. The sliding reserve follows
the remaining budget. `docs/adaptivity.md`, section 3, has the proofs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

# Of charges within this share of the least, the one with the smallest reserve is used: it can be given back
# for a longer time.
_CHARGE_TOLERANCE = Fraction(1, 512)
# Share of the limit that settlements may add to charges before rounds lack the noise with which they were
# admitted.
_SETTLEMENT_HEADROOM = Fraction(1, 32)


@dataclass(frozen=True, kw_only=True)
class SlidingReserve:
    """Charges rounds with the smoothing that the rest of `limit` allows.

    Attributes:
        limit: largest total of charges, a variance.
        reserves: the variances at which a round's costs are known, rising from 0.

    Guarantee: if the totals hold, everything released is dominated by a Gaussian mechanism of variance
    `limit`, up to the leaks and slacks of charges that add up to `limit`, however the rounds were chosen, and
    whichever of them released nothing.
    Source: docs/adaptivity.md, Lemmas 3 and 4.
    """

    limit: float
    reserves: tuple[float, ...]

    def holds(self, held: Fraction, late: Fraction) -> bool:
        """Returns whether totals are within the limit.

        Args:
            held: all charges, minus those given back.
            late: the part of it that settlements added to the charges at admission.
        """
        return held <= self._limit and late <= self._headroom

    def charge(self, held: Fraction, costs: Sequence[Fraction]) -> Fraction:
        """Returns the charge of a round with these costs at the reserves: about the least cost whose reserve
        still remains after the charge. Beyond the limit it is the cost without smoothing.
        """
        within = self._within(held, costs)
        return _least(within) if within else costs[0]

    def is_intact(self, charged: Fraction, costs: Sequence[Fraction], charge: Fraction) -> bool:
        """Returns whether the reserve of a round has remained ever since its charge: the charge may then be
        given back.

        Args:
            charged: an upper bound on the sum of all charges ever made.
            costs: the round's cost at each reserve.
            charge: the round's charge.
        """
        pairs = zip(self._kept_free, costs, strict=True)
        kept_free = next((kept_free for kept_free, cost in pairs if cost <= charge), None)
        if kept_free is None:
            return False
        return not kept_free or charged + kept_free <= self._limit

    def most_more(self, held: Fraction, costs: Sequence[Fraction]) -> int:
        """Returns how many more rounds with these costs at the reserves fit in the limit."""
        count = 0
        while within := self._within(held, costs):
            charge = _least(within)
            # Number of rounds that find the same reserves.
            left = self._limit - held
            alike = min((left - kept_free - cost) // charge for kept_free, cost in within) + 1
            held += alike * charge
            count += alike
        return count

    def _within(self, held: Fraction, costs: Sequence[Fraction]) -> list[tuple[Fraction, Fraction]]:
        """Returns the pairs (variance that must stay free, cost) that fit in the rest of the limit."""
        left = self._limit - held
        pairs = zip(self._kept_free, costs, strict=True)
        return [(kept_free, cost) for kept_free, cost in pairs if kept_free + cost <= left]

    @functools.cached_property
    def _limit(self) -> Fraction:
        return Fraction(self.limit)

    @functools.cached_property
    def _headroom(self) -> Fraction:
        return self._limit * _SETTLEMENT_HEADROOM

    @functools.cached_property
    def _kept_free(self) -> tuple[Fraction, ...]:
        """Returns the variance that must stay free for each reserve: the reserve plus headroom; 0 for reserve
        0."""
        return tuple(
            Fraction(reserve) + self._headroom if reserve else Fraction(0) for reserve in self.reserves
        )


def _least(within: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    enough = min(cost for _, cost in within) * (1 + _CHARGE_TOLERANCE)
    return next(cost for _, cost in within if cost <= enough)
