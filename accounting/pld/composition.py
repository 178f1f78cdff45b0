"""The composition of independent rounds: `delta(eps) = E[(1 - exp(eps - L))_+]`, L the total privacy loss.

The characteristic function of every round's loss is evaluated by FFT at the nodes of one contour. Logarithms
add, so the cost does not depend on how often a round is repeated. The kink is smoothed. For the upper bound,
one more Gaussian mechanism of parameter tau is composed, which can only raise the divergence; for the lower
bound, `(1 - exp(-y)) Phi(y / tau)` takes the place of `(1 - exp(-y))_+`, and is below it. Aliasing can only
raise the sum; the lower bound subtracts a bound on it. All other errors are bounded and included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    UNDERFLOW,
    UNIT_ROUND_OFF,
    ComplexArray,
    FloatArray,
)
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.distribution import Side
from shuffle_ledger.accounting.pld.tilting import TILT_RATIO, Contour, LossSpectrum, Tilted

# Nodes end at this many units of 1/tau, where the smoothing kernel is negligible, or at this many units of
# 1/deviation, where the characteristic function is. Larger: more nodes, less truncation.
_KERNEL_CUT = 5.6
_LOBE_CUT = 12.0
# Largest number of nodes of a contour. More: memory and time.
_MAXIMUM_NODES = 1 << 19
# Periods and smoothings are on geometric grids of this ratio, so that similar compositions share a contour.
_CONTOUR_RATIO = 1.1
# Most steps of the grid of tilts that the search for the saddle point makes. Before, and for a first guess of
# epsilon, this many steps of Newton's method are tried, each of at most the last factor.
_MOST_TILT_STEPS, _MOST_GUESSES, _MOST_TILT_FACTOR = 600, 6, 4.0
# Largest exponent of the factor that smoothing puts on a kernel: beyond it the contour gives a trivial bound.
_MOST_GROWTH = 600.0
# Work in points of a transform, about 1e-7 s each: of a node that is made, of one that is added up, and of a
# loss in a moment.
_NODE_WORK, _TERM_WORK, _LOSS_WORK = 3.0, 0.6, 0.1
# Relative round-off of a mass that is computed from logarithms.
_INFINITY_ROUND_OFF = 8 * UNIT_ROUND_OFF
# Contours are made for an epsilon of at most this share of the largest loss: beyond, the tilt would put all
# mass on one atom.
_LARGEST_EPSILON_SHARE = 0.999
# Least deviation of the total loss in the search for a tilt: as a share of the largest loss, and absolute.
_LEAST_DEVIATION_SHARE = 1e-9
_LEAST_DEVIATION = 1e-100
# Largest smoothing tau: in units of 1/theta, and in nats. The lower kernel falls to -exp(tau^2 / 2), and the
# upper one moves epsilon by about tau^2 / 2.
_WIDEST_PER_TILT = 3.0
_WIDEST_SMOOTHING = 1.0
# Most doublings of the period, and the share of a lower bound that aliasing may take before a doubling.
_MOST_DOUBLINGS = 4
_ALIAS_SHARE = 1e-5
# Rates of the exponential moments that bound the tails of the tilted loss, in units of the tilt. They are
# tried in this order, until the bound is below this share of what it is added to.
_CHERNOFF_RATES, _FAINT_SHARE = (0.5, 0.16, 1.0, 0.08, 0.04, 0.02, 0.01, 2.0, 4.0), 1e-2


class DeltaBound(NamedTuple):
    """A bound on delta; the parts of it that are due to truncation and to round-off; and the effect of the
    smoothing, the distance between the sums with the two kernels."""

    value: float
    truncation: float
    round_off: float
    smoothing: float


class _Quadrature(NamedTuple):
    """The integrand on one contour, up to the factor `exp(-z epsilon)`."""

    u: FloatArray
    coefficients: ComplexArray
    kernel_distance: ComplexArray
    log_mass: float
    log_mass_error: float
    noise: float  # sum of the coefficients' errors
    turning: float  # round-off of the phases for each unit of epsilon
    truncation: float


class Composition:
    """Independent rounds, each repeated, by their discrete pairs of one side.

    Args:
        parts: pairs, all of one side, with the number of rounds each stands for.
        side: which bound on delta is computed, "upper" or "lower".

    Attributes:
        work: what was computed so far, in points of a transform, about 1e-7 s each. It does not depend on
            caches, so that a search that ends by it gives the same answer each time.

    Guarantee: `delta(epsilon, contour).value` bounds, on that side, the hockey-stick divergence of order
    `exp(epsilon)` of the product of the pairs, for every `epsilon >= 0` and every contour, round-off
    included.
    Source: Zhu, Dong, Wang, "Optimal Accounting of DP via Characteristic Function";
        docs/theory/pld.md, P1; the bounds: docs/theory/contour.md, C1, C3 to C5.
    """

    def __init__(self, parts: Sequence[tuple[LossSpectrum, int]], side: Side) -> None:
        self.side = side
        self._parts = [(one, count) for one, count in parts if count > 0]
        self.rounds = sum(count for _, count in self._parts)
        infinities = [(one.pair.infinity, count) for one, count in self._parts]
        certain = any(mass >= 1 for mass, _ in infinities)
        log_finite = 0.0 if certain else math.fsum(count * math.log1p(-mass) for mass, count in infinities)
        aside = _INFINITY_ROUND_OFF if side == "upper" else -_INFINITY_ROUND_OFF
        self.infinity = 1.0 if certain else min((0.0 - math.expm1(log_finite)) * (1 + aside), 1.0)
        largest = math.fsum(count * one.pair.largest_loss for one, count in self._parts)
        self.largest_loss = largest if self.rounds == 1 else largest * (1 + 4 * UNIT_ROUND_OFF)
        self.variance = math.fsum(count * one.variance for one, count in self._parts)
        self.kinds = len(self._parts)
        self.work = 0.0
        self._log_masses: dict[float, list[float]] = {}
        self._contour: Contour | None = None
        self._quadrature: _Quadrature | None = None

    def contour(self, epsilon: float, smoothing: float) -> Contour:
        """Returns a contour that suits `epsilon`; `smoothing` is in units of the tilted deviation of the
        total loss. Every contour gives a bound, this one a close bound."""
        epsilon = min(epsilon, self.largest_loss * _LARGEST_EPSILON_SHARE)
        tilt = self._saddle(epsilon)
        theta = TILT_RATIO**tilt
        tilted = [(one.tilted(tilt), count) for one, count in self._parts]
        _, mean, deviation = self._moments(tilt)
        falling = (44 + 2 * math.log1p(theta * (1 + theta) * deviation)) / theta
        period = _on_grid(max(falling, abs(mean - epsilon) + 14 * deviation), up=True)
        # A smoothing of tau moves epsilon by about theta tau^2 / 2.
        width = min(deviation, math.sqrt(epsilon / theta)) if epsilon > 0 else deviation
        widest = min(_WIDEST_PER_TILT / theta, _WIDEST_SMOOTHING)
        tau = _on_grid(min(smoothing * max(width, 0.5 / theta), widest), up=False)
        limit, rate = _lobe(tilted)
        lobe = _LOBE_CUT / math.sqrt(2 * rate) if rate > 0 else math.inf
        step = 2 * math.pi / period
        if limit >= lobe and lobe < (_MAXIMUM_NODES - 1) * step:
            # The lobe ends the nodes, so less smoothing is free: the least whose cut is before the limit.
            tau = min(tau, max(_KERNEL_CUT / limit, 1e-3 * tau))
            if limit >= _KERNEL_CUT / tau:
                return Contour(tilt, period, tau, math.ceil(lobe / step) + 1, short=True)
        nodes = min(math.ceil(_KERNEL_CUT / tau / step) + 1, _MAXIMUM_NODES)
        return Contour(tilt, period, _KERNEL_CUT / ((nodes - 1) * step), nodes, short=False)

    def widened(self, epsilon: float, contour: Contour) -> Contour:
        """Returns the contour with a longer period, such that aliasing is a small part of the lower bound at
        `epsilon`.

        Losses with heavy tails need it: their translates do not fade within the usual period.
        """
        found = self.delta(epsilon, contour)
        for _ in range(_MOST_DOUBLINGS):
            wider = contour._replace(period=2 * contour.period, nodes=2 * contour.nodes - 1)
            faint = found.truncation <= _ALIAS_SHARE * (found.value + found.truncation)
            if faint or wider.nodes > _MAXIMUM_NODES:
                break
            then = self.delta(epsilon, wider)
            if not then.truncation <= found.truncation / 2:
                break  # the truncation has another cause
            contour, found = wider, then
        return contour

    def delta(self, epsilon: float, contour: Contour) -> DeltaBound:
        """Returns a bound on `delta(epsilon)` by quadrature on `contour`; infinite losses are included.

        Guarantee: for `side` "upper" it is at least the exact delta of the pairs, else at most.
        """
        if not self._parts or epsilon >= self.largest_loss:
            return DeltaBound(self.infinity, 0.0, 0.0, 0.0)
        if ((contour.theta + 1) * contour.smoothing) ** 2 / 2 > _MOST_GROWTH:
            return self._trivial  # so wide a smoothing that its kernels overflow
        on = self._on(contour)
        self.work += _TERM_WORK * contour.nodes
        turn = on.u * epsilon
        cosine, sine = np.cos(turn), np.sin(turn)
        total = float((on.coefficients.real * cosine + on.coefficients.imag * sine).sum())
        distance = abs(float((on.kernel_distance.real * cosine + on.kernel_distance.imag * sine).sum()))
        if not (math.isfinite(total) and math.isfinite(on.noise)):
            return self._trivial
        scale = math.exp(min(on.log_mass - epsilon * contour.theta, LARGEST_EXPONENT))
        scale_error = on.log_mass_error + UNIT_ROUND_OFF * (8 + 4 * epsilon * contour.theta)
        round_off = scale * (on.noise + epsilon * on.turning + abs(total) * scale_error)
        if not math.isfinite(scale * (total + on.truncation)) or not math.isfinite(round_off):
            return self._trivial
        if self.side == "upper":
            truncation = scale * on.truncation + self.infinity
            value = scale * max(total, 0.0) + truncation + round_off + UNDERFLOW
            value *= 1 + 4 * UNIT_ROUND_OFF
            return DeltaBound(min(value, 1.0), truncation, round_off, scale * distance)
        truncation = scale * (on.truncation + self._alias(epsilon, contour, on.log_mass))
        # Infinite losses count in full, even if the contour gives nothing for finite ones.
        finite = max(scale * total - truncation - round_off - UNDERFLOW, 0.0)
        value = (finite + self.infinity) * (1 - 4 * UNIT_ROUND_OFF)
        return DeltaBound(value, truncation, round_off, scale * distance)

    @property
    def _trivial(self) -> DeltaBound:
        """Returns the trivial bound, for a contour that does not suit the epsilon."""
        return DeltaBound(1.0 if self.side == "upper" else self.infinity, 1.0, 0.0, 0.0)

    def _saddle(self, epsilon: float) -> int:
        """Returns a tilt (a step of the grid) near the saddle point of the integral at `epsilon`. Any tilt is
        sound."""
        tilt = first = self._first_tilt(epsilon)

        def lacking(tilt: int) -> float:
            theta = TILT_RATIO**tilt
            return epsilon + 1 / theta + 1 / (1 + theta) - self._moments(tilt)[1]

        for _ in range(_MOST_GUESSES):
            theta, deviation = TILT_RATIO**tilt, self._moments(tilt)[2]
            rise = deviation**2 + 1 / theta**2 + 1 / (1 + theta) ** 2
            before, tilt = tilt, _stepped(theta, lacking(tilt) / rise)
            if abs(tilt - before) <= 1:
                return tilt
        # The loss varies so unevenly that Newton's method does not end.
        tilt, direction = first, 1 if lacking(first) > 0 else -1
        for _ in range(_MOST_TILT_STEPS):
            if (lacking(tilt + direction) > 0) != (direction > 0):
                break
            tilt += direction
        return tilt

    def _first_tilt(self, epsilon: float) -> int:
        """Returns the tilt that suits a Gaussian loss of the same variance."""
        # A loss that is certain, up to round-off, has deviation 0.
        deviation = max(
            math.sqrt(self.variance), _LEAST_DEVIATION_SHARE * self.largest_loss, _LEAST_DEVIATION
        )
        return round(math.log(max(epsilon / deviation, 1.0) / deviation) / math.log(TILT_RATIO))

    def _moments(self, tilt: int) -> tuple[float, float, float]:
        """Returns `log E[exp(theta L)]` of the total finite loss, and its mean and deviation under the
        tilt."""
        tilted = [(one.tilted(tilt), count) for one, count in self._parts]
        self.work += _LOSS_WORK * sum(one.pair.index.size for one, _ in self._parts)
        log_mass = math.fsum(count * one.log_mass for one, count in tilted)
        mean = math.fsum(count * one.mean for one, count in tilted)
        return log_mass, mean, math.sqrt(math.fsum(count * one.deviation**2 for one, count in tilted))

    def about(self, delta: float) -> float:
        """Returns about the epsilon at delta, by the saddle point approximation, where a search may start."""
        variance, aim = self.variance, math.log(max(delta - self.infinity, _LEAST_DEVIATION))
        epsilon = variance / 2 + math.sqrt(2 * variance * max(-1 - aim, 0.1))
        tilt = self._first_tilt(epsilon)
        for _ in range(_MOST_GUESSES):
            theta, (log_mass, mean, deviation) = TILT_RATIO**tilt, self._moments(tilt)
            spread = theta * (1 + theta) * deviation * math.sqrt(2 * math.pi)
            if spread < 1 or deviation <= _LEAST_DEVIATION:
                break
            # What delta is where the tilted mean is, which falls as the tilt rises.
            excess = log_mass - theta * mean - math.log(spread) - aim
            step = excess / (theta * deviation**2 + 2 / theta)
            epsilon, before = mean + deviation**2 * step, tilt
            tilt = _stepped(theta, step)
            if abs(tilt - before) <= 1:
                break
        return min(max(epsilon, 0.0), self.largest_loss / 2)

    def _on(self, contour: Contour) -> _Quadrature:
        if self._contour != contour or self._quadrature is None:
            self._contour, self._quadrature = contour, self._evaluate(contour)
        return self._quadrature

    def _evaluate(self, contour: Contour) -> _Quadrature:
        u = np.arange(contour.nodes) * contour.step
        log_modulus, phase = np.zeros(contour.nodes), np.zeros(contour.nodes)
        error = np.full(contour.nodes, 64 * UNIT_ROUND_OFF)
        log_masses, log_mass_error = [], 0.0
        for one, count in self._parts:
            spectrum, tilted = one.on(contour), one.tilted(contour.tilt)
            self.work += spectrum.work + _NODE_WORK * contour.nodes
            log_modulus += count * spectrum.log_modulus
            phase += count * spectrum.phase
            # The error of the value is at most twice the noise; the logarithm adds a few units.
            error += count * (2.0 + 1e-9) * spectrum.noise * np.exp(-spectrum.log_modulus)
            log_masses.append(count * tilted.log_mass)
            log_mass_error += count * tilted.log_mass_error
        decay = (contour.theta**2 - u**2) * contour.smoothing**2 / 2
        magnitude = np.exp(log_modulus + decay) * np.where(u == 0, 1.0, 2.0) * (contour.step / (2 * math.pi))
        values = magnitude * np.exp(1j * phase)
        upper, lower = _kernels(np.asarray(contour.theta + 1j * u, dtype=np.complex128), contour.smoothing)
        coefficients = values * (upper if self.side == "upper" else lower)
        size = np.abs(coefficients)
        # Relative errors of factors multiply to at most exp(sum) - 1. Beyond an exponent of 50 the term
        # itself is negligible.
        noise = np.expm1(np.minimum(error + 4 * UNIT_ROUND_OFF * np.abs(phase), 50.0))
        return _Quadrature(
            np.asarray(u, dtype=np.float64),
            coefficients,
            values * (upper - lower),
            math.fsum(log_masses),
            log_mass_error,
            float((size * noise).sum()),
            4 * UNIT_ROUND_OFF * float((size * u).sum()),
            self._truncation(contour),
        )

    def _truncation(self, contour: Contour) -> float:
        """Returns an upper bound on the sum over the nodes beyond the last one, for either kernel, in units
        of `exp(log_mass - theta epsilon)`."""
        theta, tau = contour.theta, contour.smoothing
        end = (contour.nodes - 1) * contour.step

        def kernel(u: float) -> float:
            growth = math.exp(min((theta**2 / 2 + theta + 0.5) * tau**2, LARGEST_EXPONENT))
            return growth * (1 / u**2 + tau**2 * (1 + (2 * theta + 1) / (2 * u)))

        if not contour.short:
            return kernel(end) * math.exp(-(end**2) * tau**2 / 2) / (end * tau**2) / math.pi
        # The contour may have been made for other pairs; the lobe of these pairs is bounded up to its limit.
        limit, rate = _lobe([(one.tilted(contour.tilt), count) for one, count in self._parts])
        cut = max(min(_KERNEL_CUT / tau, limit), end)
        # The first node beyond the cut counts with a whole step.
        tail = kernel(cut) * math.exp(-(cut**2) * tau**2 / 2) * (1 / (cut * tau**2) + contour.step)
        skipped = math.exp(-rate * end**2) / (2 * rate * end) if cut > end else 0.0
        return (skipped * kernel(end) + tail) / math.pi

    def _alias(self, epsilon: float, contour: Contour, log_mass: float) -> float:
        """Returns an upper bound on the aliasing of the trapezoid sum, in the same units: only the lower
        bound needs it."""
        theta, half = contour.theta, contour.period / 2
        ratio = math.exp(-theta * half)
        peak = math.exp(-theta * math.log1p(1 / theta)) / (1 + theta)
        near, far = ratio / -math.expm1(-theta * half), math.inf
        rates = [multiple * theta for multiple in _CHERNOFF_RATES]
        log_masses = self._log_masses_beside(theta, rates)
        for rate, less, more in zip(rates, log_masses, log_masses[len(rates) :], strict=False):
            if far <= _FAINT_SHARE * near:
                break
            below = less - log_mass + rate * (epsilon - half)
            above = more - log_mass - rate * (epsilon + 2 * half)
            fade = -math.expm1(-rate * half)
            far = min(
                far,
                peak
                * (math.exp(min(below, LARGEST_EXPONENT)) + math.exp(min(above, LARGEST_EXPONENT)))
                / fade,
            )
        return near + far

    def _log_masses_beside(self, theta: float, rates: list[float]) -> list[float]:
        """Returns upper bounds on `log E[exp(t L)]` for t each rate below theta, then each rate above."""
        if theta not in self._log_masses:
            places = (*(theta - rate for rate in rates), *(theta + rate for rate in rates))
            found = [(one.log_masses(places), count) for one, count in self._parts]
            self._log_masses[theta] = [
                math.fsum(count * row[k] for row, count in found) for k in range(len(places))
            ]
        return self._log_masses[theta]


def _kernels(z: ComplexArray, tau: float) -> tuple[ComplexArray, ComplexArray]:
    """Returns the transforms of the kernels above and below `(1 - exp(-y))_+`, divided by the modulus of
    `exp(z^2 tau^2 / 2)`."""
    turn = np.exp(1j * (z.imag * z.real * tau**2))
    upper: ComplexArray = turn * np.exp(z * tau**2 / 2) / (z * (z + 1))
    lower: ComplexArray = turn * (1 / (z * (z + 1)) - np.expm1((2 * z + 1) * tau**2 / 2) / (z + 1))
    return upper, lower


def _stepped(theta: float, step: float) -> int:
    """Returns the tilt of the grid nearest to `theta + step`, at most a few times larger or smaller than
    theta."""
    aimed = min(max(theta + step, theta / _MOST_TILT_FACTOR), theta * _MOST_TILT_FACTOR)
    return math.floor(math.log(aimed) / math.log(TILT_RATIO) + 0.5)


def _on_grid(value: float, *, up: bool) -> float:
    """Returns the next point of the geometric grid, above or below the value."""
    steps = math.log(value) / math.log(_CONTOUR_RATIO)
    return float(_CONTOUR_RATIO ** (math.ceil(steps) if up else math.floor(steps)))


def _lobe(tilted: Sequence[tuple[Tilted, int]]) -> tuple[float, float]:
    """Returns `(limit, rate)`: the modulus of the product of characteristic functions is at most `exp(-rate
    u^2)` for `u <= limit`.

    It follows from `|phi|^2 = 1 - 4 sum of w_j w_k sin^2(u (x_j - x_k) / 2)`, restricted to pairs of atoms
    that are at most `pi / u` apart.
    """
    limit, rate, best = 0.0, 0.0, (0.0, 0.0)
    for one, count in sorted(tilted, key=lambda part: part[0].deviation):
        if one.deviation <= _LEAST_DEVIATION:
            continue
        limit = math.pi / (4 * one.deviation)
        rate += count * one.core * 2 / math.pi**2
        if limit**2 * rate > best[0] ** 2 * best[1]:
            best = (limit * (1 - 1e-9), rate * (1 - 1e-9))
    return best
