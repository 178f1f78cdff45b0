"""Rounds whose devices do not all run the same randomizer, and dummies that the shuffler adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.crowds import CrowdProfile, Hiding, LargestProfile, Others
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile, MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.randomizers.base import (
    BLANKET,
    JOINED,
    ROOM,
    DecomposedRandomizer,
    LocalRandomizer,
)
from shuffle_ledger.accounting.randomizers.bounded_noise import Duchi
from shuffle_ledger.accounting.randomizers.composite import knows_generic
from shuffle_ledger.accounting.randomizers.frequency_oracles import (
    BinaryLocalHash,
    HadamardResponse,
    KaryRandomizedResponse,
)
from shuffle_ledger.accounting.randomizers.support_oracles import LocalHash

_MAXIMUM_GROUPS = 16  # of one fleet: time grows in proportion, by up to a second for each group
# More groups than this that hide each other are bounded together.
ONE_BY_ONE = 3
#: Largest number of reports, and of dummies: the law of the number that hide together takes time in
#: proportion to the root of it.
MAXIMUM_DUMMIES = 10**9
# Room for the round-off of shares, which are rounded down.
_SHARE_ROOM = 1e-14
_GROUPS = "groups such as (20000, krr(k=10, epsilon0=1)), each a number of reports and a randomizer"


class Group(NamedTuple):
    """The reports of one randomizer in a mixed fleet."""

    reports: int
    randomizer: DecomposedRandomizer


class CommonLaw(NamedTuple):
    """The uniform law over all reports, and the probability with which a randomizer's report is of it.

    Attributes:
        outputs: the set of all reports. Randomizers with the same set hide each other.
        share: the report is of the uniform law with at least this probability, whatever the input is.
        masses: of two inputs and the uniform law (`c`), the worst ones.
    """

    outputs: tuple[object, ...]
    share: float
    masses: Decomposition


@dataclass(frozen=True, kw_only=True)
class MixedFleet(LocalRandomizer):
    """Devices of one round that run different randomizers, each device one that is fixed before the round and
    does not depend on its value; and reports that the shuffler makes.

    Attributes:
        groups: the number of reports of each randomizer.
        dummies: reports that the shuffler draws from the uniform law over all possible reports, whatever the
            data are, and shuffles with the others.

    Randomizers with the same set of reports hide each other: `krr` with one k; `blh` with one domain (and
    hashes); `hadamard` with one domain; `olh` with one domain and g; `duchi`. Every other group hides only
    within itself, and dummies need groups that all hide each other.

    Guarantee: the bound holds whichever group the differing user is of.
    Source: docs/theory/amplification.md, A10.

    Raises:
        InvalidParameter: a group or its number is bad, or the dummies have no law.
    """

    kind = "mixed"
    minimum_honest: ClassVar[int] = 0
    takes_participation: ClassVar[bool] = False
    silence: ClassVar[str] = "how many devices of each group report must be certain"

    epsilon0: float = field(init=False, compare=False)
    groups: tuple[Group, ...]
    dummies: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _checked(self.groups))
        object.__setattr__(self, "dummies", validation.whole("dummies", self.dummies, 0, MAXIMUM_DUMMIES))
        object.__setattr__(self, "epsilon0", max(one.randomizer.epsilon0 for one in self.groups))
        if self.reports > MAXIMUM_DUMMIES:
            raise InvalidParameter("groups", f"{self.reports} reports", f"at most {MAXIMUM_DUMMIES}")
        laws = {None if law is None else law.outputs for law in self._laws}
        if self.dummies and (None in laws or len(laws) > 1):
            expected = (
                "0: dummies are uniform over all reports, so all groups must be krr of one k, blh or hadamard"
                " of one domain, olh of one domain and g, or duchi"
            )
            raise InvalidParameter("dummies", self.dummies, expected)

    @property
    def reports(self) -> int:
        """Returns the number of the devices' reports; dummies do not count."""
        return sum(one.reports for one in self.groups)

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return (BLANKET,)

    @property
    def condition(self) -> str:
        """See `LocalRandomizer.condition`."""
        return "no report says which randomizer made it, or that it is a dummy"

    @property
    def _laws(self) -> list[CommonLaw | None]:
        return [common_law(one.randomizer) for one in self.groups]

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        parts: list[tuple[MechanismProfile, int]] = []
        for place in self._worst_groups:
            group, law, others = self.groups[place], self._laws[place], self._others(place)
            if law is None or len(others) == 1:
                own = group.randomizer.profile(
                    group.randomizer.analyses[0], participation=1.0, smoothing=smoothing, outcomes=outcomes
                )
                parts.append((own, group.reports))
                continue
            base = BlanketProfile(
                above=[law.masses],
                below=None,
                weight=1.0,
                largest_loss=group.randomizer.epsilon0,
                room=ROOM,
                blur=2 * JOINED,
                smoothing=smoothing,
                outcomes=outcomes,
            )
            parts.append((CrowdProfile(base, Hiding.of(others)), self.reports))
        return LargestProfile(parts)

    @property
    def _worst_groups(self) -> list[int]:
        """Returns the places of groups of which one is the worst. Of many groups that hide each other it is
        the one with the largest epsilon0, if its others are those of `_others`."""
        alike = self._alike
        return [
            place
            for place, group in enumerate(self.groups)
            if len(alike[place]) <= ONE_BY_ONE
            or place == max(alike[place], key=lambda one: self.groups[one].randomizer.epsilon0)
        ]

    @property
    def _alike(self) -> list[list[int]]:
        """Returns the places of the groups that hide the group at each place, its own among them."""
        laws = self._laws
        return [
            [place]
            if own is None
            else [one for one, law in enumerate(laws) if law is not None and law.outputs == own.outputs]
            for place, own in enumerate(laws)
        ]

    def _others(self, place: int) -> list[Others]:
        """Returns the reports that hide a report of the group at this place: the others of that group, those
        of groups with the same set of reports, and dummies. Of many groups, one report of the largest share
        is left out in place of one of that group: then they hide a report of none of the groups better."""
        laws, alike = self._laws, self._alike[place]
        own, found = laws[place], [Others(self.groups[place].reports - 1, 0.0)]
        if own is None:
            return found
        if len(alike) > ONE_BY_ONE:
            place = min(alike, key=lambda one: self.groups[one].randomizer.epsilon0)
        found = [
            Others(group.reports - (other == place), law.share)
            for other, (group, law) in enumerate(zip(self.groups, laws, strict=True))
            if law is not None and law.outputs == own.outputs
        ]
        return [*found, Others(self.dummies, 1.0)] if self.dummies else found

    def to_mapping(self) -> dict[str, object]:
        """See `LocalRandomizer.to_mapping`."""
        groups = [{"reports": one.reports, "randomizer": one.randomizer.to_mapping()} for one in self.groups]
        return {"kind": self.kind, "groups": groups, **({"dummies": self.dummies} if self.dummies else {})}

    def describe(self) -> str:
        """See `LocalRandomizer.describe`."""
        parts = [f"({one.reports}, {one.randomizer.describe()})" for one in self.groups]
        parts += [f"dummies={self.dummies}"] if self.dummies else []
        return f"mixed({', '.join(parts)})"


def common_law(randomizer: LocalRandomizer) -> CommonLaw | None:
    """Returns what a randomizer's reports have in common with the uniform law over all reports; None where
    that is not known, or is less than the blanket.

    A report of `krr` is each of k values with a probability of at least `1 / (e + k - 1)`. The others report
    a hash, or a column, drawn uniformly, and one of g values by g-ary randomized response: by the uniform law
    the hashes of two inputs agree with that value with probabilities `1 / g`, independently of each other.
    """
    epsilon0 = randomizer.epsilon0
    match randomizer:
        case KaryRandomizedResponse(k=k):
            return _response(("krr", k), epsilon0, k, np.array([1.0, 1.0, k - 2.0]) / k)
        case Duchi():
            return _response(("duchi",), epsilon0, 2, np.array([0.5, 0.5, 0.0]))
        case LocalHash(hashes_to=g, domain=domain):
            return _supported(("olh", g, domain), epsilon0, g)
        case BinaryLocalHash(domain=domain) | HadamardResponse(domain=domain):
            return _supported((randomizer.kind, domain), epsilon0, 2)
    return None


def _response(outputs: tuple[object, ...], epsilon0: float, size: int, uniform: FloatArray) -> CommonLaw:
    """Returns the law of randomized response: components of the first input, the second one, and neither."""
    e = math.exp(epsilon0)
    share = size / (e + size - 1)
    a = share * uniform * np.array([e, 1.0, 1.0])
    gap = share / size * math.expm1(epsilon0)
    masses = Decomposition.exchanged(a, uniform, gap=gap, rest=0.0)
    return CommonLaw(outputs, share * (1 - _SHARE_ROOM), masses)


def _supported(outputs: tuple[object, ...], epsilon0: float, g: int) -> CommonLaw:
    """Returns the law of hashed reports: components that support the first input alone, the second alone,
    both, or none."""
    e = math.exp(epsilon0)
    share, alone = g / (e + g - 1), (g - 1) / g**2
    uniform = np.array([alone, alone, 1 / g**2, ((g - 1) / g) ** 2])
    a = share * uniform * np.array([e, 1.0, e, 1.0])
    gap = share * alone * math.expm1(epsilon0)
    masses = Decomposition.exchanged(a, uniform, gap=gap, rest=0.0)
    return CommonLaw(outputs, share * (1 - _SHARE_ROOM), masses)


def _checked(groups: object) -> tuple[Group, ...]:
    if not isinstance(groups, list | tuple):
        raise InvalidParameter("groups", groups, _GROUPS)
    if not 1 <= len(groups) <= _MAXIMUM_GROUPS:
        raise InvalidParameter("groups", f"{len(groups)} of them", f"1 to {_MAXIMUM_GROUPS} groups")
    return tuple(_group(one, place) for place, one in enumerate(groups))


def _group(one: object, place: int) -> Group:
    if not isinstance(one, Sequence) or len(one) != 2:
        raise InvalidParameter(f"groups[{place}]", one, _GROUPS)
    reports, randomizer = one
    if (
        not isinstance(randomizer, DecomposedRandomizer)
        or not randomizer.is_part
        or knows_generic(randomizer)
    ):
        expected = "a named randomizer that acts on one user's report alone"
        raise InvalidParameter(f"groups[{place}]", getattr(randomizer, "kind", randomizer), expected)
    return Group(validation.whole(f"groups[{place}]", reports, 1, MAXIMUM_DUMMIES), randomizer)
