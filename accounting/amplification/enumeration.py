"""The sum over outcomes: every outcome of a small round, with its exact masses under both inputs.

Of `n` users the shuffler reveals how many reports fell in each component. Where few counts carry the mass
they are listed; the rest is bounded and charged to the mass at infinity.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.numeric.arrays import UNDERFLOW, UNIT_ROUND_OFF, FloatArray, running_sums
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Natural logarithm of the probability at which counts are cut: far below every delta that is answered.
_LOG_CUT = -110.0
# Numbers of reports that all ways to divide are counted for, and of those that logarithms are added up for.
_FEW = 1000
_MOST_REPORTS = 1 << 21
# No more counts than these are not 0 in any outcome: each could have been 0, too, and 2^20 are not listed.
_MOST_COUNTED = 20
# A component hidden by less is hidden in no number: ratios to its mass overflow.
_LEAST_HIDDEN = 1e-300
_VAGUE = 1e-6
_UNSURE = 1e-20
#: Relative round-off of likelihood ratios less 1, and of their differences from orders.
RATIO_ROUND_OFF = 32 * UNIT_ROUND_OFF


class Outcomes(NamedTuple):
    """Outcomes of a round, in no order; arrays have shape (outcomes,)."""

    ratio_excess: FloatArray  # P / Q - 1, inf where Q = 0
    p: FloatArray
    q: FloatArray
    p_minus_q: FloatArray
    missing: float  # bound on the mass, under either law, of outcomes that are not listed
    unsure: float  # bound on the error of masses that are known to few digits
    relative_error: float  # bound on the relative round-off of every mass
    terms: FloatArray  # moduli of what `P - Q` is a sum of: it is known to units of these

    def profile(self, excess: FloatArray) -> ProfileBounds:
        """Bounds on the hockey-stick divergence of order `1 + excess`, shape of `excess` (ascending), and of
        orders that are off from these by eight roundings."""
        # What may be above an order counts, though it seems to be next to it.
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
        # h_i = h_{i+1} + (r_{i+1} - r_i) Q(beyond r_{i+1}) + what lies in cell i: only positive terms.
        steps = np.append(np.diff(excess) * q_above[1:], 0.0)
        value = _suffix(gain_cell + steps)
        added = UNIT_ROUND_OFF * (16 + ratios.size + size)  # one by one, and a term may be below a unit
        rounding = 16 * UNIT_ROUND_OFF * _suffix(doubt_cell) + (added + self.relative_error) * value
        rounding += RATIO_ROUND_OFF * _suffix(np.bincount(cells, weights=self.terms[inside], minlength=size))
        lower = np.maximum(value - rounding - self.unsure - UNDERFLOW, 0.0)
        return ProfileBounds(value + rounding + self.missing + self.unsure, lower)


def enumerate_outcomes(decomposition: Decomposition, reports: int, *, limit: int) -> Outcomes | None:
    """Every outcome of the blanket pair of `reports` users, or None when more than `limit` would have to be
    listed.

    Source: Su, Cheng, Wang, Theorem 4, before the expectation is taken.
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
    units = 32 + (10 + 2 * min(len(ranges), _MOST_COUNTED)) * magnitude
    errors = UNIT_ROUND_OFF * np.append(units, np.full(int(bare.sum()), 32.0))
    # A leftover of a few units is known to no digit: what rests on it counts in full, and not by its relative
    # error.
    vague = errors > _VAGUE
    unsure = float(np.maximum(p, q)[vague].sum()) + float((np.maximum(p, q) * errors)[vague].sum())
    relative_error = float(errors[~vague].max(initial=0.0))
    if unsure > _UNSURE:
        return None
    missing = 4 * (len(ranges) + 1) * math.exp(_LOG_CUT)
    return Outcomes(ratio[seen], p[seen], q[seen], gap[seen], missing, unsure, relative_error, terms[seen])


def is_countable(decomposition: Decomposition, reports: int, *, limit: int) -> bool:
    """Whether no more outcomes than `limit`, which is below 2^20, would have to be listed."""
    if np.any((decomposition.c > 0) & (decomposition.c < _LEAST_HIDDEN)):
        return False
    free = int((decomposition.c > 0).sum()) - (decomposition.leftover == 0)
    if reports <= _FEW and math.comb(reports + free, free) <= limit:
        return True
    counted = _Counted.of(decomposition)
    if _fewest_counts(reports, counted.c) > limit:
        return False
    ranges = counted.ranges(reports)
    most = sum(int(counts[-1]) for counts in ranges)
    return most <= _MOST_REPORTS and math.prod(len(counts) for counts in ranges) <= limit


class _Counted(NamedTuple):
    """The components whose counts tell outcomes apart: those that others hide and the leftover one, but for
    the most likely of all, which has the other reports.

    Attributes:
        c: masses, shape (components,).
        ratios: `a/c`, `b/c`, `(a - b)/c` and its modulus, shape (4, components).
        doubt: how far the logarithms of masses may be off beyond their own roundings, in units, shape
            (components,).
        other: mass of the most likely component.
        other_ratios: its ratios, shape (4,).
        other_doubt: how far the logarithm of what the others leave over of 1 may be off, in units.
        unsure: mass that may be anywhere.
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
        """Those of a decomposition."""
        hidden, left = decomposition.c > 0, decomposition.leftover
        c, known = decomposition.c[hidden], decomposition.rest is not None
        sides = [getattr(decomposition, name)[hidden] / c for name in ("a", "b", "difference")]
        ratios, doubt = np.array([*sides, np.abs(sides[-1])]), np.zeros_like(c)
        if left > 0:
            # Of what is not known but as 1 - sum(c), units of 1 are doubtful.
            c, ratios = np.append(c, left), np.column_stack([ratios, np.zeros(4)])
            doubt = np.append(doubt, 8.0 if known else 4 / left)
        largest = int(c.argmax())
        others = np.arange(c.size) != largest
        # It is what the others leave over of 1, and no less sure than these.
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
        """The `_counts` of every component."""
        # None is above 1/2, for another is as likely.
        everything = math.fsum([self.other, self.unsure, *self.c])
        return [_counts(reports, mass, everything - mass) for mass in self.c.tolist()]


class _Listed(NamedTuple):
    """Combinations of counts, by what is added up over their components: shape (combinations,)."""

    total: FloatArray  # the counts' sum
    log_mass: FloatArray  # of the counts' powers over their factorials
    magnitude: FloatArray
    sums: FloatArray  # of counts times each of the ratios, shape (ratios, combinations)


def _combinations(ranges: list[FloatArray], reports: int, counted: _Counted) -> _Listed:
    """All counts from the ranges, each of consecutive numbers, that sum to no more than the reports. Only
    sums are kept: counts of many components would fill the memory."""
    first = np.array([values[0] for values in ranges])
    may_be_last = np.cumsum(first[::-1])[::-1] == 0
    full, listed = [], np.zeros((3 + len(counted.ratios), 1))
    for values, c, ratios, doubt, last in zip(
        ranges, counted.c, counted.ratios.T, counted.doubt, may_be_last, strict=True
    ):
        # Nothing can be added to these, which are most of all where a few reports are of many kinds.
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
        listed = np.array([old[parent] + new[which] for old, new in zip(listed, added, strict=True)])
    total, log_mass, magnitude, *sums = np.concatenate([*full, listed], axis=1)
    others = np.multiply.outer(counted.other_ratios, reports - total)
    return _Listed(total, log_mass, magnitude, np.array(sums) + others)


def _fewest_counts(reports: int, c: FloatArray) -> float:
    """At most as many as the combinations of all `_counts`, without listing any."""
    # Chernoff's exponent at a share x is at most (x - c)^2 / (c (1 - c)).
    half = np.sqrt(-_LOG_CUT * reports * c * np.maximum(1 - c, 0.0))
    counts = np.minimum(half, reports * c) + np.minimum(half, reports * np.maximum(1 - c, 0.0)) - 1
    return math.exp(min(float(np.log(np.maximum(counts, 2.0)).sum()), 700.0))


def _counts(reports: int, mass: float, rest: float) -> FloatArray:
    """Counts of a component outside which `Bin(n, mass)` lies with probability at most `2 exp(_LOG_CUT)`; one
    more on top, for the differing user's own report. What is left of 1 is given, too: it may have digits that
    the mass has not."""
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
    """Logarithm of the multinomial mass of every combination of counts, and the magnitude its round-off is
    proportional to.

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
    """Logarithms of `n (n - 1) ... (n - N + 1) / n^N` for N = 0 to `most`, each known to a few units."""
    share = np.arange(most) / reports
    # Next to 1, where log1p would double what the rounding of the share is off, n - i has no rounding.
    terms = np.where(share < 0.5, np.log1p(-share), np.log((reports - np.arange(most)) / reports))
    return running_sums(terms)


def _suffix(values: npt.NDArray[np.generic]) -> FloatArray:
    result: FloatArray = np.cumsum(values[::-1])[::-1]
    return result
