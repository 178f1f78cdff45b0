"""Hockey-stick divergences of `N(mu, 1)` against `N(0, 1)`, with bounds on their round-off."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from shuffle_ledger.accounting.numeric.arrays import FloatArray

# Bound on the relative error of the normal distribution function at u, and of everything computed from its
# values in a few operations, in units of 1 + u^2. Measured: 3e-16.
_ROOM = 2.0**-48
_UNDERFLOW = 1e-300


class GaussianTangents(NamedTuple):
    """Lines below the divergence of a Gaussian pair: arrays of shape (orders,)."""

    value: FloatArray  # at most the divergence at the order
    slope_lower: FloatArray  # bounds on minus the slope there, in the order
    slope_upper: FloatArray


def gaussian_divergence(mu: float, loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds on the hockey-stick divergence of order `exp(loss)` of Gaussians `mu > 0` apart.

    Returns `(lower, upper)`, each of the shape of `loss`.

    Guarantee: round-off is included.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        here, there, value = _parts(mu, loss)
        room = _room(mu, loss, here, there)
        lower: FloatArray = np.maximum(value - room, 0.0)
    # What is not a number is where nothing is left of a mass, times something infinite.
    for part in (lower, value, room):
        part[np.isnan(part)] = 0.0
    upper: FloatArray = np.minimum(value + room + _UNDERFLOW, 1.0)
    return lower, upper


def gaussian_tangents(mu: float, loss: FloatArray) -> GaussianTangents:
    """Lines that touch the divergence of Gaussians `mu > 0` apart at the orders `exp(loss)`, or lie below
    it."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        here, there, value = _parts(mu, loss)
        room = _room(mu, loss, here, there)
        mass = scipy.special.ndtr(-mu / 2 - loss / mu)
        spread = _ROOM * (1 + (mu / 2 + loss / mu) ** 2) * mass
    return GaussianTangents(
        np.nan_to_num(np.maximum(value - room, 0.0)), np.maximum(mass - spread, 0.0), mass + spread
    )


def gaussian_order(divergence: float) -> float:
    """About the `mu` whose divergence of order 1 (the total variation distance) is `divergence`."""
    return float(2 * scipy.special.ndtri((1 + min(divergence, 1 - 1e-15)) / 2))


def gaussian_divergence_at(mu: float, loss: float) -> tuple[float, float, float]:
    """Bounds on the divergence of one order, and about how fast it falls as `loss` grows.

    Returns `(lower, upper, fall)`, for a `mu > 0`.

    Guarantee: as `gaussian_divergence`.
    """
    near, far = mu / 2 - loss / mu, mu / 2 + loss / mu
    here = float(scipy.special.ndtr(near))
    there = math.exp(min(loss + float(scipy.special.log_ndtr(-far)), 0.0))
    value = here - there
    room = _ROOM * ((1 + near * near) * here + (1 + far * far + abs(loss)) * there)
    if math.isnan(room):  # nothing is left of a mass, times something infinite
        room = 0.0
    return max(value - room, 0.0), min(value + room + _UNDERFLOW, 1.0), there


def _parts(mu: float, loss: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    here: FloatArray = scipy.special.ndtr(mu / 2 - loss / mu)
    # In logarithms: far out the order overflows before the mass it multiplies vanishes.
    there: FloatArray = np.exp(loss + scipy.special.log_ndtr(-mu / 2 - loss / mu))
    return here, there, here - there


def _room(mu: float, loss: FloatArray, here: FloatArray, there: FloatArray) -> FloatArray:
    near, far = mu / 2 - loss / mu, mu / 2 + loss / mu
    room: FloatArray = _ROOM * ((1 + near**2) * here + (1 + far**2 + np.abs(loss)) * there)
    return room
