"""Reports that decide: components so much is gained by that one report makes the sum of all gains positive,
whatever the others are.

Where a law has two scales, a few such components beside many small ones, what outcomes with a report of the
former add to `E[(S)_+]` is all but linear, hence known; the rest is a law of one scale. `docs/theory.md`,
"Deciding reports", has the proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accounting.gain_laws import Laws
from accounting.numerics import UNIT_ROUND_OFF, BoolArray, FloatArray

# How far above the deviation of the rest a deciding gain is, at least; and how many of them may be expected.
_DECIDES = 6.0
_FEW = 8.0
# Rates of the bound on what negative sums take off, in units of one over the least deciding gain.
_RATES = (3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
_E = float(np.e)


class Decided(NamedTuple):
    """What outcomes with a deciding report add to `E[(S)_+] / n`.

    Attributes:
        components: which of them decide, shape (orders, components).
        upper, lower: bounds on what these outcomes add, shape (orders,).
    """

    components: BoolArray
    upper: FloatArray
    lower: FloatArray


def decide(laws: Laws, reports: int, excess: FloatArray, theta: FloatArray, share: FloatArray) -> Decided:
    """Deciding components, where the bounds on what they add are within that share of each other; none
    elsewhere.

    Args:
        laws: laws of total mass 1.
        reports: number of honest reports, n.
        excess: orders minus one, shape (orders,).
        theta: tilts near the saddle points, shape (orders,); only the choice rests on them.
        share: widest distance of the bounds, in units of the lower one, shape (orders,).

    Guarantee: round-off included, for every choice of components.
    """
    components = np.zeros(laws.gains.shape, dtype=np.bool_)
    upper, lower = np.zeros_like(theta), np.zeros_like(theta)
    least = _least_deciding(laws, reports, theta)
    rows = np.flatnonzero(least < np.inf)
    if rows.size:
        some, least = laws.at(rows), least[rows]
        chosen = some.gains >= least[:, None]
        known, round_off = _linear(some, chosen, reports, excess[rows])
        more = known + round_off + _taken_off(some, chosen, reports, least)
        good = more - known + round_off <= share[rows] * (known - round_off)
        components[rows] = chosen & good[:, None]
        upper[rows], lower[rows] = np.where(good, more, 0.0), np.where(good, known - round_off, 0.0)
    return Decided(components, upper, lower)


def _least_deciding(laws: Laws, reports: int, theta: FloatArray) -> FloatArray:
    """The least gain that seems to decide, infinite where none does: the smallest one that is far above the
    tilted deviation of all smaller ones together."""
    masses, _, total, _ = laws.weighted(theta)
    masses *= reports / total[:, None]
    gains, found = laws.gains, np.full_like(theta, np.inf)
    # Where small gains alone vary too much, nothing decides; what does counts for as little as they here.
    limit = gains.max(axis=1) / _DECIDES
    small = (masses * np.minimum(np.abs(gains), limit[:, None]) ** 2).sum(axis=1)
    rows = np.flatnonzero(small <= (1 + _FEW) * limit**2)
    if rows.size:
        order = np.argsort(gains[rows], axis=1)
        gains, masses = (np.take_along_axis(one[rows], order, axis=1) for one in (gains, masses))
        squares = masses * gains * gains
        deviation = np.sqrt(np.cumsum(np.pad(squares[:, :-1], ((0, 0), (1, 0))), axis=1))
        above = (gains > _DECIDES * deviation) & (gains > 0)
        first = np.take_along_axis(gains, above.argmax(axis=1)[:, None], axis=1)[:, 0]
        found[rows] = np.where(above.any(axis=1), first, np.inf)
    return found


def _linear(laws: Laws, chosen: BoolArray, reports: int, excess: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`E[S; a chosen report] / n` and a bound on its round-off."""
    b = laws.taken / np.where(excess > 0, excess, 1.0)[:, None]
    terms = np.abs(laws.difference) + laws.taken + b
    own = np.where(chosen, laws.difference - laws.taken, 0.0).sum(axis=1)
    mass = np.minimum(np.where(chosen, laws.c, 0.0).sum(axis=1), 1 - 1e-16)
    others = -np.expm1((reports - 1) * np.log1p(-mass))
    size = np.where(chosen, terms, 0.0).sum(axis=1) + others * (1 + terms.sum(axis=1))
    return own + (laws.drift - own) * others, UNIT_ROUND_OFF * (64 + 4 * laws.c.shape[1]) * size


def _taken_off(laws: Laws, chosen: BoolArray, reports: int, least: FloatArray) -> FloatArray:
    """Bound on `E[(-S)_+; a chosen report] / n`: the union over users, each by Chernoff."""
    bound = np.full_like(least, np.inf)
    for multiple in _RATES:
        rate = multiple / least
        masses, _, total, top = laws.weighted(-rate)
        _, raised = laws.moved(masses / total[:, None], -rate)
        beyond = rate[:, None] * np.where(chosen, laws.gains - laws.doubt - least[:, None], 0.0)
        log_mass = np.log(total) + top
        exponent = (reports - 1) * (log_mass + raised + laws.unsure(log_mass)) - multiple
        exponent += 64 * UNIT_ROUND_OFF * reports * (1 + top)
        with np.errstate(over="ignore"):  # no bound, then
            single = np.where(chosen, laws.c * np.exp(-beyond), 0.0).sum(axis=1)
            bound = np.minimum(bound, single * np.exp(np.minimum(exponent, 700.0)) / (rate * _E))
    return np.asarray(bound * (1 + 1e-9) + 1e-300)
