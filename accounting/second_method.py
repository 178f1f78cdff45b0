"""The same numbers by other means: coarser and slower, and without a line of the accountant's arithmetic.

Nothing here is a bound. It is what an auditor holds beside a certificate, so that one mistake in one method
does not pass unseen: laws on lattices, added up by plain convolution, with no contour, no tilt and no
smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.signal import fftconvolve

from accounting.contour import FloatArray
from accounting.decomposition import Decomposition, with_silence
from accounting.privacy_loss import PrivacyLossDistribution
from accounting.randomizers.base import DecomposedRandomizer
from accounting.shuffling import ShuffledRound, honest_share

#: Relative distance within which a second method's answer confirms a first one's.
AGREEMENT = 0.01
#: Where it answers: below, the round-off of plain convolutions would be part of the answer.
SMALLEST_DELTA = 1e-11

_LATTICES = tuple(1 << power for power in range(12, 17))  # points of one report's law, ever finer
_SETTLED = AGREEMENT / 4  # a finer lattice changes less
_NOTHING = 1e-15  # above the round-off of a convolution, or laws would never become shorter
_POINTS = (1 << 16, 1 << 18)  # of the lattice of losses
_REACH = 14.0  # deviations that the lattice of losses holds
_REACHES = (1.0, 2.0, 4.0, 8.0)
_FINE = 400.0  # lattice points in one deviation of the total loss
_MOST_REPORTS = 10**10

_Law = tuple[FloatArray, int]  # masses on a lattice, and the position of the first


def round_delta(shuffled: ShuffledRound, epsilon: float) -> float | None:
    """The round's delta at `epsilon >= 0`, by adding the law of one report's gain to itself, doubling by
    doubling.

    None where the round is bounded by anything but decompositions of one randomizer among a certain number
    of honest reports, and where no lattice settles the answer.
    """
    honest, rate = shuffled.honest_reports, 1.0
    if shuffled.sampled_from is not None:
        if honest_share(shuffled.honest_fraction, shuffled.sampled_from) != shuffled.sampled_from:
            return None  # how many honest reports are in the sample is not certain
        honest, rate = shuffled.reports, shuffled.reports / shuffled.sampled_from
    decomposed = isinstance(shuffled.randomizer, DecomposedRandomizer)
    if not decomposed or shuffled.delta0 > 0 or honest > _MOST_REPORTS:
        return None
    analysis = shuffled.randomizer.analysis(str(shuffled.analysis))
    excess = math.expm1(epsilon) / rate
    if math.log1p(excess) >= analysis.largest_loss:
        return 0.0
    pairs = []
    for bracket in analysis.brackets:
        masses = bracket.above
        if shuffled.participation is not None:
            masses = with_silence(masses, shuffled.participation)
        pairs += [masses, masses.swapped()]
    before = math.inf
    for lattice in _LATTICES:
        found = max(_gain(one, honest, excess, lattice) for one in pairs)
        if abs(found - before) <= _SETTLED * found:
            return float(analysis.weight * rate * found)
        before = found
    return None


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
    law: FloatArray = np.maximum(fftconvolve(one[0], other[0]), 0.0)
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


def composed_epsilon(parts: Sequence[tuple[PrivacyLossDistribution, int]], *, delta: float) -> float | None:
    """The epsilon at `delta` of independent rounds, each repeated, by one convolution on an even lattice.

    None below `SMALLEST_DELTA`, where no lattice of a quarter of a million points holds all losses that
    count, and where no finite epsilon holds.
    """
    parts = [(pair, count) for pair, count in parts if count]
    if delta < SMALLEST_DELTA:
        return None
    # Total variation distances add up: so little may be too little to be laid out on a lattice.
    if math.fsum(count * pair.hockey_stick_divergence(0.0) for pair, count in parts) <= delta:
        return 0.0
    if any(pair.infinity >= 1 for pair, _ in parts):
        return None
    means = [float((pair.losses * (pair.p - pair.q)).sum()) * count for pair, count in parts]
    deviation = math.sqrt(math.fsum(pair.variance() * count for pair, count in parts))
    largest = math.fsum(pair.largest_loss * count for pair, count in parts)
    reach = math.fsum(means) + _REACH * deviation
    for multiple in _REACHES:
        half = min(multiple * reach, largest) * 1.01
        lost = -math.expm1(math.fsum(count * _log_held(pair, half) for pair, count in parts))
        infinite = -math.expm1(math.fsum(count * math.log1p(-pair.infinity) for pair, count in parts))
        if infinite >= delta:
            return None
        if lost - infinite <= 1e-3 * delta:
            return _epsilon_on(parts, half, deviation, delta, lost)
    return None


def _log_held(pair: PrivacyLossDistribution, half: float) -> float:
    beyond = float(pair.p[pair.losses > half].sum()) + pair.infinity
    return math.log1p(-min(beyond, 0.5))


def _epsilon_on(
    parts: Sequence[tuple[PrivacyLossDistribution, int]],
    half: float,
    deviation: float,
    delta: float,
    lost: float,
) -> float | None:
    size = _POINTS[0]
    while size < _POINTS[1] and 2 * half / size > deviation / _FINE:
        size *= 2
    step = 2 * half / size
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for pair, count in parts:
        spectrum *= np.fft.rfft(_losses_on(pair, half, step, size)) ** count
    law = np.fft.fftshift(np.fft.irfft(spectrum, size))
    losses = (np.arange(size) - size // 2) * step
    if float(np.abs(law[: size // 64]).sum() + np.abs(law[-size // 64 :]).sum()) > 1e-2 * delta:
        return None  # something went round the end
    positive = losses > 0
    law, losses = law[positive], losses[positive]
    above, below = _suffix(law), _suffix(law * np.exp(-losses))
    # Between two points the divergence is linear in exp(epsilon).
    deltas = above - np.exp(losses) * below + lost
    if deltas[0] <= delta:
        return float(losses[0])
    first = int(np.flatnonzero(deltas <= delta)[0])
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
