"""The sliding reserve: charges at as much smoothing as what is left of a Gaussian budget allows.

A round that tells much of few users is cheap while much of the budget is left to smooth it, and dear at the
end. A total at one fixed reserve is charged as if the end were always near; this one follows what is left.
`docs/adaptivity.md`, section 3, has the proofs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

# Of charges that differ by no more than this part, the one at the smallest reserve is taken: the smaller the
# reserve, the longer a charge can be given back.
_ALIKE = Fraction(1, 512)
# The part of the limit that settlements may add to charges, before rounds lack noise that they were admitted
# with.
_HEADROOM = Fraction(1, 32)


@dataclass(frozen=True, kw_only=True)
class SlidingReserve:
    """How rounds are charged whose smoothing is what is left of `limit`.

    Attributes:
        limit: the variance that charges may reach altogether.
        reserves: the variances at which a round's costs are known, rising, the first of them 0.

    Guarantee: if totals hold, everything released is dominated by a Gaussian mechanism of variance `limit`,
    but for the leaks and slacks of charges that add up to it, however rounds were chosen and whichever of
    them released nothing.
    Source: docs/adaptivity.md, Lemmas 3 and 4.
    """

    limit: float
    reserves: tuple[float, ...]

    def holds(self, held: Fraction, late: Fraction) -> bool:
        """Whether totals are within the limit.

        Args:
            held: what was charged, less what was given back.
            late: how much of it settlements added to what rounds were charged when they were admitted.
        """
        return held <= self._limit and late <= self._headroom

    def charge(self, held: Fraction, costs: Sequence[Fraction]) -> Fraction:
        """What a round takes that costs so much at each reserve: the least whose reserve is left after it.

        Beyond the limit that is its cost without smoothing.
        """
        within = self._within(held, costs)
        return _least(within) if within else costs[0]

    def is_intact(self, charged: Fraction, costs: Sequence[Fraction], charge: Fraction) -> bool:
        """Whether a round's reserve was left ever since it took its charge, so that it may give it back.

        Args:
            charged: all that was ever charged, at least.
            costs: the round's cost at each reserve.
            charge: what it took.
        """
        pairs = zip(self._kept_free, costs, strict=True)
        kept_free = next((kept_free for kept_free, cost in pairs if cost <= charge), None)
        if kept_free is None:
            return False
        return not kept_free or charged + kept_free <= self._limit

    def most_more(self, held: Fraction, costs: Sequence[Fraction]) -> int:
        """How many more rounds fit that cost so much at each reserve."""
        count = 0
        while within := self._within(held, costs):
            charge = _least(within)
            # So many find the same reserves left.
            left = self._limit - held
            alike = min((left - kept_free - cost) // charge for kept_free, cost in within) + 1
            held += alike * charge
            count += alike
        return count

    def _within(self, held: Fraction, costs: Sequence[Fraction]) -> list[tuple[Fraction, Fraction]]:
        """What a cost keeps free, and the cost, for each that leaves so much of the limit."""
        left = self._limit - held
        pairs = zip(self._kept_free, costs, strict=True)
        return [(kept_free, cost) for kept_free, cost in pairs if kept_free + cost <= left]

    @functools.cached_property
    def _limit(self) -> Fraction:
        return Fraction(self.limit)

    @functools.cached_property
    def _headroom(self) -> Fraction:
        return self._limit * _HEADROOM

    @functools.cached_property
    def _kept_free(self) -> tuple[Fraction, ...]:
        """Each reserve with headroom; nothing, where nothing is smoothed."""
        return tuple(
            Fraction(reserve) + self._headroom if reserve else Fraction(0) for reserve in self.reserves
        )


def _least(within: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    enough = min(cost for _, cost in within) * (1 + _ALIKE)
    return next(cost for _, cost in within if cost <= enough)
