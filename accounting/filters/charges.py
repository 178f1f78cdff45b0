"""What a round costs the filters: the smallest certified charges, from the pair above its privacy loss.

A round of charge c at a reserve v is dominated, together with Gaussian noise of variance v, by a Gaussian
mechanism of variance v + c, but for a mass `leak_rate * c`. Both divergences are convex in the order: between
two orders the round's lies below its chord and the Gaussian's above any tangent, so that comparing a chord
with a tangent at the ends of a cell settles the whole cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from shuffle_ledger.accounting.filters.filter_set import Charge, FilterSet
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, RenyiFilter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence, gaussian_order, gaussian_tangents

# Charges are rounded up to so many significant bits, which keeps exact sums short.
_BITS = 32
_PRECISION = 2e-4  # of a charge, relative
_MARGIN = 1e-4  # on top of it, so that whoever looks again, with other round-off, finds it enough
# More smoothing than this many times the charge would hardly make it smaller, only harder to compute.
_SMOOTHEST = 1024.0
# Charges that near to the smallest there may be are not computed again for more noise.
_GAUSSIAN_ENOUGH = 2.0**-8
# Orders to a deviation of the smoothing, for the root of how many charges it is: chords are off by the square
# of a step, and a charge moves the profile by its share of the variance.
_SMOOTHED_STEPS = 8.0
_SMOOTHED_STEPS_MIN = 64.0
# Orders to a deviation of the Gaussian, where nothing is smoothed.
_BARE_STEPS = 40.0
_GROWTH = 0.012  # and of neighbouring losses, far out
_FINE_DEVIATIONS = 9.0
_KERNEL_POINTS_MAX = 1 << 22
# For sums of as many terms as a pair has losses, some 2^-37 of the sum, and for rounded places of losses: up
# to 2^-31 of the profile where the noise is as narrow as `_KERNEL_POINTS_MAX` allows.
_ROOM = 2.0**-30
# The round-off of a tangent's few operations.
_LINE_ROOM = 2.0**-48
_SMALLEST = 1e-30
_BLOCK_ELEMENTS = 1 << 20

_Test = Callable[[float], bool]  # of a charge: does the filter's theorem hold at it?


class KnownBounds(NamedTuple):
    """Bounds on a round that do not come from its pair, infinite where none is known.

    Attributes:
        mu: of Gaussian privacy: its divergences are at most those of `N(mu, 1)` against `N(0, 1)`.
        renyi: of the Renyi divergence of an order, in both directions.
    """

    mu: float
    renyi: Callable[[float], float]

    def charges(self, filters: FilterSet) -> tuple[list[float], list[float]]:
        """Charges of the Gaussian filter and of every Renyi filter that need no leak."""
        gaussian = [self.mu**2 * (1 + _ROOM)] * len(filters.gaussian.reserves)
        orders = [one.order for one in filters.renyi]
        return gaussian, [math.inf if math.isinf(order) else self.renyi(order) for order in orders]


def charge_of(
    pair: PrivacyLossDistribution,
    filters: FilterSet,
    *,
    slack: float = 0.0,
    certain_loss: float = 0.0,
    known: KnownBounds | None = None,
) -> Charge:
    """The smallest certified charge of every filter, and the part of the accounts of delta if there are any.

    Args:
        pair: the pair above the round's profile.
        filters: the budget's filters.
        slack: total variation distance of the round to the one the pair dominates.
        certain_loss: how much of the pair's mass at infinity the accounts pay for; 0 without accounts.
        known: bounds on a round without slack whose charges count where they are smaller.

    Guarantee: every charge is what its filter's theorem asks for, floating-point round-off included.
    """
    account: tuple[Fraction, ...] = ()
    if filters.accounts is not None:
        account = (_rounded_up(certain_loss), _rounded_up(slack))
        pair, slack = pair.unless_revealed(certain_loss), 0.0
    gaussian = _gaussian_charges(pair, filters.gaussian, slack)
    renyi = [_renyi_charge(pair, one, slack) for one in filters.renyi]
    if known is not None and slack == 0:
        least = known.charges(filters)
        gaussian, renyi = list(map(min, gaussian, least[0])), list(map(min, renyi, least[1]))
    charges = {"gaussian": tuple(map(_rounded_up, gaussian)), "renyi": tuple(map(_rounded_up, renyi))}
    return Charge(**charges, account=account)


def is_covered(
    pair: PrivacyLossDistribution,
    filters: FilterSet,
    charge: Charge,
    *,
    slack: float = 0.0,
    finer: float = 1.0,
) -> bool:
    """Whether a charge, whoever made it, is shown to be what the theorem of every Gaussian and Renyi filter
    asks for.

    Args:
        pair: a pair above the round's profile.
        slack: total variation distance of the round to the one the pair dominates.
        finer: how many times as many orders to look at as `charge_of` does.

    Guarantee: True only where the theorems hold, floating-point round-off included; what `charge_of` answers
        for the same pair and slack is covered.
    """
    if filters.accounts is not None:
        certain_loss, paid = charge.account
        if certain_loss < 0 or paid < Fraction(slack):
            return False
        # Whatever part of the mass at infinity the account pays for, the filters need not pay.
        pair, slack = pair.unless_revealed(min(_float_below(certain_loss), pair.infinity)), 0.0
    return _gaussian_covered(pair, filters.gaussian, charge.gaussian, slack, finer) and all(
        _is_enough(cost, one, slack, partial(_covering_test, pair, one))
        for one, cost in zip(filters.renyi, charge.renyi, strict=True)
    )


def _gaussian_covered(
    pair: PrivacyLossDistribution,
    rules: GaussianFilter,
    costs: Sequence[Fraction],
    slack: float,
    finer: float,
) -> bool:
    """Whether the charge at every reserve is shown to be enough, there or at a smaller reserve."""
    shown: list[Fraction] = []
    for reserve, cost in zip(rules.reserves, costs, strict=True):
        at_less = any(one <= cost for one in shown)
        test = partial(_gaussian_test, pair, rules, reserve, slack, finer)
        if not at_less and not _is_enough(cost, rules, slack, test):
            return False
        shown.append(cost)
    return True


def _is_enough(
    cost: Fraction, rules: GaussianFilter | RenyiFilter, slack: float, make_test: Callable[[], _Test]
) -> bool:
    """Whether a charge's leak is all mass, or both its slack and its dominating pair suffice."""
    if Fraction(rules.leak_rate) * cost >= 1:
        return True
    value = _float_below(cost)
    has_room = value >= _SMALLEST and Fraction(slack) <= Fraction(rules.slack_rate) * cost
    return has_room and make_test()(value)


def _float_below(value: Fraction) -> float:
    rounded = float(value)
    return rounded if Fraction(rounded) <= value else math.nextafter(rounded, -math.inf)


def _rounded_up(value: float) -> Fraction:
    mantissa, exponent = math.frexp(value)
    return Fraction(math.ceil(math.ldexp(mantissa, _BITS))) * Fraction(2) ** (exponent - _BITS)


def _gaussian_charges(pair: PrivacyLossDistribution, rules: GaussianFilter, slack: float) -> list[float]:
    """The charge at every reserve. What holds at less noise holds at more, so that they never rise."""
    charges: list[float] = []
    known, enough = -1.0, _least_to_hope_for(pair) * (1 + _GAUSSIAN_ENOUGH)
    for reserve in rules.reserves:
        smoothing = _smoothing(pair, reserve)
        before = charges[-1] if charges else math.inf
        if smoothing == known or before <= enough:
            charges.append(before)
        else:
            charges.append(min(before, _gaussian_charge(pair, rules, smoothing, slack)))
        known = smoothing
    return charges


def _gaussian_charge(
    pair: PrivacyLossDistribution, rules: GaussianFilter, reserve: float, slack: float
) -> float:
    everything = (1 + _ROOM) / rules.leak_rate  # its leak is all mass: it covers whatever a round reveals
    least = _least(pair, rules, slack)
    if least >= everything:
        return least
    return _smallest(_gaussian_test(pair, rules, reserve, slack, 1.0), least, everything)


def _least(pair: PrivacyLossDistribution, rules: GaussianFilter, slack: float) -> float:
    """The smallest charge that is tried."""
    return max(_about(pair) / 4, _for_slack(rules, slack))


def _for_slack(rules: GaussianFilter | RenyiFilter, slack: float) -> float:
    """The smallest charge that pays for a round's slack."""
    return slack / rules.slack_rate * (1 + _ROOM) if slack > 0 else 0.0


def _gaussian_test(
    pair: PrivacyLossDistribution, rules: GaussianFilter, reserve: float, slack: float, finer: float
) -> _Test:
    """The theorem's condition on charges. The orders looked at are the same for all of them."""
    about, least = _about(pair), _least(pair, rules, slack)
    smoothing = _smoothing(pair, reserve)
    leak = rules.leak_rate * least
    if smoothing:
        steps = max(_SMOOTHED_STEPS * math.sqrt(smoothing / about), _SMOOTHED_STEPS_MIN) * finer
        losses, values = _smoothed_profile(pair, smoothing, leak, steps, _GROWTH / finer)
    else:
        losses, values = _bare_profile(pair, math.sqrt(about), leak, _BARE_STEPS * finer, _GROWTH / finer)
    return lambda charge: _is_below(losses, values, smoothing, charge, rules.leak_rate)


def _smoothing(pair: PrivacyLossDistribution, reserve: float) -> float:
    """So much of a reserve is looked at: a charge at less noise holds at more."""
    return min(reserve, _SMOOTHEST * _about(pair))


def _about(pair: PrivacyLossDistribution) -> float:
    """The variance of the Gaussian pair of the same total variation: about what a round is charged."""
    return max(gaussian_order(pair.hockey_stick_divergence(0.0)) ** 2, _SMALLEST)


def _least_to_hope_for(pair: PrivacyLossDistribution) -> float:
    """About what a round is charged at any reserve: the variance of the Gaussian pair of the same total
    variation, or of the same divergence of order 2 if that is less. Nothing rests on it.
    """
    with np.errstate(over="ignore"):
        moment = float(pair.p @ np.expm1(pair.losses) + pair.q @ np.expm1(-pair.losses))
    return min(_about(pair), math.log1p(max(moment, 0.0)))


def _renyi_charge(pair: PrivacyLossDistribution, rules: RenyiFilter, slack: float) -> float:
    everything = (1 + _ROOM) / rules.leak_rate
    if slack > 0 and rules.slack_rate == 0:
        return everything
    least = max(_for_slack(rules, slack), _SMALLEST)
    if least >= everything:
        return least
    return _smallest(_renyi_test(pair, rules), least, everything)


def _renyi_test(pair: PrivacyLossDistribution, rules: RenyiFilter, *, partly: bool = False) -> _Test:
    """The theorem's condition on charges. With `partly` a part of a loss's mass may leave the moment."""
    if math.isinf(rules.order):
        return lambda charge: _is_within(pair, charge, rules.leak_rate)
    theta = rules.order - 1
    beyond = _mass_beyond(pair)
    with np.errstate(over="ignore"):
        gains, pains = pair.p * np.expm1(theta * pair.losses), -pair.q * np.expm1(-theta * pair.losses)
    room = (64 + theta * pair.largest_loss) * UNIT_ROUND_OFF * (gains + pair.p + pair.q)
    # The moment minus 1 when losses up to each position are kept. Those at the negatives of losses that are
    # left out only lower it: they are counted as if they left it as it was.
    surplus = np.append(0.0, np.cumsum(gains - pains + room))

    def holds(charge: float) -> bool:
        leak = rules.leak_rate * charge
        quiet = np.flatnonzero(beyond <= leak)
        if quiet.size == 0 or not math.isfinite(surplus[quiet[0]]):
            return False
        kept = int(quiet[0])
        moment = float(surplus[kept])
        if partly and kept:
            share = (leak - beyond[kept]) / (beyond[kept - 1] - beyond[kept])
            moment -= float(share * (1 - _ROOM) * max(surplus[kept] - surplus[kept - 1], 0.0))
        return math.log1p(max(moment, 0.0)) * (1 + _ROOM) <= theta * charge

    return holds


def _covering_test(pair: PrivacyLossDistribution, rules: RenyiFilter) -> _Test:
    """The weakest conditions known, which hardly depend on where a pair has its losses.

    For largest losses: that the round is `(charge, leak)`-DP. Such a round reveals everything with the leak's
    probability, and else has no larger loss (Kairouz, Oh, Viswanath, Theorem 3.3).
    """
    if math.isinf(rules.order):
        return lambda charge: pair.hockey_stick_divergence(charge) * (1 + _ROOM) <= rules.leak_rate * charge
    return _renyi_test(pair, rules, partly=True)


def _is_within(pair: PrivacyLossDistribution, charge: float, leak_rate: float) -> bool:
    """Whether losses beyond a charge are no more than its leak."""
    quiet = np.flatnonzero(_mass_beyond(pair) <= leak_rate * charge)
    if quiet.size == 0:
        return False
    kept = int(quiet[0])
    return (
        pair.largest_loss if kept == pair.index.size else float(np.append(0.0, pair.losses)[kept])
    ) <= charge


def _smallest(holds: _Test, least: float, most: float) -> float:
    """About the smallest charge between `least` and `most` that holds; `most` does, whatever is said."""
    low = high = least
    while not holds(high):
        low, high = high, high * 2
        if high >= most:
            return most
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high * (1 + _MARGIN)


def _is_below(
    losses: FloatArray, values: FloatArray, smoothing: float, charge: float, leak_rate: float
) -> bool:
    """Whether a profile is at most the leak of a charge, plus the rest of a Gaussian mechanism's profile.

    The profile is convex, with these upper bounds at these losses, and falls beyond the last one.
    """
    leak = min(leak_rate * charge * (1 - _ROOM), 1.0)
    if values[-1] > leak:
        return False
    last = int(np.argmax(values <= leak))
    if last == 0:
        return True
    left, right = losses[:last], losses[1 : last + 1]
    middle = (left + right) / 2
    touching = gaussian_tangents(math.sqrt((smoothing + charge) * (1 - _ROOM)), middle)
    with np.errstate(over="ignore"):
        order = np.exp(middle)
        rise = touching.slope_lower * order * -np.expm1(left - middle)
        fall = touching.slope_upper * order * np.expm1(right - middle)
    at_left = (touching.value + rise) * (1 - _LINE_ROOM)
    at_right = touching.value * (1 - _LINE_ROOM) - fall * (1 + _LINE_ROOM)
    room = _ROOM * (1 - leak)
    enough = (leak + (1 - leak - room) * at_left >= values[:last]) & (
        leak + (1 - leak - room) * at_right >= values[1 : last + 1]
    )
    return bool(np.all(enough))


def _bare_profile(
    pair: PrivacyLossDistribution, scale: float, leak: float, even: float, growth: float
) -> tuple[FloatArray, FloatArray]:
    """The profile of the pair itself at its losses and between them, as far as it is above the leak."""
    knots = np.append(0.0, pair.losses)
    beyond_q = np.append(np.cumsum(pair.q[::-1])[::-1], 0.0)  # mass under Q above each knot
    steps = np.exp(knots[:-1]) * np.expm1(np.diff(knots))
    at_knots = np.append(np.cumsum((beyond_q[:-1] * steps)[::-1])[::-1], 0.0) + pair.infinity
    end = _end(pair, leak)
    kept = knots[knots <= end]
    losses = np.union1d(kept, _graded(scale, scale / even, end, growth))
    above = np.minimum(np.searchsorted(knots, losses, side="left"), knots.size - 1)
    rest = np.exp(losses) * np.expm1(np.maximum(knots[above] - losses, 0.0))
    values = at_knots[above] + beyond_q[np.maximum(above - 1, 0)] * rest
    return losses, values * (1 + _ROOM)


def _smoothed_profile(
    pair: PrivacyLossDistribution, variance: float, leak: float, steps: float, growth: float
) -> tuple[FloatArray, FloatArray]:
    """The profile of the pair together with Gaussian noise, at multiples of a part of the pair's spacing."""
    deviation = math.sqrt(variance)
    end = _end(pair, leak) + (math.sqrt(2 * -math.log(leak / 8)) + 1) * deviation + variance
    fine = deviation / steps
    parts = math.ceil(pair.spacing / fine)
    unit = pair.spacing / parts
    orders = np.unique(np.ceil(_graded(deviation, fine, end, growth) / unit).astype(np.int64))
    atoms = np.concatenate([-pair.index[::-1], [0], pair.index]) * parts
    masses = np.concatenate([pair.q[::-1], [pair.zero], pair.p])
    lowest = int(-atoms[-1])
    highest = int(orders[-1] + atoms[-1])
    if highest - lowest > _KERNEL_POINTS_MAX:
        return np.zeros(1), np.ones(1)  # nothing is known but that it is at most 1
    positions = np.arange(lowest, highest + 1, dtype=np.float64)
    kernel = gaussian_divergence(deviation, positions * unit)[1]
    values = np.empty(orders.size)
    rows = max(1, _BLOCK_ELEMENTS // atoms.size)
    for start in range(0, orders.size, rows):
        block = orders[start : start + rows, None] - atoms[None, :] - lowest
        values[start : start + rows] = kernel[block] @ masses
    return orders.astype(np.float64) * unit, (values + pair.infinity) * (1 + _ROOM)


def _graded(deviation: float, fine: float, end: float, growth: float) -> FloatArray:
    """Losses from 0 to `end`, evenly and then geometrically spaced."""
    even = min(_FINE_DEVIATIONS * deviation, end)
    losses = np.append(np.arange(0.0, even, fine), even)
    if end > even:
        far = math.ceil(math.log(end / even) / math.log1p(growth))
        losses = np.append(losses, even * (end / even) ** (np.arange(1, far + 1) / far))
    return losses


def _mass_beyond(pair: PrivacyLossDistribution) -> FloatArray:
    """Mass under P at each loss and above, and at infinity alone."""
    return (np.append(np.cumsum(pair.p[::-1])[::-1], 0.0) + pair.infinity) * (1 + _ROOM)


def _end(pair: PrivacyLossDistribution, leak: float) -> float:
    """A loss beyond which the pair's profile is well below a leak, or its largest one."""
    if pair.index.size == 0:
        return 0.0
    quiet = np.flatnonzero(_mass_beyond(pair) <= leak / 4)
    last = pair.index.size - 1
    return float(pair.losses[min(int(quiet[0]), last) if quiet.size else last])
