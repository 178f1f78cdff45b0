"""Enumeration of a small round: every outcome, with its probabilities under both inputs.

The shuffler reveals how many of the n reports fell in each component. If few combinations of counts carry
almost all of the mass, they are listed. The mass of the rest is bounded and added to the upper bound of the
profile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    UNDERFLOW,
    UNIT_ROUND_OFF,
    FloatArray,
    running_sums,
)
from shuffle_ledger.accounting.numeric.later import np, scipy
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

if TYPE_CHECKING:
    import numpy.typing as npt

# Natural logarithm of the tail probability at which a count is cut, about 1e-48: below every delta that
# matters.
_LOG_CUT = -110.0
# Up to this number of reports the number of all combinations is computed exactly; up to the second number
# outcomes may be listed at all, since logarithms are added up count by count.
_EXACTLY_COUNTED_REPORTS = 1000
_MOST_REPORTS = 1 << 21
# Most counts that are positive in one listed outcome: each could be 0 as well, and fewer than 2^20 are
# listed.
_MOST_POSITIVE_COUNTS = 20
# Components with a smaller positive mass c are not listed: ratios to it overflow.
_LEAST_HIDDEN = 1e-300
# Outcomes with a larger relative error count with their whole mass as absolute error; nothing is listed if
# that is more than the second number in all.
_MOST_RELATIVE_ERROR = 1e-6
_MOST_ABSOLUTE_ERROR = 1e-20
#: Relative round-off of likelihood ratios less 1, and of their differences from orders.
RATIO_ROUND_OFF = 32 * UNIT_ROUND_OFF


class Outcomes(NamedTuple):
    """Outcomes of a round, in no particular order; arrays have shape (outcomes,)."""

    ratio_excess: FloatArray  # P / Q - 1, inf where Q = 0
    p: FloatArray
    q: FloatArray
    p_minus_q: FloatArray
    missing: float  # upper bound on the mass, under either law, of outcomes that are not listed
    unsure: float  # upper bound on the total absolute error of masses with a large relative error
    relative_error: float  # upper bound on the relative round-off of every other mass
    terms: FloatArray  # sum of the moduli of the terms of `p_minus_q`: its round-off is in units of these

    def profile(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on the hockey-stick divergence of order `1 + excess`, each of the shape of `excess`
        (ascending).

        Guarantee: they hold also if an order is off by eight roundings; round-off and missing outcomes are
            included.
        """
        # Ratios are rounded up: an outcome that may be above an order counts there.
        ratios, doubt = self.ratio_excess, self.terms / np.where(self.q > 0, self.q, 1.0)
        ratios = ratios + RATIO_ROUND_OFF * (doubt + np.abs(ratios))
        cell = np.searchsorted(excess, ratios, side="left") - 1
        inside = cell >= 0
        cells, q = cell[inside], self.q[inside]
        size = len(excess)
        gain = np.maximum(self.p_minus_q[inside] - excess[cells] * q, 0.0)
        q_cell = np.bincount(cells, weights=q, minlength=size)
        doubt_cell = np.bincount(
            cells, weights=np.abs(self.p_minus_q[inside]) + excess[cells] * q, minlength=size
        )
        gain_cell = np.bincount(cells, weights=gain, minlength=size)
        q_above = _suffix(q_cell)
        # h_i = h_{i+1} + (r_{i+1} - r_i) Q(beyond r_{i+1}) + the outcomes of cell i: only positive terms.
        steps = np.append(np.diff(excess) * q_above[1:], 0.0)
        value = _suffix(gain_cell + steps)
        added = UNIT_ROUND_OFF * (16 + ratios.size + size)  # plain summation; a term may be below a unit
        rounding = 16 * UNIT_ROUND_OFF * _suffix(doubt_cell) + (added + self.relative_error) * value
        rounding += RATIO_ROUND_OFF * _suffix(np.bincount(cells, weights=self.terms[inside], minlength=size))
        lower = np.maximum(value - rounding - self.unsure - UNDERFLOW, 0.0)
        return ProfileBounds(value + rounding + self.missing + self.unsure, lower)


def enumerate_outcomes(decomposition: Decomposition, reports: int, *, limit: int) -> Outcomes | None:
    """Returns every outcome of the blanket pair of `reports` users, or None if more than `limit` outcomes
    would have to be listed, or if their masses would be too imprecise.

    Source: Su, Cheng, Wang, Theorems 12 and 13, before the expectation is taken;
        docs/theory/amplification.md, A6.
    """
    if not is_countable(decomposition, reports, limit=limit):
        return None
    counted = _Counted.of(decomposition)
    ranges = counted.ranges(reports)
    listed = _combinations(ranges, reports, counted)
    log_mass, magnitude = _log_multinomial(listed, counted, reports)
    p, q, gap, terms = np.exp(log_mass) / reports * listed.sums
    bare = (decomposition.c == 0) & (decomposition.a + decomposition.b > 0)
    p, q = np.append(p, decomposition.a[bare]), np.append(q, decomposition.b[bare])
    gap = np.append(gap, decomposition.difference[bare])
    terms = np.append(terms, np.abs(decomposition.difference[bare]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(q > 0, gap / q, np.where(p > 0, np.inf, -1.0))
    seen = (p > 0) | (q > 0)
    units = 32 + (10 + 2 * min(len(ranges), _MOST_POSITIVE_COUNTS)) * magnitude
    errors = UNIT_ROUND_OFF * np.append(units, np.full(int(bare.sum()), 32.0))
    # A leftover mass of a few units of 1 has no correct digit: masses that depend on it count in full as
    # error.
    vague = errors > _MOST_RELATIVE_ERROR
    unsure = float(np.maximum(p, q)[vague].sum()) + float((np.maximum(p, q) * errors)[vague].sum())
    relative_error = float(errors[~vague].max(initial=0.0))
    if unsure > _MOST_ABSOLUTE_ERROR:
        return None
    missing = 4 * (len(ranges) + 1) * math.exp(_LOG_CUT)
    return Outcomes(ratio[seen], p[seen], q[seen], gap[seen], missing, unsure, relative_error, terms[seen])


def is_countable(decomposition: Decomposition, reports: int, *, limit: int) -> bool:
    """Returns whether at most `limit` outcomes would have to be listed; `limit` must be below 2^20."""
    if np.any((decomposition.c > 0) & (decomposition.c < _LEAST_HIDDEN)):
        return False
    free = int((decomposition.c > 0).sum()) - (decomposition.leftover == 0)
    if reports <= _EXACTLY_COUNTED_REPORTS and math.comb(reports + free, free) <= limit:
        return True
    counted = _Counted.of(decomposition)
    if _fewest_counts(reports, counted.c) > limit:
        return False
    ranges = counted.ranges(reports)
    most = sum(int(counts[-1]) for counts in ranges)
    return most <= _MOST_REPORTS and math.prod(len(counts) for counts in ranges) <= limit


class _Counted(NamedTuple):
    """The components whose counts identify an outcome: the hidden ones and the leftover, without the most
    likely one, whose count follows from the others.

    Attributes:
        c: masses, shape (components,).
        ratios: `a/c`, `b/c`, `(a - b)/c` and the modulus of the last, shape (4, components).
        doubt: error of the logarithms of masses beyond their own round-off, in units of round-off, shape
            (components,).
        other: mass of the most likely component.
        other_ratios: its ratios, shape (4,).
        other_doubt: error of the logarithm of `1 - sum(c)`, in units of round-off.
        unsure: absolute error of the sum of all masses.
    """

    c: FloatArray
    ratios: FloatArray
    doubt: FloatArray
    other: float
    other_ratios: FloatArray
    other_doubt: float
    unsure: float

    @classmethod
    def of(cls, decomposition: Decomposition) -> _Counted:
        """Picks the components of a decomposition."""
        hidden, left = decomposition.c > 0, decomposition.leftover
        c, known = decomposition.c[hidden], decomposition.rest is not None
        sides = [getattr(decomposition, name)[hidden] / c for name in ("a", "b", "difference")]
        ratios, doubt = np.array([*sides, np.abs(sides[-1])]), np.zeros_like(c)
        if left > 0:
            # A leftover mass that is computed as 1 - sum(c) has the absolute round-off of 1.
            c, ratios = np.append(c, left), np.column_stack([ratios, np.zeros(4)])
            doubt = np.append(doubt, 8.0 if known else 4 / left)
        largest = int(c.argmax())
        others = np.arange(c.size) != largest
        # Its mass is 1 minus the others', and as precise as these.
        certain = known or bool(doubt[largest] > 0)
        share = (1 - float(c[largest]) if certain else 1.0) / float(c[largest])
        return cls(
            c=c[others],
            ratios=ratios[:, others],
            doubt=doubt[others],
            other=float(c[largest]),
            other_ratios=ratios[:, largest],
            other_doubt=4 * share,
            unsure=0.0 if known else (c.size + 4) * UNIT_ROUND_OFF,
        )

    def ranges(self, reports: int) -> list[FloatArray]:
        """Returns the range of counts of every component; see `_counts`."""
        # No mass is above 1/2, since the most likely component is not among them.
        everything = math.fsum([self.other, self.unsure, *self.c])
        return [_counts(reports, mass, everything - mass) for mass in self.c.tolist()]


class _Listed(NamedTuple):
    """Combinations of counts, reduced to sums over their components: arrays of shape (combinations,)."""

    total: FloatArray  # the counts' sum
    log_mass: FloatArray  # of the counts' powers over their factorials
    magnitude: FloatArray
    sums: FloatArray  # of counts times each of the ratios, shape (ratios, combinations)


def _combinations(ranges: list[FloatArray], reports: int, counted: _Counted) -> _Listed:
    """Lists all combinations of counts, one from each range of consecutive numbers, that sum to at most
    `reports`. Only sums over components are kept, which saves memory."""
    first = np.array([values[0] for values in ranges])
    may_be_last = np.cumsum(first[::-1])[::-1] == 0
    full, listed = [], np.zeros((3 + len(counted.ratios), 1))
    for values, c, ratios, doubt, last in zip(
        ranges, counted.c, counted.ratios.T, counted.doubt, may_be_last, strict=True
    ):
        # Combinations that use up all reports are finished. With few reports and many components, these are
        # most of all.
        if last and listed[0].max(initial=0) == reports:
            full.append(listed[:, listed[0] == reports])
            listed = listed[:, listed[0] < reports]
        most = np.minimum(values[-1], reports - listed[0])
        number = np.maximum(most - values[0] + 1, 0).astype(np.int64)
        start = np.cumsum(number) - number
        parent = np.repeat(np.arange(number.size), number)
        factorial, power = scipy.special.gammaln(values + 1), values * math.log(reports * float(c))
        magnitude = np.abs(power) + factorial + values * doubt
        added = np.vstack([values, power - factorial, magnitude, np.multiply.outer(ratios, values)])
        which = np.arange(parent.size) - start[parent]
        listed = np.take(listed, parent, axis=1)
        listed += np.take(added, which, axis=1)
    total, log_mass, magnitude, *sums = np.concatenate([*full, listed], axis=1)
    others = np.multiply.outer(counted.other_ratios, reports - total)
    return _Listed(total, log_mass, magnitude, np.array(sums) + others)


def _fewest_counts(reports: int, c: FloatArray) -> float:
    """Returns a lower bound on the number of combinations of all `_counts`, without listing any."""
    # Chernoff's exponent at a share x is at most (x - c)^2 / (c (1 - c)).
    half = np.sqrt(-_LOG_CUT * reports * c * np.maximum(1 - c, 0.0))
    counts = np.minimum(half, reports * c) + np.minimum(half, reports * np.maximum(1 - c, 0.0)) - 1
    return math.exp(min(float(np.log(np.maximum(counts, 2.0)).sum()), LARGEST_EXPONENT))


def _counts(reports: int, mass: float, rest: float) -> FloatArray:
    """Returns the consecutive counts of a component outside which `Bin(n, mass)` lies with probability at
    most `2 exp(_LOG_CUT)`, and one more count above, for the differing user's own report.

    `rest` is `1 - mass`, given because it may have more correct digits than the subtraction.
    """
    mean = reports * mass
    # Bernstein's window: generous, then tightened by Chernoff's exponent.
    half = math.sqrt(2 * mean * -_LOG_CUT) - _LOG_CUT
    low, high = max(0, math.floor(mean - half)), min(reports, math.ceil(mean + half))
    grid = np.arange(low, high + 1, dtype=np.float64)
    share = grid / reports
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = -reports * (
            np.where(share > 0, share * np.log(share / mass), 0.0)
            + np.where(share < 1, (1 - share) * (np.log1p(-share) - np.log(rest)), 0.0)
        )
    kept = grid[(exponent > _LOG_CUT) | (np.abs(grid - mean) <= 1)]
    return np.append(kept, kept[-1] + 1)


def _log_multinomial(listed: _Listed, counted: _Counted, reports: int) -> tuple[FloatArray, FloatArray]:
    """Returns the logarithm of the multinomial probability of every combination of counts, and the magnitude
    that its round-off is proportional to, each of shape (combinations,).

    `n! / (n - N)!` is built as `n^N prod(1 - i/n)`, and `n` enters only through `n c`: no huge logarithm is
    subtracted.
    """
    total = listed.total
    falling = _log_falling(int(total.max(initial=0)), reports)[total.astype(np.int64)]
    others = reports - total
    rest = others * math.log1p(-min(math.fsum(counted.c), 1 - 1e-300))
    magnitude = listed.magnitude + np.abs(falling) + np.abs(rest) + others * counted.other_doubt
    return listed.log_mass + falling + rest, magnitude


def _log_falling(most: int, reports: int) -> FloatArray:
    """Returns the logarithms of `n (n - 1) ... (n - N + 1) / n^N` for N = 0 to `most`, each with a relative
    error of a few units."""
    share = np.arange(most) / reports
    # Near 1, log1p would amplify the round-off of the share; n - i has none.
    terms = np.where(share < 0.5, np.log1p(-share), np.log((reports - np.arange(most)) / reports))
    return running_sums(terms)


def _suffix(values: npt.NDArray[np.generic]) -> FloatArray:
    result: FloatArray = np.cumsum(values[::-1])[::-1]
    return result
