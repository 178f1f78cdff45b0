"""The sum over rounds: `delta(eps) = E[(1 - exp(eps - L))_+]` for the total privacy loss L of independent
rounds.

The characteristic function of every round's loss is evaluated by FFT at the nodes of one contour; powers and
products add in the logarithm, so the cost does not depend on how often a round is repeated. The kink is
smoothed by composing with one more Gaussian mechanism of parameter tau, which can only raise the divergence;
`(1 - exp(-y)) Phi(y / tau)` lies below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.privacy_loss import IndexArray, PrivacyLossDistribution, Side

ComplexArray = npt.NDArray[np.complex128]

# Where the smoothing kernel is cut, in units of 1/tau, and the characteristic function, in tilted standard
# deviations.
_CUT = 5.6
_LOBE_CUT = 12.0
_MAXIMUM_NODES = 1 << 19
_STEEP = 500.0
_TILT_STEPS = 40
_TINY = 1e-100
# Saddle points of losses beyond this share of the largest one would tilt all mass into one atom.
_NEAR_THE_END = 0.999


class Contour(NamedTuple):
    """The nodes `theta + i k step`, `0 <= k < nodes`, and the smoothing they allow."""

    theta: float
    period: float
    smoothing: float  # tau, in units of loss
    nodes: int
    # Bound on the sum of |characteristic function| * step between the last node and the smoothing's cut; None when the
    # nodes reach the cut.
    skipped: float | None


class DeltaBound(NamedTuple):
    """A bound on delta and how much of it is due to truncation and to round-off."""

    value: float
    truncation: float
    round_off: float


@dataclass(frozen=True, eq=False)
class _Tilted:
    """One round's signed losses under the exponential tilt: lattice positions, weights that sum to 1,
    moments."""

    index: IndexArray
    spacing: float
    weights: FloatArray
    log_mass: float
    log_mass_error: float
    mean: float
    deviation: float


class Composition:
    """Independent rounds, each repeated, by their discrete pairs of one side.

    Args:
        parts: pairs with the number of rounds each stands for; all of the same side.
        side: "upper" or "lower": which bound on delta is answered.

    Guarantee: `delta(eps, contour).value` is a bound, on that side, on the hockey-stick divergence of order
    `exp(eps)` of the product of the pairs, for every `eps >= 0` and every contour, floating-point round-off
    included.
    Source: Zhu, Dong, Wang, "Optimal Accounting of DP via Characteristic Function"; bounds: docs/theory.md.
    """

    def __init__(self, parts: Sequence[tuple[PrivacyLossDistribution, int]], side: Side) -> None:
        self.side = side
        self._parts = [(pair, count) for pair, count in parts if count > 0]
        self.rounds = sum(count for _, count in self._parts)
        log_finite = math.fsum(
            count * math.log1p(-pair.infinity) for pair, count in self._parts if pair.infinity < 1
        )
        certain = any(pair.infinity >= 1 for pair, _ in self._parts)
        self.infinity = 1.0 if certain else -math.expm1(log_finite)
        self.largest_loss = math.fsum(count * pair.largest_loss for pair, count in self._parts)
        self.variance = math.fsum(count * pair.variance() for pair, count in self._parts)
        self._tilts: dict[tuple[int, float], _Tilted] = {}
        self._spectra: dict[Contour, _Spectrum] = {}

    def tilt_for(self, epsilon: float) -> float:
        """A tilt near the saddle point of the inversion integral at `epsilon`; any tilt is sound."""
        epsilon = min(epsilon, self.largest_loss * _NEAR_THE_END)
        low, high = 1e-6, 1.0
        for _ in range(_TILT_STEPS):
            if self._slope(high) >= epsilon + 1 / high + 1 / (1 + high):
                break
            low, high = high, high * 4
        for _ in range(_TILT_STEPS):
            if high <= low * 1.02:
                break
            middle = math.sqrt(low * high)
            if self._slope(middle) < epsilon + 1 / middle + 1 / (1 + middle):
                low = middle
            else:
                high = middle
        return math.sqrt(low * high)

    def contour(self, epsilon: float, smoothing: float, theta: float | None = None) -> Contour:
        """A contour suited to `epsilon`, with smoothing in units of the tilted standard deviation of the
        total loss."""
        theta = self.tilt_for(epsilon) if theta is None else theta
        tilted = [(self._tilted(part, theta), count) for part, (_, count) in enumerate(self._parts)]
        deviation = math.sqrt(math.fsum(count * one.deviation**2 for one, count in tilted))
        mean = math.fsum(count * one.mean for one, count in tilted)
        excursion = abs(mean - epsilon) + 14 * deviation
        period = max((44 + 2 * math.log1p(theta * (1 + theta) * deviation)) / theta, excursion)
        step = 2 * math.pi / period
        limit, rate = _lobe(tilted)
        lobe = _LOBE_CUT / math.sqrt(2 * rate) if rate > 0 else math.inf
        tau = smoothing * max(deviation, 0.5 / theta)
        if rate > 0 and limit >= lobe:
            tau = min(tau, max(_CUT / limit, 1e-3 * tau))
            if limit >= _CUT / tau:
                nodes = math.ceil(lobe / step) + 1
                end = (nodes - 1) * step
                return Contour(theta, period, tau, nodes, math.exp(-rate * end**2) / (2 * rate * end))
        nodes = min(math.ceil(_CUT / tau / step) + 1, _MAXIMUM_NODES)
        return Contour(theta, period, _CUT / ((nodes - 1) * step), nodes, None)

    def delta(self, epsilon: float, contour: Contour) -> DeltaBound:
        """Bound on `delta(epsilon)`, infinite losses included, by quadrature on `contour`."""
        if not self._parts or epsilon >= self.largest_loss:
            return DeltaBound(self.infinity, 0.0, 0.0)
        spectrum = self._spectrum(contour)
        z, tau = spectrum.z, contour.smoothing
        phase = spectrum.phase - epsilon * z.imag
        rotated = np.exp(1j * phase) * self._kernel(z, tau)
        total = float((spectrum.magnitude * rotated.real).sum())
        noise = spectrum.error + UNIT_ROUND_OFF * 4 * np.abs(phase)
        round_off = float((spectrum.magnitude * np.abs(rotated) * noise).sum())
        exponent = spectrum.log_mass - epsilon * contour.theta
        scale = math.exp(min(exponent, 700.0))
        scale_error = spectrum.log_mass_error + UNIT_ROUND_OFF * (8 + 4 * abs(epsilon * contour.theta))
        truncation = self._truncation(contour)
        round_off = scale * (round_off + abs(total) * scale_error) + 4 * UNIT_ROUND_OFF * self.infinity
        if self.side == "upper":
            value = scale * (max(total, 0.0) + truncation) + round_off + self.infinity
            return DeltaBound(min(value, 1.0), scale * truncation + self.infinity, round_off)
        truncation += self._alias(epsilon, contour, spectrum.log_mass)
        value = scale * (total - truncation) - round_off + self.infinity
        return DeltaBound(max(value, 0.0), scale * truncation, round_off)

    def _kernel(self, z: ComplexArray, tau: float) -> ComplexArray:
        turn = np.exp(1j * (z.imag * z.real * tau**2))  # the modulus is part of the magnitude
        kernel: ComplexArray
        if self.side == "upper":
            kernel = turn * np.exp(z * tau**2 / 2) / (z * (z + 1))
        else:
            kernel = turn * (1 / (z * (z + 1)) - np.expm1((2 * z + 1) * tau**2 / 2) / (z + 1))
        return kernel

    def _truncation(self, contour: Contour) -> float:
        """Bound on the nodes left out, in units of the scale, for either kernel."""
        theta, tau = contour.theta, contour.smoothing
        end = (contour.nodes - 1) * 2 * math.pi / contour.period

        def kernel(u: float) -> float:
            growth = math.exp(min((theta**2 / 2 + theta + 0.5) * tau**2, 700.0))
            return growth * (1 / u**2 + tau**2 * (1 + (2 * theta + 1) / (2 * u)))

        if contour.skipped is not None:
            edge = _CUT / tau
            tail = kernel(edge) * math.exp(-(edge**2) * tau**2 / 2) / (edge * tau**2)
            return (contour.skipped * kernel(end) + tail) / math.pi
        return kernel(end) * math.exp(-(end**2) * tau**2 / 2) / (end * tau**2) / math.pi

    def _alias(self, epsilon: float, contour: Contour, log_mass: float) -> float:
        """Bound on what the translates add to the trapezoid sum, in units of the scale: needed for lower
        bounds only."""
        theta, half = contour.theta, contour.period / 2
        ratio = math.exp(-theta * half)
        peak = math.exp(theta * math.log(theta) - (1 + theta) * math.log1p(theta))
        deviation = math.sqrt(
            math.fsum(
                count * self._tilted(i, theta).deviation ** 2 for i, (_, count) in enumerate(self._parts)
            )
        )
        far = math.inf
        for rate in [0.7 * theta, theta] + [
            steps / max(deviation, 0.5 / theta) for steps in (2.0, 4.0, 7.0, 11.0)
        ]:
            below = self._log_mass(theta - rate) - log_mass + rate * (epsilon - half)
            above = self._log_mass(theta + rate) - log_mass - rate * (epsilon + 2 * half)
            fade = -math.expm1(-rate * half)
            far = min(far, peak * (math.exp(min(below, 700.0)) + math.exp(min(above, 700.0))) / fade)
        return ratio / (1 - ratio) + far

    def _slope(self, theta: float) -> float:
        return math.fsum(count * self._tilted(i, theta).mean for i, (_, count) in enumerate(self._parts))

    def _log_mass(self, theta: float) -> float:
        return math.fsum(count * self._tilted(i, theta).log_mass for i, (_, count) in enumerate(self._parts))

    def _tilted(self, part: int, theta: float) -> _Tilted:
        key = (part, theta)
        if key not in self._tilts:
            if len(self._tilts) > 64 * (len(self._parts) + 1):
                self._tilts.clear()
            self._tilts[key] = _tilted(self._parts[part][0], theta)
        return self._tilts[key]

    def _spectrum(self, contour: Contour) -> _Spectrum:
        if contour not in self._spectra:
            self._spectra.clear()
            self._spectra[contour] = self._evaluate(contour)
        return self._spectra[contour]

    def _evaluate(self, contour: Contour) -> _Spectrum:
        nodes = np.arange(contour.nodes)
        step = 2 * math.pi / contour.period
        z = np.asarray(contour.theta + 1j * (nodes * step), dtype=np.complex128)
        log_modulus, phase, error = (
            np.zeros(contour.nodes),
            np.zeros(contour.nodes),
            np.full(contour.nodes, 64.0),
        )
        error *= UNIT_ROUND_OFF
        log_masses, log_mass_error = [], 0.0
        for part, (_, count) in enumerate(self._parts):
            tilted = self._tilted(part, contour.theta)
            values, noise = _characteristic(tilted, contour)
            modulus = np.maximum(np.abs(values), noise)
            log_modulus += count * np.log(np.minimum(modulus, 1.0))
            phase += count * np.angle(values)
            error += count * 2 * noise / modulus
            log_masses.append(count * tilted.log_mass)
            log_mass_error += count * tilted.log_mass_error
        decay = (contour.theta**2 - z.imag**2) * contour.smoothing**2 / 2
        # Beyond certainty an error bound saturates: the term itself is at most exp(log_modulus) (1 + error).
        magnitude = np.exp(log_modulus + decay) * np.where(nodes == 0, 1.0, 2.0) * step / (2 * math.pi)
        magnitude.setflags(write=False)
        return _Spectrum(
            z, magnitude, phase, np.expm1(np.minimum(error, 50.0)), math.fsum(log_masses), log_mass_error
        )


@dataclass(frozen=True, eq=False)
class _Spectrum:
    z: ComplexArray
    magnitude: FloatArray
    phase: FloatArray
    error: FloatArray
    log_mass: float
    log_mass_error: float


def _tilted(pair: PrivacyLossDistribution, theta: float) -> _Tilted:
    x, p, q = pair.losses, pair.p, pair.q
    index = np.concatenate([-pair.index[::-1], [0], pair.index])
    if x.size and max(theta, -1 - theta) * x[-1] > _STEEP:
        with np.errstate(divide="ignore"):
            log_masses = np.log(np.concatenate([q[::-1], [pair.zero], p])) + theta * index * pair.spacing
        top = float(log_masses.max())
        weights = np.exp(log_masses - top)
        total = float(weights.sum())
        log_mass = top + math.log(total)
        magnitude = 8 + abs(top) + 2 * abs(theta) * float(x[-1])
    else:
        weights = np.concatenate([(q * np.exp(-theta * x))[::-1], [pair.zero], p * np.exp(theta * x)])
        total = float(weights.sum())
        growth = math.fsum(p * np.expm1(theta * x)) + math.fsum(q * np.expm1(-theta * x)) - pair.infinity
        log_mass = math.log1p(growth)
        # Masses and losses are given to a few units each, which their terms inherit; the sums are exact.
        terms = p * np.abs(np.expm1(theta * x)) + q * np.abs(np.expm1(-theta * x))
        magnitude = float((terms * (8 + abs(theta) * x)).sum()) / total + abs(log_mass)
    weights = weights / total
    signed = index * pair.spacing
    mean = float((weights * signed).sum())
    variance = float((weights * (signed - mean) ** 2).sum())
    error = 4 * UNIT_ROUND_OFF * magnitude
    return _Tilted(index, pair.spacing, weights, log_mass, error, mean, math.sqrt(variance))


def _characteristic(tilted: _Tilted, contour: Contour) -> tuple[ComplexArray, float]:
    """`E~[exp(i u L)]` at the contour's nodes and a bound on its absolute error: a chirp transform.

    Node k turns lattice position j by `2 j k` times one angle, and `2 j k = j^2 + k^2 - (k - j)^2`. The angle
    is kept in units of `2^-64` turns, in integers that wrap around, so these squares are exact however large.
    """
    first, span = int(tilted.index[0]), int(tilted.index[-1] - tilted.index[0]) + 1
    nodes = contour.nodes
    angle = np.uint64(round(Fraction(tilted.spacing) / Fraction(contour.period) * 2**63))
    reach = np.arange(max(span, nodes), dtype=np.uint64)
    chirp = _turn(reach * reach * angle)
    size = fft.next_fast_len(span + nodes - 1)
    dense = np.zeros(span)
    dense[tilted.index - first] = tilted.weights
    kernel = np.zeros(size, dtype=np.complex128)
    kernel[:nodes] = chirp[:nodes].conj()
    kernel[size - span + 1 :] = chirp[1:span][::-1].conj()
    convolved = fft.ifft(fft.fft(dense * chirp[:span], size) * fft.fft(kernel))[:nodes]
    shift = _turn(reach[:nodes] * np.uint64(2 * first % 2**64) * angle)
    norm = float(np.sqrt((tilted.weights**2).sum()))
    noise = UNIT_ROUND_OFF * (8 * math.log2(size) * norm * math.sqrt(size) + 16) + 2.0**-61 * nodes * span
    return chirp[:nodes] * convolved * shift, noise


def _turn(angle: npt.NDArray[np.uint64]) -> ComplexArray:
    """`exp(i angle)` for angles in units of `2^-64` turns."""
    result: ComplexArray = np.exp(1j * (angle.astype(np.float64) * (2 * math.pi / 2**64)))
    return result


def _lobe(tilted: Sequence[tuple[_Tilted, int]]) -> tuple[float, float]:
    """`(limit, rate)` such that the product of characteristic functions is at most `exp(-rate u^2)` for `u <=
    limit`.

    From `|phi|^2 = 1 - 4 sum of w_j w_k sin^2(u (x_j - x_k) / 2)` over pairs that are at most `pi / u` apart.
    """
    candidates = []
    windows = sorted(
        ((math.pi / (4 * one.deviation), one, count) for one, count in tilted if one.deviation > _TINY),
        key=lambda w: -w[0],
    )
    rate = 0.0
    for limit, one, count in windows:
        signed = one.index * one.spacing - one.mean
        near = np.abs(signed) <= 2 * one.deviation * (1 - 1e-9)
        mass = float(one.weights[near].sum())
        if mass > 0:
            centre = float((one.weights[near] * signed[near]).sum()) / mass
            spread = float((one.weights[near] * (signed[near] - centre) ** 2).sum()) * mass
            rate += count * spread * 2 / math.pi**2 * (1 - 1e-9)
        candidates.append((limit * (1 - 1e-9), rate))
    return max(candidates, key=lambda pair: pair[0] ** 2 * pair[1], default=(0.0, 0.0))
