"""Attacks: lower bounds on the true divergence of a round, for comparison with the upper bounds of its
analysis.

They are the divergences of neighbouring datasets whose shuffled outputs have a known law. For noise that all
users make together, the pairs of the analysis are attained by such datasets. For a declared round no attack
is known, nor for a randomizer that is accounted as another one. The gap between the two bounds is the most
that a better proof could gain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile, largest_chernoff_log
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.amplification.enumeration import enumerate_outcomes
from shuffle_ledger.accounting.amplification.samples import NumberCell
from shuffle_ledger.accounting.amplification.witnesses import thinned
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.rounds.round_profile import LARGEST_RESOLVED_LOSS, RoundProfile, honest_cells
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, certain_round

# Relative room in lower bounds for masses with errors of a few units: the probability of an outcome of n
# reports multiplies these by the distance of its counts from the mean, a multiple of the square root of n.
_OUTCOME_ROUND_OFF = 1e-8
# Largest number of outcomes of a witness that are listed; and the same for each number of honest users, if
# that is random.
_LISTED_OUTCOMES, _LISTED_OUTCOMES_OF_MIXTURE = 300_000, 30_000
# Smoothing of a witness's profile, as of `blanket_profile`; and the same if the number of honest users is
# random.
_SMOOTHING = 3e-3
_SMOOTHING_OF_MIXTURE = 1.2e-2
# Width of cells of the number of honest users in a sample, in deviations of the number.
_CELL_DEVIATIONS = 0.12
# Points of one search for the largest certain epsilon, and number of searches, each between two points of the
# last.
_SEARCH_POINTS = 17
_SEARCHES = 4
# If the number of honest users is random, the search covers this relative distance around the epsilon of the
# typical number, this often.
_SEARCH_DISTANCE, _FEW_SEARCHES = 0.05, 2
# Points at which a crude bound decides where the search ends.
_REACH_POINTS = 256
# Least epsilon of that search, as a share of the largest loss.
_LEAST_LOSS_SHARE = 1e-9


def attack_delta(shuffled: ShuffledRound, *, epsilon: float) -> float | None:
    """Returns a lower bound on the round's true delta at `epsilon >= 0`; None if no attack on it is known, as
    for several reports of a user.

    Guarantee: the shuffled outputs of some neighbouring datasets have at least this divergence; for
    `generic`, with some epsilon0-LDP randomizer. The outputs are those of the randomizer that the round was
    given: None for `local_gaussian` with a local delta, and for `clone` of a randomizer with other parts,
    which are accounted as `generic`. Dishonest users tell the attacker their reports.
    Source: Su, Cheng, Wang, Theorem 14; docs/theory/lower-bounds.md, L1.

    Raises:
        InvalidParameter: epsilon is negative or not finite, or `shuffled` is not a round.
    """
    epsilon = validation.answered_epsilon(epsilon)
    profile = _profile(shuffled)
    if profile is None:
        return None
    if epsilon >= profile.largest_loss:
        return 0.0
    return float(profile(_beyond(np.array([min(epsilon, LARGEST_EXPONENT)])))[0])


def attack_epsilon(shuffled: ShuffledRound, *, delta: float) -> float | None:
    """Returns a lower bound on the round's true epsilon at `delta`; None if no attack on it is known, as for
    several reports of a user.

    Guarantee: the round is not `(epsilon, delta)`-private for any smaller epsilon, as of `attack_delta`. It
    is infinite if outcomes that exclude a value have a probability above delta.
    Source: docs/theory/lower-bounds.md, L4 and L8.

    Raises:
        InvalidParameter: delta is not in (0, 1), or `shuffled` is not a round.
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
    # If the number of honest users is random, the typical number gives a first estimate.
    near = _last(profile.usual, delta, 0.0, reach, _SEARCHES)
    low, high = near * (1 - _SEARCH_DISTANCE), min(near * (1 + _SEARCH_DISTANCE), reach)
    found = _last(profile, delta, low, high, _FEW_SEARCHES)
    if low < found < high or reach == 0:
        return found
    return _last(profile, delta, 0.0, reach, _SEARCHES)


def _last(
    profile: Callable[[FloatArray], FloatArray], delta: float, low: float, high: float, searches: int
) -> float:
    """Returns about the last loss between `low` and `high` at which the profile is at least delta; `low` if
    there is none."""
    for _ in range(searches):
        points = np.linspace(low, high, _SEARCH_POINTS)
        certain = np.flatnonzero(profile(_beyond(points)) >= delta)
        if certain.size == 0:
            break
        last = int(certain[-1])
        low, high = float(points[last]), float(points[min(last + 1, len(points) - 1)])
    return low


def _beyond(losses: FloatArray) -> FloatArray:
    """Returns orders minus one, rounded up from those of the losses: a lower bound there holds at the losses
    too."""
    return np.asarray(np.expm1(losses) * (1 + 8 * UNIT_ROUND_OFF))


def _profile(shuffled: ShuffledRound) -> WitnessProfile | AttainedProfile | None:
    shuffled = certain_round(shuffled)
    if shuffled.reports_per_user > 1 or shuffled.written != shuffled.randomizer:
        return None
    attained = shuffled.randomizer.attained(sampled=shuffled.sampled_from is not None)
    if attained:
        return AttainedProfile([dataclasses.replace(shuffled, randomizer=one) for one in attained])
    witnesses = shuffled.randomizer.witnesses()
    return WitnessProfile(shuffled, witnesses) if witnesses else None


class AttainedProfile:
    """Lower bounds on the divergence of a round whose bounds are attained, each by some neighbouring
    datasets.

    Attributes:
        largest_loss: privacy loss beyond which the bound is 0.
        infinity: lower bound on the mass at infinite loss.
        is_certain: whether the number of honest reports is certain.

    Source: docs/theory/lower-bounds.md, L7.
    """

    def __init__(self, rounds: Sequence[ShuffledRound]) -> None:
        self.is_certain = all(one.certain_reports is not None for one in rounds)
        smoothing = _SMOOTHING if self.is_certain else _SMOOTHING_OF_MIXTURE
        self._profiles = [RoundProfile(one, smoothing=smoothing) for one in rounds]
        self._usual = [RoundProfile(one.typical, smoothing=smoothing) for one in rounds]
        self.largest_loss = max(one.largest_loss for one in self._profiles)
        self.infinity = max(one.infinity for one in self._profiles)

    def loss_within_reach(self, delta: float) -> float:
        """Returns a loss at which the profile is negligible, for any delta."""
        return min(max(one.end for one in self._profiles), LARGEST_RESOLVED_LOSS)

    def __call__(self, excess: FloatArray) -> FloatArray:
        """Returns lower bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        return _largest_of(self._profiles, excess)

    def usual(self, excess: FloatArray) -> FloatArray:
        """Returns about the same, from the typical number of honest users."""
        return _largest_of(self._usual, excess)


def _largest_of(profiles: Sequence[RoundProfile], excess: FloatArray) -> FloatArray:
    found: FloatArray = np.max([one(excess).lower for one in profiles], axis=0)
    return found


class WitnessProfile:
    """Lower bounds on the divergence of a round, from its witnesses.

    Attributes:
        largest_loss: upper bound on the privacy loss of any output of a witness.
        infinity: lower bound on the mass of outcomes that are impossible under one of the user's values.
        is_certain: whether the number of honest reports is certain.

    Source: docs/theory/lower-bounds.md, L6.
    """

    def __init__(self, shuffled: ShuffledRound, witnesses: tuple[Decomposition, ...]) -> None:
        self._cells, self._honest = honest_cells(shuffled, width=_CELL_DEVIATIONS), shuffled.honest_users
        self.is_certain = len(self._cells) == 1
        self._doubt = shuffled.randomizer.doubt
        if shuffled.participation is not None:
            silent = shuffled.participation
            witnesses = tuple(with_silence(one, silent) for one in witnesses)
        ways = [way for one in witnesses for way in (one.merged(), one.swapped().merged())]
        self._directions = list({way.signature(): way for way in ways}.values())
        self.largest_loss = 1.01 * max((_largest_loss(one) for one in self._directions), default=0.0)
        impossible = max(map(self._impossible, self._directions), default=0.0)
        self.infinity = max(impossible * (1 - _OUTCOME_ROUND_OFF) - self._doubt, 0.0)

    def loss_within_reach(self, delta: float) -> float:
        """Returns a loss at which a crude upper bound on the witnesses' divergence is below delta."""
        end = min(self.largest_loss, LARGEST_RESOLVED_LOSS)
        if end == 0:
            return 0.0  # all values have the same law
        losses = np.geomspace(_LEAST_LOSS_SHARE * end, end, _REACH_POINTS)
        rate, fewest = self._cells[-1].most / self._honest, self._cells[0].fewest
        parts = ListedPairs([thinned(one, rate).merged() for one in self._directions])
        crude = largest_chernoff_log(parts, fewest, np.expm1(losses))
        small = np.flatnonzero(crude < math.log(delta))
        return float(losses[small[0]]) if small.size else end

    def _impossible(self, witness: Decomposition) -> float:
        """Returns a lower bound on the mass of outcomes that are impossible under the second value."""
        # As in `_shown`, the ends of a cell bound it.
        parts = [(thinned(witness, cell.fewest / self._honest), cell) for cell in self._cells]
        return math.fsum(
            cell.weight * float(ListedPairs([part]).infinity(cell.most)[0]) for part, cell in parts
        )

    def __call__(self, excess: FloatArray) -> FloatArray:
        """Returns lower bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        return self._shown(self._cells, excess)

    def usual(self, excess: FloatArray) -> FloatArray:
        """Returns about the same, from the most likely cell of numbers of honest users."""
        likeliest = max(self._cells, key=lambda cell: cell.weight)
        return self._shown([dataclasses.replace(likeliest, weight=1.0)], excess)

    def _shown(self, cells: Sequence[NumberCell], excess: FloatArray) -> FloatArray:
        found, outcomes = (
            np.zeros_like(excess),
            _LISTED_OUTCOMES if self.is_certain else _LISTED_OUTCOMES_OF_MIXTURE,
        )
        for witness in self._directions:
            total = np.zeros_like(excess)
            for cell in cells:
                # More users with the others' value, or a smaller rate, lower the divergence: the ends of a
                # cell bound it from below.
                part = thinned(witness, cell.fewest / self._honest).merged()
                total += cell.weight * _lower(part, cell.most, excess, outcomes)
            found = np.maximum(found, total)
        return np.maximum(found * (1 - _OUTCOME_ROUND_OFF) - self._doubt, 0.0)


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
