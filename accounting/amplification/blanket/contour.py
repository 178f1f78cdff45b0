"""The trapezoid rule for the sum over users: `E[(S)_+] / n` of a tilted law, on one contour for each order.

The result is a pair of bounds. They include the aliasing (which can only raise the sum for the upper kernel),
the nodes that are left out, and the round-off. The proofs are in docs/theory/contour.md,
C1 and C4 to C6; C13 is about few reports of components.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.blanket.tilting import MOMENT_EXPONENT, Given, Tilt
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    TINY,
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
from shuffle_ledger.accounting.numeric.effort import spend
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.numeric.ramp_kernels import RampKernels

#: Nodes end where the bound `exp(-2 (deviation sin(u reach / 2) / reach)^2)` falls to `exp(-this)`. Larger:
#: more nodes, a smaller truncation. The bounds hold for every value; the tests change it.
LOBE_EXPONENT = 20.0
#: A node is left out if its term is below `exp(-this)` of the largest possible one. Larger: more nodes,
#: closer bounds. The bounds hold for every value; the tests change it.
LEFT_OUT_EXPONENT = 46.0
#: Outcomes with at most one hidden report are computed exactly, outside the sum over nodes, if their tilted
#: probability is at least this; no node is left out then. Smaller: more nodes. The bounds hold for every
#: value; the tests change it.
EXACT_SHARE = 0.3

# Spacing of the kernels' nodes for a smoothing of 1, in tilted deviations. Larger: fewer nodes, wider bounds.
_SPACING_PER_SMOOTHING = math.sqrt(8.0)
# The same in units of the largest distance of two atoms: the kernels' band then ends where the variance no
# longer bounds the modulus of the characteristic function.
_SPACING_PER_REACH = 2 * (1 + 1e-9)
# If the sum's deviation is below this, in units of 1/theta, the kernels differ by the third power of the
# smoothing only: smoothings are then raised to this factor times their power 2/3.
_NARROW_DEVIATION, _EASED_FACTOR = 0.25, 0.7
# Array elements that are worked on together. Larger: fewer calls, more memory.
_BLOCK_ELEMENTS = 1 << 16
# Logarithm of the mass of one report under the tilt below which the mass may be overstated.
_DOUBTFUL_LOG_MASS = math.log(0.02)
# The modulus is first looked at on every k-th node: the least k, and the least number of these nodes, at
# which that saves time.
_SHORTEST_STRIDE = 4
# The shortest period of the trapezoid rule, in units of 1/theta; the longest one is this many times that, or
# the second number of deviations. A longer period has less aliasing and more nodes.
_SHORTEST_PERIOD = 16.0
_LONGEST_PERIODS, _PERIOD_DEVIATIONS = 24.0, 6.0
# Rates of the exponential moments that bound the translates, in units of 1/deviation; and the largest rate
# for translates to the right, in units of theta: at theta there is no bound.
_TAIL_RATES = [0.4, 1.0, 2.2, 4.0, 8.0]
_LARGEST_RATE = 0.93
# Aliasing that is allowed, in units of the smoothing's square, and its limits, as shares of the sum.
_ALIAS_PER_SMOOTHING = 0.01
_ALIAS_LIMITS = (1e-9, 1e-5)
# Array elements that a node's power and kernels take.
_ELEMENTS_OF_NODE = 30
# The widest spacing of the kernels' nodes, in units of 1/theta: half the shortest period.
_WIDEST_SPACING = _SHORTEST_PERIOD / 2


def integrate(
    tilt: Tilt,
    reports: int,
    smoothing: FloatArray,
    lone: tuple[FloatArray, FloatArray],
    given: Given | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Returns upper and lower bounds on `E[(S)_+] / n`, each of shape (orders,).

    Args:
        tilt: the tilted laws of the sum S, one for each order.
        reports: the number n of reports in S.
        smoothing: how far apart the kernels are, shape (orders,); see `blanket_profile`.
        lone: upper and lower bounds on the contribution of outcomes with exactly one hidden report. Orders at
            which such outcomes are likely use them, and the sum over nodes covers the other outcomes.
        given: reports of known components that are added to S; n does not count them.

    Guarantee: `lower <= E[(S)_+] / n <= upper`, with aliasing, truncation and round-off included.
    """
    theta, deviation = tilt.theta, tilt.deviation
    spread = deviation if given is None else np.hypot(deviation, np.sqrt(given.variance))
    smoothing = eased(smoothing, theta * spread)
    # If the lobe ends the sum anyway, closer kernels cost nothing: the closest ones whose band ends at
    # pi / reach.
    kernels = close_kernels(theta, spread, smoothing, tilt.reach if given is None else None)
    tails = Tails.of(tilt, reports, spread, given)
    period = short_period(tilt, tails, smoothing, spread)
    alias = tails.translates(period)
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
    round_off += moved * np.exp(np.minimum(raised, LARGEST_EXPONENT))
    error = error + 8 * UNIT_ROUND_OFF * (np.abs(log_scale) + 8)
    log_scale_upper, log_scale_lower = log_scale + error, log_scale - error
    # If no report falls in a component, S = 0 exactly. The upper kernel is positive there, the ramp is 0:
    # this known excess is subtracted.
    counted = few.apply | (given is not None)
    silent = np.where(counted, 0.0, np.exp(log_all_leftover(tilt, reports)) * kernels.at_kink)
    most, least = (np.exp(np.minimum(one, LARGEST_EXPONENT)) for one in (log_scale_upper, log_scale_lower))
    most = np.where(log_scale_upper < LARGEST_EXPONENT, most, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):  # the bound is then infinite
        upper = most * (np.maximum(upper_sum - silent, 0) + round_off + truncation) * (1 + 8 * UNIT_ROUND_OFF)
        lower = least * (lower_sum - round_off - truncation - alias) * (1 - 8 * UNIT_ROUND_OFF)
    lower = np.clip(lower, 0.0, upper)
    above, below = (np.where(few.apply, one, 0.0) for one in lone)
    return upper + above, lower + below


def eased(smoothing: FloatArray, spread: FloatArray) -> FloatArray:
    """Returns the smoothing that makes bounds about as close as `smoothing` does for a wide sum.

    Args:
        smoothing: shape (orders,).
        spread: deviation of the sum times theta, shape (orders,). The kernels differ most near the kink; a
            narrow sum is far from it, so a larger smoothing does.
    """
    return np.where(
        spread < _NARROW_DEVIATION, np.maximum(smoothing, _EASED_FACTOR * smoothing ** (2 / 3)), smoothing
    )


def close_kernels(
    theta: FloatArray, deviation: FloatArray, smoothing: FloatArray, reach: FloatArray | None
) -> RampKernels:
    """Returns kernels that are as far apart as the smoothing allows for sums of these deviations.

    Args:
        theta, deviation, smoothing: tilts, tilted deviations of the sums, and smoothings, shape (orders,).
        reach: if the lobe of the characteristic function ends the nodes first, the spacing is reduced to what
            this largest distance of two atoms allows, at no cost (but not below a thousandth of the usual
            scale); None for no such reduction.
    """
    scale = _SPACING_PER_SMOOTHING * np.maximum(deviation, 0.5 / theta)
    spacing = smoothing
    if reach is not None:
        # Whether the lobe ends before the band of kernels of this spacing does.
        short = _lobe_end(deviation, reach) * scale * smoothing < 2 * np.pi
        closest = np.clip(_SPACING_PER_REACH * reach / scale, np.minimum(0.001, smoothing), smoothing)
        spacing = np.where(short, closest, smoothing)
    # Any spacing is sound. A wider one would leave no nodes, at orders where the divergence is almost 0.
    return RampKernels.of(theta, np.minimum(scale * spacing, _WIDEST_SPACING / theta))


class LastNodes(NamedTuple):
    """The last node of each order, and a bound on the sum over the nodes beyond; arrays of shape (orders,).

    Attributes:
        number: number of the last node.
        short: whether the variance bounds the modulus of the characteristic function up to that node.
        cut: whether that bound ends the nodes, before the kernels' transforms do.
        skipped: upper bound on what the nodes beyond add to the sum.
    """

    number: IndexArray
    short: BoolArray
    cut: BoolArray
    skipped: FloatArray


def last_nodes(tilt: Tilt, kernels: RampKernels, step: FloatArray) -> LastNodes:
    """Returns the last nodes of the sums under these tilts.

    A tilt of fewer reports than the sum has is sound: more reports only shorten the lobe.
    """
    # |phi|^n <= exp(-2 (deviation sin(u reach / 2) / reach)^2) while u * reach <= pi: the nodes end with this
    # lobe, or with the kernels' transforms if these end before.
    lobe, band = _lobe_end(tilt.deviation, tilt.reach), kernels.band
    short = (tilt.reach * band <= np.pi) & (lobe < np.inf)
    last = np.floor(np.where(short, np.minimum(lobe, band), band) / step).astype(np.int64)
    reach = np.maximum(tilt.reach, TINY)
    cut, end, rate = short & (lobe < band), last * step, 2 * (tilt.deviation / reach) ** 2
    # Up to pi / reach the sine is above its chord, so the sum is at most a Gaussian tail; or count the nodes.
    sine = np.sin(end * reach / 2)
    rise = (1 - sine) / np.maximum(np.pi / reach - end, TINY)
    with np.errstate(over="ignore"):  # at orders that are not cut
        tail = np.minimum(1 / np.maximum(2 * rate * sine * rise, TINY), np.maximum(band - end, step))
    skipped = kernels.largest * np.exp(-rate * sine**2) * tail / np.pi * (1 + 1e-9)
    return LastNodes(last, short, cut, np.where(cut, skipped, 0.0))


def _lobe_end(deviation: FloatArray, reach: FloatArray) -> FloatArray:
    """Returns the frequency at which the lobe of the characteristic function is cut, infinite if the bound on
    it does not fall that far, shape (orders,)."""
    with np.errstate(over="ignore"):  # if the sum is almost constant
        sine = reach * math.sqrt(LOBE_EXPONENT / 2) / np.maximum(deviation, TINY)
    return np.where(sine < 1, 2 * np.arcsin(np.minimum(sine, 1.0)) / np.maximum(reach, TINY), np.inf)


def log_all_leftover(tilt: Tilt, reports: int) -> FloatArray:
    """Returns the logarithm of a lower bound on the tilted probability that every report is a leftover
    one."""
    leftover = tilt.weights[:, -1]
    result: FloatArray = (
        reports * np.log(np.maximum(leftover, TINY)) * (1 + 8 * UNIT_ROUND_OFF) - 1e-10 - 1e-15 * reports
    )
    return result


def short_period(tilt: Tilt, tails: Tails, smoothing: FloatArray, deviation: FloatArray) -> FloatArray:
    """Returns the shortest period of the trapezoid rule that keeps the bounds close, shape (orders,).

    Aliasing is what the translates of the ramp by multiples of the period add to the sum. Only the lower
    bound subtracts it. A very long period has too many nodes: there the bounds are wider.
    """
    shortest = _SHORTEST_PERIOD / tilt.theta
    longest = _LONGEST_PERIODS * np.maximum(shortest, _PERIOD_DEVIATIONS * deviation)
    share = np.clip(_ALIAS_PER_SMOOTHING * smoothing**2, *_ALIAS_LIMITS)
    allowed = share * tilt.peak / np.maximum(1.0, tilt.theta * deviation)
    return np.clip(tails.period(allowed), shortest, longest)


class Tails(NamedTuple):
    """Bounds on aliasing: on what the translates of the ramp by multiples of a period add to the sum.

    A tilted ramp `exp(-theta x) x_+` is at most `exp(-rate x) / (e (theta - rate))` for every rate below
    theta, also for negative ones. So translates to either side add at most a geometric series of exponential
    moments. Arrays have the shape (rates, orders).

    Attributes:
        rate: moduli of the rates: the first half for translates to the left, the other half to the right.
        log_first: upper bounds on the logarithms of `E~[exp(rate S)] / (e (theta + rate))`, and then of
            `E~[exp(-rate S)] / (e (theta - rate))`.
    """

    rate: FloatArray
    log_first: FloatArray

    @classmethod
    def of(cls, tilt: Tilt, reports: int, deviation: FloatArray, given: Given | None = None) -> Tails:
        """Computes the moments, at rates that suit a sum of about this deviation, shape (orders,)."""
        rate = np.array(_TAIL_RATES)[:, None] / np.maximum(deviation, 0.5 / tilt.theta)
        rates = np.concatenate([rate, -np.minimum(rate, _LARGEST_RATE * tilt.theta)])
        found = np.empty_like(rates)
        together = max(1, _BLOCK_ELEMENTS // tilt.centred.size)
        for start in range(0, len(rates), together):
            some = slice(start, start + together)
            found[some] = _log_moment(tilt, reports, rates[some])
        if given is not None:
            found += [given.log_moment(one) for one in rates]
        return cls(np.abs(rates), found - 1 - np.log(tilt.theta + rates))

    def period(self, allowed: FloatArray) -> FloatArray:
        """Returns the shortest period whose translates add about this much, shape (orders,)."""
        needed = (self.log_first - np.log(allowed / 2)) / self.rate
        return np.asarray(needed.reshape(2, -1, allowed.size).min(axis=1).max(axis=0))

    def translates(self, period: FloatArray) -> FloatArray:
        """Returns upper bounds on what the translates by all multiples of a period add, shape (orders,);
        infinite where no rate gives one."""
        fall = self.rate * period
        exponents = (self.log_first - fall - np.log(-np.expm1(-fall))).reshape(2, -1, period.size)
        least = exponents.min(axis=1)
        each = np.where(least > LARGEST_EXPONENT, np.inf, np.exp(np.minimum(least, LARGEST_EXPONENT)))
        return np.asarray(each.sum(axis=0) * (1 + 1e-9))


def _log_moment(tilt: Tilt, reports: int, rate: FloatArray) -> FloatArray:
    """Returns upper bounds on `log E~[exp(rate S)]` under the tilted law, at rates of shape (rates, orders);
    infinite if a term overflows.

    Guarantee: round-off included.
    """
    exponents = rate[..., None] * tilt.centred
    highest, terms = np.maximum(rate * tilt.centred.max(axis=1), rate * tilt.centred.min(axis=1)), exponents
    weights, lost = tilt.weights, np.zeros_like(rate, dtype=np.bool_)
    if np.any(highest > MOMENT_EXPONENT):
        # The weight of an atom this far out may have underflowed. Its mass is at most 1 and its exponent
        # under the tilt is known: that bounds its term, unless the mass under the tilt is itself in doubt.
        far, mass = exponents > MOMENT_EXPONENT, (tilt.log_mass - tilt.log_mass_error) / reports
        shift = np.where(mass > _DOUBTFUL_LOG_MASS, tilt.theta * tilt.mean / reports - mass, np.inf)
        whole = exponents + tilt.theta[:, None] * tilt.centred + shift[:, None]
        whole += 16 * UNIT_ROUND_OFF * np.abs(exponents - whole)  # terms cancel where a sum below 500 is left
        lost = np.asarray((far & ~(whole < MOMENT_EXPONENT)).any(axis=-1))
        terms, weights = (
            np.minimum(np.where(far, whole, exponents), MOMENT_EXPONENT),
            np.where(far, 1.0, weights),
        )
    moment = np.einsum("...j,...j->...", weights, np.exp(terms))
    logarithm, drift = reports * np.log(np.maximum(moment, TINY)), rate * tilt.mean
    # Terms are off by what their exponents are rounded by. Weights and their sum are off by a few units more,
    # which the number of reports multiplies.
    largest = reports * (np.clip(highest, 0.0, MOMENT_EXPONENT) + 1 + weights.shape[-1] / 4)
    rounding = 8 * UNIT_ROUND_OFF * (np.abs(logarithm) + np.abs(drift) + largest)
    return np.where(lost, np.inf, logarithm + drift + rounding)


def _node_sums(line: Line, last: IndexArray) -> FloatArray:
    """Returns the trapezoid sums for the upper and the lower kernel, an upper bound on their round-off, and
    one on the nodes that were left out, shape (4, orders)."""
    sums = np.zeros((4, last.size))
    for rows, first, count in blocks(last, line.tilt.weights.shape[1]):
        sums[:, rows] += line.at(rows).sums(last[rows], first, count)
    return sums


def blocks(last: IndexArray, atoms: int) -> Iterator[tuple[IndexArray, int, int]]:
    """Yields blocks of orders whose nodes are evaluated together: positions of the orders, the first of the
    nodes, and the number of nodes."""
    order = np.argsort(last)
    nodes = last[order] + 1
    # Array elements that the evaluation of all nodes of an order takes.
    sizes = nodes + 2 * np.sqrt(nodes) * atoms
    start = 0
    while start < len(order):
        together = np.arange(1, len(order) - start + 1) * sizes[start:]
        stop = start + max(1, int((together <= _BLOCK_ELEMENTS).sum()))
        count = int(nodes[stop - 1])
        spend(float(sizes[start:stop].sum()))
        for first in range(0, count, _BLOCK_ELEMENTS):
            yield order[start:stop], first, min(count - first, _BLOCK_ELEMENTS)
        start = stop


class Few(NamedTuple):
    """Outcomes with at most one hidden report (a report of a component, not of the leftover); shape
    (orders,).

    Attributes:
        none: tilted probability that no report is hidden; 0 at orders that do not compute these outcomes
            apart.
        single: the factor that turns the tilted weight of a component into the tilted probability that one
            report falls in it and all others are leftover ones; 0 likewise.
        hidden: tilted probability that one given report is hidden.

    Source: docs/theory/contour.md, C13.
    """

    none: FloatArray
    single: FloatArray
    hidden: FloatArray

    @classmethod
    def of(cls, tilt: Tilt, reports: int, allowed: BoolArray) -> Few:
        """Decides, at orders where it is allowed, whether these outcomes are likely enough to be taken
        apart."""
        hidden = np.minimum(tilt.weights[:, :-1].sum(axis=1), 1 - 1e-16)
        none = np.exp(reports * np.log1p(-hidden))
        single = reports * none / (1 - hidden)
        much = allowed & (none + single * hidden >= EXACT_SHARE)
        return cls(np.where(much, none, 0.0), np.where(much, single, 0.0), hidden)

    @property
    def apply(self) -> BoolArray:
        """Returns whether these outcomes are computed exactly, apart from the sum over nodes, shape
        (orders,)."""
        return np.asarray(self.single > 0)


class _ContourNodes(NamedTuple):
    """Nodes of several orders; arrays of shape (nodes,).

    Attributes:
        row, u: the order, and the frequency.
        less_one, doubt: the characteristic function, less 1, and a bound on its round-off.
        given: the characteristic function of one given report, centred; None if no reports are given.
    """

    row: IndexArray
    u: FloatArray
    less_one: ComplexArray
    doubt: FloatArray
    given: ComplexArray | None


class Line(NamedTuple):
    """Equally spaced nodes on the contours, one line for each order."""

    tilt: Tilt
    reports: int
    kernels: RampKernels
    step: FloatArray
    few: Few
    given: Given | None

    def at(self, rows: IndexArray) -> Line:
        """Returns the lines of some of the orders."""
        tilt = self.tilt.at(rows)
        few = Few(*(column[rows] for column in self.few))
        given = None if self.given is None else self.given.at(rows)
        return Line(tilt, self.reports, self.kernels.at(rows), self.step[rows], few, given)

    def last_of_note(self, last: IndexArray, asked: BoolArray) -> IndexArray:
        """Returns the last node of each order, shape (orders,), beyond which no term matters.

        Args:
            last: the last nodes so far, shape (orders,).
            asked: orders at which an earlier last node is looked for; the others keep theirs.

        Guarantee: every node beyond, up to `last`, has a term of at most `least_term`. The squared modulus is
            evaluated at a few nodes; its second derivative is at most twice the variance.
        """
        least, (variance, _) = self.least_square, self.scales
        # Between two of these nodes the squared modulus rises by at most a quarter of the fall that makes a
        # term negligible, or of the value after that fall.
        stride = (
            np.sqrt(np.maximum(np.minimum(-least, 1 + least), 0.0) / np.maximum(variance, TINY)) / self.step
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
        # Between a node that matters and the next one that was evaluated, every node may matter.
        found[rows] = np.minimum(last[rows], (highest + 1) * stride[rows])
        return found

    @property
    def scales(self) -> tuple[FloatArray, FloatArray]:
        """Returns the tilted variance and mean absolute deviation of one report's gain, shape (orders,)."""
        tilt = self.tilt
        return tilt.deviation**2 / self.reports, (tilt.weights * np.abs(tilt.centred)).sum(axis=1)

    @property
    def least_square(self) -> FloatArray:
        """Returns the squared modulus, less 1, below which a node is left out, shape (orders,)."""
        return np.where(self.few.apply, -2.0, math.expm1(-2 * LEFT_OUT_EXPONENT / self.reports))

    @property
    def least_term(self) -> FloatArray:
        """Returns an upper bound on the term of a node that is left out, before the factor `step / pi`."""
        return np.asarray(math.exp(-LEFT_OUT_EXPONENT) * self.kernels.largest)

    def nodes(self, first: int, count: int, rise: FloatArray) -> tuple[ComplexArray, BoolArray]:
        """Evaluates `count` nodes from `first` on.

        Returns the characteristic function, less 1, and whether the node matters: its squared modulus, raised
        by `rise` (shape (orders,)) and by its round-off, is above the limit. Both of shape (orders, count).
        """
        tilt = self.tilt
        less_one = characteristic_less_one(tilt.weights, tilt.centred, self.step, first, count)
        real, imaginary = less_one.real, less_one.imag
        doubt = noise(tilt.weights.shape[1], self.step * (first + count), *self.scales)
        least = self.least_square - 3 * doubt - rise
        return less_one, real * (real + 2) + imaginary * imaginary >= least[:, None]

    def sums(self, last: IndexArray, first: int, count: int) -> FloatArray:
        """Returns the sums of `_node_sums` over `count` nodes from `first` on, up to every order's last node.

        Nodes whose modulus is below the limit are left out; their bound is the fourth row.
        """
        step, scales = self.step, self.scales
        less_one, noted = self.nodes(first, count, np.zeros_like(step))
        inside = np.arange(first, first + count) <= last[:, None]
        kept = inside & noted
        left_out = (inside & ~kept).sum(axis=1) * self.least_term
        row, place = np.nonzero(kept)
        spend(_ELEMENTS_OF_NODE * row.size)
        u = step[row] * (first + place)
        doubt = noise(self.tilt.weights.shape[1], u, *(scale[row] for scale in scales))
        given = None
        if self.given is not None:
            own = characteristic_less_one(self.given.weights, self.given.centred, step, first, count)
            given = 1 + own[kept]
        terms = self._terms(_ContourNodes(row, u, less_one[kept], doubt, given))
        added = [np.bincount(row, weights=one, minlength=step.size) for one in terms]
        return np.vstack([*added, left_out]) * (step / np.pi)

    def _terms(self, nodes: _ContourNodes) -> FloatArray:
        """Returns the terms for the upper and the lower kernel, and a bound on their round-off, shape
        (3, nodes)."""
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

    def _power(self, nodes: _ContourNodes) -> tuple[ComplexArray, FloatArray]:
        """Returns `E~[exp(i u S)]`, the n-th power of one report's characteristic function, not centred, and
        a bound on its round-off, shape (nodes,)."""
        reports, row, u, less_one, doubt = self.reports, *nodes[:4]
        modulus = log_modulus(less_one, doubt)
        exponent = reports * modulus
        turn, shift = reports * np.arctan2(less_one.imag, 1 + less_one.real), u * self.tilt.mean[row]
        size = np.exp(exponent)
        # The relative round-off of the power. The doubt counts twice, since the computed modulus may be no
        # larger than the doubt.
        power = np.expm1(np.minimum(2 * reports * doubt * np.exp(-modulus), LARGEST_EXPONENT))
        angles = np.abs(turn) + np.abs(shift)
        relative = power + UNIT_ROUND_OFF * (40 + 4 * angles + 4 * np.abs(exponent))
        return size * turned(turn + shift), size * relative

    def _known(self, nodes: _ContourNodes) -> tuple[ComplexArray, FloatArray]:
        """Returns the part of `E~[exp(i u S)]` of outcomes with at most one hidden report, and a bound on its
        round-off, shape (nodes,)."""
        row, u, less_one, doubt = nodes[:4]
        none, single, hidden = (one[row] for one in self.few)
        # The hidden components' part of the characteristic function of one report, not centred.
        shift = u * (self.tilt.mean / self.reports)[row]
        sine = np.sin(shift / 2)
        turn = 2 * sine * (1j * np.cos(shift / 2) - sine)
        value = none + single * (hidden + turn * (1 + less_one) + less_one)
        size = none + single * (hidden + np.abs(shift) + np.abs(less_one))
        return value, UNIT_ROUND_OFF * self._units * size + single * doubt
