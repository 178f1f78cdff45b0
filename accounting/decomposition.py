"""Decompositions of local randomizers: the masses every proof of amplification works with.

A local randomizer `R` with inputs `x0`, `x1` is *decomposed* into component distributions `Q_j` when
`R(x0) = sum_j a_j Q_j`, `R(x1) = sum_j b_j Q_j` and, for every input x of every other user, `R(x) >= sum_j
c_j Q_j` as measures. The other users then hide the differing one inside the components: each of them
contributes a report of component j with probability c_j that carries no information about its own input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accounting.errors import InvalidParameter

FloatArray = npt.NDArray[np.float64]

# Sums of masses are checked to this many units in the last place of 1: decompositions are built by a few
# operations each.
_SUM_TOLERANCE = 1e-12
_MAXIMUM_COMPONENTS = 4096


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Masses `(a, b, c)` of the components of a local randomizer.

    `a[j]` and `b[j]` are the probabilities that the differing user's report falls in component j under `x0`
    and `x1` (each sums to 1); `c[j]` is the mass that every other user is guaranteed to put there (sums to at
    most 1; the rest is a leftover component on which the differing user never falls). Arrays have shape
    (components,) and are read-only.

    `difference` is `a - b`, given where it is known to more digits than the two tell.

    Guarantee: the round of n users is dominated by the pair whose hockey-stick divergence is
    `E[(G_1 + ... + G_n)_+] / n` with i.i.d. `G = (a_j - e^eps b_j) / c_j` with probability `c_j`, else 0,
    provided `a`, `b` and `c` come from a decomposition as above.
    Source: Su, Cheng, Wang, "Decomposition-Based Optimal Bounds for Privacy Amplification via Shuffling",
    Theorems 4, 12.

    Raises:
        InvalidParameter: shapes differ, a mass is negative or not finite, or a sum is wrong.
    """

    a: FloatArray
    b: FloatArray
    c: FloatArray
    difference: FloatArray = None  # type: ignore[assignment]  # a - b, always an array once constructed

    def __post_init__(self) -> None:
        if self.difference is None:
            object.__setattr__(self, "difference", np.asarray(self.a) - np.asarray(self.b))
        for name in ("a", "b", "c", "difference"):
            masses = np.array(getattr(self, name), dtype=np.float64)
            masses.setflags(write=False)
            object.__setattr__(self, name, masses)
            if masses.ndim != 1 or not 1 <= masses.size <= _MAXIMUM_COMPONENTS:
                raise InvalidParameter(name, masses.shape, f"a vector of 1 to {_MAXIMUM_COMPONENTS} masses")
            if masses.shape != self.a.shape:
                raise InvalidParameter(name, masses.shape, f"as many masses as a has, {self.a.size}")
            if not np.all(np.isfinite(masses)) or (name != "difference" and np.any(masses < 0)):
                raise InvalidParameter(name, masses.tolist(), "masses that are finite and not negative")
        for name, total in (("a", math.fsum(self.a)), ("b", math.fsum(self.b))):
            if abs(total - 1) > _SUM_TOLERANCE:
                raise InvalidParameter(name, total, "masses that sum to 1")
        if math.fsum(self.c) > 1 + _SUM_TOLERANCE:
            raise InvalidParameter("c", math.fsum(self.c), "masses that sum to at most 1")
        if np.any(np.abs(self.difference - (self.a - self.b)) > _SUM_TOLERANCE):
            raise InvalidParameter("difference", self.difference.tolist(), "the differences a - b")

    @property
    def leftover(self) -> float:
        """Mass of other users' reports that hide nothing, in [0, 1]."""
        return max(0.0, 1.0 - math.fsum(self.c))

    def swapped(self) -> Decomposition:
        """The decomposition of the pair in the other direction: `a` and `b` exchanged."""
        return Decomposition(self.b, self.a, self.c, -self.difference)

    def is_symmetric(self) -> bool:
        """Whether exchanging `a` and `b` only renames components, so that both directions have the same
        profile."""
        forwards = sorted(zip(self.a.tolist(), self.b.tolist(), self.c.tolist(), strict=True))
        backwards = sorted(zip(self.b.tolist(), self.a.tolist(), self.c.tolist(), strict=True))
        return forwards == backwards

    def merged(self) -> Decomposition:
        """The same divergences with fewer components: equal ratios `a : b : c` joined, empty components
        dropped.

        Guarantee: `G` depends on a component through its ratios only, so joining equal ratios changes no
            divergence.
        """
        ratios: dict[tuple[float, float], list[float]] = {}
        columns = (self.a.tolist(), self.b.tolist(), self.c.tolist(), self.difference.tolist())
        for a, b, c, difference in zip(*columns, strict=True):
            if a == b == 0.0:
                continue  # hides nothing and reveals nothing: part of the leftover
            key = (a / c, b / c) if c > 0 else (math.inf if a > 0 else 0.0, math.inf if b > 0 else 0.0)
            if c == 0 and a > 0 and b > 0:
                key = (-a, b)  # ratios of unhidden components stay apart: they are never joined
            sums = ratios.setdefault(key, [0.0, 0.0, 0.0, 0.0])
            for position, mass in enumerate((a, b, c, difference)):
                sums[position] += mass
        return Decomposition(*(np.array(column) for column in zip(*ratios.values(), strict=True)))


def with_silence(part: Decomposition, participation: float) -> Decomposition:
    """Decomposition of a user who reports with probability `participation`, by a secret coin, and else stays
    silent."""
    silence = 1.0 - participation
    if silence == 0.0:
        return part
    return Decomposition(
        np.append(participation * part.a, silence),
        np.append(participation * part.b, silence),
        np.append(participation * part.c, silence),
        np.append(participation * part.difference, 0.0),
    )
