"""Exponential tilting of one round's privacy loss: moments, and the characteristic function on a contour.

Results are cached, because compositions that differ by one round need the same ones again. Tilts are on a
geometric grid for the same reason.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, ComplexArray, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution

if TYPE_CHECKING:
    import numpy.typing as npt

#: Ratio of neighbouring tilts on the grid. Smaller: closer to the saddle point, fewer shared contours.
TILT_RATIO = 1.05
# Largest exponent `theta * loss` for which weights are computed without logarithms.
_MOST_PLAIN_EXPONENT = 500.0
# Tilts whose moments one pair keeps.
_TILTS_KEPT = 64
#: Bytes of characteristic functions that all pairs keep together.
SPECTRUM_BYTES_KEPT = 128 << 20
# Characteristic functions are summed term by term if that takes at most this many terms for each point of a
# transform: about as fast.
_TERMS_PER_POINT = 8
#: A lattice is cut into runs if one transform for all of it has more points than this. The bounds hold for
#: every value; the tests change it.
CUT_FROM = 1 << 18
# Most points of one transform, which takes about a hundred bytes for each.
_MOST_POINTS = 1 << 20
# Runs of fewer losses than this are not cut any further.
_FEWEST_IN_RUN = 16


class Contour(NamedTuple):
    """The nodes `theta + i k step`, `0 <= k < nodes`, with `step = 2 pi / period`, and the smoothing that
    this number of nodes allows."""

    tilt: int  # theta = TILT_RATIO ** tilt
    period: float
    smoothing: float  # tau, in units of loss
    nodes: int
    # Whether the nodes end where the characteristic function becomes negligible, before the smoothing kernel
    # does.
    short: bool

    @property
    def theta(self) -> float:
        """Returns the real part of the nodes."""
        return TILT_RATIO**self.tilt

    @property
    def step(self) -> float:
        """Returns the distance of the nodes."""
        return 2 * math.pi / self.period


@dataclass(frozen=True, eq=False)
class Tilted:
    """Moments of a round's finite losses weighted by `exp(theta loss)`.

    Attributes:
        log_mass: `log E[exp(theta L)]` over the finite losses.
        log_mass_error: upper bound on its round-off.
        mean, deviation: mean and standard deviation under the tilt, in units of loss.
        core: variance of the losses within two deviations, times their probability squared.
    """

    log_mass: float
    log_mass_error: float
    mean: float
    deviation: float
    core: float


class Spectrum(NamedTuple):
    """The characteristic function of a tilted loss at a contour's nodes; arrays of shape (nodes,)."""

    log_modulus: FloatArray
    phase: FloatArray
    noise: float  # bound on the absolute error of values; a smaller modulus is stated as this
    work: float  # points of the transforms that it took

    @property
    def nbytes(self) -> int:
        """Returns the memory of the arrays in bytes."""
        return self.log_modulus.nbytes + self.phase.nbytes


class SpectrumMemory:
    """A cache of characteristic functions, least recently used out first, limited in bytes.

    Args:
        most_bytes: the limit; one function is kept however large.
    """

    def __init__(self, *, most_bytes: int = SPECTRUM_BYTES_KEPT) -> None:
        self._most_bytes = most_bytes
        self._spectra: OrderedDict[tuple[LossSpectrum, Contour], Spectrum] = OrderedDict()
        self._bytes = 0

    def get(self, pair: LossSpectrum, contour: Contour) -> Spectrum:
        """Returns the characteristic function of a pair on a contour, computed if it is not in the cache."""
        key = (pair, contour)
        if key in self._spectra:
            self._spectra.move_to_end(key)
            return self._spectra[key]
        spectrum = self._spectra[key] = _spectrum(pair.pair, contour)
        self._bytes += spectrum.nbytes
        while self._bytes > self._most_bytes and len(self._spectra) > 1:
            _, oldest = self._spectra.popitem(last=False)
            self._bytes -= oldest.nbytes
        return spectrum


class LossSpectrum:
    """Cached moments of one pair under tilts, and its characteristic functions, in a cache that pairs
    share.

    Source: docs/theory/contour.md, C9.
    """

    def __init__(self, pair: PrivacyLossDistribution, memory: SpectrumMemory) -> None:
        self.pair = pair
        self._memory = memory
        self.variance = pair.variance()
        self._tilts: dict[int, Tilted] = {}
        self._log_masses: dict[tuple[float, ...], list[float]] = {}

    def tilted(self, tilt: int) -> Tilted:
        """Returns the moments under the tilt `TILT_RATIO ** tilt`."""
        if tilt not in self._tilts:
            if len(self._tilts) >= _TILTS_KEPT:
                self._tilts.clear()
            self._tilts[tilt] = _moments(self.pair, TILT_RATIO**tilt)
        return self._tilts[tilt]

    def log_masses(self, thetas: tuple[float, ...]) -> list[float]:
        """Returns `log E[exp(theta L)]` over finite losses for any real thetas, rounded up."""
        if thetas not in self._log_masses:
            if len(self._log_masses) >= _TILTS_KEPT:
                self._log_masses.clear()
            if _is_steep(self.pair, max(map(abs, thetas))):
                found = [_weights(self.pair, theta)[1:] for theta in thetas]
            else:
                found = [row[2:] for row in _plain_weights(self.pair, np.array(thetas))]
            self._log_masses[thetas] = [sum(one) for one in found]
        return self._log_masses[thetas]

    def on(self, contour: Contour) -> Spectrum:
        """Returns the characteristic function at the contour's nodes."""
        return self._memory.get(self, contour)


def _positions(pair: PrivacyLossDistribution) -> IndexArray:
    """Returns the lattice positions of the finite losses, negative ones included, ascending."""
    return np.concatenate([-pair.index[::-1], [0], pair.index])


def _is_steep(pair: PrivacyLossDistribution, theta: float) -> bool:
    """Returns whether weights under the tilt are computed with logarithms, so that none overflows."""
    last = float(pair.index[-1] * pair.spacing) if pair.index.size else 0.0
    return abs(theta) * last > _MOST_PLAIN_EXPONENT


def _weights(pair: PrivacyLossDistribution, theta: float) -> tuple[FloatArray, float, float]:
    """Returns the probabilities of the losses under a tilt, `log E[exp(theta L)]`, and a bound on its
    round-off."""
    if not _is_steep(pair, theta):
        weights, total, log_mass, error = next(_plain_weights(pair, np.array([theta])))
        return weights / total, log_mass, error
    with np.errstate(divide="ignore"):
        log_masses = np.log(np.concatenate([pair.q[::-1], [pair.zero], pair.p]))
    log_masses += theta * _positions(pair) * pair.spacing
    top = float(log_masses.max())
    weights = np.exp(log_masses - top)
    total = float(weights.sum())
    log_mass = top + math.log(total)
    magnitude = 32 + abs(top) + 2 * abs(theta) * float(pair.losses[-1])
    return weights / total, log_mass, 4 * UNIT_ROUND_OFF * magnitude


def _plain_weights(
    pair: PrivacyLossDistribution, thetas: FloatArray
) -> Iterator[tuple[FloatArray, float, float, float]]:
    """Yields, for each of several tilts: the masses of the losses times `exp(theta loss)`, their sum, its
    logarithm, and a bound on the round-off of that."""
    p, q, exponents = pair.p, pair.q, np.abs(thetas)[:, None] * pair.losses
    up = np.expm1(exponents)
    grown = 1 + up
    down, shrunk = -up / grown, 1 / grown
    if np.any(back := thetas < 0):
        up[back], down[back] = down[back], up[back]
        grown[back], shrunk[back] = shrunk[back], grown[back]
    zero = np.full((thetas.size, 1), pair.zero)
    weights = np.concatenate([(q * shrunk)[:, ::-1], zero, p * grown], axis=1)
    surplus = float(p.sum() + q.sum() + pair.zero - 1)  # minus the mass at infinity, up to round-off
    more = (p * up + q * down).sum(axis=1) + surplus
    # Masses and losses have errors of a few units each, which their products inherit; sums are pairwise.
    terms = p * np.abs(up) + q * np.abs(down)
    terms *= 32 + exponents
    sums = (one.tolist() for one in (weights.sum(axis=1), more, terms.sum(axis=1)))
    for row, total, gained, magnitude in zip(weights, *sums, strict=True):
        log_mass = math.log1p(gained) if gained > -0.5 else math.log(total)
        yield row, total, log_mass, 4 * UNIT_ROUND_OFF * ((magnitude + 1) / total + abs(log_mass))


def _moments(pair: PrivacyLossDistribution, theta: float) -> Tilted:
    weights, log_mass, log_mass_error = _weights(pair, theta)
    signed = _positions(pair) * pair.spacing
    mean = float((weights * signed).sum())
    off = signed - mean
    square = weights * off**2
    deviation = math.sqrt(float(square.sum()))
    near = np.abs(off) <= 2 * deviation * (1 - 1e-9)
    first, size = int(near.argmax()), int(np.count_nonzero(near))
    core = slice(first, first + size)  # losses ascend
    mass = float(weights[core].sum())
    drift = float((weights * off)[core].sum())
    variance = max(float(square[core].sum()) * mass - drift * drift, 0.0)
    return Tilted(log_mass, log_mass_error, mean, deviation, variance)


def _spectrum(pair: PrivacyLossDistribution, contour: Contour) -> Spectrum:
    """Returns the characteristic function at the nodes, and a bound on its error.

    The phase of lattice position j at node k is `2 j k` times one angle. Phases are integers in units of
    `2^-64` full turns that wrap around, so they are exact however large.
    """
    index, (weights, _, _) = _positions(pair), _weights(pair, contour.theta)
    span, nodes = int(index[-1] - index[0]) + 1, contour.nodes
    angle = np.uint64(round(Fraction(pair.spacing) / Fraction(contour.period) * 2**63) % 2**64)
    if (work := _run_work(index, nodes)) <= CUT_FROM:
        values, error = _summed(index, weights, angle, nodes)
    else:
        work, runs = _cut(index, nodes)
        values, error = _run_by_run(runs, index, weights, angle, nodes)
    # Masses under the tilt also have the round-off of the exponents.
    tilts = abs(contour.theta) * float((weights * np.abs(index)).sum()) * pair.spacing
    noise = error + UNIT_ROUND_OFF * (16 + 8 * tilts) + 2.0**-61 * nodes * span
    modulus = np.maximum(np.abs(values), noise)
    # A modulus below the noise is stated as the noise: the error is at most twice the noise.
    return Spectrum(np.log(np.minimum(modulus, 1.0)), np.angle(values), noise, work)


class _Run(NamedTuple):
    """Neighbouring losses, from place `start` before place `stop`, whose positions differ by multiples of
    `stride`."""

    start: int
    stop: int
    stride: int


def _run_work(steps: IndexArray, nodes: int) -> float:
    """Returns the work of the sum over losses at these positions, ascending, in points of a transform."""
    length = int(steps[-1] - steps[0]) + 1
    return float(min(length + nodes, steps.size * nodes / _TERMS_PER_POINT))


def _cut(index: IndexArray, nodes: int) -> tuple[float, list[_Run]]:
    """Cuts a lattice into runs whose transforms have few points, and not more than memory allows. Returns the
    points of all of them, and the runs.

    Spacings of a graded lattice grow with the loss. A run's transform needs one point for each of its
    strides, where that of the whole lattice has one for each unit.
    """

    def best(start: int, stop: int) -> tuple[float, list[_Run]]:
        steps = index[start:stop] - index[start]
        together = int(np.bitwise_or.reduce(steps))
        stride = (together & -together) or 1
        length = int(steps[-1]) // stride + 1
        whole = _run_work(steps // stride, nodes), [_Run(start, stop, stride)]
        if steps.size < _FEWEST_IN_RUN or length <= nodes:
            return whole
        middle = start + int(np.searchsorted(steps, int(steps[-1]) // 2 + 1))
        before, after = best(start, middle), best(middle, stop)
        halves = before[0] + after[0], before[1] + after[1]
        return halves if halves[0] < whole[0] or length + nodes > _MOST_POINTS else whole

    return best(0, index.size)


def _run_by_run(
    runs: list[_Run], index: IndexArray, weights: FloatArray, angle: np.uint64, nodes: int
) -> tuple[ComplexArray, float]:
    """Returns `sum over j of weights[j] exp(2 i j k angle)` for every k as a sum over runs, and a bound on
    its round-off."""
    values, error = np.zeros(nodes, dtype=np.complex128), 2 * UNIT_ROUND_OFF * (len(runs) + 8)
    turns = 2 * np.arange(nodes, dtype=np.uint64) * angle
    for start, stop, stride in runs:
        steps = (index[start:stop] - index[start]) // stride
        wide = np.uint64(int(angle) * stride % 2**64)
        found, doubt = _summed(steps, weights[start:stop], wide, nodes)
        values += found * _turn(turns * np.uint64(int(index[start]) % 2**64))
        error += doubt
    return values, error


def _summed(
    index: IndexArray, weights: FloatArray, angle: np.uint64, nodes: int
) -> tuple[ComplexArray, float]:
    """Returns `sum over j of weights[j] exp(2 i j k angle)` for every k, and a bound on its round-off."""
    span = int(index[-1] - index[0]) + 1
    far_apart = index.size * nodes <= _TERMS_PER_POINT * (span + nodes)
    return (_added_up if far_apart else _transformed)(index, weights, angle, nodes)


def _added_up(
    index: IndexArray, weights: FloatArray, angle: np.uint64, nodes: int
) -> tuple[ComplexArray, float]:
    """Returns `sum over j of weights[j] exp(2 i j k angle)` for every k, term by term, and a bound on the
    round-off of the additions."""
    turns = 2 * np.arange(nodes, dtype=np.uint64) * angle
    values = np.zeros(nodes, dtype=np.complex128)
    for position, weight in zip(index.astype(np.uint64), weights, strict=True):  # negative ones wrap around
        values += weight * _turn(turns * position)
    return values, 2 * UNIT_ROUND_OFF * index.size


def _transformed(
    index: IndexArray, weights: FloatArray, angle: np.uint64, nodes: int
) -> tuple[ComplexArray, float]:
    """Returns the same by a chirp transform, which uses `2 j k = j^2 + k^2 - (k - j)^2`, and a bound on the
    round-off of the FFTs."""
    first, span = int(index[0]), int(index[-1] - index[0]) + 1
    reach = np.arange(max(span, nodes), dtype=np.uint64)
    chirp = _turn(reach * reach * angle)
    size = scipy.fft.next_fast_len(span + nodes - 1)
    # Arrays of the largest compositions take a hundred megabytes each, so they are deleted early.
    kernel, turned = np.zeros(size, dtype=np.complex128), np.zeros(size, dtype=np.complex128)
    turned[index - first] = weights * chirp[index - first]
    kernel[:nodes] = chirp[:nodes].conj()
    kernel[size - span + 1 :] = chirp[1:span][::-1].conj()
    del chirp
    turned = scipy.fft.fft(turned, overwrite_x=True)
    turned *= scipy.fft.fft(kernel, overwrite_x=True)
    del kernel
    convolved = scipy.fft.ifft(turned, overwrite_x=True)
    # One factor for the phase k^2 and the phase of the first position.
    values = convolved[:nodes] * _turn(reach[:nodes] * (reach[:nodes] + np.uint64(2 * first % 2**64)) * angle)
    # An FFT has an error of a few units for each stage, relative to the norm of its result: of the values for
    # the last FFT, of masses and kernel for the others.
    before = math.sqrt(float((weights**2).sum()) * size)
    after = math.sqrt(float((convolved.real**2 + convolved.imag**2).sum()))
    return values, UNIT_ROUND_OFF * (7 * math.log2(size) + 8) * (2 * before + after)


def _turn(angle: npt.NDArray[np.uint64]) -> ComplexArray:
    """Returns `exp(i angle)` for angles in units of `2^-64` full turns."""
    radians = angle.astype(np.float64) * (2 * math.pi / 2**64)
    turned = np.empty(radians.shape, dtype=np.complex128)
    turned.real, turned.imag = np.cos(radians), np.sin(radians)
    return turned
