"""A second method for the same numbers: plain convolution, without any of the accountant's arithmetic.

Nothing here is a bound. An auditor compares its results with a certificate, so that a mistake in one method
is found. There are no contours, no smoothing and no tilting: docs/theory/verification.md, V1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.randomizers.base import BY_BITS, DecomposedRandomizer
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
# Most reports of a round that is answered for.
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
    """Returns about the round's delta at `epsilon >= 0`, without its slack: the law of one report's gain is
    convolved with itself.

    The result is None for analyses that are not sums over decompositions (`exact`, `binary-response`), where
    reports are not randomized one by one, in partly honest samples, for several reports of a user or more
    than 1e10 reports, and if the lattices disagree.
    """
    randomizer, reports = shuffled.randomizer, shuffled.certain_reports
    if not isinstance(randomizer, DecomposedRandomizer) or shuffled.reports_per_user > 1:
        return None
    if reports is None or reports > _MOST_REPORTS or shuffled.analysis in BY_BITS:
        return None
    rate = reports / shuffled.honest_users
    excess = math.expm1(epsilon) / rate
    analysis = randomizer.analysis(str(shuffled.analysis))
    if math.log1p(excess) >= analysis.largest_loss:
        return 0.0
    pairs = [with_silence(one.above, shuffled.coin or 1.0) for one in analysis.brackets]
    pairs += [one.swapped() for one in pairs]
    rough, fine = (
        max(_gain(one, reports, excess, points) for one in pairs) for points in _POINTS_PER_DEVIATION
    )
    return rate * analysis.weight * fine if abs(fine - rough) <= AGREEMENT / 4 * fine else None


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
