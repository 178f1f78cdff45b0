"""Upper bounds on many pairs' divergences at once: what rules most pairs out.

Moments of all pairs at one tilt, real or complex, are one product of matrices: Chernoff's bounds first, then
the trapezoid sum for a kernel above the ramp, to which translates only add. `docs/theory.md`, "Ceilings", has
the proofs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.gain_laws import BoolArray, ComplexArray, IndexArray, Pairs
from accounting.ramp_kernels import RampKernels, circle

# The shortest period, in units of one over the tilt, and the steps in which periods are made longer.
_SHORTEST = 10.0
_LONGER = 1.1
# Logarithm of the probability with which a sum may be farther from 0 than a period; how long that is at most,
# in units of one over the tilt; and for which share of the pairs. Points of a line are no more than some.
_HARDLY = 8.0
_LONGEST = 100.0
_MOST = 0.9
_MOST_POINTS = 1500
# Outcomes with at most one report of a component are taken out where they are so much.
_MUCH = 0.3
_NEAR_SADDLE = 1.05
# Logarithm of the probability that all other reports are leftover ones.
_LONELY = -4.0
# Room for the moments' round-off, in the logarithm.
_ROOM = 1e-3
_LARGEST = 700.0
# Numbers that are looked at together: points times pairs.
_BLOCK_ELEMENTS = 1 << 14
# The least mass beside which nothing that underflows counts.
_SMALLEST = 1e-25
#: Below what matters of a divergence.
TINY = 1e-300
# Tilts that pairs share, in units of the one that suits the pair whose losses vary most.
_MULTIPLES = 2.0 ** np.arange(-3.0, 4.1, 1.0)


class Tilts(NamedTuple):
    """Of all pairs and orders, shape (pairs, orders).

    Attributes:
        theta: tilts near the saddle points, rather smaller, 0 where nothing is gained.
        extent: how far from 0 the tilted sums hardly ever are.
    """

    theta: FloatArray
    extent: FloatArray


class Powers(NamedTuple):
    """Moments of all pairs' sums at a few tilts that pairs share: next to nothing for a pair.

    Attributes:
        theta: the tilts, ascending, shape (tilts, orders); infinite where nothing is gained.
        logarithm: upper bounds on `n log M`, shape (tilts, pairs, orders); infinite where the tilts are.
    """

    theta: FloatArray
    logarithm: FloatArray

    @classmethod
    def of(cls, pairs: Pairs, reports: int, excess: FloatArray) -> Powers:
        """Those of the sums of so many reports at the orders `1 + excess`."""
        about = np.zeros_like(excess)
        for pair in (pairs.spread.argmax(), pairs.last_excess.argmax()):
            own = saddles(pairs, np.full(excess.size, int(pair)), reports, excess)
            about = np.where(about > 0, about, own)
        theta = np.where(about > 0, about, np.inf) * _MULTIPLES[:, None]
        finite = np.where(np.isfinite(theta), theta, 1.0)
        found = np.array([reports * pairs.log_moments(one, excess) for one in finite])
        return cls(theta, np.where(np.isfinite(theta)[:, None, :], found, np.inf))

    def least(self, reports: int) -> FloatArray:
        """Logarithms of the least of Chernoff's bounds, `M^n / (theta e_N n)`, shape (pairs, orders)."""
        with np.errstate(invalid="ignore"):
            bounds = self.logarithm - np.log(self.theta * reports)[:, None, :] - 1
        found = np.where(np.isfinite(bounds), bounds, np.inf).min(axis=0)
        return np.where(np.isfinite(self.theta[0]), np.minimum(found + _ROOM, 0.0), np.inf)

    def tilts(self) -> Tilts:
        """Tilts for `ceilings`; nothing rests on them."""
        theta, powers = self.theta, self.logarithm
        tilt = np.where(np.isfinite(theta[0]), _saddles(theta, powers), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            place = np.nan_to_num(np.log2(tilt / theta[0]), posinf=0.0, neginf=0.0)
            before = np.clip(place.astype(np.int64), 0, len(theta) - 2)
            left, right = (np.take_along_axis(powers, before[None] + one, axis=0)[0] for one in (0, 1))
            at = left + (right - left) * (tilt / (theta[0] * 2.0**before) - 1)
            # Chernoff's bounds on either side, by the moments at the other tilts, and at 0.
            above, below = np.full_like(at, np.inf), (_HARDLY - at) / tilt
            for one, power in zip(theta, powers, strict=True):
                bound = (np.maximum(power - at, -_HARDLY / 2) + _HARDLY) / np.abs(one - tilt)
                above = np.where(one > tilt, np.fmin(above, bound), above)
                below = np.where(one < tilt, np.fmin(below, bound), below)
            return Tilts(tilt, np.fmin(np.fmax(above, below), _LONGEST / tilt))


def chernoff(pairs: Pairs, reports: int, excess: FloatArray, powers: Powers | None = None) -> FloatArray:
    """Logarithms of Chernoff's bounds on all pairs' divergences at the orders `1 + excess`, shape (pairs,
    orders): no closer than some factor."""
    powers = Powers.of(pairs, reports, excess) if powers is None else powers
    found = powers.least(reports)
    if pairs.bare:
        which, order = np.divmod(np.arange(found.size), excess.size)
        with np.errstate(divide="ignore"):
            shown = np.log(pairs.unhidden(which, excess[order])).reshape(found.shape)
        found = np.logaddexp(found, shown)
    last = pairs.last_excess[:, None]
    found[excess > last + 32 * UNIT_ROUND_OFF * (1 + last)] = -np.inf
    return found


def ceilings(
    pairs: Pairs,
    which: IndexArray,
    order: IndexArray,
    reports: int,
    excess: FloatArray,
    *,
    tilts: Tilts,
    spacing: float,
) -> FloatArray:
    """Upper bounds on the divergences of the pairs `which[i]` at the orders `1 + excess[order[i]]`, for every
    i.

    Args:
        pairs: the pairs.
        which, order: places of pairs and of orders, shape (rows,).
        reports: number of honest reports.
        excess: orders minus one, shape (orders,).
        tilts: those of the rows, shape (rows,); pairs of about the same one share it. The bound is 1 where a
            tilt is not positive.
        spacing: of the kernel above the ramp, in units of one over the tilt: bounds are above the truth by
            about a 24th of its square, where the tilt is near the saddle point. Wider where points would be
            too many.

    Guarantee: round-off included, for all tilts.
    """
    found = np.ones(order.size)
    usable = (tilts.theta > 0) & (tilts.theta < np.inf)
    level = np.round(np.log2(np.where(usable, tilts.theta, 1.0))).astype(np.int64)
    level -= level.min(initial=0)
    for rows in _together(order * (level.max(initial=0) + 1) + level, np.flatnonzero(usable)):
        theta = math.exp(float(np.log(tilts.theta[rows]).mean()))
        period = theta * float(np.sort(tilts.extent[rows])[int(_MOST * (rows.size - 1))])
        kernel = _Kernel.of(max(spacing, period / _MOST_POINTS), period)
        line = _Line(pairs, reports, float(excess[order[rows[0]]]), theta, kernel)
        found[rows] = line.ceilings(which[rows])
    # A report adds no more to a sum's positive part than by itself: close where others seldom hide it.
    lonely = (reports - 1) * np.log(np.maximum(pairs.leftover(which), TINY)) > _LONELY
    for rows in _together(order, np.flatnonzero(lonely)):
        alone = pairs.gained(which[rows], float(excess[order[rows[0]]]))
        found[rows] = np.minimum(found[rows], alone * (1 + 1e-12))
    return np.minimum(found + pairs.unhidden(which, excess[order]) + TINY, 1.0)


def _together(group: IndexArray, rows: IndexArray) -> Iterator[IndexArray]:
    """These rows, those of a group together."""
    rows = rows[np.argsort(group[rows], kind="stable")]
    return (one for one in np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1) if one.size)


class _Line(NamedTuple):
    """A contour that several pairs share at one order: the tilt, and the kernel in units of one over it."""

    pairs: Pairs
    reports: int
    excess: float
    theta: float
    kernel: _Kernel

    def ceilings(self, which: IndexArray) -> FloatArray:
        """Bounds on `E[(S)_+] / n` of the pairs at these places."""
        step, count = self.theta * self.kernel.step, self.kernel.real.size
        moments, error = self.pairs.moments(which, self.excess, self.theta, step, count)
        width = max(1, _BLOCK_ELEMENTS // count)
        blocks = (slice(start, start + width) for start in range(0, which.size, width))
        return np.concatenate([self._ceilings(which[some], moments[:, some], error) for some in blocks])

    def _ceilings(self, which: IndexArray, moments: ComplexArray, error: FloatArray) -> FloatArray:
        """The same from the moments, shape (points, pairs), and their errors, shape (points,)."""
        n, kernel, components = float(self.reports), self.kernel, self.pairs.components
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            mass = moments[0].real
            real, imaginary = moments.real / mass, moments.imag / mass
            # What is left over may be known no better than 1 is.
            doubt = (components + 8) * UNIT_ROUND_OFF / mass
            # Where a modulus is known no better than a power makes of it, it is taken to be that large.
            least = n * (error[:, None] + doubt)
            known = least[-1] < 1
            square = real * real + imaginary * imaginary
            np.maximum(square, np.minimum(np.square(least, out=least), 1.0, out=least), out=square)
            size = np.exp(n / 2 * np.log(square))
            cosine, sine = circle(n * np.arctan2(imaginary, real))
            sums = kernel.real @ (size * cosine) - kernel.imaginary @ (size * sine)
            astray = kernel.modulus * (UNIT_ROUND_OFF * (64 + 32 * n + kernel.real.size)) + kernel.round_off
            sums += astray @ size
            # A moment that is off by at most a share of 1/n of itself: so is its power, but for a factor e.
            size /= np.sqrt(square)
            sums += 5 * n * ((kernel.modulus * error) @ size + doubt * (kernel.modulus @ size))
            log_mass = np.log(mass)
            rounding = 16 * UNIT_ROUND_OFF * (2 + np.abs(log_mass))
            few = _Few.of(mass, self.pairs.leftover(which), components=components, reports=n)
            sums -= few.sums(kernel, real, imaginary)
            most = (doubt + few.doubt + 4 * n * rounding) * float(kernel.modulus.sum())
            sums += few.size * (kernel.modulus @ error + most + astray.sum())
            scale = n * (log_mass + 2 * (error[0] + doubt) + rounding) - math.log(n * self.theta)
            found = np.exp(np.minimum(scale, _LARGEST)) * np.maximum(sums, 0.0) * (1 + 1e-12)
            if np.any(few.apply):
                found[few.apply] += self.pairs.gained(which[few.apply], self.excess) * few.others[few.apply]
        return np.where((mass > _SMALLEST) & (scale < _LARGEST) & known & (found < 1), found, 1.0)


class _Few(NamedTuple):
    """Outcomes with at most one report of a component, where they are much: known without the sum.

    Attributes:
        apply: for which pairs that is so, shape (pairs,).
        constant, linear: what they are of the tilted characteristic function: `constant + linear * moment`,
            0 for other pairs, shape (pairs,).
        size: bound on these terms, shape (pairs,).
        doubt: bound on what the rounding of the leftover mass makes of them, relative, shape (pairs,).
        others: upper bound on the probability that all other reports are leftover ones, shape (pairs,).
    """

    apply: BoolArray
    constant: FloatArray
    linear: FloatArray
    size: FloatArray
    doubt: FloatArray
    others: FloatArray

    @classmethod
    def of(cls, mass: FloatArray, leftover: FloatArray, *, components: int, reports: float) -> _Few:
        """Of pairs with these moments at the tilt."""
        left = np.maximum(leftover, TINY)
        slack = (components + 8) * UNIT_ROUND_OFF
        none = np.exp(reports * (np.log(left) - np.log(mass)))
        single = reports * none * mass / left
        hidden = 1 - left / mass
        apply = none + single * hidden >= _MUCH
        none, single = np.where(apply, none, 0.0), np.where(apply, single, 0.0)
        others = np.exp((reports - 1) * np.log(np.minimum(left + slack, 1.0)) * (1 - 8 * UNIT_ROUND_OFF))
        size = none + single * (2 + hidden)
        doubt = reports * slack / left
        return cls(apply, none - single * left / mass, single, size, doubt, others * (1 + 1e-12))

    def sums(self, kernel: _Kernel, real: FloatArray, imaginary: FloatArray) -> FloatArray:
        """The kernel's sums of the terms, from the moments over those at the tilt, shape (pairs,)."""
        if not np.any(self.apply):
            return np.zeros_like(self.size)
        moments = kernel.real @ real - kernel.imaginary @ imaginary
        return np.asarray(self.constant * float(kernel.real.sum()) + self.linear * moments)


class _Kernel(NamedTuple):
    """The transform of the kernel above the ramp of tilt 1 at multiples of the step up to where it ends, half
    of it at 0, times the step over pi: its parts, and bounds on its modulus and on its round-off; shape
    (points,)."""

    step: float
    real: FloatArray
    imaginary: FloatArray
    modulus: FloatArray
    round_off: FloatArray

    @classmethod
    def of(cls, spacing: float, period: float) -> _Kernel:
        """For a kernel of this spacing, and a period of at least this."""
        return cls._made(spacing, math.ceil(math.log(max(period / _SHORTEST, 1.0)) / math.log(_LONGER)))

    @classmethod
    @functools.lru_cache(maxsize=128)
    def _made(cls, spacing: float, longer: int) -> _Kernel:
        step = 2 * math.pi / (_SHORTEST * _LONGER**longer)
        kernels = RampKernels.of(np.ones(1), np.array([spacing]))
        u = np.asarray(step * np.arange(math.floor(float(kernels.band[0]) / step) + 1), dtype=np.float64)
        only, share = np.zeros(u.size, dtype=np.int64), np.where(u == 0, 0.5, 1.0) * (step / math.pi)
        real, imaginary = (kernels.turned(only, u, np.full(u.size, phase)) for phase in (0.0, -math.pi / 2))
        doubt = 2 * real.round_off + 16 * UNIT_ROUND_OFF * real.modulus
        return cls(step, *(share * one for one in (real.upper, imaginary.upper, real.modulus, doubt)))


def saddles(pairs: Pairs, which: IndexArray, reports: int, excess: FloatArray) -> FloatArray:
    """Tilts that suit the pairs `which[i]` at the orders `1 + excess[i]`, 0 where nothing is gained."""
    theta = np.zeros_like(excess)
    for rows, laws, _ in pairs.laws(which, excess):
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        if np.any(alive):
            theta[rows[alive]] = laws.at(alive).saddle(reports, closeness=_NEAR_SADDLE)
    return theta


def _saddles(theta: FloatArray, powers: FloatArray) -> FloatArray:
    """About where theta times the slope of `n log M` is 2, rather a smaller tilt, shape (pairs, orders): from
    its values at tilts of shape (tilts, orders)."""
    with np.errstate(invalid="ignore"):
        middle = np.broadcast_to(((theta[1:] + theta[:-1]) / 2)[:, None, :], powers[1:].shape)
        level = np.nan_to_num(np.diff(powers, axis=0), nan=np.inf, posinf=np.inf)
        level *= middle / np.diff(theta, axis=0)[:, None, :]
    after = np.where(level[-1] >= 2, (level >= 2).argmax(axis=0), len(level) - 1)[None]
    before = np.maximum(after - 1, 0)
    low, high, left, right = (
        np.take_along_axis(values, place, axis=0)[0]
        for values, place in ((level, before), (level, after), (middle, before), (middle, after))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.nan_to_num((2 - low) / (high - low), nan=0.0, posinf=0.0, neginf=0.0)
        return np.asarray(left + np.clip(share, 0.0, 1.0) * (right - left))
