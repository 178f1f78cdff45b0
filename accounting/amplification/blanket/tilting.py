"""Sums of gains under exponential tilting: the tilted law is `exp(theta G) / M(theta)` times the law of G.
Also `log M(theta)^n`, with a bound on its round-off."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from shuffle_ledger.accounting.amplification.blanket.gain_laws import Laws
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    TINY,
    UNIT_ROUND_OFF,
    BoolArray,
    ComplexArray,
    FloatArray,
    IndexArray,
    chosen_rows,
    expm1_minus,
    turned,
)
from shuffle_ledger.accounting.numeric.characteristic_functions import noise
from shuffle_ledger.accounting.numeric.later import np

#: A loss is overwhelming if its tilt factor `exp(theta G)` is below `exp(-this)`. Smaller: shorter sums, more
#: of them repeated with the whole law. The bounds hold for every value; the tests change it.
OVERWHELMING = 12.0
#: Largest smoothing of a sum that is small beside what is already known.
MOST_SMOOTHING = 0.2
#: Logarithm of a mass under the tilt below which the round-off of 1 is included in bounds.
SMALL_LOG_MASS = -0.5
#: Largest exponent of a moment's terms: beyond it the moment counts as infinite.
MOMENT_EXPONENT = 500.0

# Clip of `-n log M(theta)` in the estimate of `peak`; nothing depends on it but tightness.
_LARGEST_PEAK_EXPONENT = 300.0


class Tilt(NamedTuple):
    """Sums under the exponentially tilted law, one row for each order.

    Source: docs/theory/contour.md, C7.
    """

    theta: FloatArray
    log_mass: FloatArray  # n log M(theta)
    log_mass_error: FloatArray
    weights: FloatArray  # (orders, atoms), the leftover atom at 0 last
    centred: FloatArray  # atoms minus the tilted mean
    mean: FloatArray  # tilted mean of S
    deviation: FloatArray  # tilted standard deviation of S
    reach: FloatArray  # largest distance of two atoms
    moved: FloatArray  # bound on how far round-off of gains moves S, and on the logarithm of the factor by
    raised: FloatArray  # which it raises the mass; see `Laws.moved`
    peak: FloatArray  # estimate, rather too large, of the tilted ramp's mean; only tightness depends on it

    @classmethod
    def of(cls, laws: Laws, reports: int, theta: FloatArray) -> Tilt:
        """Tilts every order's law of G by `theta`, shape (orders,)."""
        n, gains = float(reports), laws.gains
        masses, rest, total, _ = laws.weighted(theta)
        weights = np.column_stack([masses, rest]) / total[:, None]
        values = np.column_stack([gains, np.zeros(len(theta))])
        mean = (weights * values).sum(axis=1)
        centred = values - mean[:, None]
        variance = (weights * centred * centred).sum(axis=1)
        mass, mass_error = log_mass(laws, n, theta)
        gained = reports * np.maximum(laws.difference - laws.taken, 0.0).sum(axis=1)
        peak = np.minimum(1 / theta, gained * np.exp(-np.maximum(mass, -_LARGEST_PEAK_EXPONENT)))
        moved, raised = laws.moved(weights[:, :-1], theta)
        return cls(
            theta,
            mass,
            mass_error,
            weights,
            centred,
            n * mean,
            np.sqrt(n * variance),
            values.max(axis=1) - values.min(axis=1),
            n * moved,
            n * raised,
            np.maximum(peak, TINY),
        )

    def at(self, orders: BoolArray | IndexArray) -> Tilt:
        """Returns the laws at some of the orders."""
        columns: tuple[Any, ...] = tuple(chosen_rows(column, orders) for column in self)
        return Tilt(*columns)


class Given(NamedTuple):
    """Reports besides the sum's, each known to fall in some chosen components, under the law tilted by theta;
    arrays of shape (orders,) but for two.

    Attributes:
        number: how many they are.
        log_mass: logarithm of the mass of their gains, tilted, and of the ways to choose them.
        log_mass_error: bound on its round-off.
        weights: tilted law of the gain of one, on the atoms that some order has, shape (orders, atoms).
        centred: atoms less its mean, shape (orders, atoms).
        mean, variance: of their gains together.
        moved, raised: as in `Tilt`, of these reports alone.
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
        """Describes `number` of n reports, all of the chosen components, shape (orders, components)."""
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
        """Returns the same at some of the orders."""
        return Given(self.number, *(chosen_rows(column, orders) for column in self[1:]))

    def factor(self, row: IndexArray, u: FloatArray, one: ComplexArray) -> tuple[ComplexArray, FloatArray]:
        """Returns the characteristic function of the given reports' total gain, and a bound on its round-off,
        shape (nodes,).

        Args:
            row, u: the order and the frequency of each node, shape (nodes,).
            one: the characteristic function of one of the gains, centred, shape (nodes,).
        """
        variance, absolute = self.variance / self.number, (self.weights * np.abs(self.centred)).sum(axis=1)
        doubt = noise(self.weights.shape[1], u, variance[row], absolute[row]) + 8 * UNIT_ROUND_OFF
        shift = u * self.mean[row]
        error = self.number * doubt + UNIT_ROUND_OFF * (48 + 8 * np.abs(shift))
        return one**self.number * turned(shift), error

    def log_moment(self, rate: FloatArray) -> FloatArray:
        """Returns upper bounds on `log E~[exp(rate S)]`, S their total gain, shape (orders,)."""
        exponents = rate[:, None] * self.centred
        terms = self.weights * np.exp(np.minimum(exponents, MOMENT_EXPONENT))
        logarithm = self.number * np.log(terms.sum(axis=1)) + rate * self.mean
        rounding = (
            64 * UNIT_ROUND_OFF * (1 + np.abs(rate) * np.abs(self.mean) + self.number * MOMENT_EXPONENT)
        )
        return np.where(exponents.max(axis=1) > MOMENT_EXPONENT, np.inf, logarithm + rounding)


def log_mass(laws: Laws, n: float, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns `n log M(theta)` and a bound on its round-off, each of shape (orders,). The linear terms are
    summed without round-off in the gains, since n multiplies any error."""
    exponents = theta[:, None] * laws.gains
    capped, size = np.minimum(exponents, LARGEST_EXPONENT), laws.c.shape[1]
    curvature, linear = (laws.c * expm1_minus(capped)).sum(axis=1), theta * laws.drift
    near = n * np.log1p(np.maximum(linear + curvature - laws.dropped, -0.99))
    magnitude = (laws.c * np.abs(np.expm1(capped))).sum(axis=1)
    # The linear terms use exact gains; all other terms use rounded ones.
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
    return np.where(steep, n * plain, near), n * error
