"""The quadrature of the sum over users: `E[(S)_+] / n` of tilted laws, on one contour for each order.

Every error is bounded: aliasing (it only raises the upper bound), nodes that are left out, round-off.
`docs/theory.md`, "The contour", has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.tilting import Given, Tilt
from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    BoolArray,
    ComplexArray,
    FloatArray,
    IndexArray,
    turned,
)
from shuffle_ledger.accounting.numeric.characteristic_functions import (
    characteristic_less_one,
    log_modulus,
    noise,
)
from shuffle_ledger.accounting.numeric.ramp_kernels import RampKernels

# Spacing of the kernels, in units of a smoothing that would be as wide.
_SPACING = math.sqrt(8.0)
# Spacing whose band ends where the modulus is no longer bounded by the variance, in units of the reach.
_NARROW = 2 * (1 + 1e-9)
# Sums are hardly spread whose deviation is less than that in units of 1/theta: kernels are then apart by the
# third power of the smoothing, and that may be as much larger.
_NARROWLY, _LESS = 0.25, 0.7
# Where the tilted characteristic function is cut by its own bound, in tilted standard deviations.
_LOBE_CUT = 11.0
_BLOCK_ELEMENTS = 1 << 16
# Nodes are left out where what they contribute has fallen by this exponent.
_NEGLIGIBLE = 46.0
_UNBOUNDED = 500.0
# Logarithm of the mass under the tilt below which it may be less than it is taken for.
_LEAST_MASS = math.log(0.02)
# Outcomes with at most one report of a component are taken out where they are so much.
_MUCH = 0.3
# Of points at which the modulus is looked at first, in nodes; and as many of them.
_SHORTEST_STRIDE = 4
_LARGEST = 700.0
# The shortest period, in units of 1/theta and in deviations; how often it is made longer at most, and by how
# much.
_SHORTEST = 16.0
_DEVIATIONS = 6.0
_LENGTHENINGS = 12
_LONGER = 1.3
# Rates of the bounds on tails, in units of one over the deviation.
_RATES = np.array([0.25, 0.5, 1.0, 2.0, 3.5, 5.0, 8.0, 13.0])
# What translates may add, in units of the smoothing's square, and between which shares of the sum.
_ALIAS = 0.01
_ALIASES = (1e-9, 1e-5)
# How far below 0 a sum may be for which the ramp's translates are bounded one by one, in periods.
_SHARES = (0.5, 0.3, 0.15)
# Of the spacing, in units of 1/theta: half the shortest period.
_WIDEST = _SHORTEST / 2
_E = float(np.e)


def integrate(
    tilt: Tilt,
    reports: int,
    smoothing: FloatArray,
    lone: tuple[FloatArray, FloatArray],
    given: Given | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Upper and lower bounds on `E[(S)_+] / n`, shape (orders,), by kernels as close as the smoothing says;
    see `blanket_profile`.

    Where reports of components are few, outcomes with one of them or none are left to `lone`: bounds on what
    those with one add. Where there are reports that are given, n is the number of the others.
    """
    theta, deviation = tilt.theta, tilt.deviation
    spread = deviation if given is None else np.hypot(deviation, np.sqrt(given.variance))
    smoothing = eased(smoothing, theta * spread)
    # Where the lobe is short anyway, kernels next to each other cost nothing: the closest whose band ends at
    # pi / reach.
    least = None if given is not None else _NARROW * tilt.reach
    kernels = close_kernels(theta, spread, smoothing, least)
    period, alias = short_period(tilt, Tails.of(tilt, reports, spread, given), smoothing, spread)
    step = 2 * np.pi / period
    last, short, cut, skipped = last_nodes(tilt, kernels, step)
    if given is not None:
        short = cut
    few = Few.of(tilt, reports, np.logical_and(~short, given is None))
    line = Line(tilt, reports, kernels, step, few, given)
    kept = line.last_of_note(last, ~short & ~few.apply)
    upper_sum, lower_sum, round_off, left_out = _node_sums(line, kept)
    left_out += (last - kept) * line.least_term * step / np.pi
    truncation = skipped + left_out * (1 + 1e-9)
    log_scale = tilt.log_mass - np.log(reports)
    error, moved, raised = tilt.log_mass_error, tilt.moved, tilt.raised
    if given is not None:
        log_scale, error = log_scale + given.log_mass, error + given.log_mass_error
        moved, raised = moved + given.moved, raised + given.raised
    round_off += moved * np.exp(np.minimum(raised, _LARGEST))
    error = error + 8 * UNIT_ROUND_OFF * (np.abs(log_scale) + 8)
    log_scale_upper, log_scale_lower = log_scale + error, log_scale - error
    # When nobody reports a component, S = 0 exactly: what the upper kernel is there is known, and taken back.
    counted = few.apply | (given is not None)
    silent = np.where(counted, 0.0, np.exp(log_all_leftover(tilt, reports)) * kernels.at_kink)
    most, least = (np.exp(np.minimum(one, _LARGEST)) for one in (log_scale_upper, log_scale_lower))
    most = np.where(log_scale_upper < _LARGEST, most, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):  # nothing is known, then
        upper = most * (np.maximum(upper_sum - silent, 0) + round_off + truncation) * (1 + 8 * UNIT_ROUND_OFF)
        lower = least * (lower_sum - round_off - truncation - alias) * (1 - 8 * UNIT_ROUND_OFF)
    lower = np.clip(lower, 0.0, upper)
    above, below = (np.where(few.apply, one, 0.0) for one in lone)
    return upper + above, lower + below


def eased(smoothing: FloatArray, spread: FloatArray) -> FloatArray:
    """How much smoothing is as little, given deviations in units of one over the tilt: what is far from the
    kink, and hardly spread, sees less of how far kernels are from the ramp."""
    return np.where(spread < _NARROWLY, np.maximum(smoothing, _LESS * smoothing ** (2 / 3)), smoothing)


def close_kernels(
    theta: FloatArray, deviation: FloatArray, smoothing: FloatArray, least: FloatArray | None
) -> RampKernels:
    """Kernels as close as the smoothing says of a sum of such deviations, no closer spaced than so much where
    that is less, nor very much closer."""
    scale = _SPACING * np.maximum(deviation, 0.5 / theta)
    spacing = smoothing
    if least is not None:
        # The lobe ends where no kernel of such spacing does.
        short = _LOBE_CUT * scale * smoothing < 2 * np.pi * deviation
        closest = np.clip(least / scale, np.minimum(0.001, smoothing), smoothing)
        spacing = np.where(short, closest, smoothing)
    # Any spacing is sound; a wider one would leave no nodes, at orders where nothing is left.
    return RampKernels.of(theta, np.minimum(scale * spacing, _WIDEST / theta))


class LastNodes(NamedTuple):
    """Nodes beyond which none need evaluating; arrays of shape (orders,).

    Attributes:
        number: the last one.
        short: where the variance bounds the modulus of the characteristic function up to there.
        cut: where that bound ends the nodes, before the kernels' transforms do.
        skipped: what nodes beyond add at most.
    """

    number: IndexArray
    short: BoolArray
    cut: BoolArray
    skipped: FloatArray


def last_nodes(tilt: Tilt, kernels: RampKernels, step: FloatArray) -> LastNodes:
    """The last nodes of sums under these tilts, of no more reports than any that these are used for."""
    # |phi|^n <= exp(-2 u^2 deviation^2 / pi^2) while u * reach <= pi: beyond the lobe nothing needs
    # evaluating, nor where the kernels' transforms end before.
    lobe = _LOBE_CUT / np.maximum(tilt.deviation, 1e-300)
    short = tilt.reach <= np.pi / np.maximum(kernels.band, lobe)
    last = np.floor(np.where(short, np.minimum(lobe, kernels.band), kernels.band) / step).astype(np.int64)
    cut, rate, end = short & (lobe < kernels.band), 2 * tilt.deviation**2 / np.pi**2, last * step
    with np.errstate(divide="ignore", invalid="ignore"):
        skipped = kernels.largest * np.exp(-rate * end**2) / (2 * rate * end) / np.pi
    return LastNodes(last, short, cut, np.where(cut, skipped, 0.0))


def log_all_leftover(tilt: Tilt, reports: int | FloatArray) -> FloatArray:
    """`log` of a lower bound on the tilted probability that every report is a leftover one."""
    leftover = tilt.weights[:, -1]
    result: FloatArray = (
        reports * np.log(np.maximum(leftover, 1e-300)) * (1 + 8 * UNIT_ROUND_OFF) - 1e-10 - 1e-15 * reports
    )
    return result


def short_period(
    tilt: Tilt, tails: Tails, smoothing: FloatArray, deviation: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """A period and a bound on what its translates add to the trapezoid sum (needed by the lower bound
    only)."""
    theta = tilt.theta
    period = np.maximum(_SHORTEST / theta, _DEVIATIONS * deviation)
    target = np.clip(_ALIAS * smoothing**2, *_ALIASES) * tilt.peak / np.maximum(1.0, theta * deviation)
    added = tails.translates(theta, period)
    for _ in range(_LENGTHENINGS):
        loose = added > target
        if not np.any(loose):
            break
        period = np.where(loose, period * _LONGER, period)
        added = tails.translates(theta, period)
    return period, added


class Tails(NamedTuple):
    """Rates at which the tilted sum's tails fade, and the logarithms of its moments at each rate and at its
    negative; arrays of shape (rates, orders)."""

    rate: FloatArray
    above: FloatArray
    below: FloatArray

    @classmethod
    def of(cls, tilt: Tilt, reports: int, deviation: FloatArray, given: Given | None = None) -> Tails:
        """Those of a sum of about this deviation."""
        rate = _RATES[:, None] / np.maximum(deviation, 0.5 / tilt.theta)
        rates, found = np.concatenate([rate, -rate]), np.empty((2 * len(rate), deviation.size))
        together = max(1, _BLOCK_ELEMENTS // tilt.centred.size)
        for start in range(0, len(rates), together):
            some = slice(start, start + together)
            found[some] = _log_moment(tilt, reports, rates[some])
        if given is not None:
            found += [given.log_moment(one) for one in rates]
        return cls(rate, found[: len(rate)], found[len(rate) :])

    def beyond(self, logarithm: FloatArray, distance: FloatArray) -> FloatArray:
        """Bounds on the probability that sums are so far out, on the side of these moments: Chernoff's."""
        return np.asarray(np.exp(np.minimum((logarithm - self.rate * distance).min(axis=0), 0.0)))

    def translates(self, theta: FloatArray, period: FloatArray) -> FloatArray:
        """Bound on what all translates of the ramp add.

        Those of a sum that is not far below 0 are beyond the peak, where the ramp falls; of any other sum one
        is at most the peak, and those beyond are as far out as periods.
        """
        ratio = np.exp(-theta * period)
        most = 1 / (theta * _E) + period * ratio / (1 - ratio) ** 2
        bound = np.full_like(theta, np.inf)
        for share in _SHARES:
            first = (1 - share) * period
            near = np.exp(-theta * first) * (first + period * ratio / (1 - ratio)) / (1 - ratio)
            bound = np.minimum(bound, near + most * self.beyond(self.below, share * period))
        return np.asarray((bound + most * self.beyond(self.above, period)) * (1 + 1e-9))


def _log_moment(tilt: Tilt, reports: int, rate: FloatArray) -> FloatArray:
    """`log E~[exp(rate S)]` under the tilted law, or more, at rates of shape (rates, orders); infinite where
    next to nothing is known."""
    exponents = rate[..., None] * tilt.centred
    highest, terms = exponents.max(axis=-1), exponents
    weights, lost = tilt.weights, np.zeros_like(rate, dtype=np.bool_)
    if np.any(highest > _UNBOUNDED):
        # Of atoms so far out that their weights may be lost to underflow a mass is at most 1, and the tilted
        # exponents are known; but for a mass under the tilt as small as `_log_mass` makes it at least.
        far, mass = exponents > _UNBOUNDED, (tilt.log_mass - tilt.log_mass_error) / reports
        shift = np.where(mass > _LEAST_MASS, tilt.theta * tilt.mean / reports - mass, np.inf)
        whole = exponents + tilt.theta[:, None] * tilt.centred + shift[:, None]
        whole += 16 * UNIT_ROUND_OFF * np.abs(exponents - whole)  # terms cancel where a sum below 500 is left
        lost = np.asarray((far & ~(whole < _UNBOUNDED)).any(axis=-1))
        terms, weights = np.minimum(np.where(far, whole, exponents), _UNBOUNDED), np.where(far, 1.0, weights)
    moment = (weights * np.exp(terms)).sum(axis=-1)
    logarithm, drift = reports * np.log(np.maximum(moment, 1e-300)), rate * tilt.mean
    # Terms are off by what their exponents are rounded by.
    largest = reports * np.clip(highest, 0.0, _UNBOUNDED)
    rounding = 8 * UNIT_ROUND_OFF * (np.abs(logarithm) + np.abs(drift) + largest)
    return np.where(lost, np.inf, logarithm + drift + rounding)


def _node_sums(line: Line, last: IndexArray) -> FloatArray:
    """Trapezoid sums for both kernels, a bound on their round-off, and one on the nodes that were left out,
    shape (4, orders)."""
    sums = np.zeros((4, last.size))
    for rows, first, count in blocks(last, line.tilt.weights.shape[1]):
        sums[:, rows] += line.at(rows).sums(last[rows], first, count)
    return sums


def blocks(last: IndexArray, atoms: int) -> Iterator[tuple[IndexArray, int, int]]:
    """Orders whose nodes are summed together, the first of these nodes, and how many."""
    order = np.argsort(last)
    nodes = last[order] + 1
    # What it takes to evaluate all nodes of an order.
    sizes = nodes + 2 * np.sqrt(nodes) * atoms
    start = 0
    while start < len(order):
        together = np.arange(1, len(order) - start + 1) * sizes[start:]
        stop = start + max(1, int((together <= _BLOCK_ELEMENTS).sum()))
        count = int(nodes[stop - 1])
        for first in range(0, count, _BLOCK_ELEMENTS):
            yield order[start:stop], first, min(count - first, _BLOCK_ELEMENTS)
        start = stop


class Few(NamedTuple):
    """Tilted probabilities that no report is one of a component, `none`, or a certain one alone, `single`
    times its weight, where these outcomes are much, 0 elsewhere; and `hidden`, that a report is one; shape
    (orders,)."""

    none: FloatArray
    single: FloatArray
    hidden: FloatArray

    @classmethod
    def of(cls, tilt: Tilt, reports: int, allowed: BoolArray) -> Few:
        hidden = np.minimum(tilt.weights[:, :-1].sum(axis=1), 1 - 1e-16)
        none = np.exp(reports * np.log1p(-hidden))
        single = reports * none / (1 - hidden)
        much = allowed & (none + single * hidden >= _MUCH)
        return cls(np.where(much, none, 0.0), np.where(much, single, 0.0), hidden)

    @property
    def apply(self) -> BoolArray:
        """Where these outcomes are known without the sum."""
        return np.asarray(self.single > 0)


class _Nodes(NamedTuple):
    """Nodes of several orders; arrays of shape (nodes,).

    Attributes:
        row, u: the order, and the frequency.
        less_one, doubt: the characteristic function, less 1, and a bound on its round-off.
        given: what one given report makes of it as a factor, centred; None where none is given.
    """

    row: IndexArray
    u: FloatArray
    less_one: ComplexArray
    doubt: FloatArray
    given: ComplexArray | None


class Line(NamedTuple):
    """Lines of nodes, one for each order."""

    tilt: Tilt
    reports: int
    kernels: RampKernels
    step: FloatArray
    few: Few
    given: Given | None

    @classmethod
    def plain(cls, tilt: Tilt, reports: int, kernels: RampKernels, step: FloatArray) -> Line:
        """Lines of sums of which nothing is known without them."""
        nothing = np.zeros_like(step)
        return cls(tilt, reports, kernels, step, Few(nothing, nothing, nothing), None)

    def at(self, rows: IndexArray) -> Line:
        """Some of the lines."""
        tilt = self.tilt.at(rows)
        few = Few(*(column[rows] for column in self.few))
        given = None if self.given is None else self.given.at(rows)
        return Line(tilt, self.reports, self.kernels.at(rows), self.step[rows], few, given)

    def last_of_note(self, last: IndexArray, asked: BoolArray) -> IndexArray:
        """The last nodes, up to the given ones, that need evaluating, where that is asked: all beyond may be
        left out.

        The squared modulus is known at a few points, and its second derivative is at most twice the variance.
        """
        least, (variance, _) = self.least_square, self.scales
        # What the squared modulus may rise by between two points is a quarter of what it has to fall by, or
        # of what it is then.
        stride = (
            np.sqrt(np.maximum(np.minimum(-least, 1 + least), 0.0) / np.maximum(variance, 1e-300)) / self.step
        )
        stride = np.maximum(np.minimum(stride, last).astype(np.int64), 1)
        rows = np.flatnonzero(asked & (stride >= _SHORTEST_STRIDE) & (last >= _SHORTEST_STRIDE * stride))
        points, apart = np.ceil(last[rows] / stride[rows]).astype(np.int64), self.step[rows] * stride[rows]
        highest = np.full(rows.size, -1)
        for some, first, count in blocks(points, self.tilt.weights.shape[1]):
            part = self.at(rows[some])._replace(step=apart[some])
            rise = part.scales[0] * part.step**2 / 4 * (1 + 1e-9)
            _, noted = part.nodes(first, count, rise)
            place = np.arange(first, first + count)
            noted &= place <= points[some, None]
            highest[some] = np.maximum(highest[some], np.where(noted, place, -1).max(axis=1))
        found = last.copy()
        # From a point of note to the next one, all nodes may be.
        found[rows] = np.minimum(last[rows], (highest + 1) * stride[rows])
        return found

    @property
    def scales(self) -> tuple[FloatArray, FloatArray]:
        """Variance and mean absolute deviation of one report's gain."""
        tilt = self.tilt
        return tilt.deviation**2 / self.reports, (tilt.weights * np.abs(tilt.centred)).sum(axis=1)

    @property
    def least_square(self) -> FloatArray:
        """The squared modulus, less 1, below which its power has fallen so far that nodes are left out."""
        return np.where(self.few.apply, -2.0, math.expm1(-2 * _NEGLIGIBLE / self.reports))

    @property
    def least_term(self) -> FloatArray:
        """Bound on what a node adds that is left out, but for the step over pi."""
        return np.asarray(math.exp(-_NEGLIGIBLE) * self.kernels.largest)

    def nodes(self, first: int, count: int, rise: FloatArray) -> tuple[ComplexArray, BoolArray]:
        """The characteristic function, less 1, at `count` nodes from the first one on, and where its squared
        modulus is of note or may be, if it rises by so much."""
        tilt = self.tilt
        less_one = characteristic_less_one(tilt.weights, tilt.centred, self.step, first, count)
        real, imaginary = less_one.real, less_one.imag
        doubt = noise(tilt.weights.shape[1], self.step * (first + count), *self.scales)
        least = self.least_square - 3 * doubt - rise
        return less_one, real * (real + 2) + imaginary * imaginary >= least[:, None]

    def sums(self, last: IndexArray, first: int, count: int) -> FloatArray:
        """The sums of `_node_sums` over `count` nodes from the first one on, up to every order's last.

        Nodes are left out where the modulus tells that they add next to nothing.
        """
        step, scales = self.step, self.scales
        less_one, noted = self.nodes(first, count, np.zeros_like(step))
        inside = np.arange(first, first + count) <= last[:, None]
        kept = inside & noted
        left_out = (inside & ~kept).sum(axis=1) * self.least_term
        row, place = np.nonzero(kept)
        u = step[row] * (first + place)
        doubt = noise(self.tilt.weights.shape[1], u, *(scale[row] for scale in scales))
        given = None
        if self.given is not None:
            own = characteristic_less_one(self.given.weights, self.given.centred, step, first, count)
            given = 1 + own[kept]
        terms = self._terms(_Nodes(row, u, less_one[kept], doubt, given))
        added = [np.bincount(row, weights=one, minlength=step.size) for one in terms]
        return np.vstack([*added, left_out]) * (step / np.pi)

    def _terms(self, nodes: _Nodes) -> FloatArray:
        """Terms of the sums for both kernels, and bounds on their round-off, shape (3, nodes)."""
        row, u, given = nodes.row, nodes.u, nodes.given
        known = self.few.apply[row]
        value, error = self._power(nodes)
        if self.given is not None and given is not None:
            factor, astray = self.given.factor(row, u, given)
            error += np.abs(value) * astray
            value *= factor
        if np.any(known):
            part, astray = self._known(nodes)
            value -= np.where(known, part, 0.0)
            error += np.where(known, astray, 0.0)
        products = self.kernels.times(row, u, value)
        terms = np.array([products.upper, products.lower, error * products.modulus + products.round_off])
        terms[:, u == 0] /= 2
        return np.asarray(terms)

    @property
    def _units(self) -> int:
        return 64 + 4 * int(self.tilt.weights.shape[1])

    def _power(self, nodes: _Nodes) -> tuple[ComplexArray, FloatArray]:
        """The power of the characteristic function, not centred, and a bound on its round-off; shape
        (nodes,)."""
        reports, row, u, less_one, doubt = self.reports, *nodes[:4]
        modulus = log_modulus(less_one, doubt)
        exponent = reports * modulus
        turn, shift = reports * np.arctan2(less_one.imag, 1 + less_one.real), u * self.tilt.mean[row]
        size = np.exp(exponent)
        # What the round-off of the characteristic function makes of its power; twice, since the modulus may
        # be no more than that.
        power = np.expm1(np.minimum(2 * reports * doubt * np.exp(-modulus), 700.0))
        angles = np.abs(turn) + np.abs(shift)
        relative = power + UNIT_ROUND_OFF * (40 + 4 * angles + 4 * np.abs(exponent))
        return size * turned(turn + shift), size * relative

    def _known(self, nodes: _Nodes) -> tuple[ComplexArray, FloatArray]:
        """The part of the power that outcomes with at most one report of a component make up,
        and a bound on its round-off."""
        row, u, less_one, doubt = nodes[:4]
        none, single, hidden = (one[row] for one in self.few)
        # What the characteristic function, not centred, is more than a leftover report's part.
        shift = u * (self.tilt.mean / self.reports)[row]
        sine = np.sin(shift / 2)
        turn = 2 * sine * (1j * np.cos(shift / 2) - sine)
        value = none + single * (hidden + turn * (1 + less_one) + less_one)
        size = none + single * (hidden + np.abs(shift) + np.abs(less_one))
        return value, UNIT_ROUND_OFF * self._units * size + single * doubt
