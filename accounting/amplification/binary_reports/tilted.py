"""Many users: the supremum of the divergence over all datasets, from one tilted law for each order.

With j others away from one end, the divergence is `A exp(w - I - fall j) max over M of R_j(M + 1 - mu_j)`,
and R is a sum over nodes. Proofs: docs/theory/amplification.md, A8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    TINY,
    UNIT_ROUND_OFF,
    ComplexArray,
    FloatArray,
    IndexArray,
)
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

#: Spacing of the nodes, in units of one over the largest deviation. Larger: fewer nodes, more aliasing. The
#: bounds hold for every value; the tests change it.
SPACING = 0.5
#: The nodes end where the bound on the tilted characteristic function falls to `exp(-this)`. The bounds hold
#: for every value; the tests change it.
LAST_EXPONENT = 42.0
#: Datasets next to the end are computed one by one, at most this many. Larger: closer bounds for few reports
#: of one kind, more time. The bounds hold for every value; the tests change it.
MOST_DATASETS = 2048

# Least number of nodes of a whole period.
_LEAST_PERIOD = 65
# Distance of the nodes from the kernel's pole, in units of one over the largest deviation, and its limit.
# Larger: less aliasing, larger terms.
_POLE_DISTANCE, _LARGEST_SHIFT = 1.5, 1.0
# Rates of the exponential moments that bound aliasing, in units of one over the largest deviation, and their
# limit.
_ALIAS_RATES = [0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0, 12.0]
_LARGEST_RATE = 4.0
# Least and largest number of steps of the place x in [0, 2], and of the number of users away from the end if
# the certificate fails; and steps for each unit of the variances' logarithms. Larger: closer bounds, more
# time.
_PLACES, _STEPS, _STEPS_PER_UNIT = (2, 64), (4, 32), 16
#: Largest number of steps of that number of users at orders whose bounds no further dataset next to the end
#: makes close. Larger: closer bounds for a large epsilon0, more time. The bounds hold for every value; the
#: tests change it.
FINEST_STEPS = 256
# Calls of more orders than this, or for a mixture, keep the steps above. Larger: closer bounds of
# compositions, more time.
_MOST_REFINED = 256
#: The share by which the bound on all further datasets may exceed the largest of those at the end, at an
#: order of which the divergence is large; it grows with the logarithm of the divergence. The bounds hold for
#: every value.
LITTLE = 2e-4
# If more than this many datasets are not enough, and all are not too many, all are computed.
_MANY_DATASETS = 32
# Passes, each with more datasets next to the end at orders where the bounds were apart.
_MOST_PASSES = 4
# Orders with more nodes have a lower bound from the end alone, and no upper one: the blanket's is used.
_MOST_NODES = 512
# Places times nodes of one order.
_MOST_PRODUCTS = 4000
# Terms of all datasets next to the end, in one call. Larger: closer bounds of compositions, more time.
_MOST_ELEMENTS = 3e6
# More datasets than one call can do are of use if they lower the logarithm of the bound by this.
_LEAST_HELP = 0.02
# Array elements that are worked on together. Larger: fewer calls, more memory.
_BLOCK_ELEMENTS = 1 << 18
# Orders at which this share of A, or less, is left after cancellation have no bounds.
_LEAST_GAINED = 1e-6
# Datasets whose terms follow from one another. A term below the least float grows by less than `exp(13)` for
# each of them, since no node is nearer to pi than 1e-5: in a run, to less than the second number in all.
_RUN, _UNDERFLOWN = 16, 1e-150
# Places are rounded to multiples of this: a power of two.
_GRID = 2.0**-40
# How far a place may be outside of [0, 2] by round-off.
_PLACE_DOUBT = 1e-5


def tilted_bounds(law: BitLaw, others: int, excess: FloatArray, *, little: float = LITTLE) -> ProfileBounds:
    """Returns bounds on the largest divergence in one direction over all datasets, at the orders `1 +
    excess`, shape (orders,).

    Args:
        law: the law of one report.
        others: the number N of other honest users, at least 1.
        excess: ascending.
        little: share by which the two bounds may be apart where more time would bring them closer.

    Guarantee: aliasing, truncation and round-off included. At orders that are too near the largest one, the
    bounds are 1 and 0.
    """
    gained, doubt = law.gained(excess), law.gap + excess * law.b
    # The differing user's report alone: `a - r b`, r the order.
    upper = np.clip(gained + 8 * UNIT_ROUND_OFF * doubt, TINY, 1.0)
    lower = np.zeros_like(excess)
    rows = np.flatnonzero(gained > _LEAST_GAINED * doubt)
    tilts = _Tilts.of(law, others, excess[rows], little=little)
    many = tilts.last > _MOST_NODES
    if np.any(many):
        lower[rows[many]] = _of_the_end(_Tilts.of(law, others, excess[rows[many]], end_only=True))
        rows, tilts = rows[~many], tilts.at(np.flatnonzero(~many))
    finest = FINEST_STEPS if excess.size <= _MOST_REFINED and little <= LITTLE else _STEPS[1]
    for passes_left in reversed(range(_MOST_PASSES)):
        datasets = np.zeros(rows.size)
        limit = _most_datasets(tilts) if passes_left else 0.0
        for some in _together(tilts):
            found = _bounds(tilts.at(some), limit, finest)
            upper[rows[some]] = np.minimum(upper[rows[some]], found.upper)
            lower[rows[some]], datasets[some] = found.lower, found.datasets
        again = np.flatnonzero(datasets)
        if not again.size:
            break
        rows, tilts = rows[again], tilts._replace(datasets=datasets).at(again)
    return ProfileBounds(np.minimum.accumulate(upper), lower)


def _most_datasets(tilts: _Tilts) -> float:
    """Returns the largest number of datasets next to the end that fits in the work of one call."""
    share = _MOST_ELEMENTS / max(float(tilts.last.sum()), 1.0)
    return math.floor(min(max(share, _MANY_DATASETS), MOST_DATASETS))


def crude_log(law: BitLaw, others: int, excess: FloatArray) -> FloatArray:
    """Returns the logarithm of a cheap upper bound on the same, without round-off, shape (orders,): R is at
    most the largest mass of the tilted sum, and that at most `exp(-V) I_0(V)`, V its least variance."""
    found = np.full_like(excess, -np.inf)
    rows = law.gained(excess) > 0
    tilts = _Tilts.of(law, others, excess[rows])
    found[rows] = tilts.log_factor + np.log(scipy.special.i0e(tilts.narrow))
    return found


def _together(tilts: _Tilts) -> Iterator[slice]:
    """Yields blocks of orders whose arrays fit in memory together."""
    elements, start = tilts.last * (tilts.places + tilts.datasets), 0
    while start < elements.size:
        sizes = np.maximum.accumulate(elements[start:]) * np.arange(1, elements.size - start + 1)
        stop = start + max(1, int(np.searchsorted(sizes, _BLOCK_ELEMENTS)))
        yield slice(start, stop)
        start = stop


class _Tilts(NamedTuple):
    """The tilted laws of some orders; arrays of shape (orders,).

    Attributes:
        others: N.
        gained: A.
        tilt: `w = log(B / A)`.
        end, away: tilted probabilities of a 1 for the input that all others hold at the end, and for the
            other input.
        fall: by how much the logarithm of `exp(-I)` falls for each user away from the end, at least 0.
        log_factor: `log A + w - I` at the end.
        doubt: bound on the absolute error of it.
        narrow, wide: least and largest variance of the sum of N bits.
        shift: c: the nodes are at `u - i c`.
        period, last: number of nodes of a whole period, and of the last one that is not negligible.
        little: share by which bounds may be apart: it changes epsilon by about `little`.
        datasets: number of datasets next to the end to compute one by one.
    """

    others: int
    gained: FloatArray
    tilt: FloatArray
    end: FloatArray
    away: FloatArray
    fall: FloatArray
    log_factor: FloatArray
    doubt: FloatArray
    narrow: FloatArray
    wide: FloatArray
    shift: FloatArray
    period: FloatArray
    last: FloatArray
    little: FloatArray
    datasets: FloatArray

    def at(self, rows: slice | IndexArray) -> _Tilts:
        """Returns the tilts of some orders."""
        return _Tilts(self.others, *(one[rows] for one in self[1:]))

    @property
    def places(self) -> FloatArray:
        """Returns the number of steps of the place that makes bounds close."""
        deviations = 1 + self.tilt * np.sqrt(self.narrow)
        steps = self.tilt * np.sqrt(deviations / (2 * self.little))
        most = np.clip(np.floor(_MOST_PRODUCTS / self.last), 8, _PLACES[1])
        return np.asarray(np.clip(np.ceil(steps), _PLACES[0], most))

    @property
    def steps(self) -> FloatArray:
        """Returns the same of the number of users away from the end, without its largest value."""
        return np.asarray(np.maximum(np.ceil(_STEPS_PER_UNIT * np.log(self.wide / self.narrow)), _STEPS[0]))

    @classmethod
    def of(
        cls,
        law: BitLaw,
        others: int,
        excess: FloatArray,
        *,
        end_only: bool = False,
        little: float = LITTLE,
    ) -> _Tilts:
        """Computes the tilts of orders at which A is positive; with variances of the end alone, if no other
        dataset is of interest."""
        gained = law.gained(excess)
        w = np.log1p(excess / gained)
        logits = np.array(law.logits)[:, None]
        tilted = 1 / (1 + np.exp(-(logits + w)))
        rates = w * tilted - np.log1p(np.array([[law.a], [law.b]]) * np.expm1(w))
        variances = others * tilted / (1 + np.exp(logits + w))
        is_first = rates[0] <= rates[1]
        end, away = np.where(is_first, tilted, tilted[::-1])
        narrow, wide = variances.min(axis=0), variances.max(axis=0)
        if end_only:
            narrow = wide = np.where(is_first, *variances)
        fall, least = np.abs(rates[1] - rates[0]), others * rates.min(axis=0)
        deviation = np.sqrt(np.maximum(wide, TINY))
        shift = np.maximum(np.minimum(_POLE_DISTANCE / deviation, _LARGEST_SHIFT) - w, 0.0)
        period = np.maximum(2 * np.floor(np.pi * deviation / SPACING) + 1, _LEAST_PERIOD)
        sine = np.sqrt(LAST_EXPONENT / 2 / np.maximum(narrow, TINY))
        lobe = np.where(sine < 1, 2 * np.arcsin(np.minimum(sine, 1.0)), np.pi)
        last = np.minimum(np.ceil(lobe / (2 * np.pi) * period) + 1, (period - 1) / 2)
        scale = others * w * (1 + np.abs(logits).max() + w) + np.abs(w - least) + 16
        return cls(
            others=others,
            gained=gained,
            tilt=w,
            end=end,
            away=away,
            fall=fall,
            log_factor=np.log(gained) + w - least,
            doubt=16 * UNIT_ROUND_OFF * (scale + (law.gap + excess * law.b) / gained),
            narrow=narrow,
            wide=wide,
            shift=shift,
            period=period,
            last=last,
            little=little * (1 + least),
            datasets=np.ones_like(w),
        )


class _Nodes(NamedTuple):
    """The nodes of some orders; arrays of shape (orders, nodes) unless others are given.

    Attributes:
        factor: weight of a node times the kernel `(exp(i phi) - 1) / (1 - exp(-rate))`, complex.
        rate: the exponential rate in x, `w + i phi`.
        log_end: logarithm of the characteristic function of the centred sum at the end.
        log_step: change of that for each user away from the end.
        most: upper bounds on the modulus of terms at all datasets and all x in [0, 2].
        error: bound on the error of a sum over nodes, with aliasing and truncation, shape (orders,).
    """

    factor: ComplexArray
    rate: ComplexArray
    log_end: ComplexArray
    log_step: ComplexArray
    most: FloatArray
    error: FloatArray

    def at(self, rows: slice) -> _Nodes:
        """Returns the nodes of some orders."""
        return _Nodes(
            self.factor[rows],
            self.rate[rows],
            self.log_end[rows],
            self.log_step[rows],
            self.most[rows],
            self.error[rows],
        )

    @classmethod
    def of(cls, tilts: _Tilts, *, end_only: bool = False) -> _Nodes:
        """Places the nodes; with bounds for the end alone, if no other dataset is of interest."""
        last, shift = int(tilts.last.max()), tilts.shift[:, None]
        number = np.arange(last + 1)
        angle = 2 * np.pi * number / tilts.period[:, None]
        weight = np.where(number <= (tilts.period[:, None] - 1) / 2, np.minimum(number + 1, 2), 0)
        above = _expm1(shift, angle)
        rate = tilts.tilt[:, None] + shift + 1j * angle
        factor = weight / tilts.period[:, None] * above / -_expm1(-rate.real, -angle)
        first = _log_characteristic(tilts.end[:, None], shift, angle)
        step = _log_characteristic(tilts.away[:, None], shift, angle) - first
        log_end = tilts.others * first
        with np.errstate(under="ignore"):
            rise = 0.0 if end_only else np.maximum(tilts.others * step.real, 0.0)
            highest = log_end.real + rise
            most = np.abs(factor) * np.exp(np.minimum(highest, LARGEST_EXPONENT))
        doubt = 8 * UNIT_ROUND_OFF * (tilts.others * (angle + shift) + np.abs(rate) * tilts.others)
        doubt += UNIT_ROUND_OFF * (16 * np.abs(highest) + 64 + last + 8 * MOST_DATASETS)
        doubt += np.abs(rate) * (MOST_DATASETS * _GRID)
        error = (most * doubt).sum(axis=1) + _aliasing(tilts) + _truncation(tilts, last) + _UNDERFLOWN
        return cls(factor, rate, log_end, step, most, error * (1 + 1e-3))


def _expm1(real: FloatArray, imaginary: FloatArray) -> ComplexArray:
    """Returns `exp(real + i imaginary) - 1` with a small relative error."""
    less = np.expm1(real)
    half = np.sin(imaginary / 2)
    return np.asarray(less - 2 * (1 + less) * half**2 + 1j * (1 + less) * np.sin(imaginary))


def _log_characteristic(chance: FloatArray, shift: FloatArray, angle: FloatArray) -> ComplexArray:
    """Returns `log E[exp((shift + i angle)(X - chance))]` of a bit X that is 1 with this chance."""
    moment = np.log1p(chance * np.expm1(shift))
    moved = chance * np.exp(shift - moment)
    half = np.sin(angle / 2) ** 2
    real = moment - shift * chance + np.log1p(-4 * moved * (1 - moved) * half) / 2
    turn = np.arctan2(moved * np.sin(angle), 1 - 2 * moved * half)
    return np.asarray(real + 1j * (turn - angle * chance))


def _aliasing(tilts: _Tilts) -> FloatArray:
    """Returns an upper bound on what places a multiple of the period away add to a sum over nodes, shape
    (orders,): exponential moments of a sum of bits are at most `exp(V (exp(r) - 1 - r))` (Bennett)."""
    rate = np.minimum(np.array(_ALIAS_RATES)[:, None] / np.sqrt(tilts.wide), _LARGEST_RATE)
    total = np.zeros_like(tilts.tilt)
    for one, fall in (
        (np.minimum(rate, tilts.tilt), np.minimum(rate, tilts.tilt) + tilts.shift),
        (rate, rate - tilts.shift),
    ):
        moment = tilts.wide * (np.expm1(one) - one) + 2 * one
        exponent = np.where(fall > 0, moment - fall * tilts.period, np.inf)
        least = exponent.min(axis=0)
        share = -np.expm1(-np.where(fall > 0, fall, np.inf).min(axis=0) * tilts.period)
        total += np.exp(np.minimum(least, LARGEST_EXPONENT)) / np.maximum(share, TINY)
    return np.asarray(total)


def _truncation(tilts: _Tilts, last: int) -> FloatArray:
    """Returns an upper bound on the modulus of the sum of the nodes beyond the last one, shape (orders,)."""
    c = tilts.shift
    moments, narrow = [], []
    for chance in (tilts.end, tilts.away):
        moment = np.log1p(chance * np.expm1(c))
        moved = chance * np.exp(c - moment)
        moments.append(moment - c * chance)
        narrow.append(moved * (1 - moved))
    half = np.minimum(np.pi * (last + 1) / tilts.period, np.pi / 2)
    exponent = tilts.others * (np.max(moments, axis=0) - 2 * np.min(narrow, axis=0) * np.sin(half) ** 2)
    kernel = (1 + np.exp(c)) / -np.expm1(-(tilts.tilt + c))
    left_out = last < (tilts.period - 1) / 2
    return np.asarray(np.where(left_out, kernel * np.exp(np.minimum(exponent, LARGEST_EXPONENT)), 0.0))


def _of_the_end(tilts: _Tilts) -> FloatArray:
    """Returns lower bounds on the divergence of the dataset at the end, shape (orders,)."""
    lower = np.zeros_like(tilts.tilt)
    for some in _together(tilts):
        part = tilts.at(some)
        nodes = _Nodes.of(part, end_only=True)
        found, _ = _next_to_the_end(part, nodes)
        value = np.exp(part.log_factor - part.doubt) * np.maximum(found - nodes.error, 0.0)
        lower[some] = np.where(np.isfinite(value), value, 0.0)
    return lower


class _Found(NamedTuple):
    """Bounds on the largest divergence, and the number of datasets next to the end that would make them
    closer, or 0; arrays of shape (orders,)."""

    upper: FloatArray
    lower: FloatArray
    datasets: FloatArray


def _bounds(tilts: _Tilts, limit: float, finest: int) -> _Found:
    """Returns bounds on the largest divergence over all datasets. At most `limit` datasets next to the end
    can be asked for; where more are of no use, the others get up to `finest` steps."""
    nodes = _Nodes.of(tilts)
    found, datasets = _next_to_the_end(tilts, nodes)
    lowest, highest = np.maximum(found - nodes.error, 0.0), found + nodes.error
    needed = np.zeros_like(found)
    if datasets <= tilts.others:
        further = _further(tilts, nodes, datasets, _STEPS[1])
        wide = np.log(np.maximum(further, TINY) / ((1 + tilts.little) * np.maximum(highest, TINY)))
        needed = datasets + np.ceil(np.maximum(wide, 0.0) / np.maximum(tilts.fall, TINY))
        needed = np.where(needed > datasets, np.maximum(1.1 * needed, 2 * tilts.datasets), 0.0)
        if tilts.others < MOST_DATASETS:
            # All of them cost little more.
            some = np.where(datasets > _MANY_DATASETS, np.inf, needed)
            needed = np.where(needed > 0, np.minimum(some, tilts.others + 1), 0.0)
        helps = (needed <= limit) | (tilts.fall * limit > _LEAST_HELP)
        asked = np.where(helps, np.floor(np.minimum(needed, limit)), 0.0)
        asked = np.where(asked > tilts.datasets, asked, 0.0)
        stuck = (needed > 0) & (asked == 0) & (np.minimum(tilts.steps, finest) > _STEPS[1])
        for row in np.flatnonzero(stuck):
            one = slice(row, row + 1)
            finer = _further(tilts.at(one), nodes.at(one), datasets, finest)
            further[one] = np.minimum(further[one], finer)
        needed = asked
        highest = np.maximum(highest, further)
    most, least = (tilts.log_factor + side * tilts.doubt for side in (1, -1))
    upper = np.exp(np.minimum(most, LARGEST_EXPONENT)) * highest
    known = np.isfinite(upper)
    upper, lower = np.where(known, np.minimum(upper, 1.0) + TINY, 1.0), np.exp(least) * lowest
    return _Found(upper, np.where(known, lower, 0.0), np.where(known, needed, 0.0))


def _next_to_the_end(tilts: _Tilts, nodes: _Nodes) -> tuple[FloatArray, int]:
    """Returns the largest `exp(-fall j) R_j` over the datasets next to the end, and their number.

    From one dataset to the next the place of the mode changes by one of two numbers, so the terms of a
    dataset are those of the one before, times one of two factors.
    """
    datasets = int(tilts.datasets.max())
    away = np.arange(-(-datasets // _RUN) * _RUN)
    mean = tilts.others * tilts.end
    change = _on_grid(tilts.away - tilts.end)
    mean = _on_grid(mean - np.floor(mean))[:, None] + away * change[:, None]
    place = np.floor(mean) - mean  # exact; of the integer below the mean
    rises = np.diff(np.floor(mean), axis=1, prepend=0.0) > np.floor(change)[:, None]
    turn, fall = np.exp(-nodes.rate), nodes.log_step - tilts.fall[:, None]
    ratio = np.exp(fall + nodes.rate * (change - np.floor(change))[:, None])
    terms = np.where(rises[..., None], (ratio * turn)[:, None], ratio[:, None])
    # A run starts anew, because a term that is too small for a float may be large some datasets later.
    firsts = nodes.log_end[:, None] + away[::_RUN, None] * fall[:, None]
    terms[:, ::_RUN] = np.exp(firsts - nodes.rate[:, None] * place[:, ::_RUN, None])
    runs = terms.reshape(terms.shape[0], -1, _RUN, terms.shape[2])
    with np.errstate(over="ignore", invalid="ignore"):  # a sum that is not finite bounds nothing
        np.cumprod(runs, axis=2, out=runs)
    factors = nodes.factor[..., None] * turn[..., None] ** np.arange(3)
    with np.errstate(over="ignore", invalid="ignore"):
        values = _real_products(runs.reshape(terms.shape), factors)
    inside = np.abs(place[..., None] + np.arange(-1, 2)) <= 1 + _PLACE_DOUBT
    inside &= (away < datasets)[:, None]
    return np.asarray(np.where(inside, values, 0.0).max(axis=(1, 2))), datasets


def _real_products(first: ComplexArray, second: ComplexArray) -> FloatArray:
    """Returns the real parts of matrix products, in half the time of the complex ones."""
    left = np.concatenate([first.real, -first.imag], axis=2)
    return np.asarray(np.matmul(left, np.concatenate([second.real, second.imag], axis=1)))


def _on_grid(value: FloatArray) -> FloatArray:
    """Returns numbers rounded to multiples of `_GRID`, so that sums of a few thousand of them are exact."""
    return np.asarray(np.round(value / _GRID) * _GRID)


def _further(tilts: _Tilts, nodes: _Nodes, first: int, most_steps: int) -> FloatArray:
    """Returns upper bounds on `exp(-fall j) R_j(x)` for all real j from `first` to N, and x in [0, 2], with
    at most `most_steps` steps of j."""
    places = int(tilts.places.max())
    waves = np.empty((*nodes.rate.shape, places + 1), dtype=np.complex128)
    waves[..., 0], waves[..., 1:] = nodes.factor, np.exp(nodes.rate * (-2 / places))[..., None]
    np.cumprod(waves, axis=2, out=waves)
    bend = np.abs(nodes.rate) ** 2 * ((2 / places) ** 2 / 8)
    start = np.exp(nodes.log_end + first * nodes.log_step)
    largest = _real_products(start[:, None], waves).max(axis=(1, 2))
    largest += (nodes.most * bend).sum(axis=1) + nodes.error
    # If this is not above `fall` times the largest, `exp(-fall j)` falls faster than R can rise.
    steep = (nodes.most * np.abs(nodes.log_step)).sum(axis=1)
    found = np.exp(-tilts.fall * first) * largest
    rows = np.flatnonzero(steep > tilts.fall * largest)
    if rows.size:
        # Lines between the values at both ends of a step, and at neighbouring places, are too low by at most
        # an eighth of the second derivatives' bounds.
        steps = int(min(tilts.steps[rows].max(), most_steps))
        away = first + (tilts.others - first) * np.linspace(0, 1, steps + 1) ** 2
        change = (nodes.log_step[rows] - tilts.fall[rows, None])[:, None, :]
        terms = nodes.log_end[rows, None, :] + away[:, None] * change
        values = _real_products(np.exp(terms), waves[rows]).max(axis=2)
        most = np.abs(nodes.factor[rows, None, :]) * np.exp(np.maximum(terms.real[:, 1:], terms.real[:, :-1]))
        bends = np.abs(change) ** 2 * (np.diff(away) ** 2 / 8)[:, None] + bend[rows, None, :]
        highest = np.maximum(values[:, 1:], values[:, :-1]) + (most * bends).sum(axis=2)
        found[rows] = highest.max(axis=1) + nodes.error[rows]
    return np.asarray(found)
