"""One round's privacy loss under exponential tilts: moments, and the characteristic function on a contour.

Everything computed here is remembered for as long as the round is, because compositions that differ by one
round ask for the same again: tilts lie on a geometric grid for that reason.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, ComplexArray, FloatArray, IndexArray
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution

#: Neighbouring tilts are this factor apart.
TILT_RATIO = 1.05
_STEEP = 500.0
_TILTS_REMEMBERED = 64
_MAXIMUM_BYTES = 128 << 20
# Turns that take as long as one point of a transform.
_TURNS = 8


class Contour(NamedTuple):
    """The nodes `theta + i k step`, `0 <= k < nodes`, with `step = 2 pi / period`, and the smoothing they
    allow."""

    tilt: int  # theta = TILT_RATIO ** tilt
    period: float
    smoothing: float  # tau, in units of loss
    nodes: int
    # Whether the nodes end with the characteristic function's lobe, and not where the smoothing cuts.
    short: bool

    @property
    def theta(self) -> float:
        """Real part of the nodes."""
        return TILT_RATIO**self.tilt

    @property
    def step(self) -> float:
        """Distance of the nodes."""
        return 2 * math.pi / self.period


@dataclass(frozen=True, eq=False)
class Tilted:
    """Moments of a round's finite losses weighted by `exp(theta loss)`.

    Attributes:
        log_mass: `log E[exp(theta L)]` over the finite losses.
        log_mass_error: bound on its round-off.
        mean, deviation: moments under the tilt.
        core: variance of the losses within two deviations, times their probability squared.
    """

    log_mass: float
    log_mass_error: float
    mean: float
    deviation: float
    core: float


class Spectrum(NamedTuple):
    """Characteristic function of a tilted loss at a contour's nodes, arrays of shape (nodes,)."""

    log_modulus: FloatArray
    phase: FloatArray
    noise: float  # bound on the error of the value, as far as its modulus is given as the noise or more

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take."""
        return self.log_modulus.nbytes + self.phase.nbytes


class SpectrumMemory:
    """Spectra that were asked for lately, bounded in the bytes they hold together."""

    def __init__(self) -> None:
        self._spectra: OrderedDict[tuple[LossSpectrum, Contour], Spectrum] = OrderedDict()
        self._bytes = 0

    def get(self, pair: LossSpectrum, contour: Contour) -> Spectrum:
        """The spectrum of a pair on a contour, computed unless it is remembered."""
        key = (pair, contour)
        if key in self._spectra:
            self._spectra.move_to_end(key)
            return self._spectra[key]
        spectrum = self._spectra[key] = _spectrum(pair.pair, contour)
        self._bytes += spectrum.nbytes
        while self._bytes > _MAXIMUM_BYTES and len(self._spectra) > 1:
            _, oldest = self._spectra.popitem(last=False)
            self._bytes -= oldest.nbytes
        return spectrum


class LossSpectrum:
    """The tilts and spectra of one pair, remembered; spectra in a memory that pairs share."""

    def __init__(self, pair: PrivacyLossDistribution, memory: SpectrumMemory) -> None:
        self.pair = pair
        self._memory = memory
        self.variance = pair.variance()
        self._tilts: dict[int, Tilted] = {}
        self._log_masses: dict[float, float] = {}

    def tilted(self, tilt: int) -> Tilted:
        """The losses under the tilt `TILT_RATIO ** tilt`."""
        if tilt not in self._tilts:
            if len(self._tilts) >= _TILTS_REMEMBERED:
                self._tilts.clear()
            self._tilts[tilt] = _moments(self.pair, TILT_RATIO**tilt)
        return self._tilts[tilt]

    def log_mass(self, theta: float) -> float:
        """`log E[exp(theta L)]` for any real theta, rounded up."""
        if theta not in self._log_masses:
            if len(self._log_masses) >= _TILTS_REMEMBERED:
                self._log_masses.clear()
            self._log_masses[theta] = sum(_weights(self.pair, theta)[1:])
        return self._log_masses[theta]

    def on(self, contour: Contour) -> Spectrum:
        """The characteristic function at the contour's nodes."""
        return self._memory.get(self, contour)


def _positions(pair: PrivacyLossDistribution) -> IndexArray:
    """Lattice positions of the finite losses, negative ones included, ascending."""
    return np.concatenate([-pair.index[::-1], [0], pair.index])


def _weights(pair: PrivacyLossDistribution, theta: float) -> tuple[FloatArray, float, float]:
    """Probabilities of the losses under a tilt, `log E[exp(theta L)]`, and a bound on its round-off."""
    x, p, q = pair.losses, pair.p, pair.q
    if x.size and abs(theta) * x[-1] > _STEEP:
        with np.errstate(divide="ignore"):
            log_masses = np.log(np.concatenate([q[::-1], [pair.zero], p]))
        log_masses += theta * _positions(pair) * pair.spacing
        top = float(log_masses.max())
        weights = np.exp(log_masses - top)
        total = float(weights.sum())
        log_mass = top + math.log(total)
        magnitude = 32 + abs(top) + 2 * abs(theta) * float(x[-1])
    else:
        up = np.expm1(abs(theta) * x)
        grown = 1 + up
        down, shrunk = -up / grown, 1 / grown
        if theta < 0:
            up, down, grown, shrunk = down, up, shrunk, grown
        weights = np.concatenate([(q * shrunk)[::-1], [pair.zero], p * grown])
        total = float(weights.sum())
        surplus = float(p.sum() + q.sum() + pair.zero - 1)  # minus the mass at infinity, up to round-off
        more = float((p * up + q * down).sum()) + surplus
        log_mass = math.log1p(more) if more > -0.5 else math.log(total)
        # Masses and losses are given to a few units each, which their terms inherit; sums are pairwise.
        terms = p * np.abs(up) + q * np.abs(down)
        magnitude = (float((terms * (32 + abs(theta) * x)).sum()) + 1) / total + abs(log_mass)
    return weights / total, log_mass, 4 * UNIT_ROUND_OFF * magnitude


def _moments(pair: PrivacyLossDistribution, theta: float) -> Tilted:
    weights, log_mass, log_mass_error = _weights(pair, theta)
    signed = _positions(pair) * pair.spacing
    mean = float((weights * signed).sum())
    square = weights * (signed - mean) ** 2
    deviation = math.sqrt(float(square.sum()))
    near = np.abs(signed - mean) <= 2 * deviation * (1 - 1e-9)
    mass = float(weights[near].sum())
    drift = float((weights * (signed - mean))[near].sum())
    core = max(float(square[near].sum()) * mass - drift * drift, 0.0)
    return Tilted(log_mass, log_mass_error, mean, deviation, core)


def _spectrum(pair: PrivacyLossDistribution, contour: Contour) -> Spectrum:
    """The characteristic function at the nodes, and a bound on its error.

    Node k turns lattice position j by `2 j k` times one angle, kept in units of `2^-64` turns, in integers
    that wrap around: turns are exact however large.
    """
    index, (weights, _, _) = _positions(pair), _weights(pair, contour.theta)
    span, nodes = int(index[-1] - index[0]) + 1, contour.nodes
    angle = np.uint64(round(Fraction(pair.spacing) / Fraction(contour.period) * 2**63) % 2**64)
    far_apart = index.size * nodes <= _TURNS * (span + nodes)
    values, error = (_added_up if far_apart else _transformed)(index, weights, angle, nodes)
    # Masses under the tilt have the roundings of what the tilt multiplies, too.
    tilts = abs(contour.theta) * float((weights * np.abs(index)).sum()) * pair.spacing
    noise = error + UNIT_ROUND_OFF * (16 + 8 * tilts) + 2.0**-61 * nodes * span
    modulus = np.maximum(np.abs(values), noise)
    # A value lost in noise is given the noise's modulus: off by at most twice that.
    return Spectrum(np.log(np.minimum(modulus, 1.0)), np.angle(values), noise)


def _added_up(
    index: IndexArray, weights: FloatArray, angle: np.uint64, nodes: int
) -> tuple[ComplexArray, float]:
    """`sum of weights exp(2 i j k angle)` over few positions j, for every k, and what additions round off."""
    turns = 2 * np.arange(nodes, dtype=np.uint64) * angle
    values = np.zeros(nodes, dtype=np.complex128)
    for position, weight in zip(index.astype(np.uint64), weights, strict=True):  # negative ones wrap around
        values += weight * _turn(turns * position)
    return values, 2 * UNIT_ROUND_OFF * index.size


def _transformed(
    index: IndexArray, weights: FloatArray, angle: np.uint64, nodes: int
) -> tuple[ComplexArray, float]:
    """The same by a chirp transform, for `2 j k = j^2 + k^2 - (k - j)^2`, and what transforms round off."""
    first, span = int(index[0]), int(index[-1] - index[0]) + 1
    reach = np.arange(max(span, nodes), dtype=np.uint64)
    chirp = _turn(reach * reach * angle)
    size = scipy.fft.next_fast_len(span + nodes - 1)
    # Arrays of the largest compositions take a hundred megabytes each: none is kept for longer than needed.
    kernel, turned = np.zeros(size, dtype=np.complex128), np.zeros(size, dtype=np.complex128)
    turned[index - first] = weights * chirp[index - first]
    kernel[:nodes] = chirp[:nodes].conj()
    kernel[size - span + 1 :] = chirp[1:span][::-1].conj()
    del chirp
    turned = scipy.fft.fft(turned, overwrite_x=True)
    turned *= scipy.fft.fft(kernel, overwrite_x=True)
    del kernel
    convolved = scipy.fft.ifft(turned, overwrite_x=True)
    # The turn by k^2 and by the first position's phase, in one.
    values = convolved[:nodes] * _turn(reach[:nodes] * (reach[:nodes] + np.uint64(2 * first % 2**64)) * angle)
    # A transform is off by a few units a stage, in norm: the last one of its values, the others of the norms
    # of masses and kernel.
    before = math.sqrt(float((weights**2).sum()) * size)
    after = math.sqrt(float((convolved.real**2 + convolved.imag**2).sum()))
    return values, UNIT_ROUND_OFF * (7 * math.log2(size) + 8) * (2 * before + after)


def _turn(angle: npt.NDArray[np.uint64]) -> ComplexArray:
    """`exp(i angle)` for angles in units of `2^-64` turns."""
    radians = angle.astype(np.float64) * (2 * math.pi / 2**64)
    turned = np.empty(radians.shape, dtype=np.complex128)
    turned.real, turned.imag = np.cos(radians), np.sin(radians)
    return turned
