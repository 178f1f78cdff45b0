"""Upper bounds on many pairs' divergences at once: what rules most pairs out.

The trapezoid sum for a kernel above the ramp, to which translates only add, with moments of all pairs at an
order in one product of matrices. `docs/theory.md`, "Ceilings", has the proofs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from accounting.gain_laws import Pairs, Tilted
from accounting.numerics import UNIT_ROUND_OFF, BoolArray, ComplexArray, FloatArray, IndexArray, circle
from accounting.ramp_kernels import RampKernels

# The shortest period, in units of one over the tilt, the steps in which periods are made longer, and for
# which share of the pairs they are. Points of a line are no more than some.
_SHORTEST = 10.0
_LONGER = 1.1
_MOST = 0.9
_MOST_POINTS = 1500
# Outcomes with at most one report of a component are taken out where they are so much.
_MUCH = 0.3
# Where a power has fallen by this exponent it is next to nothing; how many deviations that takes where sums
# are nearly Gaussian, rather more; by which share the first points at which that is seen are apart; and what
# one of them costs, in units of others.
_NEGLIGIBLE = 20.0
_FADED = 8.0
_STRIDE = 1.2
_DIRECT = 2
# Logarithm of the probability that all other reports are leftover ones.
_LONELY = -4.0
_LARGEST = 700.0
# Numbers that are looked at together: points times pairs, or components times pairs.
_BLOCK_ELEMENTS = 1 << 14
# The least mass beside which nothing that underflows counts.
_SMALLEST = 1e-25
#: Below what matters of a divergence.
TINY = 1e-300


class Tilts(NamedTuple):
    """Of all pairs and orders, shape (pairs, orders).

    Attributes:
        theta: tilts near the saddle points, rather smaller, 0 where nothing is gained.
        extent: how far from 0 the tilted sums hardly ever are.
    """

    theta: FloatArray
    extent: FloatArray


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
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = _summed(pairs, (which, order), reports, excess, tilts=tilts, spacing=spacing)
    # A report adds no more to a sum's positive part than by itself: close where others seldom hide it.
    rows = np.flatnonzero((reports - 1) * np.log(np.maximum(pairs.leftover(which), TINY)) > _LONELY)
    found[rows] = np.minimum(found[rows], pairs.gained(which[rows], excess[order[rows]]) * (1 + 1e-12))
    return np.minimum(found + pairs.unhidden(which, excess[order]) + TINY, 1.0)


def _summed(
    pairs: Pairs,
    rows: tuple[IndexArray, IndexArray],
    reports: int,
    excess: FloatArray,
    *,
    tilts: Tilts,
    spacing: float,
) -> FloatArray:
    """The bounds on what hidden components contribute."""
    which, order = rows
    found = np.ones(order.size)
    usable = (tilts.theta > 0) & (tilts.theta < np.inf)
    least = np.full(excess.size, np.inf)
    np.minimum.at(least, order[usable], tilts.theta[usable])
    level = np.where(usable, np.floor(np.log2(tilts.theta / least[order])), 0.0).astype(np.int64)
    alone = usable.copy()
    for some in _together(order * (level.max(initial=0) + 1) + level, np.flatnonzero(usable)):
        theta = math.exp(float(np.log(tilts.theta[some]).mean()))
        tilted = pairs.shared(which[some], float(excess[order[some[0]]]), theta)
        if tilted is not None:
            alone[some] = False
            line = _Line(pairs, reports, which[some], excess[order[some]], np.full(some.size, theta))
            found[some] = line.ceilings(tilted, _kernel(spacing, theta * tilts.extent[some]))
    left = np.flatnonzero(alone)
    left = left[np.argsort(tilts.theta[left] * tilts.extent[left])]
    height = max(1, _BLOCK_ELEMENTS // max(pairs.components, 1))
    for start in range(0, left.size, height):
        some = left[start : start + height]
        line = _Line(pairs, reports, which[some], excess[order[some]], tilts.theta[some])
        found[some] = line.ceilings(line.tilted(), _kernel(spacing, line.theta * tilts.extent[some]))
    return found


def _together(group: IndexArray, rows: IndexArray) -> Iterator[IndexArray]:
    """These rows, those of a group together."""
    rows = rows[np.argsort(group[rows], kind="stable")]
    return (one for one in np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1) if one.size)


def _kernel(spacing: float, extents: FloatArray) -> _Kernel:
    """The kernel for sums that are hardly ever farther from 0 than these extents, for most of them."""
    period = float(np.sort(np.where(np.isfinite(extents), extents, 0.0))[int(_MOST * (extents.size - 1))])
    return _Kernel.of(max(spacing, period / _MOST_POINTS), period)


class _Line(NamedTuple):
    """Contours of several pairs, each at its order and with its tilt; arrays of shape (pairs,)."""

    pairs: Pairs
    reports: int
    which: IndexArray
    excess: FloatArray
    theta: FloatArray

    def at(self, pairs: slice | IndexArray) -> _Line:
        """The same of some of the pairs."""
        return self._replace(which=self.which[pairs], excess=self.excess[pairs], theta=self.theta[pairs])

    def tilted(self) -> Tilted:
        """The tilted laws."""
        return self.pairs.tilted(self.which, self.excess, self.theta)

    def ceilings(self, tilted: Tilted, kernel: _Kernel) -> FloatArray:
        """Bounds on `E[(S)_+] / n`."""
        leftover, components = self.pairs.leftover(self.which), self.pairs.components
        few = _Few.of(tilted.mass, leftover, components=components, reports=self.reports)
        points = kernel.real.size
        first, beyond = self._outlook(tilted, kernel)
        found = self.summed(tilted, few, kernel, first)
        if first < points:
            left = np.flatnonzero(few.apply | ~self._fades(tilted, beyond, (points - first) // _DIRECT))
            if left.size:
                some = self.at(left)
                again = tilted if left.size == found.size else some.tilted()
                found[left] = some.summed(again, few.at(left), kernel, points)
        return np.where(tilted.finite, found, 1.0)

    def _outlook(self, tilted: Tilted, kernel: _Kernel) -> tuple[int, FloatArray]:
        """How many of the points seem to count, and frequencies at which to see that those beyond do not; all
        of them where that would not be worthwhile."""
        deviation, points = np.sort(np.sqrt(tilted.square / tilted.mass)), kernel.real.size
        low, high = (float(deviation[int(share * (deviation.size - 1))]) for share in (1 - _MOST, _MOST))
        if not 0 < high < math.inf:
            return points, np.zeros(0)
        start = _FADED / max(low * math.sqrt(self.reports), TINY) + kernel.step
        end = kernel.step * points
        beyond: list[float] = []
        while _DIRECT * len(beyond) + start / kernel.step < points:
            beyond.append(beyond[-1] + min(_STRIDE * beyond[-1], 1 / high) if beyond else start)
            if beyond[-1] >= end:
                return min(math.ceil(start / kernel.step) + 1, points), np.array(beyond)
        return points, np.zeros(0)

    def _fades(self, tilted: Tilted, u: FloatArray, most: int) -> BoolArray:
        """Whether powers of the moments are next to nothing at all frequencies between these, as far as up to
        so many of them tell."""
        doubt, variance = self._doubt(tilted), tilted.square / tilted.mass

        def squares(u: FloatArray) -> FloatArray:
            modulus = np.abs(tilted.moments(u)) / tilted.mass + (tilted.error(u) + doubt)
            return np.asarray(modulus * modulus)

        known, level = squares(u), math.exp(-2 * _NEGLIGIBLE / self.reports)
        while True:
            # The second derivative of the squared modulus is at most twice the variance.
            rise = np.square(np.diff(u))[:, None] * variance * (1 / 4 + 1e-6)
            noted = ~(np.maximum(known[1:], known[:-1]) + rise <= level)
            fades = ~(known > level).any(axis=0)
            closer = np.flatnonzero(noted[:, fades].any(axis=1))
            if not closer.size or u.size + closer.size > most:
                return np.asarray(fades & ~noted.any(axis=0))
            middle = (u[closer] + u[closer + 1]) / 2
            u, known = np.insert(u, closer + 1, middle), np.insert(known, closer + 1, squares(middle), axis=0)

    def _doubt(self, tilted: Tilted) -> FloatArray:
        """What is left over may be known no better than 1 is: what that makes of moments, in units of the
        mass."""
        return (self.pairs.components + 8) * UNIT_ROUND_OFF / tilted.mass

    def summed(self, tilted: Tilted, few: _Few, kernel: _Kernel, points: int) -> FloatArray:
        """The bounds from so many points; those beyond are next to nothing, if there are any."""
        place = np.arange(float(points))
        error = tilted.error(kernel.step * place) + 8 * UNIT_ROUND_OFF * place[:, None]
        values, found = tilted.multiples(kernel.step, points), np.ones(self.which.size)
        moments = _Moments(values, np.broadcast_to(error, values.shape), tilted.mass, self._doubt(tilted))
        width = max(1, _BLOCK_ELEMENTS // points)
        for start in range(0, self.which.size, width):
            some = slice(start, start + width)
            found[some] = self.at(some).bounds(moments.at(some), few.at(some), kernel)
        return found

    def bounds(self, moments: _Moments, few: _Few, kernel: _Kernel) -> FloatArray:
        """The same for some of the pairs."""
        n, (values, error, mass, doubt) = float(self.reports), moments
        first = kernel.first(len(values))
        real, imaginary = values.real / mass, values.imag / mass
        # Where a modulus is known no better than a power makes of it, it is taken to be that large.
        least = n * (error + doubt)
        known = least[-1] < 1
        square = real * real + imaginary * imaginary
        np.maximum(square, np.minimum(np.square(least, out=least), 1.0, out=least), out=square)
        size = np.exp(n / 2 * np.log(square))
        cosine, sine = circle(n * np.arctan2(imaginary, real))
        sums = first.real @ (size * cosine) - first.imaginary @ (size * sine)
        astray = first.modulus * (UNIT_ROUND_OFF * (64 + 32 * n + kernel.real.size)) + first.round_off
        sums += astray @ size
        # A moment that is off by at most a share of 1/n of itself: so is its power, but for a factor e.
        size /= np.sqrt(square)
        sums += 5 * n * (first.modulus @ (error * size) + doubt * (first.modulus @ size))
        if len(values) < kernel.real.size:
            sums += math.exp(-_NEGLIGIBLE) * float(kernel.modulus.sum())
        log_mass = np.log(mass)
        rounding = 16 * UNIT_ROUND_OFF * (2 + np.abs(log_mass))
        sums -= few.sums(first, real, imaginary)
        most = (doubt + few.doubt + 4 * n * rounding) * float(first.modulus.sum())
        sums += few.size * (first.modulus @ error + most + astray.sum())
        scale = n * (log_mass + 2 * (error[0] + doubt) + rounding) - np.log(n * self.theta)
        found = np.exp(np.minimum(scale, _LARGEST)) * np.maximum(sums, 0.0) * (1 + 1e-12)
        if np.any(few.apply):
            gained = self.pairs.gained(self.which[few.apply], self.excess[few.apply])
            found[few.apply] += gained * few.others[few.apply]
        return np.where((mass > _SMALLEST) & (scale < _LARGEST) & known & (found < 1), found, 1.0)


class _Moments(NamedTuple):
    """Moments of tilted laws at the first points of a line.

    Attributes:
        values: the moments, shape (points, pairs).
        error: bounds on their errors, in units of the mass, shape (points, pairs).
        mass: about what they are at the tilt, shape (pairs,).
        doubt: what the rounding of the leftover mass makes of them besides, shape (pairs,).
    """

    values: ComplexArray
    error: FloatArray
    mass: FloatArray
    doubt: FloatArray

    def at(self, pairs: slice) -> _Moments:
        """The same of some of the pairs."""
        return _Moments(self.values[:, pairs], self.error[:, pairs], self.mass[pairs], self.doubt[pairs])


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

    def at(self, pairs: slice | IndexArray) -> _Few:
        """The same of some of the pairs."""
        columns: tuple[Any, ...] = tuple(column[pairs] for column in self)
        return _Few(*columns)

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

    def first(self, points: int) -> _Kernel:
        """The first of the points."""
        return _Kernel(self.step, *(one[:points] for one in self[1:]))

    @classmethod
    @functools.lru_cache(maxsize=128)
    def _made(cls, spacing: float, longer: int) -> _Kernel:
        step = 2 * math.pi / (_SHORTEST * _LONGER**longer)
        kernels = RampKernels.of(np.ones(1), np.array([spacing]))
        u = np.asarray(step * np.arange(math.floor(float(kernels.band[0]) / step) + 1), dtype=np.float64)
        only, share = np.zeros(u.size, dtype=np.int64), np.where(u == 0, 0.5, 1.0) * (step / math.pi)
        real, imaginary = (kernels.times(only, u, np.full(u.size, value)) for value in (1 + 0j, -1j))
        doubt = 2 * real.round_off + 16 * UNIT_ROUND_OFF * real.modulus
        return cls(step, *(share * one for one in (real.upper, imaginary.upper, real.modulus, doubt)))
