"""The sum over users: `delta(eps) = E[(G_1 + ... + G_n)_+] / n` by contour quadrature, at a cost independent
of n.

With `z = theta + i u`, `theta > 0` and `M(z) = E[exp(z G)]`,

    E[(S_n)_+] = 1/(2 pi) * integral of M(z)^n / z^2 du.

The kink is smoothed once, at the end, by a Gaussian of deviation tau: `x Phi(x/tau) + tau phi(x/tau)` lies
above `x_+` and `x Phi(x/tau)` below it, and their transforms `exp(z^2 tau^2/2) / z^2` and `exp(z^2 tau^2/2)
(1/z^2 - tau^2)` decay, so a bounded number of nodes suffices. Every error is bounded: aliasing (it only
raises the upper bound), truncation, round-off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.contour import UNIT_ROUND_OFF, FloatArray, expm1_minus, increasing_root, sine_minus
from accounting.decomposition import Decomposition

BoolArray = npt.NDArray[np.bool_]

# Where the smoothing kernel is cut, in units of 1/tau; what is cut is part of the bounds.
_CUT = 5.2
# Where the tilted characteristic function is cut by its own bound, in tilted standard deviations.
_LOBE_CUT = 11.0
_BLOCK_ELEMENTS = 1 << 19
_UNBOUNDED = 500.0
_FLOOR = 1e-15  # of the modulus of a characteristic function, about its absolute round-off
# A report of a component is overwhelming when its tilted weight has fallen by this exponent.
_OVERWHELMING = 12.0
_MAXIMUM_PATTERNS = 8
_E = float(np.e)


class ProfileBounds(NamedTuple):
    """Certified bounds on hockey-stick divergences, each array of shape (orders,)."""

    upper: FloatArray
    lower: FloatArray


class _Tilt(NamedTuple):
    """Sums under the exponentially tilted law, one row for each order."""

    theta: FloatArray
    log_mass: FloatArray  # n log M(theta)
    log_mass_error: FloatArray
    weights: FloatArray  # (orders, atoms), the leftover atom at 0 last
    centred: FloatArray  # atoms minus the tilted mean
    mean: FloatArray  # tilted mean of S
    deviation: FloatArray  # tilted standard deviation of S
    reach: FloatArray  # largest distance of two atoms


def blanket_profile(
    decomposition: Decomposition, reports: int, excess: FloatArray, *, smoothing: float
) -> ProfileBounds:
    """Bounds on the hockey-stick divergence of order `1 + excess` of the blanket pair of `reports` users.

    Args:
        decomposition: the round's masses; components that other users never hide (`c = 0`) count in full.
        reports: number of honest shuffled reports, n.
        excess: orders minus one, `a - 1 >= 0`, shape (orders,).
        smoothing: deviation of the smoothing noise in units of the deviation of the tilted sum.

    Guarantee: `lower <= E[(sum G)_+]/n <= upper`, floating-point round-off included.
    Source: Su, Cheng, Wang, Theorem 4; quadrature and bounds: docs/theory.md.
    """
    law, bare = _split(decomposition, excess)
    # Values a - (1 + excess) b are rounded relative to their terms, not to their difference.
    rounding = 8 * UNIT_ROUND_OFF * (1 + excess) * np.where(bare > 0, 1.0, 0.0)
    upper, lower = bare + rounding, np.maximum(bare - rounding, 0.0)
    atoms = law.atoms(excess)
    alive = atoms.max(axis=1, initial=0.0) > 0
    if np.any(alive):
        above, below = _hidden_profile(law, reports, excess[alive], smoothing)
        upper[alive] += above
        lower[alive] += below
    return ProfileBounds(upper, lower)


def chernoff_log_profile(decomposition: Decomposition, reports: int, excess: FloatArray) -> FloatArray:
    """Logarithm of a crude upper bound on the same divergence: `min over theta of M^n / (theta e n)`, up to
    round-off."""
    law, bare = _split(decomposition, excess)
    atoms = law.atoms(excess)
    alive = atoms.max(axis=1, initial=0.0) > 0
    with np.errstate(divide="ignore"):
        result: FloatArray = np.log(bare)
    if np.any(alive):
        tilt = _tilt(law, reports, excess[alive], atoms[alive])
        result[alive] = np.logaddexp(result[alive], tilt.log_mass - np.log(tilt.theta * _E * reports))
    return result


class _Law(NamedTuple):
    """The law of G on the components that other users hide: masses, the leftover, and `sum(a - b)`.

    `dropped` is the mass of components left out: the law is then of total mass `1 - dropped`.
    """

    difference: FloatArray
    b: FloatArray
    c: FloatArray
    leftover: float
    imbalance: float
    dropped: float = 0.0

    def without(self, left_out: BoolArray) -> _Law:
        """The part of the law on the other components."""
        kept = ~left_out
        return _Law(
            self.difference[kept],
            self.b[kept],
            self.c[kept],
            self.leftover,
            self.imbalance - float(self.difference[left_out].sum()),
            self.dropped + float(self.c[left_out].sum()),
        )

    def atoms(self, excess: FloatArray) -> FloatArray:
        """Values of G, shape (orders, components): `(a - b - excess b) / c`."""
        values: FloatArray = (self.difference - excess[:, None] * self.b) / self.c
        return values


def _split(decomposition: Decomposition, excess: FloatArray) -> tuple[_Law, FloatArray]:
    """The law on hidden components, and what the others contribute: `sum of (a - (1 + excess) b)_+`, shape
    (orders,)."""
    hidden = decomposition.c > 0
    difference, b = decomposition.difference, decomposition.b
    bare = np.maximum(difference[~hidden] - excess[:, None] * b[~hidden], 0.0).sum(axis=1)
    # Without unhidden components a and b both sum to 1, and their difference to exactly 0.
    imbalance = 0.0 if np.all(hidden) else -float(difference[~hidden].sum())
    return _Law(
        difference[hidden], b[hidden], decomposition.c[hidden], decomposition.leftover, imbalance
    ), bare


def _hidden_profile(
    law: _Law, reports: int, excess: FloatArray, smoothing: float
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the divergence of the hidden components.

    Far out, single reports of some components outweigh whatever the others can gain. Outcomes with such a
    report are left out of the sum, which makes the law short again: a lower bound as it stands, an upper one
    with the bound of `_left_out`.
    """
    atoms = law.atoms(excess)
    tilt = _tilt(law, reports, excess, atoms)
    patterns, rows = np.unique(tilt.theta[:, None] * atoms < -_OVERWHELMING, axis=0, return_inverse=True)
    if len(patterns) > _MAXIMUM_PATTERNS:
        return _integrate(tilt, reports, smoothing)
    upper, lower = np.zeros_like(excess), np.zeros_like(excess)
    whole = np.zeros(len(excess), dtype=np.bool_)
    for number, left_out in enumerate(patterns):
        chosen = rows.ravel() == number
        if not np.any(left_out):
            whole |= chosen
            continue
        part = law.without(left_out)
        shorter = _tilt(part, reports, excess[chosen], part.atoms(excess[chosen]))
        above, below = _integrate(shorter, reports, smoothing)
        rest = _left_out(law, left_out, reports, excess[chosen], shorter.theta)
        upper[chosen], lower[chosen] = above + rest, below
        whole[chosen] = rest > 1e-6 * above
    if np.any(whole):
        part_of = _Tilt(*(column[whole] for column in tilt))
        upper[whole], lower[whole] = _integrate(part_of, reports, smoothing)
    lost = ~(np.isfinite(upper) & np.isfinite(lower))
    # Chernoff's bound; near order 1 the moment is above 1.
    moment = np.exp(np.minimum(tilt.log_mass + tilt.log_mass_error, 700.0))
    crude = np.minimum(moment / (tilt.theta * _E * reports), 1.0)
    return np.where(lost, np.nan_to_num(crude, nan=1.0, posinf=1.0), upper), np.where(lost, 0.0, lower)


def _left_out(
    law: _Law, left_out: BoolArray, reports: int, excess: FloatArray, theta: FloatArray
) -> FloatArray:
    """Bound on what outcomes with a report of a left out component add: the union over users, each by
    Chernoff."""
    atoms = law.atoms(excess)
    bound = np.full_like(excess, np.inf)
    for stretch in (1.0, 1.3, 1.7, 2.2, 3.0, 4.0):
        rate = stretch * theta
        exponents = rate[:, None] * atoms
        top = np.maximum(exponents.max(axis=1), 0.0)
        masses = law.c * np.exp(exponents - top[:, None])
        total = np.log(masses.sum(axis=1) + law.leftover * np.exp(-top)) + top
        with np.errstate(divide="ignore", over="ignore"):
            single = np.log((law.c * np.exp(exponents))[:, left_out].sum(axis=1))
            found = np.exp(np.minimum((reports - 1) * total + single, 700.0)) / (rate * _E)
        bound = np.minimum(bound, found)
    result: FloatArray = bound * (1 + 1e-9 + 64 * UNIT_ROUND_OFF * reports)
    return result


def _tilt(law: _Law, reports: int, excess: FloatArray, atoms: FloatArray) -> _Tilt:
    """Tilt every order's law of G to its saddle point `n K'(theta) = 2 / theta`."""
    c, leftover = law.c, law.leftover
    n = float(reports)

    def tilted(theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        exponents = theta[:, None] * atoms
        top = np.maximum(exponents.max(axis=1), 0.0)
        masses = c * np.exp(exponents - top[:, None])
        rest = leftover * np.exp(-top)
        return masses, rest, masses.sum(axis=1) + rest

    def slope(theta: FloatArray) -> FloatArray:
        masses, _, total = tilted(theta)
        result: FloatArray = n * (masses * atoms).sum(axis=1) / total * theta - 2.0
        return result

    theta = increasing_root(slope, 1.0 / np.sqrt(n * (c * atoms * atoms).sum(axis=1)))
    masses, rest, total = tilted(theta)
    weights = np.column_stack([masses, rest]) / total[:, None]
    values = np.column_stack([atoms, np.zeros(len(theta))])
    mean = (weights * values).sum(axis=1)
    centred = values - mean[:, None]
    variance = (weights * centred * centred).sum(axis=1)
    log_mass, log_mass_error = _log_mass(law, n, excess, atoms, theta)
    # What the rounding of G, relative to its terms, moves the sum by, under the tilted law.
    terms = (np.abs(law.difference) + excess[:, None] * law.b) / c
    log_mass_error += 8 * UNIT_ROUND_OFF * n * theta * (weights[:, :-1] * terms).sum(axis=1)
    return _Tilt(
        theta,
        log_mass,
        log_mass_error,
        weights,
        centred,
        n * mean,
        np.sqrt(n * variance),
        values.max(axis=1) - values.min(axis=1),
    )


def _log_mass(
    law: _Law, n: float, excess: FloatArray, atoms: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """`n log M(theta)` and a bound on its round-off; the linear terms are summed exactly, since n multiplies
    any error."""
    exponents = theta[:, None] * atoms
    curvature = (law.c * expm1_minus(np.minimum(exponents, 700.0))).sum(axis=1)
    linear = theta * (law.imbalance - excess * law.b.sum())
    log_mass = n * np.log1p(np.maximum(linear + curvature - law.dropped, -0.99))
    magnitude = (law.c * np.abs(np.expm1(np.minimum(exponents, 700.0)))).sum(axis=1)
    relative = UNIT_ROUND_OFF * (
        16 * (np.abs(linear) + curvature) + 8 * (magnitude + law.dropped) + 4 * law.c.size * theta
    )
    # At large tilts the sum is dominated by its largest terms: take the plain logarithm there.
    top = np.maximum(exponents.max(axis=1), 0.0)
    plain = top + np.log((law.c * np.exp(exponents - top[:, None])).sum(axis=1) + law.leftover * np.exp(-top))
    steep = (top > 30.0) | (plain < -0.5)
    steep_error = UNIT_ROUND_OFF * (16 * law.c.size + 4 * np.abs(exponents).max(axis=1) + 8 * np.exp(-plain))
    error = np.where(steep, steep_error, relative / np.exp(np.minimum(plain, 0)))
    return np.where(steep, n * plain, log_mass), n * error


def _integrate(tilt: _Tilt, reports: int, smoothing: float) -> tuple[FloatArray, FloatArray]:
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
    upper_sum, lower_sum, round_off = _node_sums(tilt, reports, tau, step, last)
    end = last * step
    gain = np.exp(theta**2 * tau**2 / 2)
    beyond = np.where(short, np.maximum(end, np.pi / tilt.reach), end)
    # The first node beyond counts with its whole step.
    tail = gain * np.exp(-(beyond**2) * tau**2 / 2) * (1 / beyond**2 + tau**2) / np.pi
    tail *= 1 / (beyond * tau**2) + step
    rate = 2 * deviation**2 / np.pi**2
    skipped = gain * np.exp(-rate * end**2) * (1 / end**2 + tau**2) / (2 * rate * end) / np.pi
    truncation = tail + np.where(short, skipped, 0.0)
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


def _log_all_leftover(tilt: _Tilt, reports: int) -> FloatArray:
    """`log` of a lower bound on the tilted probability that every report is a leftover one."""
    leftover = tilt.weights[:, -1]
    result: FloatArray = (
        reports * np.log(np.maximum(leftover, 1e-300)) * (1 + 8 * UNIT_ROUND_OFF) - 1e-10 - 1e-15 * reports
    )
    return result


def _period(tilt: _Tilt, reports: int) -> tuple[FloatArray, FloatArray]:
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


def _alias(tilt: _Tilt, reports: int, period: FloatArray) -> FloatArray:
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


def _log_moment(tilt: _Tilt, reports: int, rate: FloatArray) -> FloatArray:
    """`log E~[exp(rate S)]` under the tilted law."""
    exponents = rate[:, None] * tilt.centred
    sums = (tilt.weights * np.exp(np.minimum(exponents, _UNBOUNDED))).sum(axis=1)
    result = reports * np.log(np.maximum(sums, 1e-300)) + rate * tilt.mean
    # Beyond, a weight may have been lost to underflow: no bound.
    unbounded: FloatArray = np.where(exponents.max(axis=1) < _UNBOUNDED, result, np.inf)
    return unbounded


def _node_sums(
    tilt: _Tilt, reports: int, tau: FloatArray, step: FloatArray, last: np.ndarray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Trapezoid sums for both kernels and a bound on their round-off, each of shape (orders,)."""
    upper, lower, error = (np.zeros_like(step) for _ in range(3))
    order = np.argsort(last)
    atoms = tilt.weights.shape[1]
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * (last[order[stop]] + 1) * atoms <= _BLOCK_ELEMENTS:
            stop += 1
        rows = order[start:stop]
        start = stop
        nodes = np.arange(int(last[rows[-1]]) + 1)
        u = step[rows, None] * nodes
        real, imaginary = _log_characteristic(tilt.weights[rows], tilt.centred[rows], u)
        absolute = (tilt.weights[rows] * np.abs(tilt.centred[rows])).sum(axis=1)[:, None]
        spread = np.minimum((u * tilt.deviation[rows, None]) ** 2 / reports, u * absolute)
        theta, tau_rows = tilt.theta[rows, None], tau[rows, None]
        exponent = reports * real + tau_rows**2 * (theta**2 - u**2) / 2
        phase = reports * imaginary + u * tilt.mean[rows, None] + tau_rows**2 * theta * u
        weight = np.where(nodes == 0, 1.0, 2.0) * np.exp(exponent) * (step[rows, None] / (2 * np.pi))
        weight = np.where(nodes <= last[rows, None], weight, 0.0)
        cosine = np.cos(phase)
        radius = theta**2 + u**2
        rotated = ((theta**2 - u**2) * cosine + 2 * theta * u * np.sin(phase)) / radius**2
        upper[rows] = (weight * rotated).sum(axis=1)
        lower[rows] = (weight * (rotated - tau_rows**2 * cosine)).sum(axis=1)
        relative = 32 + 8 * reports * spread * np.exp(-real) + 4 * np.abs(phase) + 4 * np.abs(exponent)
        error[rows] = UNIT_ROUND_OFF * (weight * relative * (1 / radius + tau_rows**2)).sum(axis=1)
    return upper, lower, error


def _log_characteristic(
    weights: FloatArray, centred: FloatArray, u: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Real and imaginary part of `log E~[exp(i u (G - mean))]`, shape (orders, nodes).

    Since the tilted mean of G - mean is 0, the imaginary part is summed as `sin v - v`, without its first
    order.
    """
    drop, turn = np.zeros_like(u), np.zeros_like(u)
    for atom in range(weights.shape[1]):
        v = u * centred[:, atom, None]
        weight = weights[:, atom, None]
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
