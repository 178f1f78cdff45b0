"""Gaussian noise on every device: a number by its blanket, a vector by its local epsilon at a local delta."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.amplification.cut_profiles import Cut, CutProfile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile, MechanismProfile, directions
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, FloatArray
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence, gaussian_divergence_at
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import (
    BLANKET,
    JOINED,
    ROOM,
    Analysis,
    Bracket,
    Components,
    DecomposedRandomizer,
    LocalRandomizer,
)
from shuffle_ledger.accounting.randomizers.bounded_noise import ROUGH, Cells, integrated
from shuffle_ledger.accounting.randomizers.generic import CLONE, CLONE_IDENTICAL, Generic

_HALVINGS = 60  # of the range of epsilon0 that is searched: more change no digit
# Least and largest distance of two values, in deviations of the noise.
_MINIMUM_MU, _MAXIMUM_MU = 1e-6, 10.0
_LEAST, _LARGEST = 1e-12, 1e12  # of sigma and sensitivity
# Local epsilons are rounded up to multiples of 1 over it, so that the last digits of a divergence, which
# another machine may round otherwise, do not change them.
_EPSILON_STEPS = 2.0**40
# Deviations beyond an end of the interval at which laws are cut off: a report is beyond the last one with
# probability 4e-51. More cuts: each order takes the one that suits it more closely.
_CUTS = (6.0, 8.0, 11.0, 15.0)
# Factor of the smoothing for each deviation between the values, where it is above 1. Larger: faster, and
# wider bounds.
_SMOOTHING_PER_DEVIATION = 4.0
# Time that an array element takes, in units of the usual one: the first number, or the second one times the
# square of mu. Larger: fewer orders, so less time and wider bounds.
_EFFORT, _EFFORT_PER_SQUARE = 4.0, 32.0
# The cut of the decomposition that stands for all: reports beyond it have probability 6e-16.
_USUAL_CUT = 1
# Cells of reports between a cut and the middle of the interval: about the first number altogether where
# reports matter most, and the second number for each deviation besides. More: closer bounds, more time.
_CORE_CELLS, _CELLS_PER_DEVIATION = 80.0, 2.5
# Points at which the density of cells is given.
_DENSITY_POINTS = 4097
# Deviations over which the mass beyond a cut is integrated, and cells of it. What lies farther out is below
# 1e-30 of it.
_BEYOND_DEVIATIONS, _BEYOND_CELLS = 10.0, 40
# More components than any profile that is not measured first: orders with large gains may be slow.
_MEASURED_TERMS = 1_000
# Deviations beyond the ends of the interval within which the attack tells reports apart, and its cells.
_WITNESS_DEVIATIONS, _WITNESS_CELLS = 9.0, 160


@dataclass(frozen=True, kw_only=True)
class LocalGaussian(DecomposedRandomizer):
    """Gaussian noise of deviation `sigma` on each number of a report.

    Without `delta0` a report is one number of an interval of length `sensitivity`, with noise; a round is
    bounded by the blanket of this noise. With `delta0` it may be a vector. The noise is
    `(epsilon0, delta0)`-LDP for a curve of pairs, of which `delta0` chooses one. The round is the round of
    `generic` with this pair, and is recorded as that.

    Attributes:
        sigma: standard deviation of the noise on each number.
        delta0: the local delta, from 1e-200 to below 1; None for one number by its blanket.
        sensitivity: largest Euclidean distance of two users' values: the length of an interval, or, with
            delta0, the diameter of a ball.
        epsilon0: the smallest local epsilon that holds at delta0, rounded up by at most 1e-12; infinite
            without delta0.

    Guarantee: without delta0 the bound holds for all pairs of values in the interval, whatever values the
        others hold. With delta0 the noise is `(epsilon0, delta0)`-LDP for all values at most `sensitivity`
        apart. The noise of a computer is not exactly Gaussian; this is not accounted.
    Source: docs/theory/randomizers.md, R12 and R13; with delta0, R14:
        Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8; the round:
        Feldman, McMillan, Talwar, Theorem 3.8.

    Raises:
        InvalidParameter: a value is out of range, sigma is below the sensitivity and no delta0 is given, or
            at delta0 no epsilon0 of at most 30 holds.
    """

    kind = "local_gaussian"
    is_part: ClassVar[bool] = False

    epsilon0: float = field(init=False, compare=False)
    sigma: float
    delta0: float | None = None
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        gaussian_distance(self.sigma, self.sensitivity, named="sensitivity")
        for name, value in (("sigma", float(self.sigma)), ("sensitivity", float(self.sensitivity))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "epsilon0", math.inf)
        if self.delta0 is not None:
            self._choose_epsilon0(self.delta0)
        elif self.sigma < self.sensitivity:
            # Gains then span many orders of magnitude, and bounds are wide and slow.
            least = exact_text(self.sensitivity)
            expected = f"at least the sensitivity, {least}, or a delta0: with one sigma may be smaller"
            raise InvalidParameter("sigma", self.sigma, expected)

    def _choose_epsilon0(self, given: float) -> None:
        delta0 = validation.probability("delta0", given)
        if delta0 < validation.MINIMUM_PROBABILITY:
            expected = f"a number from {exact_text(validation.MINIMUM_PROBABILITY)} to below 1"
            raise InvalidParameter("delta0", given, expected)
        epsilon0 = gaussian_local_epsilon(self.mu, delta0)
        if epsilon0 is None:
            most = exact_text(validation.MAXIMUM_EPSILON0)
            raise InvalidParameter("sigma", self.sigma, f"more noise: no epsilon0 of at most {most} holds")
        object.__setattr__(self, "delta0", delta0)
        object.__setattr__(self, "epsilon0", epsilon0)

    @property
    def mu(self) -> float:
        """Returns the largest distance of two values in deviations of the noise, rounded up."""
        return gaussian_distance(self.sigma, self.sensitivity, named="sensitivity")

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`: with a local delta only the published pair goes together."""
        return (BLANKET,) if self.delta0 is None else (CLONE_IDENTICAL, CLONE)

    @property
    def condition(self) -> str:
        """See `LocalRandomizer.condition`: values of vectors have more directions, and hide less."""
        return "each report is one number, not a vector" if self.delta0 is None else ""

    @property
    def accounted(self) -> tuple[LocalRandomizer, float]:
        """Returns the randomizer as which a round is accounted, and the local delta of the round."""
        return (self, 0.0) if self.delta0 is None else (Generic(epsilon0=self.epsilon0), self.delta0)

    def covers(self, other: LocalGaussian) -> bool:
        """Returns whether a round of another one is a post-processing of a round of this one. Without delta0
        this is so if the other one has at least as much noise for the length of its interval."""
        if self.delta0 is not None or other.delta0 is not None:
            return self == other
        return _ratio(other) <= _ratio(self)

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`; with a local delta that of the published pair."""
        if self.delta0 is not None:
            return Generic(epsilon0=self.epsilon0).analysis(name)
        return _cut_off(self, _CUTS[_USUAL_CUT])[1]

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: those of the farthest cut."""
        return Components(_cut_off(self, _CUTS[-1])[1].brackets, ())

    def terms(self, analysis: str) -> int:
        """See `DecomposedRandomizer.terms`."""
        return _MEASURED_TERMS

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`. With delta0 it is that without the local delta, which is slack."""
        if self.delta0 is not None:
            return Generic(epsilon0=self.epsilon0).profile(
                analysis, participation=participation, smoothing=smoothing, outcomes=outcomes
            )
        found = []
        for beyond, bound, above, below in _cuts(self, participation):
            one = BlanketProfile(
                above=above,
                below=below,
                weight=bound.weight,
                largest_loss=bound.largest_loss,
                room=bound.room,
                blur=bound.blur,
                smoothing=smoothing * max(1.0, _SMOOTHING_PER_DEVIATION * self.mu),
                outcomes=outcomes,
            )
            found.append(Cut(beyond, one))
        effort = max(_EFFORT, _EFFORT_PER_SQUARE * self.mu**2)
        return CutProfile(found, functools.partial(_alone, self.mu), effort)

    def slack(self, honest: float, delta0: float) -> float:
        """See `LocalRandomizer.slack`; with delta0 always by its own."""
        return 0.0 if self.delta0 is None else super().slack(honest, self.delta0)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`: the ends of the interval, of which all others hold the second.
        Reports are put in cells, with one cell for all far beyond either end."""
        if self.delta0 is not None:
            return ()
        far, mu = _WITNESS_DEVIATIONS, self.mu
        beyond = np.linspace(0.0, _BEYOND_DEVIATIONS, _BEYOND_CELLS)[1:]
        ends = np.linspace(-far, mu + far, _WITNESS_CELLS + 1)
        outer = np.concatenate([-far - beyond[::-1], ends, mu + far + beyond])

        def gathered(masses: FloatArray) -> FloatArray:
            inner = masses[beyond.size : -beyond.size]
            return np.array([masses[: beyond.size].sum(), *inner, masses[-beyond.size :].sum()])

        first, second, more = (
            gathered(integrated(density, outer))
            for density in (_density, lambda y: _density(y - mu), functools.partial(_excess, mu))
        )
        return (Decomposition(first, second, second, more, 0.0),)


def _ratio(noise: LocalGaussian) -> float:
    return noise.sensitivity / noise.sigma


def _density(y: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-y * y / 2) / math.sqrt(2 * math.pi))


def _excess(mu: float, y: FloatArray) -> FloatArray:
    """Returns the density of noise on the lower end less that of noise on the upper end, at y deviations
    above the lower end."""
    return np.asarray(_density(y) * -np.expm1(mu * y - mu * mu / 2))


def _log_ratio(mu: float, y: FloatArray) -> FloatArray:
    """Returns the logarithm of the largest ratio M of densities at y, at most `mu / 2`, of any value and of
    the upper end."""
    return np.where(y <= 0, mu * mu / 2 - mu * y, (mu - y) ** 2 / 2)


def _ends(mu: float, cut: float) -> FloatArray:
    """Returns the ends of cells from the cut to the middle; 0, where M has a bend, is one of them."""
    y = np.linspace(-cut, mu / 2, _DENSITY_POINTS)
    # Where there are many reports, the divergence depends on them in proportion to `c M^2`, which is the
    # normal density about -mu; the best density of cells is in proportion to its cube root.
    core = np.exp(-((y + mu) ** 2) / 6) / math.sqrt(6 * math.pi)
    density = _CORE_CELLS * core + _CELLS_PER_DEVIATION
    total = np.append(0.0, np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(y)))
    ends = np.interp(np.linspace(0.0, total[-1], math.ceil(total[-1]) + 1), total, y)
    ends[0], ends[-1] = -cut, mu / 2
    ends[1 + np.argmin(np.abs(ends[1:-1]))] = 0.0
    return np.asarray(ends, dtype=np.float64)


@functools.lru_cache(maxsize=16)
def _cut_off(noise: LocalGaussian, cut: float) -> tuple[float, Analysis]:
    """Returns the mass beyond a cut, which counts as certain loss above, and the bound with that cut."""
    mu = noise.mu
    y = _ends(mu, cut)
    excess = functools.partial(_excess, mu)

    def hidden(at: FloatArray) -> FloatArray:
        return np.asarray(_excess(mu, at) / np.expm1(_log_ratio(mu, at)))

    outside = -cut - np.linspace(_BEYOND_DEVIATIONS, 0.0, _BEYOND_CELLS + 1)
    beyond = float(integrated(excess, outside).sum()) * (1 + ROUGH)
    t, more, kept = _log_ratio(mu, y), integrated(excess, y), integrated(hidden, y)
    rest = float(scipy.special.erf(mu / math.sqrt(8)))
    above = Cells(
        low=t[1:], high=t[:-1], excess=more, hidden=kept * (1 - ROUGH), rest=rest, beyond=beyond
    ).above()
    # The mass beyond the cut joins the first cell, at the mean of their ratios.
    more[0] += beyond * (1 - 2 * ROUGH)
    kept[0] += float(integrated(hidden, outside).sum()) * (1 + ROUGH)
    below = Cells(low=t[1:], high=t[:-1], excess=more, hidden=kept, rest=rest).below()
    return beyond, Analysis((Bracket(above, below),), 1.0, math.inf, ROOM, 2 * JOINED)


@functools.lru_cache(maxsize=16)
def _cuts(noise: LocalGaussian, participation: float) -> tuple[tuple[float, Analysis, Pairs, Pairs], ...]:
    """Returns the mass beyond each cut, the bound, and its pairs above and below in both directions."""
    found = []
    for cut in _CUTS:
        beyond, bound = _cut_off(noise, cut)
        above, below = (directions([with_silence(side, participation)]) for side in bound.brackets[0])
        found.append((beyond * participation, bound, above, below))
    return tuple(found)


def _alone(mu: float, honest: int, excess: FloatArray) -> FloatArray:
    """Returns about the part of the divergence that one report far beyond an end adds if all others add their
    mean: the local divergence at the order `1 + n excess`."""
    orders = np.log1p(np.minimum(honest * excess, math.exp(LARGEST_EXPONENT)))
    return gaussian_divergence(mu, orders)[0]


def gaussian_distance(sigma: object, width: object, *, named: str = "width") -> float:
    """Returns the largest distance of two values in deviations of the noise, rounded up.

    Raises:
        InvalidParameter: a value is out of range.
    """
    deviation = validation.between("sigma", sigma, _LEAST, _LARGEST)
    distance = validation.between(named, width, _LEAST, _LARGEST)
    low, high = validation.quotients(distance, _MINIMUM_MU, _MAXIMUM_MU)
    low, high = max(low, _LEAST), min(high, _LARGEST)
    validation.between("sigma", sigma, low, high, more=f" for this {named}")
    return distance / deviation * (1 + 1e-15)


def gaussian_local_epsilon(mu: float, delta0: float) -> float | None:
    """Returns about the smallest epsilon0 in range at which the noise is `(epsilon0, delta0)`-private, from
    above; None if there is none.

    Source: docs/theory/randomizers.md, R14.
    """
    low, high = validation.MINIMUM_EPSILON0, validation.MAXIMUM_EPSILON0
    if gaussian_divergence_at(mu, high)[1] > delta0:
        return None
    if gaussian_divergence_at(mu, low)[1] <= delta0:
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_divergence_at(mu, middle)[1] <= delta0 else (middle, high)
    return min(math.ceil(high * _EPSILON_STEPS) / _EPSILON_STEPS, validation.MAXIMUM_EPSILON0)
