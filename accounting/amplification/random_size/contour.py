"""Divergences for every number of reports at once, needed if the number of honest reports in a sample is
random.

At an order the law of one report's gain does not depend on the number of reports. So one contour serves all
numbers: the characteristic function of n reports is the n-th power of the same values. `docs/theory.md`,
"Every number at once", has the bounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.contour import (
    Line,
    Tails,
    close_kernels,
    eased,
    last_nodes,
    log_all_leftover,
    short_period,
)
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Laws, Pairs
from shuffle_ledger.accounting.amplification.blanket.tilting import SMALL_LOG_MASS, Tilt
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    TINY,
    UNIT_ROUND_OFF,
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
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

#: Array elements (nodes of several orders times powers) that are worked on together. Larger: fewer calls,
#: more memory. The bounds hold for every value; the tests change it.
BLOCK_ELEMENTS = 1 << 20

# Array elements that a node's characteristic function and kernels take.
_ELEMENTS_OF_NODE = 30


class Run(NamedTuple):
    """Numbers of reports `first + k * stride` for every `k < size`."""

    first: int
    stride: int
    size: int

    @property
    def values(self) -> IndexArray:
        """Returns the numbers, shape (size,)."""
        return self.first + self.stride * np.arange(self.size)

    @property
    def factors(self) -> tuple[int, int]:
        """Returns how many small powers and how many large powers are needed, so that each number's power is
        a product of one small and one large one. Large ones are made twice, once for each kernel."""
        small = math.isqrt(2 * self.size - 2) + 1
        return small, -(-self.size // small)


class Counts(NamedTuple):
    """Numbers of reports, ascending, in runs of equal strides, and a typical number, for which the contour is
    chosen."""

    runs: tuple[Run, ...]
    typical: int

    @property
    def values(self) -> IndexArray:
        """Returns all numbers, shape (counts,)."""
        return np.concatenate([run.values for run in self.runs])

    @property
    def first(self) -> int:
        """Returns the smallest number."""
        return self.runs[0].first

    @property
    def last(self) -> int:
        """Returns the largest number."""
        return int(self.runs[-1].values[-1])

    @property
    def place(self) -> int:
        """Returns the position of the first number that is at least the typical one."""
        return int(np.searchsorted(self.values, self.typical))

    @property
    def ends(self) -> Counts:
        """Returns only the smallest, the typical and the largest number: these have the same contour."""
        chosen = sorted({self.first, int(self.values[self.place]), self.last})
        return Counts(tuple(Run(one, 1, 1) for one in chosen), self.typical)

    @property
    def size(self) -> int:
        """Returns how many numbers there are."""
        return sum(run.size for run in self.runs)


def every_count(
    pairs: Pairs, place: int, counts: Counts, excess: FloatArray, *, smoothing: FloatArray
) -> ProfileBounds:
    """Returns bounds on the hockey-stick divergences of order `1 + excess` of one blanket pair, for every
    number of users, each of shape (counts, orders).

    Args:
        pairs: blanket pairs.
        place: position of the pair.
        counts: numbers of honest shuffled reports.
        excess: orders minus one, shape (orders,).
        smoothing: as of `blanket_profile`, for the typical number, shape (orders,).

    Guarantee: as of `blanket_profile`, for every number. The bounds are wide for laws of several scales, and
    for
        numbers that are far from the typical one.
    """
    upper, lower = (np.empty((counts.size, excess.size)) for _ in range(2))
    which = np.full(excess.size, place, dtype=np.int64)
    for rows, laws, bare in pairs.laws(which, excess):
        above, below = np.tile(bare.upper, (counts.size, 1)), np.tile(bare.lower, (counts.size, 1))
        alive = np.flatnonzero(laws.gains.max(axis=1, initial=0.0) > 0)
        if alive.size:
            more, least = _hidden(laws.at(alive), counts, smoothing[rows[alive]])
            above[:, alive] += more + TINY
            below[:, alive] += least
        upper[:, rows], lower[:, rows] = above + laws.lost(excess[rows]), below
    return ProfileBounds(upper, lower)


def _hidden(laws: Laws, counts: Counts, smoothing: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns upper and lower bounds on the divergences of the hidden components, each of shape (counts,
    orders)."""
    theta = laws.saddle(counts.typical)
    # All numbers have the contour of the typical one. A bound that is monotone in the number of reports, or
    # whose logarithm is linear in it, is largest at the smallest or at the largest number.
    fewest, typical, most = (
        Tilt.of(laws, number, theta) for number in (counts.first, counts.typical, counts.last)
    )
    spread = typical.deviation
    smoothing = eased(smoothing, theta * spread)
    kernels = close_kernels(theta, spread, smoothing, None)
    period = short_period(typical, Tails.of(typical, counts.typical, spread), smoothing, spread)
    ends = Tails.of(fewest, counts.first, spread), Tails.of(most, counts.last, spread)
    alias = ends[0].larger(ends[1]).translates(period)
    line = Line.plain(fewest, counts.first, kernels, 2 * np.pi / period)
    last, _, _, skipped = last_nodes(fewest, kernels, line.step)
    kept = line.last_of_note(last, np.ones(theta.size, dtype=np.bool_))
    left_out = (last - kept) * line.least_term * line.step / np.pi * (1 + 1e-9)
    upper, lower, round_off = _sums(line, kept, counts)
    rest = skipped + left_out + round_off + most.moved * np.exp(np.minimum(most.raised, LARGEST_EXPONENT))
    number = counts.values[:, None].astype(np.float64)
    log_mass, doubt = typical.log_mass / counts.typical, typical.log_mass_error / counts.typical
    log_scale, size = number * log_mass - np.log(number), np.abs(number * log_mass) + np.log(number)
    error = number * doubt + 8 * UNIT_ROUND_OFF * (size + 8)
    silent = np.exp(log_all_leftover(typical, number)) * kernels.at_kink
    # The leftover mass may have the absolute round-off of 1.
    slack = np.where(log_mass < SMALL_LOG_MASS, number * laws.unsure(log_mass), 0.0)
    crude = log_scale + error + number * (typical.raised / counts.typical) - np.log(theta * math.e)
    unsure = (
        np.exp(np.minimum(crude, LARGEST_EXPONENT))
        * np.expm1(np.minimum(slack, LARGEST_EXPONENT))
        * (1 + 1e-9)
    )
    more, less = 1 + 8 * UNIT_ROUND_OFF, 1 - 8 * UNIT_ROUND_OFF
    with np.errstate(over="ignore", invalid="ignore"):  # the bound is then trivial
        upper = np.exp(log_scale + error) * (np.maximum(upper - silent, 0.0) + rest) * more
        lower = np.exp(log_scale - error) * (lower - rest - alias) * less
        upper, lower = np.fmin(upper + unsure, 1.0), np.fmax(lower - unsure, 0.0)
    return upper, np.minimum(lower, upper)


def _sums(line: Line, last: IndexArray, counts: Counts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the trapezoid sums for the upper and the lower kernel up to every order's last node, shape
    (counts, orders), and an upper bound on their round-off, shape (orders,)."""
    upper, lower = (np.zeros((counts.size, last.size)) for _ in range(2))
    round_off = np.zeros(last.size)
    order, start = np.argsort(last), 0
    powers, atoms = sum(sum(run.factors) for run in counts.runs), line.tilt.weights.shape[1]
    most = max(1, BLOCK_ELEMENTS // powers)
    while start < order.size:
        number, each = np.arange(1, order.size - start + 1), last[order[start:]] + 1
        # A characteristic function takes about two roots of the number of nodes for each atom.
        few = (number * each <= most) & (number * np.sqrt(each) * atoms <= 2 * BLOCK_ELEMENTS)
        rows = order[start : start + max(1, int(few.sum()))]
        size = int(last[rows].max()) + 1
        spend(float((powers + atoms + _ELEMENTS_OF_NODE) * size * rows.size))
        for first in range(0, size, most):
            nodes, end = _Nodes.of(line.at(rows), first, np.minimum(last[rows], first + most - 1), counts), 0
            for run in counts.runs:
                begin, end = end, end + run.size
                for known, more in zip((upper, lower), nodes.sums(run), strict=True):
                    known[begin:end, rows] += more
            round_off[rows] += nodes.round_off(counts, powers, size)
        start += rows.size
    return upper, lower, round_off


class _Nodes(NamedTuple):
    """Nodes of several orders; arrays of shape (orders, nodes). All orders have as many nodes as the order
    with most; beyond an order's own last node the kernels' transforms are set to 0.

    Attributes:
        log_modulus, angle: real and imaginary part of `log(phi)`, phi the characteristic function of one
            report's gain, not centred.
        angles: sum of the moduli of the terms of `angle`.
        doubt: bound on the relative round-off of `phi`.
        upper, lower: the kernels' transforms times the nodes' weights.
        modulus: upper bound on the moduli of `upper` and `lower`.
        error: upper bound on their round-off.
    """

    log_modulus: FloatArray
    angle: FloatArray
    angles: FloatArray
    doubt: FloatArray
    upper: ComplexArray
    lower: ComplexArray
    modulus: FloatArray
    error: FloatArray

    @classmethod
    def of(cls, line: Line, first: int, last: IndexArray, counts: Counts) -> _Nodes:
        """Evaluates the nodes of these lines from number `first` up to each line's `last`."""
        place = np.arange(first, int(last.max()) + 1)
        tilt = line.tilt
        inside, u = place <= last[:, None], line.step[:, None] * place
        less_one = characteristic_less_one(tilt.weights, tilt.centred, line.step, first, place.size)
        doubt = noise(tilt.weights.shape[1], u, *(scale[:, None] for scale in line.scales))
        logarithm = log_modulus(less_one, doubt)
        turn = np.arctan2(less_one.imag, 1 + less_one.real)
        shift = u * (tilt.mean / counts.first)[:, None]
        weight = np.where(inside, np.where(place == 0, 0.5, 1.0), 0.0) * (line.step / np.pi)[:, None]
        row, column = np.nonzero(inside)
        found = line.kernels.transforms(row, u[row, column])
        upper, lower = (np.zeros(u.shape, dtype=np.complex128) for _ in range(2))
        modulus, error = np.zeros_like(u), np.zeros_like(u)
        upper[row, column], lower[row, column] = found.upper, found.lower
        modulus[row, column], error[row, column] = found.modulus, found.round_off
        return cls(
            logarithm,
            turn + shift,
            np.abs(turn) + np.abs(shift),
            doubt * np.exp(-logarithm),
            upper * weight,
            lower * weight,
            modulus * weight,
            error * weight,
        )

    def sums(self, run: Run) -> tuple[FloatArray, FloatArray]:
        """Returns the sums for both kernels, for every number of a run, each of shape (size, orders)."""
        # Every power of the characteristic function is a small power times a large one. Only real parts of
        # products are needed: real and imaginary parts, of one factor conjugated, in one real product.
        small, large = run.factors
        first = self.power(run.first)
        ones = self._powers(np.ones_like(first), run.stride, small).conj()
        factors = ones.view(np.float64).transpose(0, 2, 1)
        found = []
        for kernel in (self.upper, self.lower):
            terms = self._powers(first * kernel, run.stride * small, large)
            products = np.matmul(terms.view(np.float64), factors)
            found.append(products.reshape(len(kernel), -1)[:, : run.size].T)
        return found[0], found[1]

    def power(self, number: int) -> ComplexArray:
        """Returns the characteristic function of the total gain of `number` reports."""
        return np.asarray(np.exp(number * self.log_modulus) * turned(number * self.angle))

    def _powers(self, start: ComplexArray, number: int, size: int) -> ComplexArray:
        """Returns `start` times the characteristic functions of 0, 1, ... times `number` reports, shape
        (orders, size, nodes)."""
        found = np.empty((start.shape[0], size, start.shape[1]), dtype=np.complex128)
        found[:, 0] = start
        known, factor = 1, start if size == 1 else self.power(number)
        while known < size:
            more = min(known, size - known)
            np.multiply(found[:, :more], factor[:, None], out=found[:, known : known + more])
            known, factor = 2 * known, factor * factor
        return found

    def round_off(self, counts: Counts, factors: int, nodes: int) -> FloatArray:
        """Returns an upper bound on the round-off of these nodes' share of the sums, shape (orders,).

        Args:
            counts: the numbers of reports.
            factors: how many powers are multiplied up, at most.
            nodes: how many nodes a sum has, at most.
        """
        last = counts.last + max(run.stride for run in counts.runs) * factors
        # Round-off of every power, proportional to the number of its factors, of the products of powers, and
        # of the sums over the nodes.
        units = 32 * (8 + factors) + 8 * nodes + 8 * last * (self.angles + np.abs(self.log_modulus))
        power = np.expm1(np.minimum(2 * last * self.doubt, LARGEST_EXPONENT))
        size = np.exp(counts.first * self.log_modulus)
        error = size * (self.modulus * (power + UNIT_ROUND_OFF * units) + 2 * self.error)
        return np.asarray(error.sum(axis=1) * (1 + 1e-9))
