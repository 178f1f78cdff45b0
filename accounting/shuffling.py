"""One shuffled round: its parameters, and certified bounds on its privacy profile."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from accounting import checks
from accounting.blanket_sum import ProfileBounds, blanket_profile, chernoff_log_profile
from accounting.contour import UNIT_ROUND_OFF, FloatArray
from accounting.decomposition import with_silence
from accounting.enumeration import Outcomes, enumerate_outcomes
from accounting.errors import InvalidParameter
from accounting.notation import parse_randomizer
from accounting.privacy_loss import NEGLIGIBLE_DELTA
from accounting.randomizers import Generic, LocalRandomizer

# Rounds with at most this many outcomes are summed outcome by outcome; beyond, by quadrature.
_OUTCOMES = 1_000_000
_SEARCH_POINTS = 256
_OUTLINE_TERMS = 4
# Losses beyond count as infinite: twice the largest epsilon0 that is accepted.
_LARGEST_RESOLVED_LOSS = 60.0


@dataclass(frozen=True, kw_only=True)
class ShuffledRound:
    """A collection round of which only the shuffled multiset of reports is seen.

    Attributes:
        randomizer: what every device runs, identical on all; text and JSON forms are accepted.
        reports: number of reports that are shuffled together.
        sampled_from: size of the population that the reporting users were sampled from, uniformly without
            replacement and in secret; None when everyone reported.
        participation: probability with which each of `reports` users reports at all, by a secret coin
            independent of its value; None when everyone does.
        honest_fraction: share of the reports (with sampling or participation: of the population) that run the
            randomizer as told.
        delta0: local delta of an (epsilon0, delta0)-LDP randomizer; published for `generic` with `clone`
            only.
        analysis: name of the bound, one of the randomizer's; None means its default.

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

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "randomizer", parse_randomizer(self.randomizer))
        put(self, "reports", checks.whole("reports", self.reports, 1, checks.MAXIMUM_REPORTS))
        put(self, "honest_fraction", checks.share("honest_fraction", self.honest_fraction))
        if self.sampled_from is not None:
            population = checks.whole("sampled_from", self.sampled_from, 1, checks.MAXIMUM_REPORTS)
            if population < self.reports:
                raise InvalidParameter(
                    "sampled_from", population, f"at least the {self.reports} reports sampled from it"
                )
            put(self, "sampled_from", population)
        if self.participation is not None:
            put(self, "participation", checks.share("participation", self.participation))
            if self.sampled_from is not None:
                raise InvalidParameter(
                    "participation", self.participation, "nothing when sampled_from is given"
                )
        put(self, "delta0", checks.share("delta0", self.delta0, zero=True))
        self._choose_analysis()
        if self.honest_reports < 1:
            expected = f"a share of the {self.reports} reports that leaves at least one honest"
            raise InvalidParameter("honest_fraction", self.honest_fraction, expected)

    def _choose_analysis(self) -> None:
        names = self.randomizer.analyses
        decomposed = self.participation is not None or self.delta0 > 0
        if isinstance(self.randomizer, Generic) and decomposed:
            # The tight pair is a bound, not a decomposition: it has no silent component and no published
            # slack.
            names = ("clone",)
        elif self.delta0 > 0:
            raise InvalidParameter(
                "delta0", self.delta0, f"0 for {self.randomizer.kind}, which is purely epsilon0-LDP"
            )
        object.__setattr__(self, "analysis", names[0] if self.analysis is None else self.analysis)
        if self.analysis not in names:
            raise InvalidParameter(
                "analysis", self.analysis, f"one of {', '.join(names)} for {self.randomizer.kind} here"
            )

    @property
    def slack(self) -> float:
        """Total variation distance to a purely private round: `n delta0 (1 + exp(-epsilon0)/2)`.

        With sampling n is the expected number of honest reports, since the distance is linear in n.
        Source: Feldman, McMillan, Talwar, Theorem 3.8.
        """
        honest = float(self.honest_reports)
        if self.sampled_from is not None:
            honest = self.reports * honest_share(self.honest_fraction, self.sampled_from) / self.sampled_from
        return honest * self.delta0 * (1 + math.exp(-self.randomizer.epsilon0) / 2)

    @property
    def honest_reports(self) -> int:
        """Reports that hide one another: `floor(honest_fraction * reports)`; with sampling, their
        expectation's floor."""
        return honest_share(self.honest_fraction, self.reports)

    def to_mapping(self) -> dict[str, object]:
        """The JSON form, every field present."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "randomizer": self.randomizer.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> ShuffledRound:
        """The round a JSON form describes.

        Raises:
            InvalidParameter: a field is unknown or missing, or a value is bad.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in mapping:
            if name not in names:
                raise InvalidParameter("round", name, f"only the fields {', '.join(names)}")
        for name in ("randomizer", "reports"):
            if name not in mapping:
                raise InvalidParameter("round", sorted(mapping), f"a value for {name}")
        return cls(**mapping)  # type: ignore[arg-type]  # the constructor checks every value


def honest_share(fraction: float, count: int) -> int:
    """`floor(fraction * count)` without the rounding of the product: `fraction` as written in decimal."""
    return math.floor(Fraction(repr(fraction)) * count)


class RoundProfile:
    """The privacy profile of a round: `self(excess)` bounds its hockey-stick divergence at orders `1 +
    excess`.

    Args:
        shuffled: the round.
        smoothing: width of the quadrature's smoothing, in deviations; see `blanket_profile`.

    Attributes:
        largest_loss: privacy loss beyond which the profile is exactly 0; may be infinite.
        end: privacy loss beyond which it is negligible, or beyond which losses count as infinite.
        infinity: lower bound on the mass at infinite loss.

    Guarantee: bounds hold for every pair of neighbouring datasets and both directions, at every order at
    least 1.
    """

    def __init__(self, shuffled: ShuffledRound, *, smoothing: float) -> None:
        self._analysis = shuffled.randomizer.analysis(str(shuffled.analysis))
        self._smoothing = smoothing
        decomposition = self._analysis.decomposition
        if shuffled.participation is not None:
            decomposition = with_silence(decomposition, shuffled.participation)
        decomposition = decomposition.merged()
        self._directions = [decomposition]
        if not decomposition.is_symmetric():
            self._directions.append(decomposition.swapped())
        self._terms = _sampling_terms(shuffled, group_width=10 * smoothing**2)
        self._outcomes: dict[tuple[int, int], Outcomes | None] = {}
        most = max(term.upper_rate for term in self._terms)
        self.largest_loss = math.log1p(most * math.expm1(min(self._analysis.largest_loss, 700.0)))
        if most < 1:
            self.largest_loss *= 1 + 8 * UNIT_ROUND_OFF
        if math.isinf(self._analysis.largest_loss):
            self.largest_loss = math.inf
        self.infinity = self._infinite_loss()
        self.end = self._flat_loss() if self.infinity > NEGLIGIBLE_DELTA else self._negligible_loss()

    def __call__(self, excess: FloatArray) -> ProfileBounds:
        """Bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        return self._mixture(self._terms, excess)

    def _mixture(self, terms: list[_SamplingTerm], excess: FloatArray) -> ProfileBounds:
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        for term in terms:
            above = self._base(term.fewest, excess / term.upper_rate)
            below = above
            if (term.fewest, term.upper_rate) != (term.most, term.lower_rate):
                below = self._base(term.most, excess / term.lower_rate)
            upper += term.weight * term.upper_rate * above.upper
            lower += term.weight * term.lower_rate * below.lower
        # Weights of a mixture are products of many ratios, and leave out a negligible mass.
        room = 1e-14 if len(self._terms) == 1 else 1e-9
        left_out = 0.0 if len(self._terms) == 1 else NEGLIGIBLE_DELTA
        scale = self._analysis.weight
        return ProfileBounds(upper * scale * (1 + room) + left_out, lower * scale * (1 - room))

    @property
    def is_simple(self) -> bool:
        """Whether the number of honest reports is certain, so that the profile is not a mixture."""
        return len(self._terms) == 1

    @property
    def is_enumerated(self) -> bool:
        """Whether the profile is one sum over outcomes, so that more orders cost next to nothing."""
        directions = range(len(self._directions))
        return self.is_simple and all(self._listed(i, self._terms[0].fewest) is not None for i in directions)

    def outline(self, excess: FloatArray) -> ProfileBounds:
        """Wider bounds, cheap for mixtures too: from the terms that weigh most, the others counted as 0 and
        as 1."""
        terms = sorted(self._terms, key=lambda term: -term.weight)
        few = terms[:_OUTLINE_TERMS]
        bounds = self._mixture(few, excess)
        rest = math.fsum(term.weight for term in terms[_OUTLINE_TERMS:])
        return ProfileBounds(bounds.upper + rest, bounds.lower)

    def _base(self, reports: int, excess: FloatArray) -> ProfileBounds:
        """The profile without sampling and weight, over both directions."""
        inside = excess < math.expm1(min(self._analysis.largest_loss, 700.0))
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        if np.any(inside):
            bounds = [self._one_direction(i, reports, excess[inside]) for i in range(len(self._directions))]
            upper[inside] = np.max([bound.upper for bound in bounds], axis=0)
            lower[inside] = np.max([bound.lower for bound in bounds], axis=0)
        return ProfileBounds(upper, lower)

    def _one_direction(self, direction: int, reports: int, excess: FloatArray) -> ProfileBounds:
        outcomes = self._listed(direction, reports)
        if outcomes is not None:
            return outcomes.profile(excess)
        return blanket_profile(self._directions[direction], reports, excess, smoothing=self._smoothing)

    def _listed(self, direction: int, reports: int) -> Outcomes | None:
        """The outcomes of so many reports, None when there are too many; remembered."""
        key = (direction, reports)
        if key not in self._outcomes:
            limit = _OUTCOMES // len(self._terms)
            self._outcomes[key] = enumerate_outcomes(self._directions[direction], reports, limit=limit)
        return self._outcomes[key]

    def _infinite_loss(self) -> float:
        """Mass of outcomes that are impossible under the other input: only components without `b`, all others
        avoided."""
        masses = self._directions[0]
        impossible = self._analysis.weight * float(masses.a[masses.b == 0].sum())
        avoided = math.log1p(-min(float(masses.c[masses.b > 0].sum()), 1 - 1e-16))
        terms = [
            t.weight * t.lower_rate * math.exp((t.most - 1) * avoided) * (1 - 1e-15 * t.most)
            for t in self._terms
        ]
        return max(impossible * math.fsum(terms) * (1 - 1e-9), 0.0)

    def _flat_loss(self) -> float:
        """Loss beyond which hardly more than the mass at infinity is left."""
        losses = np.geomspace(_LARGEST_RESOLVED_LOSS * 1e-6, _LARGEST_RESOLVED_LOSS, _SEARCH_POINTS)
        flat = np.flatnonzero(self(np.expm1(losses)).upper <= 1.001 * self.infinity + NEGLIGIBLE_DELTA)
        return float(losses[flat[0]]) if flat.size else _LARGEST_RESOLVED_LOSS

    def _negligible_loss(self) -> float:
        """Loss at which a crude bound on the profile falls below `NEGLIGIBLE_DELTA`, or the largest loss that
        is resolved."""
        limit = min(self.largest_loss, _LARGEST_RESOLVED_LOSS)
        rate = max(term.upper_rate for term in self._terms)
        fewest = min(term.fewest for term in self._terms)
        low, high = limit * 1e-9, limit
        for _ in range(2):
            losses = np.geomspace(low, high, _SEARCH_POINTS)
            excess = np.expm1(losses) / rate
            crude = np.max([chernoff_log_profile(one, fewest, excess) for one in self._directions], axis=0)
            small = np.flatnonzero(crude < math.log(NEGLIGIBLE_DELTA))
            if small.size == 0:
                return limit
            low, high = float(losses[max(small[0] - 1, 0)]), float(losses[small[0]])
        return high


@dataclass(frozen=True, kw_only=True)
class _SamplingTerm:
    """Rounds in which between `fewest` and `most` honest reports were sampled, with probability `weight`."""

    weight: float
    fewest: int
    most: int
    lower_rate: float
    upper_rate: float


def _sampling_terms(shuffled: ShuffledRound, *, group_width: float) -> list[_SamplingTerm]:
    """The mixture over the number of honest reports in the sample: one certain term unless users are sampled.

    Given that j honest users of the population's H were sampled, the profile at order `1 + excess` is `s
    H^(j)(1 + excess/s)`, `s = j/H`; it falls with j in `H^(j)` and grows with s, so a group of counts is
    bounded by its ends.
    """
    if shuffled.sampled_from is None:
        honest = shuffled.honest_reports
        return [_SamplingTerm(weight=1.0, fewest=honest, most=honest, lower_rate=1.0, upper_rate=1.0)]
    population, sample = shuffled.sampled_from, shuffled.reports
    honest = honest_share(shuffled.honest_fraction, population)
    if honest == population:
        rate = sample / population
        return [_SamplingTerm(weight=1.0, fewest=sample, most=sample, lower_rate=rate, upper_rate=rate)]
    counts, masses = _hypergeometric(population, honest, sample)
    deviation = math.sqrt(float((masses * (counts - (masses * counts).sum()) ** 2).sum()))
    centre = float((masses * counts).sum())
    terms, start = [], int(np.searchsorted(counts, 1))
    while start < counts.size:
        far = abs(counts[start] - centre) > 5 * deviation
        width = max(1, math.ceil((6 if far else 1) * group_width * counts[start]))
        stop = min(start + width, counts.size)
        fewest, most = int(counts[start]), int(counts[stop - 1])
        weight = float(masses[start:stop].sum())
        rates = {"lower_rate": fewest / honest, "upper_rate": most / honest}
        terms.append(_SamplingTerm(weight=weight, fewest=fewest, most=most, **rates))
        start = stop
    return terms


def _hypergeometric(population: int, honest: int, sample: int) -> tuple[FloatArray, FloatArray]:
    """Counts of honest users in the sample, and their probabilities, but for a mass below `NEGLIGIBLE_DELTA`.

    The window is Hoeffding's for sampling without replacement; the masses follow by ratios from the mode, so
    that no large logarithms are subtracted.
    """
    half = math.sqrt(sample * -math.log(NEGLIGIBLE_DELTA / 4) / 2) + 1
    mean = sample * honest / population
    low = max(0, sample + honest - population, math.floor(mean - half))
    high = min(sample, honest, math.ceil(mean + half))
    counts = np.arange(low, high + 1, dtype=np.float64)
    j = counts[:-1]
    ratios = (honest - j) / (j + 1) * ((sample - j) / (population - honest - sample + j + 1))
    log_masses = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    masses = np.exp(log_masses - log_masses.max())
    kept = masses > NEGLIGIBLE_DELTA * 1e-6
    return counts[kept], masses[kept] / math.fsum(masses[kept])
