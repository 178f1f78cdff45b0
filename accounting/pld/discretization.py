"""Discretization: from a round's privacy profile to a discrete pair above and one below it, on a lattice of
losses fine enough for the wanted precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.convex_minorants import SupportingLines, corners
from shuffle_ledger.accounting.numeric.effort import counted
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds, Sketch
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA, PrivacyLossDistribution, Side
from shuffle_ledger.accounting.pld.grids import Gaps, Lattice, Polygon, Tilts, between, gaps, graded

Profile = Callable[[FloatArray], ProfileBounds]
_Pairs = tuple[PrivacyLossDistribution, PrivacyLossDistribution]

# Losses below this share of the largest one are not resolved.
_RESOLVED_SHARE = 1e-4
_LOG_NEGLIGIBLE = math.log(NEGLIGIBLE_DELTA)
# Losses of the first lattice are multiples of a unit, and the largest one at most this many units: the
# transforms of a composition have arrays of about this size.
_MOST_UNITS = 1 << 22
# Spacing of the first lattice, in deviations of the loss times the root of the precision, and the power of
# two by which it may be smaller; and the same if orders are cheap. Fewer if the units would be too many.
_FIRST_SPACING = (0.42, 1)
_CHEAP_SPACING = (0.12, 3)
# Relative room for the round-off of turning a profile into masses and back.
_PROFILE_ROUND_OFF = 64 * UNIT_ROUND_OFF
# Upper bounds of a discrete law lie on lines but for round-off, which differs between processors. A corner is
# where the slope changes by more than this share.
_STRAIGHT = 1e-9
# Least step of the excess for a profile of height 1: slopes then have a tenth of the error allowed for
# masses.
_LEAST_STEP = 1e11 * UNIT_ROUND_OFF
# Largest distance between the last two losses of a bounded lattice, in units of the precision.
_END_SPACING = 0.3
# A lattice is refined while its pairs are further apart than this share of the precision, at most this often
# and up to this many losses, and only if the last refinement left at most this share of the distance.
_ENOUGH = 0.95
_MOST_REFINEMENTS = 4
_MOST_POINTS = 6000
_HELPFUL_SHARE = 0.8
# The pair below gets one more loss in a cell if that gains more than this share of the precision: at a
# multiple of about this part of the cell, on a lattice of at most `2^12` steps, and only if its value there
# is at most this many times the optimal distance below the chord.
_WORTH_A_BEND = 0.02
_PARTS_OF_CELL = 32
_BEND_BITS = 12
_MOST_SAG = 1.5
# The pair below may end where the profile is at most this.
_IGNORED_VALUE = 1e-37
# If the profile's bounds cause more than the first share of the precision, the lattice may cause the second.
_MOSTLY_BOUNDS = 0.7
_LATTICE_SHARE = 0.4
# Sharper bounds are then asked to cause this share of the precision, but at most this factor closer at once;
# they are tried first at this many orders.
_SHARP_SHARE, _MOST_SHARPENING, _PROBED_ORDERS = 0.5, 0.05, 8
# Orders at which the effort of a profile is measured, and the fewest that a lattice keeps to save effort.
_MEASURED_ORDERS, _FEWEST_ORDERS = 8, 32
# From this number of orders on, the effort of the first lattice is measured before it is taken.
_MANY_ORDERS = 1000
# Share of the effort that a model may take.
_MODEL_SHARE = 1 / 4
# A sharper profile takes about this many times the effort.
_SHARPER_EFFORT = 2.0


class _Made(NamedTuple):
    """Pairs on a lattice, the relative distance of their epsilons, and the contribution of each cell to
    it."""

    pairs: _Pairs
    apart: float
    gaps: Gaps


class _Pairing(NamedTuple):
    """Makes pairs above and below a profile.

    Attributes:
        largest_loss: loss beyond which the profile is exactly 0.
        infinity: lower bound on the mass at infinite loss.
        precision: wanted relative width of epsilon.
        bounded: whether lattices go up to the largest loss.
    """

    largest_loss: float
    infinity: float
    precision: float
    bounded: bool

    def __call__(self, lattice: Lattice, bounds: ProfileBounds) -> _Made:
        """Makes the pairs on a lattice from bounds on the profile at its orders."""
        values = _values(lattice, bounds, support=self.largest_loss, bounded=self.bounded)
        upper = Polygon.of(lattice.positions, lattice.excess, values.upper, straight=_STRAIGHT)
        above = _pair(upper, lattice.unit, support=self.largest_loss, side="upper")
        lines = _Below.of(lattice, values, self.infinity)

        none, tilts = np.zeros(0, dtype=np.int64), Tilts.of(lattice.excess, above)

        def compared(below: Polygon, plain: Polygon) -> Gaps:
            shown = ProfileBounds(values.upper, plain.values)
            return gaps(lattice.excess, bounds, shown, below, tilts)

        below = plain = lines.polygon(none, steep=False)
        found = compared(below, plain)
        bent = np.flatnonzero(found.drawn > _WORTH_A_BEND * self.precision)
        if bent.size:
            below = lines.polygon(bent, steep=False)
            found = compared(below, plain)
        apart = found.apart
        if np.any((below.at(lattice.excess)[:-1] <= 0) & (bounds.lower[:-1] > _IGNORED_VALUE)):
            longer = plain = lines.polygon(none, steep=True)
            if bent.size:
                longer = lines.polygon(bent, steep=True)
            # `found` is kept: it says which cells make the other pair end early.
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
    sketch: Sketch,
    model: Profile | None,
    sharper: Callable[[float], Profile] | None,
    cheap: bool,
    costly: bool = False,
    most: float = math.inf,
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Makes discrete pairs above and below a symmetric privacy profile: above by connecting the dots, below
    by supporting lines.

    Args:
        profile: bounds on the hockey-stick divergence at orders `1 + excess`, for ascending `excess >= 0`.
        largest_loss: loss beyond which the profile is exactly 0 (may be infinite).
        end: loss beyond which the profile is negligible; the mass there counts as infinite loss.
        infinity: lower bound on the mass at infinite loss, hence on the profile everywhere.
        precision: wanted relative width of epsilon, for which the lattice is chosen.
        sketch: an estimate of the same profile, for the choice of the first lattice.
        model: a similar, cheaper profile, on which the lattice is refined; the profile itself is then
            evaluated only once, for all orders together. None if there is none.
        sharper: returns the profile with bounds that are closer by about the given factor; used if the bounds
            alone make the answer too wide; None if there are none.
        cheap: whether orders cost almost no time: the first lattice is then finer.
        costly: whether orders may be slow, so that a measurement precedes the first lattice, as it does for
            a lattice of many orders.
        most: about the most array elements that profiles compute; the lattice is coarser, so that bounds are
            wider, if that is not enough.

    Guarantee: the profile of the first pair is at least, that of the second at most, the given profile, at
    every order.
    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots"; docs/theory/pld.md,
        P3 and P4.
    """
    # Masses are changes of slopes. On steps too small for the profile's accuracy they would be round-off.
    finest = _LEAST_STEP * math.exp(max(sketch.log_values[0], _LOG_NEGLIGIBLE))
    end = max(end, finest)
    stop, bounded = max(min(largest_loss, end), finest), end >= largest_loss
    spacing, bits = _CHEAP_SPACING if cheap else _FIRST_SPACING
    first = _first_lattice(sketch, stop, spacing * math.sqrt(precision), finest, bits=bits)
    if bounded:  # the smallest deltas depend on the losses next to the largest one
        first = first.fine_at_the_end(_END_SPACING * precision * stop)

    pairs = _Pairing(largest_loss, infinity, precision, bounded)
    # A model is worth less than the profile that it stands for.
    simple, share = (profile, most) if model is None else (model, _MODEL_SHARE * most)
    slow = costly or (not cheap and first.positions.size > _MANY_ORDERS)
    if slow and share < math.inf:
        first = first.thinned(max(int(share / _effort_of_one(simple, first)), _FEWEST_ORDERS))
    if model is None:
        return _refined(profile, first, pairs, most, sharper)[1]
    lattice = _refined(model, first, pairs, share)[0]
    if most < math.inf:
        lattice = lattice.thinned(max(int((most - share) / _effort_of_one(profile, lattice)), _FEWEST_ORDERS))
    return pairs(lattice, profile(lattice.excess)).pairs


def _effort_of_one(profile: Profile, lattice: Lattice) -> float:
    """Returns the array elements that one order of a profile takes, measured at some orders of a lattice."""
    some = lattice.thinned(_MEASURED_ORDERS).excess
    with counted() as effort:
        profile(some)
    return max(effort.spent / some.size, 1.0)


def _refined(
    profile: Profile,
    lattice: Lattice,
    pairs: _Pairing,
    most: float,
    sharper: Callable[[float], Profile] | None = None,
) -> tuple[Lattice, _Pairs]:
    """Refines the lattice until its pairs are close enough, refining no longer helps, or the profile has
    computed about `most` array elements. Returns the lattice and the pairs."""
    with counted() as effort:
        bounds, precision = profile(lattice.excess), pairs.precision
    one, left = effort.spent / lattice.positions.size, most - effort.spent
    last = pairs(lattice, bounds)
    blurred = last.gaps.blurred
    if sharper is not None and blurred > _MOSTLY_BOUNDS * precision and left > _SHARPER_EFFORT * effort.spent:
        sharp = sharper(max(_SHARP_SHARE * precision / blurred, _MOST_SHARPENING))
        worst = np.sort(np.argsort(-last.gaps.blurs)[:_PROBED_ORDERS])
        if _is_closer(sharp(lattice.excess[worst]), ProfileBounds(*(one[worst] for one in bounds))):
            with counted() as effort:
                profile, bounds = sharp, sharp(lattice.excess)
            one, left = effort.spent / lattice.positions.size, left - effort.spent
            last = pairs(lattice, bounds)
    best, known = last, lattice
    for _ in range(_MOST_REFINEMENTS):
        found = last.gaps
        added = between(lattice.positions, found, precision)
        rest = found.apart - found.blurred
        if found.blurred > _MOSTLY_BOUNDS * precision and rest <= _LATTICE_SHARE * precision:
            break
        if last.apart <= _ENOUGH * precision or not added.size:
            break
        if lattice.positions.size + added.size > _MOST_POINTS or added.size * one > left:
            break
        left -= added.size * one
        lattice, bounds = _with_points(profile, lattice, bounds, added)
        before, last = last.apart, pairs(lattice, bounds)
        if last.apart < best.apart:
            best, known = last, lattice
        if last.apart > _HELPFUL_SHARE * before:
            break
    return known, best.pairs


def _is_closer(bounds: ProfileBounds, others: ProfileBounds) -> bool:
    """Returns whether `bounds` are clearly closer than `others` at most orders: not if round-off makes them
    wide."""
    apart, before = (one.upper - one.lower for one in (bounds, others))
    return bool(np.median(apart - _HELPFUL_SHARE * before) < 0)


def _first_lattice(sketch: Sketch, stop: float, spacing: float, finest: float, *, bits: int) -> Lattice:
    """Returns the first lattice, with this spacing in deviations of the loss, and with room for
    refinements."""
    losses = np.append(sketch.losses[sketch.losses < stop], stop)
    values = np.interp(losses, sketch.losses, np.maximum(sketch.log_values, 2 * _LOG_NEGLIGIBLE))
    seen = Sketch(losses, np.minimum.accumulate(values))
    deviation = max(_deviation(seen), _RESOLVED_SHARE * stop)
    spacing = max(spacing * deviation, finest, stop / _MOST_UNITS)
    bits = min(bits, math.floor(math.log2(_MOST_UNITS * spacing / stop)))
    return graded(seen, deviation, spacing, bits=bits).divisible(finest)


def _with_points(
    profile: Profile, lattice: Lattice, bounds: ProfileBounds, added: IndexArray
) -> tuple[Lattice, ProfileBounds]:
    """Returns the lattice with the added positions, and the bounds at all positions."""
    places = np.searchsorted(lattice.positions, added)
    more = profile(Lattice(added, lattice.unit).excess)
    both = (np.insert(old, places, new) for old, new in zip(bounds, more, strict=True))
    return Lattice(np.insert(lattice.positions, places, added), lattice.unit), ProfileBounds(*both)


def _values(lattice: Lattice, bounds: ProfileBounds, *, support: float, bounded: bool) -> ProfileBounds:
    """Returns bounds at the lattice's orders with the properties that profiles of pairs have (falling, upper
    ones convex, 0 at the largest loss if `bounded`), and with room for round-off."""
    excess = lattice.excess
    # Turning values into masses and back changes each by a few units.
    upper = np.minimum.accumulate(np.minimum(bounds.upper * (1 + _PROFILE_ROUND_OFF), 1.0))
    # The profile is convex, so it is also below the convex minorant of the upper bounds.
    upper = np.minimum(upper, _convex(excess, upper))
    lower = np.minimum(bounds.lower * (1 - _PROFILE_ROUND_OFF), upper)
    if bounded and lattice.end >= support:
        upper[-1] = lower[-1] = 0.0
    # A symmetric profile falls at order 1 by at most (1 - H)/2, so each value bounds the first one.
    upper[0] = min(upper[0], float(((upper + excess / 2) / (1 + excess / 2)).min()))
    return ProfileBounds(upper, np.minimum(lower, upper))


class _Below(NamedTuple):
    """A certain lower bound on a profile between the orders of a lattice.

    Attributes:
        lattice: losses at whose orders lower bounds are known.
        lines: lines below the profile minus `certain`.
        certain: the part of the mass that is certainly at infinite loss.
    """

    lattice: Lattice
    lines: SupportingLines
    certain: float

    @classmethod
    def of(cls, lattice: Lattice, values: ProfileBounds, infinity: float) -> _Below:
        """Computes the lines of a profile between these values."""
        upper, lower = values
        # Without the certain mass at infinity, the profile is still convex and falls to 0.
        certain = min(infinity, float(upper[-1]))
        least = np.maximum(lower - certain, 0.0)
        steepest = -(1 - float(lower[0])) / 2  # of a symmetric one
        return cls(lattice, SupportingLines.of(lattice.excess, upper - certain, least, steepest), certain)

    def polygon(self, cells: IndexArray, *, steep: bool) -> Polygon:
        """Returns values at the lattice's losses, and at one more loss in each of these cells where that
        helps. Their greatest convex minorant is below the profile. For `steep` see
        `SupportingLines.values`."""
        positions, unit = self.lattice
        cells, bends = self._bends(cells)
        values = self.certain + self.lines.values(cells, np.expm1(bends * unit), steep=steep)
        positions = np.insert(positions, cells + 1, bends)
        excess = np.expm1(positions * unit)
        # A symmetric profile falls with slope at least -(1 - H)/2 at order 1. The polygon begins with such a
        # line that touches the values from below.
        begin = (values + excess / 2) / (1 + excess / 2)
        touch = int(begin.argmin())
        values[:touch] = begin[touch] - (1 - begin[touch]) / 2 * excess[:touch]
        return Polygon.of(positions, excess, values)

    def _bends(self, cells: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Returns the cells that have a useful inner position near where their lines meet, and these
        positions."""
        positions, unit = self.lattice
        start, width = positions[cells], np.diff(positions)[cells]
        finest = min(1 << max(int(positions[-1]).bit_length() - _BEND_BITS, 0), self.lattice.stride)
        part = np.maximum(np.exp2(np.floor(np.log2(width / _PARTS_OF_CELL))).astype(np.int64), finest)
        place = np.round((np.log1p(self.lines.meeting[cells]) / unit - start) / part).astype(np.int64)
        place = np.clip(place, 1, np.maximum((width - 1) // part, 1)) * part
        cells, bends = cells[place < width], (start + place)[place < width]
        # If the lines meet too close to an end, no position inside helps.
        excess, lines = np.expm1(bends * unit), self.lines
        values, sag = lines.at(cells, excess), lines.sag[cells]
        share = (excess - lines.excess[cells]) / (lines.excess[cells + 1] - lines.excess[cells])
        chord = (1 - share) * lines.lower[cells] + share * lines.lower[cells + 1]
        helps = (values > 0) & (chord - values <= _MOST_SAG * sag)
        return cells[helps], bends[helps]


def _convex(excess: FloatArray, values: FloatArray) -> FloatArray:
    """Returns the greatest convex minorant of the points at all of them, raised by its round-off."""
    kept = corners(excess, values)
    end = np.clip(np.searchsorted(kept, np.arange(excess.size)), 1, None)
    x0, x1, y0, y1 = excess[kept[end - 1]], excess[kept[end]], values[kept[end - 1]], values[kept[end]]
    # Both terms are positive: there is no cancellation where the values fall by many digits.
    chords = (x1 - excess) / (x1 - x0) * y0 + (excess - x0) / (x1 - x0) * y1
    return np.asarray(chords * (1 + _PROFILE_ROUND_OFF))


def _deviation(sketch: Sketch) -> float:
    """Returns about the deviation of the loss, which scales the first lattice."""
    losses, excess, values = sketch.losses, np.expm1(sketch.losses), np.exp(sketch.log_values)
    q = _slope_changes(excess, values, corners(excess, values))
    second = float((losses[1:] ** 2 * q * (2 + excess[1:])).sum())
    # For small losses the divergence is half the variance; for large ones it determines their typical total.
    divergence = float((losses[1:] * q * excess[1:]).sum())
    return math.sqrt(min(second, 2 * divergence))


def _slope_changes(excess: FloatArray, values: FloatArray, kept: IndexArray) -> FloatArray:
    """Returns the masses under Q at the positive losses of the pair whose profile is the points' greatest
    convex minorant; 0 where that has no corner."""
    slopes = np.diff(values[kept]) / np.diff(excess[kept])
    changes = np.zeros(len(excess))
    changes[kept[1:]] = np.append(slopes[1:], 0.0) - slopes
    return np.maximum(changes[1:], 0.0)


def _pair(polygon: Polygon, unit: float, *, support: float, side: Side) -> PrivacyLossDistribution:
    """Returns the pair whose profile is the polygon's greatest convex minorant."""
    shown, excess = Lattice(polygon.positions, unit).reduced(), polygon.excess
    q = _slope_changes(excess, polygon.values, polygon.corners)
    kept = q > 0
    q = q[kept]
    p = q * (1 + excess[1:][kept])
    infinity = float(polygon.values[-1])
    zero = 1.0 - infinity - math.fsum(np.concatenate([p, q]))
    if zero < 0:
        # Round-off of a pair without mass at 0. An upper pair ignores the deficit, which adds mass; a lower
        # pair shrinks all masses to make up for it.
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
