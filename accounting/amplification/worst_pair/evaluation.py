"""Sums of many pairs, each at its order: as close as is usual, or less so."""

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
from shuffle_ledger.accounting.amplification.worst_pair.looks import LITTLE
from shuffle_ledger.accounting.numeric.arrays import FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA

# Bounds that are wider than so many times what is usual are computed again with less smoothing, which widths
# are as the square of: with a little to spare, and no less at once than by this factor.
_UNUSUAL = 1.5
_SURER = 1.2
_LEAST = 5.0
_RETRIES = 2
# The least smoothing, in units of the usual one, and by how much widths fall at least if less of it helps.
_FINEST = 1 / 30
_IN_VAIN = 0.7
# Smoothing is remembered as if bounds were no closer than that, and where it is less than the usual one.
_NARROWEST = 0.1
_OFTEN = 0.9


class _Needed(NamedTuple):
    """The smoothing that makes pairs' bounds as close as is usual: by pair, orders, ascending, and its
    logarithms there."""

    known: dict[int, tuple[FloatArray, FloatArray]]

    def at(self, which: IndexArray, excess: FloatArray, most: float) -> FloatArray:
        """What the pairs `which[i]` seem to need at the orders `1 + excess[i]`, by what is next to them."""
        found = np.full_like(excess, most)
        for pair in np.unique(which).tolist():
            if pair in self.known:
                rows = which == pair
                expected = np.exp(np.interp(excess[rows], *self.known[pair]))
                found[rows] = np.where(expected < _OFTEN * most, expected, most)
        return found

    def scaled(self, share: float) -> _Needed:
        """The same for bounds as close as is usual with so much of the smoothing."""
        more = math.log(share)
        return _Needed({pair: (orders, needed + more) for pair, (orders, needed) in self.known.items()})

    def note(self, which: IndexArray, excess: FloatArray, smoothing: FloatArray) -> None:
        """Remember what was needed."""
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
        pairs: their masses, in every direction that counts.
        reports: number of honest reports.
        smoothing: width of the quadrature's smoothing; see `blanket_profile`.
        listed: the outcomes of a pair, given its position, None when there are too many to be listed.
    """

    pairs: Pairs
    reports: int
    smoothing: float
    listed: Callable[[int], Outcomes | None]
    # A memory, nothing else.
    needed: _Needed = field(default_factory=lambda: _Needed({}), compare=False)

    def roughly(self, smoothing: float, which: IndexArray, excess: FloatArray) -> ProfileBounds:
        """Bounds of the pairs `which[i]` at the orders `1 + excess[i]`."""
        smoothing = max(smoothing, self.smoothing)
        return blanket_profiles(self.pairs, which, self.reports, excess, smoothing=smoothing)

    def finely(
        self, which: IndexArray, order: IndexArray, excess: FloatArray, certain: FloatArray, *, likely: bool
    ) -> ProfileBounds:
        """Bounds of the pairs `which` at the orders `order`, with less smoothing where they come out wide and
        may be above what some pair certainly reaches."""
        at, most = excess[order], np.full(order.size, self.smoothing)
        smoothing = self.needed.at(which, at, self.smoothing) if likely else most
        upper, lower = blanket_profiles(self.pairs, which, self.reports, at, smoothing=smoothing)
        usual = np.minimum(_at_1(self.pairs.spread, self.reports)[which], 1.0)
        reached, wide = certain.copy(), np.arange(order.size)
        width = first = _width(upper, lower, usual) / self.smoothing**2
        smoothing = smoothing.copy()
        for _ in range(_RETRIES):
            np.maximum.at(reached, order, lower)
            again = (width[wide] > _UNUSUAL) & (upper[wide] > np.maximum(reached[order[wide]], LITTLE))
            wide = wide[again & (smoothing[wide] > self.smoothing * _FINEST)]
            if not wide.size:
                break
            smoothing[wide] /= np.minimum(_SURER * np.sqrt(width[wide]), _LEAST)
            found = blanket_profiles(
                self.pairs, which[wide], self.reports, at[wide], smoothing=smoothing[wide]
            )
            upper[wide] = np.minimum(upper[wide], found.upper)
            lower[wide] = np.maximum(lower[wide], found.lower)
            before, width = width, _width(upper, lower, usual) / self.smoothing**2
            wide = wide[width[wide] <= _IN_VAIN * before[wide]]
        # Round-off is not what smoothing is to blame for.
        in_vain = (smoothing < self.smoothing) & (width > np.maximum(_IN_VAIN * first, _UNUSUAL))
        needed = smoothing / np.sqrt(np.clip(width, _NARROWEST, 1.0))
        needed = np.where(smoothing < self.smoothing, needed / _SURER, needed)
        self.needed.note(which, at, np.where(in_vain, most, needed))
        return ProfileBounds(upper, lower)

    def usual(self, reached: FloatArray) -> FloatArray:
        """How far apart bounds are that are about so large, relative, where one scale rules the law; see
        `_width`."""
        return self.smoothing**2 * (1 + _depth(reached, self._most))

    @functools.cached_property
    def _most(self) -> float:
        return float(_at_1(self.pairs.spread, self.reports).max())


def _at_1(spread: FloatArray, reports: int) -> FloatArray:
    """The divergences of order 1 of sums as if they were Gaussian."""
    return np.maximum(np.sqrt(spread / (2 * math.pi * reports)), NEGLIGIBLE_DELTA)


def _depth(values: FloatArray, usual: FloatArray | float) -> FloatArray:
    """About the square of how many deviations a sum needs, by the divergence and that of order 1."""
    return np.asarray(-2 * np.log(np.clip(values / usual, NEGLIGIBLE_DELTA, 1.0)))


def _width(upper: FloatArray, lower: FloatArray, usual: FloatArray) -> FloatArray:
    """How far apart bounds are, in units of what a smoothing of 1 makes them where one scale rules the law.

    The kernels then differ by `(theta tau)^2` of the value, `theta` times the deviation being about the root
    of `-2 log` of what the value is in units of the usual one. Laws of two scales, rare large gains beside
    many small ones, have a deviation that is that of neither.
    """
    width: FloatArray = (upper - lower) / np.maximum(upper * (1 + _depth(upper, usual)), NEGLIGIBLE_DELTA)
    return width
