"""Rounds and compositions by plain sums, which share nothing with the accountant: for published settings.

A pair is listed outcome by outcome, its losses are rounded up and down to a grid, and both are convolved. It
encloses the exact value, up to the rounding of the transform, for which delta is moved a little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft, special, stats

FloatArray = npt.NDArray[np.float64]

_FAR = 8.5  # deviations beyond which counts are left out: a mass below 1e-16
_UNSEEN = 1e-24  # masses left out of compositions
_ROUNDING = 1e-12  # of delta, by the transforms and by factorials


class Pair(NamedTuple):
    """Masses of the same outcomes under P and under Q."""

    p: FloatArray
    q: FloatArray

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence of order `exp(epsilon)`."""
        return float(np.maximum(self.p - math.exp(epsilon) * self.q, 0.0).sum())

    def epsilon(self, delta: float, largest: float) -> float:
        """The smallest epsilon from 0 whose delta is at most `delta`, by bisection below `largest`."""
        return bisected(self.delta, delta, largest)


def bisected(profile: Callable[[float], float], delta: float, largest: float) -> float:
    """Where a falling profile reaches delta."""
    if profile(0.0) <= delta:
        return 0.0
    low, high = 0.0, largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if profile(middle) <= delta else (middle, high)
    return high


def near(number: int, mass: float) -> npt.NDArray[np.int64]:
    """Counts of `Bin(number, mass)` that are not far from its mean."""
    half = _FAR * math.sqrt(number * mass * (1 - mass)) + 25
    return np.arange(max(0, int(number * mass - half)), min(number, int(number * mass + half)) + 1)


def clones(reports: int, hidden: float, own: float) -> Pair:
    """Counts of the clones of both users' reports: `C ~ Bin(n-1, hidden)` clones, half of them each, and the
    user's own report, which is of the first kind with probability `own` or `1 - own`."""
    clone_counts = near(reports - 1, hidden)
    first = np.arange(0, int(clone_counts[-1]) + 1)
    weights = stats.binom.pmf(clone_counts, reports - 1, hidden)
    # others[c, a]: probability that the others make c clones, a of them of the first kind.
    others = weights[:, None] * stats.binom.pmf(first[None, :], clone_counts[:, None], 0.5)
    joined = np.zeros((len(clone_counts), len(first) + 1))
    joined[:, 1:] = others
    stayed = np.zeros_like(joined)
    stayed[:, :-1] = others
    return Pair((own * joined + (1 - own) * stayed).ravel(), ((1 - own) * joined + own * stayed).ravel())


def randomized_response(reports: int, k: int, gamma: float, *, coin_seen: bool) -> Pair:
    """k-ary randomized response against somebody who knows every other user's value and coin, and, if
    `coin_seen`, that of the differing user.

    Left to see are the counts of values 1 and 2 among the B users who answered at random, and the report of
    the differing user, who holds 1 or 2.
    """
    sides = near(reports - 1, gamma / k)
    ones, twos = np.arange(sides[-1] + 3)[:, None], np.arange(sides[-1] + 3)[None, :]

    def others(number: int, c: float) -> FloatArray:
        """Law of the numbers of reports 1 and 2 among `number`, each of mass c."""
        rest = number - ones - twos
        inside = (rest >= 0) & (ones <= sides[-1]) & (twos <= sides[-1])
        left = np.where(inside, rest, 0)
        log_mass = special.gammaln(number + 1) - special.gammaln(ones + 1) - special.gammaln(twos + 1)
        log_mass = (
            log_mass - special.gammaln(left + 1) + (ones + twos) * math.log(c) + special.xlog1py(left, -2 * c)
        )
        return np.exp(np.where(inside, log_mass, -np.inf))

    if coin_seen:
        # Of the random reports only 1 and 2 matter; and when the coin says random, both inputs look the same.
        law = (1 - gamma) * others(reports - 1, gamma / k)
        same = [gamma]
        p = np.concatenate([np.roll(law, 1, axis=0).ravel(), same])
        return Pair(p, np.concatenate([np.roll(law, 1, axis=1).ravel(), same]))
    truth, lie, neither = 1 - gamma + gamma / k, gamma / k, gamma * (k - 2) / k
    parts: list[tuple[FloatArray, FloatArray]] = []
    for number in near(reports - 1, gamma).tolist():
        law = stats.binom.pmf(number, reports - 1, gamma) * others(number, 1 / k)
        as_one, as_two = np.roll(law, 1, axis=0), np.roll(law, 1, axis=1)
        kept = as_one + as_two + law > 1e-19
        p, q = truth * as_one + lie * as_two, lie * as_one + truth * as_two
        parts.append(((p + neither * law)[kept], (q + neither * law)[kept]))
    return Pair(*(np.concatenate([part[side] for part in parts]) for side in (0, 1)))


def sampled(pair: Pair, rate: float) -> Pair:
    """The pair that dominates a symmetric one behind a secret sample of this rate: where P is larger,
    `(rate P + (1 - rate) Q, Q)`; exchanged, the same again; what is left tells nothing."""
    larger = pair.p > pair.q
    p, q = pair.p[larger], pair.q[larger]
    mixed = rate * p + (1 - rate) * q
    rest = max(1.0 - float(mixed.sum() + q.sum()), 0.0)
    return Pair(np.concatenate([mixed, q, [rest]]), np.concatenate([q, mixed, [rest]]))


def composed(parts: Sequence[tuple[Pair, int]], step: float) -> Callable[[float], tuple[float, float]]:
    """Bounds on epsilon at a delta of independent rounds, each repeated: losses rounded down and up to
    multiples of `step`."""
    sums = [_convolved(parts, step, rounded) for rounded in (np.floor, np.ceil)]

    def bounds(delta: float) -> tuple[float, float]:
        ends = []
        for (losses, masses, infinity), moved in zip(
            sums, (delta + _ROUNDING, delta - _ROUNDING), strict=True
        ):
            profile = _profile(losses, masses, infinity)
            ends.append(bisected(profile, moved, float(losses[-1])))
        return ends[0], ends[1]

    return bounds


def _profile(losses: FloatArray, masses: FloatArray, infinity: float) -> Callable[[float], float]:
    def profile(epsilon: float) -> float:
        start = int(np.searchsorted(losses, epsilon, side="right"))
        return float((masses[start:] * -np.expm1(epsilon - losses[start:])).sum()) + infinity

    return profile


def _convolved(
    parts: Sequence[tuple[Pair, int]], step: float, rounded: Callable[[FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray, float]:
    positions, certain, kept = [], 1.0, 1.0
    start = stop = 0
    mean = variance = 0.0
    for pair, count in parts:
        certain *= (1.0 - float(pair.p[pair.q == 0].sum())) ** count
        seen = (pair.p > _UNSEEN) & (pair.q > 0)
        index = rounded(np.log(pair.p[seen] / pair.q[seen]) / step).astype(np.int64)
        masses = pair.p[seen]
        positions.append((index, masses, count))
        kept *= float(masses.sum()) ** count
        centre = float((masses * index).sum())
        mean, variance = (
            mean + count * centre,
            variance + count * float((masses * (index - centre) ** 2).sum()),
        )
        start, stop = start + count * int(index.min()), stop + count * int(index.max())
    # Sums are known modulo the size, and lie about their mean but for a mass far below the rounding.
    reach = int(16 * math.sqrt(variance)) + 4 * max(int(abs(index).max()) for index, _, _ in positions)
    start, stop = max(start, int(mean) - reach), min(stop, int(mean) + reach)
    size = fft.next_fast_len(stop - start + 1, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for index, masses, count in positions:
        spectrum *= fft.rfft(np.bincount(index % size, weights=masses, minlength=size)) ** count
    places = np.arange(start, stop + 1)
    total = fft.irfft(spectrum, size)[places % size]
    # Masses that are left out, or lost to rounding, count as infinite losses above, and as nothing below.
    infinity = 1.0 - (min(kept, certain) if rounded is np.ceil else certain)
    losses = np.asarray(places * step, dtype=np.float64)
    return losses, np.maximum(total, 0.0), max(infinity, 0.0)


class Gains(NamedTuple):
    """The law of `G = (a - E b)/c` of one user's report: atoms, known to lie between two values each."""

    lowest: FloatArray
    highest: FloatArray
    masses: FloatArray

    @classmethod
    def of(cls, a: FloatArray, b: FloatArray, c: FloatArray, order: float) -> Gains:
        """The law at an order E from masses of components that all users share."""
        values = (a - order * b) / c
        return cls(
            np.append(values, 0.0), np.append(values, 0.0), np.append(c, max(1.0 - float(c.sum()), 0.0))
        )

    def delta_lower(self, reports: int) -> float:
        """A lower bound on `E[(G_1 + ... + G_n)_+]/n`: atoms rounded down to a thousandth deviation."""
        step = self._step()
        return max(self._rounded(reports, step, np.floor(self.lowest / step)) - _ROUNDING, 0.0)

    def delta_upper(self, reports: int) -> float:
        """An upper bound on the same: atoms rounded up."""
        step = self._step()
        return self._rounded(reports, step, np.ceil(self.highest / step)) + _ROUNDING

    def _step(self) -> float:
        mean = float((self.masses * self.lowest).sum())
        return math.sqrt(float((self.masses * (self.lowest - mean) ** 2).sum())) / 1000

    def _rounded(self, reports: int, step: float, index: FloatArray) -> float:
        mean = float((self.masses * index).sum())
        variance = float((self.masses * (index - mean) ** 2).sum())
        half = int(10 * math.sqrt(reports * variance) + 2 * (index.max() - index.min())) + 1
        size = fft.next_fast_len(2 * half, real=True)
        # Sums are known modulo the size, and lie about their mean but for a mass below 1e-15 or so.
        dense = np.zeros(size)
        np.add.at(dense, index.astype(np.int64) % size, self.masses)
        total = fft.irfft(fft.rfft(dense) ** reports, size)
        start = round(reports * mean) - size // 2
        sums = np.arange(start, start + size)
        return float((total[sums % size] * np.maximum(sums, 0)).sum()) * step / reports


def bits(a: float, b: float, reports: int, excess: float) -> float:
    """The largest divergence of bits that are 1 with chance a or b, over the numbers of others that hold the
    first input. Of many others, only numbers near none and near all are tried, near the largest one."""
    others = reports - 1
    near = np.unique(np.geomspace(1, 300, 60).astype(int) - 1).tolist()
    numbers = range(reports) if others <= 300 else [*near, *(others - one for one in near)]
    found = 0.0
    for first in numbers:
        hidden = np.convolve(_ones(first, a), _ones(others - first, b))
        one, other = (np.convolve(hidden, [1 - chance, chance]) for chance in (a, b))
        for p, q in ((one, other), (other, one)):
            found = max(found, float(np.maximum(p - (1 + excess) * q, 0.0).sum()))
    return found


def _ones(count: int, chance: float) -> FloatArray:
    """The law of the number of ones, up to nine deviations and more from its mean."""
    reach = 9 * math.sqrt(count * chance * (1 - chance)) + 81
    low, high = max(0, math.floor(count * chance - reach)), min(count, math.ceil(count * chance + reach))
    law: FloatArray = stats.binom.pmf(np.arange(low, high + 1), count, chance)
    return law
