"""The sum over users: `delta(eps) = E[(G_1 + ... + G_n)_+] / n` by contour quadrature, at a cost independent
of n.

With `z = theta + i u`, `theta > 0` and `M(z) = E[exp(z G)]`,

    E[(S_n)_+] = 1/(2 pi) * integral of M(z)^n / z^2 du.

The kink makes the integrand decay slowly. So functions next to the ramp `exp(-theta x) x_+`, one above and
one below, take its place, whose transforms end: a bounded number of nodes suffices. Every error is bounded:
aliasing (it only raises the upper bound), nodes that are left out, round-off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.contour import integrate
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Bare, Laws, ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.blanket.rare_events import RareGains
from shuffle_ledger.accounting.amplification.blanket.tilting import (
    MOST_SMOOTHING,
    NEAR_SADDLE,
    OVERWHELMING,
    SMALL_LOG_MASS,
    Tilt,
)
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, BoolArray, FloatArray, IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Probability that another report hides one's own, below which that is not looked into.
_HARDLY = 1e-6
# What is left out is little: a share of the bounds' distance, and of the value at most and at least.
_SHARE, _MOST, _LEAST = 0.1, 1e-4, 1e-6
# Expected reports of losses that are left over, as a share of what is left over of one report anyway.
_RARE = 1e-5
# Gains of one scale are within this factor, and what is too little to be summed.
_SCALE = 16.0
_LITTLE = 1e-7
# Gains of which no more reports are expected are rare. Where bounds are apart by more than so many times what
# is usual, of sums of no more deviations, others may be.
_RARELY = 1e-6
_WIDE, _MOST_DEVIATIONS = 3.0, 1e6
_TINY = 1e-300
_E = float(np.e)


def blanket_profile(
    decomposition: Decomposition, reports: int, excess: FloatArray, *, smoothing: float
) -> ProfileBounds:
    """Bounds on the hockey-stick divergence of order `1 + excess` of the blanket pair of `reports` users.

    Args:
        decomposition: the round's masses; components that other users never hide (`c = 0`) count in full.
        reports: number of honest shuffled reports, n.
        excess: orders minus one, `a - 1 >= 0`, shape (orders,).
        smoothing: how close the functions next to the ramp are: the integral of their distance is its square,
            in units of the tilted sum's deviation.

    Guarantee: `lower <= E[(sum G)_+]/n <= upper`, floating-point round-off included.
    Source: Su, Cheng, Wang, Theorem 4; quadrature and bounds: docs/theory.md.
    """
    which = np.zeros(excess.size, dtype=np.int64)
    return blanket_profiles([decomposition], which, reports, excess, smoothing=smoothing)


def blanket_profiles(
    pairs: Sequence[Decomposition],
    which: IndexArray,
    reports: int,
    excess: FloatArray,
    *,
    smoothing: float | FloatArray,
) -> ProfileBounds:
    """As `blanket_profile`, of the pair `pairs[which[i]]` at the order `1 + excess[i]`, for every i; the
    smoothing may differ, too."""
    smoothing = np.broadcast_to(smoothing, excess.shape)
    upper, lower = np.zeros_like(excess), np.zeros_like(excess)
    for rows, laws, bare in _side_by_side(pairs).laws(which, excess):
        found = law_profiles(laws, bare, reports, excess[rows], smoothing=smoothing[rows])
        upper[rows], lower[rows] = found
    return ProfileBounds(upper, lower)


def law_profiles(
    laws: Laws, bare: Bare, reports: int, excess: FloatArray, *, smoothing: FloatArray
) -> ProfileBounds:
    """The same of laws of G, one for each order, and of what components that nobody hides contribute; all but
    `laws` of shape (orders,)."""
    upper, lower = bare.upper.copy(), bare.lower.copy()
    alive = laws.gains.max(axis=1, initial=0.0) > 0
    if np.any(alive):
        above, below = _bounds(laws.at(alive), reports, excess[alive], smoothing[alive])
        upper[alive] += above + _TINY
        lower[alive] += below
    upper += laws.lost(excess)
    return ProfileBounds(upper, lower)


def chernoff_log_profile(decomposition: Decomposition, reports: int, excess: FloatArray) -> FloatArray:
    """Logarithm of a crude upper bound on the same divergence: `min over theta of M^n / (theta e n)`, up to
    round-off."""
    return chernoff_log_profiles([decomposition], np.zeros(excess.size, dtype=np.int64), reports, excess)


def chernoff_log_profiles(
    pairs: Sequence[Decomposition], which: IndexArray, reports: int, excess: FloatArray
) -> FloatArray:
    """As `chernoff_log_profile`, of the pair `pairs[which[i]]` at the order `1 + excess[i]`, for every i."""
    result = np.zeros_like(excess)
    for rows, laws, bare in _side_by_side(pairs).laws(which, excess):
        with np.errstate(divide="ignore"):
            result[rows] = np.log(bare.upper)
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        if np.any(alive):
            hidden = laws.at(alive)
            tilt = Tilt.of(hidden, reports, hidden.saddle(reports, closeness=NEAR_SADDLE))
            exponent = tilt.log_mass - np.log(tilt.theta * _E * reports)
            result[rows[alive]] = np.logaddexp(result[rows[alive]], exponent)
    return result


def _side_by_side(pairs: Sequence[Decomposition]) -> Pairs:
    return pairs if isinstance(pairs, Pairs) else ListedPairs(pairs)


def _bounds(
    laws: Laws, reports: int, excess: FloatArray, smoothing: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the divergence of the hidden components: those of a report that nobody hides, which are near
    where hardly anybody does, and those of the sum."""
    lone = _lone(laws, reports, excess)
    upper, lower = lone.gained + lone.rounding, lone.lower
    crowded = np.flatnonzero(lone.share_lower < 1 - _HARDLY)
    if crowded.size:
        above, below = _summed(laws.at(crowded), reports, excess[crowded], smoothing[crowded])
        upper[crowded] = np.minimum(upper[crowded], above)
        lower[crowded] = np.maximum(lower[crowded], below)
    return upper, np.minimum(lower, upper)


class _Lone(NamedTuple):
    """One report of a component, and no other; arrays of shape (orders,).

    Attributes:
        gained: `E[G_+]`.
        rounding: bound on its round-off.
        share_upper, share_lower: bounds on the probability that all other reports are leftover ones.
    """

    gained: FloatArray
    rounding: FloatArray
    share_upper: FloatArray
    share_lower: FloatArray

    @property
    def upper(self) -> FloatArray:
        """What such outcomes add to the divergence at most."""
        return np.asarray((self.gained + self.rounding) * self.share_upper)

    @property
    def lower(self) -> FloatArray:
        """What they add at least."""
        return np.asarray(np.maximum(self.gained - self.rounding, 0.0) * self.share_lower)


def _lone(laws: Laws, reports: int, excess: FloatArray) -> _Lone:
    # Differences may be known no better than what they are differences of; where the excess outweighs one by
    # more than that, nothing is gained for certain.
    b = laws.taken / np.where(excess > 0, excess, 1.0)[:, None]
    doubt = 8 * UNIT_ROUND_OFF * (laws.difference + laws.taken + b)
    near = (laws.difference > 0) & (laws.taken - laws.difference <= doubt)
    rounding = np.where(near, doubt, 0.0).sum(axis=1)
    gained = np.maximum(laws.difference - laws.taken, 0.0).sum(axis=1)
    slack, others = laws.c.shape[1] * UNIT_ROUND_OFF, reports - 1
    most, least = np.minimum(laws.leftover + slack, 1.0), np.maximum(laws.leftover - slack, 1e-300)
    share_upper = np.exp(others * np.log(most) * (1 - 8 * UNIT_ROUND_OFF)) * (1 + 1e-12)
    share_lower = np.exp(others * np.log(least) * (1 + 8 * UNIT_ROUND_OFF)) * (1 - 1e-12)
    return _Lone(gained, rounding, share_upper, share_lower)


def _summed(
    laws: Laws, reports: int, excess: FloatArray, smoothing: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the divergence of the hidden components. Drops losses that are too rare to matter first."""
    laws, added = _without_rare_losses(laws, reports)
    theta = laws.saddle(reports, closeness=NEAR_SADDLE)
    upper, lower = _by_scales(laws, reports, excess, theta, smoothing)
    return upper, lower * (1 - added)


def _without_rare_losses(laws: Laws, reports: int) -> tuple[Laws, FloatArray]:
    """The laws with losses left over that hardly any report has, and the share of their divergences, shape
    (orders,), that this adds at most.

    They may be so large that no tilt suits them and the rest. Sums without them are larger; and where someone
    would have had one, no larger than those of the other reports, which are all of it with the probability
    that a report is left over.
    """
    masses = np.where((laws.gains < 0) & (laws.c > 0), laws.c, np.inf)
    # What is left over may be known no better than 1 is.
    certain = np.maximum(laws.leftover - (masses.shape[1] + 8) * UNIT_ROUND_OFF, 0.0)
    order = np.argsort(masses, axis=1)
    together = reports * np.cumsum(np.take_along_axis(masses, order, axis=1), axis=1)
    rare = np.zeros_like(masses, dtype=np.bool_)
    np.put_along_axis(rare, order, together <= _RARE * certain[:, None], axis=1)
    without = laws.without(rare)
    lost = without.dropped - laws.dropped
    added = np.where(lost > 0, reports * lost / np.maximum(certain, _TINY) * (1 + 1e-9), 0.0)
    return without._replace(leftover=without.leftover + lost, dropped=laws.dropped), added


def _by_scales(
    laws: Laws, reports: int, excess: FloatArray, theta: FloatArray, smoothing: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the divergence of the hidden components, as close as the smoothing says.

    Where large gains are so rare that one tilt does not suit them and the rest, outcomes with a report of a
    large gain are summed by the number of these reports, then the law without them, which may have rare gains
    again.
    """
    upper, lower = np.zeros_like(theta), np.zeros_like(theta)
    rows, most = np.arange(theta.size), np.full_like(theta, np.inf)
    while True:
        rare, above, below = _with_rare_gains(laws, reports, theta, smoothing, lower[rows])
        some = np.flatnonzero(~rare)
        if some.size:
            tilt = Tilt.of(laws.at(some), reports, theta[some])
            part = laws.at(some), reports, excess[some], tilt
            above[some], below[some] = _rest(*part, smoothing=smoothing[some], known=lower[rows[some]])
            usual = (smoothing[some] * np.clip(tilt.theta * tilt.deviation, 1.0, _MOST_DEVIATIONS)) ** 2
            wide = (above - below)[some] > _WIDE * usual * (above[some] + lower[rows[some]])
            again = some[wide]
            if again.size:
                part_rare, high, low = _with_rare_gains(
                    laws.at(again), reports, theta[again], smoothing[again], lower[rows[again]], sure=False
                )
                found = again[part_rare]
                rare[found], above[found], below[found] = True, high[part_rare], low[part_rare]
        upper[rows] += np.minimum(above, most)
        lower[rows] += below
        # Sums of the rest are no larger than what its reports gain, each by itself.
        laws = laws.without(_large(laws) & rare[:, None])
        lone = _lone(laws, reports, excess)
        most = (lone.gained + lone.rounding) * (1 + 1e-12)
        left = rare & (most > _LITTLE * upper[rows]) & (laws.gains.max(axis=1) > 0)
        upper[rows] += np.where(rare & ~left, most, 0.0)
        if not np.any(left):
            return upper, lower
        rows, excess, smoothing, most = rows[left], excess[left], smoothing[left], most[left]
        laws = laws.at(left)
        theta = laws.saddle(reports, closeness=NEAR_SADDLE)


def _with_rare_gains(
    laws: Laws,
    reports: int,
    theta: FloatArray,
    smoothing: FloatArray,
    known: FloatArray,
    *,
    sure: bool = True,
) -> tuple[BoolArray, FloatArray, FloatArray]:
    """At which orders gains of the largest scale are rare, and bounds on outcomes with a report of them.

    Where it must be `sure`, only gains are rare of which hardly any report is expected.
    """
    large = _large(laws)
    rare, upper, lower = np.zeros(theta.size, dtype=np.bool_), np.zeros_like(theta), np.zeros_like(theta)
    expected = reports * np.where(large, laws.c, 0.0).sum(axis=1)
    rows = np.flatnonzero(expected < _RARELY) if sure else np.arange(theta.size)
    if rows.size:
        gains = RareGains.of(laws.at(rows), large[rows], reports, theta[rows])
        places = np.flatnonzero(gains.most > 0)
        found = rows[places]
        if found.size:
            rare[found] = True
            upper[found], lower[found] = gains.at(places).summed(
                laws.at(found), reports, smoothing=smoothing[found], known=known[found]
            )
    return rare, upper, lower


def _large(laws: Laws) -> BoolArray:
    """Components with gains of the largest scale, shape (orders, components)."""
    return np.asarray(laws.gains > (laws.gains.max(axis=1) / _SCALE)[:, None])


def _rest(
    laws: Laws,
    reports: int,
    excess: FloatArray,
    tilt: Tilt,
    *,
    smoothing: FloatArray,
    known: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the divergence of the hidden components by the contour, with as much smoothing as makes them
    close beside what is known.

    Far out, single reports of some components outweigh whatever the others can gain. Outcomes with such a
    report are left out of the sum, which makes the law short again: a lower bound as it stands, an upper one
    with the bound of `_left_out`. Where that is much, the law is summed whole besides.
    """
    theta = tilt.theta
    # Chernoff's bound, in logarithms: near order 1 the moment is above 1, and a tilt may be tiny.
    exponent = tilt.log_mass + tilt.log_mass_error + tilt.raised - np.log(tilt.theta * _E * reports)
    crude = np.minimum(np.exp(np.minimum(exponent, 0.0)) * (1 + 1e-12), 1.0)
    wider = np.sqrt(1 + known / np.maximum(crude, 1e-300))
    smoothing = np.maximum(np.minimum(smoothing * wider, MOST_SMOOTHING), smoothing)
    upper, lower = np.full_like(theta, np.inf), np.zeros_like(theta)
    whole = np.ones(upper.size, dtype=np.bool_)
    overwhelming = theta[:, None] * laws.gains < -OVERWHELMING
    short = np.flatnonzero(overwhelming.any(axis=1))
    if short.size:
        left_out = overwhelming[short]
        part = laws.at(short).without(left_out)
        shorter = Tilt.of(part, reports, part.saddle(reports, closeness=NEAR_SADDLE))
        lone = _lone(part, reports, excess[short])
        above, below = integrate(shorter, reports, smoothing[short], (lone.upper, lone.lower))
        rest = _left_out(laws.at(short), left_out, reports, shorter.theta)
        upper[short], lower[short] = above + rest, below
        little = np.minimum(_SHARE * (above - below), _MOST * above)
        whole[short] = ~(rest <= np.maximum(_LEAST * above, little))
    if np.any(whole):
        lone = _lone(laws.at(whole), reports, excess[whole])
        above, below = integrate(tilt.at(whole), reports, smoothing[whole], (lone.upper, lone.lower))
        upper[whole], lower[whole] = np.fmin(upper[whole], above), np.fmax(lower[whole], below)
    lost = ~(np.isfinite(upper) & np.isfinite(lower))
    upper = np.where(lost, np.nan_to_num(crude, nan=1.0, posinf=1.0), upper)
    # What is left over may be known no better than 1 is, which counts where the mass under the tilt is small.
    log_mass = tilt.log_mass / reports
    slack = reports * laws.unsure(log_mass)
    doubt = np.where(log_mass < SMALL_LOG_MASS, crude * np.expm1(np.minimum(slack, 700.0)), 0.0)
    return upper + doubt, np.where(lost, 0.0, np.maximum(lower - doubt, 0.0))


def _left_out(laws: Laws, left_out: BoolArray, reports: int, theta: FloatArray) -> FloatArray:
    """Bound on what outcomes with a report of a left out component add: the union over users, each by
    Chernoff."""
    bound = np.full_like(theta, np.inf)
    for stretch in (1.0, 1.3, 1.7, 2.2, 3.0, 4.0):
        rate = stretch * theta
        masses, _, total, top = laws.weighted(rate)
        _, raised = laws.moved(masses / total[:, None], rate)
        highest = rate[:, None] * (laws.gains + laws.doubt)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            single = np.where(left_out, laws.c * np.exp(highest), 0.0).sum(axis=1)
            log_mass = np.log(total) + top
            exponent = (reports - 1) * (log_mass + raised + laws.unsure(log_mass)) + np.log(single)
            exponent += 64 * UNIT_ROUND_OFF * reports * (1 + top)
            found = np.exp(np.minimum(exponent, 700.0)) / (rate * _E)
        if not np.any(found < bound):
            break
        bound = np.fmin(bound, found)
    return np.asarray(bound * (1 + 1e-9))
