"""Pairs of distributions (P, Q) known outcome by outcome: counts plus noise that all users contribute to.

An outcome is stored as its mass q under Q and its likelihood ratio minus one, `x = P/Q - 1`, which has full
relative accuracy even if the ratio is nearly 1; `p - q = x q`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.enumeration import RATIO_ROUND_OFF, Outcomes
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np

#: Largest number of outcomes of one pair. More: memory.
MAXIMUM_OUTCOMES = 1 << 22
# Natural logarithm of the tail probability at which counts are cut, and an upper bound on the mass that one
# cut leaves out, about 1e-53: below every delta that matters.
_LOG_CUT = -125.0
_CUT_MASS = 16 * math.exp(_LOG_CUT)
# Upper bound on the total of masses that underflow, under either law.
_UNDERFLOWN_MASS = 1e-280
# A pair has between these numbers of losses before it is multiplied by another. More: closer bounds, more
# work.
_MOST_LOSSES = 1200
_FEWEST_LOSSES = 200
# Relative round-off of products, sums over cells and shares of a split.
_COMBINING_ROUND_OFF = 1e-8


class Masses(NamedTuple):
    """Probabilities of consecutive counts; at most `_CUT_MASS` lies outside.

    Attributes:
        first: the first count.
        values: probabilities, shape (counts,).
        relative_error: upper bound on their relative round-off.
    """

    first: int
    values: FloatArray
    relative_error: float


def binomial_masses(trials: int, p: float) -> Masses:
    """Returns the law of `Bin(trials, p)`.

    Raises:
        InvalidParameter: it has more counts than can be listed.
    """
    first, last = _window(trials * p, trials * p * (1 - p), trials)
    counts = np.arange(first, last, dtype=np.float64)
    steps = np.log((trials - counts) / (counts + 1)) + (math.log(p) - math.log1p(-p))
    return _from_ratios(first, steps)


def poisson_masses(mean: float) -> Masses:
    """Returns the law of `Pois(mean)`.

    Raises:
        InvalidParameter: it has more counts than can be listed.
    """
    first, last = _window(mean, mean, None)
    return _from_ratios(first, math.log(mean) - np.log(np.arange(first + 1, last + 1, dtype=np.float64)))


def _window(mean: float, variance: float, largest: int | None) -> tuple[int, int]:
    """Returns the first and the last count of Bernstein's window: outside, the law has a mass of at most
    `2 exp(_LOG_CUT)`."""
    half = math.sqrt(2 * variance * -_LOG_CUT) - _LOG_CUT
    if 2 * half > MAXIMUM_OUTCOMES:
        expected = f"fewer reports or less noise each: at most {MAXIMUM_OUTCOMES} counts can be listed"
        raise InvalidParameter("reports", f"noise over {math.floor(2 * half)} counts", expected)
    first, last = max(0, math.floor(mean - half)), math.ceil(mean + half)
    return first, last if largest is None else min(largest, last)


def _from_ratios(first: int, log_ratios: FloatArray) -> Masses:
    """Computes masses from the logarithms of the ratios of neighbours. Normalising removes any common
    factor."""
    logs = np.concatenate([[0.0], np.cumsum(log_ratios)])
    logs -= logs.max()
    values = np.exp(logs)
    largest = float(np.abs(log_ratios).max(initial=0.0)) + float(np.abs(logs).max())
    error = 2 * UNIT_ROUND_OFF * (len(logs) + 1) * (8 + 4 * largest)
    return Masses(first, values / values.sum(), error + _CUT_MASS)


class Pair(NamedTuple):
    """A pair (P, Q) outcome by outcome; arrays have shape (outcomes,).

    Attributes:
        q: masses under Q.
        x: likelihood ratios `P/Q` minus one, at least -1.
        infinite: mass under P of outcomes that are impossible under Q.
        missing: upper bound on the mass, under either law, of outcomes that are left out.
        relative_error: upper bound on the relative round-off of every mass.
        ratio_error: upper bound on the relative error of `x` beyond a few units of round-off.
    """

    q: FloatArray
    x: FloatArray
    infinite: float
    missing: float
    relative_error: float
    ratio_error: float = 0.0

    def outcomes(self) -> Outcomes:
        """Returns the pair as a list of outcomes, which computes its profile."""
        q, gap = np.append(self.q, 0.0), np.append(self.q * self.x, self.infinite)
        p = np.append(self.q * (1 + self.x), self.infinite)
        terms = np.abs(gap) * (1 + self.ratio_error / RATIO_ROUND_OFF)
        relative_error = self.relative_error + 16 * UNIT_ROUND_OFF
        return Outcomes(np.append(self.x, np.inf), p, q, gap, self.missing, 0.0, relative_error, terms)


def shifted_binomial(trials: int, p: float, *, up: bool) -> Pair:
    """Returns the pair `1 + Bin(trials, p)` against `Bin(trials, p)`, or the other way round if not `up`.

    The ratio at count k is `k (1-p) / ((trials - k + 1) p)`.

    Source: docs/theory/randomizers.md, R16.
    """
    law = binomial_masses(trials, p)
    last = law.first + len(law.values) - 1
    k = np.arange(law.first, last + 1, dtype=np.float64)
    # (trials + 1) p in two pieces: k minus it must not cancel.
    exact = (trials + 1) * Fraction(p)
    high = float(exact)
    above = (k - high) - float(exact - Fraction(high))
    cut_below, cut_above = law.first > 0, last < trials
    missing = (cut_below + cut_above) * _CUT_MASS + _UNDERFLOWN_MASS
    if up:
        x = above / ((trials - k + 1) * p)
        if not cut_below:
            x[0] = -1.0
        infinite = 0.0 if cut_above else float(law.values[-1])
        return Pair(law.values, x, infinite, missing, law.relative_error)
    # Q is B(k-1) at k, and P is B(k).
    x = -above[1:] / (k[1:] * (1 - p))
    infinite = 0.0 if cut_below else float(law.values[0])
    q = law.values[:-1]
    if not cut_above:
        q, x = np.append(q, law.values[-1]), np.append(x, -1.0)
    return Pair(q, x, infinite, missing, law.relative_error)


def shifted_poisson(mean: Fraction, *, up: bool) -> Pair:
    """Returns the pair `1 + Pois(mean)` against `Pois(mean)`, or the other way round if not `up`.

    The ratio at count k is `k / mean`.

    Source: docs/theory/randomizers.md, R17.
    """
    law = poisson_masses(float(mean))
    k = np.arange(law.first, law.first + len(law.values), dtype=np.float64)
    # The mean in two pieces: k minus it must not cancel.
    high = float(mean)
    above = (k - high) - float(mean - Fraction(high))
    cut_below = law.first > 0
    # The masses use the rounded mean: their error is its round-off times the distance of the count from it.
    error = law.relative_error + 4 * UNIT_ROUND_OFF * len(k)
    missing = (1 + cut_below) * _CUT_MASS + _UNDERFLOWN_MASS
    if up:
        return Pair(law.values, above / high, 0.0, missing, error)
    # Q is Pois(k - 1) at k, and P is Pois(k).
    infinite = 0.0 if cut_below else float(law.values[0])
    return Pair(law.values[:-1], -above[1:] / k[1:], infinite, missing, error)


def shifted_discrete_gaussian(sigma: float, shift: int) -> Pair:
    """Returns the pair of discrete Gaussian laws around `shift` and around 0, with weights
    `exp(-k^2 / (2 sigma^2))`.

    The log ratio at k is `shift (2k - shift) / (2 sigma^2)`. Tails are below those of a Gaussian: the mass
    further than d from the centre is at most `2 exp(-d^2 / (2 sigma^2))`.

    Raises:
        InvalidParameter: it has more counts than can be listed.
    """
    half = math.ceil(sigma * math.sqrt(-2 * _LOG_CUT)) + 1
    if 2 * half + shift > MAXIMUM_OUTCOMES:
        raise InvalidParameter("sigma", sigma, f"noise over at most {MAXIMUM_OUTCOMES} whole numbers")
    counts = np.arange(-half, half + shift + 1, dtype=np.float64)
    powers = (counts / sigma) ** 2 / 2
    values = np.exp(-powers)
    values /= values.sum()
    losses = shift * (2 * counts - shift) / (2 * sigma * sigma)
    largest = float(powers.max()) + float(np.abs(losses).max())
    error = UNIT_ROUND_OFF * (64 + 8 * largest + math.log2(counts.size)) + _CUT_MASS
    ratio_error = UNIT_ROUND_OFF * (16 + 8 * float(np.abs(losses).max()))
    return Pair(values, np.expm1(losses), 0.0, _CUT_MASS + _UNDERFLOWN_MASS, error, ratio_error)


def multiplied(first: Pair, second: Pair) -> Pair:
    """Returns the product of the pairs: the law of two independent outcomes."""
    x, y = first.x[:, None], second.x[None, :]
    # An outcome that is impossible under P stays so, however the sum is rounded.
    product = np.where((x == -1) | (y == -1), -1.0, x + y + x * y)
    q = np.multiply.outer(first.q, second.q).ravel()
    infinite = first.infinite + second.infinite - first.infinite * second.infinite
    return Pair(
        q,
        product.ravel(),
        infinite,
        first.missing + second.missing,
        first.relative_error + second.relative_error + _COMBINING_ROUND_OFF,
        first.ratio_error + second.ratio_error,
    )


def losses_for(outcomes: int) -> int:
    """Returns the number of losses that each of two factors may have, so that their product has about
    `outcomes` outcomes."""
    return max(_FEWEST_LOSSES, min(_MOST_LOSSES, math.isqrt(outcomes)))


def coarsened(pair: Pair, losses: int, *, up: bool) -> Pair:
    """Returns a pair of at most about `losses` outcomes that bounds the given pair.

    Guarantee: its divergences are at least the pair's if `up`, else at most. Up, every outcome is split
    between its two neighbours on a grid of ratios, which keeps its masses under P and Q. Down, the outcomes
    of a cell become one, a post-processing.
    Source: docs/theory/randomizers.md, R16.
    """
    possible = pair.x > -1
    ratios = np.log1p(pair.x[possible])
    if pair.x.size <= losses or ratios.size == 0 or ratios.min() == ratios.max():
        return pair
    # The grid is finest within a few deviations of ratio 1, which have most of the mass.
    scale = 3 * math.sqrt(float((pair.q[possible] * np.minimum(ratios * ratios, 1.0)).sum()))
    least, most = math.asinh(ratios.min() / scale), math.asinh(ratios.max() / scale)
    nodes = np.expm1(scale * np.sinh(np.linspace(least, most, losses)))
    nodes[0], nodes[-1] = pair.x[possible].min(), pair.x[possible].max()
    q, x = pair.q[possible], pair.x[possible]
    cell = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    if up:
        share = np.clip((x - nodes[cell]) / (nodes[cell + 1] - nodes[cell]), 0.0, 1.0)
        masses = np.bincount(cell, weights=q * (1 - share), minlength=len(nodes))
        masses += np.bincount(cell + 1, weights=q * share, minlength=len(nodes))
        ends = nodes
    else:
        masses = np.bincount(cell, weights=q, minlength=len(nodes))
        gaps = np.bincount(cell, weights=q * x, minlength=len(nodes))
        ends = gaps / np.where(masses > 0, masses, 1.0)
    impossible = float(pair.q[~possible].sum())
    kept = masses > 0
    rest = np.ones(int(impossible > 0))
    return pair._replace(
        q=np.append(masses[kept], impossible * rest),
        x=np.append(ends[kept], -rest),
        relative_error=pair.relative_error + _COMBINING_ROUND_OFF,
    )
