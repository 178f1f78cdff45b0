"""The choice of the lattice of privacy losses: graded first, then refined in the cells that contribute most
to the distance between the pair above and the pair below.

No bound depends on this choice: pairs on any lattice are bounds. Only their distance and the run time do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import TINY, UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.convex_minorants import corners
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds, Sketch
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.pld.tilting import TILT_RATIO

# Largest number of losses of the first lattice. More: memory and time.
_MAXIMUM_POINTS = 1 << 15
# Cells can be halved at most this often, while the lattice has at most this many positions.
_MOST_HALVINGS = 9
_MAXIMUM_SPAN = 1 << 18
# The distance of the pairs that a refinement aims at, as a share of the precision: the second one if they are
# at most the third number times the precision apart, since the estimate is then better. And the least share
# that the lattice is allowed, however wide the profile's bounds are.
_AIM, _AIM_NEAR, _FAR = 0.75, 0.9, 3.0
_LEAST_AIM = 0.3
# Most pieces into which a refinement cuts one cell.
_MOST_PIECES = 8
# Pairs are compared at every eighth tilt of the grid, at most this many, from this tilt (in units of
# 1/deviation) on, and up to a delta of exp(-70), about 1e-30, if the round is by far the largest of several.
_TILT_STRIDE = 8
_MOST_TILTS = 30
_SMALLEST_TILT = 0.05
_DEEPEST_LOG_DELTA = 70.0
# Number of rounds that is assumed at most, and the probability, over all rounds, below which a loss is
# ignored: it has no effect on a delta of 1e-30, but would dominate moments.
_MOST_ROUNDS, _IGNORED_MASS = 1e5, 1e-34
# Distance of the profiles, over all rounds, that is ignored: it has no effect on a delta of 1e-30.
_IGNORED_DISTANCE = 1e-32
# A cell is steep if the profile falls by more than this exponent in it.
_STEEP_FALL = 1.0
# Losses of the first lattice are evenly spaced up to the root of 2 times this number of deviations. Its
# spacing may be smaller where the tilt that suits a loss is above the second number over the deviation. The
# last number, over the deviation, limits these tilts.
_EVEN_DEVIATIONS, _STEEP_TILT, _STEEPEST_FALL = 8.0, 3.0, 1e6
# Largest logarithm of the weight of an order in a moment; beyond, a single cell dominates anyway.
_MOST_LOG_WEIGHT = 300.0


class Lattice(NamedTuple):
    """The losses `positions * unit`, ascending from 0; positions are integers, shape (losses,)."""

    positions: IndexArray
    unit: float

    @property
    def excess(self) -> FloatArray:
        """Returns the orders of the losses, minus one: `exp(loss) - 1`."""
        return np.asarray(np.expm1(self.positions * self.unit), dtype=np.float64)

    @property
    def end(self) -> float:
        """Returns the last loss."""
        return float(self.positions[-1] * self.unit)

    @property
    def stride(self) -> int:
        """Returns the largest power of two that divides all positions."""
        together = int(np.bitwise_or.reduce(self.positions))
        return together & -together

    def divisible(self, finest: float) -> Lattice:
        """Returns the same losses in a smaller unit, at least `finest`, so that cells can be halved."""
        halvings = 0
        while (
            halvings < _MOST_HALVINGS
            and self.positions[-1] << (halvings + 1) <= _MAXIMUM_SPAN
            and math.ldexp(self.unit, -halvings - 1) >= finest
        ):
            halvings += 1
        return Lattice(self.positions << halvings, math.ldexp(self.unit, -halvings))

    def fine_at_the_end(self, resolution: float) -> Lattice:
        """Adds losses before the last one, at a distance of at most `resolution` if the unit allows it, and
        at twice, four times, ... that distance."""
        last, before = int(self.positions[-1]), int(self.positions[-2])
        step = 1 << max(math.frexp(resolution / self.unit)[1] - 1, 0)
        added = [last - (step << doubling) for doubling in range((last - before).bit_length())]
        kept = [position for position in added if position > before]
        return Lattice(np.union1d(self.positions, np.array(kept, dtype=np.int64)), self.unit)

    def thinned(self, size: int) -> Lattice:
        """Returns about this many of the losses, the first and the last one among them."""
        if size >= self.positions.size:
            return self
        kept = np.unique(np.rint(np.linspace(0, self.positions.size - 1, max(size, 2))).astype(np.int64))
        return Lattice(self.positions[kept], self.unit)

    def reduced(self) -> Lattice:
        """Returns the same losses in the largest unit that is this one times a power of two."""
        halvings = self.stride.bit_length() - 1
        return Lattice(self.positions >> halvings, math.ldexp(self.unit, halvings))


class Gaps(NamedTuple):
    """The relative distance of the epsilons of the pairs above and below a profile, at several tilts, cell by
    cell.

    Attributes:
        shares: contribution of each cell, shape (tilts, losses - 1).
        blur: the part of it that is due to the bounds of the profile, not to the lattice, shape (tilts,
            losses - 1).
        drawn: the largest loss of the pair below that each cell causes elsewhere, because its corners are low
            (see `_Hull`), shape (losses - 1,).
    """

    shares: FloatArray
    blur: FloatArray
    drawn: FloatArray

    @property
    def apart(self) -> float:
        """Returns about the largest relative distance of the epsilons, over all numbers of rounds."""
        return float(self.shares.sum(axis=1).max(initial=0.0))

    @property
    def blurred(self) -> float:
        """Returns the part of it that is due to the bounds of the profile."""
        return float(self.blur.sum(axis=1).max(initial=0.0))

    @property
    def cells(self) -> FloatArray:
        """Returns the largest contribution of each cell over the tilts, shape (losses - 1,)."""
        return np.asarray(self.shares.max(axis=0, initial=0.0))

    @property
    def blurs(self) -> FloatArray:
        """Returns the largest part due to the profile's bounds in each cell, shape (losses - 1,)."""
        return np.asarray(self.blur.max(axis=0, initial=0.0))


class Polygon(NamedTuple):
    """A piecewise linear function of the order, given by its values; arrays of shape (positions,).

    Attributes:
        positions: lattice positions of the losses, ascending.
        excess: the orders of these losses, minus one.
        values: values there.
        corners: places of the corners of its greatest convex minorant.
    """

    positions: IndexArray
    excess: FloatArray
    values: FloatArray
    corners: IndexArray

    @classmethod
    def of(
        cls, positions: IndexArray, excess: FloatArray, values: FloatArray, *, straight: float = 0.0
    ) -> Polygon:
        """Makes the polygon with these values; `straight` as in `corners`, where values are upper bounds."""
        return cls(positions, excess, values, corners(excess, values, straight=straight))

    def at(self, excess: FloatArray) -> FloatArray:
        """Returns values at some orders, up to round-off."""
        return np.interp(excess, self.excess, self.values)

    def convex(self, excess: FloatArray) -> FloatArray:
        """Returns values of its greatest convex minorant, up to round-off."""
        return np.interp(excess, self.excess[self.corners], self.values[self.corners])


def graded(sketch: Sketch, deviation: float, spacing: float, *, bits: int) -> Lattice:
    """Returns a lattice from 0 to the last loss of the sketch, with about this spacing where the loss is up
    to `_EVEN_DEVIATIONS` deviations, and spacings that grow with the loss beyond.

    Two pairs on a lattice of spacing d are apart by `d^2 theta (theta + 1) / K(theta)`, up to a factor, at
    the tilt that suits the loss. If K grows less than that of a Gaussian loss of this deviation, the spacing
    is smaller, by at most two to the power `bits`.
    """
    stop = float(sketch.losses[-1])
    while True:
        last = math.ceil(stop / spacing) << bits
        unit = stop * (1 + 2 * UNIT_ROUND_OFF) / last
        ends, strides = _strides(sketch, deviation, spacing / unit, unit)
        runs = [
            np.arange(-(-start // stride) * stride, end, stride)
            for start, end, stride in zip(ends[:-1], ends[1:], strides, strict=True)
        ]
        positions = np.append(np.concatenate(runs), last).astype(np.int64)
        if positions.size <= _MAXIMUM_POINTS:
            return Lattice(positions, unit)
        spacing *= 2


def _strides(sketch: Sketch, deviation: float, usual: float, unit: float) -> tuple[list[int], list[int]]:
    """Returns the ends of runs of lattice positions, from 0 to the last loss of the sketch, and the stride of
    each run, a power of two."""
    x, step = sketch.losses, np.diff(sketch.losses)
    middle, value = (one[1:] / 2 + one[:-1] / 2 for one in sketch)
    fall = np.minimum(-np.diff(sketch.log_values) / step, _STEEPEST_FALL / deviation)
    square = np.maximum(fall * (fall + 1) * deviation**2, _STEEP_TILT**2)
    moment = fall * middle + value + np.log(square / deviation * math.sqrt(2 * math.pi))
    share = np.where(square > _STEEP_TILT**2, np.sqrt(np.clip(2 * moment / square, TINY, 1.0)), 1.0)
    share *= np.maximum(middle / (_EVEN_DEVIATIONS * deviation), 1.0)
    bits = np.maximum(np.round(np.log2(share * usual)), 0.0).astype(np.int64)
    starts = np.flatnonzero(np.append(True, np.diff(bits) != 0))
    ends = np.rint(np.append(x[starts], x[-1]) / unit).astype(np.int64)
    return ends.tolist(), (1 << bits[starts]).tolist()


class Tilts(NamedTuple):
    """The tilts at which pairs are compared.

    Attributes:
        weights: relative effect of a unit of area between two profiles, in each cell of orders, on the
            logarithm of the moment, shape (tilts, losses - 1).
        rounds: number of rounds at which the tilt suits a delta of about 1e-30, shape (tilts,).
    """

    weights: FloatArray
    rounds: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, above: PrivacyLossDistribution) -> Tilts:
        """Chooses the tilts for a pair, with weights for the cells between these orders (minus one)."""
        chosen = list(_chosen_tilts(above))
        if not chosen:
            return cls(np.empty((0, excess.size - 1)), np.empty(0))
        theta, log_mass, growth, rounds, last = (column[:, None] for column in np.array(chosen).T)
        log_order = np.log1p((excess[:-1] + excess[1:]) / 2)
        log_weight = np.logaddexp((theta - 1) * log_order, -(theta + 2) * log_order) - log_mass
        weights = theta * (theta + 1) / growth * np.exp(np.minimum(log_weight, _MOST_LOG_WEIGHT))
        weights[excess[:-1] >= np.expm1(last)] = 0.0
        return cls(weights, rounds[:, 0])


def _chosen_tilts(above: PrivacyLossDistribution) -> Iterator[tuple[float, float, float, float, float]]:
    """Yields tilts; the logarithms of the moments, without and with the condition that the loss is finite;
    numbers of rounds as in `Tilts`; and the largest losses that are not ignored at these."""
    variance, size = above.variance(), above.index.size
    with np.errstate(divide="ignore"):
        log_masses = np.log(np.concatenate([above.q[::-1], [above.zero], above.p]))
    losses = np.concatenate([-above.losses[::-1], [0.0], above.losses])
    tails, rounds = np.append(np.cumsum((above.p + above.q)[::-1])[::-1], 0.0), _MOST_ROUNDS
    first = math.ceil(math.log(_SMALLEST_TILT / math.sqrt(variance or 1.0)) / math.log(TILT_RATIO))
    for tilt in range(first, first + _MOST_TILTS * _TILT_STRIDE, _TILT_STRIDE):
        kept = int(np.argmax(tails <= _IGNORED_MASS / rounds))
        if not kept:
            return
        theta, seen = TILT_RATIO**tilt, slice(size - kept, size + kept + 1)
        exponents = log_masses[seen] + theta * losses[seen]
        top = float(exponents.max())
        masses = np.exp(exponents - top)
        total = float(masses.sum())
        log_mass = top + math.log(total)
        growth = log_mass - math.log1p(-above.infinity - float(tails[kept]))
        depth = theta * float(masses @ losses[seen]) / total - growth
        if growth <= 0 or depth > _DEEPEST_LOG_DELTA:
            return
        rounds = min(_DEEPEST_LOG_DELTA / max(depth, _DEEPEST_LOG_DELTA / _MOST_ROUNDS), _MOST_ROUNDS)
        yield theta, log_mass, growth, rounds, float(losses[size + kept])


def gaps(
    excess: FloatArray, bounds: ProfileBounds, values: ProfileBounds, below: Polygon, tilts: Tilts
) -> Gaps:
    """Estimates the contribution of each cell to the distance between the pairs.

    Args:
        excess: orders minus one, ascending, shape (orders,).
        bounds: bounds on the profile at these orders.
        values: the values from which the pairs are made.
        below: the polygon whose convex minorant is the profile of the lower pair.
        tilts: the tilts to compare at.

    For k rounds epsilon is near the least of `(k K(theta) - log delta) / theta` over the tilts, K the
    logarithm of `E[exp(theta L)]`. So the relative distance of epsilons is about that of K. The moment is a
    mixture of hockey-stick divergences, to which every cell of orders contributes.

    Source: docs/theory/pld.md, P5.
    """
    half, weights = np.diff(excess) / 2, tilts.weights
    ignored = _IGNORED_DISTANCE / tilts.rounds[:, None]

    def weighted(distance: FloatArray) -> FloatArray:
        noted = np.maximum(distance - ignored, 0.0)
        return np.asarray((noted[:, 1:] + noted[:, :-1]) * half * weights)

    lost = _Hull.of(excess, bounds.lower, below)(weights)
    shares = _Blame.of(bounds, values)(weighted(values.upper - values.lower)) + lost
    # An upper bound above the chord of its neighbours does no harm.
    blurs = weighted(np.minimum(bounds.upper, values.upper) - bounds.lower)
    return Gaps(shares, blurs, lost.max(axis=0, initial=0.0))


class _Hull(NamedTuple):
    """The loss of the lower pair where its values are not convex: the area between polygon and convex
    minorant.

    A low corner, caused by low supporting lines in a neighbouring cell, lowers the chords on both sides,
    possibly over many cells. The cells beside the corner are refined, not those under the chord.

    Attributes:
        area: area that is lost in each cell, shape (cells,).
        chord: number of the minorant's chord that spans each cell, shape (cells,).
        share: for every chord, the share of its loss that its left corner causes, shape (chords,).
        beside: numbers of the cells left and right of every corner, shape (2, corners).
    """

    area: FloatArray
    chord: IndexArray
    share: FloatArray
    beside: IndexArray

    @classmethod
    def of(cls, excess: FloatArray, known: FloatArray, below: Polygon) -> _Hull:
        """Compares the polygon with its convex minorant; `known` are the lower bounds at the orders."""
        x, middle = below.excess[below.corners], (excess[1:] + excess[:-1]) / 2
        ends, middles = (np.maximum(below.at(one) - below.convex(one), 0.0) for one in (excess, middle))
        area = np.diff(excess) * (ends[1:] + ends[:-1] + 2 * middles) / 4
        chord = np.clip(np.searchsorted(x, middle, side="right") - 1, 0, x.size - 2)
        low = np.interp(x, excess, np.maximum(known - below.at(excess), 0.0)) + TINY
        share = low[:-1] / (low[:-1] + low[1:])
        beside = np.array([np.searchsorted(excess, x, side=side) for side in ("left", "right")]) - 1
        return cls(area, chord, share, np.clip(beside, 0, excess.size - 2))

    def __call__(self, weights: FloatArray) -> FloatArray:
        """Returns the loss that is assigned to each cell, given the weights of areas, both of shape (tilts,
        cells)."""
        lost = _grouped(self.area * weights, self.chord, self.share.size)
        caused = np.zeros((len(weights), self.share.size + 1))
        caused[:, :-1] = lost * self.share / 2
        caused[:, 1:] += lost * (1 - self.share) / 2
        before, after = (_grouped(caused, cells, weights.shape[1]) for cells in self.beside)
        return before + after


def _grouped(values: FloatArray, group: IndexArray, groups: int) -> FloatArray:
    """Returns the sums of columns of the same group, shape (rows, groups); `group` ascends."""
    sums = np.zeros((len(values), group.size + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return np.diff(sums[:, np.searchsorted(group, np.arange(groups + 1))], axis=1)


class _Blame(NamedTuple):
    """Assigns the distance between the pairs to the cells that cause it.

    If a profile falls steeply within a cell, the line below it reaches 0 and the lower pair ends there. The
    distance in all cells beyond is then caused by the steep cells.

    Attributes:
        own: share of each cell's contribution that the cell causes, shape (losses - 1,).
        steep: shares of the steep cells in the rest, shape (losses - 1,).
    """

    own: FloatArray
    steep: FloatArray

    @classmethod
    def of(cls, bounds: ProfileBounds, values: ProfileBounds) -> _Blame:
        """Computes the shares for values made from these bounds."""
        last = bounds.upper[1:] <= 0
        shown = np.log(np.maximum(bounds.upper, TINY))
        falls = np.where(last, 0.0, shown[:-1] - shown[1:])
        steep = np.where(falls > _STEEP_FALL, falls, 0.0)
        early = (values.lower <= 0) & (bounds.lower > 0)
        lost = np.logical_or.accumulate(early)[:-1] & ~last & np.any(steep > 0)
        # If the profile falls by the exponent h in a cell, its chord is above it by a relative h^2 / 6.
        own = np.where(lost, np.minimum(falls**2 / 6, 1.0), 1.0)
        return cls(own, steep / max(float(steep.sum()), TINY))

    def __call__(self, shares: FloatArray) -> FloatArray:
        """Returns the contributions, shape (tilts, cells), moved to the cells that cause them."""
        moved = ((1 - self.own) * shares).sum(axis=1, keepdims=True)
        return np.asarray(self.own * shares + self.steep * moved)


def between(positions: IndexArray, found: Gaps, precision: float) -> IndexArray:
    """Returns positions that divide cells, about the fewest that bring the pairs within the precision.

    A cell cut into m pieces contributes about `1/m^2` of its present contribution. For a given number of
    pieces altogether, the sum is smallest if m is proportional to the cube root of the contribution.
    """
    own = np.maximum(found.shares - found.blur, 0.0)
    least, rest = _LEAST_AIM * precision, max(found.apart - found.blurred, TINY)
    share = (_AIM if found.apart > _FAR * precision else _AIM_NEAR) * precision
    roots, most = np.cbrt(own.max(axis=0, initial=0.0)), float(own.max(axis=0, initial=0.0).sum())
    # The largest contributions of the cells occur at different tilts: their sum is larger than at any tilt.
    aim = max(share - found.blurred, least) * max(most / rest, 1.0)
    wanted = roots * math.sqrt(float(roots.sum()) / aim)
    # Rounded to a power of two, mostly up, and limited by the positions.
    width = np.diff(positions)
    possible = np.minimum(width & -width, _MOST_PIECES)
    pieces = np.exp2(np.ceil(np.log2(np.clip(wanted, 1.0, _MOST_PIECES)) - 0.3)).astype(np.int64)
    pieces = np.minimum(pieces, possible)
    # If the distance at a tilt is still too large, the cells where it gains most are cut once more.
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
