"""The accountant: it computes privacy losses of rounds and certifies epsilon and delta of their
composition."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.certificate import DEFAULT_PRECISION, Certificate, Interval, RenyiBound
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.charges import KnownBounds, charge_of
from shuffle_ledger.accounting.filters.filter_set import FilterCharge, FilterSet
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, UNIT_ROUND_OFF, keep_freed_memory
from shuffle_ledger.accounting.numeric.effort import MOST_EFFORT
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.approximate import (
    ROUNDED,
    delta_interval_with_slack,
    epsilon_interval_with_slack,
)
from shuffle_ledger.accounting.pld.basic_composition import Promise
from shuffle_ledger.accounting.pld.composition import Composition
from shuffle_ledger.accounting.pld.discretization import from_profile
from shuffle_ledger.accounting.pld.distribution import Side
from shuffle_ledger.accounting.pld.inversion import (
    delta_interval,
    epsilon_interval,
    is_precise_delta,
    most_work,
    pair_delta,
    pair_epsilon,
)
from shuffle_ledger.accounting.pld.pair_bounds import SIDES, RoundLoss
from shuffle_ledger.accounting.pld.rare_losses import RareLosses
from shuffle_ledger.accounting.pld.tilting import LossSpectrum, SpectrumMemory
from shuffle_ledger.accounting.randomizers import WholeRelease
from shuffle_ledger.accounting.randomizers.base import DecomposedRandomizer
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.rounds.sharpening import sharpened_delta, sharpened_epsilon
from shuffle_ledger.accounting.rounds.shuffled_round import (
    ShuffledRound,
    certain_round,
    charged_as,
    charged_together,
)
from shuffle_ledger.accounting.rounds.summed_curves import with_summed_curves

#: Least relative width of intervals of epsilon that can be asked for.
LEAST_PRECISION = 1e-6

# Limits of what one accountant keeps in memory: bytes of privacy losses, charges (a few hundred bytes each),
# kinds of rounds in answered questions, and deltas of the last rounds with slack.
_LOSS_BYTES_KEPT = 128 << 20
_CHARGES_KEPT = 8192
_QUESTION_KINDS_KEPT = 1 << 16
_DELTAS_KEPT = 1024
# Smoothing of a round's profile, in units of the root of the precision. Smaller: closer bounds, more nodes.
_PROFILE_SMOOTHING = 0.3
# Least relative width of intervals of epsilon for which a round is computed whose number of honest reports is
# random: the cells of numbers make its bounds about as wide.
_MIXED_PRECISION = 0.02
# Smoothing of the profile with which a loss from elsewhere is compared, and the number of orders.
_CHECK_SMOOTHING = 0.05
_CHECK_POINTS = 24
# Points of the bounds on a profile's tail for Renyi divergences.
_TAIL_POINTS = 512
# If an answer is too wide, rounds with at most this share of the variance are accounted separately, with this
# share of delta.
_LIGHT_SHARE = 1e-3
# Bytes of characteristic functions that are kept while one answer is narrowed.
_NARROWING_BYTES = 16 << 20
# Smaller deltas are not divided: their shares would lose digits.
_LEAST_DIVIDED_DELTA = 1e-300
_UNKNOWN = Interval(upper=math.inf, lower=0.0, truncation=math.inf)
# If an answer is wider than asked, the largest losses of these shares of delta are set aside, in turn. Then
# losses are computed anew for these shares of the precision, but not below the last number, for at most this
# many kinds, and if the work (see `_work`) for each kind is limited.
_TAIL_SHARES = (1e-5, 1e-3, 1e-1)
_FINER_SHARES = (0.25, 0.02)
_FINEST_PRECISION = 1e-5
_MOST_REFINED_KINDS = 4
_MOST_WORK = {0.25: 20_000, 0.02: 6_000}
# Refinement ends if the width stays above this share of the last one.
_HELPFUL_SHARE = 0.8
# Epsilons below this many deviations of the loss are not refined: no lattice makes their relative width
# small.
_LEAST_REFINED_DEVIATIONS = 1e-4
# Precisions, as shares of the usual one, for decisions that an interval leaves open, and the most work for
# that.
_DECIDING_SHARES = (0.1, 0.01)
_MOST_DECIDING_WORK = 100_000
_EFFORT_EXPECTED = "a finite number above 0"
# Share of the usual effort that the privacy loss of one round may take at a finer precision.
_FINER_EFFORT = 0.25
# From this number of terms on, a profile is measured before it is evaluated.
_COSTLY_TERMS = 500

_Question = tuple[frozenset[tuple[ShuffledRound, int]], tuple[str, float]]


class _Remembered(NamedTuple):
    """A round's privacy loss, with the cached moments and characteristic functions of its two pairs."""

    loss: RoundLoss
    upper: LossSpectrum
    lower: LossSpectrum


class Accountant:
    """Computes and caches the privacy losses of rounds, and certifies epsilon and delta of their composition.

    Args:
        precision: wanted relative width of intervals of epsilon, from 1e-6 to 0.1.
        effort: the effort that one round's privacy loss may take, as a share of the usual one; with less, the
            slowest rounds have wider intervals.

    One instance may be used by one thread at a time.

    Raises:
        InvalidParameter: precision or effort is out of range.
    """

    def __init__(self, *, precision: float = DEFAULT_PRECISION, effort: float = 1.0) -> None:
        self.precision = validation.real("precision", precision, "a number from 1e-6 to 0.1")
        if not LEAST_PRECISION <= self.precision <= 0.1:
            raise InvalidParameter("precision", precision, "a number from 1e-6 to 0.1")
        keep_freed_memory()
        self._spectra = SpectrumMemory()
        self._losses: OrderedDict[ShuffledRound, _Remembered] = OrderedDict()
        self._loss_bytes = 0
        self._charges: OrderedDict[tuple[ShuffledRound, FilterSet], FilterCharge] = OrderedDict()
        self._answers = _Answers()
        self._finer: dict[float, Accountant] = {}
        self._most_effort = validation.real("effort", effort, _EFFORT_EXPECTED) * MOST_EFFORT
        if not 0 < self._most_effort < math.inf:
            raise InvalidParameter("effort", effort, _EFFORT_EXPECTED)
        self._pure: tuple[frozenset[tuple[ShuffledRound, int]], Callable[[float], Interval]] | None = None

    def knows(self, shuffled: ShuffledRound) -> bool:
        """Returns whether the round's privacy loss is in memory."""
        return shuffled in self._losses

    def adopt(self, shuffled: ShuffledRound, loss: RoundLoss) -> None:
        """Stores a privacy loss that was computed elsewhere for this round, with the same numerical
        policy."""
        if shuffled in self._losses:
            self._loss_bytes -= self._losses.pop(shuffled).loss.nbytes
            self._answers.forget()
            self._charges.clear()
            self._pure = None
        self._losses[shuffled] = _Remembered(
            loss, LossSpectrum(loss.upper, self._spectra), LossSpectrum(loss.lower, self._spectra)
        )
        self._loss_bytes += loss.nbytes
        while self._loss_bytes > _LOSS_BYTES_KEPT and len(self._losses) > 1:
            _, oldest = self._losses.popitem(last=False)
            self._loss_bytes -= oldest.loss.nbytes

    def encloses(self, shuffled: ShuffledRound, loss: RoundLoss) -> bool:
        """Returns whether the pairs of a loss from elsewhere enclose the round's profile at orders all along
        it.

        True for every loss that this package computed for the round. A loss of another round is rejected if
        its profile is outside of the bounds on this round's profile.

        Raises:
            InvalidParameter: the round's users send several reports: it is then several rounds.
        """
        profile = RoundProfile(shuffled, smoothing=_CHECK_SMOOTHING)
        if loss.upper.support < profile.largest_loss * (1 - 1e-12):
            return False
        losses = np.linspace(0.0, profile.end, _CHECK_POINTS)[:-1] ** 2 / profile.end
        bounds = profile(np.expm1(losses))
        above = np.array([loss.upper.hockey_stick_divergence(float(x)) for x in losses])
        below = np.array([loss.lower.hockey_stick_divergence(float(x)) for x in losses])
        enough = above * (1 + 1e-9) >= bounds.lower
        return bool(np.all(enough) and np.all(below * (1 - 1e-9) <= bounds.upper))

    def privacy_loss(self, shuffled: ShuffledRound) -> RoundLoss:
        """Returns the privacy loss of one round, computed if it is not in memory.

        Guarantee: its pairs enclose the round's privacy profile at every order.

        Raises:
            InvalidParameter: `shuffled` is not a round, or its users send several reports: it is then several
                rounds, see `charged_as`.
        """
        return self._remembered(shuffled).loss

    def _remembered(self, shuffled: ShuffledRound) -> _Remembered:
        # `RoundProfile` refuses several reports per user: the loss of such a round is not one pair's.
        if certain_round(shuffled) not in self._losses:
            self.adopt(shuffled, computed_loss(shuffled, self.precision, self._most_effort))
        self._losses.move_to_end(shuffled)
        return self._losses[shuffled]

    def knows_charge(self, shuffled: ShuffledRound, filters: FilterSet) -> bool:
        """Returns whether the round's charge, or the privacy loss that it is computed from, is in memory."""
        return self.remembers_charge(shuffled, filters) or charged_as(shuffled)[0] in self._losses

    def remembers_charge(self, shuffled: ShuffledRound, filters: FilterSet) -> bool:
        """Returns whether the round's charge is in memory."""
        return (charged_as(shuffled)[0], filters) in self._charges

    def charge(self, shuffled: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Returns the charge of a round in each of a budget's filters, cached; see `charge_of`. With several
        reports of a user, the charges of the rounds that it is charged as are added up."""
        single, count = charged_as(shuffled)
        key = (single, filters)
        if key not in self._charges:
            loss = self._remembered(single).loss
            slack = _slack({single: 1})
            known = _known_bounds(single)
            self._charges[key] = charge_of(
                loss.upper, filters, slack=slack, certain_loss=loss.certain, known=known
            )
            while len(self._charges) > _CHARGES_KEPT:
                self._charges.popitem(last=False)
        return self._charges[key] if count == 1 else self._charges[key] * count

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Certificate:
        """Returns a certified interval of epsilon at `delta` for rounds together.

        Args:
            rounds: kinds of rounds, and the number of rounds of each kind. With several reports of a user, a
                kind counts as the rounds that it is charged as; see `charged_as`.
            delta: in (0, 1).
            budget: an epsilon. If the interval contains it, so that a comparison with it is undecided,
                intervals that are ten and a hundred times narrower are computed, unless that would take
                minutes.

        Guarantee: `epsilon_lower <= epsilon <= epsilon_upper`, where epsilon is the exact value of the
            rounds' analyses, provided the rounds' parameters were fixed before the first one.

        Raises:
            InvalidParameter: delta is not in (0, 1); `rounds` is no mapping of rounds; a count is not a whole
                number from 0; or all of them together are too many.
        """
        delta = validation.probability("delta", delta)
        rounds, number = _checked(rounds)
        certificate = self._answers.get(rounds, ("delta", delta), self._answer)
        if budget is not None and _leaves_open(certificate, budget) and self._are_quick(rounds):
            for share in _DECIDING_SHARES:
                precision = max(self.precision * share, LEAST_PRECISION)
                certificate = self._with_precision(precision).certify(rounds, delta=delta)
                if not _leaves_open(certificate, budget):
                    break
        return _about(certificate, number)

    def _with_precision(self, precision: float) -> Accountant:
        """Returns this accountant, or one with another precision, which is kept."""
        if precision == self.precision:
            return self
        if precision not in self._finer:
            self._finer[precision] = Accountant(precision=precision, effort=_FINER_EFFORT)
        return self._finer[precision]

    def _are_quick(self, rounds: Mapping[ShuffledRound, int]) -> bool:
        """Returns whether the losses of all rounds at a finer precision take at most seconds."""
        return sum(self._work(one) for one in rounds) <= _MOST_DECIDING_WORK

    def certify_delta(self, rounds: Mapping[ShuffledRound, int], *, epsilon: float) -> Certificate:
        """Returns a certified interval of delta at `epsilon >= 0` for rounds together.

        Guarantee: `delta_lower <= delta <= delta_upper`, as for `certify`. `precise` means that the lower
        bound is at
            least `1 - precision` times the upper one, or times the upper bound at the epsilon that is larger
            by the relative precision.

        Raises:
            InvalidParameter: epsilon is negative, not finite or beyond 1e9; or `rounds` is as `certify` takes
                none.
        """
        epsilon = validation.answered_epsilon(epsilon)
        rounds, number = _checked(rounds)
        return _about(self._answers.get(rounds, ("epsilon", epsilon), self._answer), number)

    def profile(
        self, rounds: Mapping[ShuffledRound, int], *, epsilons: Sequence[float]
    ) -> tuple[Certificate, ...]:
        """Returns the privacy profile: certified deltas at the epsilons, as of `certify_delta`.

        Raises:
            InvalidParameter: as of `certify_delta`, or `epsilons` is not a sequence.
        """
        if isinstance(epsilons, str | bytes | Mapping) or not isinstance(epsilons, Iterable):
            raise InvalidParameter("epsilons", epsilons, "a sequence of numbers")
        return tuple(self.certify_delta(rounds, epsilon=epsilon) for epsilon in epsilons)

    def renyi_divergence(self, rounds: Mapping[ShuffledRound, int], *, order: float) -> RenyiBound:
        """Returns bounds on the Renyi divergence of rounds together, the sum of theirs, valid in both
        directions.

        Guarantee: `lower <= divergence <= upper`, of the rounds' analyses. If parameters depend on what
        earlier
            rounds revealed, it still holds if the sums of the bounds do not depend on that. Rounds with a
            local delta have no finite divergence: `upper` is infinite, as it is from order 1 on if losses are
            infinite.

        Raises:
            InvalidParameter: the order is not from 1e-200 to 1e9; or `rounds` is as `certify` takes none.
        """
        counts, _ = _checked(rounds)
        bounds = [(self._renyi(one, order), count) for one, count in counts.items()]
        pure = all(one.slack == 0 for one in counts)
        return RenyiBound(
            order=float(order),
            upper=math.fsum(count * one.upper for one, count in bounds) * (1 + 1e-14) if pure else math.inf,
            lower=math.fsum(count * one.lower for one, count in bounds) * (1 - 1e-14),
        )

    def _renyi(self, shuffled: ShuffledRound, order: float) -> RenyiBound:
        loss = self.privacy_loss(shuffled)
        upper = loss.upper.renyi_divergence(order)
        if loss.upper.infinity > 0 and order >= 1 and loss.upper.largest_loss < loss.upper.support < math.inf:
            profile = RoundProfile(shuffled, smoothing=_PROFILE_SMOOTHING * math.sqrt(self.precision))
            tail = profile.tail(loss.upper.largest_loss, loss.upper.infinity, _TAIL_POINTS)
            upper = min(upper, loss.upper.renyi_divergence(order, tail=tail))
        if (known := _known_bounds(shuffled)) is not None:
            upper = min(upper, known.renyi(order))
        return RenyiBound(order=order, upper=upper, lower=min(loss.lower.renyi_divergence(order), upper))

    def _answer(self, rounds: Mapping[ShuffledRound, int], asked: tuple[str, float]) -> Certificate:
        """Returns the smaller of two answers: from the given rounds, and with declared Renyi divergences
        added up first."""
        answer = self._epsilon if asked[0] == "delta" else self._delta
        found, summed = answer(rounds, asked), with_summed_curves(rounds)
        return found if summed is None else found.smaller(answer(summed, asked))

    def _epsilon(self, rounds: Mapping[ShuffledRound, int], asked: tuple[str, float]) -> Certificate:
        delta = asked[1]
        interval = self._epsilon_interval(rounds, delta)
        return Certificate(
            epsilon_upper=interval.upper,
            epsilon_lower=interval.lower,
            delta_upper=delta,
            delta_lower=delta,
            rounds=sum(rounds.values()),
            error=interval.error(),
            precise=interval.is_within(self.precision),
        )

    def _epsilon_interval(self, rounds: Mapping[ShuffledRound, int], delta: float) -> Interval:
        if self._certain_mass(rounds) > delta:
            return Interval(upper=math.inf, lower=math.inf)
        above, below, count = self._compositions(rounds)
        if count == 0:
            return Interval(upper=0.0, lower=0.0)
        if (slack := _slack(rounds)) > 0:
            return epsilon_interval_with_slack(above, below, delta, slack, self.precision)
        interval, nothing = _UNKNOWN, _LEAST_REFINED_DEVIATIONS * math.sqrt(above.variance)
        if count == 1:
            interval = self._single(rounds, delta)
        if not interval.is_within(self.precision) and interval.upper >= nothing:
            interval = interval.intersection(epsilon_interval(above, below, delta, self.precision))
        if count > 1 and not interval.is_within(self.precision):
            interval = interval.intersection(self._rare(rounds).epsilon(delta))
        if interval.upper >= nothing:
            left = most_work(above.kinds) - above.work - below.work
            if left > 0:
                interval = self._apart(interval, rounds, delta)
            interval = self._narrowed(interval, rounds, delta, left)
        return self._promised(rounds).epsilon(interval, delta)

    def _certain_mass(self, rounds: Mapping[ShuffledRound, int]) -> float:
        """Returns a lower bound on the mass at infinite loss of all rounds together, without a search for the
        worst pair of inputs. Only rounds count that have an impossible output and whose losses are not in
        memory."""
        spared = 0.0  # logarithm of the probability that no round has an infinite loss
        for one, count in rounds.items():
            table = one.randomizer
            may_exclude = isinstance(table, DecomposedRandomizer) and math.isinf(table.epsilon0)
            if may_exclude and one.certain_reports is not None and not self.knows(one):
                mass = RoundProfile(one, smoothing=_CHECK_SMOOTHING).infinity
                spared += count * math.log1p(-min(mass, 1 - UNIT_ROUND_OFF))
        return -math.expm1(spared) * (1 - 1e-9)

    def _promised(self, rounds: Mapping[ShuffledRound, int]) -> Promise:
        """Returns the sum of the rounds' own guarantees."""
        return Promise.of(
            (
                one.randomizer.guarantee or (self._remembered(one).loss.upper.support, 0.0),
                count,
            )
            for one, count in rounds.items()
        )

    def _single(self, rounds: Mapping[ShuffledRound, int], delta: float) -> Interval:
        """Returns bounds on the epsilon of a single round, from its pairs and from its profile."""
        interval = pair_epsilon(self.privacy_loss(_only(rounds)), delta)
        return sharpened_epsilon(_only(rounds), interval, delta, self.precision)

    def _apart(self, interval: Interval, rounds: Mapping[ShuffledRound, int], delta: float) -> Interval:
        """Returns the interval; if it is wider than asked, narrowed by accounting the rounds with little
        variance separately: epsilons at shares of delta add up to an upper bound, and fewer rounds have a
        lower one."""
        if not self._is_wide(interval) or delta < _LEAST_DIVIDED_DELTA:
            return interval
        variance = {one: count * self._remembered(one).upper.variance for one, count in rounds.items()}
        most = _LIGHT_SHARE * math.fsum(variance.values())
        light = {one: count for one, count in rounds.items() if variance[one] <= most}
        heavy = {one: count for one, count in rounds.items() if one not in light}
        if not light or not heavy:
            return interval
        more = self.certify(light, delta=_LIGHT_SHARE * delta).epsilon_upper
        upper = self.certify(heavy, delta=(1 - 2 * _LIGHT_SHARE) * delta).epsilon_upper + more
        lower = self.certify(heavy, delta=delta).epsilon_lower
        return interval.intersection(Interval(upper=upper * (1 + 1e-15), lower=min(lower, upper)))

    def _rare(self, rounds: Mapping[ShuffledRound, int]) -> RareLosses:
        return RareLosses([(self.privacy_loss(one), count) for one, count in rounds.items()])

    def _narrowed(
        self, interval: Interval, rounds: Mapping[ShuffledRound, int], delta: float, most: float
    ) -> Interval:
        """Returns the interval; while it is wider than asked, narrowed first without the largest, improbable
        losses, and then with losses on finer lattices if these take little time. It ends when compositions
        have done the work `most`."""
        for share in (1.0, *_FINER_SHARES):
            if not self._is_wide(interval) or most <= 0:
                break
            precision = max(self.precision * share, min(_FINEST_PRECISION, self.precision))
            if share < 1 and (precision >= self.precision or not self._are_cheap(rounds, share)):
                break
            source = self._with_precision(precision)
            before = interval.width
            losses = [(source.privacy_loss(one), count) for one, count in rounds.items()]
            for tail in _TAIL_SHARES:
                mass = tail * delta / sum(rounds.values())
                above, below = (_without_tails(losses, mass, side) for side in SIDES)
                both = interval.intersection(epsilon_interval(above, below, delta, precision, most=most))
                most -= above.work + below.work
                if both.lower <= both.upper:
                    interval = both
                if not self._is_wide(interval) or most <= 0:
                    break
            if share < 1 and interval.width > _HELPFUL_SHARE * before:
                break  # the width has another cause
        return interval

    def _is_wide(self, interval: Interval) -> bool:
        """Returns whether a finite interval is wider than asked."""
        return interval.width < math.inf and not interval.is_within(self.precision)

    def _are_cheap(self, rounds: Mapping[ShuffledRound, int], share: float) -> bool:
        """Returns whether losses at this share of the precision take at most seconds."""
        return len(rounds) <= _MOST_REFINED_KINDS and all(
            self._work(one) <= _MOST_WORK[share] for one in rounds
        )

    def _work(self, shuffled: ShuffledRound) -> float:
        """Returns a measure of the time that the round's privacy loss takes: its losses times the terms of
        each; infinite if the number of honest reports is random: no lattice makes its cells narrower."""
        if shuffled.certain_reports is None:
            return math.inf
        return self._remembered(shuffled).loss.upper.index.size * _terms(shuffled)

    def _delta(self, rounds: Mapping[ShuffledRound, int], asked: tuple[str, float]) -> Certificate:
        epsilon = asked[1]
        above, below, count = self._compositions(rounds)
        interval, later = Interval(upper=0.0, lower=0.0), 0.0
        if count == 1:
            loss = self.privacy_loss(_only(rounds))
            interval = sharpened_delta(_only(rounds), pair_delta(loss, epsilon), epsilon, self.precision)
            later = pair_delta(loss, epsilon * (1 + self.precision)).upper
        elif count:
            interval, later = delta_interval(above, below, epsilon, self.precision)
            if not is_precise_delta(interval, later, self.precision):
                rare = self._rare(rounds)
                interval = interval.intersection(rare.delta(epsilon))
                later = min(later, rare.upper(epsilon * (1 + self.precision)))
            left = most_work(above.kinds) - above.work - below.work
            interval, later = self._narrowed_delta(interval, later, rounds, epsilon, left)
        if (slack := _slack(rounds)) > 0:
            interval = delta_interval_with_slack(interval, self._pure_delta(rounds), epsilon, slack)
            later += (1 + math.exp(min(epsilon * (1 + self.precision), LARGEST_EXPONENT))) * slack
        else:
            interval = self._promised(rounds).delta(interval, epsilon)
        return Certificate(
            epsilon_upper=epsilon,
            epsilon_lower=epsilon,
            delta_upper=interval.upper,
            delta_lower=interval.lower,
            rounds=count,
            error=interval.error(),
            precise=is_precise_delta(interval, later, self.precision),
        )

    def _narrowed_delta(
        self,
        interval: Interval,
        later: float,
        rounds: Mapping[ShuffledRound, int],
        epsilon: float,
        most: float,
    ) -> tuple[Interval, float]:
        """Returns bounds on delta at `epsilon`, and an upper bound at a slightly larger epsilon. While the
        bounds are wider than asked, losses that are improbable beside the upper bound are left out, until
        compositions have done the work `most`."""
        losses = [(self.privacy_loss(one), count) for one, count in rounds.items()]
        for tail in _TAIL_SHARES:
            if is_precise_delta(interval, later, self.precision) or most <= 0:
                break
            mass = tail * interval.upper / sum(rounds.values())
            above, below = (_without_tails(losses, mass, side) for side in SIDES)
            found, after = delta_interval(above, below, epsilon, self.precision, most=most)
            most -= above.work + below.work
            before, both, later = interval.width, interval.intersection(found), min(later, after)
            interval = both if both.lower <= both.upper else interval
            if interval.width > _HELPFUL_SHARE * before:
                break
        return interval, later

    def _pure_delta(self, rounds: Mapping[ShuffledRound, int]) -> Callable[[float], Interval]:
        """Returns a function that bounds delta without slack at an epsilon; its answers are kept for the last
        rounds."""
        kinds = frozenset(rounds.items())
        if self._pure is None or self._pure[0] != kinds:
            above, below, count = self._compositions(rounds)

            @functools.lru_cache(maxsize=_DELTAS_KEPT)
            def bounds(epsilon: float) -> Interval:
                if count == 1:
                    return pair_delta(self.privacy_loss(_only(rounds)), epsilon)
                return delta_interval(above, below, epsilon, self.precision)[0]

            self._pure = kinds, bounds
        return self._pure[1]

    def _compositions(self, rounds: Mapping[ShuffledRound, int]) -> tuple[Composition, Composition, int]:
        parts = [(self._remembered(one), count) for one, count in rounds.items()]
        above = Composition([(part.upper, count) for part, count in parts], "upper")
        below = Composition([(part.lower, count) for part, count in parts], "lower")
        return above, below, sum(rounds.values())


class _Answers:
    """A cache of certificates, least recently used out first, limited in the kinds of rounds of all
    questions."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Question, Certificate] = OrderedDict()
        self._kinds = 0

    def get(
        self,
        rounds: Mapping[ShuffledRound, int],
        asked: tuple[str, float],
        answer: Callable[[Mapping[ShuffledRound, int], tuple[str, float]], Certificate],
    ) -> Certificate:
        """Returns the answer to a question, computed if it is not in the cache."""
        question = (frozenset(rounds.items()), asked)
        if question in self._known:
            self._known.move_to_end(question)
            return self._known[question]
        certificate = answer(rounds, asked)
        self._known[question] = certificate
        self._kinds += 1 + len(rounds)
        while self._kinds > _QUESTION_KINDS_KEPT:
            (kinds, _), _ = self._known.popitem(last=False)
            self._kinds -= 1 + len(kinds)
        return certificate

    def forget(self) -> None:
        """Drops all answers, since a round's loss was replaced."""
        self._known.clear()
        self._kinds = 0


def _checked(rounds: Mapping[ShuffledRound, int]) -> tuple[dict[ShuffledRound, int], int]:
    """Returns the rounds as they are charged, with positive counts, and the number of rounds given; after a
    check of rounds and counts."""
    if not isinstance(rounds, Mapping):
        raise InvalidParameter("rounds", rounds, "a mapping of rounds to counts")
    for one in rounds:
        certain_round(one)
    counts = {
        one: validation.whole("count", count, 0, validation.MAXIMUM_ROUNDS) for one, count in rounds.items()
    }
    charged = charged_together(counts)
    if sum(charged.values()) > validation.MAXIMUM_ROUNDS:
        expected = f"at most {validation.MAXIMUM_ROUNDS} rounds altogether"
        if charged != counts:
            expected += ", each counted once for every report that a user may send"
        raise InvalidParameter("count", sum(charged.values()), expected)
    return {one: count for one, count in charged.items() if count}, sum(counts.values())


def _about(certificate: Certificate, number: int) -> Certificate:
    """Returns the certificate of this number of rounds, of which some may be charged as several."""
    return certificate if certificate.rounds == number else dataclasses.replace(certificate, rounds=number)


def _terms(shuffled: ShuffledRound) -> int:
    """Returns the number of terms of one order of the round's profile."""
    randomizer = shuffled.randomizer
    return randomizer.terms(str(shuffled.analysis)) if isinstance(randomizer, DecomposedRandomizer) else 1


def computed_loss(shuffled: ShuffledRound, precision: float, most: float) -> RoundLoss:
    """Returns the privacy loss of one round at a precision, with at most this effort; it depends on nothing
    else."""
    certain = shuffled.certain_reports is not None
    precision = precision if certain else max(precision, _MIXED_PRECISION)
    smoothing = _PROFILE_SMOOTHING * math.sqrt(precision)
    profile = RoundProfile(shuffled, smoothing=smoothing)
    # If the number of honest reports is random, orders are expensive.
    simple = profile if certain else RoundProfile(shuffled.typical, smoothing=smoothing)
    upper, lower = from_profile(
        profile,
        largest_loss=profile.largest_loss,
        end=profile.end,
        infinity=profile.infinity,
        precision=precision,
        sketch=simple.sketch,
        model=None if simple is profile else simple,
        sharper=profile.sharper if certain else None,
        cheap=simple.is_enumerated,
        costly=_terms(shuffled) > _COSTLY_TERMS,
        most=most,
    )
    return RoundLoss(upper=upper, lower=lower)


def _without_tails(losses: Sequence[tuple[RoundLoss, int]], mass: float, side: Side) -> Composition:
    """Returns the composition of one side's pairs, each without its largest losses of probability `mass`."""
    spectra = SpectrumMemory(most_bytes=_NARROWING_BYTES)
    pairs = [(loss.side(side).without_tail(mass), count) for loss, count in losses]
    return Composition([(LossSpectrum(pair, spectra), count) for pair, count in pairs], side)


def _slack(rounds: Mapping[ShuffledRound, int]) -> float:
    """Returns the sum of the rounds' slacks (total variation distances), rounded up."""
    return math.fsum(count * one.slack for one, count in rounds.items()) * (1 + ROUNDED / 4)


def _known_bounds(shuffled: ShuffledRound) -> KnownBounds | None:
    """Returns bounds on a round that do not come from its pair; None for a sample and where none is known."""
    randomizer = shuffled.randomizer
    if not isinstance(randomizer, WholeRelease) or shuffled.sampled_from is not None:
        return None
    return KnownBounds(randomizer.gaussian_mu, randomizer.renyi_bound, randomizer.finite_loss)


def _leaves_open(certificate: Certificate, budget: float) -> bool:
    """Returns whether the interval leaves open whether epsilon is within the budget."""
    return certificate.epsilon_lower <= budget < certificate.epsilon_upper < math.inf


def _only(rounds: Mapping[ShuffledRound, int]) -> ShuffledRound:
    return next(iter(rounds))
