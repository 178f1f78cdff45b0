"""One report of each of several randomizers, if neighbouring datasets differ in the value of one of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.randomizers.base import Bracket, Components, DecomposedRandomizer
from shuffle_ledger.accounting.randomizers.composite import MAXIMUM_PAIRS, Composite, Joint
from shuffle_ledger.accounting.randomizers.generic import CLONE_IDENTICAL, Generic


@dataclass(frozen=True, kw_only=True)
class OneAttribute(Joint):
    """A `joint` for datasets that differ in the value of one part of one user.

    Attributes:
        attribute: number of the part, from 0; the other parts of that user have the same values in both
            datasets.
        epsilon0: that of this part.

    Guarantee: the bound holds for all values of this part and all common values of the other parts.
    Source: docs/theory/randomizers.md, R8.
    """

    attribute: int

    def __post_init__(self) -> None:
        number = validation.whole("attribute", self.attribute, 0, len(self.parts) - 1)
        super().__post_init__()
        object.__setattr__(self, "epsilon0", self.parts[number].epsilon0)

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`: no tight pair, which says nothing of common values."""
        return (CLONE_IDENTICAL,) if self.is_generic else ("blanket",)

    def components(self) -> Components:
        """See `DecomposedRandomizer.components`: two inputs of the attribute, one common input of others."""
        choices = [
            found.unequal if place == self.attribute else _shared(part, found)
            for place, (part, found) in enumerate(zip(self.parts, self._parts_components(), strict=True))
        ]
        return Components(_different(self, choices), ())

    def witnesses(self) -> tuple[Decomposition, ...]:
        """See `LocalRandomizer.witnesses`; the differing user has one value of each other part, which may
        differ from the others'."""
        found = [part.witnesses() for part in self.parts]
        return self.combined_witnesses(
            [
                known if place == self.attribute else tuple(_law(one, "a") for one in known)
                for place, known in enumerate(found)
            ]
        )


def _shared(part: DecomposedRandomizer, found: Components) -> tuple[Bracket, ...]:
    """Returns the brackets of a part for one common input, of all inputs that differ in their bounds."""
    if isinstance(part, Generic):
        # Every input has at least exp(-epsilon0) of the law of the common one.
        hidden = math.exp(-part.epsilon0)
        whole = Decomposition(np.ones(1), np.ones(1), np.array([hidden]), np.zeros(1), 1 - hidden)
        return (Bracket.exact(whole),)
    if isinstance(part, Composite):
        return _different(part, [_shared(one, one.components()) for one in part.randomizers])
    both = [(one, laws) for one in found.unequal for laws in "ab"]
    return tuple({_law(one.above, laws).signature(): _bracket(one, laws) for one, laws in both}.values())


def _different(whole: Composite, choices: list[tuple[Bracket, ...]]) -> tuple[Bracket, ...]:
    """Returns the brackets of all choices of one bracket for each part, without repeated divergences."""
    ways = math.prod(len(one) for one in choices)
    if ways > MAXIMUM_PAIRS:
        raise InvalidParameter(whole.kind, f"{ways} pairs of inputs", f"parts of at most {MAXIMUM_PAIRS}")
    combined = [whole.bracket(choice) for choice in itertools.product(*choices)]
    return tuple({one.above.signature(): one for one in combined}.values())


def _bracket(one: Bracket, laws: str) -> Bracket:
    above = _law(one.above, laws)
    return Bracket.exact(above) if one.below is one.above else Bracket(above, _law(one.below, laws))


def _law(pair: Decomposition, laws: str) -> Decomposition:
    """Returns the decomposition of one of the two inputs of a pair, held in both datasets."""
    law = pair.a if laws == "a" else pair.b
    return Decomposition(law, law, pair.c, np.zeros_like(law), pair.rest).merged()
