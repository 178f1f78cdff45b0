"""What an attacker certainly learns from a round: lower bounds on the mechanism's true divergence.

An analysis bounds a round from above; here neighbouring datasets are looked at whose shuffled outputs have a
known divergence. Noise that users make together is bounded by pairs that are attained; of a declared round
nothing is known but what was declared. What lies between the two is what better proofs could still gain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile, chernoff_log_profile
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.amplification.enumeration import enumerate_outcomes
from shuffle_ledger.accounting.amplification.random_size.sampling import SamplingTerm
from shuffle_ledger.accounting.amplification.witnesses import thinned
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.rounds.shuffled_round import (
    LARGEST_RESOLVED_LOSS,
    RoundProfile,
    ShuffledRound,
    certain_round,
    is_certain,
    sampling_terms,
)

# Relative reserve of lower bounds for masses that are a few units off, by which outcomes of n reports are off
# as many times as their counts are from the mean: some multiple of the square root of n.
_RESERVE = 1e-8
# Outcomes of a witness that are listed, and the smoothing where its profile is summed.
_OUTCOMES, _FEW_OUTCOMES = 300_000, 30_000  # few for each of many numbers of users
_SMOOTHING = 3e-3
# The smoothing where chance decides how many are honest: numbers are then in groups as fine as that.
_ROUGHLY = 1.2e-2
# A sample's number of honest users is bounded in groups this wide, in units of their number, or of its
# deviation.
_GROUP_WIDTH, _NARROWEST = 1e-3, 0.12
# Points of one search for the largest epsilon that is certain; searches, each between two points of the one
# before; and points at which a crude bound says where to begin.
_SEARCH_POINTS = 17
_SEARCHES = 4
# Where the usual number of honest users tells where to look: within such a share, so often.
_NEAR, _FEW_SEARCHES = 0.05, 2
_REACH_POINTS = 256
# What exponents are cut to.
_UNLIMITED = 700.0
_SMALLEST = 1e-9  # of the largest loss: the smallest epsilon that is told from 0


def attack_delta(shuffled: ShuffledRound, *, epsilon: float) -> float | None:
    """Lower bound on the round's true delta at `epsilon >= 0`, None when no attack on it is known.

    Guarantee: some neighbouring datasets give shuffled outputs of at least this divergence; for `generic`,
    those of some epsilon0-LDP randomizer. Users who are not honest tell the attacker what they did.
    Source: Su, Cheng, Wang, Theorem 14; docs/theory.md.

    Raises:
        InvalidParameter: epsilon is negative or not finite, or no round is given.
    """
    epsilon = validation.answered_epsilon(epsilon)
    profile = _profile(shuffled)
    if profile is None:
        return None
    if epsilon >= profile.largest_loss:
        return 0.0
    return float(profile(_beyond(np.array([min(epsilon, _UNLIMITED)])))[0])


def attack_epsilon(shuffled: ShuffledRound, *, delta: float) -> float | None:
    """Lower bound on the round's true epsilon at `delta`, None when no attack on it is known.

    Guarantee: the round is not `(epsilon, delta)`-private for any smaller epsilon, as for `attack_delta`;
    infinite where outcomes rule a value out more often than delta allows.

    Raises:
        InvalidParameter: delta is not in (0, 1), or no round is given.
    """
    delta = validation.probability("delta", delta)
    profile = _profile(shuffled)
    if profile is None:
        return None
    if profile.infinity > delta:
        return math.inf
    reach = profile.loss_within_reach(delta)
    if profile.is_certain:
        return _last(profile, delta, 0.0, reach, _SEARCHES)
    # Where chance decides how many are honest, the usual number tells about where to look.
    near = _last(profile.usual, delta, 0.0, reach, _SEARCHES)
    low, high = near * (1 - _NEAR), min(near * (1 + _NEAR), reach)
    found = _last(profile, delta, low, high, _FEW_SEARCHES)
    if low < found < high or reach == 0:
        return found
    return _last(profile, delta, 0.0, reach, _SEARCHES)


def _last(
    profile: Callable[[FloatArray], FloatArray], delta: float, low: float, high: float, searches: int
) -> float:
    """A loss, near the last one between low and high, at which that much is certain; or the low one."""
    for _ in range(searches):
        points = np.linspace(low, high, _SEARCH_POINTS)
        certain = np.flatnonzero(profile(_beyond(points)) >= delta)
        if certain.size == 0:
            break
        last = int(certain[-1])
        low, high = float(points[last]), float(points[min(last + 1, len(points) - 1)])
    return low


def _beyond(losses: FloatArray) -> FloatArray:
    """Orders, less 1, that are no less than those of the losses: what is certain there is certain here."""
    return np.asarray(np.expm1(losses) * (1 + 8 * UNIT_ROUND_OFF))


def _profile(shuffled: ShuffledRound) -> WitnessProfile | AttainedProfile | None:
    shuffled = certain_round(shuffled)
    attained = shuffled.randomizer.attained(sampled=shuffled.sampled_from is not None)
    if attained:
        return AttainedProfile([dataclasses.replace(shuffled, randomizer=one) for one in attained])
    witnesses = shuffled.randomizer.witnesses()
    return WitnessProfile(shuffled, witnesses) if witnesses else None


class AttainedProfile:
    """Lower bounds on the divergence of a round whose bounds are attained, each by its own datasets.

    Attributes:
        largest_loss: privacy loss beyond which nothing is told.
        infinity: lower bound on the mass at infinite loss.
        is_certain: whether it is certain how many users are honest.
    """

    def __init__(self, rounds: Sequence[ShuffledRound]) -> None:
        self.is_certain = all(is_certain(one) for one in rounds)
        smoothing = _SMOOTHING if self.is_certain else _ROUGHLY
        self._profiles = [RoundProfile(one, smoothing=smoothing) for one in rounds]
        self._usual = [RoundProfile(one.typical, smoothing=smoothing) for one in rounds]
        self.largest_loss = max(one.largest_loss for one in self._profiles)
        self.infinity = max(one.infinity for one in self._profiles)

    def loss_within_reach(self, delta: float) -> float:
        """A loss at which little is told, whatever delta."""
        return min(max(one.end for one in self._profiles), LARGEST_RESOLVED_LOSS)

    def __call__(self, excess: FloatArray) -> FloatArray:
        """Lower bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        return _largest_of(self._profiles, excess)

    def usual(self, excess: FloatArray) -> FloatArray:
        """About the same: of the usual number of honest users."""
        return _largest_of(self._usual, excess)


def _largest_of(profiles: Sequence[RoundProfile], excess: FloatArray) -> FloatArray:
    found: FloatArray = np.max([one(excess).lower for one in profiles], axis=0)
    return found


class WitnessProfile:
    """Lower bounds on the divergence that witnesses of a round show.

    Attributes:
        largest_loss: privacy loss that no output of a witness exceeds.
        infinity: lower bound on the mass of outcomes that one of the user's values cannot make.
        is_certain: whether it is certain how many users are honest.
    """

    def __init__(self, shuffled: ShuffledRound, witnesses: tuple[Decomposition, ...]) -> None:
        self._terms = sampling_terms(shuffled, finest=_GROUP_WIDTH, narrowest=_NARROWEST)
        self.is_certain = len(self._terms) == 1
        self._doubt = shuffled.randomizer.doubt
        if shuffled.participation is not None:
            silent = shuffled.participation
            witnesses = tuple(with_silence(one, silent) for one in witnesses)
        ways = [way for one in witnesses for way in (one.merged(), one.swapped().merged())]
        self._directions = list({way.signature(): way for way in ways}.values())
        self.largest_loss = 1.01 * max((_largest_loss(one) for one in self._directions), default=0.0)
        impossible = max(map(self._impossible, self._directions), default=0.0)
        self.infinity = max(impossible * (1 - _RESERVE) - self._doubt, 0.0)

    def loss_within_reach(self, delta: float) -> float:
        """A loss at which a crude upper bound on what the witnesses show has fallen below delta."""
        end = min(self.largest_loss, LARGEST_RESOLVED_LOSS)
        if end == 0:
            return 0.0  # all values look alike
        losses = np.geomspace(_SMALLEST * end, end, _REACH_POINTS)
        rate = max(term.upper_rate for term in self._terms)
        fewest = min(term.fewest for term in self._terms)
        parts = [thinned(one, rate).merged() for one in self._directions]
        crude = np.max([chernoff_log_profile(one, fewest, np.expm1(losses)) for one in parts], axis=0)
        small = np.flatnonzero(crude < math.log(delta))
        return float(losses[small[0]]) if small.size else end

    def _impossible(self, witness: Decomposition) -> float:
        """A lower bound on the mass of outcomes that the second value cannot make."""
        # As below, a group counts by its ends.
        parts = [(thinned(witness, term.lower_rate), term) for term in self._terms]
        return math.fsum(
            term.weight * float(ListedPairs([part]).infinity(term.most)[0]) for part, term in parts
        )

    def __call__(self, excess: FloatArray) -> FloatArray:
        """Lower bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        return self._shown(self._terms, excess)

    def usual(self, excess: FloatArray) -> FloatArray:
        """About the same: of the usual numbers of honest users."""
        likeliest = max(self._terms, key=lambda term: term.weight)
        return self._shown([dataclasses.replace(likeliest, weight=1.0)], excess)

    def _shown(self, terms: Sequence[SamplingTerm], excess: FloatArray) -> FloatArray:
        found, outcomes = np.zeros_like(excess), _OUTCOMES if self.is_certain else _FEW_OUTCOMES
        for witness in self._directions:
            total = np.zeros_like(excess)
            for term in terms:
                # More users who hold the others' value, or a smaller rate, only hide: a group counts by its
                # ends.
                part = thinned(witness, term.lower_rate).merged()
                total += term.weight * _lower(part, term.most, excess, outcomes)
            found = np.maximum(found, total)
        return np.maximum(found * (1 - _RESERVE) - self._doubt, 0.0)


def _lower(witness: Decomposition, reports: int, excess: FloatArray, outcomes: int) -> FloatArray:
    listed = enumerate_outcomes(witness, reports, limit=outcomes)
    if listed is not None:
        return listed.profile(excess).lower
    return blanket_profile(witness, reports, excess, smoothing=_SMOOTHING).lower


def _largest_loss(witness: Decomposition) -> float:
    if np.any((witness.a > 0) & (witness.b == 0)):
        return math.inf
    seen = witness.a > 0
    return float(np.log(witness.a[seen] / witness.b[seen]).max())
