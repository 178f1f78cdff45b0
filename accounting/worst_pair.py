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
_MORE_SAMPLES = 129
_FINER = 0.05
_MUCH = 100
_MANY = 24
_BEYOND = 8
_SPARSER = 4
_REMEMBERED = 4
# Round-off, in the logarithm, of the bound that comes before.
_LOOSE = 0.05
# Bounds that are wider than so many times what is usual are computed again with so much less smoothing.
_UNUSUAL = 1.5
_LESS = 5.0
_RETRIES = 2


class _Sample(NamedTuple):
    """Bounds on some pairs' profiles at a few orders, shape (places, orders), by so much smoothing."""

    smoothing: float
    few: FloatArray
    places: IndexArray
    upper: FloatArray
    lower: FloatArray

    def covers(self, excess: FloatArray, places: IndexArray, most: int) -> bool:
        """Whether it says of all these pairs, in all this range, about what a sample of its own would say."""
        within = self.few[0] <= excess[0] and excess[-1] <= self.few[-1]
        if not within or not np.isin(places, self.places).all():
            return False
        first, last = np.searchsorted(self.few, [excess[0], excess[-1]])
        return bool(last - first >= min(excess.size, most) // _SPARSER)

    def ceilings(self, excess: FloatArray) -> FloatArray:
        """Upper bounds at all orders, shape (places, orders): a profile is below its chords."""
        return np.array([np.interp(excess, self.few, one) for one in self.upper])

    def likely(self, excess: FloatArray) -> IndexArray:
        """The pair that seems the largest at each order."""
        nearest = np.minimum(np.searchsorted(self.few, excess), self.few.size - 1)
        found: IndexArray = self.places[self.lower.argmax(axis=0)][nearest]
        return found


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
        found = self._fine(which, order, excess, lower)
        np.maximum.at(upper, order, found.upper)
        np.maximum.at(lower, order, found.lower)

    def _sampled(self, excess: FloatArray) -> tuple[FloatArray, IndexArray]:
        """Upper bounds on every pair's profile, shape (pairs, orders): rough ones at a few orders, and chords
        between; and which pair seems the largest at each order."""
        sample = self._sample(_COARSE, excess, np.arange(len(self.pairs)), _SAMPLES)
        return sample.ceilings(excess), sample.likely(excess)

    def _lower_ceilings(self, ceiling: FloatArray, excess: FloatArray, places: IndexArray) -> IndexArray:
        """Lower some pairs' bounds, by less smoothing at more orders; return which seem the largest."""
        sample = self._sample(_FINER, excess, places, _MORE_SAMPLES)
        ceiling[sample.places] = np.minimum(ceiling[sample.places], sample.ceilings(excess))
        return sample.likely(excess)

    def _sample(self, smoothing: float, excess: FloatArray, places: IndexArray, most: int) -> _Sample:
        """A sample for these orders, remembered: lattices are made finer, and ask again in the same range."""
        for one in self._samples:
            if one.smoothing == smoothing and one.covers(excess, places, most):
                return one
        few = _spread(excess, most, _last_excess(self.pairs))
        found = self._all_roughly(few) if smoothing == _COARSE else self._less_roughly(few, places)
        self._samples[:] = [found, *self._samples[: _REMEMBERED - 1]]
        return found

    def _all_roughly(self, few: FloatArray) -> _Sample:
        places = np.arange(len(self.pairs))
        which, order = np.divmod(np.arange(places.size * few.size), few.size)
        crude = chernoff_log_profiles(self.pairs, which, self.reports, few[order])
        ceiling = np.exp(np.minimum(crude + _LOOSE, 0.0)).reshape(places.size, few.size)
        which, order = np.nonzero(ceiling > self._rough(_COARSE, ceiling.argmax(axis=0), few).lower)
        found = self._rough(_COARSE, which, few[order])
        ceiling[which, order] = np.minimum(ceiling[which, order], found.upper)
        seen = np.full_like(ceiling, -1.0)
        seen[which, order] = found.lower
        return _Sample(_COARSE, few, places, ceiling, seen)

    def _less_roughly(self, few: FloatArray, places: IndexArray) -> _Sample:
        which, order = np.divmod(np.arange(places.size * few.size), few.size)
        found = self._rough(_FINER, places[which], few[order])
        shape = (places.size, few.size)
        return _Sample(_FINER, few, places, found.upper.reshape(shape), found.lower.reshape(shape))

    def _fine(
        self, which: IndexArray, order: IndexArray, excess: FloatArray, certain: FloatArray
    ) -> ProfileBounds:
        """Bounds of the pairs `which` at the orders `order`, with less smoothing where they come out wide and
        may be above what some pair certainly reaches."""
        smoothing, at = self.smoothing, excess[order]
        upper, lower = blanket_profiles(self.pairs, which, self.reports, at, smoothing=smoothing)
        # The divergences of order 1 of sums as if they were Gaussian.
        usual = np.array([_gaussian_divergence(pair, self.reports) for pair in self.pairs])[which]
        wide = _wide(upper, lower, usual, self.smoothing)
        reached = certain.copy()
        for _ in range(_RETRIES):
            np.maximum.at(reached, order, lower)
            wide = wide[upper[wide] > reached[order[wide]]]
            if not wide.size:
                break
            smoothing /= _LESS
            found = blanket_profiles(self.pairs, which[wide], self.reports, at[wide], smoothing=smoothing)
            before = upper[wide] - lower[wide]
            upper[wide] = np.minimum(upper[wide], found.upper)
            lower[wide] = np.maximum(lower[wide], found.lower)
            wide = wide[upper[wide] - lower[wide] < before / 2]
            wide = wide[_wide(upper[wide], lower[wide], usual[wide], self.smoothing)]
        return ProfileBounds(upper, lower)

    def _rough(self, smoothing: float, which: IndexArray, excess: FloatArray) -> ProfileBounds:
        smoothing = max(smoothing, self.smoothing)
        return blanket_profiles(self.pairs, which, self.reports, excess, smoothing=smoothing)


def _spread(excess: FloatArray, most: int, last: float) -> FloatArray:
    """Up to so many orders, spread like these, the first and, but for a rounding, the last among them; all of
    them and some between and up to the last of all where they are fewer but many."""
    few = excess.copy()
    if excess.size > most:
        few = excess[np.linspace(0, excess.size - 1, most).round().astype(np.int64)]
    elif excess.size >= _MANY:
        parts = -(-most // excess.size)
        divided = np.arange(parts * (excess.size - 1) + 1) / parts
        few = np.expm1(np.interp(divided, np.arange(excess.size), np.log1p(excess)))
        few[::parts] = excess
    if excess.size >= _MANY and few[-1] < last < math.inf:
        beyond = np.linspace(math.log1p(few[-1]), math.log1p(last), _BEYOND + 1)
        few = np.append(few, np.expm1(beyond[1:]))
    if few.size > 1:
        few[-1] *= 1 + 2.0**-40
    return few


def _last_excess(pairs: Sequence[Decomposition]) -> float:
    """Beyond which every profile is 0, but for a rounding; may be infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return max(float(np.nanmax(np.where(one.a > 0, one.difference / one.b, 0.0))) for one in pairs)


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
