"""Few users: the divergence of every dataset. It is the largest of many lines in the order, one for each
number of others who hold the first input and each threshold; the largest at every order are found once."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shuffle_ledger.accounting.amplification.binary_reports.law import BitLaw
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Windows of sums of bits leave out at most `exp(-this)` on either side, and lines that low are left out.
_LEFT_OUT_EXPONENT = 110.0
# Upper bound on what all that adds to a divergence: two windows of binomials and one of their sum, two sides
# each; a line; and as much again for their round-off.
_LEFT_OUT = 16 * math.exp(-_LEFT_OUT_EXPONENT)
# Datasets whose common users are added up once. Larger: fewer sums of common users, more products.
_BLOCK = 32
# Lines that are nowhere the highest are left out, once: the number of orders between which they are looked
# for, and the least of these as a share of the last one.
_ORDERS, _FIRST_ORDER = 128, 1e-6
# Lines times orders that are compared at once. Larger: fewer steps, more products.
_TOGETHER = 1 << 15
# Relative room for the round-off of comparisons of lines; a sum of two products has 3 roundings.
_COMPARED = 64 * UNIT_ROUND_OFF


def lines_of(law: BitLaw, others: int) -> float:
    """Returns an estimate of the number of lines of all datasets with `others` other users."""
    variance = others * max(law.a * law.not_a, law.b * law.not_b)
    return (others + 1) * min(_reach(variance), others + 1)


class EveryDataset:
    """The laws of the sums of others' bits, for every number m of others who hold the first input.

    The divergence of m at the threshold M is `gap f_m(M) - excess (b f_m(M) + F_m(M))`, f_m the mass of the
    sum and `F_m` that beyond M: a line in the excess.

    Args:
        law: the law of one report.
        others: the number N of other honest users.

    Guarantee: `rise` and `fall` of every line that matters have a relative error below `room`, apart from
        masses of `_LEFT_OUT` in all: sums of positive terms make them.
    """

    def __init__(self, law: BitLaw, others: int) -> None:
        self._room = 16 * UNIT_ROUND_OFF * others + _COMPARED
        rises, falls = [], []
        for first, mean, mass in _blocks(law, others):
            beyond = np.zeros_like(mass)
            beyond[:, :-1] = np.cumsum(mass[:, :0:-1], axis=1)[:, ::-1]
            # Other thresholds are never the best: it is a mode of a law whose mean is at least this one.
            threshold = first + np.arange(mass.shape[1])
            matters = (threshold >= mean[:, None] - 1.5) & (law.gap * mass > math.exp(-_LEFT_OUT_EXPONENT))
            reached = mass[matters]
            rises.append(law.gap * reached)
            falls.append(law.b * reached + beyond[matters])
        self._rise, self._fall = np.concatenate(rises), np.concatenate(falls)
        # No order beyond the last one has a positive divergence.
        last = law.gap / law.b
        orders = np.append(0.0, np.geomspace(_FIRST_ORDER * last, last, _ORDERS))
        chosen = np.zeros(self._rise.size, dtype=np.bool_)
        for _, which in self._highest(orders):
            chosen[which] = True
        self._rise, self._fall = self._rise[chosen], self._fall[chosen]

    def bounds(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on the largest divergence in one direction over all datasets, at the orders `1 +
        excess`, ascending, shape (orders,).

        Source: docs/theory/amplification.md, A8.
        """
        room = self._room + _COMPARED
        most, least = self._rise * (1 + room), self._fall * (1 - room)
        upper, lower = np.empty_like(excess), np.empty_like(excess)
        for some, which in self._highest(excess):
            values = most[which, None] - least[which, None] * excess[some]
            best = np.argmax(values, axis=0)
            upper[some] = values[best, np.arange(best.size)]
            highest = which[best]
            lower[some] = self._rise[highest] * (1 - room) - excess[some] * self._fall[highest] * (1 + room)
        return ProfileBounds(
            np.maximum(upper, 0.0) + _LEFT_OUT, np.maximum(lower - (1 + excess) * _LEFT_OUT, 0.0)
        )

    def _highest(self, excess: FloatArray) -> Iterator[tuple[slice, IndexArray]]:
        """Yields runs of the orders, each with some lines: every other line, raised by its room for
        comparisons, is below one of these, also raised, from the run's first order to its last one. Runs
        overlap in their ends.

        A line that is not above the highest ones at both ends where these two cross is nowhere between the
        ends above both of them.
        """
        rise, fall = self._rise * (1 + self._room), self._fall * (1 - self._room)
        margin = _COMPARED / 4
        nearest, farthest = (int(np.argmax(rise - order * fall)) for order in (excess[0], excess[-1]))
        open_runs = [(0, excess.size - 1, nearest, farthest, np.arange(rise.size), rise, fall)]
        while open_runs:
            low, high, one, other, which, up, down = open_runs.pop()
            cross = excess[low]
            if fall[one] != fall[other]:
                cross = (rise[one] - rise[other]) / (fall[one] - fall[other])
                cross = min(max(cross, excess[low]), excess[high])
            least = max(rise[each] - cross * fall[each] for each in (one, other))
            least -= margin * (rise[one] + cross * fall[one])
            kept = np.flatnonzero(up * (1 + margin) - cross * (1 - margin) * down >= least)
            which, up, down = which[kept], up[kept], down[kept]
            if high - low < 2 or which.size * (high - low) <= _TOGETHER:
                yield slice(low, high + 1), which
                continue
            middle = (low + high) // 2
            best = int(which[np.argmax(up - excess[middle] * down)])
            open_runs += [
                (low, middle, one, best, which, up, down),
                (middle, high, best, other, which, up, down),
            ]


def _blocks(law: BitLaw, others: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yields blocks of datasets: the first sum of a window, from about the means on; the mean of each sum,
    shape (datasets,); and its masses, shape (datasets, window). Some datasets may come twice.

    In a block, the bits of users who hold the same input in all datasets are added up once. The rest are as
    many in each block, and their sums' laws are the same.
    """
    size = min(_BLOCK, others + 1)
    rest = np.zeros((size, size))
    for held, row in enumerate(rest):
        first, second = _few_bits(held, law.not_a, law.a), _few_bits(size - 1 - held, law.not_b, law.b)
        row[:] = np.convolve(first, second)[::-1]
    for start in [*range(0, others + 2 - size, size), others + 1 - size]:
        low, common = _common(law, start, others + 1 - size - start)
        held = start + np.arange(size)
        mean = held * law.a + (others - held) * law.b
        least = max(math.floor(mean[0]) - 2, low)
        # A sum's mass is a sum over the masses of the rest's sum, here from the largest one on.
        padded = np.zeros(low + common.size - least + 2 * size - 2)
        place = least - (size - 1) - low
        kept = common[max(place, 0) :]
        padded[max(-place, 0) : max(-place, 0) + kept.size] = kept
        yield least, mean, rest @ np.lib.stride_tricks.sliding_window_view(padded, size).T


def _few_bits(count: int, not_one: float, one: float) -> FloatArray:
    """Returns the law of the sum of a few bits that are 1 with this chance."""
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, [not_one, one])
    return law


def _common(law: BitLaw, first: int, second: int) -> tuple[int, FloatArray]:
    """Returns the law of the sum of the bits of `first` users of the first input and `second` users of the
    second, in a window: the window's first sum, and the masses."""
    (low, one), (start, other) = _binomial(first, law.a, law.not_a), _binomial(second, law.b, law.not_b)
    whole, low = np.convolve(one, other), low + start
    mean = first * law.a + second * law.b
    reach = _reach(first * law.a * law.not_a + second * law.b * law.not_b)
    cut = max(math.floor(mean - reach) - low, 0)
    return low + cut, whole[cut : math.ceil(mean + reach) + 1 - low]


def _binomial(trials: int, chance: float, against: float) -> tuple[int, FloatArray]:
    """Returns the masses of a binomial law in a window, as products of ratios from the mode on: the first
    number of the window, and the masses."""
    mean, reach = trials * chance, _reach(trials * chance * against)
    low, high = max(math.floor(mean - reach), 0), min(math.ceil(mean + reach), trials)
    mode = min(int((trials + 1) * chance), trials)
    up, down = np.arange(mode, high), np.arange(mode, low, -1)
    above = np.cumprod((trials - up) / (up + 1) * (chance / against))
    below = np.cumprod(down / (trials - down + 1) * (against / chance))
    masses = np.concatenate([below[::-1], [1.0], above])
    return low, masses / masses.sum()


def _reach(variance: float) -> float:
    """Returns a distance from the mean at which sums of independent bits are with a probability of at most
    `exp(-_LEFT_OUT_EXPONENT)` on either side (Bernstein)."""
    third = _LEFT_OUT_EXPONENT / 3
    return third + math.sqrt(third**2 + 2 * _LEFT_OUT_EXPONENT * variance) + 1
