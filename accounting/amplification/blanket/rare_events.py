"""Sums by how many reports have one of a few rare, large gains.

No tilt suits such gains and common losses at once: under the one that makes a sum near 0 likely most reports
have neither, and what is next to 0 is none of what counts. Given that k reports have such a gain, the others
are a law without it, with a tilt of its own; and few k are worth it. `docs/theory.md`, "Rare gains", has the
proofs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.contour import integrate
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Laws
from shuffle_ledger.accounting.amplification.blanket.tilting import (
    MOST_SMOOTHING,
    NEAR_SADDLE,
    OVERWHELMING,
    SMALL_LOG_MASS,
    Given,
    Tilt,
)
from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    BoolArray,
    FloatArray,
    IndexArray,
    increasing_root,
)

# Expected reports of rare gains at most, how far they are from 0 at least, in units of one over the tilt that
# suits all reports together, and how many of them are worth a sum of their own.
_RARE = 1.0
_FAR = 4.0
_MOST = 3
# What more of them may add, as a share.
_LITTLE = 1e-6
_TINY, _LARGEST = 1e-300, 700.0
_E = float(np.e)


class RareGains(NamedTuple):
    """Rare gains, and outcomes with so many reports of them.

    Attributes:
        components: which they are, shape (orders, components).
        most: numbers of reports that are worth a sum, from 1 on; 0 where gains are not rare, shape (orders,).
        theta: tilts that suit outcomes with 1, 2, ... reports of them, shape (orders, numbers).
        bounds: logarithms of upper bounds on what these add, and what those with so many or more do, shape
            (orders, numbers).
    """

    components: BoolArray
    most: IndexArray
    theta: FloatArray
    bounds: FloatArray

    @classmethod
    def of(cls, laws: Laws, components: BoolArray, reports: int, theta: FloatArray) -> RareGains:
        """These components, where they are rare under the laws.

        Args:
            laws: laws of gains.
            components: positive gains, some for each order, shape (orders, components).
            reports: number of reports.
            theta: tilts that suit all reports together, shape (orders,).
        """
        found = cls(
            components,
            np.zeros(theta.size, dtype=np.int64),
            *(np.zeros((theta.size, _MOST + 1)) for _ in range(2)),
        )
        expected = reports * np.where(components, laws.c, 0.0).sum(axis=1)
        others = laws.leftover + np.where(components, 0.0, laws.c).sum(axis=1)
        far = theta * laws.gains.max(axis=1) > _FAR
        rows = np.flatnonzero((expected <= _RARE) & (expected > 0) & (others > 0) & far)
        for number in range(1, min(_MOST + 1, reports) + 1):
            if not rows.size:
                break
            some, chosen = laws.at(rows), components[rows]
            tilt = _saddle(some, chosen, reports, number)
            bound = _chernoff(some, chosen, reports, number, tilt)
            found.theta[rows, number - 1], found.bounds[rows, number - 1] = tilt, bound
            if number > 1:
                little = bound <= found.bounds[rows, 0] + math.log(_LITTLE)
                found.most[rows[little]] = number - 1
                rows = rows[~little]
        return found

    def at(self, orders: IndexArray) -> RareGains:
        """The same at some of the orders."""
        columns: tuple[Any, ...] = tuple(column[orders] for column in self)
        return RareGains(*columns)

    def summed(
        self, laws: Laws, reports: int, *, smoothing: FloatArray, known: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds on `E[(S)_+; a report of a rare gain] / n`, shape (orders,), as close as the smoothing says
        beside what is known, where gains are rare."""
        every = np.arange(self.most.size)
        upper, lower = np.exp(np.minimum(self.bounds[every, self.most], _LARGEST)), np.zeros_like(known)
        for number in range(1, int(self.most.max()) + 1):
            rows = np.flatnonzero(self.most >= number)
            # A divergence is at most 1.
            part, bound = self.at(rows), np.exp(np.minimum(self.bounds[rows, number - 1], 0.0))
            wider = np.sqrt(1 + (known + lower)[rows] / np.maximum(bound, _TINY))
            closest = smoothing[rows]
            closest = np.maximum(np.minimum(closest * wider, MOST_SMOOTHING), closest)
            some, theta = laws.at(rows), part.theta[:, number - 1]
            above, below = _given(some, part.components, reports, number, theta=theta, smoothing=closest)
            upper[rows] += np.fmin(above, bound * (1 + 1e-12))
            lower[rows] += below
        return upper, lower


def _given(
    laws: Laws,
    chosen: BoolArray,
    reports: int,
    number: int,
    *,
    theta: FloatArray,
    smoothing: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Bounds on `E[(S)_+] / n` of outcomes with exactly so many reports of the chosen components."""
    others, law = reports - number, laws.without(chosen)
    masses, _, total, top = law.weighted(theta)
    # Far losses that hardly any report has, tilted, are left out: each outcome with one, by Chernoff.
    expected = others * masses / total[:, None]
    far = np.where(theta[:, None] * law.gains < -OVERWHELMING, expected, np.inf)
    order = np.argsort(far, axis=1)
    together = np.cumsum(np.take_along_axis(far, order, axis=1), axis=1)
    left_out = np.zeros_like(chosen)
    np.put_along_axis(left_out, order, together <= _LITTLE, axis=1)
    short = law.without(left_out)
    _, raised = law.moved(masses / total[:, None], theta)
    given = Given.of(laws, chosen, reports, theta, number=number)
    tilt = Tilt.of(short, others, theta)
    given = given._replace(log_mass=given.log_mass + math.log(others / reports))
    tilt = tilt._replace(peak=1 / theta)
    nothing = np.zeros_like(theta)
    above, below = integrate(tilt, others, smoothing, (nothing, nothing), given)
    unknown = ~(np.isfinite(above) & np.isfinite(below))
    # What is left over may be known no better than 1 is, which counts where the mass under the tilt is small.
    least, slack = tilt.log_mass / others, others * law.unsure(np.log(total) + top)
    slack += others * short.unsure(least)
    crude = given.log_mass + given.log_mass_error + given.raised - np.log(theta * _E)
    whole = crude + tilt.log_mass + tilt.log_mass_error + tilt.raised - math.log(others)
    with np.errstate(over="ignore"):
        doubt = np.exp(np.minimum(whole, _LARGEST)) * np.expm1(np.minimum(slack, _LARGEST))
    doubt = np.where(least < SMALL_LOG_MASS, doubt, 0.0)
    exponent = (others - 1) * (np.log(total) + top) + top + crude + others * raised + slack
    lost = np.where(left_out, masses * np.exp(np.minimum(theta[:, None] * law.doubt, _LARGEST)), 0.0)
    exponent += np.log(np.maximum(lost.sum(axis=1), _TINY)) + 64 * UNIT_ROUND_OFF * reports * (1 + top)
    above += np.exp(np.clip(exponent, -_LARGEST, _LARGEST)) * (1 + 1e-9) + doubt
    below = np.maximum(below - doubt, 0.0)
    return np.where(unknown, np.inf, above), np.where(unknown, 0.0, below)


def _saddle(laws: Laws, chosen: BoolArray, reports: int, number: int) -> FloatArray:
    """Tilts near the saddle points of the moments of outcomes with so many reports of the chosen ones."""
    # Most components are not chosen at any order.
    some = np.flatnonzero(chosen.any(axis=0))
    given, c = np.where(chosen, laws.gains, 0.0)[:, some], np.where(chosen, laws.c, 0.0)[:, some]
    highest = given.max(axis=1)

    def slope(theta: FloatArray, rows: IndexArray) -> FloatArray:
        part, own_gains = laws.some(rows), given[rows]
        masses, _, total, _ = part.weighted(theta)
        own = c[rows] * np.exp(theta[:, None] * (own_gains - highest[rows, None]))
        mean = (reports - number) * (masses * part.gains).sum(axis=1) / total
        mean += number * (own * own_gains).sum(axis=1) / own.sum(axis=1)
        return np.asarray(theta * mean - 2.0)

    return increasing_root(slope, 2 / (number * highest), closeness=NEAR_SADDLE)


def _chernoff(laws: Laws, chosen: BoolArray, reports: int, number: int, theta: FloatArray) -> FloatArray:
    """Logarithms of upper bounds on `E[(S)_+] / n`, of outcomes with so many reports of the chosen ones or
    more: the union over users, each by Chernoff."""
    masses, _, total, top = laws.weighted(theta)
    given = Given.of(laws, chosen, reports, theta, number=number)
    _, raised = laws.moved(masses / total[:, None], theta)
    exponent, log_mass = given.log_mass + given.log_mass_error + given.raised, np.log(total) + top
    if number < reports:
        exponent += (reports - number) * (log_mass + raised + laws.unsure(log_mass))
    exponent += 64 * UNIT_ROUND_OFF * reports * (1 + top)
    return np.asarray(exponent - np.log(theta * _E * reports) + 1e-9)
