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

from accounting.contour import UNIT_ROUND_OFF, FloatArray, expm1_minus, increasing_root
from accounting.decomposition import Decomposition
from accounting.quadrature import Tilt, integrate

BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.int64]

# A report of a component is overwhelming when its tilted weight has fallen by this exponent.
_OVERWHELMING = 12.0
_MAXIMUM_PATTERNS = 8
_E = float(np.e)


class ProfileBounds(NamedTuple):
    """Certified bounds on hockey-stick divergences, each array of shape (orders,)."""

    upper: FloatArray
    lower: FloatArray


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
    upper, lower = np.zeros_like(excess), np.zeros_like(excess)
    whole = np.ones(len(excess), dtype=np.bool_)
    for chosen, left_out in _overwhelming(tilt.theta, atoms):
        part = law.without(left_out)
        shorter = _tilt(part, reports, excess[chosen], part.atoms(excess[chosen]))
        above, below = integrate(shorter, reports, smoothing)
        rest = _left_out(law, left_out, reports, excess[chosen], shorter.theta)
        upper[chosen], lower[chosen] = above + rest, below
        whole[chosen] = rest > 1e-6 * above
    if np.any(whole):
        part_of = Tilt(*(column[whole] for column in tilt))
        upper[whole], lower[whole] = integrate(part_of, reports, smoothing)
    lost = ~(np.isfinite(upper) & np.isfinite(lower))
    # Chernoff's bound; near order 1 the moment is above 1.
    moment = np.exp(np.minimum(tilt.log_mass + tilt.log_mass_error, 700.0))
    crude = np.minimum(moment / (tilt.theta * _E * reports), 1.0)
    return np.where(lost, np.nan_to_num(crude, nan=1.0, posinf=1.0), upper), np.where(lost, 0.0, lower)


def _overwhelming(theta: FloatArray, atoms: FloatArray) -> list[tuple[IndexArray, BoolArray]]:
    """Groups of orders, with components whose single reports are overwhelming at every order of the group."""
    found = theta[:, None] * atoms < -_OVERWHELMING
    rows = np.flatnonzero(found.any(axis=1))
    if rows.size == 0:
        return []
    patterns, pattern = np.unique(found[rows], axis=0, return_inverse=True)
    groups = pattern.ravel()
    if len(patterns) > _MAXIMUM_PATTERNS:
        # Alike patterns together, as many as leave out about as much.
        size = patterns.sum(axis=1)
        groups = np.searchsorted(np.geomspace(1, size.max(), _MAXIMUM_PATTERNS), size)[groups]
    chosen = [rows[groups == group] for group in np.unique(groups)]
    return [(one, found[one].all(axis=0)) for one in chosen]


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


def _tilt(law: _Law, reports: int, excess: FloatArray, atoms: FloatArray) -> Tilt:
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
    return Tilt(
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
