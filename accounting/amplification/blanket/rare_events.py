"""Sums over users split by the number k of reports that have one of a few rare, large gains.

No single tilt suits rare large gains and common losses: under the tilt that makes a sum near 0 likely, the
outcomes near 0 are not those that contribute. Given that k reports have a rare gain, the other reports follow
the law without these gains, which has another tilt. Only a few values of k matter; the rest is bounded.
The proofs are in docs/theory/contour.md, C14.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from shuffle_ledger.accounting.amplification.blanket.contour import integrate
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Laws
from shuffle_ledger.accounting.amplification.blanket.tilting import (
    MOST_SMOOTHING,
    OVERWHELMING,
    SMALL_LOG_MASS,
    Given,
    Tilt,
)
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    TINY,
    UNIT_ROUND_OFF,
    BoolArray,
    FloatArray,
    IndexArray,
    increasing_root,
)
from shuffle_ledger.accounting.numeric.later import np

# The bounds hold for every value of these constants; the tests change them.

#: Gains are summed apart if at most this many reports of them are expected, and if the largest one is at
#: least this large in units of 1/theta, theta the tilt that suits all reports together. A smaller number, or
#: a larger gain: fewer sums, wider bounds.
MOST_EXPECTED = 1.0
LEAST_TILTED_GAIN = 4.0
#: Numbers k of such reports that are summed, from 1 on; more are bounded by Chernoff. More: closer bounds.
MOST_SUMMED = 3
#: Share of the bound for k = 1 below which a number k is bounded, not summed; and expected number of reports
#: of far losses that are left out of a sum. Larger: fewer and shorter sums, wider bounds.
UNSUMMED_SHARE = 1e-6
# Tilts for outcomes with such reports are within this factor of the saddle point. Nearer: slower search,
# slightly fewer nodes.
_NEAR_SADDLE = 1.02


class RareGains(NamedTuple):
    """Rare gains, and outcomes with 1, 2, ... reports of them.

    Attributes:
        components: which components have rare gains, shape (orders, components).
        most: the largest number of such reports that is summed; 0 where gains are not rare, shape (orders,).
        theta: tilts that suit outcomes with 1, 2, ... such reports, shape (orders, numbers).
        bounds: logarithms of upper bounds on what outcomes with at least 1, 2, ... such reports add, shape
            (orders, numbers).
    """

    components: BoolArray
    most: IndexArray
    theta: FloatArray
    bounds: FloatArray

    @classmethod
    def of(cls, laws: Laws, components: BoolArray, reports: int, theta: FloatArray) -> RareGains:
        """Decides at which orders these components are rare, and bounds what they add.

        Args:
            laws: laws of gains.
            components: positive gains, some for each order, shape (orders, components).
            reports: number of reports.
            theta: tilts that suit all reports together, shape (orders,).
        """
        found = cls(
            components,
            np.zeros(theta.size, dtype=np.int64),
            *(np.zeros((theta.size, MOST_SUMMED + 1)) for _ in range(2)),
        )
        expected = reports * np.where(components, laws.c, 0.0).sum(axis=1)
        others = laws.leftover + np.where(components, 0.0, laws.c).sum(axis=1)
        far = theta * laws.gains.max(axis=1) > LEAST_TILTED_GAIN
        rows = np.flatnonzero((expected <= MOST_EXPECTED) & (expected > 0) & (others > 0) & far)
        for number in range(1, min(MOST_SUMMED + 1, reports) + 1):
            if not rows.size:
                break
            some, chosen = laws.at(rows), components[rows]
            tilt = _saddle(some, chosen, reports, number)
            bound = _chernoff(some, chosen, reports, number, tilt)
            found.theta[rows, number - 1], found.bounds[rows, number - 1] = tilt, bound
            if number > 1:
                little = bound <= found.bounds[rows, 0] + math.log(UNSUMMED_SHARE)
                found.most[rows[little]] = number - 1
                rows = rows[~little]
        return found

    def at(self, orders: IndexArray) -> RareGains:
        """Returns the same at some of the orders."""
        columns: tuple[Any, ...] = tuple(column[orders] for column in self)
        return RareGains(*columns)

    def summed(
        self, laws: Laws, reports: int, *, smoothing: FloatArray, known: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Returns upper and lower bounds on `E[(S)_+; some report has a rare gain] / n`, shape (orders,),
        where gains are rare.

        Args:
            known: lower bounds on the rest of the divergence: where it is larger, less precision is enough.
        """
        every = np.arange(self.most.size)
        upper, lower = (
            np.exp(np.minimum(self.bounds[every, self.most], LARGEST_EXPONENT)),
            np.zeros_like(known),
        )
        for number in range(1, int(self.most.max()) + 1):
            rows = np.flatnonzero(self.most >= number)
            # A divergence is at most 1.
            part, bound = self.at(rows), np.exp(np.minimum(self.bounds[rows, number - 1], 0.0))
            wider = np.sqrt(1 + (known + lower)[rows] / np.maximum(bound, TINY))
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
    """Returns upper and lower bounds on `E[(S)_+; exactly `number` reports of the chosen components] / n`,
    shape (orders,)."""
    others, law = reports - number, laws.without(chosen)
    masses, _, total, top = law.weighted(theta)
    # Far losses that are improbable under the tilt are left out: Chernoff bounds the outcomes with one.
    expected = others * masses / total[:, None]
    far = np.where(theta[:, None] * law.gains < -OVERWHELMING, expected, np.inf)
    order = np.argsort(far, axis=1)
    together = np.cumsum(np.take_along_axis(far, order, axis=1), axis=1)
    left_out = np.zeros_like(chosen)
    np.put_along_axis(left_out, order, together <= UNSUMMED_SHARE, axis=1)
    short = law.without(left_out)
    _, raised = law.moved(masses / total[:, None], theta)
    given = Given.of(laws, chosen, reports, theta, number=number)
    tilt = Tilt.of(short, others, theta)
    given = given._replace(log_mass=given.log_mass + math.log(others / reports))
    tilt = tilt._replace(peak=1 / theta)
    nothing = np.zeros_like(theta)
    above, below = integrate(tilt, others, smoothing, (nothing, nothing), given)
    unknown = ~(np.isfinite(above) & np.isfinite(below))
    # The leftover mass may have the absolute round-off of 1, which matters if the mass under the tilt is
    # small.
    least, slack = tilt.log_mass / others, others * law.unsure(np.log(total) + top)
    slack += others * short.unsure(least)
    crude = given.log_mass + given.log_mass_error + given.raised - np.log(theta * math.e)
    whole = crude + tilt.log_mass + tilt.log_mass_error + tilt.raised - math.log(others)
    with np.errstate(over="ignore"):
        doubt = np.exp(np.minimum(whole, LARGEST_EXPONENT)) * np.expm1(np.minimum(slack, LARGEST_EXPONENT))
    doubt = np.where(least < SMALL_LOG_MASS, doubt, 0.0)
    exponent = (others - 1) * (np.log(total) + top) + top + crude + others * raised + slack
    lost = np.where(left_out, masses * np.exp(np.minimum(theta[:, None] * law.doubt, LARGEST_EXPONENT)), 0.0)
    exponent += np.log(np.maximum(lost.sum(axis=1), TINY)) + 64 * UNIT_ROUND_OFF * reports * (1 + top)
    above += np.exp(np.clip(exponent, -LARGEST_EXPONENT, LARGEST_EXPONENT)) * (1 + 1e-9) + doubt
    below = np.maximum(below - doubt, 0.0)
    return np.where(unknown, np.inf, above), np.where(unknown, 0.0, below)


def _saddle(laws: Laws, chosen: BoolArray, reports: int, number: int) -> FloatArray:
    """Returns tilts near the saddle points of the moments, given `number` reports of the chosen
    components."""
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

    return increasing_root(slope, 2 / (number * highest), closeness=_NEAR_SADDLE)


def _chernoff(laws: Laws, chosen: BoolArray, reports: int, number: int, theta: FloatArray) -> FloatArray:
    """Returns logarithms of upper bounds on `E[(S)_+; at least `number` reports of the chosen components] /
    n`: the union bound over users, with Chernoff's bound for each.

    Guarantee: round-off included.
    """
    masses, _, total, top = laws.weighted(theta)
    given = Given.of(laws, chosen, reports, theta, number=number)
    _, raised = laws.moved(masses / total[:, None], theta)
    exponent, log_mass = given.log_mass + given.log_mass_error + given.raised, np.log(total) + top
    if number < reports:
        exponent += (reports - number) * (log_mass + raised + laws.unsure(log_mass))
    exponent += 64 * UNIT_ROUND_OFF * reports * (1 + top)
    return np.asarray(exponent - np.log(theta * math.e * reports) + 1e-9)
