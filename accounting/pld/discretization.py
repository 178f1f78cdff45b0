"""From a round's privacy profile to a discrete pair above and one below it, on a lattice of losses that is as
fine as the answers need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.convex_minorants import SupportingLines, corners
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution, Side
from shuffle_ledger.accounting.pld.grids import Gaps, Lattice, Polygon, Tilts, between, even, gaps, graded

Profile = Callable[[FloatArray], ProfileBounds]
_Pairs = tuple[PrivacyLossDistribution, PrivacyLossDistribution]

_PILOT_POINTS = 20
# Losses are small beside the largest one below this share of it, which the pilot's points hardly resolve.
_UNRESOLVED = 1e-4
# Losses of the first lattice are multiples of a unit, the largest one of no more units than that: sums of
# losses are transformed in arrays of about that size.
_MOST_UNITS = 1 << 22
# Spacing of the first lattice at precision 1, in deviations of the loss; less where orders are cheap.
_COARSE = 2.4
_FINE = 0.14
_ROOM = 64 * UNIT_ROUND_OFF
# Steps of the excess that a profile of height 1 needs for slopes to a tenth of what masses may be off by.
_DIGITS = 1e11 * UNIT_ROUND_OFF
# How far the loss before a largest one is from it at most, in units of the precision.
_END = 0.3
# A lattice whose pairs seem further apart than so much of the precision is made finer, at most so often, and
# no further where that hardly helped.
_ENOUGH = 0.95
_REFINEMENTS = 4
_MOST_POINTS = 6000
_HELPED = 0.8
# The pair below has a loss more in a cell whose corners would draw it down by so much of the precision, at
# one of so many parts of the cell, while the lattice has no more than `2^this` losses.
_BENT = 0.02
_PARTS = 32
_SPAN = 12
_DEEPER = 1.5
# What a lattice may leave of the pairs' distance where the profile's own bounds are so much of it.
_MOSTLY = 0.7
_LEFT = 0.4
# The distance of the profile's own bounds that is asked for where it is more than that, as a share of the
# precision; by how much they are made closer at most; and at how many orders that is tried first.
_SHARP, _SHARPEST, _PROBED = 0.5, 0.05, 8


class _Made(NamedTuple):
    """Pairs on a lattice, how far they are apart, and which cells are to blame for that."""

    pairs: _Pairs
    apart: float
    gaps: Gaps


class _Pairing(NamedTuple):
    """What pairs above and below a profile are made by: its largest loss, what of it is certainly infinite,
    the precision, and whether lattices go up to the largest loss."""

    largest_loss: float
    infinity: float
    precision: float
    bounded: bool

    def __call__(self, lattice: Lattice, bounds: ProfileBounds) -> _Made:
        """The pairs on a lattice, from bounds at its orders."""
        values = _values(lattice, bounds, support=self.largest_loss, bounded=self.bounded)
        upper = Polygon.of(lattice.positions, lattice.excess, values.upper)
        above = _pair(upper, lattice.unit, support=self.largest_loss, side="upper")
        lines = _Below.of(lattice, values, self.infinity)

        none, tilts = np.zeros(0, dtype=np.int64), Tilts.of(lattice.excess, above)

        def compared(below: Polygon, plain: Polygon) -> Gaps:
            shown = ProfileBounds(values.upper, plain.values)
            return gaps(lattice.excess, bounds, shown, below, tilts)

        below = plain = lines.polygon(none, steep=False)
        found = compared(below, plain)
        bent = np.flatnonzero(found.drawn > _BENT * self.precision)
        if bent.size:
            below = lines.polygon(bent, steep=False)
            found = compared(below, plain)
        apart = found.apart
        if np.any((below.at(lattice.excess)[:-1] <= 0) & (bounds.lower[:-1] > 0)):
            longer = plain = lines.polygon(none, steep=True)
            if bent.size:
                longer = lines.polygon(bent, steep=True)
            # Cells stay to blame for where the other one ends.
            if (other := compared(longer, plain).apart) < apart:
                below, apart = longer, other
        lower = _pair(below, lattice.unit, support=self.largest_loss, side="lower")
        return _Made((above, lower), apart, found)


def from_profile(
    profile: Profile,
    *,
    largest_loss: float,
    end: float,
    infinity: float,
    precision: float,
    pilot: Profile | None = None,
    model: Profile | None = None,
    once: bool = True,
    sharper: Callable[[float], Profile] | None = None,
    cheap: bool = False,
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Discrete pairs above and below a symmetric privacy profile: connect the dots, and supporting lines.

    Args:
        profile: bounds on the hockey-stick divergence at orders `1 + excess`, for ascending `excess >= 0`.
        largest_loss: loss beyond which the profile is exactly 0 (may be infinite).
        end: loss beyond which the profile is negligible; what is left there counts as infinite loss.
        infinity: lower bound on the mass at infinite loss, hence on the profile everywhere.
        precision: wanted relative width of epsilon, to which the lattice is matched.
        pilot: bounds on the same profile, as rough as may be, by which the first lattice is chosen.
        model: a profile much like it, by which the lattice is made finer first.
        once: whether the profile itself costs too much to be asked more than once, for all orders together.
        sharper: the profile with bounds that are closer by about such a factor, for profiles whose own are so
            far apart that no lattice would do.
        cheap: whether orders cost next to nothing, so that a finer lattice is taken, even where that is fine
            enough.

    Guarantee: the profile of the first pair is at least, that of the second at most, the given profile, at
    every order.
    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots"; the lower pair: docs/theory.md.
    """
    # Masses are changes of slopes: on steps too fine for the profile's own digits they would be noise.
    pilot = profile if pilot is None else pilot
    finest = _DIGITS * float(pilot(np.zeros(1)).upper[0])
    end = max(end, finest)
    stop, bounded = min(largest_loss, end), end >= largest_loss
    first = _first_lattice(pilot, stop, precision, finest, cheap=cheap)
    if bounded:  # the largest loss is all that the smallest deltas see
        first = first.fine_at_the_end(_END * precision * stop)

    pairs = _Pairing(largest_loss, infinity, precision, bounded)
    if model is None:
        return _refined(profile, first, pairs, sharper)[1]
    lattice = _refined(model, first, pairs)[0]
    if once:
        return pairs(lattice, profile(lattice.excess)).pairs
    return _refined(profile, lattice, pairs)[1]


def _refined(
    profile: Profile,
    lattice: Lattice,
    pairs: _Pairing,
    sharper: Callable[[float], Profile] | None = None,
) -> tuple[Lattice, _Pairs]:
    """The lattice made finer, until its pairs are as close as asked or that hardly helps; and the pairs."""
    bounds, precision = profile(lattice.excess), pairs.precision
    last = pairs(lattice, bounds)
    blurred = last.gaps.blurred
    if sharper is not None and blurred > _MOSTLY * precision:
        sharp = sharper(max(_SHARP * precision / blurred, _SHARPEST))
        worst = np.sort(np.argsort(-last.gaps.blurs)[:_PROBED])
        if _is_closer(sharp(lattice.excess[worst]), ProfileBounds(*(one[worst] for one in bounds))):
            profile, bounds = sharp, sharp(lattice.excess)
            last = pairs(lattice, bounds)
    best, known = last, lattice
    for _ in range(_REFINEMENTS):
        found = last.gaps
        added = between(lattice.positions, found, precision)
        rest = found.apart - found.blurred
        if found.blurred > _MOSTLY * precision and rest <= _LEFT * precision:
            break
        if last.apart <= _ENOUGH * precision or not added.size:
            break
        if lattice.positions.size + added.size > _MOST_POINTS:
            break
        lattice, bounds = _with_points(profile, lattice, bounds, added)
        before, last = last.apart, pairs(lattice, bounds)
        if last.apart < best.apart:
            best, known = last, lattice
        if last.apart > _HELPED * before:
            break
    return known, best.pairs


def _is_closer(bounds: ProfileBounds, others: ProfileBounds) -> bool:
    """Whether bounds are closer than others at most orders; what round-off keeps apart is not."""
    apart, before = (one.upper - one.lower for one in (bounds, others))
    return bool(np.median(apart - _HELPED * before) < 0)


def _first_lattice(pilot: Profile, stop: float, precision: float, finest: float, *, cheap: bool) -> Lattice:
    """A lattice to begin with, which may be made finer."""
    deviation = _deviation(pilot, stop, finest)
    spacing = deviation * (_FINE if cheap else _COARSE) * math.sqrt(precision)
    spacing = max(spacing, finest, stop / _MOST_UNITS)
    lattice = graded(deviation, stop, spacing)
    if cheap and (equal := even(stop, precision, finest)).unit <= 2 * lattice.unit:
        lattice = equal  # which would else be coarser where the mass is
    return lattice.divisible(finest)


def _with_points(
    profile: Profile, lattice: Lattice, bounds: ProfileBounds, added: IndexArray
) -> tuple[Lattice, ProfileBounds]:
    """The lattice with more positions, and the bounds at all of them."""
    places = np.searchsorted(lattice.positions, added)
    more = profile(Lattice(added, lattice.unit).excess)
    both = (np.insert(old, places, new) for old, new in zip(bounds, more, strict=True))
    return Lattice(np.insert(lattice.positions, places, added), lattice.unit), ProfileBounds(*both)


def _values(lattice: Lattice, bounds: ProfileBounds, *, support: float, bounded: bool) -> ProfileBounds:
    """Bounds at the lattice's orders as pairs have them, the profile being 0 at the lattice's end if
    `bounded`."""
    excess = lattice.excess
    # Turning values into masses and back rounds each by a few units: the bounds make room for it.
    upper = np.minimum.accumulate(np.minimum(bounds.upper * (1 + _ROOM), 1.0))
    # A convex function below the values is below their minorant, whose slopes tell more.
    upper = np.minimum(upper, _convex(excess, upper))
    lower = np.minimum(bounds.lower * (1 - _ROOM), upper)
    if bounded and lattice.end >= support:
        upper[-1] = lower[-1] = 0.0
    # A symmetric profile falls at order 1 by at most (1 - H)/2, so each value bounds the first one.
    upper[0] = min(upper[0], float(((upper + excess / 2) / (1 + excess / 2)).min()))
    return ProfileBounds(upper, np.minimum(lower, upper))


class _Below(NamedTuple):
    """What is certain below a profile.

    Attributes:
        lattice: losses at whose orders it is known.
        lines: lines below the profile, less what is certainly infinite.
        certain: that.
    """

    lattice: Lattice
    lines: SupportingLines
    certain: float

    @classmethod
    def of(cls, lattice: Lattice, values: ProfileBounds, infinity: float) -> _Below:
        """The lines of a profile between these values."""
        upper, lower = values
        # What is certainly infinite is taken off first: the rest of the profile is convex and falls to 0.
        certain = min(infinity, float(upper[-1]))
        least = np.maximum(lower - certain, 0.0)
        steepest = -(1 - float(lower[0])) / 2  # of a symmetric one
        return cls(lattice, SupportingLines.of(lattice.excess, upper - certain, least, steepest), certain)

    def polygon(self, cells: IndexArray, *, steep: bool) -> Polygon:
        """Values at losses, more than those of the lattice where these cells can be bent, whose greatest
        convex minorant lies below the profile; see `SupportingLines.values` for steep ones."""
        positions, unit = self.lattice
        cells, bends = self._bends(cells)
        values = self.certain + self.lines.values(cells, np.expm1(bends * unit), steep=steep)
        positions = np.insert(positions, cells + 1, bends)
        excess = np.expm1(positions * unit)
        # A pair begins with the line, no steeper than that of a symmetric profile, that touches it from
        # below.
        begin = (values + excess / 2) / (1 + excess / 2)
        touch = int(begin.argmin())
        values[:touch] = begin[touch] - (1 - begin[touch]) / 2 * excess[:touch]
        return Polygon.of(positions, excess, values)

    def _bends(self, cells: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Of the cells those that have a position within them that lies above 0, near where their lines meet;
        and these."""
        positions, unit = self.lattice
        start, width = positions[cells], np.diff(positions)[cells]
        finest = min(1 << max(int(positions[-1]).bit_length() - _SPAN, 0), self.lattice.stride)
        part = np.maximum(np.exp2(np.floor(np.log2(width / _PARTS))).astype(np.int64), finest)
        place = np.round((np.log1p(self.lines.meeting[cells]) / unit - start) / part).astype(np.int64)
        place = np.clip(place, 1, np.maximum((width - 1) // part, 1)) * part
        cells, bends = cells[place < width], (start + place)[place < width]
        # Where lines meet too near an end, no position in between would do any better.
        excess, lines = np.expm1(bends * unit), self.lines
        values, sag = lines.at(cells, excess), lines.sag[cells]
        share = (excess - lines.excess[cells]) / (lines.excess[cells + 1] - lines.excess[cells])
        chord = (1 - share) * lines.lower[cells] + share * lines.lower[cells + 1]
        helps = (values > 0) & (chord - values <= _DEEPER * sag)
        return cells[helps], bends[helps]


def _convex(excess: FloatArray, values: FloatArray) -> FloatArray:
    """The greatest convex minorant of the points, at all of them; a little more, for rounding."""
    kept = corners(excess, values)
    end = np.clip(np.searchsorted(kept, np.arange(excess.size)), 1, None)
    x0, x1, y0, y1 = excess[kept[end - 1]], excess[kept[end]], values[kept[end - 1]], values[kept[end]]
    # Both terms are positive: nothing is lost where the values fall by many digits.
    chords = (x1 - excess) / (x1 - x0) * y0 + (excess - x0) / (x1 - x0) * y1
    return np.asarray(chords * (1 + _ROOM))


def _deviation(profile: Profile, stop: float, finest: float) -> float:
    """About the deviation of the loss, by which lattices are graded; looked for among small losses alone
    where nearly all of it is theirs."""
    pilot = np.concatenate([[0.0], np.geomspace(stop * 1e-5, stop, _PILOT_POINTS)])
    excess = np.expm1(pilot)
    values = np.minimum.accumulate(np.minimum(profile(excess).upper, 1.0))
    q = _slope_changes(excess, values, corners(excess, values))
    second = float((pilot[1:] ** 2 * q * (2 + excess[1:])).sum())
    # Of small losses the divergence is half the variance; among large ones it rules what they add up to.
    divergence = float((pilot[1:] * q * excess[1:]).sum())
    deviation = math.sqrt(min(second, 2 * divergence))
    size = second / max(float((pilot[1:] * q * (2 + excess[1:])).sum()), 1e-300)
    if deviation > finest and size < _UNRESOLVED * stop:
        return _deviation(profile, size / (10 * _UNRESOLVED), finest)
    return max(deviation, _UNRESOLVED * stop)


def _slope_changes(excess: FloatArray, values: FloatArray, kept: IndexArray) -> FloatArray:
    """Masses under Q at the positive losses of the greatest convex minorant of the points, zero where it has
    no corner."""
    slopes = np.diff(values[kept]) / np.diff(excess[kept])
    changes = np.zeros(len(excess))
    changes[kept[1:]] = np.append(slopes[1:], 0.0) - slopes
    return np.maximum(changes[1:], 0.0)


def _pair(polygon: Polygon, unit: float, *, support: float, side: Side) -> PrivacyLossDistribution:
    """The pair whose profile is the polygon's greatest convex minorant."""
    shown, excess = Lattice(polygon.positions, unit).reduced(), polygon.excess
    q = _slope_changes(excess, polygon.values, polygon.corners)
    kept = q > 0
    q = q[kept]
    p = q * (1 + excess[1:][kept])
    infinity = float(polygon.values[-1])
    zero = 1.0 - infinity - math.fsum(np.concatenate([p, q]))
    if zero < 0:
        # Round-off of a pair without mass at 0. For an upper pair dropping the deficit adds mass, never
        # removes it; a lower pair gives it up proportionally.
        if side == "lower":
            shrink = 1 / (1 - zero)
            p, q, infinity = p * shrink, q * shrink, infinity * shrink
        zero = 0.0
    return PrivacyLossDistribution(
        spacing=shown.unit,
        index=shown.positions[1:][kept],
        p=p,
        q=q,
        zero=zero,
        infinity=infinity,
        support=support,
        side=side,
    )
