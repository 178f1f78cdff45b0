"""Randomizers made of others: several reports that are shuffled as one, or one of several, chosen at
random."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, mixture, product
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.rounding import float_above
from shuffle_ledger.accounting.randomizers.base import (
    JOINED,
    ROOM,
    Analysis,
    Bracket,
    Components,
    DecomposedRandomizer,
    plain,
)
from shuffle_ledger.accounting.randomizers.generic import CLONE, CLONE_IDENTICAL, TIGHT, Generic

# Limits of a composite: parts, pairs of inputs of all parts together, and witnesses. More: memory and time.
_MAXIMUM_PARTS = 16
MAXIMUM_PAIRS = 1024
_MAXIMUM_WITNESSES = 16
# Most components of a joint randomizer whose parts are put on grids. More: time, in proportion; narrower
# intervals.
_GRIDDED_COMPONENTS = 512
# Allowed distance of the sum of weights from 1.
_WEIGHT_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Composite(DecomposedRandomizer):
    """A randomizer made of parts.

    Analyses: `blanket` combines the parts' decompositions; a generic part has the published pair, and
    `clone-identical` is its name if every part is generic. If a part is generic, `clone`, the default, and
    `tight` treat the whole as one generic randomizer with its local privacy. Tight pairs are never combined:
    they are bounds, not decompositions.
    """

    epsilon0: float = field(init=False, compare=False)

    @property
    @abstractmethod
    def randomizers(self) -> tuple[DecomposedRandomizer, ...]:
        """Returns the parts."""

    @property
    def is_generic(self) -> bool:
        """See `DecomposedRandomizer.is_generic`."""
        return all(part.is_generic for part in self.randomizers)

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        if not knows_generic(self):
            return ("blanket",)
        tight = (TIGHT,) if self.epsilon0 <= validation.MAXIMUM_EPSILON0 else ()
        return (CLONE, *tight, CLONE_IDENTICAL) if self.is_generic else (CLONE, "blanket", *tight)

    @property
    def doubt(self) -> float:
        """See `LocalRandomizer.doubt`. The parts' errors add up, since probabilities of other parts are at
        most 1."""
        return sum(part.doubt for part in self.randomizers)

    def analysis(self, name: str) -> Analysis:
        """See `LocalRandomizer.analysis`."""
        if name in (CLONE, TIGHT):
            return Generic(epsilon0=self.epsilon0).analysis(name)
        # One more join when equal pairs are dropped, and one when both directions of each are merged.
        return Analysis(self.components().unequal, 1.0, self.epsilon0, ROOM, (self.joins + 2) * JOINED)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`.

        The datasets may differ in any non-empty set of parts: each part has two different inputs or, unless
        that is known to reveal less, one common input.
        """
        parts = self._parts_components()
        ways = math.prod(len(part.unequal) + len(part.equal) for part in parts)
        if ways > MAXIMUM_PAIRS:
            raise InvalidParameter(self.kind, f"{ways} pairs of inputs", f"parts of at most {MAXIMUM_PAIRS}")
        choices = [
            [(one, False) for one in part.unequal] + [(one, True) for one in part.equal] for part in parts
        ]
        unequal: dict[object, Bracket] = {}
        equal: dict[object, Bracket] = {}
        for choice in itertools.product(*choices):
            combined = self.bracket([one for one, _ in choice])
            kept = equal if all(shared for _, shared in choice) else unequal
            kept.setdefault(combined.above.signature(), combined)
        return Components(tuple(unequal.values()), tuple(equal.values()))

    def _parts_components(self) -> list[Components]:
        return [part.components() for part in self.randomizers]

    def bracket(self, parts: Sequence[Bracket]) -> Bracket:
        """Returns the bracket of the whole from one bracket of each part."""
        above = self._combined([part.above for part in parts])
        if all(part.below is part.above for part in parts):
            return Bracket.exact(above)
        return Bracket(above, self._combined([part.below for part in parts]))

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; the datasets differ in every part."""
        return self.combined_witnesses([part.witnesses() for part in self.randomizers])

    def combined_witnesses(self, parts: list[tuple[Decomposition, ...]]) -> tuple[Decomposition, ...]:
        """Returns the witnesses of the whole from those of its parts; only the first ones of each part if
        there are many."""
        if math.prod(len(one) for one in parts) > _MAXIMUM_WITNESSES:
            parts = [one[:1] for one in parts]
        try:
            return tuple(self._combined(choice) for choice in itertools.product(*parts))
        except InvalidParameter:  # too many components: no attack is computed
            return ()

    @abstractmethod
    def _combined(self, parts: Sequence[Decomposition]) -> Decomposition:
        """Returns the decomposition of the whole from those of its parts."""


@dataclass(frozen=True, kw_only=True)
class Joint(Composite):
    """One report of each part, all sent together and shuffled as one message.

    The parts may use different data of the user, and neighbouring datasets may differ in all of it.
    `epsilon0` is the sum of the parts'.

    Guarantee: `blanket` is the largest bound over all pairs of inputs, whichever parts see a difference.
    Source: Su, Cheng, Wang, Theorem 9; the worst pairs: docs/theory/randomizers.md, R7.
    """

    kind = "joint"

    parts: tuple[DecomposedRandomizer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _checked("parts", self.parts))
        object.__setattr__(self, "epsilon0", _sum_upper([part.epsilon0 for part in self.parts]))
        self.components()

    @property
    def randomizers(self) -> tuple[DecomposedRandomizer, ...]:
        """Returns the parts."""
        return self.parts

    @property
    def joins(self) -> int:
        """See `DecomposedRandomizer.joins`: the errors of the parts' ratios add up."""
        return sum(part.joins for part in self.parts) + len(self.parts) - 1

    def _parts_components(self) -> list[Components]:
        """Returns the parts' components, on grids that are coarse enough for the size of their product."""
        found = [part.components() for part in self.parts]
        sizes = [max(one.above.c.size for one in (*part.unequal, *part.equal)) for part in found]
        gridded = [any(one.below is not one.above for one in part.unequal) for part in found]
        if not any(gridded) or math.prod(sizes) <= _GRIDDED_COMPONENTS:
            return found
        others = math.prod(size for size, grid in zip(sizes, gridded, strict=True) if not grid)
        most = math.floor((_GRIDDED_COMPONENTS / others) ** (1 / sum(gridded)))
        return [part.coarser(most) for part in self.parts]

    def _combined(self, parts: Sequence[Decomposition]) -> Decomposition:
        return reduce(product, parts)

    def to_mapping(self) -> dict[str, object]:
        """See `LocalRandomizer.to_mapping`."""
        return {"kind": self.kind, "parts": [part.to_mapping() for part in self.parts]}

    def describe(self) -> str:
        """See `LocalRandomizer.describe`."""
        return f"joint({', '.join(part.describe() for part in self.parts)})"


@dataclass(frozen=True, kw_only=True)
class Parallel(Composite):
    """One of several parts, part i with probability `weights[i]`; the report contains which.

    The choice of the part must not depend on the user's data. Weights sum to 1 within 1e-12; the device draws
    in proportion to them. `epsilon0` is the largest of the parts'.

    Guarantee: `blanket` is the largest bound over all pairs of inputs, whichever parts see a difference.
    Source: Su, Cheng, Wang, Theorem 11; the worst pairs: docs/theory/randomizers.md, R7.
    """

    kind = "parallel"

    weights: tuple[float, ...]
    parts: tuple[DecomposedRandomizer, ...]

    def __post_init__(self) -> None:
        parts = _checked("parts", self.parts)
        if not _are_as_many(self.weights, parts):
            raise InvalidParameter("weights", self.weights, f"{len(parts)} weights, one for each part")
        weights = tuple(validation.share(f"weights[{place}]", one) for place, one in enumerate(self.weights))
        if not validation.sums_to_one(weights, _WEIGHT_TOLERANCE):
            raise InvalidParameter("weights", math.fsum(weights), "weights that sum to 1")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "epsilon0", max(part.epsilon0 for part in parts))
        self.components()

    @property
    def randomizers(self) -> tuple[DecomposedRandomizer, ...]:
        """Returns the parts."""
        return self.parts

    @property
    def joins(self) -> int:
        """See `DecomposedRandomizer.joins`."""
        return max(part.joins for part in self.parts) + 1

    def _combined(self, parts: Sequence[Decomposition]) -> Decomposition:
        total = sum(Fraction(weight) for weight in self.weights)
        return mixture([float(Fraction(weight) / total) for weight in self.weights], parts)

    def to_mapping(self) -> dict[str, object]:
        """See `LocalRandomizer.to_mapping`."""
        parts = [
            {"weight": weight, "randomizer": part.to_mapping()}
            for weight, part in zip(self.weights, self.parts, strict=True)
        ]
        return {"kind": self.kind, "parts": parts}

    def describe(self) -> str:
        """See `LocalRandomizer.describe`."""
        pairs = zip(self.weights, self.parts, strict=True)
        return f"parallel({', '.join(f'({plain(weight)}, {part.describe()})' for weight, part in pairs)})"


def _checked(field_name: str, parts: object) -> tuple[DecomposedRandomizer, ...]:
    expected = f"2 to {_MAXIMUM_PARTS} randomizers that act on one user's report alone"
    if not isinstance(parts, list | tuple):
        raise InvalidParameter(field_name, parts, expected)
    if not 2 <= len(parts) <= _MAXIMUM_PARTS:
        raise InvalidParameter(field_name, f"{len(parts)} of them", expected)
    for place, part in enumerate(parts):
        if not isinstance(part, DecomposedRandomizer) or not part.is_part:
            raise InvalidParameter(f"{field_name}[{place}]", getattr(part, "kind", part), expected)
    return tuple(parts)


def _are_as_many(weights: object, parts: Sequence[object]) -> bool:
    return isinstance(weights, list | tuple) and len(weights) == len(parts)


def knows_generic(randomizer: DecomposedRandomizer) -> bool:
    """Returns whether the randomizer or any part of it is generic.

    Source: docs/theory/randomizers.md, R9.
    """
    if isinstance(randomizer, Composite):
        return any(knows_generic(part) for part in randomizer.randomizers)
    return randomizer.is_generic


def _sum_upper(values: Sequence[float]) -> float:
    """Returns the smallest float that is at least the sum."""
    if any(math.isinf(value) for value in values):
        return math.inf
    return float_above(sum((Fraction(value) for value in values), Fraction(0)))
