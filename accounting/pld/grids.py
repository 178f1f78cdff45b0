"""Lattices of privacy losses, as fine as answers need: graded to begin with, then finer in cells that keep
a pair above and a pair below a profile apart.

Nothing rests on what is chosen here: pairs on any lattice are bounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.convex_minorants import corners
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.pld.tilting import TILT_RATIO, LossSpectrum, SpectrumMemory

_MAXIMUM_POINTS = 1 << 15
# A lattice may be halved so often after all, while its positions remain that few.
_HALVINGS = 9
_MAXIMUM_SPAN = 1 << 18
# The distance of the pairs that is aimed at, as a share of the precision: more where they are no farther
# apart than so many times that, for their distance is then known better; and what is left to the lattice at
# least, however far apart the profile's own bounds are.
_AIM, _AIM_NEAR, _FAR = 0.75, 0.9, 3.0
_LEAST_AIM = 0.3
_MOST_PIECES = 8
# Tilts at which pairs are compared, in steps of the grid of tilts: from a small one on, as far as a delta of
# 1e-30 needs, should the round be by far the heaviest of several.
_TILT_STRIDE = 8
_TILTS = 30
_SMALLEST_TILT = 0.05
_DEEPEST = 70.0
# Rounds are no more than that. Losses that are expected of so few of them count in no delta of 1e-30; in
# moments they would, and hide others.
_MOST_ROUNDS, _UNSEEN = 1e5, 1e-34
# What that many rounds may add to a delta of 1e-30 by how far apart each one's profiles are.
_UNNOTED = 1e-32
# A cell is steep if the profile falls by this exponent in it.
_STEEP = 1.0
# Beyond so many deviations a first lattice has one loss more each time that losses double.
_FAR_OUT = 1e4
# Logarithm of the weight of an order in a moment: beyond, one cell is all that counts anyway.
_MOST_WEIGHT = 300.0


class Lattice(NamedTuple):
    """Losses `positions * unit`, from 0 on, ascending; positions have shape (losses,)."""

    positions: IndexArray
    unit: float

    @property
    def excess(self) -> FloatArray:
        """The orders of the losses, less one."""
        return np.asarray(np.expm1(self.positions * self.unit), dtype=np.float64)

    @property
    def end(self) -> float:
        """The last loss."""
        return float(self.positions[-1] * self.unit)

    @property
    def stride(self) -> int:
        """The largest power of two that divides all positions."""
        together = int(np.bitwise_or.reduce(self.positions))
        return together & -together

    def divisible(self, finest: float) -> Lattice:
        """The same losses, with room for cells to be halved, down to a unit of no less than `finest`."""
        halvings = 0
        while (
            halvings < _HALVINGS
            and self.positions[-1] << (halvings + 1) <= _MAXIMUM_SPAN
            and math.ldexp(self.unit, -halvings - 1) >= finest
        ):
            halvings += 1
        return Lattice(self.positions << halvings, math.ldexp(self.unit, -halvings))

    def fine_at_the_end(self, resolution: float) -> Lattice:
        """The last loss preceded by one that is no farther than that, as far as the unit allows, and by
        others twice, four times as far."""
        last, before = int(self.positions[-1]), int(self.positions[-2])
        step = 1 << max(math.frexp(resolution / self.unit)[1] - 1, 0)
        added = [last - (step << doubling) for doubling in range((last - before).bit_length())]
        kept = [position for position in added if position > before]
        return Lattice(np.union1d(self.positions, np.array(kept, dtype=np.int64)), self.unit)

    def reduced(self) -> Lattice:
        """The same losses, in the largest unit that is a power of two times this one."""
        halvings = self.stride.bit_length() - 1
        return Lattice(self.positions >> halvings, math.ldexp(self.unit, halvings))


class Gaps(NamedTuple):
    """How far apart pairs above and below a profile are: at each of several tilts their epsilons, relative to
    them.

    Attributes:
        shares: what each cell contributes to it, shape (tilts, losses - 1).
        blur: how much of that the bounds of the profile itself account for, of the same shape.
        drawn: what the pair below loses far around each cell, since its corners are low, at most; see
            `_Hull`; shape (losses - 1,).
    """

    shares: FloatArray
    blur: FloatArray
    drawn: FloatArray

    @property
    def apart(self) -> float:
        """About how far apart they are at most, however often the round is repeated."""
        return float(self.shares.sum(axis=1).max(initial=0.0))

    @property
    def blurred(self) -> float:
        """How much of it the bounds of the profile itself account for."""
        return float(self.blur.sum(axis=1).max(initial=0.0))

    @property
    def cells(self) -> FloatArray:
        """What each cell contributes at most, shape (losses - 1,)."""
        return np.asarray(self.shares.max(axis=0, initial=0.0))

    @property
    def blurs(self) -> FloatArray:
        """What the bounds of the profile do in each cell at most, shape (losses - 1,)."""
        return np.asarray(self.blur.max(axis=0, initial=0.0))


class Polygon(NamedTuple):
    """Values at lattice positions, or the orders, less one, of their losses; arrays of shape (positions,).

    `corners` are the places of the corners of the greatest convex function below it.
    """

    positions: IndexArray
    excess: FloatArray
    values: FloatArray
    corners: IndexArray

    @classmethod
    def of(cls, positions: IndexArray, excess: FloatArray, values: FloatArray) -> Polygon:
        """The polygon with these corners."""
        return cls(positions, excess, values, corners(excess, values))

    def at(self, excess: FloatArray) -> FloatArray:
        """Values at some orders, about."""
        return np.interp(excess, self.excess, self.values)

    def convex(self, excess: FloatArray) -> FloatArray:
        """About those of the greatest convex function below it."""
        return np.interp(excess, self.excess[self.corners], self.values[self.corners])


def graded(deviation: float, stop: float, spacing: float) -> Lattice:
    """From 0 to `stop`: fine where the mass is, coarser by powers of two far out; coarser everywhere than
    asked where the points would be too many."""
    while True:
        last = math.ceil(stop / spacing)
        unit = stop * (1 + 2 * UNIT_ROUND_OFF) / last
        positions = _graded_positions(last, deviation / unit)
        if positions[-1] == last:
            return Lattice(np.array(positions, dtype=np.int64), unit)
        spacing *= 2


def even(stop: float, precision: float, finest: float) -> Lattice:
    """From 0 to `stop` in equal steps."""
    points = math.ceil(min(4 / precision, _MAXIMUM_POINTS, stop / max(finest, 1e-300)))
    return Lattice(np.arange(points + 1, dtype=np.int64), stop * (1 + 2 * UNIT_ROUND_OFF) / points)


def _graded_positions(last: int, deviation: float) -> list[int]:
    """Positions from 0 to `last`, or up to where they would be too many."""
    positions, stride, edge = [0], 1, 4.0 * deviation
    while positions[-1] < last and len(positions) < _MAXIMUM_POINTS:
        while positions[-1] >= edge and positions[-1] % (2 * stride) == 0:
            stride *= 2
            edge = 4 * edge if stride == 2 else 2 * edge if edge < _FAR_OUT * deviation else 0.0
        positions.append(min(positions[-1] + stride, last))
    return positions


class Tilts(NamedTuple):
    """At which tilts pairs are compared, and what counts there.

    Attributes:
        weights: what an area between profiles in a cell of orders adds to the logarithm of a moment, as a
            share of it, shape (tilts, losses - 1).
        rounds: number of rounds of which delta is about 1e-30 at the tilt, shape (tilts,).
    """

    weights: FloatArray
    rounds: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, above: PrivacyLossDistribution) -> Tilts:
        """Those of a pair, for cells between these orders less one."""
        weights, counts, variance = [], [], above.variance()
        if variance == 0:
            return cls(np.empty((0, excess.size - 1)), np.empty(0))
        log_order, rounds = np.log1p((excess[:-1] + excess[1:]) / 2), _MOST_ROUNDS
        first = math.ceil(math.log(_SMALLEST_TILT / math.sqrt(variance)) / math.log(TILT_RATIO))
        for tilt in range(first, first + _TILTS * _TILT_STRIDE, _TILT_STRIDE):
            seen = above.without_tail(_UNSEEN / rounds)
            if not seen.index.size:
                break
            theta, tilted = TILT_RATIO**tilt, LossSpectrum(seen, SpectrumMemory()).tilted(tilt)
            top = tilted.log_mass - math.log1p(-seen.infinity)
            depth = theta * tilted.mean - top
            if top <= 0 or depth > _DEEPEST:
                break
            rounds = min(_DEEPEST / max(depth, _DEEPEST / _MOST_ROUNDS), _MOST_ROUNDS)
            log_weight = np.logaddexp((theta - 1) * log_order, -(theta + 2) * log_order) - tilted.log_mass
            weight = theta * (theta + 1) / top * np.exp(np.minimum(log_weight, _MOST_WEIGHT))
            weight[excess[:-1] >= np.expm1(seen.losses[-1])] = 0.0
            weights.append(weight)
            counts.append(rounds)
        return cls(np.reshape(weights, (-1, excess.size - 1)), np.array(counts))


def gaps(
    excess: FloatArray, bounds: ProfileBounds, values: ProfileBounds, below: Polygon, tilts: Tilts
) -> Gaps:
    """What keeps pairs apart that have the profiles `values` at the orders `1 + excess`, made from `bounds`;
    but for what the pair below loses where these are no profile: that of the polygon.

    Of k rounds epsilon is near the least of `(k K(theta) - log delta) / theta` over the tilts, K the
    logarithm of `E[exp(theta L)]`: epsilons are no further apart than K is where it matters. The moment is a
    mixture of hockey-stick divergences, to which every cell of orders contributes.
    """
    step, drawn = np.diff(excess), np.zeros(excess.size - 1)
    if not tilts.rounds.size:
        return Gaps(tilts.weights, tilts.weights, drawn)
    apart = values.upper - values.lower, bounds.upper - bounds.lower
    blamed, hull = _Blame.of(bounds, values), _Hull.of(excess, bounds.lower, below)
    shares, blur = np.zeros_like(tilts.weights), np.zeros_like(tilts.weights)
    for one, (weight, rounds) in enumerate(zip(*tilts, strict=True)):
        noted = (np.maximum(distance - _UNNOTED / rounds, 0.0) for distance in apart)
        area, blurred = (step * (distance[1:] + distance[:-1]) / 2 for distance in noted)
        lost = hull(weight)
        shares[one] = blamed(area * weight) + lost
        blur[one] = blurred * weight
        drawn = np.maximum(drawn, lost)
    return Gaps(shares, blur, drawn)


class _Hull(NamedTuple):
    """What the pair below loses where its values are not convex.

    A corner that is low, since the lines that support the profile in a cell beside it are, draws chords down
    on either side, however far: the cells beside it are to blame.

    Attributes:
        area: what is lost in each cell, shape (cells,).
        chord: the chord above each cell.
        blame: shares of the cells to blame in what their chords lose, shape (2, 2, chords): left and right
            of its left and its right corner.
        beside: these cells.
    """

    area: FloatArray
    chord: IndexArray
    blame: FloatArray
    beside: IndexArray

    @classmethod
    def of(cls, excess: FloatArray, known: FloatArray, below: Polygon) -> _Hull:
        """The hull of the polygon, where so much is known at the orders."""
        x, middle = below.excess[below.corners], (excess[1:] + excess[:-1]) / 2
        ends, middles = (np.maximum(below.at(one) - below.convex(one), 0.0) for one in (excess, middle))
        area = np.diff(excess) * (ends[1:] + ends[:-1] + 2 * middles) / 4
        chord = np.clip(np.searchsorted(x, middle, side="right") - 1, 0, x.size - 2)
        low = np.interp(x, excess, np.maximum(known - below.at(excess), 0.0)) + 1e-300
        share = low[:-1] / (low[:-1] + low[1:])
        beside = np.array([np.searchsorted(excess, x, side=side) for side in ("left", "right")]) - 1
        beside = np.clip(beside, 0, excess.size - 2)
        blame = np.array([share, 1 - share])[:, None, :] / 2 * np.ones((1, 2, 1))
        return cls(area, chord, blame, np.stack([beside[:, :-1], beside[:, 1:]]))

    def __call__(self, weight: FloatArray) -> FloatArray:
        """What each cell is to blame for, given the weights of areas, shape (cells,)."""
        lost = np.bincount(self.chord, weights=self.area * weight, minlength=self.blame.shape[2])
        shares = np.bincount(self.beside.ravel(), weights=(self.blame * lost).ravel(), minlength=weight.size)
        return np.asarray(shares)


class _Blame(NamedTuple):
    """Which cells keep pairs apart.

    Where a profile falls steeply within a cell, a line below it reaches 0, and the pair below ends there:
    what cells beyond keep the pairs apart by is due to the steep ones.

    Attributes:
        own: shares of what cells contribute that are their own, shape (losses - 1,).
        steep: shares of the steep cells in the rest, shape (losses - 1,).
    """

    own: FloatArray
    steep: FloatArray

    @classmethod
    def of(cls, bounds: ProfileBounds, values: ProfileBounds) -> _Blame:
        """The cells to blame for values from these bounds."""
        last = bounds.upper[1:] <= 0
        shown = np.log(np.maximum(bounds.upper, 1e-300))
        falls = np.where(last, 0.0, shown[:-1] - shown[1:])
        steep = np.where(falls > _STEEP, falls, 0.0)
        early = (values.lower <= 0) & (bounds.lower > 0)
        lost = np.logical_or.accumulate(early)[:-1] & ~last & np.any(steep > 0)
        # A chord is above what falls by the exponent h within it by about h^2 / 6, as a share of it.
        own = np.where(lost, np.minimum(falls**2 / 6, 1.0), 1.0)
        return cls(own, steep / max(float(steep.sum()), 1e-300))

    def __call__(self, shares: FloatArray) -> FloatArray:
        """What each cell contributes, with what it is to blame for."""
        return np.asarray(self.own * shares + self.steep * float(((1 - self.own) * shares).sum()))


def between(positions: IndexArray, found: Gaps, precision: float) -> IndexArray:
    """Positions that divide cells, so that the pairs come as close as was asked with the fewest of them.

    Cut into m pieces, a cell contributes about `1/m^2` of what it did: the sum is least, for so many pieces
    altogether, if m is proportional to the cube root of that.
    """
    own = np.maximum(found.shares - found.blur, 0.0)
    least, rest = _LEAST_AIM * precision, max(found.apart - found.blurred, 1e-300)
    share = (_AIM if found.apart > _FAR * precision else _AIM_NEAR) * precision
    roots, most = np.cbrt(own.max(axis=0, initial=0.0)), float(own.max(axis=0, initial=0.0).sum())
    # No tilt sees all of what cells contribute at their worst ones.
    aim = max(share - found.blurred, least) * max(most / rest, 1.0)
    wanted = roots * math.sqrt(float(roots.sum()) / aim)
    # Rounded up to a power of two, but for a little; as many as the positions allow.
    width = np.diff(positions)
    possible = np.minimum(width & -width, _MOST_PIECES)
    pieces = np.exp2(np.ceil(np.log2(np.clip(wanted, 1.0, _MOST_PIECES)) - 0.3)).astype(np.int64)
    pieces = np.minimum(pieces, possible)
    # Where that leaves too much at a tilt, cells are cut once more where it tells most.
    for parts, blur in zip(own, found.blur.sum(axis=1), strict=True):
        left = parts / pieces**2
        if (lacking := float(left.sum()) - max(share - blur, least)) > 0:
            gained = np.where(2 * pieces <= possible, 0.75 * left, 0.0)
            order = np.argsort(-gained / pieces)
            some = order[: int(np.searchsorted(np.cumsum(gained[order]), lacking)) + 1]
            pieces[some] = np.minimum(2 * pieces, possible)[some]
    added = []
    for number in (2, 4, _MOST_PIECES):
        starts, parts = positions[:-1][pieces == number], width[pieces == number] // number
        added.append((starts[:, None] + parts[:, None] * np.arange(1, number)).ravel())
    return np.sort(np.concatenate(added))
