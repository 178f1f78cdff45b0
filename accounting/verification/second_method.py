"""A second method for the same numbers: coarser and slower, and without any of the accountant's arithmetic.

Nothing here is a bound. An auditor compares its results with a certificate, so that a mistake in one method
is found. Laws are put on lattices and added up by plain convolution, without contours and smoothing, and
without tilting except for very small deltas.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy

from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.randomizers.base import EXACT, DecomposedRandomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, honest_share
from shuffle_ledger.accounting.verification.second_pairs import pair_delta

#: Largest relative distance at which the second answer confirms the first one.
AGREEMENT = 0.01
#: Least delta at which single rounds are checked: below, the round-off of plain convolutions matters.
SMALLEST_DELTA = 1e-11

# Points of the lattice of one report's gain, tried in turn, and the relative change at which the answer has
# settled.
_GAIN_LATTICES = tuple(1 << power for power in range(12, 17))
_SETTLED_CHANGE = AGREEMENT / 4
# Masses below this are cut off after a convolution. It is above the round-off, or laws would never become
# shorter.
_SMALLEST_KEPT_MASS = 1e-15
# Fewest and most points of the lattice of losses, and the number of points in one deviation that is aimed at.
_TOTAL_LOSS_POINTS = (1 << 16, 1 << 18)
_POINTS_PER_DEVIATION = 400.0
# Half the width of that lattice: the mean plus this many deviations, times these factors in turn.
_LATTICE_DEVIATIONS = 14.0
_LATTICE_FACTORS = (1.0, 2.0, 4.0, 8.0)
# Largest number of reports that is checked.
_MOST_REPORTS = 10**10
# Largest number of other users whose every dataset is summed; of more, this many datasets next to either end,
# in growing steps, are. And how far the law of a number of ones is summed, in deviations.
_MOST_OTHERS = 300
_NUMBERS_NEAR_AN_END = 60
_TRUSTED_REACH = 9.0
# Tilted masses further below the tilted mean than this many deviations are round-off and not used.
_TRUSTED_DEVIATIONS = 6.0
_LARGEST_TILT = 1e6

# Numbers of honest reports in a sample that are included, in deviations around the mean; and the most numbers
# that are evaluated: others are interpolated.
_SAMPLE_DEVIATIONS = 10.0
_MOST_EVALUATED_COUNTS = 13

_Divergence = Callable[[int, float], float | None]
_Law = tuple[FloatArray, int]  # masses on a lattice, and the position of the first


def round_delta(shuffled: ShuffledRound, epsilon: float) -> float | None:
    """Returns about the round's delta at `epsilon >= 0`, without its slack.

    The law of one report's gain is convolved with itself by repeated doubling, or the round's pair is summed
    from its definition. The result is None for composite rounds, tables and Laplace noise, for several
    reports of a user (which are several rounds, see `charged_as`), and if no lattice is fine enough.
    """
    divergence = _divergence(shuffled)
    if divergence is None or shuffled.reports_per_user > 1:
        return None
    excess = math.expm1(epsilon)
    population = shuffled.sampled_from
    if population is None:
        return divergence(shuffled.honest_reports, excess)
    honest = honest_share(shuffled.honest_fraction, population)
    if honest == population:
        rate = shuffled.reports / population
        found = divergence(shuffled.reports, excess / rate)
        return None if found is None else rate * found
    return _mixed(divergence, scipy.stats.hypergeom(population, honest, shuffled.reports), honest, excess)


def round_slack(shuffled: ShuffledRound) -> float:
    """Returns a bound on the total variation distance between a round with a local delta and one without."""
    honest, population = float(shuffled.honest_reports), shuffled.sampled_from
    if population is not None:  # the distance is linear in the number of honest reports: its mean counts
        honest = shuffled.reports / population * honest_share(shuffled.honest_fraction, population)
    clones = 1 + math.exp(-shuffled.randomizer.epsilon0) / 2
    return honest * clones * shuffled.delta0


def _divergence(shuffled: ShuffledRound) -> _Divergence | None:
    """Returns a function that computes the hockey-stick divergence of a number of honest reports at the order
    `1 + excess`; None if the second method does not cover the round."""
    randomizer = shuffled.randomizer
    if not isinstance(randomizer, DecomposedRandomizer):
        return lambda honest, excess: pair_delta(randomizer, honest, math.log1p(excess))
    law = randomizer.bit_law
    if shuffled.analysis == EXACT and law is not None:
        return functools.partial(_largest_of_bits, law.a, law.b)
    analysis = randomizer.analysis(str(shuffled.analysis))
    pairs = []
    for bracket in analysis.brackets:
        masses = bracket.above
        if shuffled.coin is not None:
            masses = with_silence(masses, shuffled.coin)
        pairs += [masses, masses.swapped()]

    def divergence(honest: int, excess: float) -> float | None:
        if math.log1p(excess) >= analysis.largest_loss:
            return 0.0
        if honest > _MOST_REPORTS:
            return None
        before = math.inf
        for lattice in _GAIN_LATTICES:
            found = max(_gain(one, honest, excess, lattice) for one in pairs)
            if abs(found - before) <= _SETTLED_CHANGE * found:
                return float(analysis.weight * found)
            before = found
        return None

    return divergence


def _largest_of_bits(a: float, b: float, honest: int, excess: float) -> float | None:
    """Returns the largest divergence of bits that are 1 with probability a or b, over the numbers of others
    with either; None if there are too many. Of many others, numbers next to all and to none are tried, where
    the largest one is or nearly is."""
    others = honest - 1
    if honest > _MOST_REPORTS:
        return None
    numbers: Sequence[int] = range(honest)
    if others > _MOST_OTHERS:
        near = np.unique(np.geomspace(1, _MOST_OTHERS, _NUMBERS_NEAR_AN_END).astype(int) - 1).tolist()
        numbers = [*near, *(others - one for one in near)]
    found = 0.0
    for first in numbers:
        ones, _ = _binomial(first, a)
        rest, _ = _binomial(others - first, b)
        hidden = np.convolve(ones, rest)
        one, other = (np.convolve(hidden, [1 - p, p]) for p in (a, b))
        for p, q in ((one, other), (other, one)):
            found = max(found, float(np.maximum(p - q - excess * q, 0.0).sum()))
    return found


def _binomial(trials: int, chance: float) -> _Law:
    """Returns the masses of a binomial law up to far from its mean."""
    reach = _TRUSTED_REACH * math.sqrt(trials * chance * (1 - chance)) + _TRUSTED_REACH**2
    low = max(0, math.floor(trials * chance - reach))
    high = min(trials, math.ceil(trials * chance + reach))
    return scipy.stats.binom.pmf(np.arange(low, high + 1), trials, chance), low


def _mixed(divergence: _Divergence, law: Any, honest: int, excess: float) -> float | None:
    """Returns the mean over the number j of honest reports in a sample: `s = j / honest` times the divergence
    of j reports at the order `1 + excess / s`. Its logarithm is smooth in j and is interpolated between a few
    j."""
    reach = _SAMPLE_DEVIATIONS * float(law.std()) + 2
    low, high = max(1, math.floor(law.mean() - reach)), math.ceil(law.mean() + reach)
    counts = np.arange(low, min(high, honest) + 1)
    chosen = counts
    if counts.size > _MOST_EVALUATED_COUNTS:
        spread = (1 - np.cos(np.linspace(0, math.pi, _MOST_EVALUATED_COUNTS))) / 2
        chosen = np.unique(np.round(counts[0] + spread * (counts[-1] - counts[0])).astype(int))
    values = [divergence(int(count), excess * honest / int(count)) for count in chosen]
    if any(value is None for value in values):
        return None
    found = np.array(values, dtype=np.float64)
    if chosen is not counts:
        if not np.all(found > 0):
            return None
        found = np.exp(scipy.interpolate.BarycentricInterpolator(chosen, np.log(found))(counts))
    return float((law.pmf(counts) * counts / honest * found).sum())


def _gain(masses: Decomposition, reports: int, excess: float, lattice: int) -> float:
    """Returns about `E[(G_1 + ... + G_n)_+] / n` for the gains of the decomposition at the order `1 +
    excess`."""
    hidden = masses.c > 0
    bare = float(np.maximum(masses.difference - excess * masses.b, 0.0)[~hidden].sum())
    c = masses.c[hidden]
    gains = (masses.difference[hidden] - excess * masses.b[hidden]) / c
    step = float(max(gains.max(), 0.0) - min(gains.min(), 0.0)) / lattice
    if step <= 0:
        return bare
    power = _on_lattice(np.append(gains, 0.0), np.append(c, masses.leftover), step)
    total: _Law | None = None
    for bit in range(reports.bit_length()):
        if bit:
            power = _added(power, power)
            if power[0].size > 2 * lattice:
                step *= 2
                power = _coarser(power)
                total = None if total is None else _coarser(total)
        if reports >> bit & 1:
            total = power if total is None else _added(total, power)
    law, start = total or power
    place = (start + np.arange(law.size)) * step
    return bare + float((law * np.maximum(place, 0.0)).sum()) / reports


def _on_lattice(values: FloatArray, masses: FloatArray, step: float) -> _Law:
    """Returns the law of the values on multiples of `step`: each value is split between its two neighbours,
    which keeps the mean."""
    places = values / step
    below = np.floor(places).astype(np.int64)
    share = places - below
    start = int(below.min())
    law: FloatArray = np.zeros(int(np.ptp(below)) + 2)
    np.add.at(law, below - start, masses * (1 - share))
    np.add.at(law, below - start + 1, masses * share)
    return law, start


def _added(one: _Law, other: _Law) -> _Law:
    law: FloatArray = np.maximum(scipy.signal.fftconvolve(one[0], other[0]), 0.0)
    kept = np.flatnonzero(law > _SMALLEST_KEPT_MASS)
    first, last = int(kept[0]), int(kept[-1])
    return law[first : last + 1], one[1] + other[1] + first


def _coarser(law: _Law) -> _Law:
    """Returns the law on every second point; masses at the others are split evenly between their
    neighbours."""
    masses, start = law
    masses = np.pad(masses, (start % 2, 0))
    start -= start % 2
    masses = np.pad(masses, (0, 2 + masses.size % 2))
    even, odd = masses[::2].copy(), masses[1::2]
    even += odd / 2
    even[1:] += odd[:-1] / 2
    return even, start // 2


def composed_epsilon(
    parts: Sequence[tuple[PrivacyLossDistribution, int]], *, delta: float, slack: float
) -> float | None:
    """Returns about the epsilon at `delta` of independent rounds, each repeated, by one convolution on an
    even lattice.

    Below `SMALLEST_DELTA`, losses are weighted by a power of their likelihood ratio (tilted), so that the
    lattice resolves the deep tail. The result is None if the lattice does not hold all losses that matter, or
    if no finite epsilon holds.

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
    if infinite + 2 * slack >= delta:
        return None
    theta = _tilt(parts, delta) if delta < SMALLEST_DELTA else 0.0
    mean, deviation = _moments(parts, theta)
    largest = math.fsum(pair.largest_loss * count for pair, count in parts)
    reach = abs(mean) + _LATTICE_DEVIATIONS * deviation
    for multiple in _LATTICE_FACTORS:
        half = min(multiple * reach, largest) * 1.01
        beyond = -math.expm1(math.fsum(count * _log_held(pair, half) for pair, count in parts))
        if beyond - infinite <= 1e-3 * delta:
            start = max(mean - _TRUSTED_DEVIATIONS * deviation, 0.0) if theta else 0.0
            return _epsilon_on(parts, half, (deviation, start, theta), delta, (beyond, slack))
    return None


def _tilt(parts: Sequence[tuple[PrivacyLossDistribution, int]], delta: float) -> float:
    """Returns the tilt theta at which the tail beyond the tilted mean is about delta: `K(theta) - theta K' =
    log delta`."""

    def depth(theta: float) -> float:
        mean, _ = _moments(parts, theta)
        return math.fsum(count * _log_moment(pair, theta) for pair, count in parts) - theta * mean

    low, high = 0.0, 1.0
    while depth(high) > math.log(delta) and high < _LARGEST_TILT:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if depth(middle) > math.log(delta) else (low, middle)
    return high


def _tilted(pair: PrivacyLossDistribution, theta: float) -> tuple[FloatArray, FloatArray]:
    """Returns the finite losses, and the logarithms of their masses times `exp(theta loss)`."""
    losses = np.concatenate([pair.losses, -pair.losses, [0.0]])
    with np.errstate(divide="ignore"):
        return losses, np.log(np.concatenate([pair.p, pair.q, [pair.zero]])) + theta * losses


def _log_moment(pair: PrivacyLossDistribution, theta: float) -> float:
    return float(scipy.special.logsumexp(_tilted(pair, theta)[1]))


def _moments(parts: Sequence[tuple[PrivacyLossDistribution, int]], theta: float) -> tuple[float, float]:
    """Returns the mean and the standard deviation of the tilted total loss."""
    means, variances = [], []
    for pair, count in parts:
        losses, logs = _tilted(pair, theta)
        weights = np.exp(logs - scipy.special.logsumexp(logs))
        mean = float(weights @ losses)
        means.append(count * mean)
        variances.append(count * float(weights @ (losses - mean) ** 2))
    return math.fsum(means), math.sqrt(math.fsum(variances))


def _log_held(pair: PrivacyLossDistribution, half: float) -> float:
    beyond = float(pair.p[pair.losses > half].sum()) + pair.infinity
    return math.log1p(-min(beyond, 0.5))


def _epsilon_on(
    parts: Sequence[tuple[PrivacyLossDistribution, int]],
    half: float,
    tilted: tuple[float, float, float],
    delta: float,
    missing: tuple[float, float],
) -> float | None:
    (deviation, start, theta), (beyond, slack) = tilted, missing
    size = _TOTAL_LOSS_POINTS[0]
    while size < _TOTAL_LOSS_POINTS[1] and 2 * half / size > deviation / _POINTS_PER_DEVIATION:
        size *= 2
    step = 2 * half / size
    losses = (np.arange(size) - size // 2) * step
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    log_moment = 0.0
    for pair, count in parts:
        law = _losses_on(pair, half, step, size)
        with np.errstate(divide="ignore"):
            logs = np.log(law) + theta * np.fft.ifftshift(losses)
        one = float(scipy.special.logsumexp(logs))
        log_moment += count * one
        spectrum *= np.fft.rfft(np.exp(logs - one)) ** count
    law = np.fft.fftshift(np.fft.irfft(spectrum, size))
    wrapped = float(np.abs(law[: size // 64]).sum() + np.abs(law[-size // 64 :]).sum())
    if wrapped > 1e-2 * (delta if not theta else 1e-3):
        return None  # mass wrapped around the ends of the lattice
    held = losses > start
    losses = losses[held]
    with np.errstate(under="ignore"):
        law = law[held] * np.exp(log_moment - theta * losses)
        above, below = _suffix(law), _suffix(law * np.exp(-losses))
    # Between two points the divergence is linear in exp(epsilon).
    deltas = above - np.exp(losses) * below + beyond + slack * (1 + np.exp(losses))
    if deltas[0] <= delta:
        return float(losses[0]) if not start else None
    enough = np.flatnonzero(deltas <= delta)
    if enough.size == 0:
        return None
    first = int(enough[0])
    high, low = deltas[first - 1], deltas[first]
    share = (high - delta) / (high - low)
    return float(np.log(np.exp(losses[first - 1]) * (1 - share) + np.exp(losses[first]) * share))


def _losses_on(pair: PrivacyLossDistribution, half: float, step: float, size: int) -> FloatArray:
    """Returns one round's finite losses on the lattice; each is split between two points, which keeps its
    masses under both laws."""
    held = pair.losses <= half
    losses = np.concatenate([pair.losses[held], -pair.losses[held], [0.0]])
    masses = np.concatenate([pair.p[held], pair.q[held], [pair.zero]])
    below = np.floor(losses / step)
    share = np.clip(np.expm1(below * step - losses) / math.expm1(-step), 0.0, 1.0)
    index = below.astype(np.int64)
    law: FloatArray = np.zeros(size)
    np.add.at(law, index % size, masses * (1 - share))
    np.add.at(law, (index + 1) % size, masses * share)
    return law


def _suffix(values: FloatArray) -> FloatArray:
    result: FloatArray = np.cumsum(values[::-1])[::-1]
    return result
