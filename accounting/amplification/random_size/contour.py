"""Divergences of every number of reports at once, where chance decides how many of a sample are honest.

At an order the law of one report's gain does not depend on how many reports there are: one contour serves all
numbers, the characteristic function of each being one more power of the same values. `docs/theory.md`, "Every
number at once", has the bounds.
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
from shuffle_ledger.accounting.amplification.blanket.tilting import NEAR_SADDLE, SMALL_LOG_MASS, Tilt
from shuffle_ledger.accounting.numeric.arrays import (
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
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Values that are made together: nodes of several orders times powers.
_BLOCK_ELEMENTS = 1 << 20
_TINY, _LARGEST = 1e-300, 700.0
_E = float(np.e)


class Run(NamedTuple):
    """Numbers of reports `first + k * stride` for every `k < size`."""

    first: int
    stride: int
    size: int

    @property
    def values(self) -> IndexArray:
        """The numbers, shape (size,)."""
        return self.first + self.stride * np.arange(self.size)

    @property
    def factors(self) -> tuple[int, int]:
        """How many small powers, and large ones, make those of every number: of large ones there are two
        kinds."""
        small = math.isqrt(2 * self.size - 2) + 1
        return small, -(-self.size // small)


class Counts(NamedTuple):
    """Numbers of reports, ascending, in runs of equal strides, and a typical one, to which contours are
    matched."""

    runs: tuple[Run, ...]
    typical: int

    @property
    def values(self) -> IndexArray:
        """The numbers, shape (counts,)."""
        return np.concatenate([run.values for run in self.runs])

    @property
    def first(self) -> int:
        """The smallest."""
        return self.runs[0].first

    @property
    def last(self) -> int:
        """The largest."""
        return int(self.runs[-1].values[-1])

    @property
    def place(self) -> int:
        """The place of the first number that is no less than the typical one."""
        return int(np.searchsorted(self.values, self.typical))

    @property
    def ends(self) -> Counts:
        """The smallest, the typical and the largest of them alone: contours are the same."""
        chosen = sorted({self.first, int(self.values[self.place]), self.last})
        return Counts(tuple(Run(one, 1, 1) for one in chosen), self.typical)

    @property
    def size(self) -> int:
        """How many they are."""
        return sum(run.size for run in self.runs)


def every_count(
    pairs: Pairs, place: int, counts: Counts, excess: FloatArray, *, smoothing: FloatArray
) -> ProfileBounds:
    """Bounds on the hockey-stick divergences of order `1 + excess` of one blanket pair of every number of
    users, each of shape (counts, orders).

    Args:
        pairs: blanket pairs.
        place: which of them.
        counts: numbers of honest shuffled reports.
        excess: orders minus one, shape (orders,).
        smoothing: as of `blanket_profile`, for the typical number, shape (orders,).

    Guarantee: as of `blanket_profile`, for every number; laws of several scales, and numbers that are far
        from the typical one, come out wide.
    """
    upper, lower = (np.empty((counts.size, excess.size)) for _ in range(2))
    which = np.full(excess.size, place, dtype=np.int64)
    for rows, laws, bare in pairs.laws(which, excess):
        above, below = np.tile(bare.upper, (counts.size, 1)), np.tile(bare.lower, (counts.size, 1))
        alive = np.flatnonzero(laws.gains.max(axis=1, initial=0.0) > 0)
        if alive.size:
            more, least = _hidden(laws.at(alive), counts, smoothing[rows[alive]])
            above[:, alive] += more + _TINY
            below[:, alive] += least
        upper[:, rows], lower[:, rows] = above + laws.lost(excess[rows]), below
    return ProfileBounds(upper, lower)


def _hidden(laws: Laws, counts: Counts, smoothing: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds on the divergences of the hidden components."""
    theta = laws.saddle(counts.typical, closeness=NEAR_SADDLE)
    # Numbers far from the typical one have the same contour. What grows with the number of reports, or falls,
    # or bounds logarithms that are linear in it, is worst at one of the ends.
    fewest, typical, most = (
        Tilt.of(laws, number, theta) for number in (counts.first, counts.typical, counts.last)
    )
    spread = typical.deviation
    smoothing = eased(smoothing, theta * spread)
    kernels = close_kernels(theta, spread, smoothing, None)
    period, _ = short_period(typical, Tails.of(typical, counts.typical, spread), smoothing, spread)
    ends = Tails.of(fewest, counts.first, spread), Tails.of(most, counts.last, spread)
    above, below = (np.maximum(*(getattr(one, side) for one in ends)) for side in ("above", "below"))
    alias = Tails(ends[0].rate, above, below).translates(theta, period)
    line = Line.plain(fewest, counts.first, kernels, 2 * np.pi / period)
    last, _, _, skipped = last_nodes(fewest, kernels, line.step)
    kept = line.last_of_note(last, np.ones(theta.size, dtype=np.bool_))
    left_out = (last - kept) * line.least_term * line.step / np.pi * (1 + 1e-9)
    upper, lower, round_off = _sums(line, kept, counts)
    rest = skipped + left_out + round_off + most.moved * np.exp(np.minimum(most.raised, _LARGEST))
    number = counts.values[:, None].astype(np.float64)
    log_mass, doubt = typical.log_mass / counts.typical, typical.log_mass_error / counts.typical
    log_scale, size = number * log_mass - np.log(number), np.abs(number * log_mass) + np.log(number)
    error = number * doubt + 8 * UNIT_ROUND_OFF * (size + 8)
    silent = np.exp(log_all_leftover(typical, number)) * kernels.at_kink
    # What is left over may be known no better than 1 is.
    slack = np.where(log_mass < SMALL_LOG_MASS, number * laws.unsure(log_mass), 0.0)
    crude = log_scale + error + number * (typical.raised / counts.typical) - np.log(theta * _E)
    unsure = np.exp(np.minimum(crude, _LARGEST)) * np.expm1(np.minimum(slack, _LARGEST)) * (1 + 1e-9)
    more, less = 1 + 8 * UNIT_ROUND_OFF, 1 - 8 * UNIT_ROUND_OFF
    with np.errstate(over="ignore", invalid="ignore"):  # nothing is known, then
        upper = np.exp(log_scale + error) * (np.maximum(upper - silent, 0.0) + rest) * more
        lower = np.exp(log_scale - error) * (lower - rest - alias) * less
        upper, lower = np.fmin(upper + unsure, 1.0), np.fmax(lower - unsure, 0.0)
    return upper, np.minimum(lower, upper)


def _sums(line: Line, last: IndexArray, counts: Counts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Trapezoid sums for both kernels up to every order's last node, shape (counts, orders), and a bound on
    their round-off, shape (orders,)."""
    upper, lower = (np.zeros((counts.size, last.size)) for _ in range(2))
    round_off = np.zeros(last.size)
    order, start = np.argsort(last), 0
    powers = sum(sum(run.factors) for run in counts.runs)
    most = max(1, _BLOCK_ELEMENTS // powers)
    while start < order.size:
        together = np.arange(1, order.size - start + 1) * (last[order[start:]] + 1)
        rows = order[start : start + max(1, int((together <= most).sum()))]
        size = int(last[rows].max()) + 1
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
    """Nodes of several orders, shape (orders, nodes), up to the farthest last one; beyond an order's own the
    kernels' transforms are taken to be 0.

    Attributes:
        log_modulus, angle: of one report's characteristic function, not centred: `log(phi)`.
        angles: moduli of what the angle is a sum of.
        doubt: how far `phi` may be off, relative.
        upper, lower: the kernels' transforms times the nodes' weights.
        modulus: bound on their moduli.
        error: bound on their round-off.
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
        """Those of these lines from the first one on."""
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
        """The sums for both kernels of every number of a run, shape (size, orders)."""
        # Every power of the characteristic function is a small one times a large one, and no more than the
        # real parts of products are needed: those of real and imaginary parts in turn, of one conjugate.
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
        """The characteristic function of so many reports."""
        return np.asarray(np.exp(number * self.log_modulus) * turned(number * self.angle))

    def _powers(self, start: ComplexArray, number: int, size: int) -> ComplexArray:
        """`start` times the powers of 0, 1, ... times so many reports, shape (orders, size, nodes)."""
        found = np.empty((start.shape[0], size, start.shape[1]), dtype=np.complex128)
        found[:, 0] = start
        known, factor = 1, start if size == 1 else self.power(number)
        while known < size:
            more = min(known, size - known)
            np.multiply(found[:, :more], factor[:, None], out=found[:, known : known + more])
            known, factor = 2 * known, factor * factor
        return found

    def round_off(self, counts: Counts, factors: int, nodes: int) -> FloatArray:
        """Bound on the round-off of these nodes' share of sums over so many, shape (orders,)."""
        last = counts.last + max(run.stride for run in counts.runs) * factors
        # Of every factor, which is off by as many units of a product as it has factors itself, and of their
        # products; then of sums over the nodes.
        units = 32 * (8 + factors) + 8 * nodes + 8 * last * (self.angles + np.abs(self.log_modulus))
        power = np.expm1(np.minimum(2 * last * self.doubt, _LARGEST))
        size = np.exp(counts.first * self.log_modulus)
        error = size * (self.modulus * (power + UNIT_ROUND_OFF * units) + 2 * self.error)
        return np.asarray(error.sum(axis=1) * (1 + 1e-9))
