"""From a round's privacy profile to a discrete pair above and one below it, on a lattice of losses that is as
fine as the answers need."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accounting.blanket_sum import ProfileBounds
from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.privacy_loss import IndexArray, PrivacyLossDistribution, Side
from accounting.spectrum import TILT_RATIO, LossSpectrum, SpectrumMemory

Profile = Callable[[FloatArray], ProfileBounds]

_PILOT_POINTS = 48
# Lattice spacing in deviations of the loss, at precision 1: a variance of spacing^2 / 6 is added above, and
# about five times that is taken away below.
_FINENESS = 0.42
_FINER = 0.14  # where orders cost next to nothing
_MAXIMUM_POINTS = 1 << 15
_ROOM = 64 * UNIT_ROUND_OFF
# Steps of the excess that a profile of height 1 needs for slopes to a tenth of what masses may be off by.
_DIGITS = 1e11 * UNIT_ROUND_OFF
# A lattice whose pairs are further apart than the precision is made finer, to this share of it, at most so
# often and by so much at a time; no further where that hardly helped.
_AIM = 0.5
_REFINEMENTS = 2
_FINEST_STEP = 8.0
_MOST_REFINED = 6000
_HELPED = 0.7
# Tilts at which pairs are compared, in steps of the grid of tilts: from a small one on, as far as sums of two
# rounds or more need at the smallest delta.
_TILT_STRIDE = 24
_TILTS = 10
_SMALLEST_TILT = 0.05
_DEEPEST = 40.0


def from_profile(
    profile: Profile,
    *,
    largest_loss: float,
    end: float,
    infinity: float,
    precision: float,
    cheap: bool = False,
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Discrete pairs above and below a symmetric privacy profile: connect the dots, and supporting lines.

    Args:
        profile: bounds on the hockey-stick divergence at orders `1 + excess`, for ascending `excess >= 0`.
        largest_loss: loss beyond which the profile is exactly 0 (may be infinite).
        end: loss beyond which the profile is negligible; what is left there counts as infinite loss.
        infinity: lower bound on the mass at infinite loss, hence on the profile everywhere.
        precision: wanted relative width of epsilon, to which the lattice is matched.
        cheap: whether orders cost next to nothing, so that a finer lattice is taken, even where that is fine
            enough.

    Guarantee: the profile of the first pair is at least, that of the second at most, the given profile, at
    every order.
    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots"; the lower pair: docs/theory.md.
    """
    # Masses are changes of slopes: on steps too fine for the profile's own digits they would be noise.
    finest = _DIGITS * float(profile(np.zeros(1)).upper[0])
    end = max(end, finest)
    stop, bounded = min(largest_loss, end), end >= largest_loss
    fineness = _FINER if cheap else _FINENESS

    deviation = max(_deviation(profile, stop), stop * 1e-4)

    def lattice() -> tuple[IndexArray, float]:
        spacing = max(deviation * fineness * math.sqrt(precision), finest)
        graded = _graded_lattice(deviation, stop, spacing)
        # Even, unless that would be coarser where the mass is.
        even = _even_lattice(stop, precision, finest)
        return even if cheap and even[1] <= 2 * graded[1] else graded

    def pairs(losses: tuple[IndexArray, float]) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
        return _on_lattice(profile, losses, infinity=infinity, support=largest_loss, bounded=bounded)

    best = pairs(lattice())
    apart = _distance(*best)
    for _ in range(_REFINEMENTS):
        if apart <= precision:
            break
        fineness /= min(math.sqrt(apart / (_AIM * precision)), _FINEST_STEP)
        finer = lattice()
        if finer[0].size > _MOST_REFINED:
            break
        found, before = pairs(finer), apart
        if (closer := _distance(*found)) < apart:
            best, apart = found, closer
        if apart > _HELPED * before:
            break
    return best


def _on_lattice(
    profile: Profile,
    lattice: tuple[IndexArray, float],
    *,
    infinity: float,
    support: float,
    bounded: bool,
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """The pairs above and below a profile on one lattice; the profile is 0 at its end if `bounded`."""
    excess = np.expm1(lattice[0] * lattice[1])
    bounds = profile(excess)
    # Turning values into masses and back rounds each by a few units: the bounds make room for it.
    upper = np.minimum.accumulate(np.minimum(bounds.upper * (1 + _ROOM), 1.0))
    lower = np.minimum(bounds.lower * (1 - _ROOM), upper)
    if bounded and lattice[0][-1] * lattice[1] >= support:
        upper[-1] = lower[-1] = 0.0
    # A symmetric profile falls at order 1 by at most (1 - H)/2, so each value bounds the first one.
    upper[0] = min(upper[0], float(((upper + excess / 2) / (1 + excess / 2)).min()))
    lower = np.minimum(lower, upper)
    # What is certainly infinite is taken off first: the rest of the profile is convex and falls towards 0.
    certain = min(infinity, float(upper[-1]))
    supporting = certain + _supporting_values(excess, upper - certain, np.maximum(lower - certain, 0.0))
    above = _pair(lattice, upper, support=support, side="upper")
    below = _pair(lattice, supporting, support=support, side="lower")
    return above, below


def _distance(above: PrivacyLossDistribution, below: PrivacyLossDistribution) -> float:
    """About how far apart epsilons of the pairs are, relative to them, composed however often.

    Of k rounds epsilon is near the least of `(k K(theta) - log delta) / theta` over the tilts, K the
    logarithm of `E[exp(theta L)]`: it is no further apart than K is where it matters. Nothing rests on it.
    """
    memory = SpectrumMemory()
    high, low = LossSpectrum(above, memory), LossSpectrum(below, memory)
    apart = 0.0
    if high.variance == 0:
        return apart
    first = math.ceil(math.log(_SMALLEST_TILT / math.sqrt(high.variance)) / math.log(TILT_RATIO))
    for tilt in range(first, first + _TILTS * _TILT_STRIDE, _TILT_STRIDE):
        tilted = high.tilted(tilt)
        # Of finite losses: those that are infinite are compared by themselves.
        top = tilted.log_mass - math.log1p(-above.infinity)
        if top <= 0 or TILT_RATIO**tilt * tilted.mean - top > _DEEPEST:
            break
        apart = max(apart, 1 - (low.tilted(tilt).log_mass - math.log1p(-below.infinity)) / top)
    return apart


def _even_lattice(stop: float, precision: float, finest: float) -> tuple[IndexArray, float]:
    points = math.ceil(min(4 / precision, _MAXIMUM_POINTS, stop / max(finest, 1e-300)))
    return np.arange(points + 1, dtype=np.int64), stop * (1 + 2 * UNIT_ROUND_OFF) / points


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


def _graded_lattice(deviation: float, stop: float, spacing: float) -> tuple[IndexArray, float]:
    """Lattice positions from 0 to `stop`: fine where the mass is, coarser by powers of two far out; coarser
    everywhere than asked where the points would be too many."""
    while True:
        last = math.ceil(stop / spacing)
        unit = stop * (1 + 2 * UNIT_ROUND_OFF) / last
        positions = _graded_positions(last, deviation / unit)
        if positions[-1] == last:
            return np.array(positions, dtype=np.int64), unit
        spacing *= 2


def _graded_positions(last: int, deviation: float) -> list[int]:
    """Positions from 0 to `last`, or up to where they would be too many."""
    positions, stride, edge = [0], 1, 4.0 * deviation
    while positions[-1] < last and len(positions) < _MAXIMUM_POINTS:
        while positions[-1] >= edge and positions[-1] % (2 * stride) == 0:
            stride *= 2
            edge = 4 * edge if stride == 2 else 2 * edge
        positions.append(min(positions[-1] + stride, last))
    return positions


def _slope_changes(excess: FloatArray, values: FloatArray) -> FloatArray:
    """Masses under Q at the positive losses of the greatest convex minorant of the points, zero where it has
    no corner."""
    corners = _lower_hull(excess, values)
    slopes = np.diff(values[corners]) / np.diff(excess[corners])
    changes = np.zeros(len(excess))
    changes[corners[1:]] = np.append(slopes[1:], 0.0) - slopes
    return np.maximum(changes[1:], 0.0)


def _pair(
    lattice: tuple[IndexArray, float], values: FloatArray, *, support: float, side: Side
) -> PrivacyLossDistribution:
    index, spacing = lattice
    excess = np.expm1(index * spacing)
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
        spacing=spacing,
        index=index[1:][kept],
        p=p,
        q=q,
        zero=zero,
        infinity=infinity,
        support=support,
        side=side,
    )


def _supporting_values(excess: FloatArray, upper: FloatArray, lower: FloatArray) -> FloatArray:
    """Values at the lattice orders of a piecewise linear function that lies below every convex function
    between the bounds.

    On each cell the two neighbouring chords, extended, lie below the profile; a line below both is found by
    lowering the cell's own chord, and each corner takes the lower of the two lines that meet there.
    """
    step = np.diff(excess)
    drop = (lower[1:] - upper[:-1]) / step  # at most the slope of the profile's chord
    rise = (upper[1:] - lower[:-1]) / step  # at least the slope of the profile's chord
    chord = np.diff(lower) / step
    # Cell i: left line from its left end with slope drop[i-1], right line from its right end with slope
    # rise[i+1].
    left = np.concatenate([[-np.inf], drop[:-1]])
    right = np.concatenate([rise[1:], [0.0]])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # The lines meet at distance t from the left end, where both lie (chord - left) t below the chord.
        gap_left, gap_right = np.maximum(chord - left, 0.0), np.maximum(right - chord, 0.0)
        sag = np.where(np.isinf(gap_left), gap_right * step, step / (1 / gap_left + 1 / gap_right))
    sag = np.where((gap_left == 0) | (gap_right == 0), 0.0, sag)
    lines_left, lines_right = lower[:-1] - sag, lower[1:] - sag
    values = np.minimum(np.append(lines_left, np.inf), np.insert(lines_right, 0, np.inf))
    values -= 8 * UNIT_ROUND_OFF * upper
    # Raising a negative corner to 0 would lift the chord that ends there: that chord's other end goes down to
    # 0 too.
    ends = np.append(np.flatnonzero(values < 0), len(values) - 1)
    values[max(int(ends[0]) - 1, 0) :] = 0.0
    return np.minimum.accumulate(values)


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
