"""The quadrature of the sum over users: `E[(S)_+] / n` of tilted laws, on one contour for each order.

Every error is bounded: aliasing (it only raises the upper bound), truncation, nodes that are left out,
round-off. `docs/theory.md`, "The contour", has the proofs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.contour import UNIT_ROUND_OFF, FloatArray, sine_minus

BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.int64]

# Where the smoothing kernel is cut, in units of 1/tau; what is cut is part of the bounds.
_CUT = 5.2
# Where the tilted characteristic function is cut by its own bound, in tilted standard deviations.
_LOBE_CUT = 11.0
_BLOCK_ELEMENTS = 1 << 19
# Nodes are left out in cells over which the modulus changes by this much at most, where what they contribute
# has fallen by this exponent; not among a few nodes, nor in cells of a few.
_CHANGE = 0.06
_NEGLIGIBLE = 46.0
_FEW_NODES = 64
_FEW_TO_SKIP = 4
_UNBOUNDED = 500.0
_FLOOR = 1e-15  # of the modulus of a characteristic function, about its absolute round-off
_E = float(np.e)


class Tilt(NamedTuple):
    """Sums under the exponentially tilted law, one row for each order."""

    theta: FloatArray
    log_mass: FloatArray  # n log M(theta)
    log_mass_error: FloatArray
    weights: FloatArray  # (orders, atoms), the leftover atom at 0 last
    centred: FloatArray  # atoms minus the tilted mean
    mean: FloatArray  # tilted mean of S
    deviation: FloatArray  # tilted standard deviation of S
    reach: FloatArray  # largest distance of two atoms


def integrate(tilt: Tilt, reports: int, smoothing: float) -> tuple[FloatArray, FloatArray]:
    theta, deviation = tilt.theta, tilt.deviation
    # Where the lobe is short anyway, less smoothing costs nothing: take the least that still cuts before pi /
    # reach.
    scale = np.maximum(deviation, 0.5 / theta)
    tau = scale * np.clip(1.7 * tilt.reach / scale, min(0.001, smoothing), smoothing)
    period, alias = _period(tilt, reports)
    step = 2 * np.pi / period
    cut = _CUT / tau
    # |phi|^n <= exp(-2 u^2 deviation^2 / pi^2) while u * reach <= pi: beyond the lobe nothing needs
    # evaluating.
    lobe = _LOBE_CUT / np.maximum(deviation, 1e-300)
    short = np.pi / tilt.reach >= np.maximum(cut, lobe)
    last = np.ceil(np.where(short, np.minimum(lobe, cut), cut) / step).astype(np.int64)
    last = np.maximum(last, 1)
    upper_sum, lower_sum, round_off, left_out = _node_sums(tilt, reports, tau, step, last)
    end = last * step
    gain = np.exp(theta**2 * tau**2 / 2)
    beyond = np.where(short, np.maximum(end, np.pi / tilt.reach), end)
    # The first node beyond counts with its whole step.
    tail = gain * np.exp(-(beyond**2) * tau**2 / 2) * (1 / beyond**2 + tau**2) / np.pi
    tail *= 1 / (beyond * tau**2) + step
    rate = 2 * deviation**2 / np.pi**2
    skipped = gain * np.exp(-rate * end**2) * (1 / end**2 + tau**2) / (2 * rate * end) / np.pi
    truncation = tail + np.where(short, skipped, 0.0) + left_out * (1 + 1e-9)
    log_scale = tilt.log_mass - np.log(reports)
    error = tilt.log_mass_error + 8 * UNIT_ROUND_OFF * (np.abs(log_scale) + 8)
    log_scale_upper, log_scale_lower = log_scale + error, log_scale - error
    # When nobody reports a component, S = 0 exactly: there the smoothing added tau phi(0), which is known and
    # taken back.
    silent = np.exp(_log_all_leftover(tilt, reports)) * tau * (1 - 1e-9) / np.sqrt(2 * np.pi)
    upper = (
        np.exp(log_scale_upper)
        * (np.maximum(upper_sum - silent, 0) + round_off + truncation)
        * (1 + 8 * UNIT_ROUND_OFF)
    )
    lower = np.exp(log_scale_lower) * (lower_sum - round_off - truncation - alias) * (1 - 8 * UNIT_ROUND_OFF)
    return upper, np.clip(lower, 0.0, upper)


def _log_all_leftover(tilt: Tilt, reports: int) -> FloatArray:
    """`log` of a lower bound on the tilted probability that every report is a leftover one."""
    leftover = tilt.weights[:, -1]
    result: FloatArray = (
        reports * np.log(np.maximum(leftover, 1e-300)) * (1 + 8 * UNIT_ROUND_OFF) - 1e-10 - 1e-15 * reports
    )
    return result


def _period(tilt: Tilt, reports: int) -> tuple[FloatArray, FloatArray]:
    """A period and a bound on what its translates add to the trapezoid sum (needed by the lower bound
    only)."""
    theta, deviation = tilt.theta, tilt.deviation
    period = np.maximum(48.0 / theta, 13.0 * deviation + 2 * tilt.mean)
    target = 1e-7 / (theta * np.maximum(1.0, theta * deviation))
    alias = _alias(tilt, reports, period)
    for _ in range(6):
        loose = alias > target
        if not np.any(loose):
            break
        period = np.where(loose, period * 1.4, period)
        alias = _alias(tilt, reports, period)
    return period, alias


def _alias(tilt: Tilt, reports: int, period: FloatArray) -> FloatArray:
    theta = tilt.theta
    ratio = np.exp(-theta * period / 2)
    near = period / 2 * ratio / (1 - ratio) ** 2
    peak = 1 / (theta * _E)
    far = np.full_like(theta, np.inf)
    for rate_in_deviations in (1.0, 2.0, 3.5, 5.0, 7.0, 9.0, 13.0):
        rate = rate_in_deviations / np.maximum(tilt.deviation, 0.5 / theta)
        below = _log_moment(tilt, reports, -rate) - rate * period / 2
        above = _log_moment(tilt, reports, rate) - rate * period
        fade = -np.expm1(-rate * period / 2)
        far = np.minimum(far, peak * (np.exp(np.minimum(below, 0)) + np.exp(np.minimum(above, 0))) / fade)
    bound: FloatArray = near + far
    return bound


def _log_moment(tilt: Tilt, reports: int, rate: FloatArray) -> FloatArray:
    """`log E~[exp(rate S)]` under the tilted law."""
    exponents = rate[:, None] * tilt.centred
    sums = (tilt.weights * np.exp(np.minimum(exponents, _UNBOUNDED))).sum(axis=1)
    result = reports * np.log(np.maximum(sums, 1e-300)) + rate * tilt.mean
    # Beyond, a weight may have been lost to underflow: no bound.
    unbounded: FloatArray = np.where(exponents.max(axis=1) < _UNBOUNDED, result, np.inf)
    return unbounded


def _node_sums(
    tilt: Tilt, reports: int, tau: FloatArray, step: FloatArray, last: IndexArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Trapezoid sums for both kernels, a bound on their round-off, and one on the nodes that were left out,
    each of shape (orders,)."""
    sums = np.zeros((4, step.size))
    order = np.argsort(last)
    atoms = tilt.weights.shape[1]
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * (last[order[stop]] + 1) * atoms <= _BLOCK_ELEMENTS:
            stop += 1
        rows = order[start:stop]
        part = Tilt(*(column[rows] for column in tilt))
        kept, left_out = _worth_summing(part, reports, tau[rows], step[rows], last[rows])
        row, node = np.nonzero(kept)
        values = _integrand(part, reports, tau[rows], step[rows], (row, node))
        for which, value in enumerate(values):
            sums[which, rows] = np.bincount(row, weights=value, minlength=rows.size)
        sums[3, rows] = left_out
        start = stop
    return sums[0], sums[1], sums[2], sums[3]


def _worth_summing(
    tilt: Tilt, reports: int, tau: FloatArray, step: FloatArray, last: IndexArray
) -> tuple[BoolArray, FloatArray]:
    """Which nodes to evaluate, shape (orders, nodes), and a bound on what all others would contribute.

    Beyond its lobe a characteristic function is looked at here and there: between, its modulus changes by at
    most the mean distance of the atoms from their mean, times the distance on the line.
    """
    nodes = np.arange(int(last.max()) + 1)
    kept = nodes <= last[:, None]
    left_out = np.zeros_like(step)
    pace = step * (tilt.weights * np.abs(tilt.centred)).sum(axis=1)
    change = min(_CHANGE, 0.3 * np.sqrt(_NEGLIGIBLE / reports))
    # One cell at most: where next to nothing turns, the modulus hardly changes at all.
    width = int(min(2 * change / max(float(pace.max()), 1e-300), nodes.size))
    if nodes.size <= _FEW_NODES or width < _FEW_TO_SKIP:
        return kept, left_out
    first = np.arange(0, nodes.size, width)
    centre = step[:, None] * (first + (width - 1) / 2)
    row, cell = np.nonzero(np.ones((step.size, first.size), dtype=np.bool_))
    log_modulus, _ = _log_characteristic(tilt.weights[row], tilt.centred[row], centre[row, cell])
    reach = np.exp(log_modulus.reshape(centre.shape)) + (pace * width / 2)[:, None]
    begin, theta, smooth = step[:, None] * first, tilt.theta[:, None], tau[:, None]
    # 1e-9 is far more than the round-off of the modulus.
    exponent = reports * np.log(np.minimum(reach + 1e-9, 1.0)) + smooth**2 * (theta**2 - begin**2) / 2
    skipped = exponent < -_NEGLIGIBLE
    kernel = np.exp(np.minimum(exponent, 0.0)) * (1 / (theta**2 + begin**2) + smooth**2)
    left_out = (np.where(skipped, kernel, 0.0) * width).sum(axis=1) * step / np.pi
    return kept & ~np.repeat(skipped, width, axis=1)[:, : nodes.size], left_out


def _integrand(
    tilt: Tilt, reports: int, tau: FloatArray, step: FloatArray, at: tuple[IndexArray, IndexArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Terms of the trapezoid sums for both kernels, and bounds on their round-off, at nodes given by `(order,
    node)`."""
    row, node = at
    u, theta, smooth = step[row] * node, tilt.theta[row], tau[row]
    weights, centred = tilt.weights[row], tilt.centred[row]
    real, imaginary = _log_characteristic(weights, centred, u)
    absolute = (tilt.weights * np.abs(tilt.centred)).sum(axis=1)[row]
    spread = np.minimum((u * tilt.deviation[row]) ** 2 / reports, u * absolute)
    exponent = reports * real + smooth**2 * (theta**2 - u**2) / 2
    phase = reports * imaginary + u * tilt.mean[row] + smooth**2 * theta * u
    weight = np.where(node == 0, 1.0, 2.0) * np.exp(exponent) * (step[row] / (2 * np.pi))
    cosine = np.cos(phase)
    radius = theta**2 + u**2
    rotated = ((theta**2 - u**2) * cosine + 2 * theta * u * np.sin(phase)) / radius**2
    relative = 32 + 8 * reports * spread * np.exp(-real) + 4 * np.abs(phase) + 4 * np.abs(exponent)
    round_off = UNIT_ROUND_OFF * weight * relative * (1 / radius + smooth**2)
    return weight * rotated, weight * (rotated - smooth**2 * cosine), round_off


def _log_characteristic(
    weights: FloatArray, centred: FloatArray, u: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Real and imaginary part of `log E~[exp(i u (G - mean))]`, shape of `u`: one row of atoms for each u.

    Since the tilted mean of G - mean is 0, the imaginary part is summed as `sin v - v`, without its first
    order.
    """
    drop, turn = np.zeros_like(u), np.zeros_like(u)
    for atom in range(weights.shape[1]):
        v = u * centred[:, atom]
        weight = weights[:, atom]
        half_sine = np.sin(v / 2)
        sine_less = 2 * half_sine * np.cos(v / 2) - v
        small = np.abs(v) < 0.5
        sine_less[small] = sine_minus(v[small])
        drop += weight * (half_sine * half_sine)
        turn += weight * sine_less
    x = -2 * drop
    square = 2 * x + x * x + turn * turn  # modulus squared, minus 1
    near = square > -0.5
    modulus = np.maximum(np.hypot(1 + x, turn), _FLOOR)
    log_modulus = np.where(near, 0.5 * np.log1p(np.where(near, square, 0.0)), np.log(modulus))
    return log_modulus, np.arctan2(turn, 1 + x)
