"""Evaluation of many pairs' profiles, each at its own order: roughly, or as closely as the smoothing asks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.amplification.enumeration import Outcomes
from shuffle_ledger.accounting.amplification.worst_pair.sampled_bounds import UNEVALUATED_DELTA
from shuffle_ledger.accounting.numeric.arrays import FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# Bounds wider than this many times the usual width are computed again with less smoothing, at most this
# often. The width is about proportional to the square of the smoothing: it is divided by the root of the
# width times this margin, at once by at most the last factor.
_WIDE_FACTOR = 2.0
_MOST_RETRIES = 2
_SMOOTHING_MARGIN = 1.2
_MOST_DIVISION = 5.0
# The least smoothing, as a share of the usual one.
_LEAST_SMOOTHING = 1 / 30
# Less smoothing helped if the width fell to at most this share.
_HELPFUL_SHARE = 0.7
# A needed smoothing is remembered as if the width had been at least this share of the usual one, and is used
# if it is below the second share of the usual smoothing.
_NARROWEST_WIDTH = 0.1
_USED_BELOW = 0.9


class _Needed(NamedTuple):
    """A memory of the smoothing that made pairs' bounds as close as usual: for each pair its orders minus
    one, ascending, and the logarithms of the smoothing there."""

    known: dict[int, tuple[FloatArray, FloatArray]]

    def at(self, which: IndexArray, excess: FloatArray, most: float) -> FloatArray:
        """Returns the smoothing that the pairs `which[i]` probably need at the orders `1 + excess[i]`, at
        most `most`, interpolated between remembered orders."""
        found = np.full_like(excess, most)
        for pair in np.unique(which).tolist():
            if pair in self.known:
                rows = which == pair
                expected = np.exp(np.interp(excess[rows], *self.known[pair]))
                found[rows] = np.where(expected < _USED_BELOW * most, expected, most)
        return found

    def scaled(self, share: float) -> _Needed:
        """Returns the same for a usual smoothing that is `share` times the present one."""
        more = math.log(share)
        return _Needed({pair: (orders, needed + more) for pair, (orders, needed) in self.known.items()})

    def note(self, which: IndexArray, excess: FloatArray, smoothing: FloatArray) -> None:
        """Remembers the smoothing that the pairs `which[i]` needed at the orders `1 + excess[i]`."""
        for pair in np.unique(which).tolist():
            orders, needed = excess[which == pair], np.log(smoothing[which == pair])
            if pair in self.known:
                before = self.known[pair]
                orders, needed = np.append(before[0], orders), np.append(before[1], needed)
            ascending = np.argsort(orders, kind="stable")
            self.known[pair] = orders[ascending], needed[ascending]


@dataclass(frozen=True, kw_only=True)
class PairSums:
    """Bounds on profiles of single pairs.

    Attributes:
        pairs: the masses of the pairs, in every direction that may have another profile.
        reports: number of honest reports.
        smoothing: width of the quadrature's smoothing; see `blanket_profile`.
        listed: returns the outcomes of the pair at a position, None if they are too many to be listed.
    """

    pairs: Pairs
    reports: int
    smoothing: float
    listed: Callable[[int], Outcomes | None]
    # A cache: it changes no result's validity.
    needed: _Needed = field(default_factory=lambda: _Needed({}), compare=False)

    def roughly(self, smoothing: float, which: IndexArray, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on the profiles of the pairs `which[i]` at the orders `1 + excess[i]`, with this
        smoothing or the usual one, whichever is larger."""
        smoothing = max(smoothing, self.smoothing)
        return blanket_profiles(self.pairs, which, self.reports, excess, smoothing=smoothing)

    def finely(
        self, which: IndexArray, order: IndexArray, excess: FloatArray, certain: FloatArray, *, likely: bool
    ) -> ProfileBounds:
        """Returns bounds on the profiles of the pairs `which[i]` at the orders `1 + excess[order[i]]`.

        Bounds that come out wide, and may be above the largest certain value, are computed again with less
        smoothing.

        Args:
            certain: lower bounds on the largest profile, shape (orders,).
            likely: whether the pairs are probably the largest: remembered smoothings are then used at once.
        """
        at, most = excess[order], np.full(order.size, self.smoothing)
        smoothing = self.needed.at(which, at, self.smoothing) if likely else most
        upper, lower = blanket_profiles(self.pairs, which, self.reports, at, smoothing=smoothing)
        usual = np.minimum(_at_1(self.pairs.spread, self.reports)[which], 1.0)
        reached, wide = certain.copy(), np.arange(order.size)
        width = first = _width(upper, lower, usual) / self.smoothing**2
        smoothing = smoothing.copy()
        for _ in range(_MOST_RETRIES):
            np.maximum.at(reached, order, lower)
            again = (width[wide] > _WIDE_FACTOR) & (
                upper[wide] > np.maximum(reached[order[wide]], UNEVALUATED_DELTA)
            )
            wide = wide[again & (smoothing[wide] > self.smoothing * _LEAST_SMOOTHING)]
            if not wide.size:
                break
            smoothing[wide] /= np.minimum(_SMOOTHING_MARGIN * np.sqrt(width[wide]), _MOST_DIVISION)
            found = blanket_profiles(
                self.pairs, which[wide], self.reports, at[wide], smoothing=smoothing[wide]
            )
            upper[wide] = np.minimum(upper[wide], found.upper)
            lower[wide] = np.maximum(lower[wide], found.lower)
            before, width = width, _width(upper, lower, usual) / self.smoothing**2
            wide = wide[width[wide] <= _HELPFUL_SHARE * before[wide]]
        # If less smoothing did not help, round-off makes the bounds wide.
        in_vain = (smoothing < self.smoothing) & (width > np.maximum(_HELPFUL_SHARE * first, _WIDE_FACTOR))
        needed = smoothing / np.sqrt(np.clip(width, _NARROWEST_WIDTH, 1.0))
        needed = np.where(smoothing < self.smoothing, needed / _SMOOTHING_MARGIN, needed)
        self.needed.note(which, at, np.where(in_vain, most, needed))
        return ProfileBounds(upper, lower)

    def usual(self, reached: FloatArray) -> FloatArray:
        """Returns the usual relative width of bounds on divergences of about this size, for laws of one
        scale; see `_width`."""
        return self.smoothing**2 * (1 + _depth(reached, self._most))

    @functools.cached_property
    def _most(self) -> float:
        return float(_at_1(self.pairs.spread, self.reports).max())


def _at_1(spread: FloatArray, reports: int) -> FloatArray:
    """Returns the divergences of order 1 that Gaussian sums of the same variance have."""
    return np.maximum(np.sqrt(spread / (2 * math.pi * reports)), NEGLIGIBLE_DELTA)


def _depth(values: FloatArray, usual: FloatArray | float) -> FloatArray:
    """Returns about the square of the number of deviations that a sum with this divergence is away from its
    mean, given the divergence of order 1."""
    return np.asarray(-2 * np.log(np.clip(values / usual, NEGLIGIBLE_DELTA, 1.0)))


def _width(upper: FloatArray, lower: FloatArray, usual: FloatArray) -> FloatArray:
    """Returns the relative distance of bounds, in units of the distance that a smoothing of 1 makes for a law
    of one scale.

    The kernels then differ by `(theta tau)^2` of the value, tau the smoothing times the deviation; `theta`
    times the deviation is about the root of `-2 log(value / usual)`. A law of two scales (rare large gains
    beside many small ones) has a deviation that fits neither scale, and may come out wider.
    """
    width: FloatArray = (upper - lower) / np.maximum(upper * (1 + _depth(upper, usual)), NEGLIGIBLE_DELTA)
    return width
