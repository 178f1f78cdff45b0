"""The repetition filter: it counts rounds that one kind of rounds dominates.

The kind is fixed before the cohort's first output. The composition of the kind with itself is certified once,
for several numbers of rounds; a decision only compares a count. `docs/adaptivity.md`, Lemma 8, has the proof.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.gaussian_and_renyi import Reading
from shuffle_ledger.accounting.rounds.dominance import fits
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound, charged_as

#: Largest number of repetitions that is certified.
REPETITIONS_MAX = 10**6
# The charge, in units, of a round that the kind does not dominate: above every count that is certified.
_UNCOVERED_UNITS = Fraction(2**40)
# Numbers of rounds, from 1 to the largest within the budget, whose epsilon is certified: between them the
# reading is that of the next larger one. More: finer readings, more computation. And the most that are kept
# after changes of the budget.
_CERTIFIED_COUNTS = 24
_MOST_CERTIFIED_COUNTS = 64
_SEARCH_PARTS = 16  # the first step of a search is its beginning over this


class Certified(Protocol):
    """A certificate, of which the filter uses the upper end."""

    @property
    def epsilon_upper(self) -> float:
        """Returns an epsilon that certainly holds."""


class Composer(Protocol):
    """Certifies compositions: an `Accountant`, or an object that asks one."""

    def certify(self, rounds: Mapping[ShuffledRound, int], /, *, delta: float) -> Certified:
        """Returns the certified epsilon of rounds together at `delta`."""


@dataclass(frozen=True, kw_only=True)
class RepetitionFilter:
    """Charges one unit for a round that the kind dominates, and more than every budget for any other round. A
    round that is charged as several rounds takes as many units.

    Attributes:
        kind: the round that dominates those that are charged one unit.
        delta: the filter's share of the budget's delta.
        certified: pairs of a number of rounds of the kind, rising, and a certified epsilon of these rounds
            together at `delta`.

    Guarantee: if the kind was fixed before the first output, and the units never exceed a number certified
    with epsilon, all released outputs together are `(epsilon, delta)`-DP, however the rounds were chosen.
    Source: docs/adaptivity.md, Lemma 8.
    """

    kind: ShuffledRound
    delta: float
    certified: tuple[tuple[int, float], ...]

    def charge(self, accounted: ShuffledRound) -> Fraction:
        """Returns the charge of a round, in units."""
        single, count = charged_as(accounted)
        return count * (Fraction(1) if fits(single, self.kind) else _UNCOVERED_UNITS)

    def reading(self, spent: Fraction) -> Reading:
        """Returns the smallest epsilon at which the filter is known to hold; infinite if there is none."""
        if spent <= 0:
            return Reading(0.0, 0.0)
        epsilon = min((epsilon for count, epsilon in self.certified if count >= spent), default=math.inf)
        return Reading(epsilon, epsilon)

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        certified = [[count, epsilon] for count, epsilon in self.certified]
        return {"kind": self.kind.to_mapping(), "delta": self.delta, "certified": certified}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> RepetitionFilter:
        """Reads the JSON form.

        Raises:
            InvalidParameter: it does not describe a filter.
        """
        match mapping:
            case {"kind": Mapping() as kind, "delta": delta, "certified": [*certified]}:
                pairs = tuple(_pair(one) for one in certified)
                if all(before[0] < after[0] for before, after in itertools.pairwise(pairs)):
                    share = validation.probability("delta", delta)
                    return cls(kind=ShuffledRound.from_mapping(kind), delta=share, certified=pairs)
        raise InvalidParameter("repetition", mapping, "a kind of rounds, a delta, and numbers certified")


def repetition_of(composer: Composer, kind: ShuffledRound, *, delta: float, most: int) -> RepetitionFilter:
    """Makes the filter for up to `most` repetitions of a kind, a number that `most_repeated` found."""
    counts = sorted(
        {math.ceil(most ** (step / _CERTIFIED_COUNTS)) for step in range(_CERTIFIED_COUNTS)} | {most}
    )
    certified = tuple((count, _epsilon(composer, kind, count, delta)) for count in counts)
    return RepetitionFilter(kind=kind, delta=delta, certified=certified)


def rebudgeted(composer: Composer, repetition: RepetitionFilter, epsilon: float) -> RepetitionFilter:
    """Returns the filter with the largest number of repetitions within another budget certified too."""
    kind, delta = repetition.kind, repetition.delta
    within = [count for count, known in repetition.certified if known <= epsilon]
    about = max(within, default=1)
    most = most_repeated(composer, kind, epsilon=epsilon, delta=delta, about=about)
    known = dict(repetition.certified)
    if most and most not in known:
        known[most] = _epsilon(composer, kind, most, delta)
    certified = tuple(sorted(known.items()))[-_MOST_CERTIFIED_COUNTS:]
    return RepetitionFilter(kind=kind, delta=delta, certified=certified)


def most_repeated(
    composer: Composer, kind: ShuffledRound, *, epsilon: float, delta: float, about: int
) -> int:
    """Returns how many rounds of a kind certainly fit in a budget; the search begins at `about`."""
    return largest_count(lambda count: _epsilon(composer, kind, count, delta) <= epsilon, about)


def largest_count(holds: Callable[[int], bool], about: int) -> int:
    """Returns the largest number up to `REPETITIONS_MAX` at which the condition holds; 0 if there is none.

    The condition must be monotone: if it holds for a number, it holds for smaller ones.
    """
    low, high = 0, REPETITIONS_MAX + 1
    count = min(max(about, 1), REPETITIONS_MAX)
    step = max(1, count // _SEARCH_PARTS)
    while low < count < high:
        if holds(count):
            low, count = count, min(count + step, high)
        else:
            high, count = count, max(count - step, low)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _epsilon(composer: Composer, kind: ShuffledRound, count: int, delta: float) -> float:
    return float(composer.certify({kind: count}, delta=delta).epsilon_upper)


def _pair(pair: object) -> tuple[int, float]:
    match pair:
        case [int(count), float(epsilon)] if count > 0 and epsilon >= 0:
            return count, epsilon
    raise InvalidParameter("certified", pair, "a number of rounds and its epsilon")
