"""The accountant: the one door through which certified numbers leave this package."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import optimize

from accounting import checks
from accounting.certificate import Certificate, Interval
from accounting.charges import charge_of
from accounting.composition import Composition
from accounting.errors import InvalidParameter
from accounting.filters import Charge, FilterSet
from accounting.privacy_loss import from_profile
from accounting.round_loss import RoundLoss
from accounting.shuffling import RoundProfile, ShuffledRound
from accounting.spectrum import Contour, LossSpectrum, SpectrumMemory

DEFAULT_PRECISION = 1e-3

_MAXIMUM_KINDS_REMEMBERED = 1024
_MAXIMUM_CHARGES_REMEMBERED = 8192
_MAXIMUM_ROUNDS = 10**7
# Widths of the smoothing kernels, in units of the root of the precision: of a round's profile, and, tried in
# turn, of a sum of rounds.
_PROFILE_SMOOTHING = 0.45
_SMOOTHINGS = (0.5, 0.15, 0.04, 0.01, 0.0025)
_RETILTS = 12
_SETTLED = 1  # steps of the grid of tilts
_NUDGES = 14
_NOTHING = 1e-320
_SLACK_STEPS = 80
# Losses computed elsewhere are compared with the profile this coarsely, at so many orders.
_PLAUSIBLE = 0.05
_PLAUSIBLE_POINTS = 24
# A single round's answer is narrowed by its own profile, at this many points, this often.
_SHARP = 0.1
_SHARP_POINTS = 17
_SHARPENINGS = 2


class _Remembered(NamedTuple):
    """A round's loss, and what compositions asked of its two pairs."""

    loss: RoundLoss
    upper: LossSpectrum
    lower: LossSpectrum


class Accountant:
    """Computes and remembers the privacy losses of rounds, and certifies their composition.

    Args:
        precision: wanted relative width of intervals of epsilon, from 1e-6 to 0.1.

    One instance may be used by one thread at a time.

    Raises:
        InvalidParameter: precision is out of range.
    """

    def __init__(self, *, precision: float = DEFAULT_PRECISION) -> None:
        self.precision = checks.real("precision", precision, "a number from 1e-6 to 0.1")
        if not 1e-6 <= self.precision <= 0.1:
            raise InvalidParameter("precision", precision, "a number from 1e-6 to 0.1")
        self._spectra = SpectrumMemory()
        self._losses: OrderedDict[ShuffledRound, _Remembered] = OrderedDict()
        self._charges: OrderedDict[tuple[ShuffledRound, FilterSet], Charge] = OrderedDict()

    def knows(self, shuffled: ShuffledRound) -> bool:
        """Whether the round's privacy loss is in memory."""
        return shuffled in self._losses

    def adopt(self, shuffled: ShuffledRound, loss: RoundLoss) -> None:
        """Remember a privacy loss computed elsewhere for this round, under the same numerical policy."""
        self._losses[shuffled] = _Remembered(
            loss, LossSpectrum(loss.upper, self._spectra), LossSpectrum(loss.lower, self._spectra)
        )
        self._losses.move_to_end(shuffled)
        while len(self._losses) > _MAXIMUM_KINDS_REMEMBERED:
            self._losses.popitem(last=False)

    def encloses(self, shuffled: ShuffledRound, loss: RoundLoss) -> bool:
        """Whether a loss from elsewhere has the round's profile between its pairs, at orders all along the
        profile.

        True for every loss this package computed for the round; a loss of another round is told apart by the
        bounds of its own profile.
        """
        profile = RoundProfile(shuffled, smoothing=_PLAUSIBLE)
        if loss.upper.support < profile.largest_loss * (1 - 1e-12):
            return False
        losses = np.linspace(0.0, profile.end, _PLAUSIBLE_POINTS)[:-1] ** 2 / profile.end
        bounds = profile.outline(np.expm1(losses))
        above = np.array([loss.upper.hockey_stick_divergence(float(x)) for x in losses])
        below = np.array([loss.lower.hockey_stick_divergence(float(x)) for x in losses])
        enough = above * (1 + 1e-9) >= bounds.lower
        return bool(np.all(enough) and np.all(below * (1 - 1e-9) <= bounds.upper))

    def privacy_loss(self, shuffled: ShuffledRound) -> RoundLoss:
        """The privacy loss of one round.

        Guarantee: its pairs enclose the round's privacy profile at every order.
        """
        return self._remembered(shuffled).loss

    def _remembered(self, shuffled: ShuffledRound) -> _Remembered:
        if shuffled not in self._losses:
            profile = RoundProfile(shuffled, smoothing=_PROFILE_SMOOTHING * math.sqrt(self.precision))
            upper, lower = from_profile(
                profile,
                largest_loss=profile.largest_loss,
                end=profile.end,
                infinity=profile.infinity,
                precision=self.precision,
                cheap=profile.is_enumerated,
            )
            self.adopt(shuffled, RoundLoss(upper=upper, lower=lower))
        self._losses.move_to_end(shuffled)
        return self._losses[shuffled]

    def knows_charge(self, shuffled: ShuffledRound, filters: FilterSet) -> bool:
        """Whether the round's charge, or the privacy loss it is computed from, is in memory."""
        return (shuffled, filters) in self._charges or shuffled in self._losses

    def charge(self, shuffled: ShuffledRound, filters: FilterSet) -> Charge:
        """What a round costs each of a budget's filters; see `charge_of`. Remembered."""
        key = (shuffled, filters)
        if key not in self._charges:
            pair = self._remembered(shuffled).loss.upper
            self._charges[key] = charge_of(pair, filters, slack=_slack({shuffled: 1}))
            while len(self._charges) > _MAXIMUM_CHARGES_REMEMBERED:
                self._charges.popitem(last=False)
        return self._charges[key]

    def certify(self, rounds: Mapping[ShuffledRound, int], *, delta: float) -> Certificate:
        """Certified epsilon at `delta` of rounds, each repeated as often as `rounds` says.

        Guarantee: `epsilon_lower <= epsilon <= epsilon_upper`, where epsilon is the exact value of the
            rounds'
        analyses, provided the rounds' parameters were fixed before the first one.

        Raises:
            InvalidParameter: delta is not in (0, 1), or a count is not a whole number from 0.
        """
        delta = checks.probability("delta", delta)
        above, below, count = self._compositions(rounds)
        slack = _slack(rounds)
        if count == 0:
            interval = Interval(upper=0.0, lower=0.0)
        elif slack == 0:
            interval = self._epsilon(above, below, delta)
            if count == 1:
                interval = _sharpened_epsilon(_only(rounds), interval, delta, self.precision)
        else:
            interval = self._epsilon_with_slack(above, below, delta, slack)
        return Certificate(
            epsilon_upper=interval.upper,
            epsilon_lower=interval.lower,
            delta_upper=delta,
            delta_lower=delta,
            rounds=count,
            error=interval.error(),
            precise=interval.width <= self.precision * interval.upper,
        )

    def certify_delta(self, rounds: Mapping[ShuffledRound, int], *, epsilon: float) -> Certificate:
        """Certified delta at `epsilon >= 0` of rounds, each repeated as often as `rounds` says.

        Guarantee: `delta_lower <= delta <= delta_upper`, as for `certify`. `precise` means that delta's width
            is what
        the wanted width of epsilon makes of it.

        Raises:
            InvalidParameter: epsilon is negative, not finite or beyond 1e9, or a count is not a whole number
                from 0.
        """
        epsilon = checks.answered_epsilon(epsilon)
        above, below, count = self._compositions(rounds)
        interval = Interval(upper=0.0, lower=0.0)
        steepness = 1.0
        for step, smoothing in enumerate(_SMOOTHINGS if count else ()):
            contour = above.contour(min(epsilon, above.largest_loss), smoothing * math.sqrt(self.precision))
            high = above.delta(epsilon, contour)
            low = below.delta(epsilon, below.widened(epsilon, contour))
            steepness = 1 + epsilon * contour.theta
            causes = {"truncation": high.truncation, "round_off": high.round_off + low.round_off}
            found = Interval(upper=high.value, lower=min(low.value, high.value), **causes)
            interval = found if step == 0 else interval.intersection(found)
            if interval.width <= self.precision * steepness * interval.upper:
                break
        if count == 1:
            interval = _sharpened_delta(_only(rounds), interval, epsilon, self.precision)
        slack = (1 + math.exp(min(epsilon, 700.0))) * _slack(rounds)
        upper, truncation = min(interval.upper + slack, 1.0), interval.truncation + slack
        shifted = Interval(
            upper=upper, lower=interval.lower, truncation=truncation, round_off=interval.round_off
        )
        return Certificate(
            epsilon_upper=epsilon,
            epsilon_lower=epsilon,
            delta_upper=shifted.upper,
            delta_lower=shifted.lower,
            rounds=count,
            error=shifted.error(),
            precise=interval.width <= self.precision * steepness * interval.upper,
        )

    def _compositions(self, rounds: Mapping[ShuffledRound, int]) -> tuple[Composition, Composition, int]:
        counts = {one: checks.whole("count", count, 0, _MAXIMUM_ROUNDS) for one, count in rounds.items()}
        total = sum(counts.values())
        if total > _MAXIMUM_ROUNDS:
            raise InvalidParameter("count", total, f"at most {_MAXIMUM_ROUNDS} rounds altogether")
        parts = [(self._remembered(one), count) for one, count in counts.items() if count]
        above = Composition([(part.upper, count) for part, count in parts], "upper")
        below = Composition([(part.lower, count) for part, count in parts], "lower")
        return above, below, total

    def _epsilon(self, above: Composition, below: Composition, delta: float) -> Interval:
        """Bounds on epsilon at delta: ever less smoothing, until they are as close as was asked or stop
        closing in."""
        if above.infinity >= delta:
            return Interval(upper=math.inf, lower=0.0, truncation=math.inf)
        interval = Interval(upper=above.largest_loss, lower=0.0)
        for smoothing in _SMOOTHINGS:
            found, smoothed = _epsilon_once(above, below, delta, smoothing * math.sqrt(self.precision))
            interval = interval.intersection(found)
            # Less smoothing helps only while smoothing is what makes the interval wide.
            if interval.width <= self.precision * interval.upper or smoothed < 0.3 * interval.width:
                break
        return interval

    def _epsilon_with_slack(
        self, above: Composition, below: Composition, delta: float, slack: float
    ) -> Interval:
        """Bounds on epsilon when rounds are pure up to a total variation distance, which costs (1 +
        exp(epsilon)) slack.

        An epsilon is guessed; if what is left of delta gives an answer below the guess, the answer holds.
        """
        guess = lower = 0.0
        for _ in range(_SLACK_STEPS):
            left = delta - (1 + math.exp(min(guess, 700.0))) * slack
            if left <= 0:
                break
            answer = self._epsilon(above, below, left)
            if guess == 0:
                rest = delta - (1 + math.exp(answer.lower)) * slack
                lower = self._epsilon(above, below, rest).lower if rest > 0 else answer.lower
            if answer.upper <= guess:
                lower = min(lower, answer.upper)
                truncation = answer.truncation + max(answer.lower - lower, 0.0)
                return Interval(
                    upper=answer.upper, lower=lower, truncation=truncation, round_off=answer.round_off
                )
            guess = answer.upper * (1 + self.precision / 8) + 1e-12
        return Interval(upper=math.inf, lower=lower, truncation=math.inf)


def _slack(rounds: Mapping[ShuffledRound, int]) -> float:
    """Total variation slack of all rounds together, rounded up."""
    return math.fsum(count * one.slack for one, count in rounds.items()) * (1 + 1e-12)


def _only(rounds: Mapping[ShuffledRound, int]) -> ShuffledRound:
    return next(one for one, count in rounds.items() if count)


def _sharpened_delta(
    shuffled: ShuffledRound, interval: Interval, epsilon: float, precision: float
) -> Interval:
    """The interval intersected with the round's own profile, which no lattice has widened."""
    profile = RoundProfile(shuffled, smoothing=_SHARP * math.sqrt(precision))
    if not profile.is_simple or epsilon >= profile.end:
        return interval
    bounds = profile(np.expm1([epsilon]))
    return interval.intersection(Interval(upper=float(bounds.upper[0]), lower=float(bounds.lower[0])))


def _sharpened_epsilon(
    shuffled: ShuffledRound, interval: Interval, delta: float, precision: float
) -> Interval:
    """The interval narrowed by the round's own profile at points inside it."""
    profile = RoundProfile(shuffled, smoothing=_SHARP * math.sqrt(precision))
    upper, lower = interval.upper, interval.lower
    if not profile.is_simple or not lower < upper < math.inf:
        return interval
    for _ in range(_SHARPENINGS):
        points = np.linspace(lower, min(upper, profile.end), _SHARP_POINTS)
        bounds = profile(np.expm1(points))
        enough = np.flatnonzero(bounds.upper <= delta)
        needed = np.flatnonzero(bounds.lower >= delta)
        upper = min(upper, float(points[enough[0]])) if enough.size else upper
        lower = max(lower, float(points[needed[-1]])) if needed.size else lower
    lower = min(lower, upper)
    causes = {
        cause: min(getattr(interval, cause), (upper - lower) / 2) for cause in ("truncation", "round_off")
    }
    return Interval(upper=upper, lower=lower, **causes)


def _epsilon_once(
    above: Composition, below: Composition, delta: float, smoothing: float
) -> tuple[Interval, float]:
    """Bounds on epsilon at delta from one smoothing, and how much of their distance is smoothing.

    Tilts to a guess, and again if the answer turns out elsewhere.
    """
    guess = min(_gaussian_epsilon(above.variance, delta), above.largest_loss / 2)
    upper = above.largest_loss
    contour = above.contour(guess, smoothing)
    for _ in range(_RETILTS):
        found = _beyond(above, contour, delta, guess)
        upper = min(upper, found)
        guess, before = found, contour
        contour = above.contour(guess, smoothing)
        if abs(contour.tilt - before.tilt) <= _SETTLED:
            contour = before
            break
    if upper == 0:
        return Interval(upper=0.0, lower=0.0), 0.0
    lower = _before(below, below.widened(upper, contour), delta, upper)
    at, nearby = above.delta(upper, contour), above.delta(upper * (1 - 1e-3), contour)
    slope = max((nearby.value - at.value) / (1e-3 * upper), 1e-6 * delta / upper)
    causes = {"truncation": at.truncation / slope, "round_off": 2 * at.round_off / slope}
    return Interval(upper=upper, lower=min(lower, upper), **causes), 2 * at.smoothing / slope


def _beyond(above: Composition, contour: Contour, delta: float, guess: float) -> float:
    """An epsilon, near the smallest, at which the upper bound is at most delta; 0 and the largest loss are
    candidates."""
    limit = above.largest_loss
    if above.delta(0.0, contour).value <= delta:
        return 0.0
    root = _root(lambda epsilon: above.delta(epsilon, contour).value, delta, guess, limit)
    for step in range(_NUDGES):
        nudged = root * (1 + 1e-9 * 4.0**step)
        if nudged >= limit:
            break
        if above.delta(nudged, contour).value <= delta:
            return nudged
    return limit


def _before(below: Composition, contour: Contour, delta: float, guess: float) -> float:
    """An epsilon, near the largest, at which the lower bound is at least delta; 0 when none is found."""
    if below.delta(0.0, contour).value < delta:
        share = 1.0  # the tilt suits the answer and may say nothing at 0: look close to the guess
        while share > 1e-7 and below.delta(guess * (1 - share), contour).value < delta:
            share /= 2
        if share <= 1e-7:
            return 0.0
        guess *= 1 - share
    root = _root(lambda epsilon: below.delta(epsilon, contour).value, delta, guess, below.largest_loss)
    for step in range(_NUDGES):
        nudged = root * (1 - 1e-9 * 4.0**step)
        if nudged > 0 and below.delta(nudged, contour).value >= delta:
            return nudged
    return 0.0


def _root(bound: Callable[[float], float], delta: float, guess: float, limit: float) -> float:
    """About where a falling bound crosses delta, between 0 and `limit`. Nothing rests on it: both sides look
    again."""

    def excess(epsilon: float) -> float:
        return math.log(max(bound(epsilon), _NOTHING) / delta)

    low = high = min(guess, limit)
    for factor in (0.98, 0.8, 0.5, 0.2, 0.02, 0.0):
        if excess(low) > 0:
            break
        low = guess * factor
    for factor in (1.02, 1.2, 2.0, 5.0, 50.0, math.inf):
        if excess(high) <= 0:
            break
        high = min(guess * factor, limit)
    if low >= high or excess(low) <= 0 or excess(high) > 0:
        return high
    return float(optimize.brentq(excess, low, high, xtol=1e-9 * high, rtol=1e-9, maxiter=100, disp=False))


def _gaussian_epsilon(variance: float, delta: float) -> float:
    """Where a Gaussian privacy loss of this variance would have delta: a place to start from."""
    return variance / 2 + math.sqrt(2 * variance * max(-math.log(delta) - 1, 0.1))
