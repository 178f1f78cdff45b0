"""Privacy loss distributions of one round: a discrete pair above and one below its privacy profile.

All pairs here are symmetric (exchanging the datasets exchanges P and Q): a round's profile is the larger of
its two directions, order by order. A pair is then given by its losses `x > 0`, their masses `p` under P and
`q = exp(-x) p` under Q, the mass at loss 0 and the mass at infinity; loss `-x` has mass `q` under P.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting import checks
from accounting.blanket_sum import ProfileBounds
from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.errors import InvalidParameter

IndexArray = npt.NDArray[np.int64]
Side = Literal["upper", "lower"]
Profile = Callable[[FloatArray], ProfileBounds]

# A profile below this is not resolved further: what lies beyond counts as infinite loss.
NEGLIGIBLE_DELTA = 1e-46
_PILOT_POINTS = 48
# Lattice spacing in deviations of the loss, at precision 1: a variance of spacing^2 / 6 is added above, and
# about five times that is taken away below.
_FINENESS = 0.42
_FINER = 0.14  # where orders cost next to nothing
_MAXIMUM_POINTS = 1 << 15
_ROOM = 64 * UNIT_ROUND_OFF
# Steps of the excess that a profile of height 1 needs for slopes to a tenth of what masses may be off by.
_DIGITS = 1e11 * UNIT_ROUND_OFF
_MAXIMUM_ORDER = 1e9


class Tail(NamedTuple):
    """Upper bounds on the far part of a profile, which falls to 0 at the last loss.

    `losses` are ascending, shape (points,); `log_heights[i]` bounds the logarithm of the profile from
    `losses[i]` on, shape (points - 1,).
    """

    losses: FloatArray
    log_heights: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivacyLossDistribution:
    """A symmetric pair of discrete distributions by its privacy losses on a lattice.

    Attributes:
        spacing: distance of neighbouring lattice losses.
        index: positive lattice positions with mass, ascending, shape (losses,); the losses are `index *
            spacing`.
        p: mass under P at these losses, shape (losses,).
        q: mass under Q at these losses, and under P at their negatives, shape (losses,).
        zero: mass at loss 0.
        infinity: mass under P where Q has none.
        support: loss that the finite losses of the round certainly do not exceed; may be infinite.
        side: "upper" when the pair's profile is at least, "lower" when it is at most, the profile it stands
            for.
    """

    spacing: float
    index: IndexArray
    p: FloatArray
    q: FloatArray
    zero: float
    infinity: float
    support: float
    side: Side

    def __post_init__(self) -> None:
        for name in ("index", "p", "q"):
            getattr(self, name).setflags(write=False)
        masses = np.concatenate([self.p, self.q, [self.zero, self.infinity]])
        if not np.all(np.isfinite(masses)) or np.any(masses < 0) or abs(math.fsum(masses) - 1) > 1e-9:
            raise InvalidParameter(
                "masses", float(masses.sum()), "finite masses, not negative, that sum to 1"
            )
        if self.index.size and (self.index[0] < 1 or np.any(np.diff(self.index) < 1)):
            raise InvalidParameter("index", self.index.tolist()[:4], "ascending positive lattice positions")

    @property
    def losses(self) -> FloatArray:
        """Positive privacy losses, shape (losses,)."""
        return np.asarray(self.index * self.spacing, dtype=np.float64)

    @property
    def largest_loss(self) -> float:
        """Largest finite privacy loss, 0 when there is none; of an upper pair, no more than the round's
        own."""
        largest = float(self.index[-1] * self.spacing) if self.index.size else 0.0
        return min(largest, self.support)

    def variance(self) -> float:
        """Variance of the finite privacy loss under P; 0 when every loss is infinite."""
        total = self.p.sum() + self.q.sum() + self.zero
        if total == 0:
            return 0.0
        mean = (self.losses * (self.p - self.q)).sum() / total
        second = (self.losses**2 * (self.p + self.q)).sum() / total
        return float(max(second - mean * mean, 0.0))

    def hockey_stick_divergence(self, epsilon: float) -> float:
        """`H_{e^epsilon}(P || Q)`, up to round-off, for any real epsilon."""
        if epsilon < 0:
            return -math.expm1(epsilon) + math.exp(epsilon) * self.hockey_stick_divergence(-epsilon)
        beyond = self.losses > epsilon
        gains = self.p[beyond] * -np.expm1(epsilon - self.losses[beyond])
        return float(gains.sum()) + self.infinity

    def renyi_divergence(self, order: float, *, finite: bool = False, tail: Tail | None = None) -> float:
        """Renyi divergence of this order, `D_order(P || Q)`, the same in both directions; Kullback-Leibler at
        order 1.

        Args:
            order: a number above 0, at most 1e9.
            finite: of P and Q conditioned on finite losses instead, which have probability `1 - infinity`
                under each of them.
            tail: of an upper pair, what its mass at infinite loss stands for.

        Guarantee: at least the divergence of everything that an upper pair dominates, at most that of
            everything
        that dominates a lower pair, round-off included. An upper pair's mass at infinity makes it infinite
        from order 1 on, unless `support` is finite: that mass then counts at the loss `support`, which still
        is above every profile that falls to 0 there.
        Source: Renyi divergences are mixtures of hockey-stick divergences; docs/theory.md.

        Raises:
            InvalidParameter: the order is out of range.
        """
        expected = f"a number above 0, at most {_MAXIMUM_ORDER:g}"
        order = checks.real("order", order, expected)
        if not 0 < order <= _MAXIMUM_ORDER:
            raise InvalidParameter("order", order, expected)
        with np.errstate(divide="ignore"):
            losses, log_q = self.losses, np.log(self.q)
        infinity = 0.0 if finite else self.infinity
        if infinity > 0 and order >= 1:
            tail = self._tail() if tail is None else tail
            if tail is None:
                return self.support if self.side == "upper" else math.inf
            # Atoms whose profile is above the tail: from each height a line down to 0 at the next loss.
            room = np.diff(tail.losses)
            doubt = 8 * UNIT_ROUND_OFF * (1 + tail.losses[-1] / room)
            far = tail.log_heights - tail.losses[1:] - np.log(-np.expm1(-room)) + doubt
            losses, log_q = np.append(losses, tail.losses[1:]), np.append(log_q, far)
            infinity = 0.0
        if finite:
            log_q = log_q - math.log1p(-self.infinity)
        value = _renyi_divergence(losses, log_q, infinity, order, upwards=self.side == "upper")
        return min(value, self.support) if self.side == "upper" and not infinity else value

    def _tail(self) -> Tail | None:
        """What the mass at infinite loss of an upper pair stands for, if its losses are bounded."""
        if self.side == "lower" or not self.largest_loss < self.support < math.inf:
            return None
        return Tail(np.array([self.largest_loss, self.support]), np.array([math.log(self.infinity)]))


def _renyi_divergence(
    losses: FloatArray, log_q: FloatArray, infinity: float, order: float, *, upwards: bool
) -> float:
    """Renyi divergence of a symmetric pair, rounded up or down.

    `sum P^order Q^(1 - order) - 1` is `-infinity + sum of q (1 - exp((1 - order) x)) expm1(order x)`: a loss
    and its negative together, so that terms are of one sign and nothing cancels.
    """
    if losses.size == 0:
        log_sum, largest = -math.inf, 0.0
    else:
        turn = abs(order - 1) * losses
        steps = np.log(losses) if order == 1 else np.log(-np.expm1(-turn)) + (turn if order < 1 else 0.0)
        log_terms = log_q + steps + order * losses + np.log(-np.expm1(-order * losses))
        top = float(log_terms.max())
        log_sum = top + math.log(math.fsum(np.exp(log_terms - top)))
        largest = float((np.abs(log_q) + np.abs(steps) + (2 * order + 2) * losses).max()) + abs(log_sum)
    doubt = UNIT_ROUND_OFF * (64 + 8 * largest)
    log_sum += doubt if upwards else -doubt
    if order > 1:
        value = float(np.logaddexp(0.0, log_sum)) / (order - 1)
    elif order == 1:
        value = math.inf if infinity > 0 else math.exp(log_sum)
    else:
        lost = infinity + math.exp(log_sum)
        value = -math.log1p(-lost) / (1 - order) if lost < 1 else math.inf
    return value * (1 + _ROOM if upwards else 1 - _ROOM)


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
    stop = min(largest_loss, end)
    fineness = _FINER if cheap else _FINENESS
    index, spacing = _graded_lattice(profile, stop, precision, fineness=fineness, finest=finest)
    if cheap:
        # Even, unless that would be coarser where the mass is.
        even = _even_lattice(stop, precision, finest)
        index, spacing = even if even[1] <= 2 * spacing else (index, spacing)
    excess = np.expm1(index * spacing)
    bounds = profile(excess)
    # Turning values into masses and back rounds each by a few units: the bounds make room for it.
    upper = np.minimum.accumulate(np.minimum(bounds.upper * (1 + _ROOM), 1.0))
    lower = np.minimum(bounds.lower * (1 - _ROOM), upper)
    if end >= largest_loss:
        upper[-1] = lower[-1] = 0.0
    # A symmetric profile falls at order 1 by at most (1 - H)/2, so each value bounds the first one.
    upper[0] = min(upper[0], float(((upper + excess / 2) / (1 + excess / 2)).min()))
    lower = np.minimum(lower, upper)
    # What is certainly infinite is taken off first: the rest of the profile is convex and falls towards 0.
    certain = min(infinity, float(upper[-1]))
    supporting = certain + _supporting_values(excess, upper - certain, np.maximum(lower - certain, 0.0))
    above = _pair((index, spacing), upper, support=largest_loss, side="upper")
    below = _pair((index, spacing), supporting, support=largest_loss, side="lower")
    return above, below


def _even_lattice(stop: float, precision: float, finest: float) -> tuple[IndexArray, float]:
    points = math.ceil(min(4 / precision, _MAXIMUM_POINTS, stop / max(finest, 1e-300)))
    return np.arange(points + 1, dtype=np.int64), stop * (1 + 2 * UNIT_ROUND_OFF) / points


def _graded_lattice(
    profile: Profile, stop: float, precision: float, *, fineness: float, finest: float
) -> tuple[IndexArray, float]:
    """Lattice positions from 0 to `stop`: fine where the mass is, coarser by powers of two far out."""
    pilot = np.concatenate([[0.0], np.geomspace(stop * 1e-5, stop, _PILOT_POINTS)])
    excess = np.expm1(pilot)
    values = np.minimum.accumulate(np.minimum(profile(excess).upper, 1.0))
    q = _slope_changes(excess, values)
    variance = float((pilot[1:] ** 2 * q * (2 + excess[1:])).sum())
    deviation = max(math.sqrt(variance), stop * 1e-4)
    last = math.ceil(stop / max(deviation * fineness * math.sqrt(precision), finest))
    spacing = stop * (1 + 2 * UNIT_ROUND_OFF) / last
    positions, stride = [0], 1
    edges = [4.0 * deviation, 16.0 * deviation]
    while positions[-1] < last and len(positions) < _MAXIMUM_POINTS:
        while positions[-1] * spacing >= edges[0] and positions[-1] % (2 * stride) == 0:
            stride *= 2
            edges = [*edges[1:], edges[-1] * 2]
        positions.append(min(positions[-1] + stride, last))
    return np.array(positions, dtype=np.int64), spacing


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
