"""From a round's privacy profile to a discrete pair above and one below it, on a lattice of losses that is as
fine as the answers need."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accounting.blanket_sum import ProfileBounds
from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.lattices import Gaps, Lattice, between, even, gaps, graded
from accounting.privacy_loss import IndexArray, PrivacyLossDistribution, Side

Profile = Callable[[FloatArray], ProfileBounds]
_Pairs = tuple[PrivacyLossDistribution, PrivacyLossDistribution]

_PILOT_POINTS = 20
# Spacing of the first lattice at precision 1, in deviations of the loss; less where orders are cheap.
_COARSE = 2.4
_FINE = 0.14
_ROOM = 64 * UNIT_ROUND_OFF
# Steps of the excess that a profile of height 1 needs for slopes to a tenth of what masses may be off by.
_DIGITS = 1e11 * UNIT_ROUND_OFF
# How far the loss before a largest one is from it at most, in units of the precision.
_END = 0.3
# A lattice whose pairs are further apart than the precision is made finer, at most so often, and no further
# where that hardly helped.
_REFINEMENTS = 4
_MOST_POINTS = 6000
_HELPED = 0.8
# Points between the ends of a chord that supports the profile's lower bound, fewer than.
_FARTHEST = 64
# What a lattice may leave of the pairs' distance where the profile's own bounds are so much of it.
_MOSTLY = 0.7
_LEFT = 0.8


def from_profile(
    profile: Profile,
    *,
    largest_loss: float,
    end: float,
    infinity: float,
    precision: float,
    pilot: Profile | None = None,
    model: Profile | None = None,
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
        model: a profile much like it, by which the lattice is made finer, where the profile itself costs too
            much to be asked more than once, for all orders together.
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

    def pairs(lattice: Lattice, bounds: ProfileBounds) -> tuple[_Pairs, Gaps]:
        values = _values(lattice, bounds, infinity=infinity, support=largest_loss, bounded=bounded)
        shown = lattice.reduced()
        above = _pair(shown, values.upper, support=largest_loss, side="upper")
        found, lower = gaps(lattice.excess, bounds, values, above), values.lower
        if np.any((lower[:-1] <= 0) & (bounds.lower[:-1] > 0)):
            longer = _values(
                lattice, bounds, infinity=infinity, support=largest_loss, bounded=bounded, steep=True
            )
            if gaps(lattice.excess, bounds, longer, above).apart < found.apart:
                lower = longer.lower
        return (above, _pair(shown, lower, support=largest_loss, side="lower")), found

    if model is None:
        return _refined(profile, first, pairs, precision)[1]
    lattice = _refined(model, first, pairs, precision)[0]
    return pairs(lattice, profile(lattice.excess))[0]


def _refined(
    profile: Profile,
    lattice: Lattice,
    pairs: Callable[[Lattice, ProfileBounds], tuple[_Pairs, Gaps]],
    precision: float,
) -> tuple[Lattice, _Pairs]:
    """The lattice made finer, until its pairs are as close as asked or that hardly helps; and the pairs."""
    bounds = profile(lattice.excess)
    best, found = pairs(lattice, bounds)
    known = lattice
    for _ in range(_REFINEMENTS):
        added = between(lattice.positions, found, precision)
        rest = found.apart - found.blurred
        if found.blurred > _MOSTLY * precision and rest <= _LEFT * precision:
            break
        if found.apart <= precision or not added.size:
            break
        if lattice.positions.size + added.size > _MOST_POINTS:
            break
        lattice, bounds = _with_points(profile, lattice, bounds, added)
        before = found.apart
        closer, found = pairs(lattice, bounds)
        if found.apart < before:
            best, known = closer, lattice
        if found.apart > _HELPED * before:
            break
    return known, best


def _first_lattice(pilot: Profile, stop: float, precision: float, finest: float, *, cheap: bool) -> Lattice:
    """A lattice to begin with, which may be made finer."""
    deviation = max(_deviation(pilot, stop), stop * 1e-4)
    spacing = max(deviation * (_FINE if cheap else _COARSE) * math.sqrt(precision), finest)
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


def _values(
    lattice: Lattice,
    bounds: ProfileBounds,
    *,
    infinity: float,
    support: float,
    bounded: bool,
    steep: bool = False,
) -> ProfileBounds:
    """Values at the lattice's orders whose greatest convex minorants lie above and below the profile, which
    is 0 at the lattice's end if `bounded`; see `_supporting_values` for steep ones."""
    excess = lattice.excess
    # Turning values into masses and back rounds each by a few units: the bounds make room for it.
    upper = np.minimum.accumulate(np.minimum(bounds.upper * (1 + _ROOM), 1.0))
    lower = np.minimum(bounds.lower * (1 - _ROOM), upper)
    if bounded and lattice.end >= support:
        upper[-1] = lower[-1] = 0.0
    # A symmetric profile falls at order 1 by at most (1 - H)/2, so each value bounds the first one.
    upper[0] = min(upper[0], float(((upper + excess / 2) / (1 + excess / 2)).min()))
    lower = np.minimum(lower, upper)
    # What is certainly infinite is taken off first: the rest of the profile is convex and falls towards 0.
    certain = min(infinity, float(upper[-1]))
    supporting = certain + _supporting_values(
        excess, upper - certain, np.maximum(lower - certain, 0.0), steep=steep
    )
    # For the same reason the lower pair begins with the line, no steeper, that touches it from below.
    begin = (supporting + excess / 2) / (1 + excess / 2)
    touch = int(begin.argmin())
    supporting[:touch] = begin[touch] - (1 - begin[touch]) / 2 * excess[:touch]
    return ProfileBounds(upper, supporting)


def _deviation(profile: Profile, stop: float) -> float:
    """About the deviation of the loss, by which lattices are graded."""
    pilot = np.concatenate([[0.0], np.geomspace(stop * 1e-5, stop, _PILOT_POINTS)])
    excess = np.expm1(pilot)
    values = np.minimum.accumulate(np.minimum(profile(excess).upper, 1.0))
    q = _slope_changes(excess, values)
    second = float((pilot[1:] ** 2 * q * (2 + excess[1:])).sum())
    # Of small losses the divergence is half the variance; among large ones it rules what they add up to.
    divergence = float((pilot[1:] * q * excess[1:]).sum())
    return math.sqrt(min(second, 2 * divergence))


def _slope_changes(excess: FloatArray, values: FloatArray) -> FloatArray:
    """Masses under Q at the positive losses of the greatest convex minorant of the points, zero where it has
    no corner."""
    corners = _lower_hull(excess, values)
    slopes = np.diff(values[corners]) / np.diff(excess[corners])
    changes = np.zeros(len(excess))
    changes[corners[1:]] = np.append(slopes[1:], 0.0) - slopes
    return np.maximum(changes[1:], 0.0)


def _pair(lattice: Lattice, values: FloatArray, *, support: float, side: Side) -> PrivacyLossDistribution:
    excess = lattice.excess
    q = _slope_changes(excess, values)
    kept = q > 0
    q = q[kept]
    p = q * (1 + excess[1:][kept])
    infinity = float(values[-1])
    zero = 1.0 - infinity - math.fsum(np.concatenate([p, q]))
    if zero < 0:
        # Round-off of a pair without mass at 0. For an upper pair dropping the deficit adds mass, never
        # removes it; a lower pair gives it up proportionally.
        if side == "lower":
            shrink = 1 / (1 - zero)
            p, q, infinity = p * shrink, q * shrink, infinity * shrink
        zero = 0.0
    return PrivacyLossDistribution(
        spacing=lattice.unit,
        index=lattice.positions[1:][kept],
        p=p,
        q=q,
        zero=zero,
        infinity=infinity,
        support=support,
        side=side,
    )


def _supporting_values(
    excess: FloatArray, upper: FloatArray, lower: FloatArray, *, steep: bool
) -> FloatArray:
    """Values at the lattice orders of a piecewise linear function that lies below every convex function
    between the bounds.

    On each cell chords from its ends to points further out, extended, lie below the profile, at its other
    end, too, if nothing better is known there; a line below the steepest of them on either side is found by
    lowering the cell's own chord, and each corner takes the lower of the two lines that meet there.

    Where the profile falls steeply, such a line ends the pair; if `steep`, the one that supports the profile
    at the cell's right end takes its place there: less is left before that cell, and all beyond it. The
    bounds must have room for the rounding of chords, `_ROOM` of themselves.
    """
    step = np.diff(excess)
    left, right = _supporting_slopes(excess, upper, lower)
    lower = lower.copy()
    lower[1:] = np.maximum(lower[1:], lower[:-1] + left * step)
    lower[:-1] = np.maximum(lower[:-1], lower[1:] - right * step)
    lower = np.minimum(lower, upper)
    left, right = _supporting_slopes(excess, upper, lower)
    chord = np.diff(lower) / step
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # The lines meet at distance t from the left end, where both lie (chord - left) t below the chord.
        gap_left, gap_right = np.maximum(chord - left, 0.0), np.maximum(right - chord, 0.0)
        sag = np.where(np.isinf(gap_left), gap_right * step, step / (1 / gap_left + 1 / gap_right))
    sag = np.where((gap_left == 0) | (gap_right == 0), 0.0, sag)
    room = 8 * UNIT_ROUND_OFF
    lines_left, lines_right = lower[:-1] - sag - room * upper[:-1], lower[1:] - sag - room * (upper[1:] + sag)
    if steep:
        rise, ends = -right * step, (lines_right < 0) & (lower[1:] > 0)
        lines_left = np.where(ends, lower[1:] + rise - room * (lower[1:] + np.abs(rise)), lines_left)
        lines_right = np.where(ends, lower[1:] * (1 - room), lines_right)
    values = np.minimum(np.append(lines_left, np.inf), np.insert(lines_right, 0, np.inf))
    # Raising a negative corner to 0 would lift the chord that ends there: that chord's other end goes down to
    # 0 too.
    ends = np.append(np.flatnonzero(values < 0), len(values) - 1)
    values[max(int(ends[0]) - 1, 0) :] = 0.0
    return np.minimum.accumulate(values)


def _supporting_slopes(
    excess: FloatArray, upper: FloatArray, lower: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Slopes, for every cell, of lines from its left and from its right end that lie below the profile in it.

    Far chords suffer less from how far apart the bounds are, near ones from the curvature.
    """
    cells = excess.size - 1
    left, right = np.full(cells, -np.inf), np.append(np.full(cells - 1, np.inf), 0.0)
    apart = 1
    while apart < min(cells, _FARTHEST):
        width = excess[apart:] - excess[:-apart]
        at_most, at_least = (lower[apart:] - upper[:-apart]) / width, (upper[apart:] - lower[:-apart]) / width
        left[apart:] = np.maximum(left[apart:], at_most[:-1])
        right[:-apart] = np.minimum(right[:-apart], at_least[1:])
        apart *= 2
    return left, right


def _lower_hull(x: FloatArray, y: FloatArray) -> IndexArray:
    """Positions of the corners of the greatest convex minorant of the points, first and last included."""
    corners: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for k in range(len(xs)):
        while len(corners) >= 2:
            i, j = corners[-2], corners[-1]
            if (ys[j] - ys[i]) * (xs[k] - xs[j]) >= (ys[k] - ys[j]) * (xs[j] - xs[i]):
                corners.pop()
            else:
                break
        corners.append(k)
    return np.array(corners, dtype=np.int64)
