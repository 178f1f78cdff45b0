"""Many blanket pairs in arrays, and the law of one user's gain at an order r: `G = (a_j - r b_j)/c_j` with
probability c_j, else 0."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import (
    UNIT_ROUND_OFF,
    BoolArray,
    FloatArray,
    IndexArray,
    chosen_rows,
    increasing_root,
)
from shuffle_ledger.accounting.numeric.later import np

# Weights below `exp(-600)` of the largest one are ignored, and exponents are clipped there.
_SMALLEST_WEIGHT_EXPONENT = 600.0
# Largest exponent that the round-off of a gain may change a weight by: beyond it a bound is infinite.
_MOST_ROUNDING_EXPONENT = 50.0
# Relative and absolute room for the round-off of sums and powers of masses in `infinity`.
_MASS_SUM_ROUND_OFF = 1e-12
# Newton's steps towards a saddle point: how many at most, and the length of one, in the tilt's logarithm,
# after which none follows.
_MOST_STEPS, _LAST_STEP = 12, 0.02
# Array elements (orders times components) that are worked on together. Larger: fewer calls, more memory.
_BLOCK_ELEMENTS = 1 << 20


class PairMasses(NamedTuple):
    """Masses of pairs, one row for each; components without mass stand for nothing.

    Attributes:
        difference, b, c: `a - b`, b and c of components that other users hide, shape (pairs, components).
        bare_difference, bare_b: the same of the others, shape (pairs, bare components).
        leftover: what c leaves over, shape (pairs,).
    """

    difference: FloatArray
    b: FloatArray
    c: FloatArray
    bare_difference: FloatArray
    bare_b: FloatArray
    leftover: FloatArray


class Bare(NamedTuple):
    """Bounds on what the unhidden components (`c = 0`) contribute to the divergence,
    `sum of (a - (1 + excess) b)_+`, each of shape (orders,)."""

    upper: FloatArray
    lower: FloatArray

    @classmethod
    def of(cls, masses: PairMasses, excess: FloatArray) -> Bare:
        """Computes the bounds of the pairs in the rows of `masses`, row i at the order `1 + excess[i]`."""
        difference, b = masses.bare_difference, masses.bare_b
        taken = excess[:, None] * b
        # A difference is rounded relative to its terms; where there is no b, it is no difference.
        doubt = 8 * UNIT_ROUND_OFF * np.where(b > 0, np.abs(difference) + taken + b, 0.0)
        upper, lower = (np.maximum(difference - taken + one, 0.0).sum(axis=1) for one in (doubt, -doubt))
        summed = UNIT_ROUND_OFF * (8 + b.shape[1])
        return cls(upper * (1 + summed), lower * (1 - summed))


class Laws(NamedTuple):
    """Laws of G on the components that other users hide, one for each order; arrays of shape (orders,
    components) or (orders,). Components without mass stand for nothing.

    Attributes:
        difference: `a - b`.
        taken: `b` times the excess.
        c: masses.
        gains: values of G, `(difference - taken) / c`.
        leftover: mass at G = 0 besides.
        imbalance: `sum of a - b`, known exactly.
        dropped: mass of components left out: the law is then of total mass `1 - dropped`.

    Source: docs/theory/contour.md, C7.
    """

    difference: FloatArray
    taken: FloatArray
    c: FloatArray
    gains: FloatArray
    leftover: FloatArray
    imbalance: FloatArray
    dropped: FloatArray

    def at(self, orders: BoolArray | IndexArray) -> Laws:
        """Returns the laws at some of the orders, ascending."""
        if orders.dtype != np.bool_ and orders.size == len(self.c):
            return self  # all of them
        return Laws(*(chosen_rows(column, orders) for column in self))

    def without(self, left_out: BoolArray) -> Laws:
        """Returns the laws without these components, shape (orders, components); their mass is then less than
        1."""
        lost, dropped = (np.where(left_out, one, 0.0).sum(axis=1) for one in (self.difference, self.c))
        difference, taken, c, gains = (np.where(left_out, 0.0, one) for one in self[:4])
        return Laws(difference, taken, c, gains, self.leftover, self.imbalance - lost, self.dropped + dropped)

    @property
    def terms(self) -> FloatArray:
        """Returns the sum of the moduli of a gain's terms, in units of which it is rounded, shape (orders,
        components)."""
        return np.asarray((np.abs(self.difference) + self.taken) / np.where(self.c > 0, self.c, 1.0))

    @property
    def doubt(self) -> FloatArray:
        """Returns upper bounds on the round-off of gains, shape (orders, components)."""
        return np.asarray(8 * UNIT_ROUND_OFF * self.terms)

    def unsure(self, log_mass: FloatArray) -> FloatArray:
        """Returns an upper bound on the error of `log M(theta)`, given about its value, shape (orders,): the
        leftover mass may have the absolute round-off of 1."""
        return np.asarray(
            (self.c.shape[1] + 8)
            * UNIT_ROUND_OFF
            * np.exp(-np.clip(log_mass, -_SMALLEST_WEIGHT_EXPONENT, 0.0))
        )

    def moved(self, weights: FloatArray, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds the effect of the round-off d of gains on one report under the law tilted by theta.

        Args:
            weights: tilted probabilities of the components, shape (orders, components).
            theta: the tilts, shape (orders,).

        Returns upper bounds on the mean of `d exp(|theta| d)` and on the logarithm of the mean of
        `exp(|theta| d)`, each of shape (orders,); infinite if the round-off of a gain that matters is too
        large.
        """
        doubt = self.doubt
        exponents = np.abs(theta)[:, None] * doubt
        # A gain whose weight is far below the largest one has no effect, whatever its exact value.
        counts = (theta[:, None] * self.gains + exponents > -_SMALLEST_WEIGHT_EXPONENT) & (self.c > 0)
        rise = np.where(counts, np.expm1(np.minimum(exponents, _MOST_ROUNDING_EXPONENT)), 0.0)
        unknown = (counts & (exponents > _MOST_ROUNDING_EXPONENT)).any(axis=1)
        # Weights are off by what their own exponents are rounded by.
        more = 1 + np.abs(theta)[:, None] * np.abs(self.gains) / 8
        shift = (weights * np.where(counts, doubt * more, 0.0) * (1 + rise)).sum(axis=1)
        raised = np.log1p((weights * rise).sum(axis=1)) * (1 + 1e-9)
        return np.where(unknown, np.inf, shift), np.where(unknown, np.inf, raised)

    @property
    def drift(self) -> FloatArray:
        """Returns the mean of G, shape (orders,)."""
        return np.asarray(self.imbalance - self.taken.sum(axis=1))

    def lost(self, excess: FloatArray) -> FloatArray:
        """Returns an upper bound on what the components whose gain may have the wrong sign because of
        round-off add to the divergences of orders `1 + excess`, shape (orders,)."""
        b = self.taken / np.where(excess > 0, excess, 1.0)[:, None]
        size = 8 * UNIT_ROUND_OFF * (np.abs(self.difference) + self.taken + b)
        near = (self.taken > 0) & (np.abs(self.difference - self.taken) <= size)
        return np.asarray(np.where(near, 2 * size, 0.0).sum(axis=1))

    def some(self, orders: IndexArray) -> Laws:
        """Returns the laws at some of the orders, ascending, with only the arrays that `weighted` needs."""
        if orders.size == len(self.c):
            return self
        c, gains, leftover = (chosen_rows(one, orders) for one in (self.c, self.gains, self.leftover))
        return self._replace(c=c, gains=gains, leftover=leftover)

    def weighted(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Returns the masses times `exp(theta G - top)`, the same for the leftover component, their sum, and
        `top`, the largest exponent, which prevents overflow."""
        exponents = theta[:, None] * self.gains
        top = exponents.max(axis=1, initial=0.0)
        exponents -= top[:, None]
        masses, rest = self.c * np.exp(exponents, out=exponents), self.leftover * np.exp(-top)
        return masses, rest, masses.sum(axis=1) + rest, top

    def saddle(self, reports: int) -> FloatArray:
        """Returns tilts near the saddle point `n K'(theta) = 2 / theta`, K the logarithm of the moment
        generating function, shape (orders,). Every law must have a positive gain. Any tilt gives sound
        bounds; this one gives tight ones."""
        n, gains = float(reports), self.gains
        # Where the law is nearly Gaussian the root is that of a quadratic.
        drift, square = self.drift, (self.c * gains * gains).sum(axis=1)
        root = np.sqrt(drift * drift + 8 * square / n)
        # Of the two ways to write it, the one without cancellation.
        theta: FloatArray = np.where(
            drift > 0, 4 / n / (root + np.maximum(drift, 0.0)), (root - drift) / (2 * square)
        )
        searched = np.ones(theta.size, dtype=np.bool_)
        for _ in range(_MOST_STEPS):
            masses, _, total, _ = self.weighted(theta)
            masses *= gains
            mean = masses.sum(axis=1) / total
            masses *= gains
            variance = np.maximum(masses.sum(axis=1) / total - mean * mean, 0.0)
            wanted = 2 / n / theta
            # Newton's step of the logarithm of theta: `K' - 2 / (n theta)` rises with theta.
            step = np.nan_to_num((wanted - mean) / (wanted + theta * variance), posinf=0.0, neginf=0.0)
            # No order's tilt depends on the others.
            theta = np.where(searched, theta * np.exp(np.clip(step, -1.0, 1.0)), theta)
            searched &= np.abs(step) >= _LAST_STEP
            if not np.any(searched):
                return theta
        # Where a law of several scales turns from one to another, steps go back and forth.
        left = np.flatnonzero(searched)

        def slope(theta: FloatArray, rows: IndexArray) -> FloatArray:
            laws = self.some(left[rows])
            masses, _, total, _ = laws.weighted(theta)
            result: FloatArray = (masses * laws.gains).sum(axis=1) / total * theta - 2.0 / n
            return result

        theta[left] = increasing_root(slope, theta[left], closeness=math.exp(_LAST_STEP))
        return theta


class Pairs(Sequence[Decomposition]):
    """Blanket pairs, each in one direction. As a sequence, it holds their decompositions.

    Source: docs/theory/amplification.md, A7.
    """

    @abstractmethod
    def masses(self, which: IndexArray) -> PairMasses:
        """Returns the masses of the pairs at these positions."""

    @property
    @abstractmethod
    def components(self) -> int:
        """Returns the number of components that each pair has in `masses`."""

    @functools.cached_property
    def bare(self) -> int:
        """Returns the number of unhidden components (`c = 0`) that each pair has in `masses`."""
        return int(self.masses(np.zeros(1, dtype=np.int64)).bare_b.shape[1])

    @abstractmethod
    def impossible(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns, for every pair: the mass a of components with `b = 0` and `c = 0`; the mass a of those
        with `b = 0` and `c > 0`; the mass c of those with `b > 0`. Each of shape (pairs,)."""

    def infinity(self, reports: int) -> FloatArray:
        """Returns lower bounds on the mass at infinite loss of every pair with this many reports, shape
        (pairs,).

        These are outcomes that are impossible under the other input: the differing user's report falls in a
        component with `b = 0`, and either no other user hides it (`c = 0`) or no other report falls in a
        component with `b > 0`.
        """
        alone, without, others = self.impossible()
        avoided = np.maximum(1 - others - _MASS_SUM_ROUND_OFF, 0.0) ** (reports - 1)
        return np.asarray((alone + without * avoided) * (1 - _MASS_SUM_ROUND_OFF))

    @abstractmethod
    def __getitem__(self, place: int) -> Decomposition:  # type: ignore[override]  # places, not slices
        """Returns the decomposition of the pair at a position."""

    @functools.cached_property
    def spread(self) -> FloatArray:
        """Returns about the variance of `(a - b)/c` over the hidden components of every pair, shape
        (pairs,)."""
        found = np.zeros(len(self))
        for rows in self._blocks(len(self)):
            masses = self.masses(rows)
            hidden = np.where(masses.c > 0, masses.c, 1.0)
            found[rows] = (masses.difference**2 / hidden).sum(axis=1)
        return found

    @functools.cached_property
    def last_excess(self) -> FloatArray:
        """Returns the excess beyond which each pair's profile is 0, up to a rounding, shape (pairs,); may be
        infinite."""
        found = self.last_hidden_excess.copy()
        for rows in self._blocks(len(self)):
            masses = self.masses(rows)
            found[rows] = np.maximum(found[rows], _last_ratios(masses.bare_difference, masses.bare_b))
        return found

    @functools.cached_property
    def last_hidden_excess(self) -> FloatArray:
        """Returns the excess beyond which no hidden component has a positive gain, likewise."""
        found = np.zeros(len(self))
        for rows in self._blocks(len(self)):
            masses = self.masses(rows)
            found[rows] = _last_ratios(masses.difference, masses.b)
        return found

    def log_moments(self, theta: FloatArray, excess: FloatArray) -> FloatArray:
        """Returns upper bounds on `log E[exp(theta G)]` of all pairs at the orders `1 + excess`, with one
        tilt for each order, shape (pairs, orders).

        Guarantee: round-off included.
        """
        which, order = np.divmod(np.arange(len(self) * excess.size), excess.size)
        found = np.zeros(which.size)
        for rows, laws, _ in self.laws(which, excess[order]):
            tilt = theta[order[rows]]
            _, _, total, top = laws.weighted(tilt)
            total += UNIT_ROUND_OFF * (laws.c.shape[1] + 4)
            terms = tilt * laws.terms.max(axis=1, initial=0.0)
            error = UNIT_ROUND_OFF * (laws.c.shape[1] + 32 + 8 * terms + 8 * top)
            found[rows] = np.log(total) + top + error
        return found.reshape(-1, excess.size)

    def leftover(self, which: IndexArray) -> FloatArray:
        """Returns the leftover masses of the pairs at these positions, shape (pairs,)."""
        return self.masses(which).leftover

    def unhidden(self, which: IndexArray, excess: FloatArray) -> FloatArray:
        """Returns upper bounds on the contribution of unhidden components, `sum of (a - (1 + excess[i])
        b)_+`, to the divergences of the pairs `which[i]`, for every i."""
        found = np.zeros(which.size)
        if self.bare:
            for rows in self._blocks(which.size):
                masses = self.masses(which[rows])
                found[rows] = Bare.of(masses, excess[rows]).upper
        return found

    def laws(self, which: IndexArray, excess: FloatArray) -> Iterator[tuple[IndexArray, Laws, Bare]]:
        """Yields, for blocks of rows i: the rows; the laws of G on the hidden components of the pairs
        `which[i]` at the orders `1 + excess[i]`; and bounds on the contribution of the other components."""
        for rows in self._blocks(excess.size):
            masses, r = self.masses(which[rows]), excess[rows, None]
            taken = r * masses.b
            gains = (masses.difference - taken) / np.where(masses.c > 0, masses.c, 1.0)
            # Without unhidden components a and b both sum to 1, and their difference to exactly 0.
            imbalance = -masses.bare_difference.sum(axis=1)
            nothing = np.zeros(rows.size)
            laws = Laws(masses.difference, taken, masses.c, gains, masses.leftover, imbalance, nothing)
            yield rows, laws, Bare.of(masses, excess[rows])

    def _blocks(self, size: int) -> Iterator[IndexArray]:
        height = max(1, _BLOCK_ELEMENTS // max(1, self.components + self.bare))
        for start in range(0, size, height):
            yield np.arange(start, min(start + height, size))


def _last_ratios(difference: FloatArray, b: FloatArray) -> FloatArray:
    """Returns the largest of the ratios to b of the positive differences `a - b`, or 0, shape (pairs,)."""
    ratios = np.where(b > 0, difference / np.where(b > 0, b, 1.0), math.inf)
    return np.asarray(ratios.max(axis=1, initial=0.0, where=difference > 0))


class ListedPairs(Pairs):
    """Pairs that are given one by one."""

    def __init__(self, pairs: Sequence[Decomposition]) -> None:
        self._pairs = list(pairs)
        hidden = [pair.c > 0 for pair in pairs]

        def padded(name: str, *, bare: bool) -> FloatArray:
            kept = [~one if bare else one for one in hidden]
            columns = [getattr(pair, name)[one] for pair, one in zip(pairs, kept, strict=True)]
            result = np.zeros((len(columns), max(one.size for one in columns)))
            for row, one in zip(result, columns, strict=True):
                row[: one.size] = one
            return result

        self._masses = PairMasses(
            difference=padded("difference", bare=False),
            b=padded("b", bare=False),
            c=padded("c", bare=False),
            bare_difference=padded("difference", bare=True),
            bare_b=padded("b", bare=True),
            leftover=np.array([pair.leftover for pair in pairs]),
        )

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, place: int) -> Decomposition:  # type: ignore[override]  # places, not slices
        return self._pairs[place]

    def masses(self, which: IndexArray) -> PairMasses:
        """See `Pairs.masses`."""
        return PairMasses(*(chosen_rows(column, which) for column in self._masses))

    @property
    def components(self) -> int:
        """See `Pairs.components`."""
        return int(self._masses.c.shape[1])

    def impossible(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """See `Pairs.impossible`."""
        alone = np.array([float(one.a[(one.b == 0) & (one.c == 0)].sum()) for one in self._pairs])
        without = np.array([float(one.a[(one.b == 0) & (one.c > 0)].sum()) for one in self._pairs])
        return alone, without, np.array([float(one.c[one.b > 0].sum()) for one in self._pairs])
