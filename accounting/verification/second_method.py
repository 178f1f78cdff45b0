"""A second method for the same numbers: plain convolution, without any of the accountant's arithmetic.

Nothing here is a bound. An auditor compares its results with a certificate, so that a mistake in one method
is found. There are no contours, no smoothing and no tilting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.binary_reports.thinned import ThinnedProfile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.randomizers.base import BINARY_RESPONSE, EXACT, DecomposedRandomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

#: Largest relative distance at which the second answer confirms the first one.
AGREEMENT = 0.01
#: Least delta that is answered: below, the round-off of plain convolutions matters.
SMALLEST_DELTA = 1e-11

# Points of a lattice in one deviation, in turn: the answer has settled if it changes by a quarter of the
# agreement at most. And the most points of a law: with more, the spacing is doubled.
_POINTS_PER_DEVIATION = (128, 256)
_MOST_POINTS = 1 << 17
# Masses below this are cut off after a convolution. It is above the round-off, or laws would never become
# shorter.
_SMALLEST_KEPT_MASS = 1e-15
# Largest number of other users whose every dataset is summed; of more, this many datasets next to either end,
# in growing steps, are. How far the law of a number of ones is summed, in deviations; and the most reports.
_MOST_OTHERS = 300
_NUMBERS_NEAR_AN_END = 60
_TRUSTED_REACH = 9.0
_MOST_REPORTS = 10**10


class _Law(NamedTuple):
    """Masses at `step` times whole numbers from `start` on."""

    masses: FloatArray
    start: int
    step: float

    @classmethod
    def of(cls, values: FloatArray, masses: FloatArray, resolution: int) -> _Law:
        """Returns the law of the values; each is split between its two neighbours, which keeps the mean."""
        mean = float(values @ masses) / float(masses.sum())
        deviation = math.sqrt(float((values - mean) ** 2 @ masses))
        step = max(deviation / resolution, float(np.ptp(values)) / _MOST_POINTS, 1e-300)
        step = 2.0 ** math.floor(math.log2(step))
        below = np.floor(values / step).astype(np.int64)
        start, share = int(below.min()), values / step - below
        law: FloatArray = np.zeros(int(np.ptp(below)) + 2)
        np.add.at(law, below - start, masses * (1 - share))
        np.add.at(law, below - start + 1, masses * share)
        return cls(law, start, step)

    @property
    def values(self) -> FloatArray:
        """Returns the values that have masses, shape of `masses`."""
        return np.asarray((self.start + np.arange(self.masses.size)) * self.step)

    def coarser(self) -> _Law:
        """Returns the law on every second point; masses at the others are split evenly between their
        neighbours."""
        masses = np.pad(self.masses, (self.start % 2, 0))
        masses = np.pad(masses, (0, 2 + masses.size % 2))
        even, odd = masses[::2].copy(), masses[1::2]
        even += odd / 2
        even[1:] += odd[:-1] / 2
        return _Law(even, self.start // 2, 2 * self.step)

    def plus(self, other: _Law) -> _Law:
        """Returns the law of the sum of two independent values."""
        one = self
        while one.step < other.step:
            one = one.coarser()
        while other.step < one.step:
            other = other.coarser()
        law = np.maximum(scipy.signal.fftconvolve(one.masses, other.masses), 0.0)
        kept = np.flatnonzero(law > _SMALLEST_KEPT_MASS)
        first, last = int(kept[0]), int(kept[-1])
        found = _Law(law[first : last + 1], one.start + other.start + first, one.step)
        return found if found.masses.size <= _MOST_POINTS else found.coarser()

    def times(self, count: int) -> _Law:
        """Returns the law of the sum of `count >= 1` independent copies, by repeated doubling."""
        power, total = self, None
        while True:
            if count & 1:
                total = power if total is None else total.plus(power)
            count >>= 1
            if not count and total is not None:
                return total
            power = power.plus(power)


def round_delta(shuffled: ShuffledRound, epsilon: float) -> float | None:
    """Returns about the round's delta at `epsilon >= 0`, without its slack.

    The law of one report's gain is convolved with itself; by the analysis `exact` numbers of ones are added.
    The result is None where reports are not randomized one by one, in partly honest samples, for several
    reports of a user or more than 1e10 reports, and if the lattices disagree.
    """
    randomizer, reports = shuffled.randomizer, shuffled.certain_reports
    if not isinstance(randomizer, DecomposedRandomizer) or shuffled.reports_per_user > 1:
        return None
    if reports is None or reports > _MOST_REPORTS:
        return None
    rate = reports / shuffled.honest_users
    excess = math.expm1(epsilon) / rate
    if shuffled.analysis == EXACT and (law := randomizer.bit_law) is not None:
        return rate * _largest_of_bits(law.a, law.b, reports, excess)
    if shuffled.analysis == BINARY_RESPONSE:
        return _of_binary_response(shuffled, reports, rate, excess)
    return _by_gains(shuffled, reports, rate, excess)


def _by_gains(shuffled: ShuffledRound, reports: int, rate: float, excess: float) -> float | None:
    """Returns about the round's delta at the order `1 + rate excess` by the law of a report's gain; None if
    the lattices disagree."""
    randomizer = shuffled.randomizer
    analysis = randomizer.analysis(str(shuffled.analysis))
    if math.log1p(excess) >= analysis.largest_loss:
        return 0.0
    pairs = [with_silence(one.above, shuffled.coin or 1.0) for one in analysis.brackets]
    pairs += [one.swapped() for one in pairs]
    rough, fine = (
        max(_gain(one, reports, excess, points) for one in pairs) for points in _POINTS_PER_DEVIATION
    )
    return rate * analysis.weight * fine if abs(fine - rough) <= AGREEMENT / 4 * fine else None


def _of_binary_response(shuffled: ShuffledRound, reports: int, rate: float, excess: float) -> float | None:
    """Returns about the smaller delta of the blanket and of binary randomized response with blanks, of which
    the number of bits is in the same cells as the analysis has; None if the lattices disagree."""
    profile = shuffled.randomizer.profile(BINARY_RESPONSE, participation=1.0, smoothing=1.0, outcomes=0)
    found = []
    if not isinstance(profile, ThinnedProfile) or profile.has_blanket(reports):
        found.append(_by_gains(shuffled, reports, rate, excess))
    if isinstance(profile, ThinnedProfile) and profile.has_blanks(reports):
        law, total = BitLaw.of_response(shuffled.randomizer.epsilon0), 0.0
        numbers = scipy.stats.binom(reports - 1, profile.share)
        cells = profile.cells(reports)
        for (fewest, most), (after, _) in itertools.pairwise([*cells, (reports + 1, 0)]):
            weight = float(numbers.cdf(after - 2) - numbers.cdf(fewest - 2))
            order = excess * reports / most
            total += weight * _largest_of_bits(law.a, law.b, fewest, order)
        found.append(rate * profile.share * total)
    return None if None in found else min(one for one in found if one is not None)


def _largest_of_bits(a: float, b: float, honest: int, excess: float) -> float:
    """Returns the largest divergence of bits that are 1 with probability a or b, over the numbers of others
    with either. Of many others, numbers next to all and to none are tried, where the largest one is or nearly
    is."""
    others = honest - 1
    numbers: Sequence[int] = range(honest)
    if others > _MOST_OTHERS:
        near = np.unique(np.geomspace(1, _MOST_OTHERS, _NUMBERS_NEAR_AN_END).astype(int) - 1).tolist()
        numbers = [*near, *(others - one for one in near)]
    found = 0.0
    for first in numbers:
        hidden = np.convolve(_binomial(first, a), _binomial(others - first, b))
        one, other = (np.convolve(hidden, [1 - p, p]) for p in (a, b))
        for p, q in ((one, other), (other, one)):
            found = max(found, float(np.maximum(p - q - excess * q, 0.0).sum()))
    return found


def _binomial(trials: int, chance: float) -> FloatArray:
    """Returns the masses of a binomial law up to far from its mean."""
    reach = _TRUSTED_REACH * math.sqrt(trials * chance * (1 - chance)) + _TRUSTED_REACH**2
    low = max(0, math.floor(trials * chance - reach))
    high = min(trials, math.ceil(trials * chance + reach))
    law: FloatArray = scipy.stats.binom.pmf(np.arange(low, high + 1), trials, chance)
    return law


def _gain(masses: Decomposition, reports: int, excess: float, resolution: int) -> float:
    """Returns about `E[(G_1 + ... + G_n)_+] / n` for the gains of the decomposition at the order `1 +
    excess`."""
    hidden = masses.c > 0
    bare = float(np.maximum(masses.difference - excess * masses.b, 0.0)[~hidden].sum())
    c = masses.c[hidden]
    gains = np.append((masses.difference[hidden] - excess * masses.b[hidden]) / c, 0.0)
    if not np.any(gains > 0):
        return bare
    law = _Law.of(gains, np.append(c, masses.leftover), resolution).times(reports)
    return bare + float(law.masses @ np.maximum(law.values, 0.0)) / reports


def composed_epsilon(
    parts: Sequence[tuple[PrivacyLossDistribution, int]], *, delta: float, slack: float
) -> float | None:
    """Returns about the epsilon at `delta` of independent rounds, each repeated, by convolution of their
    losses. The result is None for a delta below `SMALLEST_DELTA`, and if no finite epsilon holds.

    Args:
        parts: pairs, with the number of rounds of each.
        delta: the delta, positive.
        slack: sum of the rounds' total variation distances from rounds with these losses.
    """
    parts = [(pair, count) for pair, count in parts if count]
    # Total variation distances add up. A small sum decides without a lattice, which may be too coarse for it.
    if math.fsum(count * pair.hockey_stick_divergence(0.0) for pair, count in parts) + 2 * slack <= delta:
        return 0.0
    if any(pair.infinity >= 1 for pair, _ in parts):
        return None
    infinite = -math.expm1(math.fsum(count * math.log1p(-pair.infinity) for pair, count in parts))
    if infinite + 2 * slack >= delta or delta < SMALLEST_DELTA:
        return None
    total: _Law | None = None
    for pair, count in parts:
        losses = np.concatenate([pair.losses, -pair.losses, [0.0]])
        law = _Law.of(losses, np.concatenate([pair.p, pair.q, [pair.zero]]), _POINTS_PER_DEVIATION[-1])
        law = law.times(count)
        total = law if total is None else total.plus(law)
    if total is None:
        return None
    losses, masses = total.values, total.masses
    held = losses > 0
    losses, masses = np.append(0.0, losses[held]), np.append(0.0, masses[held])
    above, below = (np.cumsum(one[::-1])[::-1] for one in (masses, masses * np.exp(-losses)))
    # Between two points the divergence is linear in exp(epsilon).
    orders = np.exp(losses)
    deltas = above - orders * below + infinite + slack * (1 + orders)
    enough = np.flatnonzero(deltas <= delta)
    if enough.size == 0:
        return None
    first = max(int(enough[0]), 1)
    share = (deltas[first - 1] - delta) / (deltas[first - 1] - deltas[first])
    return float(np.log(orders[first - 1] * (1 - share) + orders[first] * share))
