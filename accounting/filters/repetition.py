"""The repetition filter: rounds that one kind dominates, counted.

Which kind that is, is fixed before the cohort's first output. Its composition with itself is certified once;
a decision compares a count. `docs/adaptivity.md`, Lemma 8, has the proof.
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
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

REPETITIONS_MAX = 10**6
# What a round is charged that the kind does not dominate: more than any count that is ever certified.
_EVERYTHING = Fraction(2**40)
# Numbers of rounds whose epsilon is certified, between 1 and the largest within the budget; between them the
# reading goes up in steps.
_COUNTS = 24
_COUNTS_MAX = 64
_STRIDE = 16  # the first step of a search is this part of where it begins


class Certified(Protocol):
    """A certificate, of which the filter uses the upper end."""

    @property
    def epsilon_upper(self) -> float:
        """An epsilon that certainly holds."""


class Composer(Protocol):
    """What certifies compositions: an `Accountant`, or somebody who asks one."""

    def certify(self, rounds: Mapping[ShuffledRound, int], /, *, delta: float) -> Certified:
        """The certified epsilon of rounds together."""


@dataclass(frozen=True, kw_only=True)
class RepetitionFilter:
    """Rounds are charged one unit each, if one kind of rounds dominates them, and everything if not.

    Attributes:
        kind: the round that dominates those that are charged one unit.
        delta: the filter's share of the budget's delta.
        certified: for some numbers of rounds of the kind, rising, an epsilon that so many together have at
            `delta`.

    Guarantee: if the kind was fixed before the first output, and the units never exceed a number certified
    with epsilon, all released outputs together are `(epsilon, delta)`-DP, however the rounds were chosen.
    Source: docs/adaptivity.md, Lemma 8.
    """

    kind: ShuffledRound
    delta: float
    certified: tuple[tuple[int, float], ...]

    def charge(self, accounted: ShuffledRound) -> Fraction:
        """What a round is charged."""
        return Fraction(1) if fits(accounted, self.kind) else _EVERYTHING

    def reading(self, spent: Fraction) -> Reading:
        """The smallest epsilon at which the filter is known to hold."""
        if spent <= 0:
            return Reading(0.0, 0.0)
        epsilon = min((epsilon for count, epsilon in self.certified if count >= spent), default=math.inf)
        return Reading(epsilon, epsilon)

    def to_mapping(self) -> dict[str, object]:
        """The JSON form."""
        certified = [[count, epsilon] for count, epsilon in self.certified]
        return {"kind": self.kind.to_mapping(), "delta": self.delta, "certified": certified}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> RepetitionFilter:
        """The filter that a JSON form describes.

        Raises:
            InvalidParameter: it describes none.
        """
        match mapping:
            case {"kind": Mapping() as kind, "delta": delta, "certified": [*certified]}:
                pairs = tuple(_pair(one) for one in certified)
                if all(before[0] < after[0] for before, after in itertools.pairwise(pairs)):
                    share = validation.probability("delta", delta)
                    return cls(kind=ShuffledRound.from_mapping(kind), delta=share, certified=pairs)
        raise InvalidParameter("repetition", mapping, "a kind of rounds, a delta, and numbers certified")


def repetition_of(composer: Composer, kind: ShuffledRound, *, delta: float, most: int) -> RepetitionFilter:
    """The filter for up to `most` repetitions of a kind, which `most_repeated` found to fit."""
    counts = sorted({math.ceil(most ** (step / _COUNTS)) for step in range(_COUNTS)} | {most})
    certified = tuple((count, _epsilon(composer, kind, count, delta)) for count in counts)
    return RepetitionFilter(kind=kind, delta=delta, certified=certified)


def rebudgeted(composer: Composer, repetition: RepetitionFilter, epsilon: float) -> RepetitionFilter:
    """The filter with the largest number certified that fits another budget."""
    kind, delta = repetition.kind, repetition.delta
    within = [count for count, known in repetition.certified if known <= epsilon]
    about = max(within, default=1)
    most = most_repeated(composer, kind, epsilon=epsilon, delta=delta, about=about)
    known = dict(repetition.certified)
    if most and most not in known:
        known[most] = _epsilon(composer, kind, most, delta)
    certified = tuple(sorted(known.items()))[-_COUNTS_MAX:]
    return RepetitionFilter(kind=kind, delta=delta, certified=certified)


def most_repeated(
    composer: Composer, kind: ShuffledRound, *, epsilon: float, delta: float, about: int
) -> int:
    """How many rounds of a kind certainly fit; the search begins at `about`."""
    return largest_count(lambda count: _epsilon(composer, kind, count, delta) <= epsilon, about)


def largest_count(holds: Callable[[int], bool], about: int) -> int:
    """The largest number up to `REPETITIONS_MAX` that was found to hold, if fewer hold whenever more do."""
    low, high = 0, REPETITIONS_MAX + 1
    count = min(max(about, 1), REPETITIONS_MAX)
    step = max(1, count // _STRIDE)
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
