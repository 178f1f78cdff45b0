"""The base classes of local randomizers: local privacy, bounds on rounds, and the written form."""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.amplification.binary_reports.profile import BitProfile
from shuffle_ledger.accounting.amplification.binary_reports.thinned import ThinnedProfile
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile, MechanismProfile, directions
from shuffle_ledger.accounting.errors import InvalidParameter

#: Names of the analysis by the reports' own law, of that by the law of the binary randomized response that
#: makes them, and of that by decompositions.
EXACT, BINARY_RESPONSE, BLANKET = "exact", "binary-response", "blanket"
#: Those that are no sums over decompositions.
BY_BITS = frozenset({EXACT, BINARY_RESPONSE})
#: Those that are computed only if the number of honest reports does not depend on a sample.
OF_CERTAIN_NUMBERS = frozenset({BINARY_RESPONSE})
#: Relative room in a divergence for the round-off of masses, and for joined components that differ by
#: round-off: 10^6 times the need for up to 10^12 reports and a delta down to 1e-46.
ROOM = 1e-6
#: Upper bound on the relative error of the two ratios of a component, together, for each time that it was
#: joined with others.
JOINED = 2.0**-44
# Bounds of randomizers that are kept for rounds with other numbers of reports. More: memory.
_BOUNDS_KEPT = 16


class Bracket(NamedTuple):
    """Decompositions whose divergences are above and below that of one pair of inputs; both are the same
    object if the pair has finitely many components."""

    above: Decomposition
    below: Decomposition

    @classmethod
    def exact(cls, masses: Decomposition) -> Bracket:
        """Returns the bracket of a pair that has finitely many components."""
        return cls(masses, masses)


class Components(NamedTuple):
    """The components that a randomizer contributes as one part of a larger one.

    Attributes:
        unequal: one bracket for each pair of different inputs that may be the worst, in either order unless
            exchanging `a` and `b` only renames components.
        equal: one for each input that both datasets share; empty when, whatever the other parts are, a pair
            of different inputs is at least as bad (docs/theory/randomizers.md, R7).
    """

    unequal: tuple[Bracket, ...]
    equal: tuple[Bracket, ...]


class Analysis(NamedTuple):
    """How a round of a randomizer is bounded.

    The hockey-stick divergence at order `1 + excess >= 1` is at most `weight` times the largest, over the
    brackets and both directions, of their blanket pairs', and exactly 0 at losses of `largest_loss` and
    beyond. `room` bounds the relative change of a divergence by the round-off of masses. `blur` bounds the
    relative error of the components' ratios, since ratios that differ by round-off only were joined.
    """

    brackets: tuple[Bracket, ...]
    weight: float
    largest_loss: float
    room: float = 0.0
    blur: float = 0.0

    @property
    def decomposition(self) -> Decomposition:
        """Returns the first pair's masses, the only ones of a randomizer whose pairs of inputs are all
        equivalent."""
        return self.brackets[0].above


@dataclass(frozen=True, kw_only=True)
class LocalRandomizer(ABC):
    """A local randomizer with pure local privacy `epsilon0`, infinite if a single report hides nothing.

    Subclasses are frozen values; their constructors raise `InvalidParameter`.
    """

    kind: ClassVar[str]
    #: Least number of honest users for any guarantee.
    minimum_honest: ClassVar[int] = 1
    #: Whether its bounds hold if each user reports with some probability by a secret coin; and the reason if
    #: not.
    takes_participation: ClassVar[bool] = True
    silence: ClassVar[str] = "how many users make its noise must be certain"
    #: The parameters of common noise for which calibration can solve, each with its least and largest value.
    #: A larger value is more noise.
    noise_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    epsilon0: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon0", validation.local_epsilon(self.epsilon0))

    @property
    @abstractmethod
    def analyses(self) -> tuple[str, ...]:
        """Returns the names of the bounds, the default one first."""

    @abstractmethod
    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """Returns the profile of a round before sampling, by the bound called `analysis`.

        Args:
            analysis: one of `analyses`.
            participation: probability with which each user reports; 1 means certainly.
            smoothing: smoothing of a quadrature; see `blanket_profile`.
            outcomes: number of outcomes that may be listed.
        """

    def analysis(self, name: str) -> Analysis:
        """Returns the decompositions of the bound called `name`.

        Raises:
            InvalidParameter: the randomizer is not bounded by decompositions.
        """
        expected = f"nothing that asks for a decomposition: {self.kind} is bounded by its pair"
        raise InvalidParameter("analysis", name, expected)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """Returns witnesses (see `witnesses.py`): laws of a report under two values of the differing user
        and, as `c`, under the value of all others, for neighbouring datasets of large divergence; none if no
        attack is known."""
        return ()

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """Returns randomizers whose lower bounds are divergences of neighbouring datasets of this one, each
        for other datasets; none if only witnesses are known."""
        return ()

    @property
    def guarantee(self) -> tuple[float, float] | None:
        """Returns the declared epsilon and delta of a round, whatever its parameters; None if nothing is
        declared."""
        return None

    @property
    def condition(self) -> str:
        """Returns a condition on the reports that its name does not say, for printed answers; empty if there
        is none."""
        return ""

    @property
    def doubt(self) -> float:
        """Returns an upper bound on the absolute error of its decompositions' divergences, beyond relative
        errors."""
        return 0.0

    def slack(self, honest: float, delta0: float) -> float:
        """Returns an upper bound on the total variation distance between a round of `honest` reports and one
        that the profile bounds."""
        return honest * delta0 * (1 + math.exp(-self.epsilon0) / 2)

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form: `kind` and the given parameters."""
        names = [field.name for field in dataclasses.fields(self) if field.init]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"kind": self.kind, **given}

    def describe(self) -> str:
        """Returns this randomizer as a call, such as `krr(epsilon0=1.0, k=10)`."""
        parameters = {name: value for name, value in self.to_mapping().items() if name != "kind"}
        return f"{self.kind}({', '.join(f'{name}={plain(value)}' for name, value in parameters.items())})"


class DecomposedRandomizer(LocalRandomizer):
    """A randomizer that is bounded by decompositions: all except protocols with common noise and declared
    rounds."""

    #: Whether it may be a part of a composite randomizer.
    is_part: ClassVar[bool] = True

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return (BLANKET,) if self.bit_law is None else (EXACT, BLANKET)

    @property
    def bit_law(self) -> BitLaw | None:
        """Returns the law of a report under the two inputs that are the ends of all others, if it is one bit;
        else None."""
        return None

    @property
    def is_generic(self) -> bool:
        """Returns whether only its local privacy is known, or only that of each of its parts."""
        return False

    @property
    def joins(self) -> int:
        """Returns how often, at most, its components were joined in sequence as a part of a larger
        randomizer."""
        return 1

    def analysis(self, name: str) -> Analysis:
        """Returns the bound called `name`, one of `analyses`; here that by components, joined once."""
        return Analysis(self.components().unequal, 1.0, self.epsilon0, ROOM, 2 * JOINED)

    @abstractmethod
    def components(self) -> Components:
        """Returns the components of this randomizer as a part of a larger one."""

    def coarser(self, most: int) -> Components:
        """Returns the same with at most about `most` components if they are put on a grid; otherwise
        unchanged."""
        return self.components()

    @property
    def least_probability(self) -> float:
        """Returns the least positive probability of a component under some input."""
        known = self.components()
        pairs = [one.above for one in (*known.unequal, *known.equal)]
        return min(float(masses[masses > 0].min()) for pair in pairs for masses in (pair.a, pair.b))

    def terms(self, analysis: str) -> int:
        """Returns the number of components of all pairs of inputs, a measure of the time that one order
        takes."""
        return sum(one.above.c.size for one in self.analysis(analysis).brackets)

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        blanket = self.by_blanket(
            analysis, participation=participation, smoothing=smoothing, outcomes=outcomes
        )
        law = self.bit_law
        if analysis != EXACT or law is None:
            return blanket
        if participation == 1:
            return BitProfile(law, blanket=blanket, room=ROOM)
        of_all = self.by_blanket(analysis, participation=1.0, smoothing=smoothing, outcomes=outcomes)
        bits = BitProfile(law, blanket=of_all, room=ROOM).for_mixture()
        # Silence is a blank: who is silent is seen as little as who sends one.
        return ThinnedProfile(share=participation, bits=bits, blanket=blanket)

    def by_blanket(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """Returns the profile by the decompositions of the bound called `analysis`; see `profile`."""
        bound, above, below = _bound(self, analysis, participation)
        return BlanketProfile(
            above=above,
            below=below,
            weight=bound.weight,
            largest_loss=bound.largest_loss,
            room=bound.room,
            blur=bound.blur,
            doubt=self.doubt,
            smoothing=smoothing,
            outcomes=outcomes,
        )


class OnePair(DecomposedRandomizer):
    """A randomizer whose pairs of different inputs are all equivalent, or one of them the worst, with few
    components whose masses are known up to their last digits."""

    @abstractmethod
    def _pair(self) -> Decomposition:
        """Returns the masses of the worst pair of inputs."""

    def analysis(self, name: str) -> Analysis:
        """See `DecomposedRandomizer.analysis`; every name is that of the blanket."""
        return Analysis((Bracket.exact(self._pair()),), 1.0, self.epsilon0)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`."""
        return Components((Bracket.exact(self._pair()),), ())


@functools.lru_cache(maxsize=_BOUNDS_KEPT)
def _bound(
    randomizer: DecomposedRandomizer, name: str, participation: float
) -> tuple[Analysis, Pairs, Pairs | None]:
    """Returns the bound called `name`, and its pairs above and below in every direction; None below if those
    above are exact. All depend on the randomizer alone, so rounds of any number of reports share them."""
    bound = randomizer.analysis(name)
    above = directions([with_silence(one.above, participation) for one in bound.brackets])
    if all(one.below is one.above for one in bound.brackets):
        return bound, above, None
    return bound, above, directions([with_silence(one.below, participation) for one in bound.brackets])


def plain(value: object) -> str:
    """Returns a parameter as text: whole floats without a point, all other values in a form that reads back
    equal."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
