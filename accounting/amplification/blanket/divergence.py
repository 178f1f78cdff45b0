"""The sum over users: `delta(eps) = E[(G_1 + ... + G_n)_+] / n` by contour quadrature, at a cost independent
of n.

With `z = theta + i u`, `theta > 0` and `M(z) = E[exp(z G)]`,

    E[(S_n)_+] = 1/(2 pi) * integral of M(z)^n / z^2 du.

The ramp's kink makes the integrand decay slowly. So two band-limited functions take the ramp's place, one
above `exp(-theta x) x_+` and one below: their transforms end, and a bounded number of nodes suffices. The
bounds include aliasing (it can only raise the upper bound), the nodes that are left out, and round-off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.blanket.contour import integrate
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Bare, Laws, ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.blanket.rare_events import RareGains
from shuffle_ledger.accounting.amplification.blanket.tilting import (
    MOST_SMOOTHING,
    OVERWHELMING,
    SMALL_LOG_MASS,
    Tilt,
    log_mass,
)
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    TINY,
    UNIT_ROUND_OFF,
    BoolArray,
    FloatArray,
    IndexArray,
)
from shuffle_ledger.accounting.numeric.effort import spend
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

#: Outcomes with an overwhelming loss are left out of the sum if they add at most `_LEFT_OUT_OF_WIDTH` of the
#: distance of the bounds and the first share of the value; the second share of the value is always allowed.
#: Larger: fewer sums of the whole law, an upper bound that is larger by such a share. The bounds hold for
#: every value; the tests change both.
LEFT_OUT_AT_MOST, LEFT_OUT_ALWAYS = 1e-4, 1e-6
#: Gains are of the largest scale if they are above the largest gain over this. Larger: fewer scales, so fewer
#: sums, wider bounds. The bounds hold for every value; the tests change it.
SCALE_RATIO = 16.0
#: Gains of the largest scale are summed apart if fewer reports of them than this are expected, without a look
#: at the width of the bounds first. The bounds hold for every value; the tests change it.
RARE_GAIN_REPORTS = 1e-6

# Array elements that the search for a tilt takes for each component of a law, and that many small calls take.
_ELEMENTS_OF_LAW, _ELEMENTS_OF_CALL = 50, 3e5
# Least probability that some other report is hidden, from which on the sum over users is computed: below it
# the bounds for a report that no other one hides are used alone.
_LEAST_CROWD = 1e-6
# Share of the distance of the bounds that outcomes with an overwhelming loss may add to be left out.
_LEFT_OUT_OF_WIDTH = 0.1
# Expected number of reports of rare losses that are moved to the leftover component, as a share of the
# leftover mass. Larger: shorter sums, a lower bound that is smaller by this share.
_RARE_LOSSES = 1e-5
# After rare gains were summed, the rest is bounded instead of summed if it is below this share of the bound.
_UNSUMMED_SHARE = 1e-7
# Gains of the largest scale are also summed apart if bounds are wider than this many times the usual width,
# which counts at most this many deviations.
_WIDE_FACTOR, _MOST_DEVIATIONS = 3.0, 1e6


def blanket_profile(
    decomposition: Decomposition, reports: int, excess: FloatArray, *, smoothing: float
) -> ProfileBounds:
    """Returns bounds on the hockey-stick divergence of order `1 + excess` of the blanket pair of `reports`
    users.

    Args:
        decomposition: the round's masses; components that other users never hide (`c = 0`) count in full.
        reports: number of honest shuffled reports, n.
        excess: orders minus one, `a - 1 >= 0`, shape (orders,).
        smoothing: how close the two functions around the ramp are: the integral of their distance is the
            square of the smoothing, in units of the tilted sum's deviation. Smaller: closer bounds, more
            nodes.

    Guarantee: `lower <= E[(sum G)_+]/n <= upper`, floating-point round-off included.
    Source: Su, Cheng, Wang, Theorems 12 and 13; docs/theory/amplification.md, A1;
        the numerical bounds: docs/theory/contour.md, C1 to C14.
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
    """Returns what `blanket_profile` does, of the pair `pairs[which[i]]` at the order `1 + excess[i]`, for
    every i; the smoothing may be an array of the same shape."""
    smoothing = np.broadcast_to(smoothing, excess.shape)
    upper, lower = np.zeros_like(excess), np.zeros_like(excess)
    for rows, laws, bare in _side_by_side(pairs).laws(which, excess):
        found = law_profiles(laws, bare, reports, excess[rows], smoothing=smoothing[rows])
        upper[rows], lower[rows] = found
    return ProfileBounds(upper, lower)


def law_profiles(
    laws: Laws, bare: Bare, reports: int, excess: FloatArray, *, smoothing: FloatArray
) -> ProfileBounds:
    """Returns bounds on `E[(G_1 + ... + G_n)_+] / n` plus the contribution of unhidden components, shape
    (orders,).

    Args:
        laws: the laws of G, one for each order.
        bare: bounds on what the components with `c = 0` contribute, shape (orders,).
        reports, excess, smoothing: see `blanket_profile`.

    Guarantee: as of `blanket_profile`.
    """
    upper, lower = bare.upper.copy(), bare.lower.copy()
    alive = laws.gains.max(axis=1, initial=0.0) > 0
    if np.any(alive):
        spend(_ELEMENTS_OF_LAW * laws.gains.size + _ELEMENTS_OF_CALL)
        above, below = _bounds(laws.at(alive), reports, excess[alive], smoothing[alive])
        upper[alive] += above + TINY
        lower[alive] += below
    upper += laws.lost(excess)
    return ProfileBounds(upper, lower)


def largest_chernoff_log(pairs: Pairs, reports: int, excess: FloatArray) -> FloatArray:
    """Returns the logarithm of a crude upper bound on the same divergence of all pairs, `min over theta of
    M^n / (theta e n)`, at the orders `1 + excess`, shape (orders,); its round-off is not included."""
    which, order = np.divmod(np.arange(len(pairs) * excess.size), excess.size)
    result = np.zeros(which.size)
    for rows, laws, bare in pairs.laws(which, excess[order]):
        with np.errstate(divide="ignore"):
            result[rows] = np.log(bare.upper)
        alive = laws.gains.max(axis=1, initial=0.0) > 0
        if np.any(alive):
            hidden = laws.at(alive)
            theta = hidden.saddle(reports)
            exponent = log_mass(hidden, reports, theta)[0] - np.log(theta * math.e * reports)
            result[rows[alive]] = np.logaddexp(result[rows[alive]], exponent)
    largest: FloatArray = result.reshape(len(pairs), excess.size).max(axis=0)
    return largest


def _side_by_side(pairs: Sequence[Decomposition]) -> Pairs:
    return pairs if isinstance(pairs, Pairs) else ListedPairs(pairs)


def _bounds(
    laws: Laws, reports: int, excess: FloatArray, smoothing: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns upper and lower bounds on the divergence of the hidden components, each of shape (orders,).

    Two kinds of bounds are combined: those for a report that no other report hides, which are close where
    other hidden reports are improbable, and those of the sum over users.
    """
    lone = _lone(laws, reports, excess)
    upper, lower = lone.gained + lone.rounding, lone.lower
    crowded = np.flatnonzero(lone.share_lower < 1 - _LEAST_CROWD)
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
        """Returns upper bounds on what these outcomes add to the divergence, shape (orders,)."""
        return np.asarray((self.gained + self.rounding) * self.share_upper)

    @property
    def lower(self) -> FloatArray:
        """Returns lower bounds on the same, shape (orders,)."""
        return np.asarray(np.maximum(self.gained - self.rounding, 0.0) * self.share_lower)


def _lone(laws: Laws, reports: int, excess: FloatArray) -> _Lone:
    # A difference has the absolute round-off of its terms. Where the excess outweighs it by more than that,
    # the gain is certainly not positive.
    b = laws.taken / np.where(excess > 0, excess, 1.0)[:, None]
    doubt = 8 * UNIT_ROUND_OFF * (laws.difference + laws.taken + b)
    near = (laws.difference > 0) & (laws.taken - laws.difference <= doubt)
    rounding = np.where(near, doubt, 0.0).sum(axis=1)
    gained = np.maximum(laws.difference - laws.taken, 0.0).sum(axis=1)
    slack, others = laws.c.shape[1] * UNIT_ROUND_OFF, reports - 1
    most, least = np.minimum(laws.leftover + slack, 1.0), np.maximum(laws.leftover - slack, TINY)
    share_upper = np.exp(others * np.log(most) * (1 - 8 * UNIT_ROUND_OFF)) * (1 + 1e-12)
    share_lower = np.exp(others * np.log(least) * (1 + 8 * UNIT_ROUND_OFF)) * (1 - 1e-12)
    return _Lone(gained, rounding, share_upper, share_lower)


def _summed(
    laws: Laws, reports: int, excess: FloatArray, smoothing: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns bounds on the divergence of the hidden components. First moves losses that are too rare to
    matter to the leftover component."""
    laws, added = _without_rare_losses(laws, reports)
    theta = laws.saddle(reports)
    upper, lower = _by_scales(laws, reports, excess, theta, smoothing)
    return upper, lower * (1 - added)


def _without_rare_losses(laws: Laws, reports: int) -> tuple[Laws, FloatArray]:
    """Returns laws in which the rarest losses (negative gains) count as leftover, and an upper bound on the
    share by which that raises the divergence, shape (orders,).

    Such losses may be so large that no tilt suits them and the other gains. Replacing a loss by gain 0 can
    only raise the sum. The rise is bounded by the expected number of such reports over the probability that
    one report is a leftover one. The proof is in docs/theory/contour.md, C11.
    """
    masses = np.where((laws.gains < 0) & (laws.c > 0), laws.c, np.inf)
    # The leftover mass may have the absolute round-off of 1.
    certain = np.maximum(laws.leftover - (masses.shape[1] + 8) * UNIT_ROUND_OFF, 0.0)
    order = np.argsort(masses, axis=1)
    together = reports * np.cumsum(np.take_along_axis(masses, order, axis=1), axis=1)
    rare = np.zeros_like(masses, dtype=np.bool_)
    np.put_along_axis(rare, order, together <= _RARE_LOSSES * certain[:, None], axis=1)
    without = laws.without(rare)
    lost = without.dropped - laws.dropped
    added = np.where(lost > 0, reports * lost / np.maximum(certain, TINY) * (1 + 1e-9), 0.0)
    return without._replace(leftover=without.leftover + lost, dropped=laws.dropped), added


def _by_scales(
    laws: Laws, reports: int, excess: FloatArray, theta: FloatArray, smoothing: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns bounds on the divergence of the hidden components, as close as the smoothing asks.

    If large gains are so rare that no single tilt suits them and the rest, the outcomes with such a report
    are summed separately for each number of them. The law without these gains follows; it may have rare gains
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
            wide = (above - below)[some] > _WIDE_FACTOR * usual * (above[some] + lower[rows[some]])
            again = some[wide]
            if again.size:
                part_rare, high, low = _with_rare_gains(
                    laws.at(again), reports, theta[again], smoothing[again], lower[rows[again]], sure=False
                )
                found = again[part_rare]
                rare[found], above[found], below[found] = True, high[part_rare], low[part_rare]
        upper[rows] += np.minimum(above, most)
        lower[rows] += below
        # The divergence of the rest is at most `E[G_+]` of one report.
        laws = laws.without(_large(laws) & rare[:, None])
        lone = _lone(laws, reports, excess)
        most = (lone.gained + lone.rounding) * (1 + 1e-12)
        left = rare & (most > _UNSUMMED_SHARE * upper[rows]) & (laws.gains.max(axis=1) > 0)
        upper[rows] += np.where(rare & ~left, most, 0.0)
        if not np.any(left):
            return upper, lower
        rows, excess, smoothing, most = rows[left], excess[left], smoothing[left], most[left]
        laws = laws.at(left)
        theta = laws.saddle(reports)


def _with_rare_gains(
    laws: Laws,
    reports: int,
    theta: FloatArray,
    smoothing: FloatArray,
    known: FloatArray,
    *,
    sure: bool = True,
) -> tuple[BoolArray, FloatArray, FloatArray]:
    """Returns the orders at which gains of the largest scale are rare, and bounds on the contribution of
    outcomes with such a report, each of shape (orders,).

    Args:
        known: lower bounds on what was summed before: bounds need not be closer than their width.
        sure: only looks at orders at which at most `RARE_GAIN_REPORTS` such reports are expected.
    """
    large = _large(laws)
    rare, upper, lower = np.zeros(theta.size, dtype=np.bool_), np.zeros_like(theta), np.zeros_like(theta)
    expected = reports * np.where(large, laws.c, 0.0).sum(axis=1)
    rows = np.flatnonzero(expected < RARE_GAIN_REPORTS) if sure else np.arange(theta.size)
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
    """Returns which components have gains of the largest scale, shape (orders, components)."""
    return np.asarray(laws.gains > (laws.gains.max(axis=1) / SCALE_RATIO)[:, None])


def _rest(
    laws: Laws,
    reports: int,
    excess: FloatArray,
    tilt: Tilt,
    *,
    smoothing: FloatArray,
    known: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Returns bounds on the divergence of the hidden components from one contour for each order.

    The smoothing is raised if the result is small beside `known`, the sum so far.

    At large orders one report with a large loss outweighs everything that the others can gain. Outcomes with
    such a report are left out of the sum, which shortens the law. The result is a lower bound; together with
    the bound of `_left_out` it is an upper bound. If that bound is too large, the whole law is summed as
    well.
    """
    theta = tilt.theta
    # Chernoff's bound, in logarithms: near order 1 the moment is above 1, and a tilt may be tiny.
    exponent = tilt.log_mass + tilt.log_mass_error + tilt.raised - np.log(tilt.theta * math.e * reports)
    crude = np.minimum(np.exp(np.minimum(exponent, 0.0)) * (1 + 1e-12), 1.0)
    wider = np.sqrt(1 + known / np.maximum(crude, TINY))
    smoothing = np.maximum(np.minimum(smoothing * wider, MOST_SMOOTHING), smoothing)
    upper, lower = np.full_like(theta, np.inf), np.zeros_like(theta)
    whole = np.ones(upper.size, dtype=np.bool_)
    overwhelming = theta[:, None] * laws.gains < -OVERWHELMING
    short = np.flatnonzero(overwhelming.any(axis=1))
    if short.size:
        left_out = overwhelming[short]
        part = laws.at(short).without(left_out)
        shorter = Tilt.of(part, reports, part.saddle(reports))
        lone = _lone(part, reports, excess[short])
        above, below = integrate(shorter, reports, smoothing[short], (lone.upper, lone.lower))
        rest = _left_out(laws.at(short), left_out, reports, shorter.theta)
        upper[short], lower[short] = above + rest, below
        little = np.minimum(_LEFT_OUT_OF_WIDTH * (above - below), LEFT_OUT_AT_MOST * above)
        whole[short] = ~(rest <= np.maximum(LEFT_OUT_ALWAYS * above, little))
    if np.any(whole):
        lone = _lone(laws.at(whole), reports, excess[whole])
        above, below = integrate(tilt.at(whole), reports, smoothing[whole], (lone.upper, lone.lower))
        upper[whole], lower[whole] = np.fmin(upper[whole], above), np.fmax(lower[whole], below)
    lost = ~(np.isfinite(upper) & np.isfinite(lower))
    upper = np.where(lost, np.nan_to_num(crude, nan=1.0, posinf=1.0), upper)
    # The leftover mass may have the absolute round-off of 1, which matters if the mass under the tilt is
    # small.
    log_mass = tilt.log_mass / reports
    slack = reports * laws.unsure(log_mass)
    doubt = np.where(log_mass < SMALL_LOG_MASS, crude * np.expm1(np.minimum(slack, LARGEST_EXPONENT)), 0.0)
    # A divergence is at most 1, also where round-off leaves no bound.
    return np.minimum(upper + doubt, 1.0), np.where(lost, 0.0, np.maximum(lower - doubt, 0.0))


def _left_out(laws: Laws, left_out: BoolArray, reports: int, theta: FloatArray) -> FloatArray:
    """Returns an upper bound on what outcomes with a report of a component that was left out add, shape
    (orders,): the union bound over users, with Chernoff's bound for each."""
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
            found = np.exp(np.minimum(exponent, LARGEST_EXPONENT)) / (rate * math.e)
        if not np.any(found < bound):
            break
        bound = np.fmin(bound, found)
    return np.asarray(bound * (1 + 1e-9))
