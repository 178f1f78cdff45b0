"""One shuffled round: its parameters, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers import LocalGaussian, LocalRandomizer
from shuffle_ledger.accounting.randomizers.base import OF_CERTAIN_NUMBERS
from shuffle_ledger.accounting.randomizers.generic import CLONE, CLONE_IDENTICAL, TIGHT, of_any_order
from shuffle_ledger.accounting.randomizers.notation import parse_randomizer
from shuffle_ledger.accounting.rounds.contradictions import contradictions


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
            single reports: every honest device runs the same randomizer, fixed before the round. In a partly
            honest sample `binary-response` becomes `blanket`; the attribute is always the analysis that
            bounds the round.
        reports_per_user: the most reports that one user sends to the round; the collector drops those beyond
            before it counts `reports`. If it is above 1, sampling earns no credit, and `sampled_from` counts
            users. See `charged_as`.

    Source: docs/theory/rounds-and-samples.md, S4 and S6.

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
            put(self, "sampled_from", population)
        if self.participation is not None:
            put(self, "participation", validation.share("participation", self.participation))
        put(self, "delta0", validation.share("delta0", self.delta0, zero=True))
        names = self.possible_analyses
        uncomputed = [name for name in self.randomizer.analyses if name in OF_CERTAIN_NUMBERS - {*names}]
        if self.analysis is None or self.analysis in uncomputed:
            put(self, "analysis", names[0])
        for parameter, value, expected in contradictions(self):
            raise InvalidParameter(parameter, value, expected)

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

    @property
    def possible_analyses(self) -> tuple[str, ...]:
        """Returns the names of the randomizer's bounds that hold for this round, the default one first."""
        names, silent = self.randomizer.analyses, self.coin is not None and self.coin < 1
        if silent or self.delta0 > 0:
            # The tight pair is a bound, not a decomposition: it has no silent component and no published
            # slack.
            names = tuple(name for name in names if name != TIGHT)
        if self.certain_reports is None:
            # The law of the blanks and that of the honest reports are not averaged over together.
            names = tuple(name for name in names if name not in OF_CERTAIN_NUMBERS)
        return names

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
            honest = self.reports * self.honest_users / self.sampled_from
        return self.randomizer.slack(honest, self.delta0)

    @property
    def honest_reports(self) -> int:
        """Returns the number of reports that hide one another: `floor(honest_fraction * reports)`; with
        sampling, the floor of their expected number."""
        return honest_share(self.honest_fraction, self.reports)

    @property
    def honest_users(self) -> int:
        """Returns the number of honest users in the population: `floor(honest_fraction * sampled_from)` with
        sampling, else the number of honest reports."""
        return honest_share(self.honest_fraction, self.sampled_from or self.reports)

    @property
    def certain_reports(self) -> int | None:
        """Returns the number of honest reports if it is certain; None in a partly honest sample."""
        if self.sampled_from is None:
            return self.honest_reports
        return self.reports if self.honest_users == self.sampled_from else None

    @property
    def typical(self) -> ShuffledRound:
        """Returns the round in which the number of honest reports is certain, and equal to this round's
        expected number."""
        if self.certain_reports is not None or self.honest_reports < self.randomizer.minimum_honest:
            return self
        return dataclasses.replace(
            self, reports=self.honest_reports, sampled_from=self.honest_users, honest_fraction=1.0
        )

    @property
    def coin(self) -> float | None:
        """Returns the participation probability that the bound uses; None if there is none or the bound
        ignores it."""
        return None if self.analysis == CLONE else self.participation

    def describe(self) -> str:
        """Returns the randomizer's call and `particulars`."""
        return ", ".join((self.randomizer.describe(), *self.particulars))

    @property
    def in_words(self) -> str:
        """Returns the call, the number of reports, and `particulars`."""
        reports = "1 report" if self.reports == 1 else f"{self.reports:,} reports"
        return ", ".join((self.randomizer.describe(), reports, *self.particulars))

    @property
    def particulars(self) -> tuple[str, ...]:
        """Returns, in words, the differences from a round with one honest report of each user."""
        parts = {
            "secret sample of": self.sampled_from and f"{self.sampled_from:,}",
            "participation": self.participation and exact_text(self.participation),
            "honest fraction": self.honest_fraction < 1 and exact_text(self.honest_fraction),
            "delta0": self.delta0 and exact_text(self.delta0),
        }
        found = [f"{name} {value}" for name, value in parts.items() if value]
        several = self.reports_per_user
        return (*found, *([f"at most {several} reports of each user"] if several > 1 else []))

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
        for name, expected in (("randomizer", "a randomizer"), ("reports", "the number of reports")):
            if name not in mapping:
                raise InvalidParameter(name, None, expected)
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
    Source: docs/theory/rounds-and-samples.md, S7.

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
