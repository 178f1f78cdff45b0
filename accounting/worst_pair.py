"""The largest of many pairs' profiles, order by order, with few of them evaluated finely.

A profile is convex in its order, so between two orders it is below its chord: bounds at a few orders rule
most pairs out at all others. Pairs are summed together, one row for each pair and order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from accounting.blanket_sum import (
    BoolArray,
    IndexArray,
    ProfileBounds,
    blanket_profiles,
    chernoff_log_profiles,
)
from accounting.contour import FloatArray
from accounting.decomposition import Decomposition
from accounting.enumeration import Outcomes
from accounting.privacy_loss import NEGLIGIBLE_DELTA

# Orders at which all pairs are looked at and the smoothing there; both for what is still open if it is much.
_SAMPLES = 49
_COARSE = 0.2
_MORE_SAMPLES = 193
_FINER = 0.05
_MUCH = 100
_REMEMBERED = 2
# Round-off, in the logarithm, of the bound that comes before.
_LOOSE = 0.05
# Bounds that are wider than so many times what is usual are computed again with so much less smoothing.
_UNUSUAL = 1.5
_LESS = 5.0
_RETRIES = 2


class _Sample(NamedTuple):
    """Bounds on some pairs' profiles at a few orders, shape (places, orders)."""

    few: FloatArray
    places: IndexArray
    upper: FloatArray
    lower: FloatArray

    def covers(self, excess: FloatArray, places: IndexArray) -> bool:
        """Whether it says of all these pairs, in all this range, as much as a sample of its own would."""
        within = self.few[0] <= excess[0] and excess[-1] <= self.few[-1] <= 2 * excess[-1]
        return bool(within and np.isin(places, self.places).all())


@dataclass(frozen=True, kw_only=True)
class WorstPair:
    """Bounds on the largest of the profiles of several pairs.

    Attributes:
        pairs: their masses, in every direction that counts.
        reports: number of honest reports.
        smoothing: width of the quadrature's smoothing; see `blanket_profile`.
        listed: the outcomes of a pair, given its position, None when there are too many to be listed.
    """

    pairs: Sequence[Decomposition]
    reports: int
    smoothing: float
    listed: Callable[[int], Outcomes | None]
    _samples: list[_Sample] = field(default_factory=list, init=False, compare=False)  # a memory, nothing else

    def bounds(self, excess: FloatArray) -> ProfileBounds:
        """Bounds at the orders `1 + excess`, ascending, shape (orders,).

        Guarantee: every pair's profile is at most `upper`, and some pair's at least `lower`, at every order.
        """
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        left = np.ones((len(self.pairs), excess.size), dtype=np.bool_)
        if len(self.pairs) > 1:
            ceiling, likely = self._sampled(excess)
            for finer in (True, False):
                # The pairs that seem largest come first: what they certainly reach rules others out.
                chosen = np.zeros_like(left)
                chosen[likely, np.arange(excess.size)] = True
                self._raise(upper, lower, excess, chosen & left)
                left &= ~chosen & (ceiling > lower)
                unlisted = [
                    place for place in np.flatnonzero(left.any(axis=1)) if self.listed(int(place)) is None
                ]
                if not finer or np.count_nonzero(left[unlisted]) <= max(_MUCH, excess.size):
                    break
                likely = self._lower_ceilings(ceiling, excess, np.array(unlisted))
        self._raise(upper, lower, excess, left)
        return ProfileBounds(upper, lower)

    def _raise(self, upper: FloatArray, lower: FloatArray, excess: FloatArray, chosen: BoolArray) -> None:
        """Raise both bounds to those of the pairs that are chosen at an order."""
        summed = chosen.copy()
        for place in np.flatnonzero(chosen.any(axis=1)):
            outcomes = self.listed(int(place))
            if outcomes is not None:
                summed[place], orders = False, np.flatnonzero(chosen[place])
                found = outcomes.profile(excess[orders])
                upper[orders] = np.maximum(upper[orders], found.upper)
                lower[orders] = np.maximum(lower[orders], found.lower)
        which, order = np.nonzero(summed)
        found = self._fine(which, excess[order])
        np.maximum.at(upper, order, found.upper)
        np.maximum.at(lower, order, found.lower)

    def _sampled(self, excess: FloatArray) -> tuple[FloatArray, IndexArray]:
        """Upper bounds on every pair's profile, shape (pairs, orders): rough ones at a few orders, and chords
        between; and which pair seems the largest at each order."""
        sample = _spread(excess.size, _SAMPLES)
        few = excess[sample]
        which, order = np.divmod(np.arange(len(self.pairs) * few.size), few.size)
        crude = chernoff_log_profiles(self.pairs, which, self.reports, few[order])
        ceiling = np.exp(np.minimum(crude + _LOOSE, 0.0)).reshape(len(self.pairs), few.size)
        which, order = np.nonzero(ceiling > self._rough(_COARSE, ceiling.argmax(axis=0), few).lower)
        found = self._rough(_COARSE, which, few[order])
        ceiling[which, order] = np.minimum(ceiling[which, order], found.upper)
        seen = np.full_like(ceiling, -1.0)
        seen[which, order] = found.lower
        nearest = np.abs(np.arange(excess.size)[:, None] - sample).argmin(axis=1)
        return _between(excess, few, ceiling), seen.argmax(axis=0)[nearest]

    def _lower_ceilings(self, ceiling: FloatArray, excess: FloatArray, places: IndexArray) -> IndexArray:
        """Lower the bounds of some pairs, with less smoothing and at more orders; return the same as above.

        A lattice is tried at several finenesses: what was found for one serves the others.
        """
        known = next((one for one in self._samples if one.covers(excess, places)), None)
        if known is None:
            few = excess[_spread(excess.size, _MORE_SAMPLES)]
            # The same range may end a rounding further up.
            few[-1] *= 1 + 2.0**-40
            which, order = np.divmod(np.arange(places.size * few.size), few.size)
            found = self._rough(_FINER, places[which], few[order])
            shape = (places.size, few.size)
            known = _Sample(few, places, found.upper.reshape(shape), found.lower.reshape(shape))
            self._samples[:] = [known, *self._samples[: _REMEMBERED - 1]]
        ceiling[known.places] = np.minimum(ceiling[known.places], _between(excess, known.few, known.upper))
        nearest = np.minimum(np.searchsorted(known.few, excess), known.few.size - 1)
        likely: IndexArray = known.places[known.lower.argmax(axis=0)][nearest]
        return likely

    def _fine(self, which: IndexArray, excess: FloatArray) -> ProfileBounds:
        """Bounds of the pairs `which` at their orders, with less smoothing where they come out wide."""
        smoothing = self.smoothing
        upper, lower = blanket_profiles(self.pairs, which, self.reports, excess, smoothing=smoothing)
        # The divergences of order 1 of sums as if they were Gaussian.
        usual = np.array([_gaussian_divergence(pair, self.reports) for pair in self.pairs])[which]
        wide = _wide(upper, lower, usual, self.smoothing)
        for _ in range(_RETRIES):
            if not wide.size:
                break
            smoothing /= _LESS
            found = blanket_profiles(self.pairs, which[wide], self.reports, excess[wide], smoothing=smoothing)
            before = upper[wide] - lower[wide]
            upper[wide] = np.minimum(upper[wide], found.upper)
            lower[wide] = np.maximum(lower[wide], found.lower)
            wide = wide[upper[wide] - lower[wide] < before / 2]
            wide = wide[_wide(upper[wide], lower[wide], usual[wide], self.smoothing)]
        return ProfileBounds(upper, lower)

    def _rough(self, smoothing: float, which: IndexArray, excess: FloatArray) -> ProfileBounds:
        smoothing = max(smoothing, self.smoothing)
        return blanket_profiles(self.pairs, which, self.reports, excess, smoothing=smoothing)


def _spread(size: int, most: int) -> IndexArray:
    """Up to so many positions, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def _between(excess: FloatArray, few: FloatArray, values: FloatArray) -> FloatArray:
    """Upper bounds at all orders from those at a few, row by row: a profile is below its chords."""
    return np.array([np.interp(excess, few, one) for one in values])


def _gaussian_divergence(pair: Decomposition, reports: int) -> float:
    hidden = pair.c > 0
    spread = float((pair.difference[hidden] ** 2 / pair.c[hidden]).sum())
    return max(math.sqrt(spread / (2 * math.pi * reports)), NEGLIGIBLE_DELTA)


def _wide(upper: FloatArray, lower: FloatArray, usual: FloatArray, smoothing: float) -> IndexArray:
    """Orders at which bounds are further apart than this smoothing makes them where one scale rules the law.

    The kernels then differ by `(theta tau)^2` of the value, `theta` times the deviation being about the root
    of `-2 log` of what the value is in units of the usual one. Laws of two scales, rare large gains beside
    many small ones, have a deviation that is that of neither.
    """
    depth = -2 * np.log(np.clip(upper / usual, NEGLIGIBLE_DELTA, 1.0))
    apart = upper - lower > _UNUSUAL * smoothing**2 * (1 + depth) * upper
    return np.flatnonzero(apart & (upper > NEGLIGIBLE_DELTA))
