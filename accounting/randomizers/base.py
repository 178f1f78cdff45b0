"""What every local randomizer answers: its local privacy, how its rounds are bounded, how it is written."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, with_silence
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile, MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter

#: Relative room in a divergence for masses that are rounded a few times, and for joined components that
#: differ by rounding: 10^6 times what it takes for up to 10^12 reports and delta down to 1e-46.
ROOM = 1e-6
#: How far off two ratios of a component may be together, relative, when it was joined with others once.
JOINED = 2.0**-44


class Bracket(NamedTuple):
    """Decompositions whose divergences lie above and below that of one pair of inputs; one and the same where
    the components are finitely many."""

    above: Decomposition
    below: Decomposition

    @classmethod
    def exact(cls, masses: Decomposition) -> Bracket:
        """The bracket of a pair that has finitely many components."""
        return cls(masses, masses)


class Components(NamedTuple):
    """What a randomizer contributes where it is one part of a larger one.

    Attributes:
        unequal: one bracket for each pair of different inputs that may be the worst, in either order unless
            exchanging `a` and `b` only renames components.
        equal: one for each input that both datasets share; empty when, whatever the other parts are, a pair
            of different inputs is at least as bad (docs/theory.md, "Equal parts").
    """

    unequal: tuple[Bracket, ...]
    equal: tuple[Bracket, ...]


class Analysis(NamedTuple):
    """How a round of a randomizer is bounded.

    The hockey-stick divergence at order `1 + excess >= 1` is at most `weight` times the largest, over the
    brackets and both directions, of their blanket pairs', and exactly 0 at losses of `largest_loss` and
    beyond. `room` is what the rounding of the masses may change in a divergence, relative to it, and `blur`
    how far off ratios of components may be, relative, since such as differ by rounding only were joined.
    """

    brackets: tuple[Bracket, ...]
    weight: float
    largest_loss: float
    room: float = 0.0
    blur: float = 0.0

    @property
    def decomposition(self) -> Decomposition:
        """The first pair's masses: the only ones of the randomizers whose pairs of inputs are all alike."""
        return self.brackets[0].above


@dataclass(frozen=True, kw_only=True)
class LocalRandomizer(ABC):
    """A local randomizer with pure local privacy `epsilon0`, infinite where a single report hides nothing.

    Subclasses are frozen values; their constructors raise `InvalidParameter`.
    """

    kind: ClassVar[str]
    #: Users who must run it as told before it promises anything.
    minimum_honest: ClassVar[int] = 1
    #: Whether its bounds hold when each user reports by a secret coin, and why they would not.
    takes_participation: ClassVar[bool] = True
    silence: ClassVar[str] = "how many users make its noise must be certain"

    epsilon0: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon0", validation.local_epsilon(self.epsilon0))

    @property
    @abstractmethod
    def analyses(self) -> tuple[str, ...]:
        """Names of the bounds, the default one first."""

    @abstractmethod
    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """The profile of a round before sampling, by the bound called `analysis`.

        Args:
            analysis: one of `analyses`.
            participation: probability with which each user reports; 1 means certainly.
            smoothing: width of a quadrature's smoothing; see `blanket_profile`.
            outcomes: number of outcomes that may be listed.
        """

    def analysis(self, name: str) -> Analysis:
        """The decompositions behind the bound called `name`.

        Raises:
            InvalidParameter: the randomizer is bounded otherwise than by decompositions.
        """
        expected = f"nothing that asks for a decomposition: {self.kind} is bounded by its pair"
        raise InvalidParameter("analysis", name, expected)

    def witnesses(self) -> tuple[Decomposition, ...]:
        """Laws of a report under two values of the differing user and, as `c`, the value of all others, for
        neighbouring datasets that tell much; none when no attack is known (see `witnesses.py`)."""
        return ()

    def attained(self, *, sampled: bool) -> tuple[LocalRandomizer, ...]:
        """Randomizers whose lower bounds are divergences that neighbouring datasets of this one attain, each
        for other datasets; none where nothing but witnesses is known."""
        return ()

    @property
    def guarantee(self) -> tuple[float, float] | None:
        """The epsilon and delta that a round of it has whatever its parameters, where it declares any."""
        return None

    @property
    def exact_loss(self) -> Fraction | None:
        """A bound on every finite privacy loss of a round, as an exact number, where it declares one."""
        return None

    @property
    def doubt(self) -> float:
        """What divergences of its decompositions may be off by, beside what is relative to them."""
        return 0.0

    def slack(self, honest: float, delta0: float) -> float:
        """Total variation distance of a round of `honest` reports to one that the profile bounds."""
        return honest * delta0 * (1 + math.exp(-self.epsilon0) / 2)

    def to_mapping(self) -> dict[str, object]:
        """The JSON form: `kind` and the parameters that were given."""
        names = [field.name for field in dataclasses.fields(self) if field.init]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"kind": self.kind, **given}

    def describe(self) -> str:
        """The call that writes this randomizer, such as `krr(epsilon0=1.0, k=10)`."""
        parameters = {name: value for name, value in self.to_mapping().items() if name != "kind"}
        return f"{self.kind}({', '.join(f'{name}={plain(value)}' for name, value in parameters.items())})"


class DecomposedRandomizer(LocalRandomizer):
    """A randomizer that is bounded by decompositions: everything but noise that users make together."""

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("blanket",)

    @property
    def is_generic(self) -> bool:
        """Whether nothing but its local privacy is known of it, or of any part of it."""
        return False

    @property
    def joins(self) -> int:
        """How often its components were joined at most, one after the other, as a part of a larger one."""
        return 1

    @abstractmethod
    def analysis(self, name: str) -> Analysis:
        """The bound called `name`, one of `analyses`."""

    @abstractmethod
    def components(self) -> Components:
        """What this randomizer contributes as a part of a larger one."""

    def coarser(self, most: int) -> Components:
        """The same of about so many components at most, where they are put on a grid."""
        return self.components()

    @property
    def least_probability(self) -> float:
        """The least probability of a component that is possible under an input."""
        known = self.components()
        pairs = [one.above for one in (*known.unequal, *known.equal)]
        return min(float(masses[masses > 0].min()) for pair in pairs for masses in (pair.a, pair.b))

    def terms(self, analysis: str) -> int:
        """Components of all pairs of inputs in a bound: about what looking at an order costs."""
        return sum(one.above.c.size for one in self.analysis(analysis).brackets)

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        bound = self.analysis(analysis)
        exact = all(one.below is one.above for one in bound.brackets)
        return BlanketProfile(
            above=[with_silence(one.above, participation) for one in bound.brackets],
            below=None if exact else [with_silence(one.below, participation) for one in bound.brackets],
            weight=bound.weight,
            largest_loss=bound.largest_loss,
            room=bound.room,
            blur=bound.blur,
            doubt=self.doubt,
            smoothing=smoothing,
            outcomes=outcomes,
        )


def plain(value: object) -> str:
    """How a parameter is written: whole floats without a point, everything else so that it is read back."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
