"""Hockey-stick divergences of `N(mu, 1)` against `N(0, 1)`, with bounds on their round-off."""

from __future__ import annotations

import math
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np, scipy

# Bound on the relative error of the normal distribution function at u, and of a few operations with its
# values, in units of 1 + u^2. Measured: 3e-16.
_NORMAL_ERROR = 2.0**-48
_UNDERFLOW_ROOM = 1e-300  # added to upper bounds, for masses that underflow


class GaussianTangents(NamedTuple):
    """Lines below the divergence of a Gaussian pair: arrays of shape (orders,)."""

    value: FloatArray  # at most the divergence at the order
    slope_lower: FloatArray  # bounds on minus the slope there, in the order
    slope_upper: FloatArray


def gaussian_divergence(mu: float, loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns `(lower, upper)`: bounds on the hockey-stick divergence of order `exp(loss)` of unit Gaussians
    `mu > 0` apart, each of the shape of `loss`.

    Guarantee: round-off is included.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        value, room, _ = _parts(mu, loss)
        lower: FloatArray = np.maximum(value - room, 0.0)
    # NaN stands for a mass that underflowed, times an infinite factor: 0.
    for part in (lower, value, room):
        part[np.isnan(part)] = 0.0
    upper: FloatArray = np.minimum(value + room + _UNDERFLOW_ROOM, 1.0)
    return lower, upper


def gaussian_tangents(mu: float, loss: FloatArray) -> GaussianTangents:
    """Returns lines below the divergence of unit Gaussians `mu > 0` apart, as a function of the order, that
    touch it, up to round-off, at the orders `exp(loss)`."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        value, room, far = _parts(mu, loss)
        below: FloatArray = np.maximum(value - room, 0.0)
        mass = scipy.special.ndtr(-far)
        spread = _NORMAL_ERROR * (1 + far**2) * mass
    below[np.isnan(below)] = 0.0  # as in `gaussian_divergence`
    return GaussianTangents(below, np.maximum(mass - spread, 0.0), mass + spread)


def gaussian_growth(mu: float, loss: FloatArray) -> FloatArray:
    """Returns about the derivative of the divergence of unit Gaussians `mu > 0` apart in `mu**2`, at the
    orders `exp(loss)`."""
    density = np.exp(-((mu / 2 - loss / mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(density / (2 * mu))


def gaussian_order(divergence: float) -> float:
    """Returns about the `mu` whose divergence of order 1 (the total variation distance) is `divergence`."""
    return float(2 * scipy.special.ndtri((1 + min(divergence, 1 - 1e-15)) / 2))


def gaussian_divergence_at(mu: float, loss: float) -> tuple[float, float, float]:
    """Returns `(lower, upper, fall)` for one `mu > 0` and one loss: bounds as of `gaussian_divergence`, and
    about minus the derivative of the divergence in `loss`.

    Guarantee: as of `gaussian_divergence`.
    """
    near, far = mu / 2 - loss / mu, mu / 2 + loss / mu
    here = float(scipy.special.ndtr(near))
    there = math.exp(min(loss + float(scipy.special.log_ndtr(-far)), 0.0))
    value = here - there
    room = _NORMAL_ERROR * ((1 + near * near) * here + (1 + far * far + abs(loss)) * there)
    if math.isnan(room):  # a mass underflowed, times an infinite factor
        room = 0.0
    return max(value - room, 0.0), min(value + room + _UNDERFLOW_ROOM, 1.0), there


def _parts(mu: float, loss: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the divergence about, a bound on its round-off, and `mu / 2 + loss / mu`."""
    half, steps = mu / 2, loss / mu
    near, far = half - steps, half + steps
    here = scipy.special.ndtr(near)
    # In logarithms: far out the order overflows before the mass it multiplies vanishes.
    there = np.exp(loss + scipy.special.log_ndtr(-far))
    room = _NORMAL_ERROR * ((1 + near**2) * here + (1 + far**2 + np.abs(loss)) * there)
    return here - there, room, far
