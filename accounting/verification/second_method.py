"""The same numbers by other means: coarser and slower, and without a line of the accountant's arithmetic.

Nothing here is a bound. It is what an auditor holds beside a certificate, so that one mistake in one method
does not pass unseen: laws on lattices, added up by plain convolution, with no contour, no tilt and no
smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy

from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, honest_share
from shuffle_ledger.accounting.verification.second_pairs import pair_delta

#: Relative distance within which a second method's answer confirms a first one's.
AGREEMENT = 0.01
#: Where rounds alone are looked at: below, the round-off of plain convolutions would be part of the answer.
SMALLEST_DELTA = 1e-11

_LATTICES = tuple(1 << power for power in range(12, 17))  # points of one report's law, ever finer
_SETTLED = AGREEMENT / 4  # a finer lattice changes less
_NOTHING = 1e-15  # above the round-off of a convolution, or laws would never become shorter
_POINTS = (1 << 16, 1 << 18)  # of the lattice of losses
_REACH = 14.0  # deviations that the lattice of losses holds
_REACHES = (1.0, 2.0, 4.0, 8.0)
_FINE = 400.0  # lattice points in one deviation of the total loss
_MOST_REPORTS = 10**10
_TRUSTED = 6.0  # deviations below the tilted mean, beyond which tilted masses are round-off
_LARGEST_TILT = 1e6

# Of the number of honest reports in a sample.
_SAMPLE_DEVIATIONS = 10.0
_MOST_NODES = 13

_Divergence = Callable[[int, float], float | None]
_Law = tuple[FloatArray, int]  # masses on a lattice, and the position of the first


def round_delta(shuffled: ShuffledRound, epsilon: float) -> float | None:
    """The round's delta at `epsilon >= 0`, slack aside: by adding the law of one report's gain to itself,
    doubling by doubling, or from the definition of the round's pair.

    None for composite rounds, tables and Laplace noise, and where no lattice settles the answer.
    """
    divergence = _divergence(shuffled)
    if divergence is None:
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
    """The total variation distance of a round with a local delta to one without."""
    honest, population = float(shuffled.honest_reports), shuffled.sampled_from
    if population is not None:  # the distance is linear in their number, and that has this mean
        honest = shuffled.reports / population * honest_share(shuffled.honest_fraction, population)
    clones = 1 + math.exp(-shuffled.randomizer.epsilon0) / 2
    return honest * clones * shuffled.delta0


def _divergence(shuffled: ShuffledRound) -> _Divergence | None:
    """The hockey-stick divergence of so many honest reports at the order `1 + excess`."""
    randomizer = shuffled.randomizer
    if not isinstance(randomizer, DecomposedRandomizer):
        return lambda honest, excess: pair_delta(randomizer, honest, math.log1p(excess))
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
        for lattice in _LATTICES:
            found = max(_gain(one, honest, excess, lattice) for one in pairs)
            if abs(found - before) <= _SETTLED * found:
                return float(analysis.weight * found)
            before = found
        return None

    return divergence


def _mixed(divergence: _Divergence, law: Any, honest: int, excess: float) -> float | None:
    """The mean over the number of honest reports in a sample: `j / honest` times the divergence of j reports
    at the order that this rate leaves. Its logarithm is smooth in j, and interpolated between some."""
    reach = _SAMPLE_DEVIATIONS * float(law.std()) + 2
    low, high = max(1, math.floor(law.mean() - reach)), math.ceil(law.mean() + reach)
    counts = np.arange(low, min(high, honest) + 1)
    chosen = counts
    if counts.size > _MOST_NODES:
        spread = (1 - np.cos(np.linspace(0, math.pi, _MOST_NODES))) / 2
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
    """`E[(G_1 + ... + G_n)_+] / n` for the gains of the decomposition at the order `1 + excess`."""
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
    """The law of values on multiples of `step`, each split onto its two neighbours with its mean kept."""
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
    kept = np.flatnonzero(law > _NOTHING)
    first, last = int(kept[0]), int(kept[-1])
    return law[first : last + 1], one[1] + other[1] + first


def _coarser(law: _Law) -> _Law:
    """The law on every second point: the others are split evenly onto their neighbours."""
    masses, start = law
    masses = np.pad(masses, (start % 2, 0))
    start -= start % 2
    masses = np.pad(masses, (0, 2 + masses.size % 2))
    even, odd = masses[::2].copy(), masses[1::2]
    even += odd / 2
    even[1:] += odd[:-1] / 2
    return even, start // 2


def composed_epsilon(
    parts: Sequence[tuple[PrivacyLossDistribution, int]], *, delta: float, slack: float = 0.0
) -> float | None:
    """The epsilon at `delta` of independent rounds, each repeated, by one convolution on an even lattice.

    Below `SMALLEST_DELTA` losses are weighted by a power of their likelihood ratio, so that the deep tail is
    what the lattice holds. None where it does not hold all losses that count, and where no finite epsilon
    holds. `slack` is the rounds' total variation distance to what has these losses, added up.
    """
    parts = [(pair, count) for pair, count in parts if count]
    # Total variation distances add up: so little may be too little to be laid out on a lattice.
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
    reach = abs(mean) + _REACH * deviation
    for multiple in _REACHES:
        half = min(multiple * reach, largest) * 1.01
        beyond = -math.expm1(math.fsum(count * _log_held(pair, half) for pair, count in parts))
        if beyond - infinite <= 1e-3 * delta:
            start = max(mean - _TRUSTED * deviation, 0.0) if theta else 0.0
            return _epsilon_on(parts, half, (deviation, start, theta), delta, (beyond, slack))
    return None


def _tilt(parts: Sequence[tuple[PrivacyLossDistribution, int]], delta: float) -> float:
    """The power at which the mean is where the tail is about delta: `K(theta) - theta K' = log delta`."""

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
    """Finite losses, and the logarithms of their masses times `exp(theta loss)`."""
    losses = np.concatenate([pair.losses, -pair.losses, [0.0]])
    with np.errstate(divide="ignore"):
        return losses, np.log(np.concatenate([pair.p, pair.q, [pair.zero]])) + theta * losses


def _log_moment(pair: PrivacyLossDistribution, theta: float) -> float:
    return float(scipy.special.logsumexp(_tilted(pair, theta)[1]))


def _moments(parts: Sequence[tuple[PrivacyLossDistribution, int]], theta: float) -> tuple[float, float]:
    """Mean and deviation of the tilted total loss."""
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
    size = _POINTS[0]
    while size < _POINTS[1] and 2 * half / size > deviation / _FINE:
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
        return None  # something went round the end
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
    """One round's finite losses on the lattice, split with their masses under both laws kept."""
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
