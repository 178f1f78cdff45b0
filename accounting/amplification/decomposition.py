"""Decompositions of local randomizers: the masses every proof of amplification works with.

A local randomizer `R` with inputs `x0`, `x1` is *decomposed* into component distributions `Q_j` when
`R(x0) = sum_j a_j Q_j`, `R(x1) = sum_j b_j Q_j` and, for every input x of every other user, `R(x) >= sum_j
c_j Q_j` as measures. The other users then hide the differing one inside the components: each of them
contributes a report of component j with probability c_j that carries no information about its own input.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.printed_numbers import exact_text

#: The least probability of an output that parts of a randomizer make together, or that a user makes who may
#: be silent.
LEAST_PROBABILITY = 1e-280
# Sums of masses are checked to this many units in the last place of 1: decompositions are built by a few
# operations each.
_SUM_TOLERANCE = 1e-12
#: Components of different ratios that can be summed over.
MAXIMUM_COMPONENTS = 4096
_MAXIMUM_PRODUCTS = 1 << 20
_DIGITS = 2.0**46
# What the rounding of two terms may leave of them where they cancel.
_ALIKE = 2.0**-48


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Masses `(a, b, c)` of the components of a local randomizer.

    `a[j]` and `b[j]` are the probabilities that the differing user's report falls in component j under `x0`
    and `x1` (each sums to 1); `c[j]` is the mass that every other user is guaranteed to put there (sums to at
    most 1; the rest is a leftover component on which the differing user never falls). Arrays have shape
    (components,) and are read-only.

    `difference` is `a - b`, given where it is known to more digits than the two tell; likewise `rest`, the
    mass of the leftover component, to relative round-off. Without it that is `1 - sum(c)`, as far as units of
    1 tell: less counts as nothing.

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
    rest: float | None = None

    def __post_init__(self) -> None:
        if self.difference is None:
            object.__setattr__(self, "difference", np.asarray(self.a) - np.asarray(self.b))
        for name in ("a", "b", "c", "difference"):
            masses = np.array(getattr(self, name), dtype=np.float64)
            masses.setflags(write=False)
            object.__setattr__(self, name, masses)
            if masses.ndim != 1 or not 1 <= masses.size <= MAXIMUM_COMPONENTS:
                raise InvalidParameter(name, masses.shape, f"a vector of 1 to {MAXIMUM_COMPONENTS} masses")
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
        return max(0.0, 1.0 - math.fsum(self.c)) if self.rest is None else self.rest

    def swapped(self) -> Decomposition:
        """The decomposition of the pair in the other direction: `a` and `b` exchanged."""
        return self._other_direction

    @functools.cached_property
    def _other_direction(self) -> Decomposition:
        return Decomposition(self.b, self.a, self.c, -self.difference, self.rest)

    def signature(self) -> tuple[tuple[float, ...], ...]:
        """A value that decompositions of the same divergences share, but for rounding."""
        return self._signature

    @functools.cached_property
    def _signature(self) -> tuple[tuple[float, ...], ...]:
        merged = self.merged()
        bare = [np.where(merged.c > 0, 0.0, masses) for masses in (merged.a, merged.b)]
        columns = np.column_stack([*_ratios(merged), *(rounded(one) for one in (merged.c, *bare))])
        columns += 0.0  # -0 is 0
        return tuple(sorted(tuple(row) for row in columns.tolist()))

    def merged(self) -> Decomposition:
        """The same divergences with fewer components: equal ratios `a : b : c` joined, empty components
        dropped.

        Guarantee: `G` depends on a component through its ratios only, so joining equal ratios changes no
            divergence. Ratios, and differences of ratios, that differ by less than one in 2^46 count as
            equal: rounding.
        """
        return self._joined

    def merged_exactly(self) -> Decomposition:
        """The same where every digit of the ratios tells: components of masses that were given, not
        computed."""
        return _merged(self.a, self.b, self.c, self.difference, self.rest, digits=np.asarray)

    @functools.cached_property
    def _joined(self) -> Decomposition:
        return _merged(self.a, self.b, self.c, self.difference, self.rest)


def product(first: Decomposition, second: Decomposition) -> Decomposition:
    """Decomposition of a pair of reports, one of each randomizer, shuffled as one: the components multiply.

    `difference` is `(a - b)` of the product without the cancellation of two large terms; where its two halves
    are alike but for rounding, it is 0.
    Source: Su, Cheng, Wang, Theorem 9.

    Raises:
        InvalidParameter: more components than can be summed over, or too improbable ones.
    """
    if first.a.size * second.a.size > _MAXIMUM_PRODUCTS:
        raise _too_many(first.a.size * second.a.size)
    sums = np.multiply.outer(first.a + first.b, second.difference)
    others = np.multiply.outer(first.difference, second.a + second.b)
    difference = (sums + others) / 2
    difference[np.abs(difference) <= _ALIKE * np.abs(sums)] = 0.0
    a, b = (_multiplied(getattr(first, x)[:, None], getattr(second, x)).ravel() for x in "ab")
    c = np.multiply.outer(first.c, second.c).ravel()
    known = first.rest is not None and second.rest is not None
    rest = first.leftover + second.leftover * (1 - first.leftover) if known else None
    return _merged(a, b, c, difference.ravel(), rest)


def mixture(weights: Sequence[float], parts: Sequence[Decomposition]) -> Decomposition:
    """Decomposition of a user who runs part i with probability `weights[i]`, visibly: the components side by
    side.

    Source: Su, Cheng, Wang, Theorem 11.

    Raises:
        InvalidParameter: more components than can be summed over, or too improbable ones.
    """
    pairs = list(zip(weights, parts, strict=True))
    a, b = (np.concatenate([_multiplied(weight, getattr(part, x)) for weight, part in pairs]) for x in "ab")
    c, difference = (
        np.concatenate([weight * getattr(part, name) for weight, part in pairs])
        for name in ("c", "difference")
    )
    known = all(part.rest is not None for part in parts)
    rest = math.fsum(weight * part.leftover for weight, part in zip(weights, parts, strict=True))
    return _merged(a, b, c, difference, rest if known else None)


def with_silence(part: Decomposition, participation: float) -> Decomposition:
    """Decomposition of a user who reports with probability `participation`, by a secret coin, and else stays
    silent."""
    silence = 1.0 - participation
    if silence == 0.0:
        return part
    return Decomposition(
        np.append(_multiplied(participation, part.a), silence),
        np.append(_multiplied(participation, part.b), silence),
        np.append(participation * part.c, silence),
        np.append(participation * part.difference, 0.0),
        None if part.rest is None else participation * part.rest,
    )


def _multiplied(one: float | FloatArray, other: FloatArray) -> FloatArray:
    """Probabilities of two things together; what is possible stays possible.

    Raises:
        InvalidParameter: it is less likely than floats can tell from impossible.
    """
    together = np.asarray(one * other, dtype=np.float64)
    lost = (together < LEAST_PROBABILITY) & (np.asarray(one) > 0) & (other > 0)
    if np.any(lost):
        expected = (
            f"outputs that are impossible or have a probability of {exact_text(LEAST_PROBABILITY)} and more"
        )
        raise InvalidParameter("randomizer", float(together[lost].min()), expected)
    return together


def _merged(
    a: FloatArray,
    b: FloatArray,
    c: FloatArray,
    difference: FloatArray,
    rest: float | None = None,
    *,
    digits: Callable[[FloatArray], FloatArray] | None = None,
) -> Decomposition:
    digits = rounded if digits is None else digits
    empty = (a == 0) & (b == 0)  # hides nothing and reveals nothing: part of the leftover
    rest = None if rest is None else math.fsum([rest, *c[empty]])
    a, b, c, difference = (column[~empty] for column in (a, b, c, difference))
    bare = c == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        keys = np.column_stack([digits(a / c), digits(b / c), digits(difference / c)])
    shown = np.column_stack([a, b, np.zeros_like(a)])
    keys[bare] = np.where(shown[bare] > 0, np.inf, 0.0)
    apart = bare & (a > 0) & (b > 0)
    keys[apart] = (shown * [-1.0, 1.0, 1.0])[apart]  # unhidden under both inputs: never joined
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[group.ravel()]  # groups in the order of their first component
    if first.size > MAXIMUM_COMPONENTS:
        raise _too_many(first.size)
    sums = (np.bincount(place, weights=column) for column in (a, b, c, difference))
    a, b, c, difference = (np.asarray(column, dtype=np.float64) for column in sums)
    return Decomposition(a, b, c, difference, rest)


def _ratios(masses: Decomposition) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rounded ratios `a / c` and `b / c`, infinite where nobody hides what is there, and `(a - b) / c`, which
    tells ratios apart that are nearly alike, 0 there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.where(x > 0, rounded(x / masses.c), 0.0) for x in (masses.a, masses.b)]
        gap = rounded(np.where(masses.c > 0, masses.difference / masses.c, 0.0))
    return ratios[0], ratios[1], gap


def rounded(values: FloatArray) -> FloatArray:
    """Values to 46 binary digits: what counts as equal."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * _DIGITS) / _DIGITS, exponent), dtype=np.float64)


def _too_many(count: int) -> InvalidParameter:
    return InvalidParameter(
        "randomizer", f"{count} components", f"parts that make at most {MAXIMUM_COMPONENTS} different ones"
    )
