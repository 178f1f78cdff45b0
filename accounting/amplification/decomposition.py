"""Decompositions of local randomizers: the masses that the proofs of amplification use.

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

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.printed_numbers import exact_text

#: Least positive probability of an output of several randomizers together, or of a user who may be silent:
#: smaller ones are an error, since floats could lose them.
LEAST_PROBABILITY = 1e-280
# Sums of masses are checked to this absolute accuracy: a few operations make each mass.
_SUM_TOLERANCE = 1e-12
#: Largest number of components with different ratios. More: memory and time of every sum.
MAXIMUM_COMPONENTS = 4096
_MAXIMUM_PRODUCTS = 1 << 20  # components of a product, before equal ones are joined
_EQUAL_DIGITS = 2.0**46  # numbers that agree to 46 binary digits count as equal
# Relative size up to which a difference of two nearly equal terms is round-off, and counts as 0.
_ROUND_OFF_LEFT = 2.0**-48


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The masses `(a, b, c)` of the components of a local randomizer.

    `a[j]` and `b[j]` are the probabilities that the differing user's report falls in component j under `x0`
    and `x1` (each sums to 1); `c[j]` is the mass that every other user is guaranteed to put there (sums to at
    most 1; the rest is a leftover component on which the differing user never falls). Arrays have shape
    (components,) and are read-only.

    `difference` is `a - b`; it can be given with more digits than the subtraction has. `rest` is the mass of
    the leftover component with relative round-off; without it, the mass is computed as `1 - sum(c)`, with the
    absolute round-off of 1, and a negative result counts as 0.

    Guarantee: the round of n users is dominated by the pair whose hockey-stick divergence is
    `E[(G_1 + ... + G_n)_+] / n` with i.i.d. `G = (a_j - e^eps b_j) / c_j` with probability `c_j`, else 0,
    provided `a`, `b` and `c` come from a decomposition as above.
    Source: Su, Cheng, Wang, "Decomposition-Based Optimal Bounds for Privacy Amplification via Shuffling",
    Theorems 4, 12; docs/theory/amplification.md, A1.

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

    @classmethod
    def exchanged(
        cls, a: Sequence[float] | FloatArray, c: Sequence[float] | FloatArray, *, gap: float, rest: float
    ) -> Decomposition:
        """Returns the masses of two inputs that exchange the first two components, which differ by `gap`
        under either, and have all others in common."""
        first = np.asarray(a)
        difference = np.concatenate([[gap, -gap], np.zeros(first.size - 2)])
        return cls(first, np.concatenate([first[1::-1], first[2:]]), np.asarray(c), difference, rest=rest)

    @property
    def leftover(self) -> float:
        """Returns the probability that another user's report hides nothing, in [0, 1]."""
        return max(0.0, 1.0 - math.fsum(self.c)) if self.rest is None else self.rest

    def swapped(self) -> Decomposition:
        """Returns the decomposition of the pair in the other direction: `a` and `b` exchanged."""
        return self._other_direction

    @functools.cached_property
    def _other_direction(self) -> Decomposition:
        swapped = Decomposition(self.b, self.a, self.c, -self.difference, self.rest)
        swapped.__dict__["_is_joined"] = self._is_joined
        return swapped

    def signature(self) -> tuple[tuple[float, ...], ...]:
        """Returns a value that is equal for decompositions with the same divergences, up to round-off."""
        return self._signature

    @functools.cached_property
    def _signature(self) -> tuple[tuple[float, ...], ...]:
        merged = self.merged()
        bare = [np.where(merged.c > 0, 0.0, masses) for masses in (merged.a, merged.b)]
        columns = rounded(np.column_stack([*_ratios(merged), merged.c, *bare]))
        columns += 0.0  # -0 is 0
        return tuple(sorted(map(tuple, columns.tolist())))

    def merged(self) -> Decomposition:
        """Returns a decomposition with the same divergences and fewer components: equal ratios `a : b : c`
        are joined, empty components dropped.

        Guarantee: `G` depends on a component through its ratios only, so joining equal ratios changes no
            divergence. Ratios, and differences of ratios, that agree to 46 binary digits count as equal.
        """
        if self._is_joined:
            return self
        self._joined.__dict__["_is_joined"] = True
        return self._joined

    def merged_exactly(self) -> Decomposition:
        """Returns the same, but joins only components whose ratios agree in every digit: for masses that were
        given, not computed."""
        return _merged(self.a, self.b, self.c, self.difference, self.rest, digits=np.asarray)

    @functools.cached_property
    def _joined(self) -> Decomposition:
        return _merged(self.a, self.b, self.c, self.difference, self.rest)

    @functools.cached_property
    def _is_joined(self) -> bool:
        """Returns whether equal ratios were joined, so that nothing is left to join."""
        return False


def product(first: Decomposition, second: Decomposition) -> Decomposition:
    """Returns the decomposition of two reports, one of each randomizer, that are shuffled as one: components
    multiply.

    `difference` is computed without cancellation of two large terms; if its two halves differ by round-off
    only, it is 0.
    Source: Su, Cheng, Wang, Theorem 9; docs/theory/randomizers.md, R6.

    Raises:
        InvalidParameter: there would be too many components, or too improbable ones.
    """
    if first.a.size * second.a.size > _MAXIMUM_PRODUCTS:
        raise _too_many(first.a.size * second.a.size)
    sums = np.multiply.outer(first.a + first.b, second.difference)
    others = np.multiply.outer(first.difference, second.a + second.b)
    difference = (sums + others) / 2
    difference[np.abs(difference) <= _ROUND_OFF_LEFT * np.abs(sums)] = 0.0
    a, b = (_multiplied(getattr(first, x)[:, None], getattr(second, x)).ravel() for x in "ab")
    c = np.multiply.outer(first.c, second.c).ravel()
    known = first.rest is not None and second.rest is not None
    rest = first.leftover + second.leftover * (1 - first.leftover) if known else None
    return _merged(a, b, c, difference.ravel(), rest)


def mixture(weights: Sequence[float], parts: Sequence[Decomposition]) -> Decomposition:
    """Returns the decomposition of a user who runs part i with probability `weights[i]`, visibly in the
    report: all parts' components together.

    Source: Su, Cheng, Wang, Theorem 11; docs/theory/randomizers.md, R6.

    Raises:
        InvalidParameter: there would be too many components, or too improbable ones.
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
    """Returns the decomposition of a user who reports with probability `participation`, by a secret coin, and
    is silent otherwise.

    Source: docs/theory/rounds-and-samples.md, S3.
    """
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
    """Returns products of probabilities.

    Raises:
        InvalidParameter: a product of positive probabilities is below `LEAST_PROBABILITY`.
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
    """Returns the ratios `a / c` and `b / c`, infinite for unhidden components (`c = 0`) with mass, and
    `(a - b) / c`, which separates nearly equal ratios and is 0 for unhidden components."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.where(x > 0, x / masses.c, 0.0) for x in (masses.a, masses.b)]
        gap = np.where(masses.c > 0, masses.difference / masses.c, 0.0)
    return ratios[0], ratios[1], gap


def rounded(values: FloatArray) -> FloatArray:
    """Returns values rounded to 46 binary digits; equal results count as equal ratios."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(
        np.ldexp(np.round(mantissa * _EQUAL_DIGITS) / _EQUAL_DIGITS, exponent), dtype=np.float64
    )


def _too_many(count: int) -> InvalidParameter:
    return InvalidParameter(
        "randomizer", f"{count} components", f"parts that make at most {MAXIMUM_COMPONENTS} different ones"
    )
