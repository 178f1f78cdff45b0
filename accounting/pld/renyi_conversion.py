"""Conversion of bounds on Renyi divergences into the largest hockey-stick divergence that they allow."""

from __future__ import annotations

import math
from typing import NamedTuple

from shuffle_ledger.accounting.numeric.arrays import UNDERFLOW, UNIT_ROUND_OFF, BoolArray, FloatArray
from shuffle_ledger.accounting.numeric.convex_minorants import corners
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Half-planes for each order: first spread over all probabilities down to the smallest one (below every
# answered delta), then between those that touch the profile. If there are few orders, each has more
# half-planes: all orders together have at least the third number. More: a smaller profile, more work.
_FIRST_TANGENTS, _TANGENTS, _ALL_TANGENTS = 224, 32, 4096
_SMALLEST_PROBABILITY = 1e-52
# Orders (minus one, in units of one over the root of the slope) that represent all orders of a linear curve.
# Neighbours are 3 % apart; the profile is at most 0.1 % above that of all orders.
_CURVE_ORDERS = 288
_LOWEST_ORDER, _HIGHEST_ORDER = 3e-3, 16.0
_NEWTON_STEPS = 40
_LARGEST_LOSS = 130.0  # nats; larger losses count as infinite
_ROUND_OFF = 16 * UNIT_ROUND_OFF


class ConvertedProfile(NamedTuple):
    """A privacy profile that is linear in the order between knots, and constant beyond the last knot.

    Attributes:
        excess: orders minus one, ascending from 0, shape (knots,).
        heights: hockey-stick divergences there, falling and convex, shape (knots,).
    """

    excess: FloatArray
    heights: FloatArray

    def bounds(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on the profile at the orders `1 + excess`, for `excess >= 0`, with round-off
        included."""
        left = np.clip(np.searchsorted(self.excess, excess, side="right") - 1, 0, self.excess.size - 2)
        x0, x1, h0, h1 = self.excess[left], self.excess[left + 1], self.heights[left], self.heights[left + 1]
        at = np.minimum(excess, x1)
        value = ((x1 - at) * h0 + (at - x0) * h1) / (x1 - x0)
        doubt = _ROUND_OFF * (value + at / (x1 - x0) * (h0 - h1)) + UNDERFLOW
        return ProfileBounds(np.minimum(value + doubt, 1.0), np.maximum(value - doubt, 0.0))


def linear_curve(rho: float) -> tuple[FloatArray, FloatArray]:
    """Returns the orders that represent a linear curve of slope `rho > 0`, and the Renyi divergences `rho *
    order` there, rounded up."""
    orders = 1 + np.geomspace(_LOWEST_ORDER, _HIGHEST_ORDER, _CURVE_ORDERS) / math.sqrt(rho)
    return orders, rho * orders * (1 + 2 * UNIT_ROUND_OFF)


def profile_of_renyi_bounds(orders: FloatArray, divergences: FloatArray) -> ConvertedProfile:
    """Returns the largest privacy profile of pairs whose Renyi divergences are bounded in both directions.

    Args:
        orders: above 1, shape (orders,).
        divergences: upper bounds on the Renyi divergences of these orders, in nats, above 0, shape (orders,).

    Guarantee: no pair within the bounds has a larger hockey-stick divergence at any order of at least 1. It
    is the
        smallest such profile, up to the finite number of half-planes and the chords between them.
    Source: docs/theory/pld.md, P10; the region of probabilities of one
        event is that of Asoodeh, Liao, Calmon, Kosut, Sankar, "Three Variants of Differential Privacy".
    """
    scale = np.sqrt(2 * divergences / orders)
    tangents = max(_FIRST_TANGENTS, _ALL_TANGENTS // orders.size)
    v = np.geomspace(_SMALLEST_PROBABILITY, 4 * scale + 2 * scale**2, tangents, axis=1)
    first = _half_planes(orders, divergences, v)
    profile, touching = _smallest_profile(*first)
    # More half-planes near those that touch the profile, at the same orders.
    which, place = np.nonzero(touching.reshape(v.shape))
    chosen = np.unique(which)
    if chosen.size == 0:  # the divergences exclude nothing
        return profile
    least = np.full(orders.size, tangents)
    most = np.zeros(orders.size, dtype=np.int64)
    np.minimum.at(least, which, place)
    np.maximum.at(most, which, place)
    low = v[chosen, np.maximum(least[chosen] - 1, 0)]
    high = v[chosen, np.minimum(most[chosen] + 1, tangents - 1)]
    finer = np.geomspace(low, high, max(_TANGENTS, _ALL_TANGENTS // chosen.size), axis=1)
    more = _half_planes(orders[chosen], divergences[chosen], finer)
    return _smallest_profile(*(np.concatenate(both) for both in zip(first, more, strict=True)))[0]


def _smallest_profile(excess: FloatArray, heights: FloatArray) -> tuple[ConvertedProfile, BoolArray]:
    """Returns the largest convex profile within half-planes, and which of them it touches, shape of
    `excess`."""
    number = np.arange(excess.size)
    # The mirror image of an order below 1.
    below = excess < 0
    mirrored = -excess[below] / (1 + excess[below])
    raised = (heights[below] + excess[below]) / (1 + excess[below])
    number = np.concatenate([[-1], number[~below], number[below]])
    touching = np.zeros(excess.size, dtype=np.bool_)
    excess = np.concatenate([[0.0], excess[~below], mirrored])
    heights = np.concatenate([[1.0], heights[~below], np.maximum(raised, 0.0) + _ROUND_OFF])
    useful = (excess <= math.expm1(_LARGEST_LOSS)) & (heights <= 1)
    order = np.lexsort((heights[useful], excess[useful]))
    excess, heights, number = excess[useful][order], heights[useful][order], number[useful][order]
    # A profile falls; at equal orders the smallest height comes first.
    heights = np.minimum.accumulate(heights)
    first = np.append(True, np.diff(excess) > 0)
    excess, heights, number = excess[first], heights[first], number[first]
    # A profile is convex from its mirror image below order 1 on: at order 1 it is below the chord from any
    # point's image to the point.
    heights[0] = min(heights[0], float(np.min((excess + 2 * heights) / (2 + excess))) * (1 + _ROUND_OFF))
    kept = corners(excess, heights)
    touching[number[kept[number[kept] >= 0]]] = True
    if kept.size < 2:  # a falling profile without further bounds
        excess, heights, kept = np.array([0.0, 1.0]), np.full(2, heights[0]), np.arange(2)
    return ConvertedProfile(excess[kept], np.minimum(heights[kept] * (1 + _ROUND_OFF), 1.0)), touching


def _half_planes(orders: FloatArray, divergences: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns points `(excess, height)` such that `p - (1 + excess) q <= height` for the probabilities p and
    q of every event, one point for each order and each v, shape (orders * tangents,).

    `p^a q^(1-a)` is convex and homogeneous, so it is at least its tangent at the ratio `s = exp(u)`, which is
    `a s^(a-1) p - (a-1) s^a q`; the same holds for the complement at the ratio `t = exp(-v)`. The sum of both
    is at most `exp((a-1) D_a)`. Any u, v > 0 are sound; those on the boundary of the region give the best
    half-planes.
    """
    alpha, bound = orders[:, None], divergences[:, None]
    power = (alpha - 1) * bound  # log of the largest moment
    u = _ratio(alpha, power, v)
    span = u + v
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        near, far = -np.expm1(-(alpha - 1) * span), -np.expm1(-alpha * span)
        room = _ROUND_OFF * (4 + (alpha - 1) * u + power + alpha * v)
        # All in units of the moment's bound.
        per_p = alpha * np.exp((alpha - 1) * u - power) * near * (1 - room)
        spread = np.where(
            v < 1, np.log1p(alpha * np.expm1(v)), np.logaddexp(0, np.log(alpha * -np.expm1(-v)) + v)
        )
        constant = np.expm1(spread - alpha * v) * np.exp(-power)
        left = -np.expm1(-power) - constant
        doubt = (
            4
            * _ROUND_OFF
            * (-np.expm1(-power) + (np.minimum(spread, 2.0) + np.abs(constant)) * np.exp(-power))
        )
        height = np.maximum(left + doubt, 0.0) / per_p * (1 + room)
        slope = u + np.log(far / near) + np.log1p(-1 / alpha)
        excess = np.expm1(slope + _ROUND_OFF * (4 + u + np.abs(np.log(far / near))))
    found = np.isfinite(height) & np.isfinite(excess) & (near > 0)
    # Every profile is at most 1.
    return np.where(found, excess, 0.0).ravel(), np.where(found, height + UNDERFLOW, 1.0).ravel()


def _ratio(alpha: FloatArray, power: FloatArray, v: FloatArray) -> FloatArray:
    """Returns about the logarithm u of the likelihood ratio of an event that attains the bound, if that of
    its complement is `-v`: the root of `(1-t) s^a + (s-1) t^a = exp(power) (s-t)` with `s = exp(u)`, `t =
    exp(-v)`, by Newton's method from above on the logarithm of the quotient of both sides, which is
    convex."""
    with np.errstate(divide="ignore"):
        rare = np.log(-np.expm1(-v))
        rest = power - v + np.log(-np.expm1(-(power + (alpha - 1) * v)))
    u: FloatArray = (power - rare) / (alpha - 1)
    for _ in range(_NEWTON_STEPS):
        first, second = rare + alpha * u, u - alpha * v
        top = np.maximum(np.maximum(first, second), rest)
        weights = [np.exp(one - top) for one in (first, second, rest)]
        total = weights[0] + weights[1] + weights[2]
        value = top + np.log(total) - power - u
        fall = (alpha * weights[0] + weights[1]) / total - 1
        step = np.where(fall > 0, value / np.where(fall > 0, fall, 1.0), 0.0)
        u = np.maximum(u - np.maximum(step, 0.0), u / 2)
    return u
