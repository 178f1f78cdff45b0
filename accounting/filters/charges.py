"""Charges: the smallest certified cost of a round in each filter, from the pair above its privacy loss.

A charge c at a reserve v is enough if the round together with a Gaussian mechanism of variance v is dominated
by a Gaussian mechanism of variance `v + c`, up to a mass of `leak_rate * c`. Both divergences are convex in
the order. Between two orders the round's is below its chord, and the Gaussian's above any tangent. So a
comparison of chord and tangent at both ends of a cell of orders decides the whole cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from shuffle_ledger.accounting.filters.filter_set import FilterCharge, FilterSet
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, RenyiFilter
from shuffle_ledger.accounting.numeric.arrays import TINY, UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.numeric.rounding import float_below
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.pld.gaussian import (
    gaussian_divergence,
    gaussian_growth,
    gaussian_order,
    gaussian_tangents,
)

#: Sums are made by FFT if they have more than this number of terms for each point of the transform, and
#: little round-off. Larger: more sums term by term, which are slower and slightly closer. The bounds hold for
#: every value; the tests change it.
ELEMENTS_PER_POINT = 4

# Significant bits of a charge, which is rounded up to them. Fewer: shorter exact sums, larger charges.
_CHARGE_BITS = 32
# Relative precision of the search for the smallest charge, and a margin on top of it, so that a check on
# another computer, with other round-off, still finds the charge enough.
_SEARCH_PRECISION = 2e-4
_CHARGE_MARGIN = 1e-4
# The largest factor of one step of the search; and how many steps it takes until one bisects.
_LARGEST_STEP, _BISECTING = 4.0, 4
# Largest reserve that is used, in units of the charge: a larger one would barely lower the charge, at more
# work.
_MOST_SMOOTHING = 1024.0
# A charge within this relative distance of the least possible one is not computed again for larger reserves.
_NEAR_THE_LEAST = 2.0**-8
# Orders in one deviation of the smoothing: this number times the root of `smoothing / charge`, and at least
# the second number. The error of chords is the square of a step, and a charge moves the profile by its share
# of the variance.
_SMOOTHED_STEPS = 8.0
_FEWEST_SMOOTHED_STEPS = 64.0
# Orders in one deviation of the Gaussian without smoothing.
_BARE_STEPS = 40.0
# Orders are evenly spaced up to this many deviations; beyond, losses grow by this ratio.
_EVEN_DEVIATIONS = 9.0
_GROWTH = 0.012
# Largest array of a smoothing kernel; beyond it only the trivial bound is known.
_MOST_KERNEL_POINTS = 1 << 22
# Relative room in profiles: for sums over a pair's losses about 2^-37, and for rounded places of losses up to
# 2^-31, if the noise is as narrow as `_MOST_KERNEL_POINTS` allows.
_PROFILE_ROUND_OFF = 2.0**-30
# Relative room for the few operations of a tangent.
_TANGENT_ROUND_OFF = 2.0**-48
_SMALLEST_CHARGE = 1e-30
# Array elements that are worked on together. Larger: fewer calls, more memory.
_BLOCK_ELEMENTS = 1 << 20
# Sums by FFT are used if their round-off is at most a value over this.
_VALUES_PER_DOUBT = 256.0

_Test = Callable[[float], bool]  # whether the condition of a filter's theorem holds at a charge


class KnownBounds(NamedTuple):
    """Bounds on a round that do not come from its pair, infinite where none is known.

    Attributes:
        mu: of Gaussian privacy: its divergences are at most those of `N(mu, 1)` against `N(0, 1)`.
        renyi: of the Renyi divergence of an order, in both directions.
        finite_loss: of all finite privacy losses, exact; None if it is not known.
    """

    mu: float
    renyi: Callable[[float], float]
    finite_loss: Fraction | None = None

    def charges(self, filters: FilterSet) -> tuple[list[float], list[float]]:
        """Charges of the Gaussian filter and of every Renyi filter that need no leak."""
        gaussian = [self.mu**2 * (1 + _PROFILE_ROUND_OFF)] * len(filters.gaussian.reserves)
        orders = [one.order for one in filters.renyi]
        return gaussian, [math.inf if math.isinf(order) else self.renyi(order) for order in orders]


def charge_of(
    pair: PrivacyLossDistribution,
    filters: FilterSet,
    *,
    slack: float,
    certain_loss: float = 0.0,
    known: KnownBounds | None = None,
) -> FilterCharge:
    """Returns about the smallest certified charge of every filter, and what the round uses of the accounts of
    delta.

    Args:
        pair: the pair above the round's profile.
        filters: the budget's filters.
        slack: total variation distance of the round to the one the pair dominates.
        certain_loss: how much of the pair's mass at infinity the accounts pay for.
        known: bounds on the round's pure version whose charges count where they are smaller.

    Guarantee: the condition of every filter's theorem holds at its charge, floating-point round-off included.
    Source: docs/adaptivity.md, Lemma 2, Lemma 3.
    """
    account = (_rounded_up(certain_loss), _rounded_up(slack))
    pair = pair.unless_revealed(certain_loss)
    gaussian = _GaussianCondition.of(pair, filters.gaussian).charges()
    renyi = [_renyi_charge(pair, one) for one in filters.renyi]
    exact = None
    if known is not None:
        least = known.charges(filters)
        gaussian, renyi = list(map(min, gaussian, least[0])), list(map(min, renyi, least[1]))
        exact = known.finite_loss if pair.infinity == 0 else None
    rounded = [
        cost if exact is None or not math.isinf(one.order) else min(cost, exact)
        for one, cost in zip(filters.renyi, map(_rounded_up, renyi), strict=True)
    ]
    return FilterCharge(gaussian=tuple(map(_rounded_up, gaussian)), renyi=tuple(rounded), account=account)


def is_covered(
    pair: PrivacyLossDistribution,
    filters: FilterSet,
    charge: FilterCharge,
    *,
    slack: float,
    finer: float = 1.0,
) -> bool:
    """Returns whether a charge is proven to meet the condition of the theorem of every Gaussian and Renyi
    filter, whatever its origin.

    Args:
        pair: a pair above the round's profile.
        slack: total variation distance of the round to the one that the pair dominates.
        finer: number of orders, in units of the number that `charge_of` uses.

    Guarantee: True only if the theorems' conditions hold, floating-point round-off included. The charge that
        `charge_of` returns for the same pair and slack is covered.
    """
    certain_loss, paid = charge.account
    if certain_loss < 0 or paid < Fraction(slack):
        return False
    # The filters do not pay for the mass at infinity that the account pays for.
    pair = pair.unless_revealed(min(float_below(certain_loss), pair.infinity))
    condition = _GaussianCondition.of(pair, filters.gaussian)
    return condition.covers(charge.gaussian, finer) and all(
        _is_enough(cost, one, partial(_covering_test, pair, one))
        for one, cost in zip(filters.renyi, charge.renyi, strict=True)
    )


def _is_enough(cost: Fraction, rules: GaussianFilter | RenyiFilter, make_test: Callable[[], _Test]) -> bool:
    """Returns whether a charge is enough: its leak covers all mass, or it passes the test."""
    if Fraction(rules.leak_rate) * cost >= 1:
        return True
    value = float_below(cost)
    return value >= _SMALLEST_CHARGE and make_test()(value)


def _rounded_up(value: float) -> Fraction:
    mantissa, exponent = math.frexp(value)
    return Fraction(math.ceil(math.ldexp(mantissa, _CHARGE_BITS))) * Fraction(2) ** (exponent - _CHARGE_BITS)


def _renyi_charge(pair: PrivacyLossDistribution, rules: RenyiFilter) -> float:
    everything = (1 + _PROFILE_ROUND_OFF) / rules.leak_rate
    if everything <= _SMALLEST_CHARGE:
        return _SMALLEST_CHARGE
    # A charge is enough if it pays for the losses up to one of them, and its leak covers the larger ones.
    if math.isinf(rules.order):
        kept = np.append(0.0, pair.losses)
        kept[-1] = min(kept[-1], pair.largest_loss)
    else:
        moments = np.nan_to_num(_surplus(pair, rules.order), nan=math.inf, posinf=math.inf)
        kept = np.log1p(np.maximum(moments, 0.0)) * (1 + _PROFILE_ROUND_OFF) / (rules.order - 1)
    enough = float(np.maximum(_mass_beyond(pair) / rules.leak_rate, kept).min()) * (1 + _CHARGE_MARGIN)
    return min(max(enough, _SMALLEST_CHARGE), everything)


def _surplus(pair: PrivacyLossDistribution, order: float) -> FloatArray:
    """Returns upper bounds on the moment of an order, less 1, if only the losses up to each one are kept,
    shape (losses + 1,). The negatives of the left out losses would lower it; they count as 0."""
    theta = order - 1
    with np.errstate(over="ignore"):
        gains, pains = pair.p * np.expm1(theta * pair.losses), -pair.q * np.expm1(-theta * pair.losses)
    room = (64 + theta * pair.largest_loss) * UNIT_ROUND_OFF * (gains + pair.p + pair.q)
    return np.append(0.0, np.cumsum(gains - pains + room))


def _covering_test(pair: PrivacyLossDistribution, rules: RenyiFilter) -> _Test:
    """Returns the weakest known condition of the Renyi theorem as a test of charges; it depends little on the
    lattice of the pair. A part of one loss's mass may leak, and the rest count in the moment.

    At infinite order the condition is that the round is `(charge, leak)`-DP. Such a round is dominated by one
    that reveals everything with probability `leak`, and otherwise has no loss above `charge`.

    Source: Kairouz, Oh, Viswanath, Theorem 3.3, for infinite order.
    """
    if math.isinf(rules.order):
        return lambda charge: (
            pair.hockey_stick_divergence(charge) * (1 + _PROFILE_ROUND_OFF) <= rules.leak_rate * charge
        )
    theta, beyond, surplus = rules.order - 1, _mass_beyond(pair), _surplus(pair, rules.order)

    def holds(charge: float) -> bool:
        leak = rules.leak_rate * charge
        quiet = np.flatnonzero(beyond <= leak)
        if quiet.size == 0 or not math.isfinite(surplus[quiet[0]]):
            return False
        kept = int(quiet[0])
        moment = float(surplus[kept])
        if kept:
            share = (leak - beyond[kept]) / (beyond[kept - 1] - beyond[kept])
            moment -= float(share * (1 - _PROFILE_ROUND_OFF) * max(surplus[kept] - surplus[kept - 1], 0.0))
        return math.log1p(max(moment, 0.0)) * (1 + _PROFILE_ROUND_OFF) <= theta * charge

    return holds


class _GaussianCondition(NamedTuple):
    """The condition of the Gaussian filter's theorem on the charges of one round.

    Attributes:
        pair: the pair above the round's profile.
        rules: the filter.
        about: variance of the Gaussian pair with the same total variation, an estimate of the charge.
    """

    pair: PrivacyLossDistribution
    rules: GaussianFilter
    about: float

    @classmethod
    def of(cls, pair: PrivacyLossDistribution, rules: GaussianFilter) -> _GaussianCondition:
        """Returns the condition on charges of a round with this pair."""
        order = gaussian_order(pair.hockey_stick_divergence(0.0))
        return cls(pair, rules, max(order**2, _SMALLEST_CHARGE))

    def charges(self) -> list[float]:
        """Returns the charge at every reserve, never rising: a charge that is enough with less noise is with
        more."""
        charges: list[float] = []
        known, enough = -1.0, self._about_least() * (1 + _NEAR_THE_LEAST)
        for reserve in self.rules.reserves:
            smoothing = self._smoothing(reserve)
            before = charges[-1] if charges else math.inf
            if smoothing == known or before <= enough:
                charges.append(before)
            else:
                charges.append(min(before, self._charge(smoothing, before)))
            known = smoothing
        return charges

    def covers(self, costs: Sequence[Fraction], finer: float) -> bool:
        """Returns whether the charge at every reserve is proven to be enough, at that reserve or at a smaller
        one."""
        shown: list[Fraction] = []
        for reserve, cost in zip(self.rules.reserves, costs, strict=True):
            at_less, test = any(one <= cost for one in shown), partial(self._test, reserve, finer)
            if not at_less and not _is_enough(cost, self.rules, test):
                return False
            shown.append(cost)
        return True

    @property
    def least(self) -> float:
        """Returns the smallest charge that is tried."""
        return self.about / 4

    def profile(self, reserve: float, finer: float = 1.0) -> _Profile:
        """Returns the profile that the theorem compares; it has the same orders for all charges."""
        pair, leak, smoothing = self.pair, self.rules.leak_rate * self.least, self._smoothing(reserve)
        if smoothing:
            steps = max(_SMOOTHED_STEPS * math.sqrt(smoothing / self.about), _FEWEST_SMOOTHED_STEPS) * finer
            return _smoothed_profile(pair, smoothing, leak, steps, _GROWTH / finer)
        return _bare_profile(pair, math.sqrt(self.about), leak, _BARE_STEPS * finer, _GROWTH / finer)

    def _test(self, reserve: float, finer: float) -> _Test:
        shown = self.profile(reserve, finer)
        return lambda charge: shown.compared(self.rules.leak_rate, charge)[0]

    def _charge(self, reserve: float, before: float) -> float:
        """Returns the charge at one reserve; `before` is enough at a smaller one, or infinite."""
        # This charge's leak covers all mass, so it covers every round.
        everything = (1 + _PROFILE_ROUND_OFF) / self.rules.leak_rate
        if self.least >= everything:
            return self.least
        start = max(before if before < math.inf else self.about, self.least)
        return _smallest(self.profile(reserve), self.rules.leak_rate, start, self.least, everything)

    def _smoothing(self, reserve: float) -> float:
        """Returns the part of a reserve that is used; a charge that is enough with less noise is enough with
        more."""
        return min(reserve, _MOST_SMOOTHING * self.about)

    def _about_least(self) -> float:
        """Returns about the least charge at any reserve: the variance of the Gaussian pair with the same
        total variation, or with the same Renyi divergence of order 2 if that is smaller. No guarantee depends
        on it."""
        pair = self.pair
        with np.errstate(over="ignore"):
            moment = float(pair.p @ np.expm1(pair.losses) + pair.q @ np.expm1(-pair.losses))
        return min(self.about, math.log1p(max(moment, 0.0)))


class _Profile(NamedTuple):
    """Bounds on the profile of a round with noise.

    Attributes:
        losses: losses, ascending from 0, shape (orders,).
        values: upper bounds on the profile there, which is convex in the order and falls beyond the last
            loss.
        smoothing: variance of the noise that the profile includes.
    """

    losses: FloatArray
    values: FloatArray
    smoothing: float

    def compared(self, leak_rate: float, charge: float) -> tuple[bool, float]:
        """Returns whether the profile is at most `leak + (1 - leak)` times that of a Gaussian mechanism of
        variance `smoothing + charge`, at every order; the leak is `leak_rate * charge`. Also returns about
        the charge that is just enough: one Newton step, in the logarithms of the bounds.

        Guarantee: True only if it holds, round-off included.
        """
        leak = min(leak_rate * charge * (1 - _PROFILE_ROUND_OFF), 1.0)
        if not self.values[-1] <= leak:  # nor if it is not a number, as of losses above 709
            return False, float(self.values[-1]) / leak_rate
        last = int(np.argmax(self.values <= leak))
        if last == 0:
            return True, 0.0
        left, right = self.losses[:last], self.losses[1 : last + 1]
        middle, variance = (left + right) / 2, (self.smoothing + charge) * (1 - _PROFILE_ROUND_OFF)
        touching = gaussian_tangents(math.sqrt(variance), middle)
        with np.errstate(over="ignore"):
            order = np.exp(middle)
            rise = touching.slope_lower * order * -np.expm1(left - middle)
            fall = touching.slope_upper * order * np.expm1(right - middle)
        at_left = (touching.value + rise) * (1 - _TANGENT_ROUND_OFF)
        at_right = touching.value * (1 - _TANGENT_ROUND_OFF) - fall * (1 + _TANGENT_ROUND_OFF)
        share = 1 - leak - _PROFILE_ROUND_OFF * (1 - leak)
        values = np.array([self.values[:last], self.values[1 : last + 1]])
        bounds = leak + share * np.array([at_left, at_right])
        growth = leak_rate + share * gaussian_growth(math.sqrt(variance), self.losses[: last + 1])
        positive = np.maximum(bounds, TINY)
        lacking = positive * np.log(np.maximum(values, TINY) / positive)
        steps = lacking / np.array([growth[:-1], growth[1:]])
        return bool(np.all(bounds >= values)), charge + float(steps.max())


def _smallest(shown: _Profile, leak_rate: float, start: float, least: float, most: float) -> float:
    """Returns about the smallest charge from `least` to `most` for which the profile is below, raised by a
    margin; `most` must be enough without a test. The search begins at `start`."""
    low, high, at, steps = least / (1 + _SEARCH_PRECISION), most, min(start, most), 0
    while high > low * (1 + 2 * _SEARCH_PRECISION):
        enough, about = shown.compared(leak_rate, at)
        low, high = (low, at) if enough else (at, high)
        steps += 1
        # A little more, which is likely to be enough; or a little less than what is known to be enough.
        aim = min(about * (1 + _SEARCH_PRECISION / 2), high / (1 + _SEARCH_PRECISION))
        if steps % _BISECTING == 0 or not low < aim < high:
            aim = math.sqrt(low) * math.sqrt(high)
        at = min(max(aim, at / _LARGEST_STEP), at * _LARGEST_STEP)
    return min(high * (1 + _CHARGE_MARGIN), most)


def _bare_profile(
    pair: PrivacyLossDistribution, scale: float, leak: float, even: float, growth: float
) -> _Profile:
    """Returns upper bounds on the profile of the pair, up to where it is well below the leak."""
    knots, end = np.append(0.0, pair.losses), _end(pair, leak)
    losses = np.union1d(knots[knots <= end], _graded(scale, scale / even, end, growth))
    return _Profile(losses, (_bare_values(pair, losses) + pair.infinity) * (1 + _PROFILE_ROUND_OFF), 0.0)


def _bare_values(pair: PrivacyLossDistribution, losses: FloatArray) -> FloatArray:
    """Returns the profile of the pair without the mass at infinity, up to round-off, at ascending losses: a
    sum of positive terms."""
    knots = np.append(0.0, pair.losses)
    beyond_q = np.append(np.cumsum(pair.q[::-1])[::-1], 0.0)  # mass under Q above each knot
    steps = np.exp(knots[:-1]) * np.expm1(np.diff(knots))
    at_knots = np.append(np.cumsum((beyond_q[:-1] * steps)[::-1])[::-1], 0.0)
    above = np.minimum(np.searchsorted(knots, losses, side="left"), knots.size - 1)
    rest = np.exp(np.minimum(losses, knots[-1])) * np.expm1(np.maximum(knots[above] - losses, 0.0))
    return np.asarray(at_knots[above] + beyond_q[np.maximum(above - 1, 0)] * rest)


def _smoothed_profile(
    pair: PrivacyLossDistribution, variance: float, leak: float, steps: float, growth: float
) -> _Profile:
    """Returns upper bounds on the profile of the pair together with Gaussian noise of this variance. The
    losses are multiples of a part of the pair's spacing.

    With noise, each loss y of the pair adds `k(x - y)` at the loss x, k the noise's profile. As `k(-z) = 1 -
    exp(-z) + exp(-z) k(z)`, that is the profile of the pair itself, and `exp(min(x - y, 0)) k(|x - y|)` for
    each loss: a convolution.
    """
    deviation = math.sqrt(variance)
    end = _end(pair, leak) + (math.sqrt(2 * -math.log(leak / 8)) + 1) * deviation + variance
    fine = deviation / steps
    parts = math.ceil(pair.spacing / fine)
    unit = pair.spacing / parts
    orders = np.unique(np.ceil(_graded(deviation, fine, end, growth) / unit).astype(np.int64))
    atoms = np.concatenate([-pair.index[::-1], [0], pair.index]) * parts
    if int(orders[-1] + 2 * atoms[-1]) > _MOST_KERNEL_POINTS:
        return _Profile(np.zeros(1), np.ones(1), variance)  # the trivial bound
    losses = np.asarray(orders * unit, dtype=np.float64)
    masses = np.concatenate([pair.q[::-1], [pair.zero], pair.p])

    def kernel(places: IndexArray) -> FloatArray:
        found = gaussian_divergence(deviation, np.abs(places) * unit)[1]
        return np.asarray(found * np.exp(np.minimum(places, 0) * unit))

    values = _bare_values(pair, losses) + _convolved(kernel, orders, atoms, masses, leak)
    return _Profile(losses, (values + pair.infinity) * (1 + _PROFILE_ROUND_OFF), variance)


def _convolved(
    kernel: Callable[[IndexArray], FloatArray],
    orders: IndexArray,
    atoms: IndexArray,
    masses: FloatArray,
    least: float,
) -> FloatArray:
    """Returns upper bounds on the sums of `masses * kernel(order - atoms)`, shape (orders,), which round-off
    raises by at most a small share of each, or of `least`. The atoms ascend, and are symmetric about 0."""
    largest, elements = int(atoms[-1]), orders.size * atoms.size
    size, values, first = int(orders[-1]) + 2 * largest + 1, kernel, 0
    if elements > size:
        table = kernel(np.arange(size) - largest)
        if elements > ELEMENTS_PER_POINT * size:
            # Weights that rise with the loss make the round-off small beside the small sums of large losses.
            rate = 2 * max(math.log(table[largest] / least), 0.0) / size
            weighted = table * np.exp(rate * (np.arange(size) - largest))
            spread = np.bincount(atoms + largest, weights=masses * np.exp(rate * atoms))
            length = scipy.fft.next_fast_len(size, real=True)
            sums = scipy.fft.irfft(scipy.fft.rfft(weighted, length) * scipy.fft.rfft(spread, length), length)
            # An FFT has an error of a few units for each stage, relative to the norm of its result.
            norms = 2 * np.linalg.norm(weighted) * np.linalg.norm(spread) + np.linalg.norm(sums)
            doubt = UNIT_ROUND_OFF * (7 * math.log2(length) + 8) * float(norms)
            back, near = np.exp(-rate * orders), np.maximum(sums[orders + 2 * largest], 0.0)
            if np.all(doubt * back <= (near * back + least) / _VALUES_PER_DOUBT):
                return np.asarray((near + doubt) * back)
        values, first = table.__getitem__, largest
    found, rows = np.empty(orders.size), max(1, _BLOCK_ELEMENTS // atoms.size)
    for start in range(0, orders.size, rows):
        some = slice(start, start + rows)
        found[some] = values(orders[some, None] - (atoms - first)) @ masses
    return found


def _graded(deviation: float, fine: float, end: float, growth: float) -> FloatArray:
    """Returns losses from 0 to `end`, first evenly and then geometrically spaced."""
    even = min(_EVEN_DEVIATIONS * deviation, end)
    losses = np.append(np.arange(0.0, even, fine), even)
    if end > even:
        far = math.ceil(math.log(end / even) / math.log1p(growth))
        losses = np.append(losses, even * (end / even) ** (np.arange(1, far + 1) / far))
    return losses


def _mass_beyond(pair: PrivacyLossDistribution) -> FloatArray:
    """Returns upper bounds on the mass under P from each loss on, and on the mass at infinity, shape (losses
    + 1,)."""
    return (np.append(np.cumsum(pair.p[::-1])[::-1], 0.0) + pair.infinity) * (1 + _PROFILE_ROUND_OFF)


def _end(pair: PrivacyLossDistribution, leak: float) -> float:
    """Returns a loss beyond which the pair's profile is well below the leak, or the pair's largest loss."""
    if pair.index.size == 0:
        return 0.0
    quiet = np.flatnonzero(_mass_beyond(pair) <= leak / 4)
    last = pair.index.size - 1
    return float(pair.losses[min(int(quiet[0]), last) if quiet.size else last])
