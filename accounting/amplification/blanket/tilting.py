"""Sums of gains under exponentially tilted laws, `exp(theta G) / M(theta)` times the law of G, and the
logarithm of `M(theta)^n` with its round-off."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.gain_laws import Laws
from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    BoolArray,
    ComplexArray,
    FloatArray,
    IndexArray,
    expm1_minus,
    turned,
)
from shuffle_ledger.accounting.numeric.characteristic_functions import noise

#: How near the saddle point tilts are.
NEAR_SADDLE = 1.02
#: A report of a component is overwhelming when its tilted weight has fallen by this exponent.
OVERWHELMING = 12.0
#: The most smoothing of a sum that is small beside what is known.
MOST_SMOOTHING = 0.2
#: Logarithm of a mass under the tilt beside which the rounding of 1 may count.
SMALL_LOG_MASS = -0.5

_TINY, _UNLIKELY = 1e-300, 300.0
_UNBOUNDED = 500.0


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
    moved: FloatArray  # how far roundings of gains may move S, and the logarithm of the factor by which they
    raised: FloatArray  # may raise the mass; see `Laws.moved`
    peak: FloatArray  # about what the tilted ramp is on average, rather more: nothing rests on it

    @classmethod
    def of(cls, laws: Laws, reports: int, theta: FloatArray) -> Tilt:
        """Tilt every order's law of G."""
        n, gains = float(reports), laws.gains
        masses, rest, total, _ = laws.weighted(theta)
        weights = np.column_stack([masses, rest]) / total[:, None]
        values = np.column_stack([gains, np.zeros(len(theta))])
        mean = (weights * values).sum(axis=1)
        centred = values - mean[:, None]
        variance = (weights * centred * centred).sum(axis=1)
        log_mass, log_mass_error = _log_mass(laws, n, theta)
        gained = reports * np.maximum(laws.difference - laws.taken, 0.0).sum(axis=1)
        peak = np.minimum(1 / theta, gained * np.exp(-np.maximum(log_mass, -_UNLIKELY)))
        moved, raised = laws.moved(weights[:, :-1], theta)
        return cls(
            theta,
            log_mass,
            log_mass_error,
            weights,
            centred,
            n * mean,
            np.sqrt(n * variance),
            values.max(axis=1) - values.min(axis=1),
            n * moved,
            n * raised,
            np.maximum(peak, _TINY),
        )

    def at(self, orders: BoolArray | IndexArray) -> Tilt:
        """The laws at some of the orders."""
        columns: tuple[Any, ...] = tuple(column[orders] for column in self)
        return Tilt(*columns)


class Given(NamedTuple):
    """Reports besides the sum's, each certainly of some components, under the law tilted by theta; arrays of
    shape (orders,) but for two.

    Attributes:
        number: how many they are.
        log_mass: logarithm of the mass of their gains, tilted, and of the ways to choose them.
        log_mass_error: bound on its round-off.
        weights: tilted law of the gain of one, on the atoms that some order has, shape (orders, atoms).
        centred: atoms less its mean, shape (orders, atoms).
        mean, variance: of their gains together.
        moved, raised: as a tilt's, of these reports alone.
    """

    number: int
    log_mass: FloatArray
    log_mass_error: FloatArray
    weights: FloatArray
    centred: FloatArray
    mean: FloatArray
    variance: FloatArray
    moved: FloatArray
    raised: FloatArray

    @classmethod
    def of(cls, laws: Laws, chosen: BoolArray, reports: int, theta: FloatArray, *, number: int) -> Given:
        """So many of n reports, of the chosen components of laws, shape (orders, components)."""
        c, gains = (np.where(chosen, one, 0.0) for one in (laws.c, laws.gains))
        top = theta * gains.max(axis=1)
        masses = np.where(chosen, c * np.exp(theta[:, None] * gains - top[:, None]), 0.0)
        total = masses.sum(axis=1)
        weights = masses / total[:, None]
        moved, raised = laws.moved(weights, theta)
        some = np.flatnonzero(chosen.any(axis=0))
        weights, gains, chosen = weights[:, some], gains[:, some], chosen[:, some]
        mean = (weights * gains).sum(axis=1)
        centred = np.where(chosen, gains - mean[:, None], 0.0)
        ways = math.fsum(math.log((reports - one) / (one + 1)) for one in range(number))
        log_mass = ways + number * (top + np.log(total))
        error = UNIT_ROUND_OFF * (4 * c.shape[1] + 32 + 4 * math.log(reports) + 8 * (top + np.abs(log_mass)))
        return cls(
            number,
            log_mass,
            number * error,
            weights,
            centred,
            number * mean,
            number * (weights * centred * centred).sum(axis=1),
            number * moved,
            number * raised,
        )

    def at(self, orders: IndexArray) -> Given:
        """The same at some of the orders."""
        return Given(self.number, *(column[orders] for column in self[1:]))

    def factor(self, row: IndexArray, u: FloatArray, one: ComplexArray) -> tuple[ComplexArray, FloatArray]:
        """What these gains make of the characteristic function at frequencies u of the orders `row`, by what
        one of them, centred, makes: a factor of modulus at most 1, but for the bound on its round-off."""
        variance, absolute = self.variance / self.number, (self.weights * np.abs(self.centred)).sum(axis=1)
        doubt = noise(self.weights.shape[1], u, variance[row], absolute[row]) + 8 * UNIT_ROUND_OFF
        shift = u * self.mean[row]
        error = self.number * doubt + UNIT_ROUND_OFF * (48 + 8 * np.abs(shift))
        return one**self.number * turned(shift), error

    def log_moment(self, rate: FloatArray) -> FloatArray:
        """`log E~[exp(rate S)]` of their gains S together, or more."""
        exponents = rate[:, None] * self.centred
        terms = self.weights * np.exp(np.minimum(exponents, _UNBOUNDED))
        logarithm = self.number * np.log(terms.sum(axis=1)) + rate * self.mean
        rounding = 64 * UNIT_ROUND_OFF * (1 + np.abs(rate) * np.abs(self.mean) + self.number * _UNBOUNDED)
        return np.where(exponents.max(axis=1) > _UNBOUNDED, np.inf, logarithm + rounding)


def _log_mass(laws: Laws, n: float, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`n log M(theta)` and a bound on its round-off; the linear terms are summed exactly, since n multiplies
    any error."""
    exponents = theta[:, None] * laws.gains
    capped, size = np.minimum(exponents, 700.0), laws.c.shape[1]
    curvature, linear = (laws.c * expm1_minus(capped)).sum(axis=1), theta * laws.drift
    log_mass = n * np.log1p(np.maximum(linear + curvature - laws.dropped, -0.99))
    magnitude = (laws.c * np.abs(np.expm1(capped))).sum(axis=1)
    # Linear terms are those of gains that are not rounded, all others those of gains that are.
    rounded = theta * (np.abs(laws.difference) + laws.taken).sum(axis=1)
    relative = UNIT_ROUND_OFF * (
        16 * (np.abs(linear) + curvature) + 8 * (magnitude + laws.dropped + rounded) + 4 * size * theta
    )
    # At large tilts the sum is dominated by its largest terms: take the plain logarithm there.
    _, _, total, top = laws.weighted(theta)
    plain = top + np.log(total)
    steep = (top > 30.0) | (plain < -0.5)
    steep_error = UNIT_ROUND_OFF * (16 * size + 4 * np.abs(exponents).max(axis=1) + 8 * np.exp(-plain))
    error = np.where(steep, steep_error, relative / np.exp(np.minimum(plain, 0)))
    return np.where(steep, n * plain, log_mass), n * error
