"""One shuffled round: its parameters, and certified bounds on its privacy profile."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.decomposition import LEAST_PROBABILITY
from shuffle_ledger.accounting.amplification.profiles import rounded_orders
from shuffle_ledger.accounting.amplification.random_size.mixture import EveryNumber, Numbers
from shuffle_ledger.accounting.amplification.random_size.sampling import (
    Cell,
    SamplingTerm,
    counts_in_sample,
    mixture,
    sampling_cells,
)
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, TINY, UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.effort import MOST_EFFORT, counted
from shuffle_ledger.accounting.pld.bounds import ProfileBounds, Sketch
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA, Tail
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import Generic, LocalGaussian, LocalRandomizer
from shuffle_ledger.accounting.randomizers.base import EXACT, DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.generic import CLONE, CLONE_IDENTICAL, TIGHT, of_any_order
from shuffle_ledger.accounting.randomizers.notation import parse_randomizer

# A round with at most this many outcomes is summed outcome by outcome; and the same for each number of honest
# reports, if that is random.
_LISTED_OUTCOMES = 1_000_000
_LISTED_OUTCOMES_OF_MIXTURE = 200_000
# Cells of numbers of honest reports with at most this share of the largest cell's probability have their
# smoothing multiplied by the second number.
_LIGHT_CELL = 0.15
_LIGHT_CELL_SMOOTHING = 2.5
# From this number of cells on, all numbers of honest reports are bounded by one table, in groups of this
# relative width, in units of the smoothing's square.
_TABLE_FROM_CELLS, _TABLE_GROUP_WIDTH = 16, 0.4
# A cell is halved if its bounds are apart by more than this many times the smoothing's square times the sum,
# and by more than a negligible delta; at most this often, and up to this many cells.
_WIDE_CELL, _NEGLIGIBLE_WIDTH, _MOST_HALVINGS, _MOST_CELLS = 20.0, 1e-34, 8, 200
# To save effort, a mixture is evaluated at no fewer orders than the first number as long as it has more cells
# than the second one.
_ENOUGH_ORDERS, _FEWEST_CELLS = 300, 8
# Orders at which the effort of a cell is measured, and how often a cell is evaluated at about its orders.
_MEASURED_ORDERS, _EVALUATIONS_OF_CELL = 8, 2
# Losses of a crude bound on the profile: 0, and this many from the share of the largest loss on.
_SKETCH_POINTS, _SKETCH_FROM = 65, 1e-9
# If the bound falls by more than this many times the logarithm of what is negligible between two of these,
# the loss where it is negligible is searched for between them, at this many points, at most this often.
_STEEP_SHARE, _SEARCH_POINTS, _MOST_SEARCHES = 2.0, 17, 3
# A profile counts as flat if it is above its value at infinity by at most this share of the smoothing's
# square; and points of the search for the loss from which on it is.
_FLAT_SHARE = 0.05
_FLAT_POINTS = 33
# That search is made if the crude bound on the end is this many times that of the most likely cell, or above
# this share of the largest resolved loss.
_FAR_END, _NEAR_LIMIT = 10.0, 0.9
# Cells of largest weight that an outline of the profile evaluates.
_OUTLINE_CELLS = 4
#: Larger losses count as infinite. No table has larger finite ones, since its probabilities are at least
#: 1e-50.
LARGEST_RESOLVED_LOSS = 120.0
_LOG_NEGLIGIBLE = math.log(NEGLIGIBLE_DELTA)


@dataclass(frozen=True, kw_only=True)
class ShuffledRound:
    """A collection round whose shuffled multiset of reports is all that the analyst sees.

    Attributes:
        randomizer: the randomizer of every device; text and JSON forms are accepted. By `clone` only its
            epsilon0 matters: it becomes `generic`. So does `local_gaussian` with a local delta, which becomes
            that of the round.
        reports: number of reports that are shuffled together.
        sampled_from: size of the population from which the reporting users were sampled, uniformly without
            replacement and in secret; None if all users reported.
        participation: probability with which each of `reports` users reports at all, by a secret coin that
            does not depend on the user's value; None if all users report. By `clone` it has no effect.
        honest_fraction: share of the reports (with sampling or participation: of the population) whose
            devices run the randomizer as specified.
        delta0: local delta of an (epsilon0, delta0)-LDP randomizer; a bound is published for `generic` with
            `clone` and `clone-identical` only.
        analysis: name of the bound, one of the randomizer's; None means its default. `clone`, the default if
            a part of the randomizer is `generic`: a secret uniform order is drawn first, and the device at
            each place of it runs any randomizer with local privacy epsilon0, which may depend on the place
            and on all earlier messages; all messages may be seen in their order. Every other analysis of
            single reports: every honest device runs the same randomizer, fixed before the round. Where
            `exact` is one of the randomizer's but not proven for the round, `exact` becomes `blanket`; the
            attribute is always the analysis that bounds the round.
        reports_per_user: the most reports that one user sends to the round; the collector drops those beyond
            before it counts `reports`. If it is above 1, sampling earns no credit, and `sampled_from` counts
            users. See `charged_as`.

    Raises:
        InvalidParameter: a value is out of range, or two contradict each other.
    """

    randomizer: LocalRandomizer
    reports: int
    sampled_from: int | None = None
    participation: float | None = None
    honest_fraction: float = 1.0
    delta0: float = 0.0
    analysis: str | None = None
    reports_per_user: int = 1

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "randomizer", parse_randomizer(self.randomizer))
        words = {name: getattr(self, name) for name in ("randomizer", "analysis")}
        put(self, "_words", words)  # not a field: rounds with explicit and with default values are equal
        self._generalize()
        put(self, "reports", validation.whole("reports", self.reports, 1, validation.MAXIMUM_REPORTS))
        most = validation.MAXIMUM_REPORTS_PER_USER
        put(self, "reports_per_user", validation.whole("reports_per_user", self.reports_per_user, 1, most))
        put(self, "honest_fraction", validation.share("honest_fraction", self.honest_fraction))
        if self.sampled_from is not None:
            population = validation.whole("sampled_from", self.sampled_from, 1, validation.MAXIMUM_REPORTS)
            if population < self.fewest_users:
                expected = f"at least the {self.reports} reports sampled from it"
                if self.reports_per_user > 1:
                    expected = f"at least {self.fewest_users} users, who sent the {self.reports} reports"
                raise InvalidParameter("sampled_from", population, expected)
            put(self, "sampled_from", population)
        if self.participation is not None:
            put(self, "participation", validation.share("participation", self.participation))
            if self.participation < validation.MINIMUM_PROBABILITY:
                expected = f"a probability from {exact_text(validation.MINIMUM_PROBABILITY)} to 1"
                raise InvalidParameter("participation", self.participation, expected)
            if self.sampled_from is not None:
                raise InvalidParameter(
                    "participation", self.participation, "nothing when sampled_from is given"
                )
        put(self, "delta0", validation.share("delta0", self.delta0, zero=True))
        if 0 < self.delta0 < validation.MINIMUM_PROBABILITY:
            expected = f"0 or a number from {exact_text(validation.MINIMUM_PROBABILITY)} to below 1"
            raise InvalidParameter("delta0", self.delta0, expected)
        self._choose_analysis()
        self._check_honesty()
        if self.reports_per_user > 1:
            self._check_several()

    def _generalize(self) -> None:
        """Puts `generic` in the place of a randomizer of which only the local privacy is accounted."""
        put, randomizer = object.__setattr__, self.randomizer
        if isinstance(randomizer, LocalGaussian):
            accounted, delta0 = randomizer.accounted
            if self.delta0 not in (0.0, delta0):
                expected = f"nothing: the {randomizer.kind} itself names a delta0, or needs none"
                raise InvalidParameter("delta0", self.delta0, expected)
            put(self, "delta0", delta0)
            put(self, "randomizer", accounted)
        if self.analysis is None and randomizer.analyses[0] in (CLONE, CLONE_IDENTICAL):
            put(self, "analysis", randomizer.analyses[0])
        if self.analysis == CLONE and CLONE in randomizer.analyses:
            put(self, "randomizer", of_any_order(self.randomizer))

    def _choose_analysis(self) -> None:
        randomizer = self.randomizer
        if self.participation is not None and not randomizer.takes_participation:
            expected = f"nothing for {randomizer.kind}: {randomizer.silence}"
            raise InvalidParameter("participation", self.participation, expected)
        if self.coin is not None and isinstance(randomizer, DecomposedRandomizer):
            least = randomizer.least_probability
            if self.coin * least < LEAST_PROBABILITY:
                floor, found = exact_text(LEAST_PROBABILITY), exact_text(least)
                expected = f"no output less likely than {floor}, one of {found} among them"
                raise InvalidParameter("participation", self.participation, expected)
        if self.delta0 > 0 and not isinstance(randomizer, Generic):
            expected = f"0 for {randomizer.kind}: published for generic alone"
            raise InvalidParameter("delta0", self.delta0, expected)
        names = self._possible_analyses()
        if self.analysis is None or (
            self.analysis == EXACT and EXACT in set(randomizer.analyses) - set(names)
        ):
            object.__setattr__(self, "analysis", names[0])
        if not isinstance(self.analysis, str) or self.analysis not in names:
            expected = f"one of {', '.join(names)} for {randomizer.kind}"
            if names != randomizer.analyses:
                expected += " with sampled_from" if self.sampled_from else " with participation or delta0"
            if self.analysis == CLONE and isinstance(randomizer, DecomposedRandomizer):
                expected += "; generic(epsilon0=E) stands for any randomizer of a local epsilon0 E"
            raise InvalidParameter("analysis", self.analysis, expected)

    def _possible_analyses(self) -> tuple[str, ...]:
        """Returns the names of the randomizer's bounds that hold for this round, the default one first."""
        names, silent = self.randomizer.analyses, self.coin is not None and self.coin < 1
        if silent or self.delta0 > 0:
            # The tight pair is a bound, not a decomposition: it has no silent component and no published
            # slack.
            names = tuple(name for name in names if name != TIGHT)
        if isinstance(self.randomizer, DecomposedRandomizer) and (silent or self._is_partly_honest_sample):
            # The blanket's silent component and its one contour for every number of honest reports have no
            # counterpart here.
            names = tuple(name for name in names if name != EXACT)
        return names

    @property
    def _is_partly_honest_sample(self) -> bool:
        """Returns whether the number of honest reports is random, by sampling."""
        return self.sampled_from is not None and self.honest_fraction < 1

    def _check_honesty(self) -> None:
        least = self.randomizer.minimum_honest
        if least == 0 and self.honest_fraction < 1:
            expected = f"1 for {self.randomizer.kind}: {self.randomizer.silence}"
            raise InvalidParameter("honest_fraction", self.honest_fraction, expected)
        if isinstance(self.randomizer, LocalGaussian) and self._is_partly_honest_sample:
            expected = (
                "1 for a sample of local_gaussian without a delta0: its bound takes too long for every"
                " number of honest reports; leave sampled_from out, which then earns no credit, and give the"
                " honest share of the reports, or state a delta0"
            )
            raise InvalidParameter("honest_fraction", self.honest_fraction, expected)
        if self.reports < least:
            raise InvalidParameter("reports", self.reports, f"at least {least} for {self.randomizer.kind}")
        if self.honest_reports < least:
            count = "one" if least == 1 else str(least)
            expected = f"a share of the {self.reports} reports that leaves at least {count} honest"
            raise InvalidParameter("honest_fraction", self.honest_fraction, expected)

    def _check_several(self) -> None:
        """Refuses several reports of one user where no bound is proven for them."""
        expected = None
        if not isinstance(self.randomizer, DecomposedRandomizer):
            expected = f"1 for {self.randomizer.kind}: the bound needs reports that are randomized one by one"
        elif self.analysis == CLONE:
            expected = (
                f"1 for {CLONE}: the bound needs one randomizer on all devices, fixed before the round, as"
                f" {' and '.join(name for name in self._possible_analyses() if name != CLONE)} do"
            )
        elif self.participation is not None:
            expected = (
                "1 with participation: its coin would decide on all reports of a user together; leave it out"
                " and count the reports that were sent"
            )
        elif self.sampled_from is not None and self.honest_fraction < 1:
            expected = (
                "1 for a partly honest sample, whose number of honest reports is random; leave sampled_from"
                " out, which earns no credit here, and give the honest share of the reports"
            )
        if expected is not None:
            raise InvalidParameter("reports_per_user", self.reports_per_user, expected)

    @property
    def written(self) -> LocalRandomizer:
        """Returns the randomizer as it was given; `randomizer` is `generic` in its place if only its local
        privacy is accounted."""
        given: LocalRandomizer = vars(self)["_words"]["randomizer"]
        return given

    @property
    def fewest_users(self) -> int:
        """Returns the least number of users who can have sent the reports."""
        return -(-self.reports // self.reports_per_user)

    @property
    def slack(self) -> float:
        """Returns an upper bound on the total variation distance between the round and one that its profile
        bounds; for `generic` with delta0 it is `n delta0 (1 + exp(-epsilon0)/2)`.

        With sampling, n is the expected number of honest reports, since the distance is linear in n. With
        several reports of a user, the distances of the rounds that it is charged as add up.
        Source: Feldman, McMillan, Talwar, Theorem 3.8.
        """
        if self.reports_per_user > 1:
            single, count = charged_as(self)
            return count * single.slack * (1 + 2 * UNIT_ROUND_OFF)
        honest = float(self.honest_reports)
        if self.sampled_from is not None:
            honest = self.reports * honest_share(self.honest_fraction, self.sampled_from) / self.sampled_from
        return self.randomizer.slack(honest, self.delta0)

    @property
    def honest_reports(self) -> int:
        """Returns the number of reports that hide one another: `floor(honest_fraction * reports)`; with
        sampling, the floor of their expected number."""
        return honest_share(self.honest_fraction, self.reports)

    @property
    def typical(self) -> ShuffledRound:
        """Returns the round in which the number of honest reports is certain, and equal to this round's
        expected number."""
        honest, certain = _certain_count(self)
        if certain or self.honest_reports < self.randomizer.minimum_honest:
            return self
        return dataclasses.replace(
            self, reports=self.honest_reports, sampled_from=honest, honest_fraction=1.0
        )

    @property
    def coin(self) -> float | None:
        """Returns the participation probability that the bound uses; None if there is none or the bound
        ignores it."""
        return None if self.analysis == CLONE else self.participation

    def describe(self) -> str:
        """Returns the randomizer's call, followed by the number of reports per user if that is above 1."""
        call = self.randomizer.describe()
        return call if self.reports_per_user == 1 else f"{call}, at most {self.reports_per_user} of each user"

    @property
    def stated_analysis(self) -> str:
        """Returns the name of the analysis for people, with the condition on reports that it needs."""
        needed = self.randomizer.condition
        return f"{self.analysis}, if {needed}" if needed else str(self.analysis)

    def asked_mapping(self) -> dict[str, object]:
        """Returns the JSON form of the description as given: null for what was left to the defaults."""
        words: dict[str, Any] = vars(self)["_words"]
        return {**self.to_mapping(), **words, "randomizer": words["randomizer"].to_mapping()}

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form with every field; a single report per user is left out."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.reports_per_user == 1:
            del fields["reports_per_user"]
        return {**fields, "randomizer": self.randomizer.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> ShuffledRound:
        """Reads the JSON form.

        Raises:
            InvalidParameter: a field is unknown or missing, or a value is bad.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(mapping, Mapping):
            raise InvalidParameter("round", mapping, f"a mapping with the fields {', '.join(names)}")
        for name in mapping:
            if name not in names:
                raise InvalidParameter("round", name, f"only the fields {', '.join(names)}")
        for name in ("randomizer", "reports"):
            if name not in mapping:
                raise InvalidParameter("round", sorted(mapping), f"a value for {name}")
        return cls(**mapping)  # type: ignore[arg-type]  # the constructor checks every value


def certain_round(value: object) -> ShuffledRound:
    """Returns the value if it is a round.

    Raises:
        InvalidParameter: it is not a `ShuffledRound`.
    """
    if not isinstance(value, ShuffledRound):
        raise InvalidParameter("round", value, "a ShuffledRound")
    return value


def charged_as(shuffled: ShuffledRound) -> tuple[ShuffledRound, int]:
    """Returns the round with one report per user as which a round is charged, and how often it is charged.

    A round in which no user sends more than m of n reports is `m' = min(m, n)` rounds, each of the m'-th part
    of the honest reports, rounded down, but at least one. A round with one report per user is itself, once.

    Guarantee: what the round reveals is a post-processing of what these rounds together reveal.
    Source: docs/theory.md, section 6, "Several reports of one user".

    Raises:
        InvalidParameter: `shuffled` is not a round.
    """
    shuffled = certain_round(shuffled)
    if shuffled.reports_per_user == 1:
        return shuffled, 1
    count = min(shuffled.reports_per_user, shuffled.reports)
    honest = max(shuffled.honest_reports // count, 1)
    reports = fewest_reports(honest, shuffled.honest_fraction)
    return dataclasses.replace(shuffled, reports=reports, sampled_from=None, reports_per_user=1), count


def charged_together(rounds: Mapping[ShuffledRound, int]) -> dict[ShuffledRound, int]:
    """Returns the rounds with one report per user as which rounds are charged, with their numbers; see
    `charged_as`.

    Args:
        rounds: kinds of rounds, and the number of rounds of each kind.

    Raises:
        InvalidParameter: a key is not a round.
    """
    found: dict[ShuffledRound, int] = {}
    for one, count in rounds.items():
        single, times = charged_as(one)
        found[single] = found.get(single, 0) + times * count
    return found


def fewest_reports(honest: int, fraction: float) -> int:
    """Returns the least number of reports of which `honest` are honest, if this fraction of them is."""
    return math.ceil(honest / Fraction(repr(fraction)))


def honest_share(fraction: float, count: int) -> int:
    """Returns `floor(fraction * count)`, computed exactly with the decimal number that `fraction` prints
    as."""
    return math.floor(Fraction(repr(fraction)) * count)


class RoundProfile:
    """The privacy profile of a round: `self(excess)` bounds its hockey-stick divergence at the orders `1 +
    excess`.

    Args:
        shuffled: the round.
        smoothing: smoothing of the quadrature, in deviations; see `blanket_profile`.
        listed: whether outcomes are listed if they are few. Lists leave out a mass of about
            `NEGLIGIBLE_DELTA`; quadrature has no such limit.

    Attributes:
        largest_loss: privacy loss beyond which the profile is exactly 0; may be infinite.
        end: privacy loss beyond which the profile is negligible, or beyond which losses count as infinite.
        infinity: lower bound on the mass at infinite loss.

    Guarantee: bounds hold for every pair of neighbouring datasets and both directions, at every order of at
    least 1.

    Raises:
        InvalidParameter: a user may send several reports: such a round is several rounds, see `charged_as`.
    """

    def __init__(self, shuffled: ShuffledRound, *, smoothing: float, listed: bool = True) -> None:
        if shuffled.reports_per_user > 1:
            expected = "1: several reports of a user are charged as several rounds"
            raise InvalidParameter("reports_per_user", shuffled.reports_per_user, expected)
        self._shuffled, self._smoothing = shuffled, smoothing
        self._cells, self._honest = _honest_cells(shuffled, smoothing)
        self._every: EveryNumber | None = None
        self._crudes: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._heaviest = max(cell.weight for cell in self._cells)
        make = functools.partial(
            shuffled.randomizer.profile,
            str(shuffled.analysis),
            participation=1.0 if shuffled.coin is None else shuffled.coin,
            outcomes=(_LISTED_OUTCOMES if self.is_simple else _LISTED_OUTCOMES_OF_MIXTURE) if listed else 0,
        )
        self._base = make(smoothing=smoothing)
        self._rough = self._base if self.is_simple else make(smoothing=_LIGHT_CELL_SMOOTHING * smoothing)
        self.largest_loss = self._sampled_loss(self._base.largest_loss)
        self.infinity = self._infinite_loss()
        self.end = self._last_loss()
        self._every = self._every_number()

    def sharper(self, share: float) -> RoundProfile:
        """Returns the same profile with closer bounds: the distance that smoothing causes falls to about
        `share` of the present one. It starts with the bounds found here."""
        found = copy.copy(self)
        found.sharpen(share)
        return found

    def sharpen(self, share: float) -> None:
        """Lowers the smoothing, in place, so that it causes about `share` of its present distance of
        bounds."""
        self._smoothing *= math.sqrt(share)
        self._cells, _ = _honest_cells(self._shuffled, self._smoothing)
        self._heaviest = max(cell.weight for cell in self._cells)
        self._base, self._rough = self._base.sharper(share), self._rough.sharper(share)
        self._every = self._every_number()

    def __call__(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        found = self._tabled(excess)
        return self._mixture(excess) if found is None else found

    def _tabled(self, excess: FloatArray) -> ProfileBounds | None:
        """Returns the same from a table of the profiles for every number of honest reports; None without a
        table.

        The bounds hold also if orders are off by a few roundings.
        """
        if self._every is None:
            return None
        found = self._every.bounds(excess)
        return None if found is None else self._with_room(found)

    @property
    def is_quick(self) -> bool:
        """Returns whether further orders cost little after the first ones."""
        return self.is_simple or (self._every is not None and self._every.is_known)

    def _every_number(self) -> EveryNumber | None:
        if len(self._cells) < _TABLE_FROM_CELLS:
            return None
        population, sample = int(self._shuffled.sampled_from or 0), self._shuffled.reports
        found = counts_in_sample(population, self._honest, sample)
        numbers = Numbers.of(*found, finest=_TABLE_GROUP_WIDTH * self._smoothing**2)
        last, end = (math.expm1(min(one, LARGEST_EXPONENT)) for one in (self.end, self._base.largest_loss))
        return EveryNumber(numbers, self._honest, last, end, self._base.of_counts)

    def at(self, losses: FloatArray) -> ProfileBounds:
        """Returns bounds at privacy losses, ascending, shape (losses,); they hold however the orders were
        rounded."""
        excess = np.expm1(losses)
        # With sampling, orders are quotients, and the bounds already include their round-off.
        return rounded_orders(self, excess) if self._is_certain else self(excess)

    @functools.cached_property
    def sketch(self) -> Sketch:
        """Returns a cheap estimate of the profile. It is not a bound."""
        losses, crude = self._crude(self._cells[0].fewest)
        estimate = self._base.estimated_log(crude) + math.log(self._rate)
        return Sketch(losses, np.minimum(estimate, 0.0))

    def _mixture(self, excess: FloatArray) -> ProfileBounds:
        """Returns the bounds as a sum over cells. Cells that make them wide are halved, for later calls
        too."""
        with counted() as effort:
            found = self._of_cells(self._cells, excess)
        left, one = MOST_EFFORT / 8 - effort.spent, effort.spent / len(self._cells)
        for _ in range(_MOST_HALVINGS):
            most = (
                _WIDE_CELL * self._smoothing**2 * sum(bounds.upper for _, bounds in found) + _NEGLIGIBLE_WIDTH
            )
            wide = [
                not cell.is_single and bool(np.any(bounds.upper - bounds.lower > most))
                for cell, bounds in found
            ]
            left -= 2 * sum(wide) * one
            if not any(wide) or len(found) + sum(wide) > _MOST_CELLS or left < 0:
                break
            halves = [half for (cell, _), far in zip(found, wide, strict=True) if far for half in cell.halves]
            finer = iter(self._of_cells(halves, excess))
            found = [
                one
                for old, far in zip(found, wide, strict=True)
                for one in ((next(finer), next(finer)) if far else (old,))
            ]
        self._cells = [cell for cell, _ in found]
        return self._summed([bounds for _, bounds in found])

    def _of_cells(self, cells: list[Cell], excess: FloatArray) -> list[tuple[Cell, ProfileBounds]]:
        upper, lower = mixture(cells, self._honest, self._bounds, excess)
        return [(cell, ProfileBounds(*bounds)) for cell, *bounds in zip(cells, upper, lower, strict=True)]

    def _summed(self, bounds: list[ProfileBounds]) -> ProfileBounds:
        return self._with_room(ProfileBounds(*np.sum(bounds, axis=0)))

    def _with_room(self, bounds: ProfileBounds) -> ProfileBounds:
        upper, lower = bounds
        # Weights of a mixture are products of up to ten million ratios; a negligible mass is left out.
        room = 1e-14 if self.is_simple else 1e-8
        left_out = 0.0 if self.is_simple else NEGLIGIBLE_DELTA
        return ProfileBounds(upper * (1 + room) + left_out, lower * (1 - room))

    def _bounds(self, cell: Cell, count: int, excess: FloatArray) -> ProfileBounds:
        base = self._rough if cell.weight < _LIGHT_CELL * self._heaviest else self._base
        return base.bounds(count, excess) if self._is_certain else base.near(count, excess)

    @property
    def _rate(self) -> float:
        """Returns the largest sampling rate of honest users in any cell."""
        return self._cells[-1].most / self._honest

    @property
    def _is_certain(self) -> bool:
        """Returns whether all honest users certainly report."""
        return self.is_simple and self._rate >= 1

    @property
    def is_simple(self) -> bool:
        """Returns whether the number of honest reports is certain, so that the profile is not a mixture."""
        return len(self._cells) == 1

    @property
    def is_enumerated(self) -> bool:
        """Returns whether the profile is a sum over listed outcomes, so that more orders cost almost no
        time."""
        return self._base.is_listed(self._cells[-1].most)

    def afford(self, excess: FloatArray, *, most: float) -> int:
        """Makes the profile cheaper if it is a mixture that would take too long, and returns at how many of
        these orders minus one it then takes about `most` array elements.

        Fewer orders come first, then fewer and wider cells, then still fewer orders.
        """
        if self.is_simple:
            return excess.size
        orders, heaviest = excess.size, max(self._cells, key=lambda one: one.weight)
        some, slowest = excess[:: max(orders // _MEASURED_ORDERS, 1)], 0.0
        # Outcomes of few reports are listed, at almost no cost.
        for cell in (self._cells[0], heaviest, self._cells[-1]):
            with counted() as effort:
                self._bounds(cell, cell.fewest, some * (self._honest / cell.fewest))
            slowest = max(slowest, effort.spent / some.size)
        affordable = most / max(_EVALUATIONS_OF_CELL * slowest, 1.0)
        fewer = min(orders, max(int(affordable / len(self._cells)), min(orders, _ENOUGH_ORDERS)))
        size = math.ceil(len(self._cells) * fewer / max(affordable, 1.0))
        if size > 1:
            size = min(size, max(len(self._cells) // _FEWEST_CELLS, 1))
            groups = [self._cells[start : start + size] for start in range(0, len(self._cells), size)]
            self._cells = [
                Cell.of(group[0].fewest, np.concatenate([one.masses for one in group])) for group in groups
            ]
            self._heaviest = max(cell.weight for cell in self._cells)
        return min(fewer, max(int(affordable / len(self._cells)), 1))

    def outline(self, excess: FloatArray) -> ProfileBounds:
        """Returns wider bounds that are cheap for mixtures too: from the cells of largest weight; the
        divergence of the others counts as 0 in the lower bound and as 1 in the upper."""
        cells = sorted(self._cells, key=lambda cell: -cell.weight)
        bounds = self._summed([one for _, one in self._of_cells(cells[:_OUTLINE_CELLS], excess)])
        rest = math.fsum(cell.weight for cell in cells[_OUTLINE_CELLS:])
        return ProfileBounds(bounds.upper + rest, bounds.lower)

    def tail(self, loss: float, value: float, points: int) -> Tail:
        """Returns crude upper bounds on the profile from `loss`, where it is at most `value`, to its end."""
        losses = np.linspace(loss, self.largest_loss, points)
        rate, fewest = self._rate, self._cells[0].fewest
        crude = self._base.crude_log(fewest, np.expm1(np.minimum(losses[1:-1], LARGEST_EXPONENT)) / rate)
        # Room for the round-off of the crude bound, which n multiplies.
        crude += 1e-6 + 1e-14 * fewest
        if not self.is_simple:
            crude = np.logaddexp(crude, math.log(NEGLIGIBLE_DELTA))
        with np.errstate(divide="ignore"):
            heights = np.minimum.accumulate(np.append(np.log(value), crude))
        return Tail(losses, heights)

    def _sampled_loss(self, loss: float) -> float:
        """Returns the largest loss under sampling at rate s, rounded up: `log(1 + s (exp(loss) - 1))`."""
        if self._is_certain or math.isinf(loss):
            return loss
        return math.log1p(self._rate * math.expm1(min(loss, LARGEST_EXPONENT))) * (1 + 32 * UNIT_ROUND_OFF)

    def _infinite_loss(self) -> float:
        """Returns a lower bound on the mass of outcomes that are impossible under the other input."""
        terms = [
            one.weight * (one.fewest / self._honest) * self._base.infinity(one.most) for one in self._cells
        ]
        return max(math.fsum(terms) * (1 - 1e-9), 0.0)

    def _last_loss(self) -> float:
        if self._base.last_loss is not None:
            return min(self._sampled_loss(self._base.last_loss), LARGEST_RESOLVED_LOSS)
        end = self._negligible_loss(self._cells[0].fewest)
        if math.isfinite(self.largest_loss):
            return end
        usual = self._negligible_loss(max(self._cells, key=lambda cell: cell.weight).fewest)
        # The smallest number of honest reports may have almost no weight.
        far = end > min(_FAR_END * usual, _NEAR_LIMIT * LARGEST_RESOLVED_LOSS)
        return self._flat_loss(end) if far else end

    def _flat_loss(self, limit: float) -> float:
        """Returns a loss, at most `limit`, beyond which the upper bound is almost flat: its value there
        counts as mass at infinite loss."""
        losses = np.geomspace(1e-9 * limit, limit, _FLAT_POINTS)
        upper = self(np.expm1(losses)).upper
        enough = (1 + _FLAT_SHARE * self._smoothing**2) * upper[-1] + NEGLIGIBLE_DELTA
        return float(losses[int(np.argmax(upper <= enough))])

    def _negligible_loss(self, fewest: int) -> float:
        """Returns about the loss at which a crude bound on the profile of `fewest` honest reports falls below
        `NEGLIGIBLE_DELTA`; at most the largest loss that is resolved."""
        losses, crude = self._crude(fewest)
        for _ in range(_MOST_SEARCHES):
            below = np.flatnonzero(crude < _LOG_NEGLIGIBLE)
            last = max(int(below[0]), 1) if below.size else losses.size - 1
            if losses[last] in (losses[1], self.largest_loss):
                return float(losses[last])
            if not below.size or crude[last] > _STEEP_SHARE * _LOG_NEGLIGIBLE:
                share = (_LOG_NEGLIGIBLE - crude[last - 1]) / min(crude[last] - crude[last - 1], -TINY)
                return float(losses[last - 1] + (losses[last] - losses[last - 1]) * min(share, 1.0))
            losses = np.linspace(losses[last - 1], losses[last], _SEARCH_POINTS)
            crude = self._crude_log(fewest, losses)
        return float(losses[-1])

    def _crude_log(self, fewest: int, losses: FloatArray) -> FloatArray:
        """Returns logarithms of crude upper bounds on the divergence of `fewest` honest reports, before
        sampling, shape (losses,)."""
        return self._base.crude_log(fewest, np.expm1(losses) / self._rate)

    def _crude(self, fewest: int) -> tuple[FloatArray, FloatArray]:
        """Returns losses up to the largest one that is resolved, and `_crude_log` there."""
        if fewest not in self._crudes:
            limit = min(self.largest_loss, LARGEST_RESOLVED_LOSS)
            losses = np.append(0.0, np.geomspace(_SKETCH_FROM * limit, limit, _SKETCH_POINTS))
            self._crudes[fewest] = losses, self._crude_log(fewest, losses)
        return self._crudes[fewest]


def _honest_cells(shuffled: ShuffledRound, smoothing: float) -> tuple[list[Cell], int]:
    """Returns the possible numbers of honest reports, in cells whose width suits the smoothing, and the
    number of honest users."""
    honest, certain = _certain_count(shuffled)
    if certain:
        return [Cell.of(certain, np.ones(1))], honest
    population, sample = int(shuffled.sampled_from or 0), shuffled.reports
    return sampling_cells(*counts_in_sample(population, honest, sample), finest=1.5 * smoothing**2), honest


def _certain_count(shuffled: ShuffledRound) -> tuple[int, int]:
    """Returns the number of honest users, and the number of honest reports; 0 if that is random."""
    if shuffled.sampled_from is None:
        return shuffled.honest_reports, shuffled.honest_reports
    honest = honest_share(shuffled.honest_fraction, shuffled.sampled_from)
    return honest, shuffled.reports if honest == shuffled.sampled_from else 0


def is_certain(shuffled: ShuffledRound) -> bool:
    """Returns whether the number of honest reports is certain."""
    return _certain_count(shuffled)[1] > 0


def sampling_terms(shuffled: ShuffledRound, *, finest: float, narrowest: float) -> list[SamplingTerm]:
    """Returns the mixture over the number of honest reports, as terms for groups of numbers; a single term if
    the number is certain.

    Args:
        shuffled: the round.
        finest: relative width of groups near the numbers that matter most.
        narrowest: least width of a group, in deviations of the number.
    """
    honest, certain = _certain_count(shuffled)
    if certain:
        cells = [Cell.of(certain, np.ones(1))]
    else:
        population, sample = int(shuffled.sampled_from or 0), shuffled.reports
        numbers = counts_in_sample(population, honest, sample)
        cells = sampling_cells(*numbers, finest=finest, narrowest=narrowest)
    return [
        SamplingTerm(
            weight=one.weight,
            fewest=one.fewest,
            most=one.most,
            lower_rate=one.fewest / honest,
            upper_rate=one.most / honest,
        )
        for one in cells
    ]
